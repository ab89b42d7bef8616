"""The graph of an export: its bytes depend on the model alone, and a foreign one is refused before any of it runs."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import fingerprint_pb2, saved_model_pb2

from ctr.config import parse_model
from ctr.data.ids.graph import transform_tensors
from ctr.data.schema import Schema
from ctr.io.errors import InputError
from ctr.serving.export import publish
from ctr.serving.graph import OPERATIONS, SAVING, make_canonical
from ctr.serving.scorer import Scorer
from model_cases import contents

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
        command = [sys.executable, "-c", WRITER, str(root / "tests" / "helpers"), str(tmp_path / str(seed))]
        writers.append(subprocess.Popen([*command, *before], env=env, cwd=tmp_path))
    assert [writer.wait() for writer in writers] == [0, 0]
    first, second = (contents(tmp_path / str(seed) / "123") for seed in (1, 2))
    files = {"saved_model.pb", "fingerprint.pb", "variables/variables.index", "assets.extra/ctr.json"}
    assert files <= set(first)
    assert first == second


def test_what_a_process_did_before_changes_no_byte_and_other_weights_have_another_fingerprint(
    case, exported, copied, tmp_path
):
    first, snapshot = exported("factorized"), case("factorized").snapshot
    tf.function(lambda x: tf.cond(x > 0, lambda: x, lambda: -x)).get_concrete_function(tf.TensorSpec([]))
    assert contents(first) == contents(publish(snapshot, tmp_path / "again").path)
    fingerprint = fingerprint_pb2.FingerprintDef.FromString((first / "fingerprint.pb").read_bytes())
    assert fingerprint.uuid.isdecimal() and fingerprint.saved_model_checksum and fingerprint.checkpoint_hash
    read = tf.saved_model.experimental.read_fingerprint(str(first))
    assert read.graph_def_program_hash == fingerprint.graph_def_program_hash
    values = snapshot.tables[0].numpy()
    snapshot.tables[0].assign(values + 1)
    try:
        other = publish(snapshot, tmp_path / "other").path
    finally:
        snapshot.tables[0].assign(values)
    assert (other / "fingerprint.pb").read_bytes() != (first / "fingerprint.pb").read_bytes()
    assert (other / "saved_model.pb").read_bytes() == (first / "saved_model.pb").read_bytes()
    # What is canonical already stays.
    again = copied("factorized")
    make_canonical(again)
    assert contents(again) == contents(first)


# What reads or writes files, and what runs code.
FOREIGN = [
    *("ReadFile", "WriteFile", "MatchingFiles", "SaveV2", "RestoreV2", "MergeV2Checkpoints", "PrintV2"),
    *("Save", "PyFunc", "PyFuncStateless", "EagerPyFunc", "XlaLaunch", "TfLiteSubgraphExecute"),
    *("SomebodysOwnOp", "LookupTableImportV2"),
]


@pytest.fixture
def model(copied):
    return copied("logistic")


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
    saved = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    change(saved)
    path.write_bytes(saved.SerializeToString())
    accept_hashes(model)


def refused(model: Path, words: str) -> None:
    with pytest.raises(InputError, match=words) as raised:
        Scorer(model)
    assert "\n" not in str(raised.value)


def test_an_operation_that_is_no_computing_is_refused_by_its_name(model):
    for op in FOREIGN:

        def change(saved, op=op):
            functions = saved.meta_graphs[0].graph_def.library.function
            own = next(f for f in functions if f.signature.name.startswith("__inference_function"))
            own.node_def[0].op = op

        change_graph(model, change)
        refused(model, f"holds the operation '{op}', which no export of ctr has")
    assert not OPERATIONS & {*FOREIGN, *SAVING}
    words = "File|Save|Restore|Py|Xla|Print|Send|Recv|Dataset|Lookup|Table|Custom|Remote"
    assert not [op for op in OPERATIONS if re.search(words, op)]


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


UNKNOWN = "is of a kind that no export of ctr has"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda graph, nodes: graph.asset_file_def.add(filename="../../x"), "refers to asset files"),
        (lambda graph, nodes: graph.graph_def.library.gradient.add(function_name="x"), "gradient"),
        (lambda graph, nodes: graph.ClearField("object_graph_def"), "one graph with objects"),
        (lambda graph, nodes: nodes.add(), UNKNOWN),
        (lambda graph, nodes: nodes.add().asset.SetInParent(), UNKNOWN),
        (lambda graph, nodes: nodes.add().resource.SetInParent(), UNKNOWN),
        (lambda graph, nodes: setattr(nodes.add().user_object, "identifier", "_tf_keras_layer"), UNKNOWN),
    ],
)
def test_what_else_a_saved_model_can_hold_is_refused(model, change, words):
    def change_one(saved):
        [graph] = saved.meta_graphs
        change(graph, graph.object_graph_def.nodes)

    change_graph(model, change_one)
    refused(model, words)


def test_files_that_are_not_those_of_a_model(model, tmp_path):
    change_graph(model, lambda saved: saved.meta_graphs.add())
    refused(model, "exactly one graph with objects is required; graphs: 2")
    (model / "saved_model.pb").write_bytes(b"\xff" * 100)
    accept_hashes(model)
    refused(model, "saved_model.pb: not a SavedModel")
    (model / "assets").mkdir(exist_ok=True)
    (model / "assets/more").write_text("x")
    refused(model, "assets/more: is not among the files")
    (tmp_path / "secret").write_bytes((model / "saved_model.pb").read_bytes())
    (model / "saved_model.pb").unlink()
    (model / "saved_model.pb").symlink_to(tmp_path / "secret")
    refused(model, "saved_model.pb: a model has no symbolic links: delete it")


def test_variables_that_are_not_those_of_a_model(model):
    data = model / "variables/variables.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:100])
    accept_hashes(model)
    refused(model, "declares [0-9]+ bytes of numbers, but its files have 100")
    (model / "variables/variables.index").write_bytes(b"x" * 200)
    accept_hashes(model)
    refused(model, "not the variables of a model")


def test_features_of_every_kind_need_no_other_operation():
    parts = {"words": [2, 3], "subwords": [3, 4], "max_values": 5}
    features = [
        {"name": "a", "kind": "category", "source": "a"},
        {"name": "v", "kind": "category", "source": "v", "vocabulary": ["x", "y"]},
        {
            "name": "m",
            "kind": "category",
            "source": "m",
            "multivalent": True,
            "keep": "last",
            "max_values": 3,
        },
        {"name": "n", "kind": "number", "source": "n", "boundaries": [1, 2]},
        {"name": "signed", "kind": "number", "source": "n", "log": {"signed": True}},
        {"name": "step", "kind": "number", "source": "n", "step": {"low": 0, "high": 5, "size": 1}},
        {"name": "words", "kind": "text", "source": "t", "words": [1]},
        {"name": "parts", "kind": "text", "source": "t", **parts},
        {"name": "many", "kind": "cross", "of": ["parts", "v", "n"]},
    ]
    schema = parse_model(Schema, {"features": features}, "test")
    kinds = {name: tf.float32 if name == "n" else tf.string for name in schema.sources}
    specs = {name: tf.TensorSpec([None], kind) for name, kind in kinds.items()}
    function = tf.function(
        lambda raw: transform_tensors(schema, raw), input_signature=[specs], autograph=False
    )
    graph = function.get_concrete_function().graph.as_graph_def()
    found = {node.op for node in graph.node}
    found |= {node.op for one in graph.library.function for node in one.node_def}
    assert "UnicodeDecode" in found
    assert found <= OPERATIONS
