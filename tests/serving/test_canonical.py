"""Exports of one model have the same bytes, whichever process writes them and whatever it did before."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import fingerprint_pb2, saved_model_pb2

from ctr.serving.export import publish
from ctr.serving.graph import make_canonical
from ctr.serving.scorer import Scorer
from growing_cases import contents

WRITER = """
import os, sys, tempfile
os.environ["TF_USE_LEGACY_KERAS"] = "1"
from pathlib import Path
import tensorflow as tf
from ctr.serving.export import publish
sys.path.append(sys.argv[1])
import model_cases
def write(model, folder):
    case = model_cases.make_case(model_cases.MODELS[model], "float32", Path(tempfile.mkdtemp()))
    return publish(case.snapshot, Path(folder)).path
if "before" in sys.argv:
    write("plain", tempfile.mkdtemp())
    tf.keras.Sequential([tf.keras.layers.Dense(3), tf.keras.layers.Dense(4)])(tf.zeros([2, 2]))
write("factorized ensemble", sys.argv[2])
"""


@pytest.mark.slow
def test_two_processes_write_the_same_bytes(root, tmp_path):
    writers = []
    for seed, before in ((1, ()), (2, ("before",))):
        env = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(root)}
        command = [sys.executable, "-c", WRITER, str(root / "tests" / "helpers")]
        writers.append(
            subprocess.Popen([*command, str(tmp_path / str(seed)), *before], env=env, cwd=tmp_path)
        )
    assert [writer.wait() for writer in writers] == [0, 0]
    first, second = (contents(tmp_path / str(seed) / "123") for seed in (1, 2))
    assert {"saved_model.pb", "fingerprint.pb", "variables/variables.index", "assets.extra/ctr.json"} <= set(
        first
    )
    assert first == second


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("model", ["plain", "factorized", "own gradients"])
def test_what_a_process_did_before_changes_no_byte(case, exported, tmp_path, model):
    first = exported(model)
    tf.function(lambda x: tf.cond(x > 0, lambda: x, lambda: -x)).get_concrete_function(tf.TensorSpec([]))
    again = publish(case(model).snapshot, tmp_path).path
    assert contents(first) == contents(again)
    np.testing.assert_array_equal(
        Scorer(again).score(case(model).raw)["logit"], Scorer(first).score(case(model).raw)["logit"]
    )


@pytest.mark.parametrize("model", ["plain", "factorized"])
def test_variables_stand_in_the_order_in_which_they_are_read(case, exported, model):
    """A graph lists its variables by their addresses."""
    saved = saved_model_pb2.SavedModel.FromString((exported(model) / "saved_model.pb").read_bytes())
    objects = saved.meta_graphs[0].object_graph_def
    weights = next(child.node_id for child in objects.nodes[0].children if child.local_name == "weights")
    ordered = [child.node_id for child in objects.nodes[weights].children]
    predict = next(
        function
        for name, function in objects.concrete_functions.items()
        if {"logit", "p"} <= set(str(function.output_signature).split('"')) and len(function.bound_inputs) > 2
    )
    read = [number for number in predict.bound_inputs if number in ordered]
    assert read == sorted(read)
    assert [objects.nodes[number].variable.name for number in read][
        : len(case(model).state.tables.weights)
    ] == [f"rows/{layout.name}" for layout in case(model).state.layouts]


def test_functions_are_numbered_and_the_fingerprint_is_of_what_is_there(exported):
    folder = exported("plain")
    saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    names = [function.signature.name for function in saved.meta_graphs[0].graph_def.library.function]
    assert [int(name.rpartition("_")[2]) for name in names] == list(range(len(names)))
    fingerprint = fingerprint_pb2.FingerprintDef.FromString((folder / "fingerprint.pb").read_bytes())
    assert fingerprint.uuid.isdecimal() and fingerprint.saved_model_checksum and fingerprint.checkpoint_hash
    read = tf.saved_model.experimental.read_fingerprint(str(folder))
    assert read.graph_def_program_hash == fingerprint.graph_def_program_hash


def save_scaled(folder: Path, scale: float) -> None:
    module = tf.Module()
    module.scale = tf.Variable(scale)

    def serve(x):
        return {"y": tf.cond(tf.size(x) > 1, lambda: module.scale * x, lambda: -x)}

    function = tf.function(serve, input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    tf.saved_model.save(module, str(folder), signatures=function.get_concrete_function())
    make_canonical(folder)


def test_other_weights_have_another_fingerprint(tmp_path):
    for scale, name in ((2.0, "a"), (2.0, "b"), (3.0, "c")):
        save_scaled(tmp_path / name, scale)
        serve = tf.saved_model.load(str(tmp_path / name)).signatures["serving_default"]
        np.testing.assert_array_equal(serve(x=tf.constant([1.0, 2.0]))["y"], [scale, 2 * scale])
        np.testing.assert_array_equal(serve(x=tf.constant([5.0]))["y"], [-5.0])
    found = {name: contents(tmp_path / name) for name in "abc"}
    assert found["a"] == found["b"]
    assert found["a"]["fingerprint.pb"] != found["c"]["fingerprint.pb"]


def test_what_is_canonical_already_stays(tmp_path):
    save_scaled(tmp_path, 2.0)
    before = contents(tmp_path)
    make_canonical(tmp_path)
    assert contents(tmp_path) == before
    serve = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    np.testing.assert_array_equal(serve(x=tf.constant([1.0, 2.0]))["y"], [2.0, 4.0])
