"""Initial weights: their distributions, and that they are the same as ever for a seed."""

import numpy as np
import pytest

from ctr.models.architecture import Architecture, Factors
from ctr.models.initial_weights import (
    glorot_uniform,
    he_normal,
    init_weights,
    lecun_normal,
    small_normal,
    weight_shapes,
)

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


def test_weights_have_the_order_of_checkpoints():
    plain = Architecture(1, 2, (4, 3), (2, 0), sources={"quality": ((), (0,), (1, 0))})
    layers = ["cross_0/u", "cross_0/v", "cross_0/v_bias", "deep_0/u", "deep_0/v", "deep_0/v_bias", "deep_1/w"]
    names = [*(f"quality/{name}" for name in (*layers, "deep_1/w_bias")), "quality_head"]
    names += ["quality/deep_1_from_0", "quality/head_from_1", "quality/head_from_0", "output_bias"]
    assert list(weight_shapes(plain, {"quality": 6})) == names
    for pieces, name in ((0, "transfer_scale"), (3, "transfer_slopes")):
        shape = Architecture(0, 0, (5,), rank_head=True, factors=Factors(2, (), pieces, 1.0))
        layers = ["quality/deep_0/w", "quality/deep_0/w_bias"]
        heads = ["ui_head", "ui_head_bias", "quality_head", "rank_head"]
        assert list(weight_shapes(shape, {"quality": 6, "ui": 4})) == [*layers, *heads, name, "transfer_bias"]


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
    weights, other = (init_weights(architecture, widths, seed) for seed in (17, 18))
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    assert shapes == weight_shapes(architecture, widths)
    for name, start in STARTS.items():
        np.testing.assert_allclose(weights[name].numpy().ravel()[:2], start, rtol=1e-5)
        assert (weights[name].numpy() != other[name].numpy()).mean() > 0.99
