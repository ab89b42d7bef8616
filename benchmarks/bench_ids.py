"""The map of growing ids: lookups, learned and new ids a second, and bytes an id, beside hash tables of libraries.

All arms know the same ids of 26 features, look up the distinct ids of a batch, and add a few new ones. An arm of a
library gets what the map's own table does as well: one number for a feature and a fingerprint, and the check that the
id found is the one asked for, since it may have been evicted. Arms take turns. Times are those of the processor, over
all threads: TensorFlow's table uses several, which a training step would be without. ``learn`` is all that a batch
costs: finding, counting, admitting, and for ``churn`` also evicting and rebuilding the table.

    python benchmarks/bench_ids.py [--known 2600000] [--distinct 35000] [--new 2000] [--turns 30] [--json]
"""

import argparse
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from pandas._libs.hashtable import Int64HashTable

from ctr.training.ids.config import AdmissionConfig, EvictionConfig
from ctr.training.ids.id_map import GrowingFeature, IdMap
from ctr.training.ids.id_table import IdTable, mix

FEATURES = 26
CHURN_SHARE = 1 / 16
Ids = tuple[np.ndarray, np.ndarray]


def draw_ids(random: np.random.Generator, count: int) -> Ids:
    features = random.integers(0, FEATURES, count).astype(np.int16)
    return features, random.integers(1, 2**63 - 1, count)


class Table(Protocol):
    """What an arm can do."""

    def find(self, ids: Ids) -> np.ndarray: ...
    def add(self, ids: Ids) -> None: ...
    def bytes_used(self) -> int: ...


class Own:
    def __init__(self) -> None:
        self.table = IdTable()

    def find(self, ids: Ids) -> np.ndarray:
        return self.table.find(*ids)

    def add(self, ids: Ids) -> None:
        self.table.add(*ids)

    def bytes_used(self) -> int:
        return self.table.nbytes


class OfLibrary(ABC):
    """What a library's table lacks: pairs as keys, and knowing which id is at a place."""

    def __init__(self, most: int) -> None:
        self.features, self.fingerprints = np.zeros(most, np.int16), np.zeros(most, np.int64)
        self.places = 0

    def find(self, ids: Ids) -> np.ndarray:
        features, fingerprints = ids
        places = self.find_keys(mix(features, fingerprints).view(np.int64))
        hits = np.flatnonzero(places >= 0)
        at = places[hits]
        same = (self.fingerprints.take(at) == fingerprints[hits]) & (self.features.take(at) == features[hits])
        places[hits[~same]] = -1
        return places

    def add(self, ids: Ids) -> None:
        places = np.arange(self.places, self.places + len(ids[0]))
        self.places += len(places)
        self.features[places], self.fingerprints[places] = ids
        self.add_keys(mix(*ids).view(np.int64), places)

    @abstractmethod
    def find_keys(self, keys: np.ndarray) -> np.ndarray: ...

    @abstractmethod
    def add_keys(self, keys: np.ndarray, places: np.ndarray) -> None: ...


class OfPandas(OfLibrary):
    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.table = Int64HashTable()

    def find_keys(self, keys: np.ndarray) -> np.ndarray:
        return self.table.lookup(keys)

    def add_keys(self, keys: np.ndarray, places: np.ndarray) -> None:
        self.table.map_keys_to_values(keys, places)

    def bytes_used(self) -> int:
        return self.table.sizeof() + 10 * self.places


class OfTensorFlow(OfLibrary):
    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.table = tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, -1, -1, -2)

    def find_keys(self, keys: np.ndarray) -> np.ndarray:
        return self.table.lookup(tf.constant(keys)).numpy().copy()

    def add_keys(self, keys: np.ndarray, places: np.ndarray) -> None:
        self.table.insert(tf.constant(keys), tf.constant(places))

    def bytes_used(self) -> int:
        # It doubles when 4/5 are filled; a key and a value have 8 bytes each.
        return 16 * 2 ** int(np.ceil(np.log2(self.places / 0.8))) + 10 * self.places


