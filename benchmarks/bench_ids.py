"""The map of growing ids: lookups, learned and new ids a second, and bytes an id, beside hash tables of libraries.

    python benchmarks/bench_ids.py [--known 2600000] [--distinct 35000] [--new 2000] [--rounds 30]

All arms know the same ids of 26 features, look up the distinct ids of a batch, and add a few new ones. An arm of a
library gets what the map's own table does as well: one number for a feature and a fingerprint, and the check that the
id found is the one asked for, since it may have been evicted. Times are those of the processor, over all threads:
TensorFlow's table uses several, which a training step would be without. ``learn`` is all that a batch costs: finding,
counting, admitting, and for ``churn`` also evicting and rebuilding the table. Its limit: misses of the caches.
"""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from pandas._libs.hashtable import Int64HashTable
from runner import Numbers, compare, main

from ctr.training.ids.config import AdmissionConfig, EvictionConfig
from ctr.training.ids.id_map import GrowingFeature, IdMap
from ctr.training.ids.id_table import IdTable, mix

FEATURES = 26
CHURN_SHARE = 1 / 16
BLOCK = 2**16
Ids = tuple[np.ndarray, np.ndarray]


def draw_ids(random: np.random.Generator, count: int) -> Ids:
    features = random.integers(0, FEATURES, count).astype(np.int16)
    return features, random.integers(1, 2**63 - 1, count)


class Table(Protocol):
    """What an arm can do."""

    def find(self, *ids: np.ndarray) -> np.ndarray: ...
    def add(self, *ids: np.ndarray) -> object: ...
    @property
    def nbytes(self) -> int: ...


class OfLibrary:
    """A library's table with what it lacks: pairs as keys, and knowing which id is at a place."""

    def __init__(self, most: int) -> None:
        self.features, self.fingerprints = np.zeros(most, np.int16), np.zeros(most, np.int64)
        self.places = 0

    def find(self, features: np.ndarray, fingerprints: np.ndarray) -> np.ndarray:
        places = self.find_keys(mix(features, fingerprints).view(np.int64))
        hits = np.flatnonzero(places >= 0)
        at = places[hits]
        same = (self.fingerprints.take(at) == fingerprints[hits]) & (self.features.take(at) == features[hits])
        places[hits[~same]] = -1
        return places

    def add(self, *ids: np.ndarray) -> None:
        places = np.arange(self.places, self.places + len(ids[0]))
        self.places += len(places)
        self.features[places], self.fingerprints[places] = ids
        self.add_keys(mix(*ids).view(np.int64), places)

    def find_keys(self, keys: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def add_keys(self, keys: np.ndarray, places: np.ndarray) -> None:
        raise NotImplementedError


class OfPandas(OfLibrary):
    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.table = Int64HashTable()
        self.find_keys, self.add_keys = self.table.lookup, self.table.map_keys_to_values

    @property
    def nbytes(self) -> int:
        return self.table.sizeof() + 10 * self.places


class OfTensorFlow(OfLibrary):
    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.table = tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, -1, -1, -2)

    def find_keys(self, keys: np.ndarray) -> np.ndarray:
        return self.table.lookup(tf.constant(keys)).numpy().copy()

    def add_keys(self, keys: np.ndarray, places: np.ndarray) -> None:
        self.table.insert(tf.constant(keys), tf.constant(places))

    @property
    def nbytes(self) -> int:
        # It doubles when 4/5 are filled; a key and a value have 8 bytes each.
        return 16 * 2 ** int(np.ceil(np.log2(self.places / 0.8))) + 10 * self.places


