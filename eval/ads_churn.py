"""Churn of ads: how two runs differ in what they show (FF 7.3, table 3, "Ads/Query Churn").

Compares two loops of ``ctr simulate --policy`` over the same queries. Randomized queries are left out: of
those no model decides anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ctr.eval import display
from ctr.eval.arrays import (
    FloatArray,
    IntArray,
    check_same_length,
    checked_ids,
    ratio,
)
from ctr.eval.intervals import Estimate, deletions
from ctr.eval.run_files import read_columns
from ctr.eval.states import BUCKETS, SumState, query_bucket
from ctr.io.documents import json_number
from ctr.io.errors import InputError

SHOWN_FILE = "shown.parquet"
"""In the folder of a loop: a row for each query, with ``day``, ``query_id``, ``randomized``, ``ads``."""
WORLD_FILE = Path("log", "world.yaml")
"""In the folder of a loop: the settings of its world; without its log it is not known."""

MEASURES = {"mean_churn": "churn of the mean", "query_churn": "churn by query"}
"""Measures of churn, with titles; both lie between 0 and 2.

 ``mean_churn``: abs(mean_a - mean_b) / ((mean_a + mean_b) / 2) of the mean numbers of ads per query.
 ``query_churn``: the same with the sum over queries of abs(ads_a - ads_b) in the numerator, where queries
 that show more do not make up for those that show less.
"""

_COLUMNS = {"day": "i", "query_id": "i", "randomized": "b", "ads": "i"}


class AdsChurn(SumState):
    """Ads that two models showed in the same queries, each [K] by query bucket."""

    LAYOUT: ClassVar = {name: ((BUCKETS,), np.int64) for name in ("first", "second", "difference", "queries")}

    first: IntArray
    second: IntArray
    difference: IntArray  # sum over queries of abs(first - second)
    queries: IntArray

    def update(self, first: npt.ArrayLike, second: npt.ArrayLike, query_id: npt.ArrayLike) -> None:
        """Adds queries, each given once: int64 counts of ads and ids, each [N]; raises ValueError for others."""
        one, other = _checked_counts("first", first), _checked_counts("second", second)
        ids = checked_ids("query_id", query_id)
        check_same_length(first=one, second=other, query_id=ids)
        bucket = query_bucket(ids)
        np.add.at(self.first, bucket, one)
        np.add.at(self.second, bucket, other)
        np.add.at(self.difference, bucket, np.abs(one - other))
        self.queries += np.bincount(bucket, minlength=BUCKETS)

    def ads_per_query(self) -> tuple[float, float]:
        """Mean number of ads of a query, by each model; NaN without queries."""
        queries = self.queries.sum()
        return float(ratio(self.first.sum(), queries)), float(ratio(self.second.sum(), queries))

    def estimates(self) -> dict[str, Estimate]:
        """Each of `MEASURES`; NaN where neither model showed anything.

        The churn of the mean has a kink at 0: where it is small beside its interval, the interval goes below
        0 and says no more than that no difference is seen.
        """
        sums = np.stack([self.first, self.second, self.difference], axis=1)
        points, replicates = _churn(sums.sum(axis=0)), _churn(deletions() @ sums)
        return {name: Estimate(points[name], replicates[name], self.queries > 0) for name in MEASURES}


def _churn(sums: FloatArray | IntArray) -> dict[str, FloatArray]:
    """Each of `MEASURES` [...] from ads by the first model, by the second and their difference [..., 3]."""
    first, second, difference = np.moveaxis(sums, -1, 0)
    return {
        "mean_churn": ratio(2 * np.abs(first - second), first + second),
        "query_churn": ratio(2 * difference, first + second),
    }


@dataclass(frozen=True)
class LoopComparison:
    """Ads that two loops showed, over all days and by day of the log."""

    loop_a: Path
    loop_b: Path
    whole: AdsChurn
    days: Mapping[int, AdsChurn]

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON; None where undefined."""
        return {
            "baseline": "a",
            "loop_a": str(self.loop_a),
            "loop_b": str(self.loop_b),
            **_as_record(self.whole),
            "days": [{"day": day, **_as_record(state)} for day, state in self.days.items()],
        }

    def as_text(self) -> str:
        """Everything, as tables for a terminal; churn in percent."""
        lines = [f"a, the baseline: {self.loop_a}", f"b: {self.loop_b}"]
        lines += [
            f"{int(self.whole.queries.sum()):,} queries that are not randomized; churn in percent",
            "",
        ]
        header = ["day", "queries", "ads/query a", "ads/query b"]
        for title in MEASURES.values():
            header += [title, "95% interval"]
        states = {**{str(day): state for day, state in self.days.items()}, "all": self.whole}
        return "\n".join(
            lines + display.aligned([header, *(_cells(name, state) for name, state in states.items())])
        )


