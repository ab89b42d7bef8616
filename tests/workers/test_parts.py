"""Arrays in parts: divided, written down, put together, and divided otherwise."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr.workers.parts import Part, merge, rows_of, take_from


def blocks(owners: list[int], size: int, total: int) -> list[Part]:
    """Parts of equal length, padded, in an order of their own."""
    rows = [[row for row in reversed(range(total)) if owners[row] == rank] for rank in range(size)]
    width = max(map(len, rows))
    return [Part(1, np.array([*own, *[-1] * (width - len(own))], np.int64), total) for own in rows]


@given(st.integers(0, 40), st.integers(1, 6), st.integers(1, 6))
def test_rows_of_any_number_of_workers_become_those_of_any_other(total, before, after):
    whole = np.random.default_rng(total).normal(size=(total, 3)).astype(np.float32)
    parts = [rows_of(rank, before, total) for rank in range(before)]
    saved = [(part, part.take(whole)) for part in parts]
    np.testing.assert_array_equal(merge(saved), whole)
    for rank in range(after):
        wanted = rows_of(rank, after, total)
        # File by file.
        found = None
        for one in saved:
            found = take_from(wanted, [one], found)
        np.testing.assert_array_equal(found, wanted.take(whole))


@given(st.data(), st.integers(1, 12), st.integers(1, 4))
def test_blocks_along_another_axis_with_padding(data, total, size):
    owners, others = (
        data.draw(st.lists(st.integers(0, size - 1), min_size=total, max_size=total)) for _ in "ab"
    )
    whole = np.arange(2.0 * total).reshape(2, total)
    saved = [(part, part.take(whole)) for part in blocks(owners, size, total)]
    np.testing.assert_array_equal(merge(saved), whole)
    for wanted in blocks(others, size, total):
        own = wanted.rows >= 0
        np.testing.assert_array_equal(take_from(wanted, saved)[:, own], wanted.take(whole)[:, own])


@given(st.lists(st.integers(-1, 30), unique=True, max_size=8), st.integers(0, 2))
def test_parts_are_written_down(rows, axis):
    part = Part(axis, np.array(rows, np.int64), 31)
    again = Part.from_json(json.loads(json.dumps(part.as_json())))
    assert (again.axis, again.total, again.rows.tolist()) == (axis, 31, rows)


def test_the_rows_of_a_large_table_take_no_room():
    assert len(json.dumps(rows_of(2, 7, 10**6).as_json())) < 100
    rows = (np.arange(50)[:, np.newaxis] * 1000 + np.arange(100)).ravel()
    assert len(json.dumps(Part(0, rows, 10**6).as_json())) < 1000


def test_single_elements_of_an_array_of_any_shape():
    whole = np.arange(12.0).reshape(3, 4)
    parts = [Part(0, np.array(rows), 12, (3, 4)) for rows in ([0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11])]
    saved = [(part, part.take(whole)) for part in parts]
    np.testing.assert_array_equal(merge(saved), whole)
    wanted = Part(0, np.array([11, 0, -1]), 12, (3, 4))
    assert take_from(wanted, saved)[:2].tolist() == [11, 0]
    assert Part.from_json(json.loads(json.dumps(wanted.as_json()))).shape == (3, 4)


def test_a_row_in_two_parts_or_in_none():
    parts = [(Part(0, np.array(rows), 4), np.zeros((2, 1))) for rows in ([0, 1], [1, 2])]
    with pytest.raises(ValueError, match="row 1 is in 2 parts"):
        merge(parts)
    with pytest.raises(ValueError, match="row 2 is in 0 parts"):
        merge(parts[:1])
