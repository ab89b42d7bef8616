"""Summary of a log: rows, clicks and times, features with their ids, gaps, and sidecars.

Partitions are counted by their manifests, everything else in one pass over the shards. Memory does not grow with the
log.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ctr.data.id_counts import IdCounts
from ctr.data.kept_values import has_raw_values, read_values, value_of_id
from ctr.data.log import RECORD, Manifest, partitions_in, read_manifests, read_schema
from ctr.data.reader import Rows, join_rows, read_rows
from ctr.data.sample_log import applied_samplings
from ctr.data.schema import MISSING_ID, Schema
from ctr.data.sidecar import list_sidecars, read_sidecar_manifest, sidecar_folder
from ctr.io.errors import InputError

TOP_IDS = 5
_MOST_PERIODS = 48
_AT_ONCE = 2**20
_SECOND = 1_000_000
_PERIODS = [seconds * _SECOND for seconds in (1, 60, 300, 900, 3600, 6 * 3600, 86400, 7 * 86400, 28 * 86400)]


@dataclass(frozen=True)
class Span:
    """A stretch of query time [start, end), in microseconds."""

    start: int
    end: int


@dataclass(frozen=True)
class Partition:
    """One partition of a log. Times are query times in microseconds."""

    start: int
    end: int
    rows: int
    queries: int
    clicks: int
    bytes: int


@dataclass(frozen=True)
class Period:
    """Rows and clicks of a period that begins at a query time (microseconds)."""

    start: int
    rows: int
    clicks: int


@dataclass(frozen=True)
class TopId:
    """A frequent id of a feature, with its share and click rate."""

    id: int
    value: str | None  # the raw value, if the log stores it
    share: float  # share of all values of the feature
    click_rate: float  # click rate of the id's occurrences


@dataclass(frozen=True)
class FeatureSummary:
    """One feature of a log. If not ``exact``, ``ids`` and counts of top ids are estimates."""

    name: str
    kind: str
    tower: str
    width: int | None
    buckets: int | None  # the number of ids that it may have; None if they grow
    ids: int  # distinct ids that occur, without missing; an estimate has a standard error of 0.8%
    exact: bool  # whether ``ids`` and the shares of top ids are exact
    shortfall: int  # the most by which the count of a top id may be too low
    missing: float  # share of the rows without a value
    values_per_row: float | None  # their mean; None for a single-valued feature
    full_rows: float | None  # share of rows with ``max_values`` values, some perhaps cut; None for others
    values: int | None  # estimated number of different values behind the ids; None where each id is one value
    shared: float | None  # estimated share of these values that share their id with another one
    top: tuple[TopId, ...]


@dataclass(frozen=True)
class Sidecar:
    """Columns beside the log; ``sample``: whether they are decisions of ``ctr sample``."""

    name: str
    columns: tuple[str, ...]
    partitions: int
    rows: int
    sample: bool


@dataclass(frozen=True)
class LogSummary:
    """Content of a log. Times are query times in microseconds, UTC."""

    log: str
    rows: int
    queries: int
    clicks: int
    bytes: int
    shards: int
    faulty_rows: (
        int  # with an invalid label, weight or id (``ctr.data.reader.FAULTS``); left out of the counts below
    )
    first: int | None
    last: int | None
    max_query_rows: int
    ranked_queries: int  # queries with both a click and a non-click, over which PerQueryAUC averages
    metric_weight: float  # mean of the rows' weights; 1 without weights
    weighted_click_rate: float | None
    period: int  # length of the entries of ``over_time``, in microseconds; periods without rows are included
    over_time: tuple[Period, ...]
    partitions: tuple[Partition, ...]
    gaps: tuple[Span, ...]  # spans between two partitions that no partition covers
    features: tuple[FeatureSummary, ...]
    labels: tuple[str, ...]  # names of the further labels
    sidecars: tuple[Sidecar, ...]
    samplings: tuple[str, ...]  # names of the samplings that were applied to produce this log
    counters: dict[str, int]  # the input by its outcome, added up over the partitions

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def inspect_log(log: Path, progress: Callable[[int], None] = lambda rows: None) -> LogSummary:
    """Summarizes a log in one pass; calls ``progress`` with the number of new rows. Raises InputError if damaged."""
    schema, manifests = read_schema(log), read_manifests(log)
    # The run directory of a training has a schema too.
    if not manifests and (log / "checkpoints").exists():
        raise InputError(f"{log} is a run directory: name the log that it was trained on")
    shards = [entry for manifest in manifests for entry in manifest.shards]
    first = min((entry.first_query_time for entry in shards), default=None)
    last = max((entry.last_query_time for entry in shards), default=None)
    totals = _Pass(schema, first or 0, last or 0)
    waiting: list[Rows] = []
    for rows in read_rows(log, schema, manifests):
        waiting.append(rows)
        progress(len(rows))
        if sum(map(len, waiting)) >= _AT_ONCE:
            totals.add(join_rows(waiting))
            waiting = []
    if waiting:
        totals.add(join_rows(waiting))
    partitions = tuple(_partition(manifest) for manifest in manifests)
    counters: Counter[str] = Counter()
    for manifest in manifests:
        counters.update(manifest.counters)
    return LogSummary(
        log=str(log),
        rows=sum(part.rows for part in partitions),
        queries=sum(part.queries for part in partitions),
        clicks=sum(part.clicks for part in partitions),
        bytes=sum(part.bytes for part in partitions),
        shards=len(shards),
        faulty_rows=totals.faulty,
        first=first,
        last=last,
        max_query_rows=totals.max_query_rows,
        ranked_queries=totals.ranked_queries,
        metric_weight=totals.weight / max(totals.rows, 1),
        weighted_click_rate=totals.clicked_weight / totals.weight if totals.weight else None,
        period=totals.period,
        over_time=totals.over_time() if shards else (),
        partitions=partitions,
        gaps=tuple(Span(a.end, b.start) for a, b in pairwise(partitions) if b.start > a.end),
        features=_with_values(log, tuple(totals.summaries())),
        labels=schema.labels,
        sidecars=tuple(_sidecars(log, manifests)),
        samplings=tuple(applied.name for applied in applied_samplings(log)),
        counters=dict(counters),
    )


def _with_values(log: Path, features: Sequence[FeatureSummary]) -> tuple[FeatureSummary, ...]:
    wanted = {feature.name: [top.id for top in feature.top if top.value is None] for feature in features}
    raw_values = read_values(log, wanted)

    def named(feature: FeatureSummary) -> FeatureSummary:
        values = raw_values[feature.name]
        tops = (replace(top, value=top.value or values.get(top.id)) for top in feature.top)
        return replace(feature, top=tuple(tops))

    return tuple(map(named, features))


def _partition(manifest: Manifest) -> Partition:
    size = sum(entry.bytes for entry in manifest.shards)
    return Partition(manifest.start, manifest.end, manifest.rows, manifest.queries, manifest.clicks, size)


def _sidecars(log: Path, manifests: Sequence[Manifest]) -> Iterator[Sidecar]:
    for name in list_sidecars(log):
        folder = sidecar_folder(log, name)
        published = set(partitions_in(folder))
        covered = [manifest for manifest in manifests if (manifest.start, manifest.end) in published]
        parts = [read_sidecar_manifest(log, name, manifest) for manifest in covered]
        columns = tuple(dict.fromkeys(column for part in parts for column in part.columns))
        yield Sidecar(name, columns, len(parts), sum(part.rows for part in parts), (folder / RECORD).exists())


@dataclass
class _Values:
    """Running statistics of a feature's values."""

    counts: IdCounts = field(default_factory=IdCounts)
    values: int = 0
    missing: int = 0  # rows without a value
    full: int = 0  # rows with ``max_values``

    def add(self, ids: np.ndarray, clicked: np.ndarray) -> None:
        there = ids != MISSING_ID
        self.values += int(np.count_nonzero(there))
        self.counts.add(ids[there], clicked[there])


