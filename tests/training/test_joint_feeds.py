"""Feeds that workers make together, against those that each of them would make of whole batches."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.data.batches import Batch
from ctr.data.reader import Rows
from ctr.models.rows import FeatureRows, lay_out_tables
from ctr.training import feed as feed_module
from ctr.training.division import Seat
from ctr.training.feed import Feed, make_feed
from ctr.training.ids.config import IdsConfig
from ctr.training.inputs import Inputs, open_inputs, read_feeds
from ctr.training.tables.plan import TablePlan, assign_rows
from small_runs import make_config

# Of a table without ids that grow, one with both, and one with multivalent features alone.
FEATURES = (
    FeatureRows("a", 5, 4, "quality", 0),
    FeatureRows("m", 40, 4, "quality", None),
    FeatureRows("g", 4, 8, "quality", 1, growing=True),
    FeatureRows("i", 4, 8, "quality", 2, growing=True),
    FeatureRows("b", 9, 8, "quality", 3),
    FeatureRows("h", 4, 8, "quality", None, growing=True),
    FeatureRows("k", 4, 8, "ui", None, growing=True),
    FeatureRows("l", 4, 8, "ui", None, growing=True),
)
LAYOUTS = lay_out_tables(FEATURES)
DRAWING = IdsConfig.model_validate({"admission": {"rule": "probability", "probability": 0.3}})


class Threads:
    """What workers share that are threads of this process."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier = size, threading.Barrier(size, timeout=30)
        self.given: list[np.ndarray | None] = [None] * size


class Member:
    def __init__(self, threads: Threads, rank: int) -> None:
        self._threads, self.rank, self.size = threads, rank, threads.size
        self.exchanges: list[int] = []  # the threads that made them

    def gather_numbers(self, numbers: np.ndarray) -> np.ndarray:
        self.exchanges.append(threading.get_ident())
        self._threads.given[self.rank] = numbers
        self._threads.barrier.wait()
        found = np.stack(self._threads.given)
        self._threads.barrier.wait()
        return found

    def timeout(self, is_patient: bool) -> Any:
        return nullcontext()


def draw_rows(rng: np.random.Generator, sizes: Sequence[int], begin: int) -> Rows:
    """Whole queries; few different ids, of which some grow."""
    rows, number = sum(sizes), begin + np.arange(sum(sizes))
    fixed = rng.integers(0, 5, (rows, 4))
    # Fingerprints use all bits.
    prints = rng.integers(-(2**63), 2**63, 12) * (rng.random(12) < 0.9)
    ids = np.where([False, True, True, False], prints[rng.integers(0, 12, (rows, 4))], fixed)
    multivalent = {}
    for name in ("m", "h", "k", "l"):
        lengths = rng.integers(0, 4, rows)
        values = (
            rng.integers(0, 40, lengths.sum()) if name == "m" else prints[rng.integers(0, 12, lengths.sum())]
        )
        multivalent[name] = (values, np.concatenate([[0], np.cumsum(lengths)]))
    return Rows(
        query_time=number,
        timestamp=number,
        query_id=np.repeat(np.arange(len(sizes)), sizes),
        example_id=number,
        label=rng.integers(0, 2, rows).astype(np.float32),
        train_weight=np.ones(rows, np.float32),
        metric_weight=np.ones(rows, np.float32),
        ids=ids,
        fault=np.zeros(rows, np.int8),
        position=number,
        multivalent=multivalent,
    )


def batch_of(rows: Rows) -> Batch:
    return Batch(replace(rows, query_time=np.sort(rows.query_id)), rows.slice(0, 0), len(rows))


def with_rows(feed: Feed, modulo: int) -> Feed:
    """Gives ids rows by their fingerprints, of which several have the same."""

    def assigned(plan: TablePlan, layout: Any) -> TablePlan:
        if plan.pending is None:
            return plan
        numbers = plan.pending.fingerprints + plan.pending.features
        rows = layout.rows + (numbers % modulo).astype(np.int32)
        return assign_rows(plan, rows, layout.rows + modulo)

    plans = [assigned(*each) for each in zip(feed.plans, feed.layouts, strict=True)]
    return replace(feed, plans=tuple(plans))