def worked_ms(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return 1000 * (time.process_time() - begin)


def batches(
    random: np.random.Generator, known: Ids, distinct: int, new: int, count: int
) -> list[tuple[Ids, Ids]]:
    """For each round the ids that are looked up, ``new`` of them unknown, and these alone."""
    made = []
    for _ in range(count):
        fresh = draw_ids(random, new)
        old = random.choice(len(known[0]), distinct - new, replace=False)
        both = tuple(np.concatenate([part[old], added]) for part, added in zip(known, fresh, strict=True))
        order = random.permutation(distinct)
        made.append(((both[0][order], both[1][order]), fresh))
    return made


def tables(known: Ids, made: list[tuple[Ids, Ids]]) -> dict[str, dict[str, Any]]:
    """A lookup and adding, in turns."""
    most = len(known[0]) + sum(len(fresh[0]) for _, fresh in made)
    kinds: Mapping[str, Table] = {
        "own": IdTable(),
        "pandas": OfPandas(most),
        "TensorFlow": OfTensorFlow(most),
    }
    built = {}
    for name, one in kinds.items():
        build = worked_ms(lambda one=one: one.add(*known))
        built[name] = {"build_seconds": build / 1000, "bytes_per_id": one.nbytes / len(known[0])}

    def arm(one: Table) -> Callable[[], Numbers]:
        rounds = iter(made)

        def turn() -> Numbers:
            ids, fresh = next(rounds)
            found = worked_ms(lambda: one.find(*ids))
            added = worked_ms(lambda: one.add(*fresh))
            return {
                "lookup_ms": found,
                "add_ms": added,
                "lookups_per_second": 1000 * len(ids[0]) / max(found, 1e-9),
                "adds_per_second": 1000 * len(fresh[0]) / max(added, 1e-9),
            }

        return turn

    found = compare({name: arm(one) for name, one in kinds.items()}, len(made) - 1)
    return {name: built[name] | row for name, row in found.items()}


def make_map(capacity: int, known: Ids) -> IdMap:
    features = [GrowingFeature(f"f{number}", 9 * number + 1, 8, capacity) for number in range(FEATURES)]
    made = IdMap(features, 9 * FEATURES, AdmissionConfig(), EvictionConfig(share=CHURN_SHARE))
    for begin in range(0, len(known[0]), BLOCK):
        part = [ids[begin : begin + BLOCK] for ids in known]
        made.learn(*part, np.ones(len(part[0]), np.int64), begin)
    return made


def of_map(capacity: int, known: Ids, made: list[tuple[Ids, Ids]]) -> dict[str, float]:
    """What a map does with a batch: with room for all ids, or full, so that each new id lets another one go."""
    counts, one = np.ones(len(made[0][0][0]), np.int64), make_map(capacity, known)

    def evicted() -> int:
        return sum(feature.evicted for feature in one.counters().values())

    before, look_up, learn = evicted(), [], []
    for number, (ids, _) in enumerate(made):
        look_up.append(worked_ms(lambda ids=ids: one.look_up(*ids)))
        learn.append(worked_ms(lambda ids=ids, at=10**9 + number: one.learn(*ids, counts, at)))
    saved = one.to_arrays()
    return {
        "look_up_ms": float(np.median(look_up)),
        "learn_ms": float(np.median(learn)),
        # Evictions are rare and long: the mean has them in proportion.
        "learn_mean_ms": float(np.mean(learn)),
        "learn_max_ms": float(np.max(learn)),
        "evicted": evicted() - before,
        "bytes_per_id": one.nbytes / len(one.occupants().rows),
        "save_ms": worked_ms(one.to_arrays),
        "restore_ms": worked_ms(lambda: one.restore(saved)),
    }


def measure(
    known: int = 2_600_000, distinct: int = 35_000, new: int = 2_000, rounds: int = 30
) -> dict[str, Any]:
    """With so many known ids, so many of a batch, and so many new ones among them."""
    random = np.random.default_rng(0)
    ids = draw_ids(random, known)
    made = batches(random, ids, distinct, new, rounds + 1)
    capacities = {"roomy": 2**22, "churn": known // FEATURES}
    return {
        "tables": tables(ids, made),
        "map": {name: of_map(capacity, ids, made) for name, capacity in capacities.items()},
    }


if __name__ == "__main__":
    main(measure, {"known": 26_000, "distinct": 1000, "new": 100, "rounds": 2})
