"""tau in NumPy against the function that training uses."""

import numpy as np
import pytest
import tensorflow as tf

import ctr.models  # noqa: F401
from ctr.models.architecture import Factors
from ctr.models.transfer import transfer, transfer_pieces
from ctr.serving.row_model import make_transfer, probabilities, transfers_of

PRODUCTS = np.concatenate([np.linspace(-30, 30, 601), [-1e4, 1e4, -2.0, 2.0, 0.0]]).astype(np.float32)


@pytest.mark.parametrize(
    ("pieces", "reach"), [(0, 0.0), (2, 1.0), (16, 6.0)], ids=["sigmoid", "two pieces", "sixteen pieces"]
)
def test_it_is_the_function_of_training(pieces, reach):
    rng, factors = np.random.default_rng(0), Factors(4, (), pieces, reach)
    shapes = {"transfer_scale": (), "transfer_slopes": pieces, "transfer_bias": ()}
    weights = {name: np.asarray(rng.normal(size=shape), np.float32) for name, shape in shapes.items()}
    expected = transfer(factors, weights, tf.constant(PRODUCTS)).numpy()
    joints, slopes, bias = transfer_pieces(factors, weights)
    found = make_transfer(joints.tolist(), slopes.tolist(), bias)(PRODUCTS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.ptp(np.diff(expected[:601])) > 0.01 or len(slopes) == 1


def test_one_joint_by_hand():
    transfer = make_transfer([2.0], [1.0, 3.0], -1.0)
    np.testing.assert_allclose(transfer(np.array([[-5.0, 0.0], [2.0, 4.0]])), [[-6.0, -1.0], [1.0, 7.0]])


def test_the_number_of_slopes_is_checked():
    with pytest.raises(ValueError, match="1 joints require 2 slopes, got 1"):
        make_transfer([0.0], [1.0], 0.0)
    with pytest.raises(KeyError):
        transfers_of({"transfer": [{"joints": []}]})


def test_components_are_averaged_as_probabilities():
    transfers = [make_transfer([], [1.0], 0.0), make_transfer([], [2.0], 1.0)]
    products = np.array([[0.0, 100.0, -200.0], [-0.5, -100.0, 0.0]], np.float32)
    expected = [0.5, 0.5, 1 / (1 + np.exp(-1)) / 2]
    np.testing.assert_allclose(probabilities(products, transfers), expected, rtol=1e-6)
