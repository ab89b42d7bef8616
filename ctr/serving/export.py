"""Export of a run to a SavedModel in TensorFlow Serving's layout, with metadata, published atomically."""

import gc
import json
import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from ctr import __version__
from ctr.data.ids.graph import check_rules
from ctr.io.arrays import hash_arrays
from ctr.io.errors import InputError
from ctr.io.files import (
    PARTIAL,
    delete_version,
    make_folder,
    sync_folder,
    version_number,
    versions,
    write_atomic_bytes,
)
from ctr.serving.metadata import EXTRA, FILE, FORMAT, WARMUP, hash_files, read_metadata
from ctr.serving.signatures import Signature, describe_requests, served_schema, serving_signatures
from ctr.training.run.directory import check_models_folder, only_publisher
from ctr.training.run.disk_errors import written_by_tensorflow
from ctr.training.run.snapshot import Snapshot, read_snapshot
from ctr.training.state import dense_weights

log = logging.getLogger(__name__)

# Metadata that identify a model, independent of the machine and library that wrote it.
_IDENTITY = ("format", "schema", "config", "compute_dtype", "model", "position", "logs", "weights")

_WARMUP_BATCHES = (1, 64)
_WARMUP_TEXT = b"warm up"


@dataclass(frozen=True)
class Exported:
    """A published model: its folder, and whether this call created it."""

    path: Path
    is_new: bool
    metadata: Mapping[str, Any]


def export_run(run: Path | str, out: Path | str, checkpoint: int | None = None) -> Exported:
    """Publishes the model of a run's checkpoint, by default its newest, as a version in ``out``.

    Raises InputError if there is no such run or checkpoint, or as ``publish`` does.
    """
    return publish(read_snapshot(Path(run), checkpoint), Path(out))


def export_from_run(snapshot: Snapshot) -> None:
    """Publishes a model in its run directory, and keeps the newest. Raises ValueError without ``config.export``."""
    export = snapshot.config.export
    if export is None:
        raise ValueError("the configuration has no export section")
    publish(snapshot, snapshot.run_dir / "exports", export.keep, wait=True)
    # Traced functions are cycles of objects, and hold tens of megabytes until Python looks for these.
    gc.collect()


def publish(snapshot: Snapshot, out: Path, keep: int | None = None, wait: bool = False) -> Exported:
    """Writes a model to a temporary folder, flushes it to disk, and renames it to its final path.

    Deletes all but the newest ``keep`` versions. Raises InputError if the version exists with another model, if the
    newest version belongs to another run, or, without ``wait``, if another process is publishing.
    """
    check_models_folder(out)
    make_folder(out)
    with only_publisher(out, wait):
        examples, described = snapshot.examples, describe(snapshot)
        final = out / str(examples)
        if existing := _find_same(out, final, described):
            return existing
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
    """Returns the version if it exists; raises InputError if it is another model, or the newest is of another run.

    Versions are ordered by position alone: a version of another run could be served instead of this one.
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


def _differing(keys: Sequence[str], first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    def value(metadata: Mapping[str, Any], key: str) -> Any:
        # ``ctr train --skip`` adds rows that a run has not learned from yet: until then it is the same.
        return {**metadata[key], "skip": None} if key == "config" else metadata.get(key)

    return [key for key in keys if value(first, key) != value(second, key)]


def _other_logs(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether two positions are in different logs; hashes are comparable only for equally many partitions."""
    first, second = ({log["log"]: (log["intervals"], log["sha256"]) for log in logs} for logs in (old, new))
    if first.keys() != second.keys():
        return True
    return any(first[name][0] == second[name][0] and first[name] != second[name] for name in first)


def describe(snapshot: Snapshot) -> dict[str, Any]:
    """Returns the metadata of a model without requests, signatures and files, which ``write_model`` adds."""
    position = snapshot.position
    content = {
        "format": FORMAT,
        "versions": {"ctr": __version__, "tensorflow": tf.__version__, "python": sys.version.split()[0]},
        "schema": snapshot.schema.model_dump(mode="json"),
        "config": snapshot.config.model_dump(mode="json"),
        "config_sha256": snapshot.config.sha256(),
        "compute_dtype": snapshot.compute_dtype,
        "model": {
            "experts": snapshot.experts.names,
            "factorized": snapshot.architecture.factors is not None,
            "components": snapshot.architecture.components,
            "alpha2": snapshot.alpha2,
            **({"ids": dict(snapshot.ids)} if snapshot.keys else {}),
        },
        "position": {
            "examples": position.examples,
            "batches": position.batches,
            "trained_examples": position.trained_examples,
            "last_query_time": position.window_times[1],
            "learned_until": position.learned_until,
        },
        "logs": snapshot.progress["consumed"],
        "weights": weights_hash(snapshot),
    }
    # Tuples become lists, as in metadata read from a file.
    described: dict[str, Any] = json.loads(json.dumps(content))
    return described


