"""Exported models against the trainer, in this process and in one that knows nothing of the project; and publishing."""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2

from ctr.data.reader import rows_of_table
from ctr.eval.arrays import sigmoid
from ctr.io.errors import InputError
from ctr.io.files import hold
from ctr.serving import export
from ctr.serving.metadata import check_files, find_model, read_metadata, versions
from ctr.serving.scorer import Scorer
from ctr.training.config import ExportConfig
from ctr.training.state import dense_weights
from fault_points import Counting, watching
from model_cases import (
    GROWING,
    MODELS,
    SCHEMA,
    Case,
    make_case,
    make_snapshot,
    packed_ids,
    saved_variables,
    trainer_logit,
)

# Of logits. The batches of trainer and server differ in size, so sums of products may be rounded otherwise; one
# rounding of a logit of 1 to bfloat16 is 0.004.
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.02}
# Each kind of layer, head, ensemble and factor is in a case, and each set of experts; those of soak differ from another
# one in their rounding or in one part alone.
OTHERS = {
    ("slow", "float32"): ("attention", "factorized", "growing", "labeled", "numbers by tower", "ensemble"),
    ("slow", "bfloat16"): ("linear and network",),
    ("soak", "float32"): ("linear and pairs", "logistic"),
    ("soak", "bfloat16"): ("factorized beside others", "factorized ensemble", "wide"),
}
AGREEING = [("all experts", "float32")]
AGREEING += [
    pytest.param(one, dtype, marks=getattr(pytest.mark, mark))
    for (mark, dtype), models in OTHERS.items()
    for one in models
]


def texts(raw: dict) -> dict:
    """Lists as servers get them."""
    joined = {"tags": "|", "image": ", ", "query": " "}
    lists = {
        name: [joined[name].join(map(str, items or ())) for items in raw[name]]
        for name in joined
        if name in raw
    }
    return {**raw, **lists}


def tensors(function, described: dict, raw: dict) -> dict:
    """The inputs of a signature as its clients give them."""
    kinds = {key: spec.dtype for key, spec in function.structured_input_signature[1].items()}
    columns = {key: texts(raw)[described[key]["column"]] for key in kinds}
    for key, dtype in kinds.items():
        missing = "" if dtype == tf.string else float("nan")
        kind = str if dtype == tf.string else float
        columns[key] = [missing if value is None else kind(value) for value in columns[key]]
    return {key: tf.constant(values, kinds[key]) for key, values in columns.items()}


@pytest.mark.parametrize(("model", "dtype"), AGREEING)
def test_trainer_saved_model_and_scorer_agree(case, exported, model, dtype):
    made, folder = case(model, dtype), exported(model, dtype)
    check_agreement(made, folder, TOLERANCE[dtype])
    # A server warms up with requests of every function but that of ids, of one and of many rows.
    loaded, requests = tf.saved_model.load(str(folder)), []
    path = str(folder / "assets.extra" / "tf_serving_warmup_requests")
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
        inputs = {name: tf.constant(tf.make_ndarray(proto)) for name, proto in request.inputs.items()}
        outputs = loaded.signatures[request.model_spec.signature_name](**inputs)
        assert all(np.isfinite(value.numpy()).all() for value in outputs.values())
        requests.append((request.model_spec.signature_name, *{value.shape[0] for value in inputs.values()}))
    names = set(loaded.signatures) - {"predict_ids", "serving_default"}
    # Beside other experts, a factorized network is no prediction of Q and U.
    is_separable = "factorized" in MODELS[model] and MODELS[model]["experts"] == ["network"]
    assert names == {"predict", *(("quality", "ui", "combine") if is_separable else ())}
    assert sorted(requests) == sorted((name, rows) for name in names for rows in (1, 64))


