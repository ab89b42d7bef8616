"""The map of growing ids that several workers have together, against that of one process."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.training.ids.config import AdmissionConfig, EvictionConfig
from ctr.training.ids.eviction import lowest, lowest_of_all
from ctr.training.ids.id_map import DIVIDED_ARRAYS, GrowingFeature, IdMap
from ctr.workers.parts import reshard, rows_of
from id_streams import SECOND, VALUES, arrays, make_features, streams
from thread_group import Threads


def assert_equal(one, other):
    np.testing.assert_equal(getattr(one, "__dict__", one), getattr(other, "__dict__", other))


class DividedMap:
    """The maps of several workers as one: they get the same calls, and must return the same."""

    def __init__(self, size, *arguments):
        self.size, self.arguments = size, arguments
        self.threads = Threads(size, lambda group: IdMap(*arguments, group))

    def __getattr__(self, name):
        def call(*arguments):
            first, *others = self.threads.all(lambda one: getattr(one, name)(*arguments))
            for other in others:
                assert_equal(other, first)
            return first

        return call

    def ids_by_row(self):
        first, *others = self.threads.all(IdMap.ids_by_row)
        assert all(len(part) == 0 for other in others for part in other)
        return first

    def occupants(self):
        """Those of all workers, each of which has its own."""
        parts = [vars(found) for found in self.threads.all(IdMap.occupants)]
        order = np.argsort(np.concatenate([part["rows"] for part in parts]))
        joined = {name: np.concatenate([np.atleast_1d(part[name]) for part in parts]) for name in parts[0]}
        assert len(set(joined.pop("time_us").tolist())) == 1
        return {name: array[order] for name, array in joined.items()}

    def to_arrays(self):
        """Those of all workers put together, as a checkpoint has them."""
        parts = self.threads.all(IdMap.to_arrays)
        whole = dict(parts[0])
        for name, length in self.entries().items():
            whole[name] = reshard(
                [(rows_of(rank, self.size, length), part[name]) for rank, part in enumerate(parts)]
            )
        for part in parts:
            for name in whole.keys() - set(DIVIDED_ARRAYS):
                np.testing.assert_array_equal(part[name], whole[name])
        return whole

    def continued(self, size):
        """The maps of another number of workers that go on where these stand."""
        saved, other = self.to_arrays(), DividedMap(size, *self.arguments)
        self.threads.close()
        entries = {name: len(array) for name, array in saved.items() if name in DIVIDED_ARRAYS}

        def restore(one):
            own = {
                name: saved[name][rows_of(one.group.rank, size, length).rows]
                for name, length in entries.items()
            }
            one.restore(saved | own, entries)

        other.threads.all(restore)
        return other


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(streams(), st.lists(st.integers(1, 4), min_size=15, max_size=15))
def test_it_decides_what_one_process_decides(stream, sizes):
    capacities, admission, eviction, steps = stream
    features, first_slot = make_features(capacities)
    arguments = (features, first_slot, admission, eviction)
    alone, divided = IdMap(*arguments), DividedMap(sizes[-1], *arguments)
    every_id = arrays(list(itertools.product(range(len(features)), VALUES)))
    seconds = 10
    for (batch, passed, killed), size in zip(steps, sizes, strict=False):
        seconds += passed
        ids, counts, admit = ([one[part] for one in batch] for part in range(3))
        given_ = *arrays(ids), np.array(counts, np.int64), seconds * SECOND, np.array(admit, np.bool_)
        assert_equal(divided.learn(*given_), alone.learn(*given_))
        if killed:
            divided = divided.continued(size)
        assert_equal(divided.to_arrays(), alone.to_arrays())
        assert_equal(divided.look_up(*every_id), alone.look_up(*every_id))
        assert_equal(divided.counters(), alone.counters())
        assert_equal(divided.ids_by_row(), alone.ids_by_row())
        expected = vars(alone.occupants())
        assert_equal(divided.occupants(), {name: expected[name] for name in expected if name != "time_us"})
    divided.threads.close()


def churning(random, batch):
    """Ids of a batch of which some come again and most do not; and their counts."""
    often, seldom = random.integers(1, 200, 60), random.integers(1, 10**12, 150)
    prints = np.unique(np.concatenate([often, seldom]))
    return (prints % 2).astype(np.int16), prints, random.integers(1, 3, len(prints)), batch * SECOND


@pytest.mark.parametrize(
    ("size", "admission", "policy"),
    [(2, "always", "score"), (2, "count", "least_recent"), (3, "count", "least_frequent")],
)
def test_admission_and_eviction_where_ids_come_and_go(size, admission, policy):
    features, first_slot = make_features([200, 150])
    arguments = (
        features,
        first_slot,
        AdmissionConfig(rule=admission, count=2, exact_ids=500),
        EvictionConfig(policy=policy, half_life=5, max_idle=30, every=7),
    )
    alone, divided = IdMap(*arguments), DividedMap(size, *arguments)
    for batch in range(15):
        ids = churning(np.random.default_rng(batch), batch)
        assert_equal(divided.learn(*ids), alone.learn(*ids))
    assert_equal(divided.to_arrays(), alone.to_arrays())
    divided.threads.close()
    assert all(found.evicted > 100 for found in alone.counters().values())
    assert all(found.shared > 0 for found in alone.counters().values()) == (admission == "count")


@pytest.mark.parametrize(("size", "rule"), [(2, "count"), (4, "always")])
def test_each_worker_has_its_share_of_the_memory(size, rule):
    arguments = (
        [GrowingFeature("f", 0, 8, 40_000)],
        8,
        AdmissionConfig(rule=rule, count=2, exact_ids=10**6),
        EvictionConfig(share=0.25),
    )
    alone, divided = IdMap(*arguments), DividedMap(size, *arguments)
    random = np.random.default_rng(0)
    for batch in range(8):
        prints = np.unique(random.integers(1, 2**40, 10_000))
        ids = np.zeros(len(prints), np.int16), prints, 1 + prints % 2, batch * SECOND
        assert_equal(divided.learn(*ids).fresh, alone.learn(*ids).fresh)
    entries = [
        sum(map(len, (part[name] for name in divided.entries())))
        for part in divided.threads.all(IdMap.to_arrays)
    ]
    assert max(entries) - min(entries) <= len(divided.entries())
    assert sum(entries) == sum(
        len(array) for name, array in alone.to_arrays().items() if name in DIVIDED_ARRAYS
    )
    used = [one.nbytes for one in divided.threads.own]
    # Sizes of hash tables are powers of 2.
    assert max(used) <= 1.1 / size * alone.nbytes
    divided.threads.close()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_lowest_of_all_are_those_of_one_array(size):
    random = np.random.default_rng(3)
    drawn = [
        random.integers(-3, 3, 200),
        random.integers(-(2**62), 2**62, 200),
        np.zeros(200),
        random.integers(0, 4, 200) / 7,
        2.0 ** random.integers(-1000, 1000, 200),
        np.zeros(0),
    ]
    for values, count in itertools.product(drawn, (0, 1, 7, 100, 199, 200, 500)):
        expected = lowest(values, min(count, len(values)))

        def found(group, values=values, count=count):
            own = rows_of(group.rank, size, len(values)).rows
            return own[lowest_of_all(values[own], count, own, group)]

        threads = Threads(size, lambda group: group)
        assert np.sort(np.concatenate(threads.all(found))).tolist() == expected.tolist()
        threads.close()
