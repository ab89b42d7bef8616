"""Whole-query batches against a packer of a few lines, and the rows of a second log against a loop over its queries."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.data.batches import (
    Batch,
    BatchSize,
    Interleaved,
    batches_within,
    set_rejects_apart,
    whole_query_batches,
)
from ctr.data.reader import Rows, join_rows


def make_rows(query_sizes: list[int], faulty: Iterable[int] = (), times: list[int] | None = None) -> Rows:
    """A log whose rows can be told apart in every column; of equal times, queries that differ in their id only."""
    count, row = sum(query_sizes), np.arange(sum(query_sizes))
    query = np.repeat(np.arange(len(query_sizes)), query_sizes)
    offsets = np.concatenate([[0], np.cumsum(row % 3)])
    return Rows(
        query_time=query * 10 if times is None else np.array(times, np.int64)[query],
        timestamp=query * 10 + 1,
        query_id=np.full(count, 100) if times is None else query + 100,
        example_id=row + 1000,
        label=(row % 2).astype(np.float32),
        train_weight=row.astype(np.float32),
        metric_weight=row.astype(np.float32) / 2,
        ids=np.stack([row, -row], axis=1).astype(np.int32),
        multivalent={"m": (np.arange(offsets[-1], dtype=np.int32), offsets)},
        fault=np.isin(row, list(faulty)).astype(np.int8),
        position=row,
        joined={"x": row * 2},
    )


def as_tuples(rows: Rows) -> list[tuple]:
    columns = [getattr(rows, name).tolist() for name in Rows._COLUMNS] + [rows.joined["x"].tolist()]
    values, offsets = rows.multivalent["m"]
    columns.append([part.tolist() for part in np.split(values, offsets)[1:-1]])
    return list(zip(*columns, strict=True))


def cut(rows: Rows, cuts: list[int]) -> list[Rows]:
    places = [0, *sorted(min(place, len(rows)) for place in cuts), len(rows)]
    return [rows.slice(begin, end) for begin, end in pairwise(places)]


def pack_greedily(query_sizes: list[int], allowed: Callable[[int], int]) -> list[tuple[int, int]]:
    """The ranges of rows that batches cover: query after query, a new batch where the next one does not fit."""
    ranges = []
    begin = end = 0
    for size in query_sizes:
        if end > begin and end + size - begin > allowed(begin):
            ranges.append((begin, end))
            begin = end
        end += size
    return [*ranges, (begin, end)] if end > begin else ranges


def contents(batches: list[Batch]) -> list[tuple]:
    return [(one.begin, one.end, as_tuples(one.rows), as_tuples(one.rejects)) for one in batches]


@dataclass
class Case:
    query_sizes: list[int]
    faulty: frozenset[int]
    batch_rows: int
    cuts: list[int]
    same_time: bool

    @property
    def rows(self) -> Rows:
        times = [0] * len(self.query_sizes) if self.same_time else None
        return make_rows(self.query_sizes, self.faulty, times)

    def batches(self, size: int | BatchSize, start: int = 0, cuts: list[int] | None = None) -> list[Batch]:
        rows = self.rows.slice(start, sum(self.query_sizes))
        return list(whole_query_batches(cut(rows, self.cuts if cuts is None else cuts), size, 10_000))


CUTS = st.lists(st.integers(0, 150), max_size=30)
CASES = st.builds(
    Case,
    query_sizes=st.lists(st.integers(1, 12), max_size=25),
    faulty=st.frozensets(st.integers(0, 100), max_size=12),
    batch_rows=st.integers(1, 20),
    cuts=CUTS,
    same_time=st.booleans(),
)


@settings(max_examples=100)
@given(CASES, CUTS, st.sampled_from([None, 0.05, 0.25, 1.0]), st.integers(0, 30))
def test_batches_are_the_greedily_packed_whole_queries_from_the_end_of_any_on(case, cuts, growth, origin):
    size = case.batch_rows if growth is None else BatchSize(case.batch_rows, growth, first=2, origin=origin)

    def allowed(begin: int) -> int:
        """Batches that grow depend on their place alone."""
        if growth is None:
            return case.batch_rows
        share = growth * max(0, begin - origin)
        return min(case.batch_rows, max(2, 2 ** math.floor(math.log2(share)) if share >= 1 else 0))

    batches = case.batches(size)
    found = [(batch.begin, batch.end) for batch in batches]
    assert found == pack_greedily(case.query_sizes, allowed)
    log = as_tuples(case.rows)
    for begin, end, rows, rejects in contents(batches):
        # Of the rows of the range none is lost, changed or twice there; only faulty ones are set apart.
        bad = [row for row in log[begin:end] if row[3] - 1000 in case.faulty]
        assert rejects == bad and rows == [row for row in log[begin:end] if row not in bad]
    # However the rows come, and wherever a reader begins.
    for index in range(len(batches)):
        remaining = case.batches(size, batches[index].end, cuts)
        assert contents(remaining) == contents(batches[index + 1 :])


@settings(max_examples=60)
@given(CASES, st.lists(st.integers(0, 25), max_size=6), st.integers(0, 20))
def test_batches_within_ends_are_those_of_each_part_by_itself(case, part_ends, resumed_after):
    begins = np.cumsum([0, *case.query_sizes])
    ends = np.sort(begins[[min(end, len(case.query_sizes)) for end in part_ends]].astype(np.int64))
    blocks = cut(case.rows, [*ends.tolist()])
    found = list(batches_within(ends, blocks, case.batch_rows, 10_000))
    expected = [batch for part in blocks for batch in whole_query_batches([part], case.batch_rows, 10_000)]
    assert contents(found) == contents(expected)
    if found:
        # Likewise from the end of any of them on.
        done = min(resumed_after, len(found) - 1)
        places = [np.searchsorted(part.position, [found[done].end, 10**6]).tolist() for part in blocks]
        rest = [part.slice(*place) for part, place in zip(blocks, places, strict=True)]
        again = list(batches_within(ends, rest, case.batch_rows, 10_000))
        assert contents(again) == contents(found[done + 1 :])


@pytest.mark.parametrize("block", [1, 2, 7, 1000])
def test_a_query_that_is_too_large_is_a_batch_of_rejects(block):
    rows = make_rows([3, 2, 9, 1], frozenset({6}), times=[0] * 4)
    batches = list(whole_query_batches(cut(rows, list(range(0, 15, block))), batch_rows=4, max_query_rows=8))
    found = [(batch.begin, batch.end, len(batch.rows)) for batch in batches]
    assert found == [(0, 3, 3), (3, 5, 2), (5, 14, 0), (14, 15, 1)]
    assert [batch.large_queries for batch in batches] == [[], [], [(102, 5, 14, 9)], []]
    assert batches[2].last_query == [0, 102]
    # The same query is let through when it may be that large.
    allowed = list(whole_query_batches([rows], batch_rows=4, max_query_rows=9))
    assert [(batch.end, len(batch.rows)) for batch in allowed] == [(3, 3), (5, 2), (14, 8), (15, 1)]


# ---------------------------------------------------------------- a second log beside the first


def due(rows: Rows, until: list[int], most: int) -> list[list[int]]:
    """The positions of the rows that are given out up to each time."""
    queries = [np.flatnonzero(rows.query_id == one).tolist() for one in np.unique(rows.query_id)]
    given_out = []
    for time in until:
        taken: list[int] = []
        while queries and rows.query_time[queries[0][0]] <= time:
            if taken and len(taken) + len(queries[0]) > most:
                break
            taken += queries.pop(0)
        given_out.append(taken)
    return given_out


@settings(max_examples=80)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)), max_size=15),
    st.lists(st.integers(-1, 35), max_size=12).map(sorted),
    st.integers(1, 12),
    st.lists(st.integers(0, 60)),
)
def test_whole_queries_come_in_time_not_too_many_at_once_and_from_any_position(queries, until, most, cuts):
    rows = make_rows([size for _, size in queries], times=sorted(time for time, _ in queries))
    expected = due(rows, until, most)
    for stop in range(len(until) + 1):
        # As if it had stopped before a time.
        start = sum(map(len, expected[:stop]))
        stream = Interleaved(cut(rows.slice(start, len(rows)), cuts), most, 6)
        found = [stream.until(time) for time in until[stop:]]
        assert [[] if part is None else part.position.tolist() for part in found] == expected[stop:]
        parts = [part for part in found if part is not None]
        if parts:
            joined = join_rows(parts)
            assert joined.joined["x"].tolist() == (2 * joined.position).tolist()


def test_queries_of_a_second_log_that_are_too_large_are_rejects():
    stream = Interleaved([make_rows([3, 5, 4, 6, 1], times=[1, 2, 2, 2, 3])], 20, 4)
    assert set_rejects_apart(stream.until(1)).large_queries == []
    batch = set_rejects_apart(stream.until(2))
    assert batch.large_queries == [(101, 3, 8, 5), (103, 12, 18, 6)]
    assert batch.rows.position.tolist() == [8, 9, 10, 11]
