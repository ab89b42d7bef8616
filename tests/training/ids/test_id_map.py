"""The map of growing ids, of one process and of several workers, against the same rules in plain Python, id by id."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctr.training.ids.config import AdmissionConfig, EvictionConfig
from ctr.training.ids.id_map import DEALT_ARRAYS, GrowingFeature, IdMap
from ctr.workers.parts import Deal, reshard
from slow_id_map import SlowIdMap, fingerprint_of
from thread_group import Threads

SECOND = 1_000_000
# The hashes of the last ones begin at the last place of a hash table, two of them with the part that it keeps, too.
COLLIDING = [
    fingerprint_of(0, 1023 << 54 | middle << 40 | tag) for middle, tag in ((0, 0), (1, 0), (0, 1), (1, 1))
]
VALUES = [*range(1, 6), -1, -(2**63), 2**63 - 1, *COLLIDING]


def make_features(capacities, shared_rows=(2, 1, 3)):
    features, begin = [], 4
    for number, (capacity, shared) in enumerate(zip(capacities, shared_rows, strict=False)):
        features.append(GrowingFeature(f"f{number}", begin, shared, capacity))
        begin += shared
    return features, begin


def arrays(ids):
    features, fingerprints = zip(*ids, strict=True) if ids else ((), ())
    return np.array(features, np.int16), np.array(fingerprints, np.int64)


def learn(one, ids, counts=None, seconds=0, admit=None):
    counts = [1] * len(ids) if counts is None else counts
    admit = None if admit is None else np.array(admit, np.bool_)
    return one.learn(*arrays(ids), np.array(counts, np.int64), round(seconds * SECOND), admit)


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

    def to_arrays(self):
        """Those of all workers put together, as a checkpoint has them."""
        parts = self.threads.all(IdMap.to_arrays)
        whole = dict(parts[0])
        for name, length in self.entries().items():
            whole[name] = reshard(
                [(Deal(rank, self.size).part(length), part[name]) for rank, part in enumerate(parts)]
            )
        for part in parts:
            for name in whole.keys() - set(DEALT_ARRAYS):
                np.testing.assert_array_equal(part[name], whole[name])
        return whole

    def continued(self, size):
        """The maps of another number of workers that go on where these stand, as after a resume."""
        saved, other = self.to_arrays(), DividedMap(size, *self.arguments)
        self.threads.close()
        entries = {name: len(array) for name, array in saved.items() if name in DEALT_ARRAYS}

        def restore(one):
            own = {
                name: saved[name][Deal(one.group.rank, size).part(length).rows]
                for name, length in entries.items()
            }
            one.restore(saved | own, entries)

        other.threads.all(restore)
        return other


def continued(one, *arguments):
    """The map of one process in another process."""
    saved = {name: array.copy() for name, array in one.to_arrays().items()}
    fresh = IdMap(*arguments)
    fresh.restore(saved)
    for name, array in fresh.to_arrays().items():
        np.testing.assert_array_equal(array, saved[name])
        assert array.dtype == saved[name].dtype
    return fresh


def check(fast, slow, first_slot):
    """Compares all that a map says of itself with the rules in plain Python."""
    for number, (name, found) in enumerate(fast.counters().items()):
        assert name == slow.features[number].name
        assert found.occupancy == slow.occupancy(number) <= found.capacity == slow.features[number].capacity
        assert {key: getattr(found, key) for key in slow.totals[number]} == slow.totals[number]
    found = fast.occupants()
    expected = sorted(slow.slots.items(), key=lambda item: item[1].slot)
    assert found.rows.tolist() == [first_slot + slot.slot for _, slot in expected]
    assert list(zip(found.features.tolist(), found.fingerprints.tolist(), strict=True)) == [
        one for one, _ in expected
    ]
    assert found.first_seen.tolist() == [slot.first for _, slot in expected]
    assert found.last_seen.tolist() == [slot.last for _, slot in expected]
    assert found.uses.tolist() == [slot.uses for _, slot in expected]
    assert found.frequency.tolist() == [slow.frequency(one) for one, _ in expected]


@st.composite
def streams(draw):
    """Features, rules and batches of ids; the times are whole seconds, multiples of the half-life, not all rising.

    Of each batch: ids with a count and whether they were drawn, the seconds since the one before, and the number of
    workers that go on after it; 0: the same ones.
    """
    count = draw(st.integers(1, 3))
    capacities = draw(st.lists(st.sampled_from([1, 2, 3, 6, 10]), min_size=count, max_size=count))
    admission = AdmissionConfig(
        rule=draw(st.sampled_from(["always", "count", "probability"])),
        count=draw(st.integers(1, 4)),
        exact_ids=draw(st.sampled_from([1, 2, 5, 100])),
    )
    eviction = EvictionConfig(
        policy=draw(st.sampled_from(["none", "least_recent", "least_frequent", "score"])),
        share=draw(st.sampled_from([0.01, 0.34, 0.5, 1.0])),
        half_life=1,
        max_idle=draw(st.sampled_from([None, 1, 3, 10])),
        every=draw(st.sampled_from([1, 2, 5])),
    )
    every_id = list(itertools.product(range(count), VALUES))
    batch = st.lists(
        st.tuples(st.sampled_from(every_id), st.integers(1, 3), st.booleans()),
        max_size=12,
        unique_by=lambda one: one[0],
    )
    steps = st.tuples(batch, st.sampled_from([0, 0, 1, 1, 2, 5, 40, -1, -3]), st.integers(0, 4))
    return capacities, admission, eviction, draw(st.lists(steps, max_size=14))


def check_stream(stream):
    capacities, admission, eviction, steps = stream
    features, first_slot = make_features(capacities)
    arguments = (features, first_slot, admission, eviction)
    fast, slow, divided = IdMap(*arguments), SlowIdMap(*arguments), DividedMap(2, *arguments)
    every_id = list(itertools.product(range(len(features)), VALUES))
    seconds = 10
    for batch, passed, size in steps:
        seconds += passed
        ids, counts, admit = ([one[part] for one in batch] for part in range(3))
        learned = learn(fast, ids, counts, seconds, admit)
        rows, fresh = slow.learn(ids, counts, seconds * SECOND, admit)
        assert (learned.rows.tolist(), learned.fresh.tolist()) == (rows, fresh)
        assert (learned.rows.dtype, fast.rows) == (np.int32, slow.rows)
        assert fast.rows <= first_slot + sum(capacities)
        assert_equal(learn(divided, ids, counts, seconds, admit), learned)
        if size:
            fast, divided = continued(fast, *arguments), divided.continued(size)
        assert fast.look_up(*arrays(every_id)).tolist() == slow.look_up(every_id)
        check(fast, slow, first_slot)
        assert_equal(divided.to_arrays(), fast.to_arrays())
        assert_equal(divided.look_up(*arrays(every_id)), fast.look_up(*arrays(every_id)))
        assert_equal(divided.counters(), fast.counters())
        assert_equal(divided.ids_by_row(), fast.ids_by_row())
    divided.threads.close()


def idle(seconds):
    """A full feature of one slot, whose id has not been seen for some seconds when another one comes."""
    eviction = EvictionConfig(policy="none", half_life=1, max_idle=3, every=1)
    steps = [([((0, 1), 1, True)], 0, 0), ([((0, 2), 1, True)], seconds, 3)]
    return [1], AdmissionConfig(), eviction, steps


@settings(max_examples=30)
@given(streams())
# Just not idle for too long, and just so.
@example(idle(3))
@example(idle(4))
def test_one_map_and_those_of_several_workers_follow_the_rules_in_plain_python(stream):
    check_stream(stream)


@pytest.mark.soak
@settings(max_examples=1000)
@given(streams())
def test_the_rules_in_plain_python_in_many_more_streams(stream):
    check_stream(stream)


@pytest.mark.parametrize(
    ("rule", "policy", "size"),
    [("always", "score", 2), ("count", "least_recent", 3), ("count", "least_frequent", 2)],
)
def test_a_long_stream_with_churn(rule, policy, size):
    # Large enough for several sizes of the hash table, for many evictions of a share, and for a sketch.
    features, first_slot = make_features([250, 150])
    admission = AdmissionConfig(rule=rule, count=2, exact_ids=200)
    arguments = (features, first_slot, admission, EvictionConfig(policy=policy, half_life=1, max_idle=20))
    fast, slow, divided = IdMap(*arguments), SlowIdMap(*arguments), DividedMap(size, *arguments)
    random = np.random.default_rng(0)
    for second in range(60):
        drawn = 20 * second + (random.zipf(1.3, 120) % 3000)
        values, counts = np.unique(drawn, return_counts=True)
        ids = [(int(value) % 2, int(value)) for value in values]
        learned = learn(fast, ids, counts, second)
        rows, fresh = slow.learn(ids, counts.tolist(), second * SECOND, None)
        assert (learned.rows.tolist(), learned.fresh.tolist()) == (rows, fresh)
        assert_equal(learn(divided, ids, counts, second), learned)
        if second % 25 == 24:
            fast = continued(fast, *arguments)
    check(fast, slow, first_slot)
    assert_equal(divided.to_arrays(), fast.to_arrays())
    divided.threads.close()
    assert all(found.evicted > 100 for found in fast.counters().values())


@pytest.mark.parametrize(("policy", "half_life"), [("score", 1), ("score", 1000), ("none", 1000)])
def test_several_batches_at_once_are_learned_as_one_after_the_other(policy, half_life):
    random, together = np.random.default_rng(0), 0
    for _ in range(60):
        features, first_slot = make_features([14, 9])
        eviction = EvictionConfig(policy=policy, share=0.2, half_life=half_life)
        arguments = (features, first_slot, AdmissionConfig(), eviction)
        one, other = IdMap(*arguments), IdMap(*arguments)
        seconds = 0.0
        for _ in range(5):
            batches = []
            for size in random.integers(0, 6, random.integers(1, 6)):
                seconds += random.choice([-3, 0, 0.5, 2, 700])
                ids = random.permutation(list(itertools.product(range(2), range(1, 13))))[:size]
                counts = random.integers(1, 4, size)
                batches.append((*arrays(ids.tolist()), counts, round(seconds * SECOND)))
            *columns, times = zip(*batches, strict=True)
            lengths = np.array([len(counts) for counts in columns[-1]])
            joined = list(map(np.concatenate, columns))
            codes = pd.factorize(100 * joined[1] + joined[0])[0]
            found = other.learn_batches(*joined, codes, lengths, times)
            expected = [one.learn(*batch) for batch in batches]
            if found is None:
                for batch in batches:
                    other.learn(*batch)
            else:
                together += 1
                begins = np.cumsum([0, *(len(each.rows) for each in expected)])
                fresh = [begin + each.fresh for begin, each in zip(begins, expected, strict=False)]
                np.testing.assert_array_equal(found.rows, np.concatenate([each.rows for each in expected]))
                np.testing.assert_array_equal(found.fresh, np.concatenate(fresh))
            assert_equal(other.to_arrays(), one.to_arrays())
    # Where no id goes, those that find no room are no obstacle.
    assert together == 300 if policy == "none" else 100 < together < 300


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
    # Sizes of hash tables are powers of 2.
    assert max(one.nbytes for one in divided.threads.own) <= 1.1 / size * alone.nbytes
    divided.threads.close()


def single(capacity, policy, **options):
    features, first_slot = make_features([capacity])
    return IdMap(
        features, first_slot, AdmissionConfig(), EvictionConfig(policy=policy, **options)
    ), first_slot


def occupied(one):
    return set(one.occupants().fingerprints.tolist())


def test_the_score_adds_a_hundredth_of_the_half_life_to_the_time_since_an_id_was_seen():
    # 1 has half of its count left after 100 s: 15 / 101 is less than 1 / 1, and 150 / 101 more.
    for count, gone in ((30, 1), (300, 2)):
        one, _ = single(2, "score", share=0.01, half_life=100)
        learn(one, [(0, 1)], [count], 0)
        learn(one, [(0, 2)], [1], 100)
        learn(one, [(0, 3)], [1], 100)
        assert occupied(one) == {1, 2, 3} - {gone}


def test_frequencies_are_those_of_the_definition():
    one, _ = single(10, "score", half_life=3)
    random = np.random.default_rng(0)
    # Far longer than a float64 reaches in one direction; at the end so that occurrences of several times count.
    steps = [random.choice([0.3, 1.7, 40, 900], 300), random.choice([0.3, 1.7], 20)]
    times = np.cumsum(np.concatenate(steps))
    seen = []
    for time in times:
        values = random.permutation(9)[: random.integers(1, 9)] + 1
        counts = random.integers(1, 4, len(values))
        learn(one, [(0, value) for value in values], counts, time)
        seen += [(int(value), int(count), float(time)) for value, count in zip(values, counts, strict=True)]
    found = one.occupants()
    for value, frequency in zip(found.fingerprints, found.frequency, strict=True):
        own = [(count, time) for other, count, time in seen if other == value]
        assert frequency == pytest.approx(
            sum(count * 2 ** ((time - times[-1]) / 3) for count, time in own), rel=1e-6
        )


def test_adopted_ids_are_what_they_were():
    features, first_slot = make_features([5, 5])
    arguments = (AdmissionConfig(rule="count", count=3), EvictionConfig(half_life=1))
    old = IdMap(features, first_slot, *arguments)
    learn(old, [(0, 1), (1, 1), (1, 2)], [3, 4, 5], 10)
    learn(old, [(1, 2), (0, 3)], [1, 3], 12)
    found = old.occupants()
    new = IdMap([features[1], features[0]], 100, *arguments)
    assert new.adopt(1 - found.features, found).tolist() == [100, 101, 102, 103]
    again = new.occupants()
    np.testing.assert_array_equal(again.features, 1 - found.features)
    for name in ("fingerprints", "first_seen", "last_seen", "uses", "frequency", "time_us"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
    assert learn(new, [(0, 1), (1, 3)], seconds=13).rows.tolist() == [101, 103]
    assert new.counters()["f0"].admitted == 0


def test_a_smaller_map_adopts_what_its_policy_keeps_and_evicts_in_the_same_order():
    old, _ = single(10, "least_recent")
    for second, value in enumerate([4, 2, 9, 7]):
        learn(old, [(0, value)], seconds=second)
    new, first_slot = single(2, "least_recent")
    found = old.occupants()
    assert new.adopt(found.features, found).tolist() == [-1, -1, first_slot, first_slot + 1]
    assert occupied(new) == {9, 7}
    old, new = (single(3, "score", share=0.01, half_life=10)[0] for _ in range(2))
    for second, ids in enumerate([[1, 2, 3], [1, 2], [1, 3], [3]]):
        learn(old, [(0, value) for value in ids], seconds=20 * second)
    found = old.occupants()
    new.adopt(found.features, found)
    for one in (old, new):
        learn(one, [(0, 4)], seconds=70)
    assert occupied(new) == occupied(old) == {1, 3, 4}


def test_what_is_saved_or_read_is_apart_from_the_map():
    one, _ = single(4, "least_frequent")
    assert occupied(one) == set()
    learn(one, [(0, 1)], seconds=0)
    saved = one.to_arrays()
    kept = {name: array.copy() for name, array in saved.items()}
    one.occupants(), one.counters(), one.look_up(*arrays([(0, 1), (0, 5)]))
    assert_equal(one.to_arrays(), kept)
    learn(one, [(0, 1), (0, 2)], seconds=1)
    assert_equal(saved, kept)
    two = IdMap(*make_features([2, 2]), AdmissionConfig(), EvictionConfig())
    with pytest.raises(ValueError, match="2 features"):
        two.restore(saved)
    drawing = IdMap(*make_features([5]), AdmissionConfig(rule="probability"), EvictionConfig())
    with pytest.raises(ValueError, match="requires admit"):
        learn(drawing, [(0, 1)])
