"""Validation of a run before it starts or resumes, and the result of a finished run; loads no TensorFlow."""

from pathlib import Path
from typing import Any

from ctr.data.log import log_sha256, read_manifests, read_schema
from ctr.io.documents import read_json_object
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.logs import Logs, open_logs, resolve
from ctr.training.run.directory import (
    check_config,
    check_run_folder,
    check_schema,
    read_warm_start,
    with_skip_of,
)


def validate(
    config: TrainConfig,
    log: Path,
    run_dir: Path,
    *,
    record: str | None = None,
    source: Path | None = None,
    workers: int = 1,
    follows: bool = False,
) -> dict[str, Any] | None:
    """Checks that a run can start or resume with these inputs; returns a finished run's result. Changes nothing.

    Args:
        record: the sidecar that the predictions will be published as.
        source: the directory of the run that this one starts from.
        follows: whether the log may be empty, or missing for a new run; checks that need its rows are then left out.

    Returns:
        The content of summary.json, if the run has processed the current log, constraint logs and sidecars;
        None if there is something left to compute.

    Raises:
        InputError: the log, the configuration, the number of workers and ``run_dir`` do not fit together.
    """
    check_run_folder(run_dir)
    config = with_skip_of(run_dir, config)
    check_possible(config, workers)
    if follows:
        if (run_dir / "config.yaml").exists():
            schema, manifests = read_schema(log), read_manifests(log)
            # Settings that depend on the log cannot be compared before it has a partition.
            resolved = resolve(config, schema, manifests) if manifests else config
            check_schema(run_dir, resolved.model.features(schema))
            if manifests:
                check_config(run_dir, resolved)
        return None
    logs = open_logs(log, config)
    config = logs.config
    if record is not None:
        # Loaded here, as further down: without Arrow, a finished run's summary is printed sooner.
        from ctr.training.run.predictions import check_record

        check_record(log, config, run_dir, record)
    if source is not None:
        needs_warm_start(run_dir, source)
    # Features first: if they differ, so do widths.
    check_schema(run_dir, logs.schema)
    check_config(run_dir, config)
    return _finished(run_dir, logs)


def check_possible(config: TrainConfig, workers: int = 1, can_export: bool = True) -> None:
    """Raises InputError for settings that a session or several workers do not support."""
    if config.export is not None and not can_export:
        raise InputError(
            "config: export: this session cannot export; use ctr train or train(..., exporter=...)"
        )
    if workers == 1:
        return
    if config.jit is True:
        raise InputError(
            "config: jit: true is not possible with several workers, between which XLA exchanges nothing; "
            "allowed: auto, false"
        )
    if config.batch.shapes == "few":
        raise InputError(
            "config: batch.shapes: few is not possible with several workers; allowed: auto, many"
        )


def _finished(run_dir: Path, logs: Logs) -> dict[str, Any] | None:
    path = run_dir / "summary.json"
    if not path.is_file() or not (run_dir / "windows.parquet").is_file():
        return None
    try:
        summary = read_json_object(path, f"{path}: no such file")
    except InputError:
        # Computed and written again.
        return None
    # Not the hash of the configuration: ``check_config`` compared its keys.
    expected = {**input_hashes(logs), "log_rows": logs.log.rows}
    return dict(summary) if {key: summary.get(key) for key in expected} == expected else None


def input_hashes(logs: Logs) -> dict[str, Any]:
    """Returns the hashes of a run's current logs and sidecars, by their keys in summary.json."""
    sidecars = {}
    if logs.sidecars:
        from ctr.data.sidecar import SidecarHash

        sidecars = {role: SidecarHash(of.path, name).until() for role, (of, name) in logs.sidecars.items()}
    return {
        "log_sha256": log_sha256(logs.log.manifests),
        "constraint_logs_sha256": {
            name: log_sha256(other.manifests) for name, other in logs.constraint_logs.items()
        },
        "sidecars_sha256": sidecars,
    }


def needs_warm_start(run_dir: Path, source: Path) -> bool:
    """Returns whether ``run_dir`` has yet to be warm-started. Raises InputError if it was started differently."""
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
