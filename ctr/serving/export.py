"""Export of a run to a SavedModel in TensorFlow Serving's layout, published whole or not at all."""

import contextlib
import gc
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ctr import __version__
from ctr.data.mapping import load_mapping
from ctr.io.errors import InputError
from ctr.io.files import make_folder, sync_folder, write_atomic
from ctr.io.versions import DELTA, DELTA_FILE, PARTIAL, delete_version, version_number, versions
from ctr.models.click_model import transfers_as_pieces
from ctr.serving.metadata import (
    FORMAT,
    MAPPING,
    NETWORK,
    check_files,
    read_chain,
    read_metadata,
)
from ctr.serving.saved_model import rewrite_model, snapshot_weights, weights_hash, write_metadata, write_model
from ctr.serving.weights import VARIABLES, change_counts, find_changes, read_weights
from ctr.training.run.directory import check_models_folder, only_publisher
from ctr.training.run.snapshot import Snapshot, read_snapshot

log = logging.getLogger(__name__)

# What tells models apart, whatever machine and library wrote them.
_IDENTITY = ("format", "schema", "config", "compute_dtype", "model", "position", "logs", "weights")
# What two models of a run must share for one to be the other with other weights.
_PROGRAM = ("format", "versions", "schema", "config", "compute_dtype")
# What only a delta's metadata has.
_BASE, _CHANGES = "base", "changes"


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
    publish(snapshot, snapshot.run_dir / "exports", export.keep, True, export.full_every)
    # Traced functions are cycles of objects, and hold tens of megabytes until Python looks for these.
    gc.collect()


def export_model(model: Path | str, out: Path | str) -> Exported:
    """Publishes an exported model as a full version in ``out``, also where it is a delta; raises InputError."""
    model, out = Path(model), Path(out)
    chain, metadata = read_chain(model), read_metadata(model)
    check_files(model, metadata)
    weights = read_weights(chain) if chain.deltas else None
    described = {key: value for key, value in metadata.items() if key not in (_BASE, _CHANGES, "files")}

    def write(folder: Path) -> dict[str, Any]:
        if weights is not None:
            return rewrite_model(chain.full, folder, described, weights)
        shutil.copytree(model, folder)
        return metadata

    with _publishing(out, wait=False):
        final = out / str(metadata["position"]["examples"])
        if found := _find_same(out, (final,), described):
            return found
        return Exported(final, True, _write_durably(final, write))


def publish(
    snapshot: Snapshot,
    out: Path,
    keep: int | None = None,
    wait: bool = False,
    full_every: int = 1,
) -> Exported:
    """Writes a model to a temporary folder beside its place, makes it durable, and renames it there.

    Of the newest versions ``keep`` stay, beside those that these build on. Versions between every ``full_every``-th
    are deltas.

    Raises InputError: the version is there already and is another model's, the newest one is of another
    run, or, without ``wait``, another process is publishing.
    """
    with _publishing(out, wait):
        examples, described = snapshot.examples, describe(snapshot)
        final, delta = out / str(examples), out / f"{examples}{DELTA}"
        if found := _find_same(out, (final, delta) if full_every > 1 else (final,), described):
            return found
        newer = [path for path in versions(out) if version_number(path) > examples]
        if keep is not None and len(newer) >= keep:
            # A resumed run does not repeat an export that it had deleted.
            return Exported(final, False, described)
        write = _delta_writer(snapshot, out, described, full_every)
        if write is None:
            metadata = _write_durably(final, lambda folder: write_model(snapshot, folder, described))
        else:
            final, metadata = delta, _write_durably(delta, write)
        if keep is not None:
            _delete_all_but(out, keep)
        return Exported(final, True, metadata)


@contextlib.contextmanager
def _publishing(out: Path, wait: bool) -> Iterator[None]:
    check_models_folder(out)
    make_folder(out)
    with only_publisher(out, wait):
        yield


