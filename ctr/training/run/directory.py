"""The files of a run: its configuration, measurements and predictions.

::

    RUN/config.yaml            the whole configuration
    RUN/environment.json       versions, devices, threads
    RUN/schema.json            the features of the log
    RUN/metrics.jsonl          one line per window
    RUN/checkpoints/           checkpoint.py
    RUN/exports/               servable models, with ``export`` in the configuration
    RUN/rejects.jsonl          unusable rows, with reason and position
    RUN/windows.parquet        the sums from which all metrics are computed, at the end (ctr.eval.windows)
    RUN/summary.json           the results
    RUN/init_from.json         in a warm-started run: the source, its position, and the parts taken (warm_start/)
    RUN/follow.jsonl           the lag of a run that follows a live log (ctr.training.follow)
    RUN/workers/               the output of each worker of ctr train --workers
    RUN/.lock                  held by the process that trains

Observers have separate files (``ctr.training.observers``). On a resume, files that grow during a run are
truncated to their length at the checkpoint.
"""

import json
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctr.config import changed_values, differing_keys, dump_yaml, load_model
from ctr.data.log import read_schema_file, schema_bytes
from ctr.data.schema import Schema, differing_features
from ctr.io.documents import read_json_object
from ctr.io.errors import InputError, joined
from ctr.io.files import (
    MODEL_FILE,
    PARTIAL,
    check_local,
    check_output_folder,
    create_exclusively,
    delete_version,
    hold,
    is_partial,
    is_temporary,
    sync_folder,
    version_number,
    versions,
    write_atomic_bytes,
)
from ctr.training.config import TrainConfig
from ctr.training.run import checkpoint

if TYPE_CHECKING:
    from ctr.workers.collectives import Workers

INIT_FROM = "init_from.json"
WORKERS = "workers"

_MOST_SETTINGS = 3
"""The maximum number of differing keys for which an error shows the settings that restore the earlier values."""


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes JSON atomically, with keys in the order of ``content``."""
    write_atomic_bytes(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


@contextmanager
def only_process(run_dir: Path) -> Iterator[None]:
    """Locks the run directory until the block or the process ends. Raises InputError if another process holds it."""
    (run_dir / ".lock").touch()
    with hold(run_dir / ".lock", f"{run_dir}: another process is training in this run directory"):
        yield


@contextmanager
def hold_run(
    run_dir: Path, config: TrainConfig, schema: Schema, environment: dict[str, Any], group: "Workers"
) -> Iterator[None]:
    """Creates a run's files and locks its folder for the block; InputError if the files do not fit or it is in use."""

    def begin() -> None:
        # Features first: if they differ, so do widths.
        check_run_folder(run_dir)
        check_schema(run_dir, schema)
        adopt_config(run_dir, config)
        held.enter_context(only_process(run_dir))
        adopt_schema(run_dir, schema)
        adopt_environment(run_dir, environment)

    with ExitStack() as held:
        group.once(begin)
        yield


def adopt_config(run_dir: Path, config: TrainConfig) -> None:
    """Writes config.yaml, or checks that the run was started with the same configuration; see ``check_config``."""
    check_config(run_dir, config)
    path = run_dir / "config.yaml"
    if not path.exists() and not create_exclusively(path, dump_yaml(config).encode()):
        check_config(run_dir, config)


def with_skip_of(run_dir: Path, config: TrainConfig) -> TrainConfig:
    """Returns ``config`` with the run's ``skip``, which ``--skip`` may have extended, unless it skips others."""
    path = run_dir / "config.yaml"
    skip = load_model(TrainConfig, path, "config").skip if path.is_file() else ()
    return config.model_copy(update={"skip": skip}) if {*config.skip} <= {*skip} else config


def check_config(run_dir: Path, config: TrainConfig) -> None:
    """Raises InputError if ``run_dir`` was started with another configuration, or is not a run directory."""
    check_run_folder(run_dir)
    path = run_dir / "config.yaml"
    if not path.exists():
        return
    before = load_model(TrainConfig, path, "config").model_dump(mode="json")
    now = config.model_dump(mode="json")
    differences = differing_keys(before, now)
    if differences:
        raise InputError(
            f"{run_dir} was started with another configuration ({joined(differences)})",
            f"rerun with {_earlier_settings(before, now, path)} to resume, or use another output directory",
        )


