"""Exported models whose ids grow against the trainer, for ids that have a row of their own and ids that have none."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctr.io.errors import InputError
from ctr.io.hashing import splitmix64
from ctr.models.rows import FeatureRows, TableLayout
from ctr.serving.export import publish
from ctr.serving.metadata import read_metadata
from ctr.serving.score import score_rows
from ctr.serving.scorer import Scorer
from ctr.serving.signatures import _growing_rows, _splitmix64
from ctr.training.run.snapshot import LAST_KEY
from growing_cases import SCHEMA, GrowingRun, contents, draw_rows, make_run, rows_of

INT64 = st.integers(-(2**63), 2**63 - 1)


def trained(folder: Path, model: str = "plain", compute_dtype: str = "float32") -> GrowingRun:
    run = make_run(folder, model, compute_dtype)
    run.learn(draw_rows(40, seed=0))
    run.move(seed=1)
    return run


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> tuple[GrowingRun, Path]:
    """A run and its export."""
    folder = tmp_path_factory.mktemp("growing")
    run = trained(folder / "run")
    return run, publish(run.snapshot(100), folder / "models").path


@pytest.mark.slow(first=1)
@pytest.mark.parametrize(
    ("model", "compute_dtype"),
    [
        ("factorized ensemble", "float32"),
        pytest.param("plain", "bfloat16", marks=pytest.mark.slow),
        pytest.param("logistic", "float32", marks=pytest.mark.slow),
    ],
)
def test_predictions_are_the_trainers(tmp_path, model, compute_dtype):
    run = trained(tmp_path / "run", model, compute_dtype)
    check_predictions(
        run, publish(run.snapshot(100), tmp_path).path, 1e-5 if compute_dtype == "float32" else 0.02
    )


def test_predictions_of_a_plain_model_are_the_trainers(plain):
    check_predictions(*plain, tolerance=1e-5)


def check_predictions(run: GrowingRun, model: Path, tolerance: float) -> None:
    raw, scorer = draw_rows(90, seed=2, unknown=True), Scorer(model)
    expected = run.score(raw)
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(scorer.score(raw)["logit"], expected, rtol=0, atol=tolerance)
    np.testing.assert_allclose(score_rows(scorer, rows_of(raw)), expected, rtol=0, atol=tolerance)
    if scorer.factorized:
        combined = scorer.combine(scorer.quality(raw), scorer.ui(raw))
        np.testing.assert_allclose(combined, 1 / (1 + np.exp(-expected)), rtol=0, atol=tolerance)


def test_values_that_nothing_was_learned_of_share_a_few_rows(plain):
    run, model = plain
    raw = {name: values[:1] * 50 for name, values in draw_rows(1, seed=2).items()}
    raw["user:id"] = [f"never seen {row}" for row in range(50)]
    found = Scorer(model).score(raw)["logit"]
    # Three rows for users, three for the crosses with them: few of the 50 predictions differ.
    assert 2 <= len(np.unique(found.round(5))) <= 9
    np.testing.assert_allclose(found, run.score(raw), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_model_that_has_learned_no_id_can_be_exported(tmp_path):
    run = make_run(tmp_path / "run", "logistic")
    run.move(seed=1)
    model = publish(run.snapshot(1), tmp_path).path
    assert set(read_metadata(model)["model"]["ids"].values()) == {0}
    check_predictions(run, model, 1e-5)


def test_the_metadata_counts_the_ids(plain):
    _, model = plain
    known = {value for value in draw_rows(40, seed=0)["user:id"] if value is not None}
    metadata = read_metadata(model)
    assert metadata["model"]["ids"]["user"] == len(known)
    assert metadata["model"]["ids"].keys() == set(SCHEMA.growing)
    inputs = metadata["signatures"]["predict_ids"]["inputs"]
    assert {name: described["dtype"] for name, described in inputs.items()} == {
        name: "int32" if name.endswith("_lengths") else "int64" for name in inputs
    }


def test_only_rows_of_ids_and_fixed_rows_are_in_it(plain):
    run, model = plain
    saved = tf.train.load_checkpoint(str(model / "variables" / "variables")).get_variable_to_shape_map()
    names = read_metadata(model)["variables"]
    rows = {
        name: saved[f"weights/{number}/.ATTRIBUTES/VARIABLE_VALUE"][0]
        for number, name in enumerate(names)
        if name.startswith(("rows/", "keys/"))
    }
    for number, layout in enumerate(run.state.layouts):
        if layout.growing:
            slots = len(run.state.tables.id_maps[number].occupants().rows)
            assert rows[f"rows/{layout.name}"] == layout.rows + slots
            assert rows[f"keys/{layout.name}"] == slots + 1
            assert run.state.tables.weights[number].numpy().shape[0] > layout.rows + slots


@pytest.mark.slow
def test_two_exports_have_the_same_bytes_and_later_ones_the_same_graph(plain, tmp_path):
    run, model = plain
    again = publish(run.snapshot(100), tmp_path).path
    assert contents(again) == contents(model)
    later = trained(tmp_path / "run")
    later.learn(draw_rows(30, seed=7, unknown=True))
    other = publish(later.snapshot(200), tmp_path / "other").path
    assert (other / "saved_model.pb").read_bytes() == (model / "saved_model.pb").read_bytes()
    assert read_metadata(other)["weights"] != read_metadata(model)["weights"]


def test_an_export_with_other_keys_is_refused(plain, tmp_path):
    shutil.copytree(plain[1], tmp_path / "100")
    path = tmp_path / "100" / "variables" / "variables.data-00000-of-00001"
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        Scorer(tmp_path)


FEATURES = (
    FeatureRows("bucketed", 7, 4, "quality", 0),
    FeatureRows("a", 4, 4, "quality", 1, growing=True),
    FeatureRows("b", 2, 4, "quality", 2, growing=True),
)
LAYOUT = TableLayout("quality", 4, FEATURES)


@settings(deadline=None, max_examples=40)
@given(st.sets(INT64, max_size=20), st.lists(INT64, min_size=1, max_size=20))
@example({0, -1, 2**63 - 1, -(2**63)}, [0, 1, -1, 2**63 - 1, -(2**63)])
@example(set(), [5])
def test_an_id_has_the_row_of_its_key_or_a_shared_one(known, asked):
    keys = np.array([*sorted(known - {int(LAST_KEY)}), int(LAST_KEY)], np.int64)
    growing = list(LAYOUT.growing)
    # Whatever is asked for, ids with these keys are in it.
    ids = np.array([*asked, *(keys ^ growing[0].salt), *(keys ^ growing[1].salt)], np.int64)
    found = _growing_rows(LAYOUT, tf.Variable(keys), growing, tf.constant(np.stack([ids, ids], 1))).numpy()
    places = {int(key): 13 + place for place, key in enumerate(keys[:-1])}
    for column, (feature, offset) in enumerate(zip(growing, (7, 11), strict=True)):
        for row, value in enumerate(ids):
            mixed = int(splitmix64(np.array([value]).view(np.uint64))[0])
            expected = places.get(int(value ^ feature.salt), offset + 1 + mixed % (feature.buckets - 1))
            assert found[row, column] == (offset if value == 0 else expected)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_the_graph_mixes_as_numpy_does(values):
    numbers = np.array(values, np.uint64)
    np.testing.assert_array_equal(_splitmix64(tf.constant(numbers)), splitmix64(numbers))
