"""Whole-query batches, against a packer of a few lines."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.data.batches import Batch, BatchSize, batches_within, whole_query_batches
from ctr.data.reader import Rows
from ctr.io.errors import InputError


def make_rows(query_sizes: list[int], faulty: set[int] = frozenset(), same_time: bool = False) -> Rows:
    """A log whose rows can be reported apart in every column. Neighbouring queries differ in time or in id only."""
    count = sum(query_sizes)
    query = np.repeat(np.arange(len(query_sizes)), query_sizes)
    row = np.arange(count)
    lengths = row % 3
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Rows(
        query_time=np.zeros(count, np.int64) if same_time else query * 10,
        timestamp=query * 10 + 1,
        query_id=query + 100 if same_time else np.full(count, 100),
        example_id=row + 1000,
        label=(row % 2).astype(np.float32),
        train_weight=row.astype(np.float32),
        metric_weight=row.astype(np.float32) / 2,
        ids=np.stack([row, -row], axis=1).astype(np.int32),
        multivalent={"m": (np.arange(offsets[-1], dtype=np.int32), offsets)},
        fault=np.isin(row, list(faulty)).astype(np.int8),
        position=row,
    )


def rows_as_tuples(rows: Rows) -> list[tuple]:
    values, offsets = rows.multivalent["m"]
    return [
        (
            *(
                getattr(rows, name)[index].item()
                for name in ("query_time", "timestamp", "query_id", "example_id")
            ),
            *(
                getattr(rows, name)[index].item()
                for name in ("label", "train_weight", "metric_weight", "fault")
            ),
            tuple(rows.ids[index].tolist()),
            tuple(values[offsets[index] : offsets[index + 1]].tolist()),
        )
        for index in range(len(rows))
    ]


def cut(rows: Rows, cuts: list[int]) -> list[Rows]:
    places = [0, *sorted(min(place, len(rows)) for place in cuts), len(rows)]
    return [rows.slice(begin, end) for begin, end in pairwise(places)]


def pack_greedily(query_sizes: list[int], batch_rows: int) -> list[tuple[int, int]]:
    """The ranges of rows that batches cover: query after query, a new batch where the next one does not fit."""
    ranges = []
    begin = end = 0
    for size in query_sizes:
        if end > begin and end + size - begin > batch_rows:
            ranges.append((begin, end))
            begin = end
        end += size
    return [*ranges, (begin, end)] if end > begin else ranges


def same(batch: Batch, other: Batch) -> bool:
    return (
        batch.end == other.end
        and batch.begin == other.begin
        and rows_as_tuples(batch.rows) == rows_as_tuples(other.rows)
        and rows_as_tuples(batch.rejects) == rows_as_tuples(other.rejects)
    )


@dataclass
class Case:
    query_sizes: list[int]
    faulty: set[int]
    batch_rows: int
    cuts: list[int]
    same_time: bool

    @property
    def rows(self) -> Rows:
        return make_rows(self.query_sizes, self.faulty, self.same_time)

    def batches(self, start: int = 0) -> list[Batch]:
        rows = self.rows.slice(start, sum(self.query_sizes))
        return list(whole_query_batches(cut(rows, self.cuts), self.batch_rows, 10_000))


cases = st.builds(
    Case,
    query_sizes=st.lists(st.integers(1, 12), max_size=25),
    faulty=st.sets(st.integers(0, 100), max_size=12),
    batch_rows=st.integers(1, 20),
    cuts=st.lists(st.integers(0, 150), max_size=30),
    same_time=st.booleans(),
)


@given(cases)
def test_batches_are_the_greedily_packed_whole_queries_of_the_log(case):
    batches = case.batches()
    begins = [0, *(batch.end for batch in batches)]
    found = [(begin, batch.end) for begin, batch in zip(begins, batches, strict=False)]
    assert found == pack_greedily(case.query_sizes, case.batch_rows)
    log = rows_as_tuples(case.rows)
    for (begin, end), batch in zip(found, batches, strict=True):
        assert batch.begin == begin
        # Of the rows of the range none is lost, changed or twice there; only faulty ones are set apart.
        assert rows_as_tuples(batch.rows) == [row for row in log[begin:end] if row[7] == 0]
        assert rows_as_tuples(batch.rejects) == [row for row in log[begin:end] if row[7] != 0]


@given(cases, st.sampled_from([0.05, 0.25, 1.0]), st.integers(0, 30), st.integers(0, 20))
def test_growing_batches_depend_on_their_place_alone(case, growth, origin, resumed_after):
    size = BatchSize(case.batch_rows, growth, first=2, origin=origin)

    def batches(start: int, cuts: list[int]) -> list[Batch]:
        rows = case.rows.slice(start, sum(case.query_sizes))
        return list(whole_query_batches(cut(rows, cuts), size, 10_000))

    found = batches(0, [])
    begins, queries = [0, *(batch.end for batch in found)], [0, *np.cumsum(case.query_sizes).tolist()]
    for begin, end in pairwise(begins):
        share = growth * max(0, begin - origin)
        allowed = min(case.batch_rows, max(2, 2 ** math.floor(math.log2(share)) if share >= 1 else 0))
        # As many whole queries as fit, or one that is too large.
        fitting = [after for after in queries if begin < after <= begin + allowed]
        assert end == (fitting[-1] if fitting else min(after for after in queries if after > begin))
    # However the rows come, and wherever a reader begins.
    done = min(resumed_after, len(found))
    for expected, other in zip(found[done:], batches(begins[done], case.cuts), strict=True):
        assert same(expected, other)


@given(cases, st.lists(st.integers(0, 25), max_size=6), st.integers(0, 20))
def test_batches_within_ends_are_those_of_each_part_by_itself(case, part_ends, resumed_after):
    begins = np.cumsum([0, *case.query_sizes])
    ends = np.sort(begins[[min(end, len(case.query_sizes)) for end in part_ends]].astype(np.int64))
    blocks = cut(case.rows, [*ends.tolist()])
    found = list(batches_within(ends, blocks, case.batch_rows, 10_000))
    expected = [batch for part in blocks for batch in whole_query_batches([part], case.batch_rows, 10_000)]
    assert len(found) == len(expected)
    assert all(map(same, found, expected))
    if found:
        # Likewise from the end of any of them on.
        done = min(resumed_after, len(found) - 1)
        rest = [
            part.slice(*np.searchsorted(part.position, [found[done].end, 10**6]).tolist()) for part in blocks
        ]
        again = list(batches_within(ends, rest, case.batch_rows, 10_000))
        assert len(again) == len(found) - done - 1
        assert all(map(same, again, found[done + 1 :]))


@given(cases, st.lists(st.integers(0, 150), max_size=30))
def test_batches_do_not_depend_on_the_blocks_they_come_in(case, other_cuts):
    other = Case(case.query_sizes, case.faulty, case.batch_rows, other_cuts, case.same_time)
    for batch, again in zip(case.batches(), other.batches(), strict=True):
        assert same(batch, again)


@settings(max_examples=50)
@given(cases)
def test_from_the_end_of_any_batch_the_remaining_ones_are_the_same(case):
    batches = case.batches()
    for index, batch in enumerate(batches):
        remaining = case.batches(start=batch.end)
        assert all(same(*pair) for pair in zip(batches[index + 1 :], remaining, strict=True))


def test_a_worked_example():
    rows = make_rows([2, 2, 1, 7, 3], faulty={1, 4})
    batches = list(whole_query_batches([rows], batch_rows=5, max_query_rows=7))
    assert [batch.end for batch in batches] == [5, 12, 15]
    assert [batch.rows.example_id.tolist() for batch in batches] == [
        [1000, 1002, 1003],
        [1005, 1006, 1007, 1008, 1009, 1010, 1011],
        [1012, 1013, 1014],
    ]
    assert [batch.rejects.example_id.tolist() for batch in batches] == [[1001, 1004], [], []]


def test_a_batch_of_only_faulty_rows_still_moves_the_position():
    batches = list(whole_query_batches([make_rows([3, 3], faulty={0, 1, 2})], batch_rows=3, max_query_rows=3))
    assert [(len(batch.rows), len(batch.rejects), batch.end) for batch in batches] == [(0, 3, 3), (3, 0, 6)]


@pytest.mark.parametrize("block", [1, 2, 7, 1000])
def test_a_query_that_is_too_large_is_named(block):
    rows = make_rows([3, 2, 9, 1], same_time=True)
    stream = whole_query_batches(cut(rows, list(range(0, 15, block))), batch_rows=4, max_query_rows=8)
    found = []
    with pytest.raises(InputError) as caught:
        found.extend(iter(stream))
    message = str(caught.value)
    assert "query_id 102 (from row 5 of the log) has 9 rows" in message
    assert "at most 8 are allowed (batch.max_query_rows)" in message
    # The same query is let through when it may be that large.
    allowed = list(whole_query_batches([rows], batch_rows=4, max_query_rows=9))
    assert [batch.end for batch in allowed] == [3, 5, 14, 15]


def test_an_endless_query_is_refused_before_the_log_ends():
    def blocks():
        rows = make_rows([10_000])
        for begin in range(0, 10_000, 10):
            assert begin < 1000, "the whole log was read first"
            yield rows.slice(begin, begin + 10)

    with pytest.raises(InputError, match=r"or more; at most 100 are allowed"):
        list(whole_query_batches(blocks(), batch_rows=20, max_query_rows=100))


def test_a_large_query_in_small_blocks_is_not_copied_again_and_again(monkeypatch):
    copied = 0
    concatenate = np.concatenate

    def counting(arrays, *args, **kwargs):
        nonlocal copied
        joined = concatenate(arrays, *args, **kwargs)
        copied += len(joined)
        return joined

    rows = make_rows([4000])
    blocks = cut(rows, list(range(0, 4000, 5)))
    monkeypatch.setattr(np, "concatenate", counting)
    assert [batch.end for batch in whole_query_batches(blocks, batch_rows=10, max_query_rows=4000)] == [4000]
    # Some dozen columns, each copied a few times over; joined at every block it would be 400 times over.
    assert copied < 4000 * 100


def test_a_large_block_is_copied_only_where_a_batch_begins_before_it():
    rows = make_rows([3] * 2000)
    blocks = cut(rows, [3000, 3001])
    batches = list(whole_query_batches(blocks, batch_rows=50, max_query_rows=50))
    assert [batch.end for batch in batches] == [*range(48, 6001, 48)]
    views = [np.shares_memory(batch.rows.example_id, rows.example_id) for batch in batches]
    # The batch of rows 2976 to 3024 comes from all three blocks.
    assert [batch.end for batch, view in zip(batches, views, strict=True) if not view] == [3024]


def test_no_blocks_no_batches():
    assert list(whole_query_batches([], 5, 5)) == []
    assert list(whole_query_batches([make_rows([]), make_rows([])], 5, 5)) == []


@pytest.mark.parametrize("size", [(4096, 1 / 256, 8, 0), (100, 0.3, 8, 7), (64, None, 8, 0), (8, 1.0, 8, 3)])
@pytest.mark.parametrize(("begin", "end"), [(0, 0), (0, 1), (5, 5_000), (3_000, 400_000)])
def test_plateaus_are_the_full_batches_one_by_one(size, begin, end):
    batches = BatchSize(*size)
    counts: dict[int, int] = {}
    position = begin
    while position < end:
        rows = batches.at(position)
        counts[rows] = counts.get(rows, 0) + 1
        position += rows
    assert dict(batches.plateaus(begin, end)) == counts
