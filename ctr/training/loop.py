"""One pass over a log: every batch is scored by the weights from before it, and then learned from."""

from pathlib import Path
from typing import Any

from ctr.data.sidecar import sidecar_folder
from ctr.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.launch import InitFrom, launch, read_launch
from ctr.training.record import record_predictions
from ctr.training.session import TIMING, Progress, open_session
from ctr.training.snapshot import Exporter

__all__ = ["TIMING", "train"]


def train(
    log: Path,
    config: TrainConfig,
    run: Path,
    progress: Progress | None = None,
    record: str | None = None,
    exporter: Exporter | None = None,
    init_from: InitFrom | None = None,
) -> dict[str, Any]:
    """Trains one pass over ``log``, or goes on with it where ``run``'s newest checkpoint stands.

    Args:
        log, config, run, progress, exporter: as of ``ctr.training.session.open_session``.
        record: publishes the predictions as this sidecar of the log, after the pass.
        init_from: another run, from whose weights and place in the log a new one begins.

    Returns:
        The content of summary.json; with ``record`` also ``recorded``, what was published, and of a run that was
        begun from another one ``init_from``, with what.

    Raises:
        InputError: as of ``open_session``, its session's ``advance`` and ``launch``, or what could not be recorded.
    """
    if record is not None:
        _check_record(log, config, run, record)
    if init_from is not None:
        launch(log, config, run, init_from)
    with open_session(log, config, run, progress, exporter) as session:
        summary = session.finish()
        if record is not None:
            summary["recorded"] = record_predictions(log, run, record, summary["log_rows"])
        if (begun := read_launch(run)) is not None:
            summary["init_from"] = begun
        return summary


def _check_record(log: Path, config: TrainConfig, run: Path, name: str) -> None:
    """Refuses before the pass what could not be published after it."""
    folder = sidecar_folder(log, name)
    if not config.record_predictions:
        raise InputError(f"--record {name} needs the run's predictions: record_predictions is false")
    distillation = config.objective.distillation
    if distillation is not None and distillation.teacher == name:
        teacher_log = log if distillation.log is None else Path(distillation.log)
        if teacher_log.resolve() == log.resolve():
            raise InputError(f"--record {name}: the run's own teacher has this name; use another one")
    if folder.exists() and any(folder.iterdir()) and not (run / "summary.json").exists():
        raise InputError(f"--record {name}: {folder} already exists, from another run; use another name")
