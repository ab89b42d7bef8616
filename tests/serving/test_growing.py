"""Exported models whose ids grow against the trainer, for ids that have a row of their own and ids that have none."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from ctr.io.errors import InputError
from ctr.serving.export import publish
from ctr.serving.metadata import read_metadata
from ctr.serving.score import score_rows
from ctr.serving.scorer import Scorer
from model_cases import GROWING, GrowingRun, contents, draw_raw, log_rows, make_growing_run


def check_predictions(run: GrowingRun, model, raw) -> None:
    """The trainer's are those of the graph, by values and by ids, and those of NumPy, for a few rows."""
    scorer, expected = Scorer(model), run.score(raw)
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(scorer.score(raw)["logit"], expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(score_rows(scorer, log_rows(raw, GROWING)), expected, rtol=0, atol=1e-5)
    few = Scorer(model, lazy=True)
    for row, title in enumerate(raw["title"][:16]):
        if (title or "").isascii():
            found = few.score({name: [values[row]] for name, values in raw.items()})
            np.testing.assert_allclose(found["logit"], expected[row : row + 1], rtol=0, atol=1e-5)
    assert few._loaded is None
    if scorer.factorized:
        combined = scorer.combine(scorer.quality(raw), scorer.ui(raw))
        np.testing.assert_allclose(combined, 1 / (1 + np.exp(-expected)), rtol=0, atol=1e-5)


def test_predictions_are_the_trainers(growing):
    check_predictions(*growing, draw_raw(90, seed=2, unknown=True))


@pytest.mark.slow
def test_a_model_that_has_learned_no_id_can_be_exported(tmp_path):
    run = make_growing_run(tmp_path / "run", "logistic")
    run.move(seed=1)
    model = publish(run.snapshot(1), tmp_path).path
    assert set(read_metadata(model)["model"]["ids"].values()) == {0}
    check_predictions(run, model, draw_raw(90, seed=2, unknown=True))


def test_values_that_nothing_was_learned_of_share_a_few_rows(growing):
    raw = {name: values[:1] * 50 for name, values in draw_raw(1, seed=2).items()}
    raw["user:id"] = [f"never seen {row}" for row in range(50)]
    found = Scorer(growing[1]).score(raw)["logit"]
    # Three rows for users, three for the crosses with them: few of the 50 predictions differ.
    assert 2 <= len(np.unique(found.round(5))) <= 9


def test_the_metadata_counts_the_ids_and_only_their_rows_are_in_it(growing):
    run, model = growing
    metadata = read_metadata(model)
    known = {value for value in draw_raw(40)["user:id"] if value is not None}
    assert metadata["model"]["ids"]["user"] == len(known)
    assert metadata["model"]["ids"].keys() == set(GROWING.growing)
    inputs = metadata["signatures"]["predict_ids"]["inputs"]
    assert {name: described["dtype"] for name, described in inputs.items()} == {
        name: "int32" if name.endswith("_lengths") else "int64" for name in inputs
    }
    saved = tf.train.load_checkpoint(str(model / "variables" / "variables")).get_variable_to_shape_map()
    rows = {
        name: saved[f"weights/{number}/.ATTRIBUTES/VARIABLE_VALUE"][0]
        for number, name in enumerate(metadata["variables"])
        if name.startswith(("rows/", "keys/"))
    }
    for number, layout in enumerate(run.state.layouts):
        if layout.growing:
            slots = len(run.state.tables.id_maps[number].occupants().rows)
            assert rows[f"rows/{layout.name}"] == layout.rows + slots
            assert rows[f"keys/{layout.name}"] == slots + 1
            assert run.state.tables.weights[number].numpy().shape[0] > layout.rows + slots


@pytest.mark.slow
def test_two_exports_have_the_same_bytes_and_later_ones_the_same_graph(growing, tmp_path):
    run, model = growing
    assert contents(publish(run.snapshot(100), tmp_path).path) == contents(model)
    later = make_growing_run(tmp_path / "run", "factorized ensemble", learned=40)
    later.learn(draw_raw(30, seed=7, unknown=True))
    other = publish(later.snapshot(200), tmp_path / "other").path
    assert (other / "saved_model.pb").read_bytes() == (model / "saved_model.pb").read_bytes()
    assert read_metadata(other)["weights"] != read_metadata(model)["weights"]


def test_an_export_with_other_keys_is_refused(growing, tmp_path):
    shutil.copytree(growing[1], tmp_path / "100")
    path = tmp_path / "100" / "variables" / "variables.data-00000-of-00001"
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        Scorer(tmp_path)
