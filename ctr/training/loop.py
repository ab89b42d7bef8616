"""One pass over a log: every batch is scored by the weights from before it, and then learned from."""

from pathlib import Path
from typing import Any

from ctr.training.config import TrainConfig
from ctr.training.preflight import LearningError, train_result
from ctr.training.run.record import check_record
from ctr.training.run.snapshot import Exporter
from ctr.training.session import TIMING, Phase, Progress, open_session
from ctr.training.warm_start.start import InitFrom, launch

__all__ = ["TIMING", "LearningError", "train"]


def train(
    log: Path,
    config: TrainConfig,
    run: Path,
    progress: Progress | None = None,
    record: str | None = None,
    exporter: Exporter | None = None,
    init_from: InitFrom | None = None,
    phase: Phase | None = None,
) -> dict[str, Any]:
    """Trains one pass over ``log``, or goes on with it where ``run``'s newest checkpoint stands.

    Args:
        log, config, run, progress, exporter, phase: see ``ctr.training.session.open_session``.
        record: publishes the predictions as this sidecar of the log, after the pass.
        init_from: another run, from whose weights and place in the log a new one begins.

    Returns:
        The content of summary.json; with ``record`` also ``recorded``, what was published, and of a run that was
        begun from another one ``init_from``, with what.

    Raises:
        LearningError: the files are complete, but nothing was learned, or the weights are of no use; nothing is
            recorded (``ctr.training.run.results.learning_failure``).
        InputError: see ``open_session``, its session's ``advance`` and ``launch``, or what could not be recorded.
    """
    if record is not None:
        check_record(log, config, run, record)
    if init_from is not None:
        launch(log, config, run, init_from)
    with open_session(log, config, run, progress, exporter, phase=phase) as session:
        return train_result(log, run, session.finish(), record)
