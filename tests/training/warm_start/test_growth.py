"""A wider or deeper network that begins with a smaller one's weights computes what that one did."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from ctr.config import parse_model
from ctr.models.click_model import TowerInput, forward
from ctr.models.embeddings import tower_widths
from ctr.models.initial_weights import init_weights
from ctr.training.config import TrainConfig
from ctr.training.state import architecture, dense_weights
from ctr.training.warm_start.dense import deepen, dense_key, take_weights
from ctr.training.warm_start.weights import Entry, Side
from small_runs import SCHEMA

NARROW: dict[str, Any] = {
    "crosses": {"layers": 2, "rank": 2},
    "deep": {"units": [6, 5], "ranks": [2, 0], "activation": "smelu"},
    "network_loss": "joint",
}
FACTORIZED = {**NARROW, "factorized": {"width": 4, "ui_units": [5]}}
ENSEMBLE = {**NARROW, "ensemble": {"components": 2}}
KEPT = frozenset(feature.name for feature in SCHEMA.features)


def side_of(model: dict[str, Any], seed: int) -> tuple[Side, dict[str, np.ndarray]]:
    config = parse_model(TrainConfig, {"model": model, "seed": seed, "compute_dtype": "float32"}, "test")
    layouts = config.table_layouts(SCHEMA)
    rng, widths = np.random.default_rng(seed), tower_widths(layouts, config.model.factorized is not None)
    weights = {
        # Biases as training leaves them.
        name: np.array(rng.normal(size=weight.shape) if name.endswith("bias") else weight, np.float32)
        for name, weight in init_weights(architecture(config, "float32"), widths, seed).items()
    }
    shapes = {name: weight.shape for name, weight in weights.items()}
    return Side(config, SCHEMA, layouts, shapes), dense_weights(weights)


def logits(side: Side, arrays: dict[str, np.ndarray]) -> np.ndarray:
    rng = np.random.default_rng(7)
    widths = tower_widths(side.layouts, side.config.model.factorized is not None)
    weights = {name: arrays[dense_key(index)] for index, name in enumerate(side.shapes)}
    inputs = {
        tower: TowerInput(
            tf.constant(rng.normal(size=(1, 40, m)), tf.float32),
            tf.constant(rng.normal(size=(1, 40)), tf.float32),
        )
        for tower, m in sorted(widths.items())
    }
    return forward(architecture(side.config, "float32"), weights, inputs, tf.constant(0.7)).logits.numpy()


def grown(old: dict[str, Any], new: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, list[Entry]]:
    """The logits of the narrow and of the wide network, and what became of the weights."""
    (old_side, old_arrays), (side, arrays) = side_of(old, 1), side_of(new, 2)
    entries, _ = take_weights(arrays, old_arrays, side, old_side, KEPT)
    entries = deepen(arrays, old_arrays, side, old_side, KEPT, entries)
    return logits(old_side, old_arrays), logits(side, arrays), entries


WIDER = [
    (NARROW, {"deep": {"units": [9, 5], "ranks": [2, 0]}}),
    # The last layer, and a rank that grows with it.
    (NARROW, {"deep": {"units": [9, 8], "ranks": [4, 0]}}),
    (NARROW, {"crosses": {"layers": 2, "rank": 5}}),
    (FACTORIZED, {"deep": {"units": [9, 8], "ranks": [2, 0]}, "factorized": {"width": 4, "ui_units": [7]}}),
    (ENSEMBLE, {"deep": {"units": [9, 8], "ranks": [3, 0]}}),
]


@pytest.mark.parametrize(("old", "changes"), WIDER)
def test_a_wider_network_predicts_as_the_narrower_one(old, changes):
    new = {**old, **changes, "deep": {**old["deep"], **changes.get("deep", {})}}
    before, after, entries = grown(old, new)
    np.testing.assert_allclose(after, before, atol=1e-5)
    assert np.ptp(before) > 0.1
    assert {entry.status for entry in entries} == {"taken", "partly"}
    assert {entry.why for entry in entries if entry.status == "partly"} == {"what a narrower layer had"}


def test_a_narrower_layer_begins_fresh():
    new = {**NARROW, "deep": {**NARROW["deep"], "units": [4, 5]}}
    _, _, entries = grown(NARROW, new)
    found = {entry.name: entry.status for entry in entries}
    assert found["quality/deep_0/u"] == "taken"
    assert found["quality/deep_0/v"] == found["quality/deep_1/w"] == found["quality_head"] == "fresh"


DEEPER = [
    ("relu", NARROW, {"deep": {"units": [6, 5, 2], "ranks": [2, 0, 0]}}),
    ("smelu", NARROW, {"deep": {"units": [6, 5, 4, 3], "ranks": [2, 0, 2, 1]}}),
    # Wider and deeper at once.
    ("gelu", NARROW, {"deep": {"units": [8, 7, 9], "ranks": [3, 0, 0]}, "crosses": {"layers": 3, "rank": 2}}),
    ("swish", {**NARROW, "deep": {"units": []}}, {"deep": {"units": [4, 3]}}),
    ("smelu", {**NARROW, "crosses": {"layers": 0}}, {"crosses": {"layers": 2, "rank": 0}}),
    (
        "smelu",
        FACTORIZED,
        {
            "deep": {"units": [6, 5, 8], "ranks": [2, 0, 0]},
            "factorized": {"width": 4, "ui_units": [5, 8]},
        },
    ),
    ("softplus", ENSEMBLE, {"deep": {"units": [6, 5, 3], "ranks": [2, 0, 0]}}),
]


@pytest.mark.parametrize(("activation", "old", "changes"), DEEPER)
def test_a_deeper_network_predicts_as_the_shallower_one(activation, old, changes):
    old = {**old, "deep": {**old["deep"], "activation": activation, "smelu_beta": 0.5}}
    new = {**old, **changes, "deep": {**old["deep"], **changes.get("deep", {})}}
    before, after, _ = grown(old, new)
    np.testing.assert_allclose(after, before, atol=2e-5)
    assert np.ptp(before) > 0.1


def test_what_cannot_be_carried_begins_fresh_and_says_so():
    deep = {**NARROW["deep"], "units": [6, 5, 40], "ranks": [2, 0, 0]}
    wider = {"deep": deep, "factorized": {"width": 6, "ui_units": [5, 40]}}
    tanh = {**NARROW, "deep": {**NARROW["deep"], "activation": "tanh"}}
    for old, changes, why in (
        (NARROW, {"deep": {**deep, "units": [6, 5, 1]}}, "an added layer needs 2 units"),
        (tanh, {"deep": {**deep, "units": [6, 5, 4], "activation": "tanh"}}, "the activation tanh"),
        # A head of another width, behind added layers too.
        (FACTORIZED, wider, "[5, 4], is [5, 6]"),
        (NARROW, wider, "[5, 1], is [5, 6]"),
    ):
        _, _, entries = grown(old, {**old, **changes})
        found = {entry.name: entry for entry in entries}
        assert found["quality_head"].status == "fresh" and why in found["quality_head"].why
        assert found["quality/deep_2/w"].status == "fresh"


def test_new_units_and_layers_can_learn():
    """Their own weights are those of a fresh network; only what reads them begins at 0."""
    new = {**NARROW, "deep": {**NARROW["deep"], "units": [9, 5, 4], "ranks": [2, 0, 0]}}
    (_, fresh), (side, arrays), (old_side, old_arrays) = side_of(new, 2), side_of(new, 2), side_of(NARROW, 1)
    entries, moves = take_weights(arrays, old_arrays, side, old_side, KEPT)
    entries = deepen(arrays, old_arrays, side, old_side, KEPT, entries)
    numbers = {name: index for index, name in enumerate(side.shapes)}
    own, reading, added, head = (
        dense_key(numbers[name])
        for name in ("quality/deep_0/v", "quality/deep_1/w", "quality/deep_2/w", "quality_head")
    )
    np.testing.assert_array_equal(arrays[own][:, 6:], fresh[own][:, 6:])
    np.testing.assert_array_equal(arrays[own][:, :6], old_arrays[own])
    np.testing.assert_array_equal(arrays[reading], np.concatenate([old_arrays[reading], np.zeros((3, 5))]))
    np.testing.assert_array_equal(arrays[added][:, 2:], fresh[added][:, 2:])
    np.testing.assert_array_equal(arrays[head][:, 0], [1, -1, 0, 0])
    # The optimizer knows nothing of weights that have another meaning now.
    assert not {numbers["quality/deep_2/w"], numbers["quality_head"]} & moves.keys()
    found = {entry.name: entry for entry in entries}
    assert (found["quality_head"].status, found["quality_head"].optimizer) == ("partly", "fresh")
