"""The map of growing ids against the same rules in plain Python, id by id."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.training.ids.config import AdmissionConfig, EvictionConfig
from ctr.training.ids.id_map import IdMap
from id_streams import POLICIES, SECOND, VALUES, arrays, make_features, streams
from slow_id_map import SlowIdMap


def learn(one, ids, counts=None, seconds=0, admit=None):
    counts = [1] * len(ids) if counts is None else counts
    admit = None if admit is None else np.array(admit, np.bool_)
    return one.learn(*arrays(ids), np.array(counts, np.int64), round(seconds * SECOND), admit)


def continued(one, *arguments):
    """The map in another process."""
    saved = {name: array.copy() for name, array in one.to_arrays().items()}
    fresh = IdMap(*arguments)
    fresh.restore(saved)
    for name, array in fresh.to_arrays().items():
        np.testing.assert_array_equal(array, saved[name])
        assert array.dtype == saved[name].dtype
    return fresh


@pytest.mark.slow
@settings(max_examples=200)
@given(streams())
def test_like_the_rules_in_plain_python(stream):
    capacities, admission, eviction, steps = stream
    features, first_slot = make_features(capacities)
    arguments = (features, first_slot, admission, eviction)
    fast, slow = IdMap(*arguments), SlowIdMap(*arguments)
    every_id = list(itertools.product(range(len(features)), VALUES))
    seconds = 10
    for batch, passed, killed in steps:
        seconds += passed
        ids, counts, admit = ([one[part] for one in batch] for part in range(3))
        assert fast.look_up(*arrays(ids)).tolist() == slow.look_up(ids)
        learned = learn(fast, ids, counts, seconds, admit)
        rows, fresh = slow.learn(ids, counts, seconds * SECOND, admit)
        assert learned.rows.tolist() == rows
        assert learned.fresh.tolist() == fresh
        assert (learned.rows.dtype, fast.rows) == (np.int32, slow.rows)
        assert fast.rows <= first_slot + sum(capacities)
        if killed:
            fast = continued(fast, *arguments)
        assert fast.look_up(*arrays(every_id)).tolist() == slow.look_up(every_id)
        check_counters(fast, slow)
        check_occupants(fast, slow, first_slot)


def check_counters(fast, slow):
    for number, (name, found) in enumerate(fast.counters().items()):
        assert name == slow.features[number].name
        assert found.occupancy == slow.occupancy(number) <= found.capacity == slow.features[number].capacity
        assert {key: getattr(found, key) for key in slow.totals[number]} == slow.totals[number]
        assert found.occupancy == found.admitted - found.evicted
        assert found.refused <= found.shared <= found.occurrences


def check_occupants(fast, slow, first_slot):
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


@pytest.mark.slow
@given(st.lists(st.lists(st.tuples(st.integers(0, 1), st.sampled_from(VALUES)), unique=True), max_size=12))
def test_without_eviction_it_is_a_dictionary(batches):
    features, first_slot = make_features([len(VALUES)] * 2)
    one = IdMap(features, first_slot, AdmissionConfig(), EvictionConfig(policy="none"))
    rows = {}
    for number, ids in enumerate(batches):
        fresh = [position for position, pair in enumerate(ids) if pair not in rows]
        for position in fresh:
            rows[ids[position]] = first_slot + len(rows)
        learned = learn(one, ids, seconds=number)
        assert learned.rows.tolist() == [rows[pair] for pair in ids]
        assert learned.fresh.tolist() == fresh


@pytest.mark.parametrize("policy", ["least_recent", "least_frequent", "score"])
@pytest.mark.parametrize("rule", ["always", "count"])
def test_a_long_stream_with_churn(policy, rule):
    # Large enough for several sizes of the hash table, and for many evictions of a share.
    features, first_slot = make_features([250, 150])
    admission = AdmissionConfig(rule=rule, count=2, exact_ids=200)
    arguments = (features, first_slot, admission, EvictionConfig(policy=policy, half_life=1, max_idle=20))
    fast, slow = IdMap(*arguments), SlowIdMap(*arguments)
    random = np.random.default_rng(0)
    for second in range(60):
        drawn = 20 * second + (random.zipf(1.3, 120) % 3000)
        values, counts = np.unique(drawn, return_counts=True)
        ids = [(int(value) % 2, int(value)) for value in values]
        learned = learn(fast, ids, counts, second)
        rows, fresh = slow.learn(ids, counts.tolist(), second * SECOND, None)
        assert learned.rows.tolist() == rows
        assert learned.fresh.tolist() == fresh
        if second % 25 == 24:
            fast = continued(fast, *arguments)
    check_counters(fast, slow)
    assert min(found.evicted for found in fast.counters().values()) > 100


def single(capacity, policy, **options):
    features, first_slot = make_features([capacity])
    return IdMap(
        features, first_slot, AdmissionConfig(), EvictionConfig(policy=policy, **options)
    ), first_slot


def occupied(one):
    return set(one.occupants().fingerprints.tolist())


def test_policies_differ_where_they_should():
    # 1 was frequent long ago, 2 was seen once a moment ago, 3 a few times some time ago.
    kept = {}
    for policy in POLICIES:
        one, _ = single(3, policy, share=0.01, half_life=100)
        learn(one, [(0, 1)], [50], 0)
        learn(one, [(0, 3)], [4], 200)
        learn(one, [(0, 2)], [1], 300)
        learn(one, [(0, 4)], [1], 301)
        kept[policy] = occupied(one)
    assert kept == {
        "none": {1, 2, 3},
        "least_recent": {2, 3, 4},
        "least_frequent": {1, 3, 4},
        "score": {1, 2, 4},
    }


def test_a_full_feature_counts_what_it_refuses_and_goes_on():
    one, first_slot = single(2, "none")
    learned = learn(one, [(0, 1), (0, 2), (0, 3)], [1, 1, 5], 0)
    assert learned.rows.tolist()[:2] == [first_slot, first_slot + 1]
    assert 4 <= learned.rows[2] < 6
    found = one.counters()["f0"]
    assert (found.occupancy, found.refused, found.shared, found.occurrences) == (2, 5, 5, 7)


def test_more_new_ids_than_the_capacity():
    one, first_slot = single(3, "least_recent")
    learn(one, [(0, 100), (0, 101)], seconds=0)
    learned = learn(one, [(0, value) for value in range(1, 9)], seconds=1)
    assert learned.fresh.tolist() == [0, 1, 2]
    assert sorted(learned.rows[:3].tolist()) == [first_slot + number for number in range(3)]
    assert (learned.rows[3:] < first_slot).all()
    assert occupied(one) == {1, 2, 3}


def test_ids_of_the_batch_are_never_evicted():
    one, _ = single(2, "least_recent", share=1.0)
    learn(one, [(0, 1), (0, 2)], seconds=0)
    learned = learn(one, [(0, 3), (0, 1)], seconds=1)
    assert learned.fresh.tolist() == [0]
    assert occupied(one) == {1, 3}


def test_a_batch_without_ids_changes_nothing_but_the_time():
    one, first_slot = single(2, "least_recent", max_idle=5, every=1)
    assert learn(one, [], seconds=0).rows.tolist() == []
    learn(one, [(0, 1)], seconds=0)
    assert learn(one, [], seconds=5).fresh.tolist() == []
    assert occupied(one) == {1}
    learn(one, [], seconds=6)
    assert occupied(one) == set()
    assert one.rows == first_slot + 1


def test_a_returning_id_is_not_idle():
    one, _ = single(2, "least_recent", max_idle=5, every=1)
    learn(one, [(0, 1)], seconds=0)
    assert learn(one, [(0, 1)], seconds=100).fresh.tolist() == []


def test_times_that_go_backwards_count_as_the_latest_one():
    one, _ = single(2, "least_recent", share=0.01)
    learn(one, [(0, 1)], seconds=50)
    learn(one, [(0, 2)], seconds=40)
    assert one.occupants().last_seen.tolist() == [50 * SECOND] * 2
    assert one.occupants().time_us == 50 * SECOND


def test_frequencies_are_those_of_the_definition():
    one, _ = single(10, "score", half_life=3)
    random = np.random.default_rng(0)
    # Far longer than a float64 reaches in one direction.
    times = np.cumsum(random.choice([0.3, 1.7, 40, 900], 300))
    seen = []
    for time in times:
        values = random.permutation(9)[: random.integers(1, 9)] + 1
        counts = random.integers(1, 4, len(values))
        learn(one, [(0, value) for value in values], counts, time)
        seen += [(int(value), int(count), float(time)) for value, count in zip(values, counts, strict=True)]
    found = one.occupants()
    for value, frequency, uses in zip(found.fingerprints, found.frequency, found.uses, strict=True):
        own = [(count, time) for other, count, time in seen if other == value]
        assert frequency == pytest.approx(
            sum(count * 2 ** ((time - times[-1]) / 3) for count, time in own), rel=1e-6
        )
        assert uses == sum(count for count, _ in own)


def test_admission_by_probability_needs_what_was_drawn():
    features, first_slot = make_features([5])
    one = IdMap(features, first_slot, AdmissionConfig(rule="probability"), EvictionConfig())
    with pytest.raises(ValueError, match="admit"):
        learn(one, [(0, 1)])


def test_shared_rows_are_used_evenly_and_by_the_fingerprint_alone():
    features, first_slot = make_features([5, 5], shared_rows=(8, 8))
    one = IdMap(features, first_slot, AdmissionConfig(), EvictionConfig())
    ids = [(feature, value) for feature in (0, 1) for value in range(1, 4001)]
    rows = one.look_up(*arrays(ids)).reshape(2, -1)
    counts = np.bincount(rows[0] - features[0].shared_row, minlength=8)
    assert len(counts) == 8 and counts.min() > 400
    np.testing.assert_array_equal(rows[1] - rows[0], 8)
    assert one.counters()["f0"].occurrences == 0


def adopt(one, found, features=None):
    return one.adopt(found.features if features is None else features, found)


def test_adopted_ids_are_what_they_were():
    features, first_slot = make_features([5, 5])
    arguments = (AdmissionConfig(rule="count", count=3), EvictionConfig(half_life=1))
    old = IdMap(features, first_slot, *arguments)
    learn(old, [(0, 1), (1, 1), (1, 2)], [3, 4, 5], 10)
    learn(old, [(1, 2), (0, 3)], [1, 3], 12)
    found = old.occupants()
    new = IdMap([features[1], features[0]], 100, *arguments)
    rows = adopt(new, found, 1 - found.features)
    assert rows.tolist() == [100, 101, 102, 103]
    again = new.occupants()
    np.testing.assert_array_equal(again.features, 1 - found.features)
    for name in ("fingerprints", "first_seen", "last_seen", "uses", "frequency", "time_us"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
    assert learn(new, [(0, 1), (1, 3)], seconds=13).rows.tolist() == [101, 103]
    assert new.counters()["f0"].admitted == 0


def test_a_smaller_map_adopts_what_its_policy_keeps():
    old, _ = single(10, "least_recent")
    for second, value in enumerate([4, 2, 9, 7]):
        learn(old, [(0, value)], seconds=second)
    new, first_slot = single(2, "least_recent")
    assert adopt(new, old.occupants()).tolist() == [-1, -1, first_slot, first_slot + 1]
    assert occupied(new) == {9, 7}


def test_the_order_of_evictions_goes_on_after_an_adoption():
    old, _ = single(3, "score", share=0.01, half_life=10)
    for second, ids in enumerate([[1, 2, 3], [1, 2], [1, 3], [3]]):
        learn(old, [(0, value) for value in ids], seconds=20 * second)
    new, _ = single(3, "score", share=0.01, half_life=10)
    adopt(new, old.occupants())
    for one in (old, new):
        learn(one, [(0, 4)], seconds=70)
    assert occupied(new) == occupied(old) == {1, 3, 4}


def test_arrays_of_another_map_are_refused():
    one, _ = single(2, "none")
    features, first_slot = make_features([2, 2])
    two = IdMap(features, first_slot, AdmissionConfig(), EvictionConfig())
    with pytest.raises(ValueError, match="2 features"):
        two.restore(one.to_arrays())


def test_what_is_saved_does_not_change_any_more():
    one, _ = single(4, "least_recent")
    learn(one, [(0, 1)], seconds=0)
    saved = one.to_arrays()
    kept = {name: array.copy() for name, array in saved.items()}
    learn(one, [(0, 1), (0, 2)], seconds=1)
    for name, array in saved.items():
        np.testing.assert_array_equal(array, kept[name])


def test_reading_changes_nothing():
    one, _ = single(4, "least_frequent")
    for _ in range(2):
        before = one.to_arrays()
        one.occupants(), one.counters(), one.look_up(*arrays([(0, 1), (0, 5)]))
        for name, array in one.to_arrays().items():
            np.testing.assert_array_equal(array, before[name])
        learn(one, [(0, 1)], seconds=10)
