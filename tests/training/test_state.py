"""The variables of a run: their names, and what they can be restored from."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.training.run.checkpoint import Copies
from ctr.training.state import TrainState
from small_runs import make_config


@pytest.fixture
def make_state(schema):
    def make(changes=None, logistic=False):
        config = make_config(changes, logistic)
        return TrainState(config.table_layouts(schema), config, "float32")

    return make


def test_all_of_it_comes_back_and_what_is_of_another_model_does_not(make_state):
    state, rng = make_state(), np.random.default_rng(0)
    arrays = {
        name: rng.normal(size=value.shape).astype(value.dtype) for name, value in state.arrays().items()
    }
    state.restore(arrays)
    for name, value in state.arrays().items():
        np.testing.assert_array_equal(value, arrays[name])
    with pytest.raises(ValueError, match="the checkpoint holds"):
        state.restore(make_state(logistic=True).arrays())
    with pytest.raises(ValueError, match="shape"):
        state.restore(make_state({"model": {"deep": {"units": [7]}}}).arrays())


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