def _sync_tree(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())


def weights_hash(snapshot: Snapshot) -> str:
    """Hashes all weights and growing ids' keys (SHA-256); weights are float32, before any rounding."""
    tables = {f"rows/{number}": table for number, table in enumerate(snapshot.tables)}
    keys = {f"keys/{number}": variable for number, variable in snapshot.keys.items()}
    variables = {**tables, **keys, **dense_weights(snapshot.weights)}
    return hash_arrays({name: variable.numpy() for name, variable in variables.items()})


def write_model(snapshot: Snapshot, folder: Path, described: Mapping[str, Any]) -> dict[str, Any]:
    """Writes a model to a new folder and returns its metadata; ``described`` is the result of ``describe``."""
    check_rules(snapshot.schema)
    signatures = serving_signatures(snapshot)
    concrete = {name: signature.function.get_concrete_function() for name, signature in signatures.items()}
    module = tf.Module()
    # Variables that no function reads are left out: duals, optimizer state, a head that only ranks.
    module.weights = _read_by(concrete.values())
    outputs = {name: function.structured_outputs for name, function in concrete.items()}
    # The default of clients that name no function.
    concrete["serving_default"] = concrete["predict"]
    with written_by_tensorflow(folder):
        tf.saved_model.save(module, str(folder), signatures=concrete)
    (folder / EXTRA).mkdir()
    warmed = {name: signature.specs for name, signature in signatures.items() if name != "predict_ids"}
    with written_by_tensorflow(folder / EXTRA / WARMUP):
        _write_warmup(folder / EXTRA / WARMUP, warmed)
    functions = {name: _describe_function(signature, outputs[name]) for name, signature in signatures.items()}
    requests = describe_requests(snapshot.schema, served_schema(snapshot))
    metadata = {**described, "requests": requests, "signatures": functions, "files": hash_files(folder)}
    write_atomic_bytes(folder / EXTRA / FILE, (json.dumps(metadata, indent=1) + "\n").encode())
    return metadata


def _describe_function(signature: Signature, outputs: Mapping[str, Any]) -> dict[str, Any]:
    specs, sources = signature.specs.items(), signature.sources
    inputs = {key: {"column": sources[key], **_tensor_type(spec)} for key, spec in specs}
    return {"inputs": inputs, "outputs": {key: _tensor_type(value) for key, value in outputs.items()}}


def _write_warmup(path: Path, signatures: Mapping[str, Mapping[str, tf.TensorSpec]]) -> None:
    """Writes requests that TensorFlow Serving runs when it loads a model, so that no client waits for a warm-up."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for name, specs in signatures.items():
            for rows in _WARMUP_BATCHES:
                request = predict_pb2.PredictRequest()
                request.model_spec.signature_name = name
                for key, spec in specs.items():
                    shape = [rows if size is None else size for size in spec.shape]
                    value = _WARMUP_TEXT if spec.dtype == tf.string else 0
                    filled = np.full(shape, value, spec.dtype.as_numpy_dtype)
                    request.inputs[key].CopyFrom(tf.make_tensor_proto(filled, spec.dtype))
                predict_log = prediction_log_pb2.PredictLog(request=request)
                log = prediction_log_pb2.PredictionLog(predict_log=predict_log)
                writer.write(log.SerializeToString(deterministic=True))


def _read_by(functions: Iterable[Any]) -> list[tf.Variable]:
    """Returns the variables that functions read, by first use, as the order within a graph is not fixed."""
    used: dict[int, tf.Variable] = {}
    for function in functions:
        by_handle = {id(variable.handle): variable for variable in function.graph.variables}
        for captured in function.captured_inputs:
            if id(captured) in by_handle:
                used.setdefault(id(captured), by_handle[id(captured)])
    return list(used.values())


def _tensor_type(spec: Any) -> dict[str, Any]:
    return {"dtype": spec.dtype.name, "shape": [-1 if size is None else size for size in spec.shape]}