def _earlier_settings(before: dict[str, Any], now: dict[str, Any], path: Path) -> str:
    """Returns arguments of ``ctr train`` that restore the earlier configuration: a few settings, or its file."""
    changed = changed_values(before, now)
    if len(changed) > _MOST_SETTINGS or any("." in key for keys in changed for key in keys):
        return f"--config {path}"
    return " ".join(shlex.quote(f"{'.'.join(keys)}={json.dumps(old)}") for keys, (old, _) in changed.items())


def check_run_folder(run_dir: Path) -> None:
    """Raises InputError unless ``run_dir`` is a run directory, empty or missing."""
    check_output_folder(run_dir, "a run directory", _is_run_or_new)


def _is_run_or_new(folder: Path) -> bool:
    # The workers' output exists before the first of them starts the run.
    others = [
        path for path in folder.iterdir() if path.name not in (WORKERS, ".lock") and not is_temporary(path)
    ]
    return (folder / "config.yaml").is_file() or not others


_OF_WORKERS = ("cpu_count", "intra_op_threads", "inter_op_threads", "variables")
"""Keys of the environment that may change with the number of workers."""


def adopt_environment(run_dir: Path, environment: dict[str, Any]) -> None:
    """Writes environment.json, or raises InputError for an environment that would change a run's bits.

    The key ``platform`` is not compared: a new kernel changes no bits. Another number of workers does, but is
    allowed, with any number of threads and processors.
    """
    path = run_dir / "environment.json"
    if not path.exists():
        write_json(path, environment)
        return
    before = read_json_object(path, f"{path}: no such file")
    now = json.loads(json.dumps(environment))
    is_regrouped = before.get("workers", 1) != now.get("workers", 1)
    read_only = {"platform", "workers", *(_OF_WORKERS if is_regrouped else ())}
    then, today = (
        {key: value for key, value in content.items() if key not in read_only} for content in (before, now)
    )
    differences = differing_keys(then, today)
    if is_regrouped and not differences:
        write_json(path, environment)
    if differences:
        raise InputError(
            f"{run_dir} was started in another environment ({joined(differences)}), "
            "in which the same computation gives other bits",
            "use another output directory to start again",
        )


def adopt_schema(run_dir: Path, schema: Schema) -> None:
    """Writes schema.json, or raises InputError if the run was started on a log with other features."""
    check_schema(run_dir, schema)
    path = run_dir / "schema.json"
    if not path.exists():
        write_atomic_bytes(path, schema_bytes(schema))


def check_schema(run_dir: Path, schema: Schema) -> None:
    """Raises InputError if a run was started on a log with other features; writes nothing."""
    if not (run_dir / "schema.json").exists():
        return
    before = read_run_schema(run_dir)
    if before.counts_rows != schema.counts_rows:
        # That is a key of the configuration.
        before, schema = before.stored, schema.stored
    if before.version != schema.version:
        raise InputError(
            f"{run_dir} was started on a log with other features ({joined(differing_features(before, schema))})",
            "use another output directory to start again, or --init-from to take its weights there",
        )


def read_warm_start(run_dir: Path) -> dict[str, Any] | None:
    """Reads init_from.json, the record of a warm start; returns None without one."""
    path = run_dir / INIT_FROM
    return dict(read_json_object(path, f"{path}: no such file")) if path.is_file() else None


def refuse_without_checkpoint(run_dir: Path) -> None:
    """Raises InputError if a warm-started run has no checkpoint left."""
    if (run_dir / INIT_FROM).exists():
        raise InputError(
            f"{run_dir}: was started from another run ({INIT_FROM}) and has no checkpoint left, so it would start from "
            "scratch: use another output directory with --init-from"
        )


def read_run_schema(run_dir: Path) -> Schema:
    """Reads a run's schema.json. Raises InputError if it is missing, malformed or was changed by hand."""
    path = run_dir / "schema.json"
    return read_schema_file(path, f"{path}: no such file")


