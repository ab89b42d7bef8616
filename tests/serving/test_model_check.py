"""An exported model is a program from elsewhere: what may be loaded, and what is refused before any of it runs."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from ctr.config import parse_model
from ctr.data.ids.graph import transform_tensors
from ctr.data.schema import Number, Schema
from ctr.io.errors import InputError
from ctr.serving.graph import OPERATIONS, SAVING, check_model
from ctr.serving.scorer import Scorer

FILES = (
    "ReadFile",
    "WriteFile",
    "MatchingFiles",
    "SaveV2",
    "RestoreV2",
    "MergeV2Checkpoints",
    "PrintV2",
    "Save",
)
CODE = (
    "PyFunc",
    "PyFuncStateless",
    "EagerPyFunc",
    "XlaLaunch",
    "TfLiteSubgraphExecute",
    "SomebodysOwnOp",
    "LookupTableImportV2",
)
FEATURES = [
    {"name": "a", "kind": "category", "source": "a"},
    {"name": "v", "kind": "category", "source": "v", "vocabulary": ["x", "y"]},
    {"name": "m", "kind": "category", "source": "m", "multivalent": True},
    {"name": "last", "kind": "category", "source": "m", "multivalent": True, "keep": "last", "max_values": 3},
    {"name": "n", "kind": "number", "source": "n", "boundaries": [1, 2]},
    {"name": "signed", "kind": "number", "source": "n", "log": {"signed": True}},
    {"name": "step", "kind": "number", "source": "n", "step": {"low": 0, "high": 5, "size": 1}},
    {"name": "words", "kind": "text", "source": "t", "words": [1]},
    {"name": "parts", "kind": "text", "source": "t", "words": [2, 3], "subwords": [3, 4], "max_values": 5},
    {"name": "single", "kind": "cross", "of": ["a", "v"]},
    {"name": "many", "kind": "cross", "of": ["parts", "v", "n"]},
]  # fmt: skip


@pytest.fixture
def model(exported, tmp_path) -> Path:
    return shutil.copytree(exported("factorized"), tmp_path / "model")


def accept_hashes(model: Path) -> None:
    """Whoever changes a file can change the record of its hash too."""
    path = model / "assets.extra/ctr.json"
    metadata = json.loads(path.read_text())
    metadata["files"] = {
        name: hashlib.sha256((model / name).read_bytes()).hexdigest() for name in metadata["files"]
    }
    path.write_text(json.dumps(metadata))


def change_graph(model: Path, change) -> None:
    path = model / "saved_model.pb"
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString(path.read_bytes())
    change(saved)
    path.write_bytes(saved.SerializeToString())
    accept_hashes(model)


def refused(model: Path, words: str) -> None:
    with pytest.raises(InputError, match=words) as raised:
        Scorer(model)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("op", [*FILES, *CODE])
def test_an_operation_that_is_no_computing_is_refused_by_its_name(model, op):
    def change(saved):
        functions = saved.meta_graphs[0].graph_def.library.function
        next(f for f in functions if f.signature.name.startswith("__inference_function")).node_def[0].op = op

    change_graph(model, change)
    refused(model, f"holds the operation '{op}', which no export of ctr has")


def test_what_saves_is_not_to_be_called_through_another_function(model):
    def change(saved):
        functions = saved.meta_graphs[0].graph_def.library.function
        saver = next(f for f in functions if f.signature.name.startswith("__inference__traced_save"))
        caller = next(f for f in functions if "signature_wrapper" in f.signature.name)
        node = caller.node_def.add(name="innocent", op="StatefulPartitionedCall")
        node.attr["f"].func.name = saver.signature.name

    change_graph(model, change)
    refused(model, "holds the operation 'ShardedFilename'")


def test_a_program_that_writes_files_never_runs(model, tmp_path):
    class Writer(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def run(self, name):
            tf.io.write_file(str(tmp_path / "written"), "by the model")
            return {"p": tf.zeros([1])}

    writer = Writer()
    writer.weight = tf.Variable(1.0)
    tf.saved_model.save(writer, str(tmp_path / "other"), signatures={"predict": writer.run})
    for name in ("saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001"):
        shutil.copy(tmp_path / "other" / name, model / name)
    accept_hashes(model)
    refused(model, "holds the operation 'WriteFile'")
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda saved: saved.meta_graphs.add(), "exactly one graph with objects is required; graphs: 2"),
        (lambda saved: saved.meta_graphs[0].ClearField("object_graph_def"), "one graph with objects"),
        (lambda saved: saved.meta_graphs[0].asset_file_def.add(filename="../../x"), "refers to asset files"),
        (lambda saved: saved.meta_graphs[0].graph_def.library.gradient.add(function_name="x"), "gradient"),
        (
            lambda saved: saved.meta_graphs[0].object_graph_def.nodes.add(),
            "is of a kind that no export of ctr has",
        ),
        (
            lambda saved: saved.meta_graphs[0].object_graph_def.nodes.add().asset.SetInParent(),
            "is of a kind that no export",
        ),
        (
            lambda saved: saved.meta_graphs[0].object_graph_def.nodes.add().resource.SetInParent(),
            "is of a kind that no export",
        ),
        (
            lambda saved: setattr(
                saved.meta_graphs[0].object_graph_def.nodes.add().user_object, "identifier", "_tf_keras_layer"
            ),
            "is of a kind that no export of ctr has",
        ),
    ],
)
def test_what_else_a_saved_model_can_hold_is_refused(model, change, words):
    change_graph(model, change)
    refused(model, words)


def test_bytes_that_are_no_graph(model):
    (model / "saved_model.pb").write_bytes(b"\xff" * 100)
    accept_hashes(model)
    refused(model, "saved_model.pb: not a SavedModel")


def test_variables_larger_than_their_files(model):
    data = model / "variables/variables.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:100])
    accept_hashes(model)
    refused(model, "declares [0-9]+ bytes of numbers, but its files have 100")


def test_a_damaged_index(model):
    (model / "variables/variables.index").write_bytes(b"x" * 200)
    accept_hashes(model)
    refused(model, "not the variables of a model")


def test_a_file_that_nobody_wrote(model):
    (model / "assets").mkdir(exist_ok=True)
    (model / "assets/more").write_text("x")
    refused(model, "assets/more: is not among the files")


def test_links_to_elsewhere(model, tmp_path):
    (tmp_path / "secret").write_bytes((model / "saved_model.pb").read_bytes())
    (model / "saved_model.pb").unlink()
    (model / "saved_model.pb").symlink_to(tmp_path / "secret")
    refused(model, "saved_model.pb: a model has no symbolic links: delete it")


def test_features_of_every_kind_need_no_other_operation():
    schema = parse_model(Schema, {"features": FEATURES}, "test")
    numbers = {feature.source for feature in schema.features if isinstance(feature, Number)}
    specs = {
        name: tf.TensorSpec([None], tf.float32 if name in numbers else tf.string) for name in schema.sources
    }
    function = tf.function(
        lambda raw: transform_tensors(schema, raw), input_signature=[specs], autograph=False
    )
    graph = function.get_concrete_function().graph.as_graph_def()
    found = {node.op for node in graph.node}
    found |= {node.op for one in graph.library.function for node in one.node_def}
    assert "UnicodeDecode" in found
    assert found <= OPERATIONS


def test_no_operation_on_the_list_reads_or_runs_anything_else():
    words = (
        "File",
        "Save",
        "Restore",
        "Py",
        "Xla",
        "Print",
        "Send",
        "Recv",
        "Dataset",
        "Lookup",
        "Table",
        "Custom",
        "Remote",
    )
    assert not [op for op in OPERATIONS if any(word in op for word in words)]
    assert not OPERATIONS & SAVING


@pytest.mark.slow(first=3)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "kind", ["plain", "bottlenecks", "logistic", "ensemble", "factorized", "factorized ensemble"]
)
def test_exports_of_every_kind_are_loaded(exported, kind, dtype):
    check_model(exported(kind, dtype))
