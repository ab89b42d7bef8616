"""SavedModel and what belongs to it: written from a snapshot of a run, or from an earlier model and new weights.

A model in which ids grow, or whose run exports deltas, is *updatable*: its graph stays the same during the run, so a
later model differs only in the values of its variables. Its metadata names the variables in order, and the hash of its
weights is the hash of their values.
"""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from ctr.data.ids.graph import check_rules
from ctr.io.arrays import hash_arrays
from ctr.io.files import write_atomic_bytes
from ctr.models.rows import TableLayout
from ctr.serving.graph import check_model, make_canonical
from ctr.serving.metadata import EXTRA, FILE, NETWORK, WARMUP, hash_files
from ctr.serving.signatures import Signature, describe_requests, served_schema, serving_signatures
from ctr.serving.weights import VARIABLES, Weights, write_weights
from ctr.training.run.snapshot import Snapshot
from ctr.training.run.tensor_files import written_by_tensorflow
from ctr.training.state import dense_weights

_ALPHA2 = "alpha2"
_WARMUP_BATCHES = (1, 64)
_WARMUP_TEXT = b"warm up"


def is_updatable(snapshot: Snapshot) -> bool:
    """Tells a run whose later models are this one with other values of its variables."""
    export = snapshot.config.export
    return bool(snapshot.keys) or (export is not None and export.full_every > 1)


def snapshot_weights(snapshot: Snapshot) -> dict[str, np.ndarray]:
    """Returns the values of all variables that an updatable model has, by name."""
    weights = {name: variable.numpy() for name, variable in _variables(snapshot).items()}
    if snapshot.architecture.reads_alpha2:
        weights[_ALPHA2] = np.array(snapshot.alpha2, np.float32)
    return weights


def weights_hash(snapshot: Snapshot) -> str:
    """Hashes all weights (SHA-256), of a model that is not updatable as float32, before any are rounded."""
    if is_updatable(snapshot):
        return hash_arrays(snapshot_weights(snapshot))
    digest = hashlib.sha256()
    for name, variable in _variables(snapshot, is_rounded=False).items():
        values = np.ascontiguousarray(variable.numpy().astype(np.float32, copy=False))
        digest.update(f"{name} {values.shape}\n".encode())
        digest.update(values.data)
    return digest.hexdigest()


def _variables(snapshot: Snapshot, is_rounded: bool = True) -> dict[str, tf.Variable]:
    names = [layout.name for layout in snapshot.layouts]
    tables = zip((f"rows/{name}" for name in names), snapshot.tables, strict=True)
    keys = {f"keys/{names[number]}": variable for number, variable in snapshot.keys.items()}
    dense = dense_weights(snapshot.served_weights if is_rounded else snapshot.weights)
    return {**dict(tables), **keys, **dense}


def write_model(snapshot: Snapshot, folder: Path, described: Mapping[str, Any]) -> dict[str, Any]:
    """Writes a model to a new folder and returns its metadata. ``described``: without functions and files."""
    check_rules(snapshot.schema)
    alpha2 = None
    if is_updatable(snapshot):
        alpha2 = tf.Variable(snapshot.alpha2, trainable=False, dtype=tf.float32, name=_ALPHA2)
    signatures = serving_signatures(snapshot, alpha2)
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
    if snapshot.config.model.network or any(rule.plugin for rule in snapshot.schema.derive.values()):
        # What a plug-in computes must be made of what the scorer of ctr loads.
        check_model(folder)
    (folder / EXTRA).mkdir()
    warmed = {name: signature.specs for name, signature in signatures.items() if name != "predict_ids"}
    with written_by_tensorflow(folder / EXTRA / WARMUP):
        _write_warmup(folder / EXTRA / WARMUP, warmed)
    functions = {name: _describe_function(one, outputs[name]) for name, one in signatures.items()}
    requests = describe_requests(snapshot.schema, served_schema(snapshot))
    metadata = {**described, "requests": requests, "signatures": functions}
    names = {id(variable): name for name, variable in {**_variables(snapshot), _ALPHA2: alpha2}.items()}
    variables = [names[id(variable)] for variable in module.weights]
    metadata[NETWORK] = describe_network(snapshot, variables)
    if alpha2 is not None:
        metadata[VARIABLES] = variables
    return write_metadata(folder, metadata)