def _write_durably(final: Path, write: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    partial = final.with_name(f"{final.name}{PARTIAL}")
    metadata = write(partial)
    _sync_tree(partial)
    partial.rename(final)
    sync_folder(final.parent)
    return metadata


def _delete_all_but(out: Path, keep: int) -> None:
    """Deletes all versions but the newest and those that these build on: a delta before what it builds on."""
    found = versions(out)
    needed = {path.name for path in found[-keep:]}
    for path in found[-keep:]:
        with contextlib.suppress(InputError):
            chain = read_chain(path)
            needed |= {one.name for one in (chain.full, *chain.deltas)}
    for path in reversed(found):
        if path.name not in needed:
            delete_version(path)


def _delta_writer(
    snapshot: Snapshot, out: Path, described: Mapping[str, Any], full_every: int
) -> Callable[[Path], dict[str, Any]] | None:
    """Returns what writes a delta to the version before, as it is on the disk; None: it has to be a full model."""
    earlier = [path for path in versions(out) if version_number(path) < snapshot.examples]
    if full_every == 1 or not earlier:
        return None
    try:
        chain = read_chain(earlier[-1])
        base = read_metadata(chain.model)
        if len(chain.deltas) + 1 >= full_every or any(base.get(key) != described[key] for key in _PROGRAM):
            return None
        changes = find_changes(read_weights(chain), snapshot_weights(snapshot))
    except (InputError, ValueError) as error:
        log.warning("%s: version %d is a full model: %s", out, snapshot.examples, error)
        return None
    metadata = {
        **described,
        **{key: base[key] for key in ("requests", "signatures", NETWORK, VARIABLES)},
        _BASE: {"examples": base["position"]["examples"], "weights": base["weights"]},
        _CHANGES: change_counts(changes),
    }

    def write(folder: Path) -> dict[str, Any]:
        folder.mkdir()
        write_atomic(folder / DELTA_FILE, lambda file: np.savez(file, **changes))  # type: ignore[arg-type]
        return write_metadata(folder, metadata)

    return write


def _find_same(out: Path, names: Sequence[Path], described: Mapping[str, Any]) -> Exported | None:
    """Finds a model under one of its names; refuses another one there, and a folder of another run.

    Versions are ordered by position alone: one of another run would be served in place of this one, or hide it.
    """
    for path in (name for name in names if name.exists()):
        metadata = read_metadata(path)
        if different := [key for key in _IDENTITY if metadata.get(key) != described.get(key)]:
            raise InputError(
                f"{path}: this version already exists and belongs to another model ({', '.join(different)} differ): "
                "use another output directory"
            )
        return Exported(path, False, metadata)
    for newest in versions(out)[-1:]:
        recorded = read_metadata(newest)
        different = [key for key in ("schema", "config") if recorded.get(key) != described[key]]
        if _other_logs(recorded["logs"], described["logs"]):
            different.append("logs")
        if different:
            raise InputError(
                f"{newest}: this version belongs to another run ({', '.join(different)} differ): "
                "a directory holds the versions of one run; use another output directory"
            )
    return None


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
            "transfer": [
                {"joints": pieces.joints.tolist(), "slopes": pieces.slopes.tolist(), "bias": pieces.bias}
                for pieces in transfers_as_pieces(snapshot.architecture, snapshot.weights)
            ],
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
    content |= _own_mapping(snapshot.run_dir)
    # Tuples become lists, as they are when it is read again.
    described: dict[str, Any] = json.loads(json.dumps(content))
    return described


def _own_mapping(run_dir: Path) -> dict[str, Any]:
    """The mapping by which ``ctr quickstart`` read the table of a run, for ``ctr score`` to read others by."""
    path = run_dir.resolve().parent / "mapping.yaml"
    if not (path.with_name("quickstart.json").is_file() and path.is_file()):
        return {}
    try:
        return {MAPPING: load_mapping(path).model_dump(mode="json", by_alias=True)}
    except InputError as error:
        log.warning("the model has no mapping of raw rows: %s", error)
        return {}


def _sync_tree(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
