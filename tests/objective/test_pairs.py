"""Pairs against loops over all of them; the sample's bounds, weights, evenness and unbiasedness."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.objective.pairs import click_pairs

MOST = 2**20


def batch(queries, seed=0):
    """The arguments of click_pairs, but for max_pairs, for queries of (label, weight) rows with random ids."""
    rng = np.random.default_rng(seed)
    sizes = [len(rows) for rows in queries]
    begins = np.concatenate([[0], np.cumsum(sizes)])[:-1].astype(np.int64) if sizes else np.zeros(0, np.int64)
    flat = [row for rows in queries for row in rows]
    label = np.array([row[0] for row in flat], np.float32)
    weight = np.array([row[1] for row in flat], np.float32)
    query_id = np.repeat(rng.integers(-(2**63), 2**63 - 1, len(queries)), sizes).astype(np.int64)
    example_id = rng.integers(-(2**63), 2**63 - 1, len(flat))
    return begins, label, weight, query_id, example_id


def by_loops(queries):
    """{(clicked row, other row): weight} query by query."""
    found, first = [], 0
    for rows in queries:
        found.append(
            {
                (first + i, first + j): np.float32(rows[i][1]) * np.float32(rows[j][1])
                for i in range(len(rows))
                for j in range(len(rows))
                if rows[i][0] == 1 and rows[j][0] == 0 and rows[i][1] > 0 and rows[j][1] > 0
            }
        )
        first += len(rows)
    return found


def as_dict(pairs):
    keys = list(zip(pairs.clicked.tolist(), pairs.other.tolist(), strict=True))
    assert len(set(keys)) == len(keys), "a pair stands twice"
    return dict(zip(keys, pairs.weight, strict=True))


queries_of_rows = st.lists(
    st.lists(
        st.tuples(st.integers(0, 1), st.sampled_from([0.0, 1.0, 0.25, 3.0, 1e4])), min_size=1, max_size=9
    ),
    max_size=6,
)


@settings(max_examples=100)
@given(
    queries_of_rows,
    st.integers(1, 12) | st.just(MOST),
    st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    st.integers(0, 99),
)
def test_all_pairs_of_each_query_or_max_pairs_of_its_own_weighted_up(queries, most, exponent, seed):
    """Divided by a power of the sum over all pairs of the query, whichever are drawn: with 1 every query counts 1."""
    pairs = click_pairs(*batch(queries, seed), most, exponent)
    assert [part.dtype for part in pairs] == [np.int32, np.int32, np.float32]
    found = as_dict(pairs)
    for part in by_loops(queries):
        mine = {pair: found.pop(pair) for pair in part if pair in found}
        assert len(mine) == min(len(part), most)
        scale = max(1.0, len(part) / most) / float(sum(part.values()) or 1) ** exponent
        for pair, weight in mine.items():
            assert weight == pytest.approx(part[pair] * scale, rel=1e-5 if exponent else 1e-6)
    assert not found


def test_a_query_of_just_max_pairs_is_whole():
    queries = [[(1, 1.0)] * 3 + [(0, 1.0)] * 4]
    assert set(as_dict(click_pairs(*batch(queries), 12)).values()) == {1.0}
    assert set(as_dict(click_pairs(*batch(queries), 11)).values()) == {np.float32(12 / 11)}
    for none in ([], [[(1, 1.0)] * 3], [[(0, 1.0)] * 3], [[(1, 0.0), (0, 1.0)]]):
        assert [len(part) for part in click_pairs(*batch(none), 1)] == [0, 0, 0]


# The sample.


def samples(clicked, other, most, count, seed=0, same_rows=False):
    """Which pairs were taken, [count, clicked, other] of 0 and 1, in ``count`` queries alike but for their ids."""
    size = clicked + other
    queries = [[(1, 1.0)] * clicked + [(0, 1.0)] * other] * count
    begins, label, weight, query_id, example_id = batch(queries, seed)
    if same_rows:
        example_id = np.tile(example_id[:size], count)
    pairs = click_pairs(begins, label, weight, query_id, example_id, most)
    taken = np.zeros((count, clicked, other), np.int64)
    np.add.at(taken, (pairs.clicked // size, pairs.clicked % size, pairs.other % size - clicked), 1)
    assert taken.max() == 1
    assert (taken.sum(axis=(1, 2)) == most).all()
    # Spread evenly over clicked rows.
    assert set(np.unique(taken.sum(axis=2))) <= {most // clicked, -(-most // clicked)}
    return taken


@pytest.mark.parametrize("same_rows", [False, True])
@pytest.mark.parametrize(
    ("clicked", "other", "most"), [(3, 5, 7), (8, 8, 8), (1, 30, 4), (16, 4, 3), (5, 4, 19)]
)
def test_each_pair_is_taken_as_often_as_any_other(clicked, other, most, same_rows):
    count = 8000
    share = most / (clicked * other)
    frequency = samples(clicked, other, most, count, same_rows=same_rows).mean(axis=0)
    error = np.sqrt(share * (1 - share) / count)
    assert np.abs(frequency - share).max() < 4.5 * error


def of_query(arguments, query, most):
    """A query's pairs as (example_id, example_id): weight."""
    begins, _, _, query_id, example_id = arguments
    pairs = click_pairs(*arguments, most)
    first = begins[query]
    end = begins[query + 1] if query + 1 < len(begins) else len(query_id)
    inside = (pairs.clicked >= first) & (pairs.clicked < end)
    keys = zip(example_id[pairs.clicked[inside]], example_id[pairs.other[inside]], strict=True)
    return dict(zip(keys, pairs.weight[inside], strict=True))


@pytest.mark.parametrize("most", [3, 10, MOST])
def test_a_query_has_the_same_pairs_in_any_batch_and_any_order_of_its_rows(most):
    rng = np.random.default_rng(7)
    queries = [list(zip(rng.integers(0, 2, n), rng.integers(0, 4, n), strict=True)) for n in (3, 20, 1, 14)]
    arguments = batch(queries)
    _, label, weight, query_id, example_id = arguments
    together = of_query(arguments, 1, most)
    assert len(together) >= 3
    rows = np.arange(3, 23)
    for order in (rows, rows[::-1], rng.permutation(rows)):
        alone = (np.zeros(1, np.int64), label[order], weight[order], query_id[order], example_id[order])
        assert of_query(alone, 0, most) == together
    # Rows of weight 0, as sampling leaves them, take no part in the draw either.
    kept = rows[weight[rows] > 0]
    assert len(kept) < len(rows)
    alone = (np.zeros(1, np.int64), label[kept], weight[kept], query_id[kept], example_id[kept])
    assert of_query(alone, 0, most) == together


def test_memory_follows_the_pairs_taken_not_all_of_a_huge_query():
    arguments = batch([[(i % 2, 1.0) for i in range(65536)]])
    tracemalloc.start()
    pairs = click_pairs(*arguments, 4096)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * 2**20
    assert len(pairs.weight) == 4096 == len(as_dict(pairs))
    assert (pairs.clicked % 2 == 0).all() != (pairs.other % 2 == 0).all()
    assert set(pairs.weight.tolist()) == {32768**2 / 4096}
    # Every eighth clicked row, and other rows from everywhere.
    assert len(set(pairs.clicked.tolist())) == 4096
    assert len(set(pairs.other.tolist())) > 3500
