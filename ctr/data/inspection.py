"""Summary of a log: rows, clicks and times, features with their ids, gaps, and sidecars.

Partitions are counted by their manifests, everything else in one pass over some columns of the shards (their page
checksums are verified, the SHA-256 of whole files is not). Memory does not grow with the log.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.data.id_counts import make_counts
from ctr.data.kept_values import has_raw_values, read_values, value_of_id
from ctr.data.log import Manifest, partitions_in, read_manifests, read_schema
from ctr.data.parquet_files import IDS_COLUMN, read_columns
from ctr.data.reader import rows_beyond
from ctr.data.sample_log import RECORD, applied_samplings
from ctr.data.schema import MISSING_ID, Schema, id_bounds
from ctr.data.shards import id_matrix
from ctr.data.sidecar import list_sidecars, read_sidecar_manifest, sidecar_folder
from ctr.io.errors import InputError

TOP_IDS = 5
_MOST_PERIODS = 48
_PAUSES = 3
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
    """Rows and clicks from a query time on (microseconds)."""

    start: int
    rows: int
    clicks: int


@dataclass(frozen=True)
class TopId:
    """A frequent id."""

    id: int
    value: str | None  # what it stands for, if known
    share: float  # of all values of the feature
    click_rate: float  # of its own occurrences


@dataclass(frozen=True)
class FeatureSummary:
    """One feature of a log. If not ``exact``, ``ids`` has a standard error of 0.8%, and counts lack ``shortfall``."""

    name: str
    kind: str
    tower: str
    width: int | None
    buckets: int | None  # the number of ids that it may have; None where they grow
    ids: int  # different ids that occur, but for the one of a missing value
    exact: bool  # whether ``ids`` and the shares of top ids are
    shortfall: int
    missing: float  # share of the rows without a value
    values_per_row: float | None  # their mean; None for a single-valued feature
    full_rows: float | None  # share of rows with ``max_values`` values, some perhaps cut; None for others
    values: int | None  # estimated number of different values behind the ids; None where each id is one value
    shared: float | None  # estimated share of these values that share their id with another one
    top: tuple[TopId, ...]


@dataclass(frozen=True)
class Sidecar:
    """Columns beside the log; ``sample`` where they are decisions of ``ctr sample``."""

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
    faulty_rows: int  # with another label than 0 and 1, or another id; they are not in what follows
    first: int | None
    last: int | None
    max_query_rows: int
    ranked_queries: int  # queries with both a click and a non-click, which PerQueryAUC is about
    metric_weight: float  # mean of the rows' weights; 1 without weights
    weighted_click_rate: float | None
    period: int  # length of the entries of ``over_time``, in microseconds; periods without rows are there too
    over_time: tuple[Period, ...]
    pauses: tuple[Span, ...]  # the longest stretches between two queries, the longest first
    partitions: tuple[Partition, ...]
    gaps: tuple[Span, ...]  # spans between two partitions that no partition covers
    features: tuple[FeatureSummary, ...]
    labels: tuple[str, ...]  # names of the further labels
    sidecars: tuple[Sidecar, ...]
    samplings: tuple[str, ...]  # names of the samplings that made this log from another one
    counters: dict[str, int]  # the input by its outcome, added up over the partitions

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def inspect_log(log: Path, progress: Callable[[int], None] = lambda rows: None) -> LogSummary:
    """Goes over a log once; ``progress`` is called with the rows read since its last call. Raises InputError."""
    schema, manifests = read_schema(log), read_manifests(log)
    # The run directory of a training has a schema too.
    if not manifests and (log / "checkpoints").exists():
        raise InputError(f"{log} is a run directory: name the log that it was trained on")
    shards = [entry for manifest in manifests for entry in manifest.shards]
    first = min((entry.first_query_time for entry in shards), default=None)
    last = max((entry.last_query_time for entry in shards), default=None)
    found = _Pass(schema, first or 0, last or 0)
    for entry in shards:
        for batch in read_columns(log / "shards" / entry.file, found.columns):
            found.add(batch)
            progress(batch.num_rows)
    found.end_query()
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
        faulty_rows=found.faulty,
        first=first,
        last=last,
        max_query_rows=found.max_query_rows,
        ranked_queries=found.ranked_queries,
        metric_weight=found.weight / max(found.rows, 1),
        weighted_click_rate=found.clicked_weight / found.weight if found.weight else None,
        period=found.period,
        over_time=found.over_time() if shards else (),
        pauses=found.pauses(),
        partitions=partitions,
        gaps=tuple(Span(a.end, b.start) for a, b in pairwise(partitions) if b.start > a.end),
        features=_with_values(log, tuple(found.summaries())),
        labels=schema.labels,
        sidecars=tuple(_sidecars(log, manifests)),
        samplings=tuple(applied.name for applied in applied_samplings(log)),
        counters=dict(counters),
    )


def _with_values(log: Path, features: Sequence[FeatureSummary]) -> tuple[FeatureSummary, ...]:
    wanted = {feature.name: [top.id for top in feature.top if top.value is None] for feature in features}
    kept = read_values(log, wanted)

    def named(feature: FeatureSummary) -> FeatureSummary:
        values = kept[feature.name]
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


class _Pass:
    def __init__(self, schema: Schema, first: int, last: int) -> None:
        self._schema = schema
        self._names = (*schema.single_valued, *schema.multivalent)
        packed = (IDS_COLUMN,) if schema.single_valued else ()
        self.columns = ("query_time", "query_id", "label", "metric_weight", *packed, *schema.multivalent)
        self._counts = dict(zip(self._names, make_counts(id_bounds(schema, self._names)), strict=True))
        self._missing = dict.fromkeys(self._names, 0)
        self._values = dict.fromkeys(self._names, 0)
        self._full = dict.fromkeys(schema.multivalent, 0)
        self.period = next((p for p in _PERIODS if (last - first) // p < _MOST_PERIODS), 0)
        self.period = self.period or -(-(last - first + 1) // _MOST_PERIODS)
        self._start = first // self.period * self.period
        periods = (last - self._start) // self.period + 1
        self._period_rows = np.zeros(periods, np.int64)
        self._period_clicks = np.zeros(periods, np.int64)
        self.rows = self.faulty = self.max_query_rows = self.ranked_queries = 0
        self.weight = self.clicked_weight = 0.0
        self._pauses: list[tuple[int, int]] = []  # (start, end)
        self._query: tuple[int, int, int, int] | None = None  # time, id, rows, clicks of the last query

    def add(self, batch: pa.RecordBatch) -> None:
        label = batch.column("label").to_numpy()
        matrix = id_matrix(batch, self._schema)
        lists = {name: _lists(batch.column(name)) for name in self._schema.multivalent}
        good = (label == 0) | (label == 1)
        good &= ~rows_beyond(matrix, id_bounds(self._schema, self._schema.single_valued))
        for name, (values, lengths) in lists.items():
            wrong = rows_beyond(values[:, np.newaxis], id_bounds(self._schema, [name]))
            good[np.repeat(np.arange(len(label)), lengths)[wrong]] = False
        time = batch.column("query_time").to_numpy()
        query = batch.column("query_id").to_numpy()
        weight = batch.column("metric_weight").to_numpy().astype(np.float64)
        if not good.all():
            self.faulty += int(np.count_nonzero(~good))
            for name, (values, lengths) in lists.items():
                lists[name] = values[np.repeat(good, lengths)], lengths[good]
            label, matrix, time, query, weight = (x[good] for x in (label, matrix, time, query, weight))
        if not len(label):
            return
        clicked = label == 1
        self.rows += len(label)
        self.weight += float(weight.sum())
        self.clicked_weight += float(weight[clicked].sum())
        places = np.clip((time - self._start) // self.period, 0, len(self._period_rows) - 1)
        self._period_rows += np.bincount(places, minlength=len(self._period_rows))
        self._period_clicks += np.bincount(places[clicked], minlength=len(self._period_rows))
        self._add_queries(time, query, clicked)
        for column, name in enumerate(self._schema.single_valued):
            self._add_ids(name, matrix[:, column], clicked)
        for name, (values, lengths) in lists.items():
            self._missing[name] += int(np.count_nonzero(lengths == 0))
            most = getattr(self._schema.by_name[name], "max_values", None)
            if most is not None:
                self._full[name] += int(np.count_nonzero(lengths >= most))
            self._add_ids(name, values, np.repeat(clicked, lengths))

    def _add_ids(self, name: str, ids: np.ndarray, clicked: np.ndarray) -> None:
        there = ids != MISSING_ID
        if not there.all():
            if name not in self._full:
                self._missing[name] += int(np.count_nonzero(~there))
            ids, clicked = ids[there], clicked[there]
        self._values[name] += len(ids)
        self._counts[name].add(ids, clicked)

    def _add_queries(self, time: np.ndarray, query: np.ndarray, clicked: np.ndarray) -> None:
        new = (time[1:] != time[:-1]) | (query[1:] != query[:-1])
        begins = np.concatenate([[0], np.flatnonzero(new) + 1])
        sizes = np.diff(np.append(begins, len(time)))
        clicks = np.add.reduceat(clicked.astype(np.int64), begins)
        times = time[begins]
        if self._query is not None:
            before = self._query
            if (before[0], before[1]) == (int(time[0]), int(query[0])):
                sizes[0] += before[2]
                clicks[0] += before[3]
            else:
                self.end_query()
                times = np.concatenate([[before[0]], times])
        ended = slice(0, len(sizes) - 1)
        self.max_query_rows = max(self.max_query_rows, int(sizes.max()))
        self.ranked_queries += int(np.count_nonzero((clicks[ended] > 0) & (clicks[ended] < sizes[ended])))
        self._query = int(time[-1]), int(query[-1]), int(sizes[-1]), int(clicks[-1])
        steps = np.diff(times)
        shortest = self._pauses[-1][1] - self._pauses[-1][0] if len(self._pauses) == _PAUSES else 0
        longer = np.flatnonzero(steps > shortest)
        for at in longer[np.argsort(-steps[longer], kind="stable")[:_PAUSES]]:
            self._pauses.append((int(times[at]), int(times[at + 1])))
        self._pauses = sorted(self._pauses, key=lambda pause: (pause[0] - pause[1], pause[0]))[:_PAUSES]

    def end_query(self) -> None:
        if self._query is not None:
            _, _, size, clicks = self._query
            self.ranked_queries += 0 < clicks < size
            self._query = None

    def pauses(self) -> tuple[Span, ...]:
        return tuple(Span(*pause) for pause in self._pauses)

    def over_time(self) -> tuple[Period, ...]:
        counts = zip(self._period_rows.tolist(), self._period_clicks.tolist(), strict=True)
        return tuple(Period(self._start + n * self.period, *count) for n, count in enumerate(counts))

    def summaries(self) -> Iterator[FeatureSummary]:
        for feature in self._schema.features:
            name = feature.name
            counts, rows = self._counts[name], max(self.rows, 1)
            multivalent = name in self._full
            ids, buckets = counts.distinct(), feature.buckets
            hashed_to = buckets if has_raw_values(feature) else None
            values, shared = shared_buckets(ids, hashed_to - 1) if hashed_to else (None, None)
            limited = multivalent and hasattr(feature, "max_values")
            total = max(self._values[name], 1)
            yield FeatureSummary(
                name=name,
                kind=feature.kind,
                tower=feature.tower,
                width=feature.width,
                buckets=buckets,
                ids=ids,
                exact=counts.exact,
                shortfall=counts.shortfall,
                missing=self._missing[name] / rows,
                values_per_row=self._values[name] / rows if multivalent else None,
                full_rows=self._full[name] / rows if limited else None,
                values=values,
                shared=shared,
                top=tuple(
                    TopId(number, value_of_id(feature, number), occurrences / total, clicks / occurrences)
                    for number, occurrences, clicks in counts.top(TOP_IDS)
                ),
            )


def _lists(column: pa.ListArray) -> tuple[np.ndarray, np.ndarray]:
    offsets = column.offsets.to_numpy()
    return column.flatten().to_numpy(), np.diff(offsets)


def shared_buckets(ids: int, buckets: int) -> tuple[int, float]:
    """Estimates the number of values n that were hashed to some ids, and the share of them that shares its id.

    n values thrown into m ``buckets`` are expected to fill m (1 - (1 - 1/m)^n) of them, and each shares its bucket
    with probability 1 - (1 - 1/m)^(n - 1). Where every bucket is filled n is at least what is returned.
    """
    if buckets < 2:
        return ids, 0.0
    empty = max(buckets - ids, 0.5) / buckets
    values = max(math.log(empty) / math.log1p(-1 / buckets), ids)
    return round(values), -math.expm1(max(values - 1, 0) * math.log1p(-1 / buckets))
