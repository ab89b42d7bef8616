"""Batches of ids for maps with few slots, and what such maps are made of."""

import itertools

import numpy as np
from hypothesis import strategies as st

from ctr.training.ids.config import AdmissionConfig, EvictionConfig
from ctr.training.ids.id_map import GrowingFeature

SECOND = 1_000_000
POLICIES = ["none", "least_recent", "least_frequent", "score"]
VALUES = [*range(1, 8), -1, -(2**63), 2**63 - 1]


def make_features(capacities, shared_rows=(2, 1, 3)):
    features, begin = [], 4
    for number, (capacity, shared) in enumerate(zip(capacities, shared_rows, strict=False)):
        features.append(GrowingFeature(f"f{number}", begin, shared, capacity))
        begin += shared
    return features, begin


def arrays(ids):
    features, fingerprints = zip(*ids, strict=True) if ids else ((), ())
    return np.array(features, np.int16), np.array(fingerprints, np.int64)


@st.composite
def streams(draw):
    """Features, rules and batches of ids; the times are whole seconds, multiples of the half-life, not all rising."""
    count = draw(st.integers(1, 3))
    capacities = draw(st.lists(st.integers(1, 6), min_size=count, max_size=count))
    admission = AdmissionConfig(
        rule=draw(st.sampled_from(["always", "count", "probability"])),
        count=draw(st.integers(1, 4)),
        exact_ids=draw(st.sampled_from([1, 2, 5, 100])),
    )
    eviction = EvictionConfig(
        policy=draw(st.sampled_from(POLICIES)),
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
    steps = st.tuples(batch, st.sampled_from([0, 0, 1, 1, 2, 5, 40, -1, -3]), st.booleans())
    return capacities, admission, eviction, draw(st.lists(steps, max_size=14))