def check_agreement(made: Case, folder: Path, tolerance: float) -> None:
    """Checks the scorer against the trainer, by values, single rows and ids, and against the graph's signatures."""
    raw, expected, scorer = made.raw, made.logit, Scorer(folder, cached_rows=0)
    found = scorer.score(raw)
    assert np.ptp(expected) > 1 and found["p"].dtype == found["logit"].dtype == np.float32
    np.testing.assert_allclose(found["logit"], expected, rtol=0, atol=tolerance)
    np.testing.assert_allclose(found["p"], sigmoid(found["logit"]), rtol=1e-6)
    assert {*found} == {"p", "logit", *(f"p_{name}" for name in scorer.labels)}
    for name, logit in zip(scorer.labels, made.labels, strict=True):
        assert np.ptp(logit) > 0.1
        np.testing.assert_allclose(found[f"p_{name}"], sigmoid(logit), rtol=0, atol=tolerance)
    ids = packed_ids(rows_of_table(made.table, made.snapshot.schema, 0))
    np.testing.assert_allclose(scorer.score_ids(ids)["logit"], expected, rtol=0, atol=tolerance)
    loaded, described = tf.saved_model.load(str(folder)), read_metadata(folder)["signatures"]
    for name in ("predict", "serving_default"):
        function = loaded.signatures[name]
        outputs = function(**tensors(function, described["predict"]["inputs"], raw))
        np.testing.assert_array_equal(outputs["logit"], found["logit"])
    # What a product of bfloat16 is rounded to depends on the order of its sum, which is another one for a single row.
    for row in range(4):
        one = scorer.score({name: values[row : row + 1] for name, values in raw.items()})
        np.testing.assert_allclose(one["logit"], expected[row : row + 1], rtol=0, atol=3 * tolerance)
    if scorer.factorized:
        q, u = scorer.quality(raw), scorer.ui(raw)
        combine = loaded.signatures["combine"]
        in_graph = combine(Q=tf.constant(q), U=tf.constant(u))["p"].numpy()
        np.testing.assert_allclose(in_graph, found["p"], rtol=0, atol=tolerance / 4)
        np.testing.assert_allclose(scorer.combine(q, u), in_graph, rtol=1e-5, atol=1e-7)
        pairs = scorer.combine_pairs(q[:7], u[:20])
        assert pairs.shape == (7, 20) and len(np.unique(pairs)) > 100
        for row in range(7):
            in_graph = combine(Q=tf.constant(q[row : row + 1]), U=tf.constant(u[:20]))["p"].numpy()
            np.testing.assert_allclose(pairs[row], in_graph, rtol=1e-5)
            np.testing.assert_allclose(scorer.combine(q[row : row + 1], u[:20]), in_graph, rtol=1e-5)


@pytest.mark.slow
def test_pairs_that_are_left_out_are_no_part_of_it(exported, tmp_path):
    made = make_case(MODELS["all experts"], "float32", tmp_path / "run")
    made.state.experts.watch = np.array([2.0, 100.0, 100.0, 800.0])
    snapshot = make_snapshot(made.state, made.snapshot.config, SCHEMA, tmp_path / "run", 124)
    expected = trainer_logit(made.state, snapshot.config, rows_of_table(made.table, SCHEMA, 0))
    assert np.abs(expected - made.logit).max() > 0.1
    found = Scorer(export.publish(snapshot, tmp_path / "models").path)
    assert found.metadata["model"]["experts"] == ["linear", "network"]
    np.testing.assert_allclose(found.score(made.raw)["logit"], expected, rtol=0, atol=1e-5)
    assert len(saved_variables(found.path)) < len(saved_variables(exported("all experts")))


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
SCORER_ALONE = """
import json, sys
from ctr.serving.scorer import Scorer
scorer = Scorer(sys.argv[1])
raw = json.load(open(sys.argv[2]))
print(json.dumps(scorer.score(raw)["logit"].tolist()))
loaded = {name for name in sys.modules if name.startswith(("ctr.training", "ctr.pipelines", "ctr.models", "tf_keras"))}
assert not loaded, loaded
"""


@pytest.mark.slow
def test_processes_without_the_project_and_without_the_trainer(case, exported, fresh_python, root, tmp_path):
    made, folder = case("numbers by tower"), exported("numbers by tower")
    loaded, signatures = tf.saved_model.load(str(folder)), read_metadata(folder)["signatures"]
    inputs = {}
    for name in ("predict", "quality", "ui"):
        given = tensors(loaded.signatures[name], signatures[name]["inputs"], made.raw)
        inputs[name] = {
            key: [one.decode() if isinstance(one, bytes) else one for one in value.numpy().tolist()]
            for key, value in given.items()
        }
    (tmp_path / "inputs.json").write_text(json.dumps(inputs))
    (tmp_path / "raw.json").write_text(json.dumps(made.raw))
    done = fresh_python("-I", "-c", PLAIN_CLIENT, folder, tmp_path / "inputs.json", cwd=tmp_path)
    outputs = json.loads(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(outputs["predict"]["logit"], made.logit, rtol=0, atol=1e-5)
    found = Scorer(folder).combine(np.array(outputs["quality"]["Q"]), np.array(outputs["ui"]["U"]))
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-made.logit)), rtol=1e-4)
    done = fresh_python("-c", SCORER_ALONE, folder, tmp_path / "raw.json", cwd=tmp_path, path=root)
    np.testing.assert_allclose(json.loads(done.stdout.splitlines()[-1]), made.logit, rtol=0, atol=1e-5)


