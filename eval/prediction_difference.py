"""Relative prediction difference PD of two models, or two recorded runs, on the same examples (FF section 5)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from ctr.eval.arrays import (
    FloatArray,
    IntArray,
    check_same_length,
    checked_finite,
    checked_ids,
    checked_probabilities,
    ratio,
    sigmoid,
)
from ctr.eval.intervals import Estimate, deletions
from ctr.eval.run_files import prediction_parts, read_predictions
from ctr.eval.states import BUCKETS, SumState, query_bucket
from ctr.io.errors import InputError

ALWAYS = (-math.inf, math.inf)  # all query times, as a half-open range
_COLUMNS = ("example_id", "query_id", "query_time", "logit")


class PredictionDifference(SumState):
    """PD over a stream of aligned predictions."""

    LAYOUT: ClassVar = {"difference": ((BUCKETS,), np.float64), "examples": ((BUCKETS,), np.int64)}

    difference: FloatArray  # [K], sum of the relative differences
    examples: IntArray  # [K]

    def update(self, first: npt.ArrayLike, second: npt.ArrayLike, query_id: npt.ArrayLike) -> None:
        """Adds examples, each of them once: probabilities `first` and `second` [N], and query ids, int64 [N].

        A query may be spread over several calls. Raises ValueError for an invalid column.
        """
        difference = _row_difference(first, second)
        ids = checked_ids("query_id", query_id)
        check_same_length(predictions=difference, query_id=ids)
        bucket = query_bucket(ids)
        self.difference += np.bincount(bucket, difference, BUCKETS)
        self.examples += np.bincount(bucket, minlength=BUCKETS)

    def result(self) -> float:
        return float(ratio(self.difference.sum(), self.examples.sum()))

    def estimate(self) -> Estimate:
        replicates = ratio(deletions() @ self.difference, deletions() @ self.examples)
        return Estimate(np.array(self.result()), replicates, self.examples > 0)


@dataclass(frozen=True)
class JoinedPredictions:
    """Two models' predictions of the M examples that both have, by ascending example_id."""

    example_id: IntArray  # [M]
    query_id: IntArray  # [M]
    first: FloatArray  # [M], probability by the first model
    second: FloatArray  # [M], probability by the second model
    only_first: int  # examples that the second table lacks
    only_second: int  # examples that the first table lacks


def join_predictions(first: pd.DataFrame, second: pd.DataFrame) -> JoinedPredictions:
    """Aligns two prediction tables by example_id (int64, each once).

    Both also have query_id (int64) and logit (finite); other columns are ignored. Raises ValueError: a column
    is missing or invalid, an example_id repeats, or an example belongs to different queries in the
    two tables.
    """
    ids_1, queries_1, logits_1 = _prediction_columns("first", first)
    ids_2, queries_2, logits_2 = _prediction_columns("second", second)
    example_id, rows_1, rows_2 = np.intersect1d(ids_1, ids_2, assume_unique=True, return_indices=True)
    query_id = queries_1[rows_1]
    differs = np.flatnonzero(query_id != queries_2[rows_2])
    if len(differs):
        row = differs[0]
        raise ValueError(
            "an example must have one query_id in both prediction tables, got "
            f"{query_id[row]} and {queries_2[rows_2[row]]} for example_id {example_id[row]}"
        )
    return JoinedPredictions(
        example_id=example_id,
        query_id=query_id,
        first=sigmoid(logits_1[rows_1]),
        second=sigmoid(logits_2[rows_2]),
        only_first=len(ids_1) - len(example_id),
        only_second=len(ids_2) - len(example_id),
    )


def _prediction_columns(name: str, table: pd.DataFrame) -> tuple[IntArray, IntArray, FloatArray]:
    missing = {"example_id", "query_id", "logit"} - set(table.columns)
    if missing:
        raise ValueError(f"the {name} prediction table must have columns {', '.join(sorted(missing))}")
    ids = checked_ids(f"{name} example_id", table["example_id"].to_numpy())
    distinct, count = np.unique(ids, return_counts=True)
    if len(distinct) < len(ids):
        repeated = distinct[np.argmax(count)]
        raise ValueError(f"{name} example_id must hold each example once, got {repeated} {count.max()} times")
    queries = checked_ids(f"{name} query_id", table["query_id"].to_numpy())
    return ids, queries, checked_finite(f"{name} logit", table["logit"].to_numpy())


