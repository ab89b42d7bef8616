"""The model of scale against sums by hand, published figures and draws; and the fit of the costs that it takes."""

from dataclasses import replace

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


def test_a_step_by_hand(monkeypatch):
    """Two workers, one ring: weights of 4 + 2 numbers, 100 rows of 17 numbers."""
    monkeypatch.setattr(scale, "dense_shapes", lambda: [(2, 2), (2,)])
    monkeypatch.setattr(scale, "distinct", lambda batch: 100.0)
    monkeypatch.setattr(scale, "shampoo_shares", lambda workers: (6.0 / workers, 40 * workers))
    network = scale.Network("by hand", 1000, 1, "ring")
    compute = scale.Compute(fixed=5, rate=12, cores=3)
    found = scale.step(network, compute, 2, batch=10)
    assert found == scale.Step(
        compute=5 + 10 * 24 / 12,
        shampoo=1.0,
        dense=2000 + 24,
        rows=2 * (1000 + 3400),
        directions=1000 + 40,
    )
    assert found.communication == 2024 + 8800 + 1040 and found.seconds == found.communication + 26
    alone = scale.step(network, compute, 1, batch=10)
    assert alone == scale.Step(25, 2.0, 0, 0, 0)
    # Four workers in groups of two divide blocks as two do, and reduce and exchange as four.
    grouped = scale.step(network, scale.Compute(5, 12, 3, group=2), 4, batch=10)
    assert (grouped.shampoo, grouped.directions) == (found.shampoo, found.directions)
    assert grouped.dense == 6000 + 36
    # Both read and plan the 20 rows of the batch, a second slower than they step.
    for slow in ("read", "plan"):
        seconds = {slow: (found.seconds + 1) / 20}
        waiting = scale.step(network, replace(compute, **seconds), 2, batch=10)
        assert waiting == replace(found, reading=pytest.approx(1.0))
