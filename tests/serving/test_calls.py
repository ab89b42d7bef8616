"""The calls that come with an export are run: against a stub of TensorFlow Serving, and in this process."""

import json
import re
import shlex
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from ctr.config import parse_model
from ctr.data.schema import Schema
from ctr.serving.calls import calls_text
from ctr.serving.export import Exported, example_calls
from ctr.serving.metadata import read_metadata


@pytest.fixture
def model(exported):
    return exported("factorized")


@pytest.fixture
def page(model):
    return example_calls(Exported(model, True, read_metadata(model)))


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Runs a SavedModel as TensorFlow Serving does: inputs of the types that the signature says, no others."""

    def __init__(self, model):
        self.loaded = tf.saved_model.load(str(model))
        self.names = []

    def Predict(self, request, context):  # noqa: N802
        self.names.append((request.model_spec.name, request.model_spec.signature_name))
        function = self.loaded.signatures[request.model_spec.signature_name]
        kinds = {name: spec.dtype for name, spec in function.structured_input_signature[1].items()}
        assert {name: proto.dtype for name, proto in request.inputs.items()} == {
            name: dtype.as_datatype_enum for name, dtype in kinds.items()
        }
        made = function(**{name: tf.constant(tf.make_ndarray(p)) for name, p in request.inputs.items()})
        response = predict_pb2.PredictResponse()
        for name, value in made.items():
            response.outputs[name].CopyFrom(tf.make_tensor_proto(value))
        return response


def run(code: str) -> dict:
    names: dict = {}
    exec(compile(code, "call", "exec"), names)
    return names


def test_grpc_and_the_scorer_predict_the_same_as_curl(model, page, capsys):
    grpc_call, scorer_call, *_ = blocks(page, "python")
    scored = run(scorer_call)["p"]
    assert scored.shape == (2,) and scored[0] != scored[1]

    service, server = Service(model), grpc.server(ThreadPoolExecutor(1))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(service, server)
    port = server.add_insecure_port("localhost:0")
    server.start()
    try:
        assert grpc_call.count('"localhost:8500"') == 1
        # A loaded machine takes longer than a client waits.
        patient = grpc_call.replace("timeout=10", "timeout=600")
        served = run(patient.replace("localhost:8500", f"localhost:{port}"))["p"]
    finally:
        server.stop(None)
    assert service.names == [(model.parent.name, "predict")]
    # The scorer computes few rows without TensorFlow.
    np.testing.assert_allclose(served, scored, rtol=0, atol=1e-6)
    assert capsys.readouterr().out == f"{scored}\n{served}\n"

    command, *arguments = shlex.split(blocks(page, "sh")[1])
    assert (command, arguments[0], arguments[2]) == ("curl", "-s", "-d")
    assert arguments[1] == f"http://localhost:8501/v1/models/{model.parent.name}:predict"
    body = json.loads(arguments[3])
    function = service.loaded.signatures[body["signature_name"]]
    kinds = {name: spec.dtype for name, spec in function.structured_input_signature[1].items()}
    assert all(set(instance) == set(kinds) for instance in body["instances"])
    # Instances are put together column by column.
    columns = {
        name: tf.constant([row[name] for row in body["instances"]], dtype) for name, dtype in kinds.items()
    }
    np.testing.assert_array_equal(function(**columns)["p"], served)


def test_the_calls_of_a_factorized_model_have_its_factors(page, exported):
    *_, scorer_call, factor_call = blocks(page, "python")
    names = run(scorer_call + factor_call)
    assert names["p"].shape == (2, 2)
    np.testing.assert_allclose(np.diag(names["p"]), run(scorer_call)["p"], rtol=1e-5)
    assert "combine_pairs" not in (exported("logistic") / "assets.extra/CALLS.md").read_text()


def test_the_page_names_the_place_and_that_beside_the_model_does_not(model, page):
    """A model's bytes do not depend on where it is published."""
    command, *arguments = shlex.split(blocks(page, "sh")[0])
    assert command == "tensorflow_model_server"
    name = model.parent.name
    assert {"--port=8500", "--rest_api_port=8501", f"--model_name={name}"} < set(arguments)
    assert str(model.parent) in arguments[-1]
    written = (model / "assets.extra" / "CALLS.md").read_text()
    assert str(model.parent) not in written
    moved = page.replace(str(model.parent), "models/model").replace(name, "model")
    assert written.rstrip() == moved


AWKWARD = [
    {"name": "a", "kind": "category", "source": 'it\'s "a"', "vocabulary": ["d'or", 'say "hi"', "😀 \\n"]},
    {"name": "m", "kind": "category", "source": "m", "multivalent": True, "separator": "-"},
    {"name": "n", "kind": "number", "source": "n", "boundaries": [-1.5, 2e-8, 7]},
    {"name": "t", "kind": "text", "source": "t", "words": [1]},
]


def test_values_are_those_that_features_read_whatever_they_hold():
    schema = parse_model(Schema, {"features": AWKWARD}, "test")
    kinds = {"m": "string", "n": "float32", "t": "string", "time_us": "int64"}
    inputs = {"it_s__a_": {"column": 'it\'s "a"', "dtype": "string"}}
    inputs |= {name: {"column": name, "dtype": kind} for name, kind in kinds.items()}
    page = calls_text({"predict": {"inputs": inputs}}, schema, "x", "a folder/x")
    body = json.loads(shlex.split(blocks(page, "sh")[1])[-1])
    assert [instance["it_s__a_"] for instance in body["instances"]] == ["d'or", "😀 \\n"]
    assert [instance["n"] for instance in body["instances"]] == [2e-8, 7.0]
    assert all(isinstance(instance["time_us"], int) for instance in body["instances"])
    grpc_call, scorer_call = blocks(page, "python")
    given = grpc_call.partition("inputs = ")[2].partition("request")[0]
    tensors = run(f"import tensorflow as tf\ninputs = {given}")
    assert tensors["inputs"]["it_s__a_"] == (["d'or", "😀 \\n"], tf.string)
    assert tensors["inputs"]["time_us"][1] == tf.int64
    compile(scorer_call, "call", "exec")
    assert 'Scorer("a folder/x")' in scorer_call
    # An input that could not have the name of its column says which it is, once in words and once in code.
    assert '`it_s__a_` (string, the column "it\'s \\"a\\""), `m` (string), ' in page
    assert 'tf.string),  # the column "it\'s \\"a\\""\n' in grpc_call and grpc_call.count("# the column") == 1
    # A value that holds the separator would be another one.
    assert [instance["m"] for instance in body["instances"]] == ["value-1", "value-2"]
