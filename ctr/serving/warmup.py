"""Requests that TensorFlow Serving runs before a new model takes traffic (``assets.extra`` of a SavedModel).

A TFRecord file of PredictionLog messages. Without it the first requests of clients would wait for what TensorFlow
does once: optimizing the graph, choosing kernels.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

FILE = "tf_serving_warmup_requests"

_BATCHES = (1, 64)
_TEXT = b"warm up"


def warmup_inputs(specs: Mapping[str, tf.TensorSpec], rows: int) -> dict[str, np.ndarray]:
    """Made-up inputs of a function of ``rows`` rows: texts of two words, zeros."""
    inputs = {}
    for name, spec in specs.items():
        shape = [rows if size is None else size for size in spec.shape]
        text = spec.dtype == tf.string
        inputs[name] = np.full(shape, _TEXT, object) if text else np.zeros(shape, spec.dtype.as_numpy_dtype)
    return inputs


def write_warmup(path: Path, signatures: Mapping[str, Mapping[str, tf.TensorSpec]]) -> None:
    """Writes requests of one row and of many for each function; ``signatures`` has the inputs by function."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for name, specs in signatures.items():
            for rows in _BATCHES:
                request = predict_pb2.PredictRequest()
                request.model_spec.signature_name = name
                for key, value in warmup_inputs(specs, rows).items():
                    request.inputs[key].CopyFrom(tf.make_tensor_proto(value, specs[key].dtype))
                log = prediction_log_pb2.PredictionLog(
                    predict_log=prediction_log_pb2.PredictLog(request=request)
                )
                writer.write(log.SerializeToString(deterministic=True))
