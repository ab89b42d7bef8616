"""Writes a simulated world as a raw Parquet table, with the mapping for ``ctr ingest table``.

A click is drawn from the sigmoid of the sum of a drifting base rate, an effect of each value, joint effects of pairs,
and noise that the rows of a query share. Rows are generated about 100,000 at a time, in the order of time; all random
numbers come from the world's seed and the number of the chunk, so that the same world has the same bytes.

::

    FOLDER/rows.parquet    the table; its column `probability` is the truth, not a feature
    FOLDER/mapping.yaml
"""

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from ctr.io.hashing import uniform_hash
from many_logs.worlds import Feature, World

START_US = 1_700_000_000_000_000
DAY_US = 86_400_000_000
CHUNK_ROWS = 100_000
RANK = 4
"""Dimension of the vectors whose scalar products are joint effects."""

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def write_world(world: World, folder: Path, max_rows: int | None = None) -> None:
    """Writes the table and its mapping.

    Args:
        world: the world.
        folder: output folder, created if absent.
        max_rows: maximum number of rows; a shorter log covers the same span of time.
    """
    if max_rows is not None and max_rows < world.rows:
        world = replace(world, rows=max_rows)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mapping.yaml").write_text(yaml.safe_dump(mapping_of(world), sort_keys=False))
    parts = chunks(world)
    first = next(parts)
    with pq.ParquetWriter(folder / "rows.parquet", first.schema, compression="zstd") as writer:
        for part in chain([first], parts):
            writer.write_table(part)


def mapping_of(world: World) -> dict[str, Any]:
    """Returns the mapping of a world's table, which does not contain numbers of distinct values."""
    features = [_mapped(feature) for feature in world.features]
    features += [{"name": f"{a}_x_{b}", "kind": "cross", "of": [a, b]} for a, b in world.crosses]
    clocks = [feature.kind for feature in world.features if feature.kind in ("hour", "weekday")]
    mapping: dict[str, Any] = {"input": {"type": "parquet"}, "time": {"column": "shown_at", "unit": "us"}}
    if world.max_query_rows > 1:
        mapping["query"] = {"column": "query_id"}
    mapping |= {"example_id": "example_id", "label": "clicked", "partition": "1d"}
    if clocks:
        mapping["derive"] = {kind: {"from": "time", "part": kind} for kind in clocks}
    return {**mapping, "features": features}


def _mapped(feature: Feature) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": feature.name, "kind": "category", "source": feature.name}
    if feature.kind == "number":
        entry |= {"kind": "number", "log": {"per_octave": 2, "maximum": 10_000}}
    elif feature.kind == "text":
        entry["kind"] = "text"
    elif feature.kind == "tags":
        entry["multivalent"] = True
    return entry


def chunks(world: World) -> Iterator[pa.Table]:
    """Yields the table in parts, in the order of time."""
    first_row, time = _queries(world)
    # The first query of each chunk, and the number of all queries.
    begins = np.searchsorted(first_row[:-1], np.arange(0, first_row[-1], CHUNK_ROWS))
    bounds = np.unique(np.append(begins, len(first_row) - 1))

    def chunk(number: int) -> _Chunk:
        return _Chunk(world, number, first_row, time, *bounds[number : number + 2])

    some = sorted({round(x) for x in np.linspace(0, len(bounds) - 2, 5)})
    base = _intercept(np.concatenate([chunk(number).score for number in some]), world.rate)
    for number in range(len(bounds) - 1):
        yield chunk(number).table(base)


def _queries(world: World) -> tuple[IntArray, IntArray]:
    """Returns the row offsets of queries, int64 [Q + 1], and their times, int64 [Q], ascending, in microseconds."""
    rng = np.random.default_rng([world.seed, 0])
    count = math.ceil(1.5 * world.rows / world.query_rows) + 100
    if world.max_query_rows == 1:
        sizes = np.ones(world.rows, np.int64)
    else:
        sigma = 0.9
        drawn = rng.lognormal(math.log(world.query_rows) - sigma**2 / 2, sigma, count)
        sizes = np.clip(np.round(drawn), 1, world.max_query_rows).astype(np.int64)
    # With few rows in each, the last query takes what is left.
    first_row = np.concatenate([[0], np.cumsum(sizes)])
    end = int(np.searchsorted(first_row, world.rows))
    first_row = np.minimum(first_row[: end + 1], world.rows)
    span = world.days * DAY_US
    moment = np.sort(rng.random(len(first_row) - 1))
    # More traffic in the evening than at night.
    moment += 0.12 / (2 * math.pi * world.days) * np.sin(2 * math.pi * world.days * moment)
    return first_row, START_US + (moment * (span - 1)).astype(np.int64)


