"""The variables of a run: their names, what they can be restored from, and what says that weights are broken."""

from typing import get_args

import numpy as np
import pytest
import tensorflow as tf

from ctr.models.rows import FeatureRows, lay_out_tables
from ctr.training.config import EmbeddingOptimizerConfig
from ctr.training.optimizers import table_optimizer
from ctr.training.run.checkpoint import Copies
from ctr.training.state import TrainState, first_broken, predicts_soundly
from small_runs import make_config


@pytest.fixture
def make_state(schema):
    def make(changes=None, logistic=False):
        config = make_config(changes, logistic)
        return TrainState(config.table_layouts(schema), config, "float32")

    return make


def test_copies_of_pieces_are_the_arrays_always_in_the_same_memory(make_state, monkeypatch):
    state = make_state()
    for rows in (1, 7, 10**6):
        monkeypatch.setattr("ctr.training.state._PIECE", rows)
        copies, places = Copies(), []
        copies.make_room(state.layout())
        for value in (0.0, 1.5):
            more = {"more": np.full(3, value), "one": np.array(value)}
            expected = {**state.arrays(), **more}
            copied = copies.copy(state.layout(), state.pieces(), more)
            assert set(copied) == set(expected)
            for name, array in copied.items():
                np.testing.assert_array_equal(array, expected[name], strict=True)
            places.append({name: array.ctypes.data for name, array in copied.items()})
            state.tables.weights[0].assign_add(tf.ones_like(state.tables.weights[0]))
        assert places[0] == places[1]
        assert copies.copy({}, (), {"more": np.ones(4)})["more"].tolist() == [1] * 4


def test_what_tells_that_weights_are_broken():
    assert predicts_soundly(np.zeros(0, np.float32))
    assert predicts_soundly(np.array([-50, 1e6], np.float32))
    for value in (np.nan, np.inf, -np.inf, 3e38, -2e6):
        assert not predicts_soundly(np.array([0, value], np.float32))
    arrays = {"dense/000": np.ones(2), "shampoo/step": np.array(3), "rows/a": np.ones((2, 2), np.float32)}
    # A certificate's own numbers may be infinite, and statistics have certificates.
    arrays |= {"shampoo/status": np.array([np.inf]), "shampoo/stack0/axis0/total": np.array([np.nan])}
    assert first_broken(arrays.items()) is None
    for name in ("rows_accumulator/a", "shampoo/tensor0/accumulator", "shampoo/tensor1/momentum", "duals/f"):
        for value in (np.nan, np.inf):
            broken = {**arrays, name: np.array([0, value], np.float32)}
            assert first_broken(broken.items()) == f"{name} is not finite"
    # Sums of squares may be large.
    for name, value, found in (
        ("rows_accumulator/a", 1e30, None),
        ("rows/a", -1e7, "rows/a has weights beyond 1e+06"),
        ("dense/000", 1e30, "dense/000 has weights beyond 1e+06"),
        ("rows/a", -1e6, None),
    ):
        assert first_broken({**arrays, name: np.array([0, value], np.float32)}.items()) == found
    assert first_broken([("rows/a", np.zeros((0, 3), np.float32))]) is None


def test_the_state_of_every_rule_for_embeddings_is_checked():
    layouts = lay_out_tables([FeatureRows("a", 5, 3, "quality", 0)])
    rules = get_args(EmbeddingOptimizerConfig.model_fields["rule"].annotation)
    # Newton's linear weights go with AdaGrad's rows alone.
    for rule, linear_rule in [("adagrad", "newton"), *((rule, "adagrad") for rule in rules)]:
        optimizer = table_optimizer(EmbeddingOptimizerConfig(rule=rule, linear_rule=linear_rule), layouts)
        for name in {*optimizer.row_state, *optimizer.feature_state}:
            broken = np.array([1.0, np.nan])
            assert first_broken([(f"{name}/{layouts[0].name}", broken)]) is not None, (rule, name)