@pytest.mark.soak
def test_nothing_but_what_predicts_is_in_it(case, exported):
    state, folder = case("plain", "bfloat16").state, exported("plain", "bfloat16")
    saved = saved_variables(folder)
    dense = {name: weight for name, weight in state.weights.items() if name != "rank_head"}
    assert len(dense) == len(state.dense) - 1
    weights = [*state.tables.weights, *dense.values()]
    assert sorted(one.shape for one in saved) == sorted(tuple(weight.shape) for weight in weights)
    assert {one.dtype.name for one in saved} == {"float32", "bfloat16"}
    assert {one.dtype for one in saved_variables(exported("plain"))} == {np.dtype(np.float32)}
    # No server has XLA for it, or Python.
    content = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    functions = content.meta_graphs[0].graph_def.library.function
    assert functions and not any(function.attr["_XlaMustCompile"].b for function in functions)


@pytest.mark.slow
def test_metadata(case, exported):
    metadata, snapshot = read_metadata(exported()), case().snapshot
    assert metadata["schema"] == json.loads(snapshot.schema.canonical_json())
    assert metadata["config"] == snapshot.config.model_dump(mode="json")
    assert metadata["position"] == {
        "examples": 123, "batches": 3, "trained_examples": 60, "last_query_time": 5000, "learned_until": None,
    }  # fmt: skip
    assert metadata["logs"] == [{"log": "", "intervals": 1, "sha256": "0" * 64}]
    assert metadata["model"]["alpha2"] == 0.5
    assert metadata["model"]["experts"] == ["network"]
    assert metadata["versions"]["tensorflow"] == tf.__version__
    user = metadata["signatures"]["predict"]["inputs"]["user_id"]
    assert user == {"column": "user:id", "dtype": "string", "shape": [-1]} and exported().name == "123"
    # Towers take the columns of their own features; a cross in one needs what it is made of.
    signatures = read_metadata(exported("factorized"))["signatures"]
    columns = {name: {i["column"] for i in signatures[name]["inputs"].values()} for name in ("quality", "ui")}
    assert columns["ui"] == {"position", "size", "user:id"}
    assert columns["quality"] == {"user:id", "class", "price", "tags", "title"}
    assert set(metadata["signatures"]) == {"predict", "predict_ids"}
    assert set(signatures) == {"predict", "predict_ids", "quality", "ui", "combine"}


def test_ids_that_grow_are_counted_and_only_their_rows_are_in_it(case, exported):
    made, folder = case("growing"), exported("growing")
    metadata, tables = read_metadata(folder), made.state.tables
    known = {value for value in made.raw["user:id"][:45] if value is not None}
    assert metadata["model"]["ids"]["user"] == len(known)
    assert metadata["model"]["ids"].keys() == set(GROWING.growing)
    inputs = metadata["signatures"]["predict_ids"]["inputs"]
    kinds = {name: "int32" if name.endswith("_lengths") else "int64" for name in inputs}
    assert {name: described["dtype"] for name, described in inputs.items()} == kinds
    saved = saved_variables(folder)
    slots = {number: len(id_map.occupants().rows) for number, id_map in tables.id_maps.items()}
    keys = [one for one in saved if one.dtype == np.int64]
    assert sorted(len(one) for one in keys) == sorted(count + 1 for count in slots.values())
    for number, count in slots.items():
        layout = made.state.layouts[number]
        assert (layout.rows + count, layout.columns) in [one.shape for one in saved]
        assert tables.weights[number].numpy().shape[0] > layout.rows + count


class KilledError(BaseException):
    pass


def kill() -> None:
    raise KilledError