def compare_loops(loop_a: Path, loop_b: Path) -> LoopComparison:
    """Compares how many ads two loops showed in the same queries.

    Raises:
        InputError: a folder holds no loop, or a damaged one, or the loops served different queries.
    """
    a, b = _read_shown(loop_a), _read_shown(loop_b)
    # Queries are numbered alike in every world.
    worlds = [path.read_bytes() for loop in (loop_a, loop_b) if (path := loop / WORLD_FILE).is_file()]
    if len(set(worlds)) > 1:
        raise InputError(
            f"{loop_a} and {loop_b}: are of different worlds, see {WORLD_FILE} of each; "
            "allowed: loops over the same days of one world"
        )
    for column in ("day", "query_id", "randomized"):
        if not np.array_equal(a[column], b[column]):
            raise InputError(
                f"{loop_a} and {loop_b}: served different queries, {_extent(a)} and {_extent(b)}; "
                "allowed: loops over the same days of one world"
            )
    whole, days = AdsChurn(), {}
    # Days rise; of a day on which all queries are randomized there is nothing to tell.
    kept = ~a["randomized"]
    for day in np.unique(a["day"][kept]).tolist():
        rows = kept & (a["day"] == day)
        state = AdsChurn()
        state.update(a["ads"][rows], b["ads"][rows], a["query_id"][rows])
        whole.merge(state)
        days[day] = state
    return LoopComparison(loop_a, loop_b, whole, days)


def _read_shown(loop: Path) -> dict[str, npt.NDArray[Any]]:
    path = loop / SHOWN_FILE
    if not path.is_file():
        raise InputError(
            f"{path}: no such file; allowed: a finished output directory of `ctr simulate --policy`"
        )
    table = read_columns(path, list(_COLUMNS), "the queries of a loop")
    columns = {name: table[name].to_numpy() for name in _COLUMNS}
    for name, kind in _COLUMNS.items():
        if columns[name].dtype.kind != kind:
            wanted = "true or false" if kind == "b" else "whole numbers"
            raise InputError(f"{path}: {name} must hold {wanted} without nulls, got {columns[name].dtype}")
    if (columns["ads"] < 0).any():
        raise InputError(f"{path}: ads must be at least 0, got {columns['ads'].min()}")
    if len(np.unique(columns["query_id"])) < len(table):
        raise InputError(f"{path}: a query appears twice; allowed: each once")
    return columns


def _extent(columns: Mapping[str, npt.NDArray[Any]]) -> str:
    days = columns["day"]
    return f"{len(days)} on the days {days.min()} to {days.max()}" if len(days) else "none"


def _checked_counts(name: str, values: npt.ArrayLike) -> IntArray:
    counts = checked_ids(name, values)
    if (counts < 0).any():
        raise ValueError(f"{name} must hold counts of at least 0, got {counts.min()}")
    return counts


def _as_record(state: AdsChurn) -> dict[str, Any]:
    ads_a, ads_b = state.ads_per_query()
    record: dict[str, Any] = {
        "queries": int(state.queries.sum()),
        "ads_per_query": {"a": json_number(ads_a), "b": json_number(ads_b)},
    }
    return record | {name: estimate.number().as_record() for name, estimate in state.estimates().items()}


def _cells(name: str, state: AdsChurn) -> list[str]:
    ads_a, ads_b = state.ads_per_query()
    cells = [name, display.amount(int(state.queries.sum())), display.fixed(ads_a, 4), display.fixed(ads_b, 4)]
    for estimate in state.estimates().values():
        percent = estimate.number().times(100)
        decimals = min(percent.decimals, 2)
        cells += [percent.text(decimals), percent.bounds(decimals)]
    return cells
