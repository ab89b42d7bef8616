"""Statistics of features for summary.json: missing values, outliers, and rows of growing ids."""

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.data.schema import MISSING_ID, Schema
from ctr.models.numbers import FAR
from ctr.models.rows import all_numbers, feature_names
from ctr.training.ids.id_map import FeatureCounters, IdMap
from ctr.training.observers.observer import Arrays, Observer, Turn, WatchedRun
from ctr.training.state import TrainState

logger = logging.getLogger(__name__)

_NAMED = 3


class Features(Observer):
    """For each feature, counts the rows without a value; reports features and growing ids."""

    name = "features"

    def begin(self, run: WatchedRun, state: Mapping[str, np.ndarray]) -> None:
        self._run, schema = run, run.schema
        self._names = (*schema.single_valued, *schema.multivalent)
        # Rows without a value, for each feature; last, all rows.
        self._counts = np.zeros(len(self._names) + 1, np.int64)
        if state:
            self._counts[:] = state["counts"]

    def batch(self, turn: Turn) -> None:
        for rows in (scored.batch.rows for scored in turn.scored if not scored.source):
            lists = (np.diff(rows.multivalent[name][1]) for name in self._run.schema.multivalent)
            without = (np.count_nonzero(lengths == 0) for lengths in lists)
            self._counts += [*np.count_nonzero(rows.ids == MISSING_ID, axis=0), *without, len(rows)]

    def checkpoint(self) -> Arrays:
        return {"counts": self._counts}

    @property
    def missing(self) -> dict[str, int]:
        """Returns the number of rows without a value, by feature."""
        return dict(zip(self._names, self._counts[:-1].tolist(), strict=True))

    def warnings(self) -> list[str]:
        lines = [
            f"feature {name}: {left} values (mean {mean:g}) are more than {FAR:,.0f} deviations from the others, and "
            "no part of its mean and deviation"
            for name, (left, _, mean) in outlying_values(self._run.state).items()
            if left
        ]
        missing, rows = self.missing, int(self._counts[-1])
        return lines + [
            f"feature {name}: nothing was learned: it is missing in all {rows} rows"
            for name in feature_names(self._run.state.layouts)
            if rows and missing[name] == rows
        ]

    def end(self, summary: dict[str, Any]) -> list[pa.Table]:
        run, id_maps = self._run, self._run.state.tables.id_maps.values()
        outlying, missing, rows = outlying_values(run.state), self.missing, int(self._counts[-1])
        names, shares = set(feature_names(run.state.layouts)), {}
        for feature in (f for f in run.schema.features if f.name in names):
            left, others, _ = outlying.get(feature.name, (0, 0, math.nan))
            shares[feature.name] = {
                "kind": feature.kind,
                "missing": missing[feature.name] / rows if rows else None,
                "out_of_range": left / (left + others) if left + others else None,
            }
        summary["features"] = shares
        if id_maps:
            summary["ids"] = id_rows(id_maps, run.schema)
        if refused := refusal_text(id_maps, run.schema):
            logger.warning("%s: %s", run.run_dir, refused)
        return []


def outlying_values(state: TrainState) -> dict[str, tuple[int, int, float]]:
    """Returns, for each normalized feature, the numbers of values outside and inside its statistics, and a mean.

    The mean is over the outside values of the first column that has any; NaN without any.
    """
    outlying: dict[str, tuple[int, int, float]] = {}
    if state.statistics is None or state.apart is None:
        return outlying
    statistics, apart = state.statistics.numpy(), state.apart.numpy()
    for numbers in all_numbers(state.layouts):
        if numbers.normalize:
            columns = slice(numbers.first, numbers.first + numbers.size)
            left, means = apart[0, columns], apart[1, columns]
            mean = float(means[left > 0][0]) if left.any() else math.nan
            mean = math.copysign(math.expm1(abs(mean)), mean) if numbers.log else mean
            outlying[numbers.name] = int(left.sum()), int(statistics[0, columns].sum()), mean
    return outlying


def id_rows(id_maps: Iterable[IdMap], schema: Schema) -> dict[str, Any]:
    """Returns the counters of growing ids in the pass, in total and for each feature."""
    counters = _counters(id_maps, schema)
    total = {
        name: sum(getattr(counts, name) for counts in counters.values())
        for name in FeatureCounters.__dataclass_fields__
    }
    return {
        **_id_numbers(FeatureCounters(**total)),
        "features": {name: _id_numbers(counts) for name, counts in counters.items()},
    }


def _counters(id_maps: Iterable[IdMap], schema: Schema) -> dict[str, FeatureCounters]:
    counters = {name: counts for id_map in id_maps for name, counts in id_map.counters().items()}
    return {name: counters[name] for name in schema.growing if name in counters}


def _id_numbers(counts: FeatureCounters) -> dict[str, int | float | None]:
    shown: dict[str, int | float | None] = {
        name: getattr(counts, name) for name in ("occupancy", "capacity", "admitted", "evicted", "refused")
    }
    shown["shared_share"] = counts.shared / counts.occurrences if counts.occurrences else None
    return shown


def refusal_text(id_maps: Iterable[IdMap], schema: Schema) -> str | None:
    """Returns a warning if ids had to use shared rows because their features were at capacity, otherwise None."""
    full = {name: counts for name, counts in _counters(id_maps, schema).items() if counts.refused}
    if not full:
        return None
    worst = sorted(full, key=lambda name: (-full[name].refused, name))
    parts = [
        f"{name} ({full[name].capacity:,} ids; {full[name].refused / full[name].occurrences:.1%} of its occurrences "
        "were of others)"
        for name in worst[:_NAMED]
    ]
    more = f" and {len(worst) - _NAMED} more" if len(worst) > _NAMED else ""
    return (
        f"no room was left for ids of {', '.join(parts)}{more}, which then shared rows: raise ids.capacity, or "
        f"ids.capacities.{worst[0]}, or let old ids go with ids.eviction.policy"
    )
