"""The hash table against a dictionary."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.training.ids.id_table import IdTable
from slow_id_map import fingerprint_of


def arrays(pairs):
    features, fingerprints = zip(*pairs, strict=True) if pairs else ((), ())
    return np.array(features, np.int16), np.array(fingerprints, np.int64)


class Checked:
    """A table beside a dictionary that gives the lowest free places."""

    def __init__(self):
        self.table, self.places, self.free, self.used = IdTable(), {}, [], 0

    def add(self, pairs):
        for pair in pairs:
            if self.free:
                self.places[pair] = self.free.pop(0)
            else:
                self.places[pair], self.used = self.used, self.used + 1
        added = self.table.add(*arrays(pairs))
        assert added.tolist() == [self.places[pair] for pair in pairs]

    def remove(self, pairs):
        self.table.remove(np.array([self.places[pair] for pair in pairs], np.int64))
        self.free = sorted([*self.free, *(self.places.pop(pair) for pair in pairs)])

    def check(self, pairs):
        expected = [self.places.get(pair, -1) for pair in pairs]
        assert self.table.find(*arrays(pairs)).tolist() == expected
        assert (self.table.count, self.table.places) == (len(self.places), self.used)
        assert self.table.taken().tolist() == sorted(self.places.values())


def colliding(position, tags, between):
    """Pairs whose hashes share the first position, some also the part that the table keeps."""
    return [
        (feature, fingerprint_of(feature, position << 54 | middle << 40 | tag))
        for feature in (0, 7)
        for tag in range(tags)
        for middle in range(feature, feature + between)
    ]


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "remove", "again", "clear"]), st.lists(st.integers(0, 40), unique=True)
        ),
        max_size=12,
    )
)
def test_any_order_of_calls(calls):
    pairs = colliding(1023, tags=2, between=10)
    pairs += [(feature, value) for feature in (1, 32767) for value in (-(2**63), -1, 1, 5, 2**63 - 1)]
    checked = Checked()
    for call, numbers in calls:
        chosen = [pairs[number] for number in numbers]
        if call == "add":
            checked.add([pair for pair in chosen if pair not in checked.places])
        elif call == "remove":
            checked.remove([pair for pair in chosen if pair in checked.places])
        elif call == "again":
            arrays_ = checked.table.to_arrays()
            checked.table = IdTable()
            checked.table.restore(arrays_)
        else:
            checked.table.clear()
            checked.places, checked.free, checked.used = {}, [], 0
        checked.check(pairs)
