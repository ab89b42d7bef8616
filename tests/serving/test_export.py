"""Exported models against the trainer, in this process and in one that knows nothing of the project."""

import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2

from ctr.data.schema import Schema
from ctr.io.errors import InputError
from ctr.io.locks import hold
from ctr.serving import export
from ctr.serving.metadata import find_model, read_metadata, versions
from ctr.serving.scorer import Scorer
from ctr.serving.signatures import input_names, serving_signatures
from ctr.training.config import ExportConfig
from ctr.training.state import dense_weights

_SLOW = [
    pytest.param(model, "bfloat16", marks=pytest.mark.slow)
    for model in ("bottlenecks", "logistic", "ensemble", "factorized")
]
MODELS = ("plain", "bottlenecks", "logistic", "ensemble", "factorized", "factorized ensemble")
FACTORIZED = ("factorized", "factorized ensemble")
# Of logits. The batches of trainer and server differ in size, so sums of products may be rounded otherwise.
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.02}


@pytest.mark.slow(first=3)
@pytest.mark.parametrize(
    ("model", "compute_dtype"),
    [
        *((model, "float32") for model in MODELS),
        ("plain", "bfloat16"),
        ("factorized ensemble", "bfloat16"),
        *_SLOW,
    ],
)
def test_predictions_are_the_trainers(case, exported, model, compute_dtype):
    expected = case(model, compute_dtype)
    scored = Scorer(exported(model, compute_dtype)).score(expected.raw)
    assert np.ptp(expected.logit) > 1
    np.testing.assert_allclose(scored["logit"], expected.logit, rtol=0, atol=TOLERANCE[compute_dtype])
    np.testing.assert_allclose(scored["p"], 1 / (1 + np.exp(-scored["logit"])), rtol=1e-6)


@pytest.mark.slow(first=1)
@pytest.mark.parametrize(
    ("model", "compute_dtype"),
    [*((model, "float32") for model in FACTORIZED), ("factorized ensemble", "bfloat16")],
)
def test_the_factors_give_the_same_predictions(case, exported, model, compute_dtype):
    expected = case(model, compute_dtype)
    probability = 1 / (1 + np.exp(-expected.logit))
    loaded = tf.saved_model.load(str(exported(model, compute_dtype)))
    scorer = Scorer(exported(model, compute_dtype))
    made = {"Q": scorer.quality(expected.raw), "U": scorer.ui(expected.raw)}
    assert made["Q"].shape == made["U"].shape == (90, 2 if "ensemble" in model else 1, 6)
    combined = loaded.signatures["combine"](**{name: tf.constant(value) for name, value in made.items()})
    for found in (combined["p"].numpy(), scorer.combine(made["Q"], made["U"])):
        np.testing.assert_allclose(found, probability, rtol=0, atol=TOLERANCE[compute_dtype] / 4)
    # In NumPy as in the graph.
    np.testing.assert_allclose(
        scorer.combine(made["Q"], made["U"]), combined["p"].numpy(), rtol=1e-5, atol=1e-7
    )


@pytest.mark.slow
def test_a_row_of_q_goes_with_many_of_u(case, exported):
    raw = case("factorized ensemble").raw
    scorer = Scorer(exported("factorized ensemble"))
    made = {"Q": scorer.quality(raw)[:7], "U": scorer.ui(raw)[:20]}
    pairs = scorer.combine_pairs(made["Q"], made["U"])
    assert pairs.shape == (7, 20)
    combine = tf.saved_model.load(str(exported("factorized ensemble"))).signatures["combine"]
    for row in range(7):
        in_graph = combine(Q=tf.constant(made["Q"][row : row + 1]), U=tf.constant(made["U"]))["p"].numpy()
        np.testing.assert_allclose(pairs[row], in_graph, rtol=1e-5)
        np.testing.assert_allclose(scorer.combine(made["Q"][row : row + 1], made["U"]), in_graph, rtol=1e-5)
    assert len(np.unique(pairs)) > 100


