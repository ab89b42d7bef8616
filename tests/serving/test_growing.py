"""Exported models whose ids grow against the trainer, for ids that have a row of their own and ids that have none."""

import numpy as np
import pytest

from ctr.serving.metadata import read_metadata
from ctr.serving.score import score_rows
from ctr.serving.scorer import Scorer
from model_cases import GROWING, draw_raw, log_rows, saved_variables


@pytest.mark.slow
def test_predictions_are_the_trainers(growing):
    run, model = growing
    raw = draw_raw(90, seed=2, unknown=True)
    scorer, expected = Scorer(model), run.score(raw)
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(scorer.score(raw)["logit"], expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(score_rows(scorer, log_rows(raw, GROWING)), expected, rtol=0, atol=1e-5)
    combined = scorer.combine(scorer.quality(raw), scorer.ui(raw))
    np.testing.assert_allclose(combined, 1 / (1 + np.exp(-expected)), rtol=0, atol=1e-5)


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
    saved = saved_variables(model)
    keys = [one for one in saved if one.dtype == np.int64]
    slots = {number: len(id_map.occupants().rows) for number, id_map in run.state.tables.id_maps.items()}
    assert sorted(len(one) for one in keys) == sorted(count + 1 for count in slots.values())
    shapes = [one.shape for one in saved]
    for number, count in slots.items():
        layout = run.state.layouts[number]
        assert (layout.rows + count, layout.columns) in shapes
        assert run.state.tables.weights[number].numpy().shape[0] > layout.rows + count