class _Pass:
    def __init__(self, schema: Schema, first: int, last: int) -> None:
        self._schema = schema
        self._values = {feature.name: _Values() for feature in schema.features}
        self.period = next((p for p in _PERIODS if (last - first) // p < _MOST_PERIODS), 0)
        self.period = self.period or -(-(last - first + 1) // _MOST_PERIODS)
        self._start = first // self.period * self.period
        self._periods = np.zeros((2, (last - self._start) // self.period + 1), np.int64)  # rows and clicks
        self.rows = self.faulty = self.max_query_rows = self.ranked_queries = 0
        self.weight = self.clicked_weight = 0.0

    def add(self, every: Rows) -> None:
        """Adds rows of whole queries to the totals."""
        rows = every.keep(every.fault == 0)
        self.faulty += len(every) - len(rows)
        if not len(rows):
            return
        clicked, weight = rows.label == 1, rows.metric_weight.astype(np.float64)
        self.rows += len(rows)
        self.weight += float(weight.sum())
        self.clicked_weight += float(weight[clicked].sum())
        places = np.clip((rows.query_time - self._start) // self.period, 0, self._periods.shape[1] - 1)
        for counts, counted in zip(self._periods, (places, places[clicked]), strict=True):
            counts += np.bincount(counted, minlength=len(counts))
        self._add_queries(rows, clicked)
        for column, name in enumerate(self._schema.single_valued):
            self._values[name].add(rows.ids[:, column], clicked)
            self._values[name].missing += int(np.count_nonzero(rows.ids[:, column] == MISSING_ID))
        for name, (ids, offsets) in rows.multivalent.items():
            lengths, most = np.diff(offsets), getattr(self._schema.by_name[name], "max_values", math.inf)
            self._values[name].add(ids, np.repeat(clicked, lengths))
            self._values[name].missing += int(np.count_nonzero(lengths == 0))
            self._values[name].full += int(np.count_nonzero(lengths >= most))

    def _add_queries(self, rows: Rows, clicked: np.ndarray) -> None:
        begins = rows.query_begins()
        sizes, clicks = np.diff(begins, append=len(rows)), np.add.reduceat(clicked.astype(np.int64), begins)
        self.max_query_rows = max(self.max_query_rows, int(sizes.max()))
        self.ranked_queries += int(np.count_nonzero((clicks > 0) & (clicks < sizes)))

    def over_time(self) -> tuple[Period, ...]:
        counts = self._periods.T.tolist()
        return tuple(Period(self._start + n * self.period, *count) for n, count in enumerate(counts))

    def summaries(self) -> Iterator[FeatureSummary]:
        for feature in self._schema.features:
            name, seen, rows = feature.name, self._values[feature.name], max(self.rows, 1)
            multivalent = name in self._schema.multivalent
            ids, total = seen.counts.distinct(), max(seen.values, 1)
            values = shared = None
            if feature.buckets and has_raw_values(feature):
                values, shared = shared_buckets(ids, feature.buckets - 1)
            yield FeatureSummary(
                name=name,
                kind=feature.kind,
                tower=feature.tower,
                width=feature.width,
                buckets=feature.buckets,
                ids=ids,
                exact=seen.counts.exact,
                shortfall=seen.counts.shortfall,
                missing=seen.missing / rows,
                values_per_row=seen.values / rows if multivalent else None,
                full_rows=seen.full / rows if multivalent and hasattr(feature, "max_values") else None,
                values=values,
                shared=shared,
                top=tuple(
                    TopId(number, value_of_id(feature, number), occurrences / total, clicks / occurrences)
                    for number, occurrences, clicks in seen.counts.top(TOP_IDS)
                ),
            )


def shared_buckets(ids: int, buckets: int) -> tuple[int, float]:
    """Estimates the number of values n that were hashed to ``ids`` ids, and the share of values whose id is shared.

    n values thrown into m ``buckets`` are expected to fill m (1 - (1 - 1/m)^n) of them, and each shares its bucket
    with probability 1 - (1 - 1/m)^(n - 1). If every bucket is filled, n is at least the returned number.
    """
    if buckets < 2:
        return ids, 0.0
    empty = max(buckets - ids, 0.5) / buckets
    values = max(math.log(empty) / math.log1p(-1 / buckets), ids)
    return round(values), -math.expm1(max(values - 1, 0) * math.log1p(-1 / buckets))
