"""Compares the hash table of growing ids with library tables: lookups and insertions per second, and bytes per id.

    python benchmarks/bench_ids.py [--known 2600000] [--distinct 35000] [--new 2000] [--rounds 30]

All arms hold the same ids of 26 features, look up the distinct ids of a batch, and add a few new ones. A library's arm
also does what our own table does: it combines feature and fingerprint in one key, and checks that the id it finds is
the requested one, since that may have been evicted. Times are processor times over all threads: TensorFlow's
table uses several, which a training step then lacks. The limit is cache misses.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from pandas._libs.hashtable import Int64HashTable
from runner import Numbers, compare, main, processor_ms

from ctr.training.ids.id_table import IdTable, mix

FEATURES = 26
Ids = tuple[np.ndarray, np.ndarray]


def draw_ids(random: np.random.Generator, count: int) -> Ids:
    features = random.integers(0, FEATURES, count).astype(np.int16)
    return features, random.integers(1, 2**63 - 1, count)


class Table(Protocol):
    """Interface of an arm's table."""

    def find(self, *ids: np.ndarray) -> np.ndarray: ...
    def add(self, *ids: np.ndarray) -> object: ...
    @property
    def nbytes(self) -> int: ...


class OfLibrary:
    """A library's table, extended by keys that are pairs and by the id stored at each place."""

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


def batches(
    random: np.random.Generator, table_ids: Ids, distinct: int, new: int, count: int
) -> list[tuple[Ids, Ids]]:
    """Returns for each round the ids to look up, ``new`` of them unknown, and the unknown ids alone."""
    batch_ids = []
    for _ in range(count):
        fresh = draw_ids(random, new)
        old = random.choice(len(table_ids[0]), distinct - new, replace=False)
        both = tuple(np.concatenate([part[old], added]) for part, added in zip(table_ids, fresh, strict=True))
        order = random.permutation(distinct)
        batch_ids.append(((both[0][order], both[1][order]), fresh))
    return batch_ids


def tables(table_ids: Ids, batch_ids: list[tuple[Ids, Ids]]) -> dict[str, dict[str, Any]]:
    """Compares lookups and insertions of the tables, in turns."""
    most = len(table_ids[0]) + sum(len(fresh[0]) for _, fresh in batch_ids)
    kinds: Mapping[str, Table] = {
        "own": IdTable(),
        "pandas": OfPandas(most),
        "TensorFlow": OfTensorFlow(most),
    }
    built = {}
    for name, table in kinds.items():
        build = processor_ms(lambda table=table: table.add(*table_ids))
        built[name] = {"build_seconds": build / 1000, "bytes_per_id": table.nbytes / len(table_ids[0])}

    def arm(table: Table) -> Callable[[], Numbers]:
        rounds = iter(batch_ids)

        def turn() -> Numbers:
            ids, fresh = next(rounds)
            lookup_ms = processor_ms(lambda: table.find(*ids))
            added = processor_ms(lambda: table.add(*fresh))
            return {
                "lookup_ms": lookup_ms,
                "add_ms": added,
                "lookups_per_second": 1000 * len(ids[0]) / max(lookup_ms, 1e-9),
                "adds_per_second": 1000 * len(fresh[0]) / max(added, 1e-9),
            }

        return turn

    results = compare({name: arm(table) for name, table in kinds.items()}, len(batch_ids) - 1)
    return {name: built[name] | row for name, row in results.items()}


def measure(
    known: int = 2_600_000, distinct: int = 35_000, new: int = 2_000, rounds: int = 30
) -> dict[str, Any]:
    """Compares tables of ``known`` ids on batches of ``distinct`` ids, ``new`` of them unknown."""
    random = np.random.default_rng(0)
    ids = draw_ids(random, known)
    return {"tables": tables(ids, batches(random, ids, distinct, new, rounds + 1))}


if __name__ == "__main__":
    main(measure, {"known": 26_000, "distinct": 1000, "new": 100, "rounds": 2})
