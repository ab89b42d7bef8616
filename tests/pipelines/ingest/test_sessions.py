"""Sessions and queries against a plain-Python cut."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import raw_logs
from ctr.pipelines.ingest.partitions import assign_queries

EVENTS = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 60)), max_size=40)
GAPS = st.one_of(st.none(), st.integers(1, 20))


def split(events):
    return (np.array([event[place] for event in events], np.int64) for place in (0, 1))


@given(EVENTS, GAPS)
def test_queries_are_those_of_a_plain_cut(events, gap):
    ids, times = assign_queries(*split(events), gap)
    assert list(zip(ids.tolist(), times.tolist(), strict=True)) == raw_logs.plain_sessions(events, gap)


@given(EVENTS, GAPS, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(events, gap, source):
    shuffled = list(range(len(events)))
    source.shuffle(shuffled)
    straight = np.stack(assign_queries(*split(events), gap))
    turned = np.stack(assign_queries(*split([events[place] for place in shuffled]), gap))
    assert (straight[:, shuffled] == turned).all()