def read_run_model(run_dir: Path) -> tuple[TrainConfig, Schema]:
    """Reads the configuration and features of a run. Raises InputError if ``run_dir`` is not a run directory."""
    if not run_dir.is_dir():
        check_local(run_dir)
        raise InputError(f"{run_dir}: no such run directory")
    return load_model(TrainConfig, run_dir / "config.yaml", "config"), read_run_schema(run_dir)


# ``ctr train --skip``: ranges of rows that a resumed run scores, but does not learn from.


def parse_skip(text: str) -> tuple[int, int]:
    """Parses FROM:TO into two integers. Raises InputError if the text is not a range of rows."""
    match = re.fullmatch(r"([0-9]{1,18}):([0-9]{1,18})", text)
    begin, end = map(int, match.groups()) if match else (0, 0)
    if begin >= end:
        raise InputError(
            f"--skip {text}: not a range of rows; allowed: FROM:TO, of the rows FROM, FROM + 1, ..., TO - 1"
        )
    return begin, end


def read_run_config(run_dir: Path) -> TrainConfig:
    """Reads the configuration of a run that ``--skip`` resumes. Raises InputError if there is no run."""
    path = run_dir / "config.yaml"
    if not path.is_file():
        raise InputError(f"--skip: {run_dir}: no such run; allowed: a run to resume")
    return load_model(TrainConfig, path, "config")


def add_skips(run_dir: Path, ranges: Sequence[tuple[int, int]], *, writes: bool) -> TrainConfig:
    """Adds ranges of rows to the ``skip`` of a run, unless it has them; returns the new configuration.

    Deletes exports after the newest checkpoint, because they have learned from these rows. Raises InputError if the
    checkpoint has learned from them, too, or the run is in progress.

    Args:
        writes: whether this process checks and changes the run; otherwise another process does.
    """
    config = read_run_config(run_dir)
    new = [rows for rows in dict.fromkeys(ranges) if rows not in config.skip]
    extended = config.model_copy(update={"skip": (*config.skip, *new)})
    if not new or not writes:
        return extended
    with only_process(run_dir):
        examples, learned = checkpoint.newest_position(run_dir / "checkpoints")
        for begin, end in new:
            if begin < learned:
                raise InputError(
                    f"--skip {begin}:{end}: {run_dir}: its newest checkpoint has learned from the rows before "
                    f"{learned}; allowed: rows from there on, or a new run with --set skip=[[{begin},{end}]]"
                )
        # First: if killed in between, a repeated command does not find its ranges in the file, and deletes the rest.
        drop_models_after(run_dir / "exports", examples)
        write_atomic_bytes(run_dir / "config.yaml", dump_yaml(extended).encode())
    return extended


# RUN/exports, or another folder of exported models, each in a folder named by its position: locking and deletion.


def check_models_folder(out: Path) -> None:
    """Raises InputError if a directory is neither empty nor a directory of exported models."""
    check_output_folder(out, "a directory of exported models", _holds_models)


def _holds_models(folder: Path) -> bool:
    return any(
        is_partial(path.name) or (path.name.isdecimal() and (path / MODEL_FILE).is_file())
        for path in folder.iterdir()
        if path.is_dir()
    )


@contextmanager
def only_publisher(out: Path, wait: bool) -> Iterator[None]:
    """Locks a folder of models and deletes incomplete ones; unless ``wait``, raises InputError if it is locked."""
    (out / ".lock").touch()
    with hold(out / ".lock", "" if wait else f"{out}: another process is exporting to this directory"):
        for leftover in out.glob(f"*{PARTIAL}"):
            if leftover.is_dir() and is_partial(leftover.name):
                shutil.rmtree(leftover)
        yield


def drop_models_after(out: Path, examples: int) -> None:
    """Deletes the models of positions after ``examples``, the newest first, and flushes the folder to disk."""
    if not out.is_dir():
        return
    with only_publisher(out, wait=True):
        for version in reversed(versions(out)):
            if version_number(version) > examples:
                delete_version(version)
        sync_folder(out)
