"""How workers divide a batch and its tables, against what the whole batch says."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.models.embeddings import _seeds, create_table
from ctr.models.rows import FeatureRows, lay_out_tables
from ctr.training.division import Division, Placement, divide_rows
from ctr.training.tables.rows import is_divided
from ctr.workers.parts import Deal


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
