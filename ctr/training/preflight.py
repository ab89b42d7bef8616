"""What can be said of a training run before TensorFlow is loaded: what is wrong with it, or what came of it.

TensorFlow takes seconds to load. A missing log, a configuration that does not fit, and an output directory that is
taken are reported without it, and so is the result of a run that is finished.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctr.data.log import Manifest, log_sha256, read_manifests, read_schema
from ctr.data.schema import Schema
from ctr.data.time_range import TimeRange
from ctr.io.documents import read_json_object
from ctr.io.errors import InputError
from ctr.io.words import listed
from ctr.training.auto import resolve
from ctr.training.config import TrainConfig
from ctr.training.run.directory import INIT_FROM, check_config, check_run_folder, check_schema


class LearningError(InputError):
    """Raised at the end of a run that learned nothing, or whose weights are of no use; its files are complete.

    Attributes:
        summary: the content of summary.json; None where there is none.
    """

    def __init__(self, message: str, summary: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.summary = summary


@dataclass(frozen=True)
class Log:
    """A log and its published partitions."""

    path: Path
    manifests: Sequence[Manifest]

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(manifest.rows for manifest in self.manifests)

    def start_at(self, position: int) -> int:
        """The query time, in microseconds, at which the partition with that row, or else the last one, begins."""
        behind = 0
        for manifest in self.manifests:
            behind += manifest.rows
            if behind > position:
                return manifest.start
        return self.manifests[-1].start if self.manifests else 0

    @property
    def end(self) -> int:
        """The query time, in microseconds, up to which it is published."""
        return self.manifests[-1].end if self.manifests else 0


@dataclass(frozen=True)
class Logs:
    """The logs that a run reads, all of the same features.

    Attributes:
        config: of the run, with what the log's manifests decide.
        schema: the features.
        log: the log that it makes a pass over.
        constraint_logs: by name.
        teacher_log: the log beside which the teacher's sidecar lies, where it is another one.
    """

    config: TrainConfig
    schema: Schema
    log: Log
    constraint_logs: Mapping[str, Log]
    teacher_log: Log | None


def open_logs(path: Path, config: TrainConfig) -> Logs:
    """Finds the logs that a run reads, and checks the configuration against their features.

    Raises:
        InputError: a log is none, is empty, or has other features than the first one; the configuration names a
            feature that there is not.
    """
    schema = read_schema(path)
    log = _open_log(path, config.time_range)
    config = resolve(config, schema, log.manifests)
    _check_slices(schema, config)
    config.table_layouts(schema)
    constraints = config.objective.bias_constraints
    constraint_logs: dict[str, Log] = {}
    for number, other in enumerate(constraints.logs if constraints is not None else ()):
        key = f"objective.bias_constraints.logs.{number}.path"
        constraint_logs[other.name] = _open_log(Path(other.path), config.time_range, key)
    for name, opened in constraint_logs.items():
        version = read_schema(opened.path).version
        if version != schema.version:
            raise InputError(
                f"config: objective.bias_constraints.logs: the log {name} ({opened.path}) has schema {version}, "
                f"{path} has {schema.version}: both must have the same features"
            )
    distillation = config.objective.distillation
    taught = None if distillation is None or distillation.log is None else Path(distillation.log)
    teacher_log = None if taught is None else Log(taught, read_manifests(taught))
    return Logs(config, schema, log, constraint_logs, teacher_log)


def _open_log(path: Path, time_range: TimeRange, key: str = "") -> Log:
    where = f"config: {key}: " if key else ""
    try:
        read_schema(path)
        log = Log(path, read_manifests(path))
    except InputError as error:
        raise InputError(f"{where}{error}") from None
    if not log.rows:
        raise InputError(f"{where}{path}: the log has no rows")
    if not any(time_range.selects(manifest) for manifest in log.manifests):
        raise InputError(f"{where}{path}: no partition of the log overlaps time_range")
    return log


def _check_slices(schema: Schema, config: TrainConfig) -> None:
    for name in config.metrics.slices:
        if name not in schema.single_valued:
            raise InputError(
                f"config: metrics.slices names {name}, which is not a single-valued feature of the log; "
                f"allowed: {listed(schema.single_valued, name)}"
            )


def sidecar_logs(logs: Logs, config: TrainConfig) -> dict[str, tuple[Log, str]]:
    """The log and the name of each sidecar that a run reads, by what it is read for."""
    sampling, distillation = config.sampling, config.objective.distillation
    read: dict[str, tuple[Log, str]] = {}
    if sampling is not None:
        read["sample"] = logs.log, sampling.name
    if distillation is not None:
        read["teacher"] = logs.teacher_log or logs.log, distillation.teacher
    return read


def check_run(
    log: Path, config: TrainConfig, run_dir: Path, record: str | None = None, source: Path | None = None
) -> dict[str, Any] | None:
    """Refuses what a run cannot begin or go on with, and returns its result if it is finished already; changes no run.

    Args:
        log, config, run_dir: see ``ctr.training.loop.train``.
        record: the sidecar that the predictions are to be published as.
        source: the run that this one is to begin from.

    Returns:
        The content of summary.json, where the run has passed the log, constraint logs and sidecars as they are
        now; None where there is something to compute.

    Raises:
        InputError: a missing or bad log, a configuration that does not fit it, or ``run_dir`` is something else or was
            begun otherwise.
    """
    check_run_folder(run_dir)
    logs = open_logs(log, config)
    config = logs.config
    if record is not None:
        # Loaded here, as further down: without Arrow, a finished run's summary is shown sooner.
        from ctr.training.run.record import check_record

        check_record(log, config, run_dir, record)
    if source is not None:
        needs_warm_start(run_dir, source)
    _check_begun(run_dir, config, logs.schema)
    return _finished(run_dir, logs, config)


def check_follow(log: Path, config: TrainConfig, run_dir: Path) -> None:
    """Refuses a run that cannot follow a log, as far as that can be said before the log is there; changes nothing.

    Raises:
        InputError: ``run_dir`` is something else than a run directory, or was begun otherwise.
    """
    check_run_folder(run_dir)
    if (run_dir / "config.yaml").exists():
        schema, manifests = read_schema(log), read_manifests(log)
        check_schema(run_dir, schema)
        # Without a partition, what depends on the log cannot be compared yet.
        if manifests:
            check_config(run_dir, resolve(config, schema, manifests))


def _check_begun(run_dir: Path, config: TrainConfig, schema: Schema) -> None:
    # First the features: of others, widths differ too.
    check_schema(run_dir, schema)
    check_config(run_dir, config)


def train_result(log: Path, run_dir: Path, summary: Mapping[str, Any], record: str | None) -> dict[str, Any]:
    """What training returns of a finished run; with ``record`` it publishes the predictions as that sidecar.

    Raises:
        LearningError: the run learned nothing.
    """
    result = dict(summary)
    if failure := summary["learning_failure"]:
        raise LearningError(f"{run_dir}: {failure}", result)
    if record is not None:
        from ctr.training.run.record import record_predictions

        result["recorded"] = record_predictions(log, run_dir, record, summary["log_rows"])
    if (begun := read_warm_start(run_dir)) is not None:
        result["init_from"] = begun
    return result


def _finished(run_dir: Path, logs: Logs, config: TrainConfig) -> dict[str, Any] | None:
    path = run_dir / "summary.json"
    if not path.is_file() or not (run_dir / "metric_states.npz").is_file():
        return None
    try:
        summary = read_json_object(path, f"{path}: no such file")
    except InputError:
        # Computed and written again.
        return None
    # Not the hash of the configuration: ``check_config`` compared its keys.
    expected = {
        "log_sha256": log_sha256(logs.log.manifests),
        "constraint_logs_sha256": {
            name: log_sha256(other.manifests) for name, other in logs.constraint_logs.items()
        },
        "sidecars_sha256": _sidecar_hashes(logs, config),
        "log_rows": logs.log.rows,
    }
    return dict(summary) if {key: summary.get(key) for key in expected} == expected else None


def _sidecar_hashes(logs: Logs, config: TrainConfig) -> dict[str, str]:
    read = sidecar_logs(logs, config)
    if not read:
        return {}
    from ctr.data.sidecar import SidecarHash

    return {role: SidecarHash(of.path, name).until() for role, (of, name) in read.items()}


def read_warm_start(run_dir: Path) -> dict[str, Any] | None:
    """What a run began with, the content of init_from.json; None if it began with nothing."""
    path = run_dir / INIT_FROM
    return dict(read_json_object(path, f"{path}: no such file")) if path.is_file() else None


def needs_warm_start(run_dir: Path, source: Path) -> bool:
    """Whether ``run_dir`` is still to be begun from another one; False where that was done.

    Raises:
        InputError: it was begun otherwise or is something else, or ``source`` is itself or no run directory.
    """
    if run_dir.resolve() == source.resolve():
        raise InputError(f"--init-from {source}: this is the run directory itself; use another --out")
    check_run_folder(run_dir)
    if (begun := read_warm_start(run_dir)) is not None:
        if begun.get("run") != str(source.resolve()):
            raise InputError(
                f"{run_dir} was started from {begun.get('run')}, not from {source}: "
                "run without --init-from to resume it, or use another output directory"
            )
        return False
    if (run_dir / "config.yaml").exists():
        raise InputError(
            f"{run_dir} was started without --init-from: use another output directory to start from {source}"
        )
    if not (source / "config.yaml").is_file():
        raise InputError(f"--init-from {source}: not a run directory: it has no config.yaml")
    return True
