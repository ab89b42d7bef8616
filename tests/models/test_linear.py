"""Initial weights: their distributions, and that they are the same as ever for a seed."""

import random

import numpy as np
import pytest

from ctr.models.click_model import Architecture, ClickModel, Factors
from ctr.models.linear import Linear, glorot_uniform, he_normal, lecun_normal, small_normal

SHAPE = [400, 300]


@pytest.mark.parametrize(
    ("initializer", "variance", "largest"),
    [
        (small_normal, (0.87962566 * 0.05) ** 2, 0.1),
        (lecun_normal, 1 / 400, 2 * 400**-0.5 / 0.87962566),
        (he_normal, 2 / 400, 2 * (2 / 400) ** 0.5 / 0.87962566),
        (glorot_uniform, 2 / 700, (6 / 700) ** 0.5),
    ],
)
def test_initial_values_have_their_distribution(initializer, variance, largest):
    values = initializer(SHAPE, 7).numpy()
    assert (values.dtype, values.shape) == (np.float32, (400, 300))
    assert abs(values.mean()) < 5 * (variance / values.size) ** 0.5
    assert values.var() == pytest.approx(variance, rel=0.02)
    assert 0.99 * largest < np.abs(values).max() <= largest * (1 + 1e-6)
    np.testing.assert_array_equal(values, initializer(SHAPE, 7))
    assert (values != initializer(SHAPE, 8).numpy()).mean() > 0.99


@pytest.mark.parametrize(
    ("sizes", "names"), [([3, 4], ["w", "w_bias"]), ([3, 2, 4], ["u", "v", "v_bias"])], ids=["full", "pair"]
)
def test_a_layer_names_its_weights(sizes, names):
    initializers = [he_normal] * (len(sizes) - 1)
    layer = Linear(sizes, initializers, random.Random(0), bias=0.5)
    assert [name for name, _ in layer.weights()] == names
    assert layer.bias is not None and layer.bias.numpy().tolist() == [0.5] * 4
    alone = Linear(sizes, initializers, random.Random(0), bias=None)
    assert [name for name, _ in alone.weights()] == names[:-1]
    np.testing.assert_array_equal(alone.matrices[0], layer.matrices[0])


# The beginnings of some matrices of two components under seed 17, as Keras' layers drew them in the first version.
STARTS = {
    "component_1/quality/cross_0/u": [0.02547068, -0.05753491],
    "component_1/quality/cross_1/v": [-0.02014153, -0.06986878],
    "component_1/quality/deep_0/u": [-0.09020763, 0.01843864],
    "component_1/quality/deep_0/v": [-0.7412755, -0.3684945],
    "component_1/quality/deep_1/w": [0.1831018, 0.2151218],
    "component_1/quality_head": [-0.09681392, -0.2078446],
    "component_1/rank_head": [-0.05385557, -0.1504523],
    "component_1/ui/deep_0/w": [-0.1200325, 0.06276111],
    "component_1/ui_head": [0.3305796, -0.4583995],
}


def test_a_seed_gives_the_weights_that_it_has_always_given():
    factors = Factors(width=4, ui_units=(16,), pieces=0, reach=6.0)
    architecture = Architecture(2, 8, (64, 32), (16, 0), rank_head=True, components=2, factors=factors)
    widths = {"quality": 26, "ui": 12}
    weights, other = (ClickModel(architecture, widths, seed=seed).weights() for seed in (17, 18))
    for name, start in STARTS.items():
        np.testing.assert_allclose(weights[name].numpy().ravel()[:2], start, rtol=1e-5)
        assert (weights[name].numpy() != other[name].numpy()).mean() > 0.99
