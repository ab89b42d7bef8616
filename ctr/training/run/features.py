"""Labels and features in a summary: those that taught nothing, outliers, rows of growing ids, names of slices."""

import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ctr.data.kept_values import has_raw_values, read_values, value_of_id
from ctr.data.reader import Rows
from ctr.data.schema import MISSING_ID, Schema
from ctr.eval import display
from ctr.eval.progressive import ProgressiveMetrics
from ctr.io.errors import InputError
from ctr.models.numbers import FAR
from ctr.models.rows import all_numbers, feature_names
from ctr.training.ids.id_map import FeatureCounters, IdMap
from ctr.training.state import TrainState

logger = logging.getLogger(__name__)

_NAMED = 3
_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?")


class MissingValues:
    """Counts of the rows of a log, and of those without a value of each feature."""

    def __init__(self, schema: Schema) -> None:
        self._multivalent = schema.multivalent
        self._names = (*schema.single_valued, *schema.multivalent)
        self.counts = np.zeros(len(self._names) + 1, np.int64)  # of each feature, and last of all rows

    def update(self, rows: Rows) -> None:
        lists = (np.diff(rows.multivalent[name][1]) for name in self._multivalent)
        without = (np.count_nonzero(lengths == 0) for lengths in lists)
        self.counts += [*np.count_nonzero(rows.ids == MISSING_ID, axis=0), *without, len(rows)]

    @property
    def rows(self) -> int:
        return int(self.counts[-1])

    @property
    def by_feature(self) -> dict[str, int]:
        return dict(zip(self._names, self.counts[:-1].tolist(), strict=True))


def outlying_values(state: TrainState) -> dict[str, tuple[int, int, float]]:
    """Returns of each normalized number how many values are no part of its statistics, how many are, and the mean.

    The mean is that of the values which are left out, in the first column that has any, NaN without.
    """
    found: dict[str, tuple[int, int, float]] = {}
    if state.statistics is None or state.apart is None:
        return found
    statistics, apart = state.statistics.numpy(), state.apart.numpy()
    for one in all_numbers(state.layouts):
        if one.normalize:
            columns = slice(one.first, one.first + one.size)
            left, means = apart[0, columns], apart[1, columns]
            mean = float(means[left > 0][0]) if left.any() else math.nan
            mean = math.copysign(math.expm1(abs(mean)), mean) if one.log else mean
            found[one.name] = int(left.sum()), int(statistics[0, columns].sum()), mean
    return found


def feature_shares(state: TrainState, missing: MissingValues, schema: Schema) -> dict[str, Any]:
    """Returns by feature its kind, the share of rows without a value, and of numbers that are far from the others."""
    outlying = outlying_values(state)
    names, by_feature, shares = set(feature_names(state.layouts)), missing.by_feature, {}
    for feature in schema.features:
        if feature.name in names:
            left, others, _ = outlying.get(feature.name, (0, 0, math.nan))
            shares[feature.name] = {
                "kind": feature.kind,
                "missing": by_feature[feature.name] / missing.rows if missing.rows else None,
                "out_of_range": left / (left + others) if left + others else None,
            }
    return shares


def input_warnings(
    labels: Mapping[str, ProgressiveMetrics], missing: MissingValues, state: TrainState
) -> list[str]:
    """Names the labels and features that taught nothing, and values that are no part of a number's statistics."""
    lines = []
    for name, label in labels.items():
        rows, weights = int(label.traffic.examples), label.logloss.class_weight.sum(axis=0)
        if not rows:
            lines.append(f"label {name}: nothing was learned: it is known of no row that was scored")
        elif weights.any() and not weights.all():
            only = "none of its {} rows is" if weights[0] else "all of its {} rows are"
            lines.append(f"label {name}: nothing was learned: {only.format(rows)} positive")
    lines += [
        f"feature {name}: {left} values (mean {mean:g}) are more than {FAR:,.0f} deviations from the others, and no "
        "part of its mean and deviation"
        for name, (left, _, mean) in outlying_values(state).items()
        if left
    ]
    by_feature, rows = missing.by_feature, missing.rows
    lines += [
        f"feature {name}: nothing was learned: it is missing in all {rows} rows"
        for name in feature_names(state.layouts)
        if rows and by_feature[name] == rows
    ]
    return lines


def id_rows(id_maps: Iterable[IdMap], schema: Schema) -> dict[str, Any]:
    """Returns what happened to the rows of ids that grow in the pass: of all features together, and of each."""
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
    found = {name: counts for id_map in id_maps for name, counts in id_map.counters().items()}
    return {name: found[name] for name in schema.growing if name in found}


def _id_numbers(counts: FeatureCounters) -> dict[str, int | float | None]:
    shown: dict[str, int | float | None] = {
        name: getattr(counts, name) for name in ("occupancy", "capacity", "admitted", "evicted", "refused")
    }
    shown["shared_share"] = counts.shared / counts.occurrences if counts.occurrences else None
    return shown


def refusal_text(id_maps: Iterable[IdMap], schema: Schema) -> str | None:
    """Returns a warning where features were full and had to leave ids on shared rows, or None where none was."""
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


def slice_names(
    schema: Schema,
    log: Path,
    slices: Mapping[str, Sequence[int]],
    families: Mapping[str, Sequence[str]],
) -> dict[str, dict[str, str]]:
    """Returns the names of ids by which metrics are sliced, by feature and id, in the order that a report shows.

    ``slices``: by feature, or family of bias constraints, its ids, those with the most weight first; ``families``: by
    name what the slices of each family hold; ``log``: where values may be. Numbers and vocabularies keep their order,
    as do values that are all numbers; other values come by weight.
    """
    features = {name: ids for name, ids in slices.items() if name in schema.by_name}
    hashed = {name: ids for name, ids in features.items() if has_raw_values(schema.by_name[name])}
    kept: dict[str, dict[int, str]] = {}
    try:
        kept = read_values(log, hashed)
    except InputError as error:
        # The run is complete without.
        logger.warning("slices are named by their ids: %s", error)
    names: dict[str, dict[str, str]] = {}
    for name, ids in features.items():
        feature, texts = schema.by_name[name], {}
        for one in ids:
            number = display.fingerprint(one) if feature.buckets is None else f"id {one}"
            texts[one] = value_of_id(feature, one) or kept.get(name, {}).get(one, number)
        if name not in hashed:
            texts = dict(sorted(texts.items()))
        elif all(map(_NUMBER.fullmatch, texts.values())):
            texts = dict(sorted(texts.items(), key=lambda entry: float(entry[1])))
        names[name] = {str(one): text for one, text in texts.items()}
    for name, words in families.items():
        names[name] = {str(one): words[one] if one >= 0 else "no slice" for one in slices[name]}
    return names