def assert_same(one: Feed, other: Feed) -> None:
    for name, array in other.targets.items():
        np.testing.assert_array_equal(one.targets[name], array)
    for own, expected in zip(one.plans, other.plans, strict=True):
        assert own.distinct_count == expected.distinct_count
        used = own.distinct_count
        np.testing.assert_array_equal(own.distinct[:used], expected.distinct[:used], strict=True)
        np.testing.assert_array_equal(own.counts, expected.counts, strict=True)
        if expected.pending is not None:
            assert own.pending is not None
            for name, array in vars(expected.pending).items():
                np.testing.assert_array_equal(getattr(own.pending, name), array, strict=True, err_msg=name)


def assert_same_tensors(one: Feed, other: Feed) -> None:
    for own, expected in zip(one.plan_tensors, other.plan_tensors, strict=True):
        assert own.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(own[name].numpy(), array.numpy(), strict=True, err_msg=name)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(2, 5),
    sizes=st.lists(st.integers(1, 5), max_size=12),
    others=st.lists(st.integers(1, 5), max_size=4),
    is_divided=st.booleans(),
    ids=st.sampled_from([None, IdsConfig(), DRAWING]),
    modulo=st.sampled_from([3, 10**6]),
)
def test_a_joined_feed_is_that_of_the_whole_batch(seed, size, sizes, others, is_divided, ids, modulo):
    rng = np.random.default_rng(seed)
    batch = batch_of(draw_rows(rng, sizes, 0))
    constrained = [batch_of(draw_rows(rng, others, 1000))] if others else [None]
    seats = [Seat(rank, size, (is_divided,) * len(LAYOUTS)) for rank in range(size)]
    given = batch, LAYOUTS, 16
    options = {"constraint_batches": constrained, "ids": ids}
    parts = [make_feed(*given, **options, seat=seat, is_part=True) for seat in seats]
    found = [part.own_ids for part in parts]
    for part, seat in zip(parts, seats, strict=True):
        joined, whole = part.joined(found), make_feed(*given, **options, seat=seat)
        assert_same(joined, whole)
        assert_same_tensors(with_rows(joined, modulo), with_rows(whole, modulo))


def read_by(
    inputs: Inputs, size: int, read: Callable[[Iterator[Feed], int], Any], members: list[Member] | None = None
) -> list[Any]:
    """What each of several workers reads of the feeds of a log."""
    layouts, threads = inputs.config.table_layouts(inputs.schema), Threads(size)
    members = [] if members is None else members
    members += [Member(threads, rank) for rank in range(size)]

    def work(rank: int) -> Any:
        seat = Seat(rank, size, (True,) * len(layouts), group=members[rank])
        with closing(read_feeds(inputs, layouts, 0, {}, seat=seat)) as feeds:
            return read(feeds, rank)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, range(size)))


@pytest.fixture
def inputs(log) -> Inputs:
    return open_inputs(log, make_config({"batch": {"rows": 64}}))


def test_the_ids_of_a_row_are_looked_at_by_one_worker(inputs, monkeypatch):
    planned, plan_table = [], feed_module.plan_table

    def noted(layout: Any, ids: np.ndarray, *rest: Any) -> TablePlan:
        planned.append((layout.name, len(ids)))
        return plan_table(layout, ids, *rest)

    monkeypatch.setattr(feed_module, "plan_table", noted)
    by_worker = read_by(inputs, 3, lambda feeds, rank: [feed.batch.end for feed in feeds])
    assert by_worker[0] == by_worker[1] == by_worker[2]
    assert len(by_worker[0]) > 10
    for layout in inputs.config.table_layouts(inputs.schema):
        assert sum(rows for name, rows in planned if name == layout.name) == inputs.log.rows
    assert max(rows for _, rows in planned) < 32


def test_workers_exchange_one_feed_ahead_in_the_thread_that_trains(inputs):
    """So they stop and begin again together, wherever their reading threads are."""
    exchanges = []

    def read(feeds: Iterator[Feed], rank: int) -> list[int]:
        taken = []
        for feed in islice(feeds, 4):
            taken.append(feed.batch.end)
            exchanges.append((threading.get_ident(), len(taken), members[rank].exchanges.copy()))
        return taken

    members: list[Member] = []
    found = read_by(inputs, 2, read, members)
    assert found[0] == found[1]
    for thread, taken, threads in exchanges:
        # Of each feed first the lengths, then the ids.
        assert threads == [thread] * 2 * (taken + 1)
