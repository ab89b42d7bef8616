"""How workers divide a batch, and what each needs of tables, against what the whole batch says."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.models.embeddings import _seeds, create_table
from ctr.models.rows import FeatureRows, lay_out_tables
from ctr.training.division import Division, Placement, divide_rows, share_of_table
from ctr.training.tables.plan import pad_plan, plan_table
from ctr.training.tables.rows import is_divided
from ctr.workers.parts import Deal

FEATURES = (
    FeatureRows("user", 40, 4, "quality", 0),
    FeatureRows("item", 7, 4, "quality", 1),
    FeatureRows("tags", 30, 4, "quality", None),
)
(LAYOUT,) = lay_out_tables(FEATURES)


def divided(sizes: list[int], others: list[int], workers: int) -> tuple[Division, np.ndarray, np.ndarray]:
    """The division of a batch, and the query and the log of each row."""
    query = np.repeat(np.arange(len(sizes) + len(others)), [*sizes, *others])
    source = np.repeat(np.array([0, 1], np.int8), [sum(sizes), sum(others)])
    begins = np.flatnonzero(np.diff(query, prepend=-1))
    return divide_rows(begins, source, Placement(Deal(0, workers)), 64), query, source


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 40), max_size=30),
    st.lists(st.integers(1, 5), max_size=10),
    st.integers(2, 9),
)
def test_each_worker_takes_whole_queries_a_stretch_of_each_log(sizes, others, workers):
    division, query, source = divided(sizes, others, workers)
    assert len(division.workers) == len(query)
    for one in np.unique(query):
        assert len(np.unique(division.workers[query == one])) == 1
    for log in (0, 1):
        assert (np.diff(division.workers[source == log]) >= 0).all()
    # Each row has a place of its own, among those of its worker, in the order of the batch.
    assert len(np.unique(division.order)) == len(query)
    assert (division.order // division.capacity == division.workers).all()
    for worker in range(workers):
        own = division.order[division.rows_of(worker)] - worker * division.capacity
        assert own.tolist() == list(range(len(own)))
    # As balanced as whole queries allow.
    for log, lengths in ((0, sizes), (1, others)):
        counts = np.bincount(division.workers[source == log], minlength=workers)
        assert counts.max(initial=0) <= sum(lengths) / workers + max(lengths, default=0)


@settings(max_examples=40)
@given(st.data(), st.integers(2, 5), st.booleans())
def test_each_worker_gets_the_rows_that_it_needs_and_their_gradients_come_back(data, workers, divide):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    sizes = rng.integers(1, 6, rng.integers(0, 12)).tolist()
    division, query, _ = divided(sizes, [], workers)
    rows = len(query)
    ids = np.stack([rng.integers(0, 40, rows), rng.integers(0, 7, rows)], axis=1).astype(np.int32)
    lengths = rng.integers(0, 4, rows).astype(np.int32)
    tags = rng.integers(0, 30, lengths.sum()).astype(np.int32)
    plan = pad_plan(LAYOUT, plan_table(LAYOUT, ids, {"tags": (tags, lengths)}), rows)
    table = rng.normal(size=(LAYOUT.rows, 3))
    divisions = [replace(division, placement=Placement(Deal(rank, workers))) for rank in range(workers)]
    shares = [share_of_table(LAYOUT, plan, one, divide) for one in divisions]
    parts = [table[rank::workers] if divide else table for rank in range(workers)]
    held = [part[share["distinct"]] for part, share in zip(parts, shares, strict=True)]
    if divide:
        assert len({share["asked"].shape for share in shares}) == 1
        received = [
            np.concatenate([held[owner][shares[owner]["asked"][rank]] for owner in range(workers)])
            for rank in range(workers)
        ]
    else:
        received = held
    offsets = LAYOUT.offsets()
    gradient = np.zeros_like(table)
    expected = np.zeros_like(table)
    found = [np.zeros_like(one) for one in received]
    starts = np.cumsum(lengths) - lengths
    for rank, share in enumerate(shares):
        own = np.flatnonzero(division.rows_of(rank))
        for place, row in enumerate(own):
            for column, name in enumerate(("user", "item")):
                number = offsets[name] + ids[row, column]
                np.testing.assert_array_equal(received[rank][share["single"][place, column]], table[number])
                found[rank][share["single"][place, column]] += row + 1
                expected[number] += row + 1
            values = share["values"][share["segments"] == place]
            numbers = offsets["tags"] + tags[starts[row] : starts[row] + lengths[row]]
            np.testing.assert_array_equal(received[rank][values], table[numbers])
        assert (share["segments"][np.searchsorted(share["segments"], len(own)) :] == division.capacity).all()
    for owner, share in enumerate(shares):
        if not divide:
            gradient[plan.distinct] += found[owner]
            continue
        total = np.zeros_like(held[owner])
        for rank in range(workers):
            sent = found[rank].reshape(workers, -1, 3)[owner]
            np.add.at(total, share["asked"][rank], sent)
        gradient[owner::workers][share["distinct"]] += total
        # No row twice.
        assert len(np.unique(share["distinct"])) == len(share["distinct"])
    np.testing.assert_array_equal(gradient, expected)


@pytest.mark.parametrize(("copies", "width"), [(1, 1), (2, 3), (1, 16)])
def test_a_part_of_a_table_begins_with_the_values_of_the_whole_one(copies, width, monkeypatch):
    # Drawn in several pieces.
    monkeypatch.setattr("ctr.models.embeddings._PIECE", 1024)
    (layout,) = lay_out_tables([FeatureRows("id", 5003, width, "quality", 0)], copies)
    drawn = [tf.random.stateless_normal([5003, width], _seeds(layout, copy, 7)) for copy in range(copies)]
    columns = [part for embedding in drawn for part in (0.05 * embedding, tf.zeros([5003, 1]))]
    whole = tf.concat(columns, axis=1).numpy()
    for size in (1, 2, 3):
        for rank in range(size):
            part = create_table(layout, 0.05, 7, rank, size).numpy()
            np.testing.assert_array_equal(part, whole[rank::size])


def test_a_table_is_divided_from_a_size_on_if_there_is_a_row_for_each_worker():
    (layout,) = lay_out_tables([FeatureRows("id", 10, 3, "quality", 0)])
    assert is_divided(layout, 2, 10, 160)
    assert not is_divided(layout, 2, 10, 161)
    assert not is_divided(layout, 1, 10, 0)
    assert not is_divided(layout, 11, 10, 0)
    assert is_divided(layout, 2, 1000, 16_000)
