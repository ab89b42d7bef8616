"""Export of a run to a SavedModel in TensorFlow Serving's layout, published whole or not at all."""

import gc
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from ctr import __version__
from ctr.io.errors import InputError
from ctr.io.files import PARTIAL, delete_version, make_folder, sync_folder, version_number, versions
from ctr.serving.metadata import FORMAT, read_metadata
from ctr.serving.saved_model import weights_hash, write_model
from ctr.training.run.directory import check_models_folder, only_publisher
from ctr.training.run.snapshot import Snapshot, read_snapshot

log = logging.getLogger(__name__)

# What tells models apart, whatever machine and library wrote them.
_IDENTITY = ("format", "schema", "config", "compute_dtype", "model", "position", "logs", "weights")


@dataclass(frozen=True)
class Exported:
    """A published model: its folder, and whether this call made it or found it there."""

    path: Path
    made: bool
    metadata: Mapping[str, Any]


def export_run(run: Path | str, out: Path | str, checkpoint: int | None = None) -> Exported:
    """Publishes the model of a run's checkpoint, by default its newest, as a version in ``out``.

    Raises InputError: no run or no such checkpoint, or ``out`` holds another model under this version.
    """
    return publish(read_snapshot(Path(run), checkpoint), Path(out))


def export_from_run(snapshot: Snapshot) -> None:
    """Publishes a model in its own run directory and deletes the oldest there, as ``config.export`` says."""
    export = snapshot.config.export
    if export is None:
        raise ValueError("the configuration has no export section")
    publish(snapshot, snapshot.run_dir / "exports", export.keep, wait=True)
    # Traced functions are cycles of objects, and hold tens of megabytes until Python looks for these.
    gc.collect()


def publish(snapshot: Snapshot, out: Path, keep: int | None = None, wait: bool = False) -> Exported:
    """Writes a model to a temporary folder beside its place, makes it durable, and renames it there.

    The newest ``keep`` versions stay.

    Raises InputError: the version is there already and is another model's, the newest one is of another
    run, or, without ``wait``, another process is publishing.
    """
    check_models_folder(out)
    make_folder(out)
    with only_publisher(out, wait):
        examples, described = snapshot.examples, describe(snapshot)
        final = out / str(examples)
        if found := _find_same(out, final, described):
            return found
        newer = [path for path in versions(out) if version_number(path) > examples]
        if keep is not None and len(newer) >= keep:
            # A resumed run does not repeat an export that it had deleted.
            return Exported(final, False, described)
        partial = final.with_name(f"{final.name}{PARTIAL}")
        metadata = write_model(snapshot, partial, described)
        _sync_tree(partial)
        partial.rename(final)
        sync_folder(out)
        if keep is not None:
            for old in versions(out)[:-keep]:
                delete_version(old)
        return Exported(final, True, metadata)


def _find_same(out: Path, final: Path, described: Mapping[str, Any]) -> Exported | None:
    """Finds a model under its name; refuses another one there, and a folder of another run.

    Versions are ordered by position alone: one of another run would be served in place of this one, or hide it.
    """
    if final.exists():
        metadata = read_metadata(final)
        if different := _differing(_IDENTITY, metadata, described):
            raise InputError(
                f"{final}: this version already exists and belongs to another model ({', '.join(different)} differ): "
                "use another output directory"
            )
        return Exported(final, False, metadata)
    for newest in versions(out)[-1:]:
        recorded = read_metadata(newest)
        different = _differing(("schema", "config"), recorded, described)
        if _other_logs(recorded["logs"], described["logs"]):
            different.append("logs")
        if different:
            raise InputError(
                f"{newest}: this version belongs to another run ({', '.join(different)} differ): "
                "a directory holds the versions of one run; use another output directory"
            )
    return None


def _differing(keys: Sequence[str], one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    def value(metadata: Mapping[str, Any], key: str) -> Any:
        # ``ctr train --skip`` adds rows that a run has not learned from yet: until then it is the same.
        return {**metadata[key], "skip": None} if key == "config" else metadata.get(key)

    return [key for key in keys if value(one, key) != value(other, key)]


def _other_logs(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether two positions cannot be of the same logs. Hashes of equally many partitions can be compared."""
    first, second = ({log["log"]: (log["intervals"], log["sha256"]) for log in logs} for logs in (one, other))
    if first.keys() != second.keys():
        return True
    return any(first[name][0] == second[name][0] and first[name] != second[name] for name in first)


def describe(snapshot: Snapshot) -> dict[str, Any]:
    """Describes a model: its metadata without signatures and files."""
    position, progress = snapshot.progress["position"], snapshot.progress
    content = {
        "format": FORMAT,
        "versions": {"ctr": __version__, "tensorflow": tf.__version__, "python": sys.version.split()[0]},
        "schema": snapshot.schema.model_dump(mode="json"),
        "config": snapshot.config.model_dump(mode="json"),
        "config_sha256": snapshot.config.sha256(),
        "compute_dtype": snapshot.compute_dtype,
        "model": {
            "factorized": snapshot.architecture.factors is not None,
            "components": snapshot.architecture.components,
            "alpha2": snapshot.alpha2,
            **({"ids": dict(snapshot.ids)} if snapshot.keys else {}),
        },
        "position": {
            "examples": position["examples"],
            "batches": position["batches"],
            "trained_examples": position["trained_examples"],
            "last_query_time": progress["window_times"][1],
            "learned_until": position["learned_until"],
        },
        "logs": progress["consumed"],
        "weights": weights_hash(snapshot),
    }
    # Tuples become lists, as they are when it is read again.
    described: dict[str, Any] = json.loads(json.dumps(content))
    return described


def _sync_tree(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
