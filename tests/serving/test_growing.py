"""Exported models whose ids grow against the trainer, for ids that have a row of their own and ids that have none."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.serving.export import publish
from ctr.serving.metadata import read_metadata
from ctr.serving.score import score_rows
from ctr.serving.scorer import Scorer
from model_cases import GROWING, GrowingRun, draw_raw, log_rows, make_growing_run


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