def seconds(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def batches(
    random: np.random.Generator, known: Ids, distinct: int, new: int, turns: int
) -> list[tuple[Ids, Ids]]:
    """For each turn the ids that are looked up, ``new`` of them unknown, and these alone."""
    made = []
    for _ in range(turns):
        fresh = draw_ids(random, new)
        old = random.choice(len(known[0]), distinct - new, replace=False)
        both = tuple(np.concatenate([part[old], added]) for part, added in zip(known, fresh, strict=True))
        order = random.permutation(distinct)
        made.append(((both[0][order], both[1][order]), fresh))
    return made


def measure_tables(known: Ids, made: list[tuple[Ids, Ids]]) -> dict[str, dict[str, float]]:
    """Milliseconds of a lookup and of adding, for each arm the median over the turns."""
    most = len(known[0]) + sum(len(fresh[0]) for _, fresh in made)
    arms: Mapping[str, Table] = {"own": Own(), "pandas": OfPandas(most), "TensorFlow": OfTensorFlow(most)}
    found: dict[str, dict[str, float]] = {}
    for name, arm in arms.items():
        build = seconds(lambda arm=arm: arm.add(known))
        found[name] = {"build_seconds": build, "bytes_per_id": arm.bytes_used() / len(known[0])}
    times: dict[tuple[str, str], list[float]] = {}
    for ids, fresh in made:
        for name, arm in arms.items():
            times.setdefault((name, "lookup_ms"), []).append(seconds(lambda arm=arm, ids=ids: arm.find(ids)))
            times.setdefault((name, "add_ms"), []).append(seconds(lambda arm=arm, new=fresh: arm.add(new)))
    for (name, what), taken in times.items():
        found[name][what] = 1e3 * float(np.median(taken))
    return found


def make_map(capacity: int, known: Ids) -> IdMap:
    features = [GrowingFeature(f"f{number}", 9 * number + 1, 8, capacity) for number in range(FEATURES)]
    made = IdMap(features, 9 * FEATURES, AdmissionConfig(), EvictionConfig(share=CHURN_SHARE))
    ones = np.ones(2**16, np.int64)
    for begin in range(0, len(known[0]), 2**16):
        part = slice(begin, begin + 2**16)
        features_, fingerprints = known[0][part], known[1][part]
        made.learn(features_, fingerprints, ones[: len(features_)], begin)
    return made


def measure_map(capacity: int, known: Ids, made: list[tuple[Ids, Ids]]) -> dict[str, float]:
    """What a map does with a batch: with room for all ids, or full, so that each new id lets another one go."""
    counts, one = np.ones(len(made[0][0][0]), np.int64), make_map(capacity, known)

    def evicted() -> int:
        return sum(feature.evicted for feature in one.counters().values())

    before, look_up, learn = evicted(), [], []
    for number, (ids, _) in enumerate(made):
        look_up.append(seconds(lambda ids=ids: one.look_up(*ids)))
        learn.append(seconds(lambda ids=ids, at=10**9 + number: one.learn(*ids, counts, at)))
    saved = one.to_arrays()
    return {
        "look_up_ms": 1e3 * float(np.median(look_up)),
        "learn_ms": 1e3 * float(np.median(learn)),
        # Evictions are rare and long: the mean has them in proportion.
        "learn_mean_ms": 1e3 * float(np.mean(learn)),
        "learn_max_ms": 1e3 * float(np.max(learn)),
        "evicted": evicted() - before,
        "bytes_per_id": one.nbytes / len(one.occupants().rows),
        "save_ms": 1e3 * seconds(one.to_arrays),
        "restore_ms": 1e3 * seconds(lambda: one.restore(saved)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--known", type=int, default=2_600_000, help="ids that are known")
    parser.add_argument("--distinct", type=int, default=35_000, help="ids of a batch")
    parser.add_argument("--new", type=int, default=2_000, help="of them new")
    parser.add_argument("--turns", type=int, default=30, help="batches")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    given = parser.parse_args()
    random = np.random.default_rng(0)
    known = draw_ids(random, given.known)
    made = batches(random, known, given.distinct, given.new, given.turns)
    found: dict[str, Any] = {"tables": measure_tables(known, made), "map": {}}
    for name, capacity in (("roomy", 2**22), ("churn", given.known // FEATURES)):
        found["map"][name] = measure_map(capacity, known, made)
    for row in found["tables"].values():
        row["lookups_per_second"] = given.distinct / row["lookup_ms"] * 1e3
        row["adds_per_second"] = given.new / row["add_ms"] * 1e3
    if given.json:
        print(json.dumps(found))
        return
    for title, rows in found.items():
        print(f"\n{title}: {given.distinct} distinct ids of which {given.new} new, {given.known} known")
        for name, row in rows.items():
            print(f"  {name:10}", "  ".join(f"{what} {value:,.2f}" for what, value in row.items()))


if __name__ == "__main__":
    main()
