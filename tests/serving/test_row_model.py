"""A few rows without TensorFlow: functions in NumPy are training's, and what they cannot do is left to the graph.

That the predictions are the graph's, for every kind of model, is in ``test_export`` and ``test_growing``.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

import ctr.models  # noqa: F401
from ctr.data.reader import rows_of_table
from ctr.io.tensor_bundle import read_bundle
from ctr.models.activations import make_activation
from ctr.serving import scorer
from ctr.serving.metadata import read_metadata
from ctr.serving.row_model import _make_activation, make_transfer, probabilities, transfers_of
from ctr.serving.saved_model import write_metadata
from ctr.serving.scorer import Scorer
from ctr.serving.weights import stored_weights, write_weights
from model_cases import SCHEMA, draw_raw, packed_ids


def ascii_rows(count):
    """Raw rows whose texts are cut into words without TensorFlow."""
    raw = draw_raw(count, 7)
    raw["title"] = [text and text.encode("ascii", "ignore").decode() for text in raw["title"]]
    return raw


@pytest.fixture
def packed(case):
    """The ids of the first rows of the factorized model's case."""
    rows = rows_of_table(case("factorized").table, SCHEMA, 0)
    return lambda count: packed_ids(rows.slice(0, count))


def test_activations_are_the_models():
    values = np.concatenate([np.linspace(-30, 30, 4001), [0, -0.5, 0.5, -100, 100]]).astype(np.float32)
    for name in ("smelu", "relu", "gelu", "swish", "mish", "softplus", "tanh", "elu"):
        own = _make_activation(name, 0.5)
        with np.errstate(all="raise", under="ignore"):
            made = own(values)
        expected = make_activation(name, 0.5)(tf.constant(values)).numpy()
        assert made.dtype == np.float32
        np.testing.assert_allclose(made, expected, rtol=2e-6, atol=1e-6, err_msg=name)
        assert np.isnan(own(np.array([np.nan], np.float32))).all()


def test_one_joint_by_hand_and_the_number_of_slopes():
    one = make_transfer([2.0], [1.0, 3.0], -1.0)
    np.testing.assert_allclose(one(np.array([[-5.0, 0.0], [2.0, 4.0]])), [[-6.0, -1.0], [1.0, 7.0]])
    with pytest.raises(ValueError, match="1 joints require 2 slopes, got 1"):
        make_transfer([0.0], [1.0], 0.0)
    with pytest.raises(KeyError):
        transfers_of({"transfer": [{"joints": []}]})


def test_components_are_averaged_as_probabilities():
    transfers = [make_transfer([], [1.0], 0.0), make_transfer([], [2.0], 1.0)]
    products = np.array([[0.0, 100.0, -200.0], [-0.5, -100.0, 0.0]], np.float32)
    expected = [0.5, 0.5, 1 / (1 + np.exp(-1)) / 2]
    np.testing.assert_allclose(probabilities(products, transfers), expected, rtol=1e-6)


def test_the_weights_are_the_saved_models_own(exported, tmp_path):
    """Other weights in the files are other predictions: there is no second copy. TensorFlow reads the same ones."""
    full, raw = exported("logistic"), ascii_rows(5)
    theirs, own = (
        read(full / "variables/variables")
        for read in (lambda one: tf.train.load_checkpoint(str(one)), read_bundle)
    )
    assert set(own) == set(theirs.get_variable_to_shape_map()) - {"_CHECKPOINTABLE_OBJECT_GRAPH"}
    for name, values in own.items():
        assert values.dtype == theirs.get_tensor(name).dtype
        np.testing.assert_array_equal(values, theirs.get_tensor(name))
    folder = shutil.copytree(full, tmp_path / "model", ignore=shutil.ignore_patterns("variables.*"))
    metadata = read_metadata(full)
    names = metadata["network"]["variables"]
    weights = dict(stored_weights(full, names))
    write_weights(folder, full, names, {**weights, "output_bias": weights["output_bias"] + np.float32(1)})
    write_metadata(folder, {key: value for key, value in metadata.items() if key != "files"})
    before = Scorer(full, lazy=True).score(raw)["logit"]
    for lazy in (True, False):
        np.testing.assert_allclose(
            Scorer(folder, lazy=lazy).score(raw)["logit"], before + 1, rtol=0, atol=1e-5
        )


def test_what_only_tensorflow_does_alike_is_left_to_it_and_loads_it_once(exported):
    loads = []
    few = Scorer(exported("factorized"), lazy=True, on_load=lambda: loads.append(0))
    raw = {**ascii_rows(3), "title": ["Grün", "", "x"]}
    expected = Scorer(exported("factorized")).predict(raw)
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(few.predict, [raw] * 4):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert len(loads) == 1


def test_many_small_calls_are_left_to_tensorflow_as_a_large_one_is(case, exported, packed, monkeypatch):
    monkeypatch.setattr(scorer, "_SOME_ROWS", 50)
    few = Scorer(exported("factorized"), lazy=True)
    with pytest.raises(ValueError, match="an id is none of its feature's"):
        few.score_ids({**packed(8), "ids": packed(8)["ids"] + 1000})
    for _ in range(9):
        few.score_ids(packed(8))
    few.score_ids(packed(20))
    few.score_ids(packed(20))
    assert few._loaded is None
    expected = case("factorized").logit[:20]
    np.testing.assert_allclose(few.score_ids(packed(20))["logit"], expected, rtol=0, atol=1e-5)
    assert few._loaded is not None
