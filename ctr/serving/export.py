"""From a run to a SavedModel in TensorFlow Serving's layout, published whole or not at all."""

import contextlib
import gc
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from ctr import __version__
from ctr.config import parse_model
from ctr.io.errors import InputError
from ctr.io.files import make_folder, sync_folder, write_atomic_bytes
from ctr.serving.calls import FILE as CALLS
from ctr.serving.calls import calls_text
from ctr.serving.canonical import make_canonical
from ctr.serving.metadata import (
    EXTRA,
    FILE,
    FORMAT,
    WARMUP,
    hash_files,
    model_schema,
    read_metadata,
    versions,
)
from ctr.serving.requests import describe_requests
from ctr.serving.signatures import serving_signatures
from ctr.training.config import TrainConfig
from ctr.training.run.export_folder import PARTIAL, check_models_folder, delete_model, only_publisher
from ctr.training.run.snapshot import Snapshot, read_snapshot
from ctr.training.run.tensor_files import written_by_tensorflow
from ctr.training.state import dense_weights

# What tells models apart, whatever machine and library wrote them.
_IDENTITY = ("format", "schema", "config", "compute_dtype", "model", "position", "logs", "weights")

_WARMUP_BATCHES = (1, 64)
_WARMUP_TEXT = b"warm up"


@dataclass(frozen=True)
class Exported:
    """A published model: its folder, and whether this call made it or found it there."""

    path: Path
    made: bool
    metadata: Mapping[str, Any]


def export_run(run: Path, out: Path, checkpoint: int | None = None) -> Exported:
    """Publishes the model of a run's checkpoint (its newest, or that of a position) as a version in ``out``.

    Raises:
        InputError: no run or no such checkpoint, or ``out`` holds another model under this version.
    """
    return publish(read_snapshot(run, checkpoint), out)


def example_calls(exported: Exported) -> str:
    """Returns calls of a published model as Markdown, under the name of the folder of its versions."""
    folder = exported.path.parent
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", folder.resolve().name) or "model"
    schema = model_schema(dict(exported.metadata), exported.path)
    return calls_text(exported.metadata["signatures"], schema, name, str(folder)).rstrip()


def export_from_run(snapshot: Snapshot) -> None:
    """Publishes a model in its own run directory and deletes the oldest there, as ``config.export`` says.

    What ``ctr.training.loop.train`` takes as its exporter.
    """
    export = snapshot.config.export
    if export is None:
        raise ValueError("the configuration has no export section")
    publish(snapshot, snapshot.run_dir / "exports", export.keep, wait=True)
    # Traced functions are cycles of objects, and hold tens of megabytes until Python looks for these.
    gc.collect()


def publish(snapshot: Snapshot, out: Path, keep: int | None = None, wait: bool = False) -> Exported:
    """Writes a model to a temporary folder beside its place, makes it durable, and renames it there.

    Args:
        snapshot: the model.
        out: the folder of versions. A version that is there already stays as it is.
        keep: how many of the newest versions stay; None: all.
        wait: until no other process publishes in ``out``; otherwise that is an error.

    Raises:
        InputError: the version is there already and is another model's, the newest one is of another run, or another
            process is publishing in ``out``.
    """
    check_models_folder(out)
    make_folder(out)
    with only_publisher(out, wait):
        final = out / str(snapshot.examples)
        described = describe(snapshot)
        if final.exists():
            return Exported(final, False, _check_same(final, described))
        _check_same_run(out, described)
        if (
            keep is not None
            and len([path for path in versions(out) if int(path.name) > snapshot.examples]) >= keep
        ):
            # A resumed run does not repeat an export that it had deleted.
            return Exported(final, False, described)
        partial = out / f"{final.name}{PARTIAL}"
        metadata = _write(snapshot, partial, described)
        _sync_tree(partial)
        partial.rename(final)
        sync_folder(out)
        for old in versions(out)[:-keep] if keep is not None else []:
            delete_model(old)
        return Exported(final, True, metadata)


def _check_same(path: Path, described: Mapping[str, Any]) -> dict[str, Any]:
    metadata = read_metadata(path)
    recorded = _in_present_words(metadata, path)
    different = [key for key in _IDENTITY if recorded.get(key) != described[key]]
    if different:
        raise InputError(
            f"{path}: this version already exists and belongs to another model ({', '.join(different)} differ): "
            "use another output directory"
        )
    return metadata


def _check_same_run(out: Path, described: Mapping[str, Any]) -> None:
    """Versions are ordered by position alone: one of another run would be served in place of this one, or hide it."""
    for newest in versions(out)[-1:]:
        recorded = _in_present_words(read_metadata(newest), newest)
        different = [key for key in ("schema", "config") if recorded.get(key) != described[key]]
        if _other_logs(recorded.get("logs", []), described["logs"]):
            different.append("logs")
        if different:
            raise InputError(
                f"{newest}: this version belongs to another run ({', '.join(different)} differ): "
                "a directory holds the versions of one run; use another output directory"
            )


