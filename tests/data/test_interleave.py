"""The rows of a second log against a loop over its queries."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr.data.batches import Interleaved
from ctr.data.reader import Rows, join_rows
from ctr.io.errors import InputError


def make_rows(times: list[int], sizes: list[int]) -> Rows:
    query = np.repeat(np.arange(len(sizes)), sizes)
    count = len(query)
    ones = np.ones(count, np.float32)
    return Rows(
        query_time=np.sort(times)[query], timestamp=query, query_id=query, example_id=np.arange(count),
        label=ones, train_weight=ones, metric_weight=ones, ids=np.zeros((count, 0), np.int32),
        fault=np.zeros(count, np.int8), position=np.arange(count), multivalent={},
        joined={"x": np.arange(count) * 2},
    )  # fmt: skip


def expected(rows: Rows, until: list[int], most: int) -> list[list[int]]:
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


logs = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)), max_size=15)


@given(logs, st.lists(st.integers(-1, 35), max_size=12), st.integers(1, 12), st.lists(st.integers(0, 60)))
def test_whole_queries_come_in_time_and_not_too_many_at_once(queries, until, most, cuts):
    rows = make_rows([time for time, _ in queries], [size for _, size in queries])
    places = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    blocks = [rows.slice(begin, end) for begin, end in pairwise(places)]
    stream = Interleaved(blocks, most, 6, "a log")
    found = [stream.until(time) for time in sorted(until)]
    positions = [[] if part is None else part.position.tolist() for part in found]
    assert positions == expected(rows, sorted(until), most)
    parts = [part for part in found if part is not None]
    if parts:
        joined = join_rows(parts)
        assert joined.joined["x"].tolist() == [2 * position for position in joined.position]


@given(logs, st.lists(st.integers(0, 35), min_size=2, max_size=8), st.integers(1, 12))
def test_it_goes_on_from_a_position_as_if_never_stopped(queries, until, most):
    rows = make_rows([time for time, _ in queries], [size for _, size in queries])
    until = sorted(until)
    whole = Interleaved([rows], most, 6, "a log")
    found = [whole.until(time) for time in until]
    for stop in range(len(until)):
        ends = [part.position[-1] + 1 for part in found[:stop] if part is not None]
        start = int(ends[-1]) if ends else 0
        rest = Interleaved([rows.slice(start, len(rows))], most, 6, "a log")
        for time, before in zip(until[stop:], found[stop:], strict=True):
            again = rest.until(time)
            assert (again is None) == (before is None)
            if again is not None:
                assert again.position.tolist() == before.position.tolist()


def test_a_query_that_is_too_large_is_refused_by_name():
    stream = Interleaved([make_rows([1, 2], [3, 5])], 4, 4, "the log")
    assert len(stream.until(1)) == 3
    with pytest.raises(InputError, match="the log: query_id 1 has 5 rows; at most 4"):
        stream.until(2)