def _salt(name: str) -> int:
    """Returns a number that depends on a name, for seeding random generators."""
    return zlib.crc32(name.encode())


def _values(feature: Feature) -> int:
    """Returns the number of values that a feature has over the pass."""
    clocks = {"hour": 24, "weekday": 7}
    return clocks.get(feature.kind, feature.size * (1 + math.ceil(feature.churn)))


@lru_cache(maxsize=64)
def _effects(seed: int, feature: Feature) -> FloatArray:
    """Draws the effect of each value of a feature, float32 [V]."""
    rng = np.random.default_rng([seed, 1, _salt(feature.name)])
    return feature.effect * rng.standard_normal(_values(feature), np.float32)


@lru_cache(maxsize=64)
def _vectors(seed: int, feature: Feature, pair: str) -> FloatArray:
    """Draws the vector of each value of a feature for a joint effect, float32 [V, RANK]."""
    rng = np.random.default_rng([seed, 2, _salt(f"{feature.name} {pair}")])
    return rng.standard_normal((_values(feature), RANK), np.float32)


def _drift(world: World, time: FloatArray) -> FloatArray:
    """Computes the drift of the base rate, in logits, at times from 0 to 1."""
    phases = np.random.default_rng([world.seed, 3]).random(4) * 2 * math.pi
    waves = [np.sin(2 * math.pi * k * time + phases[k - 1]) / k for k in range(1, 5)]
    return world.drift * np.sum(waves, axis=0)


def _zipf(u: FloatArray, size: FloatArray | int, exponent: float) -> IntArray:
    """Converts uniform numbers to ranks from 0 to ``size - 1`` by inverting the continuous distribution function."""
    most = np.asarray(size, np.float64) + 1
    power = 1 - exponent
    drawn = most**u if abs(power) < 1e-9 else ((most**power - 1) * u + 1) ** (1 / power)
    return np.minimum(drawn.astype(np.int64) - 1, np.asarray(size, np.int64) - 1)