def _in_present_words(metadata: Mapping[str, Any], model: Path) -> dict[str, Any]:
    """Returns metadata with the configuration and features in the keys of this version, whichever version wrote them.

    What cannot be read stays as it is, and so differs from every model.
    """
    recorded = dict(metadata)
    with contextlib.suppress(InputError):
        recorded["schema"] = model_schema(recorded, model).model_dump(mode="json")
    with contextlib.suppress(InputError):
        config = parse_model(TrainConfig, metadata.get("config"), str(model), former_names=True)
        recorded["config"] = config.model_dump(mode="json")
    return recorded


def _other_logs(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether two positions cannot be of the same logs. Hashes of equally many partitions can be compared."""
    hashes = [{log["log"]: (log["intervals"], log["sha256"]) for log in logs} for logs in (one, other)]
    if hashes[0].keys() != hashes[1].keys():
        return True
    pairs = [(hashes[0][name], hashes[1][name]) for name in hashes[0]]
    return any(first[0] == second[0] and first != second for first, second in pairs)


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
            "factorized": snapshot.network.factorized,
            "components": snapshot.network.components,
            "alpha2": snapshot.alpha2,
            "transfer": [
                {
                    "joints": pieces.joints.tolist(),
                    "slopes": pieces.slopes.tolist(),
                    "bias": pieces.bias,
                }
                for pieces in (transfer.pieces() for transfer in snapshot.network.transfers)
            ],
        },
        "position": {
            "examples": position["examples"],
            "batches": position["batches"],
            "trained_examples": position["trained_examples"],
            "last_query_time": progress["window_times"][1],
        },
        "logs": progress["consumed"],
        "weights": _hash_weights(snapshot),
    }
    # Tuples become lists, as they are when it is read again.
    described: dict[str, Any] = json.loads(json.dumps(content))
    return described


def _hash_weights(snapshot: Snapshot) -> str:
    """Hashes all weights as float32 (SHA-256): two runs of the same description may have learned otherwise."""
    names = [f"rows/{layout.name}" for layout in snapshot.layouts]
    weights = [*zip(names, snapshot.tables, strict=True), *dense_weights(snapshot.network).items()]
    digest = hashlib.sha256()
    for name, variable in weights:
        values = np.ascontiguousarray(variable.numpy().astype(np.float32, copy=False))
        digest.update(f"{name} {values.shape}\n".encode())
        digest.update(values.data)
    return digest.hexdigest()


def _write(snapshot: Snapshot, folder: Path, described: Mapping[str, Any]) -> dict[str, Any]:
    signatures = serving_signatures(snapshot)
    concrete = {name: signature.function.get_concrete_function() for name, signature in signatures.items()}
    module = tf.Module()
    # What no function reads is no part of it: no duals, no optimizer's state, no head that only ranks.
    module.weights = _read_by(concrete.values())
    outputs = {name: function.structured_outputs for name, function in concrete.items()}
    # Clients that name no function mean this one.
    concrete["serving_default"] = concrete["predict"]
    with written_by_tensorflow(folder):
        tf.saved_model.save(module, str(folder), signatures=concrete)
        make_canonical(folder)
    (folder / EXTRA).mkdir()
    warmed = {name: signature.specs for name, signature in signatures.items() if name != "predict_ids"}
    with written_by_tensorflow(folder / EXTRA / WARMUP):
        _write_warmup(folder / EXTRA / WARMUP, warmed)
    described_functions = {
        name: {
            "inputs": {
                key: {"column": signature.sources[key], **_tensor_type(spec)}
                for key, spec in signature.specs.items()
            },
            "outputs": {key: _tensor_type(value) for key, value in outputs[name].items()},
        }
        for name, signature in signatures.items()
    }
    write_atomic_bytes(folder / EXTRA / CALLS, calls_text(described_functions, snapshot.schema).encode())
    metadata = {
        **described,
        "requests": describe_requests(snapshot.schema),
        "signatures": described_functions,
        "files": hash_files(folder),
    }
    write_atomic_bytes(folder / EXTRA / FILE, (json.dumps(metadata, indent=1) + "\n").encode())
    return metadata


def _write_warmup(path: Path, signatures: Mapping[str, Mapping[str, tf.TensorSpec]]) -> None:
    """Writes the requests that TensorFlow Serving runs before a new model takes traffic, of one row and of many.

    They are made up. Without them the first requests of clients would wait for what TensorFlow does once: optimizing
    the graph, choosing kernels.

    Args:
        path: a TFRecord file of PredictionLog messages.
        signatures: by function its inputs.
    """
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
                log = prediction_log_pb2.PredictionLog(
                    predict_log=prediction_log_pb2.PredictLog(request=request)
                )
                writer.write(log.SerializeToString(deterministic=True))


def _read_by(functions: Iterable[Any]) -> list[tf.Variable]:
    """Lists the variables that functions read, in the order of first use: a graph's own order is that of a set."""
    used: dict[int, tf.Variable] = {}
    for function in functions:
        by_handle = {id(variable.handle): variable for variable in function.graph.variables}
        for captured in function.captured_inputs:
            if id(captured) in by_handle:
                used.setdefault(id(captured), by_handle[id(captured)])
    return list(used.values())


def _tensor_type(spec: Any) -> dict[str, Any]:
    """Describes dtype and shape, -1 for any size."""
    return {"dtype": spec.dtype.name, "shape": [-1 if size is None else size for size in spec.shape]}


def _sync_tree(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            sync_folder(path)
        else:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
