"""The variables of a run: their names, and what they can be restored from."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.data.schema import Category, Schema
from ctr.io.errors import InputError
from ctr.training.run.checkpoint import Copies
from ctr.training.state import TrainState


@pytest.fixture
def make_state(schema, make_config):
    def make(changes=None, logistic=False):
        config = make_config(changes, logistic)
        return TrainState(config.table_layouts(schema), config, "float32")

    return make


def test_every_variable_has_a_name_and_an_accumulator(make_state):
    state = make_state()
    shapes = {name: tuple(variable.shape) for name, variable in state.variables().items()}
    assert shapes["rows/quality-4"] == (30 + 50 + 40, 5)
    assert shapes["rows/ui-2"] == (8, 3)
    # Two crosses of two factors and a bias, a deep layer, the head, the output bias.
    assert len([name for name in shapes if name.startswith("dense/")]) == 2 * 3 + 2 + 1 + 1
    for name in [name for name in shapes if name.startswith("rows/")]:
        assert shapes[name.replace("rows/", "rows_accumulator/")] == shapes[name]
    for index in range(9):
        assert shapes[f"shampoo/tensor{index}/accumulator"] == shapes[f"dense/{index:03d}"]
    width = 3 * 4 + 2
    dense = 2 * (width * 3 + 3 * width + width) + (width * 8 + 8) + 8 + 1
    assert state.parameter_counts() == {"parameters_dense": dense, "parameters_embedding": 120 * 5 + 8 * 3}


def test_accumulators_start_as_configured(make_state):
    optimizer = {
        "embeddings": {"initial_accumulator": 0.5, "linear_initial_accumulator": 0.25},
        "dense": {"shampoo": {"grafting": {"initial_accumulator": 0.125}}},
    }
    for name, value in make_state({"optimizer": optimizer}).arrays().items():
        if name.startswith("rows_accumulator/"):
            assert (value[:, :-1] == 0.5).all()
            assert (value[:, -1] == 0.25).all()
        elif name.startswith("shampoo/") and name.endswith("/accumulator"):
            assert (value == 0.125).all()


def test_all_of_it_comes_back(make_state):
    first, second = make_state(), make_state()
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.normal(size=value.shape).astype(value.dtype) for name, value in first.arrays().items()
    }
    second.restore(arrays)
    for name, value in second.arrays().items():
        np.testing.assert_array_equal(value, arrays[name])


@pytest.mark.parametrize("rows", [1, 7, 10**6])
def test_copies_of_pieces_are_the_arrays_always_in_the_same_memory(make_state, monkeypatch, rows):
    monkeypatch.setattr("ctr.training.state._PIECE", rows)
    state, copies, places = make_state(), Copies(), []
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


def test_arrays_of_another_model_are_refused(make_state):
    state = make_state()
    with pytest.raises(ValueError, match="the checkpoint holds"):
        state.restore(make_state(logistic=True).arrays())
    with pytest.raises(ValueError, match="shape"):
        state.restore(make_state({"model": {"deep": {"units": [7]}}}).arrays())


def test_features_can_be_given_other_widths(schema, make_config):
    layouts = make_config({"model": {"widths": {"user": 9, "tags": 0}}}).table_layouts(schema)
    assert {layout.name: [f.name for f in layout.features] for layout in layouts} == {
        "quality-0": ["tags"],
        "quality-4": ["item"],
        "quality-9": ["user"],
        "ui-2": ["position"],
    }
    # A logistic regression has no use for embeddings.
    assert [layout.width for layout in make_config(logistic=True).table_layouts(schema)] == [0, 0]


def test_features_that_fit_no_table_are_refused(make_config):
    features = tuple(Category(name=name, source=name, buckets=2**30, width=4) for name in "ab")
    with pytest.raises(InputError, match=r"table quality-4: 2147483648 rows are too many.*model\.widths"):
        make_config().table_layouts(Schema(features=features))