@pytest.mark.slow
def test_towers_take_the_columns_of_their_own_features(exported):
    signatures = read_metadata(exported("factorized"))["signatures"]
    columns = {name: {i["column"] for i in signatures[name]["inputs"].values()} for name in ("quality", "ui")}
    # A cross in the UI tower needs what it is made of.
    assert columns["ui"] == {"position", "size", "user:id"}
    assert columns["quality"] == {"user:id", "class", "price", "tags", "title"}
    assert set(read_metadata(exported("plain"))["signatures"]) == {"predict", "predict_ids"}
    assert set(signatures) == {"predict", "predict_ids", "quality", "ui", "combine"}


# Given the model's folder and a file of inputs by signature; prints the outputs. Nothing of the project is there.
PLAIN_CLIENT = """
import json, sys
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
outputs = {}
for name, columns in json.load(open(sys.argv[2])).items():
    function = loaded.signatures[name]
    kinds = {key: spec.dtype for key, spec in function.structured_input_signature[1].items()}
    made = function(**{key: tf.constant(value, kinds[key]) for key, value in columns.items()})
    outputs[name] = {key: value.numpy().tolist() for key, value in made.items()}
assert not [name for name in sys.modules if name == "ctr" or name.startswith("ctr.")]
print(json.dumps(outputs))
"""


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("model", ["plain", "factorized ensemble"])
def test_a_process_without_the_project(case, exported, fresh_python, tmp_path, model):
    expected = case(model)
    folder = tmp_path / "7"
    shutil.copytree(exported(model), folder)
    signatures = read_metadata(folder)["signatures"]
    raw = {**expected.raw, "tags": ["|".join(tags) for tags in expected.raw["tags"]]}

    def plain(value, dtype):
        if dtype == "string":
            return "" if value is None else str(value)
        return float("nan") if value is None else value

    inputs = {
        name: {
            key: [plain(value, i["dtype"]) for value in raw[i["column"]]]
            for key, i in signatures[name]["inputs"].items()
        }
        for name in ("predict", "quality", "ui")
        if name in signatures
    }
    (tmp_path / "inputs.json").write_text(json.dumps(inputs))
    done = fresh_python("-I", "-c", PLAIN_CLIENT, folder, tmp_path / "inputs.json", cwd=tmp_path)
    outputs = json.loads(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(outputs["predict"]["logit"], expected.logit, rtol=0, atol=1e-5)
    if model == "plain":
        return
    scorer = Scorer(folder)
    found = scorer.combine(np.array(outputs["quality"]["Q"]), np.array(outputs["ui"]["U"]))
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-expected.logit)), rtol=1e-4)


@pytest.mark.parametrize("model", ["plain", "factorized"])
def test_a_session_serves_it(case, exported, model):
    """As TensorFlow Serving does: a graph, a session, and the tensors that the signature names."""
    expected = case(model)
    signatures = read_metadata(exported(model))["signatures"]["predict"]["inputs"]
    raw = {**expected.raw, "tags": ["|".join(tags) for tags in expected.raw["tags"]]}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], str(exported(model)))
        signature = meta.signature_def["predict"]
        assert set(signature.inputs) == set(signatures)
        given = {}
        for name, described in signatures.items():
            column = raw[described["column"]]
            if described["dtype"] == "string":
                column = ["" if value is None else str(value) for value in column]
            given[signature.inputs[name].name] = column
        logit = session.run(signature.outputs["logit"].name, given)
    np.testing.assert_allclose(logit, expected.logit, rtol=0, atol=1e-5)


SCORER_ALONE = """
import json, sys
from ctr.serving.scorer import Scorer
scorer = Scorer(sys.argv[1])
raw = json.load(open(sys.argv[2]))
print(json.dumps(scorer.score(raw)["logit"].tolist()))
loaded = {name for name in sys.modules if name.startswith(("ctr.training", "ctr.pipelines", "ctr.models", "tf_keras"))}
# The shape of the model, which is no TensorFlow.
assert loaded <= {"ctr.models", "ctr.models.architecture"}, loaded
"""