class _Chunk:
    """Consecutive queries of a world: their columns, and ``score``, their logits without the intercept."""

    def __init__(
        self, world: World, number: int, first_row: IntArray, time: IntArray, begin: int, end: int
    ) -> None:
        self._world, self._rng = world, np.random.default_rng([world.seed, 4, number])
        self._queries, self._rows = end - begin, int(first_row[end] - first_row[begin])
        # The query of each row, counted within the chunk, and the numbers of queries and of rows.
        self._own_query = np.repeat(np.arange(end - begin), np.diff(first_row[begin : end + 1]))
        self._query, self._row = begin + self._own_query, first_row[begin] + np.arange(self._rows)
        self._time_us = time[begin:end][self._own_query]
        self._time = (self._time_us - START_US) / (world.days * DAY_US)
        self._ids: dict[str, IntArray] = {}
        self._columns: dict[str, pa.Array] = {}
        self.score = self._score()

    def _score(self) -> FloatArray:
        world = self._world
        noise = world.query_noise * self._rng.standard_normal(self._queries)[self._own_query]
        score = _drift(world, self._time) + noise
        for feature in world.features:
            score = score + self._make(feature)
        features = {feature.name: feature for feature in world.features}
        for a, b, strength in world.interactions:
            left, right = (
                _vectors(world.seed, features[name], f"{a} {b}")[self._ids[name]] for name in (a, b)
            )
            score = score + strength / math.sqrt(RANK) * np.einsum("nk,nk->n", left, right)
        return score

    def _draw(self, feature: Feature, draw: Callable[[int], FloatArray]) -> FloatArray:
        """Draws a random number for each row, or for each query if its rows share the feature's value."""
        return draw(self._queries)[self._own_query] if feature.shared else draw(self._rows)

    def _absent(self, feature: Feature) -> npt.NDArray[np.bool_] | None:
        return self._rng.random(self._rows) < feature.missing if feature.missing else None

    def _make(self, feature: Feature) -> FloatArray:
        """Generates the column of a feature; returns its effect on the logit of each row."""
        if feature.kind == "number":
            return self._make_number(feature)
        if feature.kind in ("tags", "text"):
            return self._make_list(feature)
        ids = self._ids[feature.name] = self._draw_ids(feature)
        effect = _effects(self._world.seed, feature)[ids].astype(np.float64)
        if feature.kind in ("id", "attribute"):
            absent = self._absent(feature)
            self._columns[feature.name] = pa.array(ids, pa.int64(), mask=absent)
            if absent is not None:
                effect[absent] = 0
        return effect

    def _draw_ids(self, feature: Feature) -> IntArray:
        hours, salt = self._time_us // (DAY_US // 24), f"{self._world.seed} {feature.name}"
        if feature.kind == "hour":
            return hours % 24
        if feature.kind == "weekday":
            return (hours // 24 + 3) % 7
        if feature.kind == "attribute":
            return (uniform_hash(self._ids[feature.of], salt) ** 1.5 * feature.size).astype(np.int64)
        grown = np.ceil(feature.size * (1 - feature.growth * (1 - self._time))).astype(np.int64)
        rank = _zipf(self._draw(feature, self._rng.random), grown, feature.zipf)
        if not feature.churn:
            return rank
        # The value at each rank is replaced at different times.
        phase = uniform_hash(rank, f"{salt} churn")
        return rank + feature.size * np.floor(self._time * feature.churn + phase).astype(np.int64)

    def _make_number(self, feature: Feature) -> FloatArray:
        normal = self._draw(feature, self._rng.standard_normal)
        absent = self._absent(feature)
        self._columns[feature.name] = pa.array(np.round(np.exp(2.5 + 1.2 * normal), 3), mask=absent)
        # Half of them rise, half have a best value in the middle.
        effect = feature.effect * (
            normal if _salt(feature.name) % 2 else 1 - np.minimum(np.square(normal), 6)
        )
        if absent is not None:
            effect[absent] = 0
        return effect

    def _make_list(self, feature: Feature) -> FloatArray:
        if feature.of:
            owner, kind = self._ids[feature.of], "of"
        else:
            owner, kind = (self._query, "query") if feature.shared else (self._row, "row")
        # The same owner has the same list, also in another chunk.
        salt = f"{self._world.seed} {feature.name} {kind}"
        lengths = np.floor(uniform_hash(owner, salt) * (2 * feature.length + 0.999)).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        row = np.repeat(np.arange(self._rows), lengths)
        position = np.arange(offsets[-1]) - offsets[row]
        drawn = _zipf(uniform_hash(owner[row] * 64 + position, f"{salt} value"), feature.size, feature.zipf)
        is_text = feature.kind == "text"
        texts = pa.array([f"w{number}" for number in range(feature.size)]).take(pa.array(drawn))
        lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), texts if is_text else pa.array(drawn))
        self._columns[feature.name] = pa.compute.binary_join(lists, " ") if is_text else lists
        sums = np.bincount(row, _effects(self._world.seed, feature)[drawn], self._rows)
        return sums / np.sqrt(np.maximum(lengths, 1))

    def table(self, base: float) -> pa.Table:
        """Draws clicks; returns the rows."""
        probability = 1 / (1 + np.exp(-(base + self.score)))
        clicked = self._rng.random(self._rows) < probability
        keys = {
            "shown_at": self._time_us,
            "query_id": self._query,
            "example_id": self._row,
            "clicked": clicked.astype(np.int8),
            "probability": probability,
        }
        return pa.table({**keys, **self._columns})


def _intercept(score: FloatArray, rate: float) -> float:
    """Finds the intercept with which the mean probability is ``rate``, by bisection."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        if np.mean(1 / (1 + np.exp(-(middle + score)))) < rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2
