"""The model of scale against sums by hand, published figures and draws; and the fit of the costs that it takes."""

import numpy as np
import pytest
import reference
import scale_model as scale

pytestmark = pytest.mark.soak


@pytest.mark.parametrize(
    ("collectives", "workers", "reduced", "gathered", "exchanged"),
    [
        # alpha 1000 s, beta 1 s a byte, 840 bytes.
        ("ring", 1, 0, 0, 0),
        ("ring", 2, 2 * 1000 + 840, 1000 + 420, 1000 + 420),
        ("ring", 4, 6 * 1000 + 1260, 3 * 1000 + 630, 3 * 1000 + 630),
        ("tree", 1, 0, 0, 0),
        ("tree", 2, 2 * 1000 + 840, 1000 + 420, 1000 + 420),
        ("tree", 4, 4 * 1000 + 1260, 2 * 1000 + 630, 2 * 1000 + 840),
        ("tree", 8, 6 * 1000 + 1470, 3 * 1000 + 735, 3 * 1000 + 1260),
    ],
)
def test_collectives_by_hand(collectives, workers, reduced, gathered, exchanged):
    network = scale.Network("by hand", 1000, 1, collectives)
    assert scale.all_reduce(network, workers, 840) == reduced
    assert scale.all_gather(network, workers, 840) == gathered
    assert scale.all_to_all(network, workers, 840) == exchanged
    # A long exchange goes in pairs where that is less.
    assert scale.all_to_all(scale.Network("fast to start", 0, 1, "tree"), 8, 800) == 700


@pytest.mark.parametrize("collectives", ["ring", "tree"])
def test_operator_parallelism_of_the_thesis(collectives):
    """THESIS table 6.2, OP: 1024 layers, each gathering and reducing 1024 x 1024 of two ranks on Piz Daint: 221 ms."""
    piz_daint = scale.Network("Piz Daint", 2e-6, 1 / 7.5e9, collectives)
    size = 1024 * 1024
    seconds = 1024 * (scale.all_gather(piz_daint, 2, size) + scale.all_reduce(piz_daint, 2, size))
    assert round(1e3 * seconds) == 221


def test_distinct_rows_are_those_of_draws():
    size = reference.Size(features=3, buckets=50)
    random = np.random.default_rng(0)
    draws = [reference.zipf_ids(random, 40, size) for _ in range(400)]
    mean = np.mean([sum(len(np.unique(column)) for column in ids.T) for ids in draws])
    assert scale.distinct(40, size) == pytest.approx(mean, rel=0.01)
    assert scale.distinct(1, size) == pytest.approx(3)
    assert scale.distinct(1e9, size) == pytest.approx(150)