@pytest.mark.slow
def test_the_scorer_needs_nothing_of_the_trainer(case, exported, fresh_python, root, tmp_path):
    expected = case("factorized ensemble", "bfloat16")
    (tmp_path / "raw.json").write_text(json.dumps(expected.raw))
    done = fresh_python(
        "-c",
        SCORER_ALONE,
        exported("factorized ensemble", "bfloat16"),
        tmp_path / "raw.json",
        cwd=tmp_path,
        path=root,
    )
    np.testing.assert_allclose(
        json.loads(done.stdout.splitlines()[-1]), expected.logit, rtol=0, atol=TOLERANCE["bfloat16"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
def test_nothing_but_what_predicts_is_in_it(case, exported, compute_dtype):
    state = case("plain", compute_dtype).state
    folder = exported("plain", compute_dtype)
    saved = tf.train.load_checkpoint(str(folder / "variables" / "variables"))
    shapes = sorted(
        tuple(shape)
        for name, shape in saved.get_variable_to_shape_map().items()
        if name.startswith("weights/")
    )
    dense = {name: weight for name, weight in state.weights.items() if name != "rank_head"}
    assert len(dense) == len(state.dense) - 1
    assert shapes == sorted(tuple(weight.shape) for weight in [*state.tables.weights, *dense.values()])
    others = set(saved.get_variable_to_shape_map()) - {
        name for name in saved.get_variable_to_shape_map() if name.startswith("weights/")
    }
    assert others == {"_CHECKPOINTABLE_OBJECT_GRAPH"}
    halves = [n for n, dtype in saved.get_variable_to_dtype_map().items() if dtype == tf.bfloat16]
    assert bool(halves) == (compute_dtype == "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["plain", "bottlenecks", "factorized ensemble"])
def test_nothing_in_it_needs_xla_or_the_host(exported, model):
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((exported(model) / "saved_model.pb").read_bytes())
    functions = saved.meta_graphs[0].graph_def.library.function
    assert functions
    for function in functions:
        assert not function.attr["_XlaMustCompile"].b
        assert not [node.op for node in function.node_def if "PyFunc" in node.op or node.op == "XlaLaunch"]


@pytest.mark.parametrize("model", ["plain", "factorized"])
def test_warm_up_requests_run(exported, model):
    folder = exported(model)
    loaded = tf.saved_model.load(str(folder))
    requests = []
    path = str(folder / "assets.extra" / "tf_serving_warmup_requests")
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        log = prediction_log_pb2.PredictionLog.FromString(record)
        assert log.WhichOneof("log_type") == "predict_log"
        request = log.predict_log.request
        inputs = {name: tf.constant(tf.make_ndarray(proto)) for name, proto in request.inputs.items()}
        outputs = loaded.signatures[request.model_spec.signature_name](**inputs)
        assert all(np.isfinite(value.numpy()).all() for value in outputs.values())
        rows = {value.shape[0] for value in inputs.values()}
        requests.append((request.model_spec.signature_name, *rows))
    names = ("predict",) if model == "plain" else ("predict", "quality", "ui", "combine")
    assert sorted(requests) == sorted((name, rows) for name in names for rows in (1, 64))


def test_metadata(case, exported):
    metadata = read_metadata(exported())
    snapshot = case().snapshot
    assert metadata["schema"] == json.loads(snapshot.schema.canonical_json())
    assert metadata["config"] == snapshot.config.model_dump(mode="json")
    assert metadata["position"] == {
        "examples": 123, "batches": 3, "trained_examples": 60, "last_query_time": 5000, "learned_until": None,
    }  # fmt: skip
    assert metadata["logs"] == [{"log": "", "intervals": 1, "sha256": "0" * 64}]
    assert metadata["model"]["alpha2"] == 0.5
    assert metadata["versions"]["tensorflow"] == tf.__version__
    assert metadata["signatures"]["predict"]["inputs"]["user_id"] == {
        "column": "user:id", "dtype": "string", "shape": [-1],
    }  # fmt: skip
    assert exported().name == "123"


def test_clients_that_name_no_function_get_predict(exported):
    assert "serving_default" in tf.saved_model.load(str(exported())).signatures


def test_input_names_are_the_columns_where_that_is_possible(tmp_path):
    columns = ["C1", "c1", "user:id", "user_id", "class", "self", "7days", "_x", "ü", "用户", "ü2"]
    names = input_names(columns)
    assert list(names.values()) == columns
    assert names["C1"] == "C1"
    assert all(name.isascii() and name.isidentifier() and name[0].isalpha() for name in names)

    assert (names["column_9"], names["column_10"], names["x_2"]) == ("ü", "用户", "ü2")
    assert input_names(["点击", "column_1", "位置.values"]) == {
        "column_1_": "点击", "column_1": "column_1", "x___values": "位置.values",
    }  # fmt: skip
    assert input_names(["a b", "a_b", "a-b", "a_b_"]) == {
        "a_b__": "a b", "a_b": "a_b", "a_b___": "a-b", "a_b_": "a_b_",
    }  # fmt: skip

    # All of them are names that a saved function can have.
    function = tf.function(
        lambda given: {"all": tf.strings.join([given[name] for name in names], " ")},
        input_signature=[{name: tf.TensorSpec([None], tf.string, name=name) for name in names}],
        autograph=False,
    )
    tf.saved_model.save(tf.Module(), str(tmp_path), signatures={"f": function})
    loaded = tf.saved_model.load(str(tmp_path)).signatures["f"]
    made = loaded(**{name: tf.constant([column]) for name, column in names.items()})
    assert made["all"].numpy().tolist() == [" ".join(columns).encode()]


def test_a_column_has_one_name_in_all_functions(case):
    """Also where only one of the towers reads another column whose name would be the same."""
    snapshot = case("factorized").snapshot
    renamed = {"price": "a b", "size": "a-b"}
    features = [
        feature.model_copy(update={"source": renamed[feature.name]}) if feature.name in renamed else feature
        for feature in snapshot.schema.features
    ]
    signatures = serving_signatures(replace(snapshot, schema=Schema(features=tuple(features))))
    names = {
        name: {v: k for k, v in signatures[name].sources.items()} for name in ("predict", "quality", "ui")
    }
    assert {names["predict"]["a b"], names["predict"]["a-b"]} == {"a_b", "a_b_"}
    for tower in ("quality", "ui"):
        assert names[tower].items() <= names["predict"].items()
    assert "a-b" not in names["quality"]


class TestPublishing:
    def test_a_version_that_is_there_stays(self, case, exported, tmp_path):
        target = tmp_path / "123"
        shutil.copytree(exported(), target)
        before = {path: path.stat().st_mtime_ns for path in target.rglob("*")}
        again = export.publish(case().snapshot, tmp_path)
        assert (again.path, again.made) == (target, False)
        assert {path: path.stat().st_mtime_ns for path in target.rglob("*")} == before

    def test_another_models_version_is_not_replaced(self, case, exported, tmp_path):
        shutil.copytree(exported("logistic"), tmp_path / "123")
        with pytest.raises(
            InputError, match=r"123: this version already exists and belongs to another model \(config"
        ):
            export.publish(case().snapshot, tmp_path)

    def test_nor_one_of_the_same_run_that_learned_otherwise(self, case, exported, tmp_path):
        shutil.copytree(exported("logistic"), tmp_path / "123")
        snapshot = case("logistic").snapshot
        for weight in (snapshot.tables[0], *dense_weights(snapshot.weights).values()):
            before = weight.numpy()
            weight.assign(before + 1)
            try:
                with pytest.raises(InputError, match=r"123: .* belongs to another model \(weights differ\)"):
                    export.publish(snapshot, tmp_path)
            finally:
                weight.assign(before)
        assert not export.publish(snapshot, tmp_path).made

    def test_nothing_appears_of_an_export_that_fails(self, case, exported, tmp_path, monkeypatch):
        def fail(*_):
            raise OSError("no space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(export, "_sync_tree", fail)
            with pytest.raises(OSError, match="no space"):
                export.publish(case("logistic").snapshot, tmp_path)
        assert [path.name for path in tmp_path.iterdir() if path.name.isdigit()] == []
        with pytest.raises(InputError, match="neither an exported model"):
            find_model(tmp_path)
        made = export.publish(case("logistic").snapshot, tmp_path)
        assert made.made
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "123"]

    def test_all_is_durable_before_the_name_appears(self, case, tmp_path, monkeypatch):
        import os

        synced = []
        sync, rename = os.fsync, type(tmp_path).rename

        def noting_sync(descriptor):
            synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            sync(descriptor)

        def noting_rename(self, target):
            if self.name.endswith(".partial"):
                wanted = {str(self), *(str(path) for path in self.rglob("*"))}
                assert wanted <= set(synced)
                synced.append("renamed")
            return rename(self, target)

        monkeypatch.setattr(os, "fsync", noting_sync)
        monkeypatch.setattr(type(tmp_path), "rename", noting_rename)
        export.publish(case("logistic").snapshot, tmp_path)
        assert synced.index("renamed") < len(synced) - 1
        assert synced[-1] == str(tmp_path)

    def test_the_newest_are_kept(self, case, exported, tmp_path):
        for version in (5, 70, 1000):
            shutil.copytree(exported("logistic"), tmp_path / str(version))
        made = export.publish(case("logistic").snapshot, tmp_path, keep=2)
        assert made.made
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "1000", "123"]

    def test_what_would_be_deleted_at_once_is_not_made(self, case, exported, tmp_path):
        for version in (500, 1000):
            shutil.copytree(exported("logistic"), tmp_path / str(version))
        assert not export.publish(case("logistic").snapshot, tmp_path, keep=2).made
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "1000", "500"]

    def test_only_one_publishes_at_a_time(self, case, tmp_path, fresh_python):
        import fcntl

        with (tmp_path / ".lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with pytest.raises(InputError, match="another process is exporting"):
                export.publish(case("logistic").snapshot, tmp_path)

    def test_a_run_waits_for_its_turn(self, case, tmp_path):
        """A trainer must not stop because somebody exports the same run by hand."""
        made = case("logistic").snapshot
        config = made.config.model_copy(update={"export": ExportConfig(every_examples=1, keep=1)})
        snapshot = replace(made, run_dir=tmp_path, config=config)
        (tmp_path / "exports").mkdir()
        lock = tmp_path / "exports" / ".lock"
        lock.touch()
        with ThreadPoolExecutor() as pool:
            with hold(lock):
                waiting = pool.submit(export.export_from_run, snapshot)
                with pytest.raises(TimeoutError):
                    waiting.result(timeout=0.3)
                assert versions(tmp_path / "exports") == []
            waiting.result(timeout=60)
        assert [path.name for path in versions(tmp_path / "exports")] == ["123"]

    def test_only_its_own_leftovers_are_deleted(self, case, tmp_path):
        (tmp_path / "mine.partial").mkdir()
        (tmp_path / "mine.partial" / "notes").write_text("x")
        (tmp_path / "7.partial").write_text("a file")
        (tmp_path / "100.partial" / "variables").mkdir(parents=True)
        export.publish(case("logistic").snapshot, tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            ".lock", "123", "7.partial", "mine.partial",
        ]  # fmt: skip
        assert (tmp_path / "mine.partial" / "notes").exists()

    @pytest.mark.slow(first=2)
    @pytest.mark.parametrize("version", [5, 1000])
    @pytest.mark.parametrize("key", ["schema", "config", "logs", "other logs"])
    def test_versions_of_two_runs_do_not_mix(self, case, exported, tmp_path, version, key):
        other = tmp_path / str(version)
        shutil.copytree(exported("logistic"), other)
        path = other / "assets.extra" / "ctr.json"
        metadata = json.loads(path.read_text())
        if key == "logs":
            metadata["logs"][0]["sha256"] = "1" * 64
        elif key == "other logs":
            metadata["logs"].append({"log": "constraints", "intervals": 1, "sha256": "1" * 64})
        else:
            metadata[key] = {**metadata[key], "changed": 1}
        path.write_text(json.dumps(metadata))
        words = (
            rf"{version}: this version belongs to another run \({key.split()[-1]} differ\): a directory holds"
        )
        with pytest.raises(InputError, match=words):
            export.publish(case("logistic").snapshot, tmp_path)
        assert versions(tmp_path) == [other]
        # Further on in the same run a log's hash is of more intervals.
        metadata = json.loads((exported("logistic") / "assets.extra" / "ctr.json").read_text())
        metadata["logs"] = [{"log": "", "intervals": 2, "sha256": "1" * 64}]
        path.write_text(json.dumps(metadata))
        assert export.publish(case("logistic").snapshot, tmp_path).made


def test_python_version_is_told(exported):
    assert read_metadata(exported())["versions"]["python"] == sys.version.split()[0]