class TestPublishing:
    """How versions come and go; what is in them is copied, as it takes seconds to make."""

    @pytest.fixture(autouse=True)
    def _copied_models(self, exported, monkeypatch):
        model = exported("logistic")

        def write(snapshot, folder, described):
            shutil.copytree(model, folder)
            return read_metadata(folder)

        monkeypatch.setattr(export, "write_model", write)

    def test_a_version_that_is_there_stays_and_no_other_model_takes_its_name(self, case, copied, tmp_path):
        target = copied("logistic")
        before = {path: path.stat().st_mtime_ns for path in target.rglob("*")}
        words = r"123: this version already exists and belongs to another model \(config"
        with pytest.raises(InputError, match=words):
            export.publish(case().snapshot, tmp_path)
        # Nor one of the same run that learned otherwise.
        snapshot = case("logistic").snapshot
        for weight in (snapshot.tables[0], *dense_weights(snapshot.weights).values()):
            values = weight.numpy()
            weight.assign(values + 1)
            try:
                with pytest.raises(InputError, match=r"123: .* belongs to another model \(weights differ\)"):
                    export.publish(snapshot, tmp_path)
            finally:
                weight.assign(values)
        again = export.publish(snapshot, tmp_path)
        assert (again.path, again.is_new) == (target, False)
        assert {path: path.stat().st_mtime_ns for path in target.rglob("*")} == before

    def test_nothing_appears_of_an_export_that_fails(self, case, tmp_path, monkeypatch):
        def fail(*_):
            raise OSError("no space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(export, "_sync_tree", fail)
            with pytest.raises(OSError, match="no space"):
                export.publish(case("logistic").snapshot, tmp_path)
        # All of it is there, but for the name: nobody reads it.
        assert {path.name for path in tmp_path.iterdir()} == {".lock", "123.partial"}
        with pytest.raises(InputError, match="neither an exported model"):
            find_model(tmp_path)
        # The next attempt deletes what is its own and nothing else.
        (tmp_path / "mine.partial" / "notes").mkdir(parents=True)
        (tmp_path / "7.partial").write_text("a file")
        (tmp_path / "100.partial" / "variables").mkdir(parents=True)
        assert export.publish(case("logistic").snapshot, tmp_path).is_new
        left = [".lock", "123", "7.partial", "mine.partial"]
        assert sorted(path.name for path in tmp_path.iterdir()) == left

    def test_all_is_durable_before_the_name_appears(self, case, tmp_path, monkeypatch):
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

    def test_the_newest_are_kept_and_what_would_be_deleted_at_once_is_not_made(self, case, copied, tmp_path):
        for version in ("5", "70", "1000"):
            copied("logistic", version)
        assert export.publish(case("logistic").snapshot, tmp_path, keep=2).is_new
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "1000", "123"]
        (tmp_path / "123").rename(tmp_path / "500")
        assert not export.publish(case("logistic").snapshot, tmp_path, keep=2).is_new
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "1000", "500"]

    @pytest.mark.parametrize("point", ["fsync.before", "rename.before", "rename.after", "unlink.before"])
    def test_killed_anywhere_all_versions_are_whole_and_the_next_attempt_ends_alike(
        self, case, copied, tmp_path, point
    ):
        copied("logistic", "old/5"), copied("logistic", "old/70")
        count, done = 0, False
        while not done:
            count += 1
            folder = shutil.copytree(tmp_path / "old", tmp_path / f"try-{count}")
            try:
                with watching(Counting(point, count, kill), training=False):
                    export.publish(case("logistic").snapshot, folder, keep=1)
                done = True
            except KilledError:
                for path in versions(folder):
                    check_files(path, read_metadata(path))
                assert versions(folder)
                export.publish(case("logistic").snapshot, folder, keep=1)
            # What a killed attempt did not delete goes with the next version at the latest.
            assert versions(folder)[-1].name == "123"
        assert [path.name for path in versions(folder)] == ["123"] and count > 3

    def test_one_publishes_at_a_time_and_a_run_waits_for_its_turn(self, case, tmp_path):
        """A trainer must not stop because somebody exports the same run by hand."""
        made = case("logistic").snapshot
        config = made.config.model_copy(update={"export": ExportConfig(every_examples=1, keep=1)})
        snapshot = replace(made, run_dir=tmp_path, config=config)
        (tmp_path / "exports").mkdir()
        lock = tmp_path / "exports" / ".lock"
        lock.touch()
        with ThreadPoolExecutor() as pool:
            with hold(lock):
                with pytest.raises(InputError, match="another process is exporting"):
                    export.publish(made, tmp_path / "exports")
                waiting = pool.submit(export.export_from_run, snapshot)
                with pytest.raises(TimeoutError):
                    waiting.result(timeout=0.3)
                assert versions(tmp_path / "exports") == []
            waiting.result(timeout=60)
        assert [path.name for path in versions(tmp_path / "exports")] == ["123"]

    @pytest.mark.parametrize(
        ("version", "key", "change"),
        [
            (5, "schema", lambda schema: schema.update(changed=1)),
            (1000, "logs", lambda logs: logs[0].update(sha256="1" * 64)),
            # Further on in the same run a log's hash is of more intervals.
            (1000, "", lambda metadata: metadata["logs"][0].update(intervals=2, sha256="1" * 64)),
        ],
    )
    def test_versions_of_two_runs_do_not_mix(self, case, copied, tmp_path, version, key, change):
        other = copied("logistic", str(version))
        path = other / "assets.extra" / "ctr.json"
        metadata = json.loads(path.read_text())
        change(metadata[key] if key else metadata)
        path.write_text(json.dumps(metadata))
        if not key:
            assert export.publish(case("logistic").snapshot, tmp_path).is_new
            return
        words = rf"{version}: this version belongs to another run \({key} differ\): a directory holds"
        with pytest.raises(InputError, match=words):
            export.publish(case("logistic").snapshot, tmp_path)
        assert versions(tmp_path) == [other]
