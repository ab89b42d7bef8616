"""Example calls of an exported model with its own inputs, ready to run: ``curl``, gRPC, and ``Scorer``."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from ctr.data.features import Category, Number, Text, Vector
from ctr.data.schema import QUERY_SIZE, Schema

FILE = "CALLS.md"
_ROWS = 2
_TIME = 1_700_000_000_000_000

_PAGE = """# Calls of this model

`predict` takes {count} inputs: {described}. The rows below are made up; `p` is the probability of a click.
In JSON a missing number is `NaN`, a missing text the empty string.

TensorFlow Serving, with REST on port 8501 and gRPC on port 8500:

```sh
tensorflow_model_server --port=8500 --rest_api_port=8501 --model_name={name} \\
    --model_base_path="$(realpath {shell_folder})"
```

## curl

```sh
curl -s http://localhost:8501/v1/models/{name}:predict -d {body}
```

## gRPC, with the package tensorflow-serving-api

```python
import grpc
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

inputs = {{
{tensors}
}}
request = predict_pb2.PredictRequest()
request.model_spec.name = {quoted_name}
request.model_spec.signature_name = "predict"
for name, (values, dtype) in inputs.items():
    request.inputs[name].CopyFrom(tf.make_tensor_proto(values, dtype))
with grpc.insecure_channel("localhost:8500") as channel:
    response = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=10)
p = tf.make_ndarray(response.outputs["p"])
print(p)
```

## Scorer, in a Python process

```python
from ctr.serving.scorer import Scorer

scorer = Scorer({quoted_folder})
p = scorer.predict(
    {{
{columns}
    }}
)
print(p)
```
"""

_FACTORS = """
Q once for each ad, U once for each treatment, then any pair of them:

```python
Q = scorer.quality(
    {{
{quality}
    }}
)
U = scorer.ui(
    {{
{ui}
    }}
)
p = scorer.combine_pairs(Q, U)
print(p)
```
"""


def calls_text(
    signatures: Mapping[str, Any], schema: Schema, name: str = "model", folder: str = "models/model"
) -> str:
    """Writes a page in Markdown with the calls, by the ``signatures`` of ``ctr.json``, with example values."""
    inputs = signatures["predict"]["inputs"]
    examples = {key: _examples(inputs[key], schema) for key in inputs}
    instances = [{key: values[row] for key, values in examples.items()} for row in range(_ROWS)]
    body = json.dumps({"signature_name": "predict", "instances": instances}, ensure_ascii=False)
    page = _PAGE.format(
        count=len(inputs),
        described=", ".join(f"`{key}` ({i['dtype']}{_renamed(key, i, ', ')})" for key, i in inputs.items()),
        name=name,
        quoted_name=_quoted(name),
        shell_folder=shlex.quote(folder),
        quoted_folder=_quoted(folder),
        body=shlex.quote(body),
        tensors="\n".join(
            f"    {_quoted(key)}: ({_list(values)}, tf.{inputs[key]['dtype']}),{_renamed(key, inputs[key], '  # ')}"
            for key, values in examples.items()
        ),
        columns=_columns(inputs, schema),
    )
    if "ui" in signatures:
        towers = {tower: _columns(signatures[tower]["inputs"], schema) for tower in ("quality", "ui")}
        page += _FACTORS.format(**towers)
    return page


def _renamed(key: str, described: Mapping[str, Any], before: str) -> str:
    """Names an input's column where TensorFlow does not allow the column's own name; else nothing."""
    return "" if key == described["column"] else f"{before}the column {_quoted(described['column'])}"


def _columns(inputs: Mapping[str, Any], schema: Schema) -> str:
    columns = {described["column"]: _examples(described, schema) for described in inputs.values()}
    return "\n".join(f"        {_quoted(name)}: {_list(values)}," for name, values in columns.items())


def _examples(described: Mapping[str, Any], schema: Schema) -> list[str | int | float]:
    if described["column"] == QUERY_SIZE and schema.counts_rows:
        # They are one page.
        return [float(_ROWS)] * _ROWS
    features = [f for f in schema.features if getattr(f, "source", None) == described["column"]]
    if described["dtype"] == "string":
        for feature in features:
            if isinstance(feature, Text):
                return ["red shoes", "garden chair"]
            if isinstance(feature, Vector):
                return [feature.separator.join(["0.5"] * feature.size), ""]
            if isinstance(feature, Category):
                known = feature.vocabulary or ("value-1", "value-2")
                first, second = known[0], known[-1]
                if feature.multivalent and feature.separator not in first + second:
                    return [feature.separator.join((first, second)), second]
                return [first, second]
        return ["value-1", "value-2"]
    if described["dtype"].startswith("int"):
        # The time of a row, in microseconds.
        return [_TIME + row * 1_000_000 for row in range(_ROWS)]
    for feature in features:
        if isinstance(feature, Number) and feature.has_ids:
            edges = feature.edges()
            return [float(edges[len(edges) // 2]), float(edges[-1])]
    return [0.5, 1.5]


def _list(values: list[str | int | float]) -> str:
    return f"[{', '.join(_quoted(value) if isinstance(value, str) else repr(value) for value in values)}]"


def _quoted(text: str) -> str:
    # What JSON writes is a literal of Python, too, in double quotes and in one line.
    return json.dumps(text, ensure_ascii=False)