def rewrite_model(full: Path, folder: Path, metadata: Mapping[str, Any], weights: Weights) -> dict[str, Any]:
    """Writes an updatable model with other weights, as ``write_model`` would; ``full`` is another model of the run."""
    shutil.copytree(full, folder, ignore=shutil.ignore_patterns("variables.*", FILE))
    with written_by_tensorflow(folder):
        write_weights(folder, full, metadata[VARIABLES], weights)
        make_canonical(folder)
    return write_metadata(folder, metadata)


def write_metadata(folder: Path, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Writes the metadata of a model, all of whose other files are there, and returns it with their hashes."""
    (folder / EXTRA).mkdir(exist_ok=True)
    complete = {**metadata, "files": hash_files(folder)}
    write_atomic_bytes(folder / EXTRA / FILE, (json.dumps(complete, indent=1) + "\n").encode())
    return complete


def _describe_function(signature: Signature, outputs: Mapping[str, Any]) -> dict[str, Any]:
    specs, sources = signature.specs.items(), signature.sources
    inputs = {key: {"column": sources[key], **_tensor_type(spec)} for key, spec in specs}
    return {"inputs": inputs, "outputs": {key: _tensor_type(value) for key, value in outputs.items()}}


def _write_warmup(path: Path, signatures: Mapping[str, Mapping[str, tf.TensorSpec]]) -> None:
    """Writes requests that TensorFlow Serving runs before it serves a model, so that no client waits for its set-up."""
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
    """Variables that functions read, in the order of first use: a graph's own order is that of a set."""
    used: dict[int, tf.Variable] = {}
    for function in functions:
        by_handle = {id(variable.handle): variable for variable in function.graph.variables}
        for captured in function.captured_inputs:
            if id(captured) in by_handle:
                used.setdefault(id(captured), by_handle[id(captured)])
    return list(used.values())


def _tensor_type(spec: Any) -> dict[str, Any]:
    return {"dtype": spec.dtype.name, "shape": [-1 if size is None else size for size in spec.shape]}


def describe_network(snapshot: Snapshot, variables: Sequence[str]) -> dict[str, Any]:
    """Describes network and tables, under ``network`` of ``ctr.json``, for those that compute without the graph.

    ``variables`` says what each variable of the SavedModel is, in its order: ``rows/TABLE``, ``keys/TABLE``,
    ``alpha2``, or the readable name of a dense weight, ``quality/deep_0/w``.
    """
    readable = dict(zip(dense_weights(snapshot.weights), snapshot.weights, strict=True))
    architecture = dataclasses.asdict(dataclasses.replace(snapshot.architecture, network=None))
    del architecture["network"]
    if not architecture["labels"]:
        # The description of a model without them is what it is without the key.
        del architecture["labels"]
    if snapshot.config.model.network:
        architecture["network"] = snapshot.config.model.model_dump(mode="json")["network"]
    return {
        "architecture": architecture,
        "tables": [_describe_table(layout) for layout in snapshot.layouts],
        "variables": [readable.get(name, name) for name in variables],
    }


def _describe_table(layout: TableLayout) -> Mapping[str, Any]:
    described: dict[str, Any] = {name: getattr(layout, name) for name in ("name", "tower", "width", "copies")}
    described["features"] = [
        {
            "name": feature.name,
            "buckets": feature.buckets,
            "single": feature.single is not None,
            "growing": feature.growing,
            "salt": int(feature.salt),
            "of": feature.of,
        }
        for feature in layout.features
    ]
    if layout.numbers:
        described["numbers"] = [dataclasses.asdict(one) for one in layout.numbers]
    return described
