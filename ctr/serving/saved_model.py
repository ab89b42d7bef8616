"""SavedModel of a snapshot of a run, and the metadata beside it."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from ctr.data.ids.graph import check_rules
from ctr.io.arrays import hash_arrays
from ctr.io.files import write_atomic_bytes
from ctr.serving.metadata import EXTRA, FILE, WARMUP, hash_files
from ctr.serving.signatures import Signature, describe_requests, served_schema, serving_signatures
from ctr.training.run.snapshot import Snapshot
from ctr.training.run.tensor_files import written_by_tensorflow
from ctr.training.state import dense_weights

_WARMUP_BATCHES = (1, 64)
_WARMUP_TEXT = b"warm up"


def weights_hash(snapshot: Snapshot) -> str:
    """Hashes all weights (SHA-256), float32 before any are rounded."""
    tables = {f"rows/{number}": table for number, table in enumerate(snapshot.tables)}
    keys = {f"keys/{number}": variable for number, variable in snapshot.keys.items()}
    variables = {**tables, **keys, **dense_weights(snapshot.weights)}
    return hash_arrays({name: variable.numpy() for name, variable in variables.items()})


def write_model(snapshot: Snapshot, folder: Path, described: Mapping[str, Any]) -> dict[str, Any]:
    """Writes a model to a new folder and returns its metadata. ``described``: without functions and files."""
    check_rules(snapshot.schema)
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
    (folder / EXTRA).mkdir()
    warmed = {name: signature.specs for name, signature in signatures.items() if name != "predict_ids"}
    with written_by_tensorflow(folder / EXTRA / WARMUP):
        _write_warmup(folder / EXTRA / WARMUP, warmed)
    functions = {name: _describe_function(one, outputs[name]) for name, one in signatures.items()}
    requests = describe_requests(snapshot.schema, served_schema(snapshot))
    metadata = {**described, "requests": requests, "signatures": functions, "files": hash_files(folder)}
    write_atomic_bytes(folder / EXTRA / FILE, (json.dumps(metadata, indent=1) + "\n").encode())
    return metadata


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