def _row_difference(first: npt.ArrayLike, second: npt.ArrayLike) -> FloatArray:
    """Computes abs(p1 - p2) / ((p1 + p2) / 2) of each example, 0 where both are 0; float64 [N]."""
    p1 = checked_probabilities("first", first)
    p2 = checked_probabilities("second", second)
    check_same_length(first=p1, second=p2)
    total = p1 + p2
    relative = np.zeros(len(total))
    np.divide(2 * np.abs(p1 - p2), total, out=relative, where=total > 0)
    return relative


@dataclass(frozen=True)
class PairedPredictions:
    """Prediction difference PD of two runs, and the numbers of examples that both or one recorded."""

    difference: Estimate
    late: Estimate  # over the late part of the pass alone; undefined when none was asked for
    examples: int
    only_a: int
    only_b: int


def pair_predictions(
    run_a: Path, run_b: Path, late_from: float = math.inf, between: tuple[float, float] = ALWAYS
) -> PairedPredictions:
    """Joins the recorded predictions of two runs over the same log, block by block of query time.

    Memory holds about one file of each run. ``late_from``: query time, in microseconds, from which on the
    pass counts as late. ``between``: the range of query times that count, the end excluded.

    Raises:
        InputError: a file is damaged or not in the order of the log.
        ValueError: the predictions cannot be joined: an example_id repeats, or has two queries.
    """
    whole, late = PredictionDifference(), PredictionDifference()
    only_a = only_b = 0
    stream_a, stream_b = PredictionStream(run_a, _COLUMNS), PredictionStream(run_b, _COLUMNS)
    begin, end = between
    done_up_to = -math.inf
    while done_up_to < end:
        stream_a.read_beyond(done_up_to)
        stream_b.read_beyond(done_up_to)
        # A stretch ends where another part begins, and so lies on one side of it.
        ahead = [bound for bound in (begin, late_from, end) if bound > done_up_to]
        stretch_begin, done_up_to = done_up_to, min(stream_a.complete_up_to, stream_b.complete_up_to, *ahead)
        taken = stream_a.take_before(done_up_to), stream_b.take_before(done_up_to)
        if stretch_begin < begin:
            continue
        state = whole if stretch_begin < late_from else late
        joined = join_predictions(*taken)
        state.update(joined.first, joined.second, joined.query_id)
        only_a += joined.only_first
        only_b += joined.only_second
    whole.merge(late)
    return PairedPredictions(whole.estimate(), late.estimate(), int(whole.examples.sum()), only_a, only_b)


def last_half(run: Path, between: tuple[float, float] = ALWAYS) -> int | None:
    """Returns the midpoint of the range of recorded query times in ``between``, in microseconds; None without any."""
    times: list[int] = []
    parts = prediction_parts(run)
    for order, index in ((parts, 0), (parts[::-1], -1)):
        for path in order:
            column = read_predictions(path, ["query_time"])["query_time"].to_numpy()
            if len(column):
                times.append(int(column[index]))
                break
    if not times:
        return None
    first, last = int(max(times[0], between[0])), int(min(times[1], between[1] - 1))
    return first + (last - first + 1) // 2


class PredictionStream:
    """Reads a run's predictions in the order of query time; all rows before ``complete_up_to`` are loaded."""

    def __init__(self, run: Path, columns: Sequence[str]) -> None:
        self._parts = prediction_parts(run)
        self._columns = columns
        self._held = pd.DataFrame({name: np.empty(0, np.int64) for name in columns})
        self.complete_up_to = -math.inf if self._parts else math.inf

    def read_beyond(self, time: float) -> None:
        """Reads files until all rows up to and including `time` are loaded. Raises InputError unless times ascend."""
        while self._parts and self.complete_up_to <= time:
            path = self._parts.pop(0)
            part = read_predictions(path, self._columns)
            times = part["query_time"].to_numpy()
            if len(times) and (times[0] < self.complete_up_to or np.any(times[1:] < times[:-1])):
                raise InputError(
                    f"{path}: predictions must be in the order of the log, ascending by query_time"
                )
            self._held = pd.concat([self._held, part]) if len(self._held) else part
            if not self._parts:
                self.complete_up_to = math.inf
            elif len(times):
                self.complete_up_to = int(times[-1])

    def take_before(self, time: float) -> pd.DataFrame:
        """Returns the rows before `time` that were not returned yet."""
        end = len(self._held)
        if time < math.inf:
            end = int(np.searchsorted(self._held["query_time"].to_numpy(), int(time)))
        taken, self._held = self._held.iloc[:end], self._held.iloc[end:]
        return taken
