"""Numbers of an experiment as CSV, one row an arm."""

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from ctr.eval.ads_churn import MEASURES
from ctr.eval.intervals import Estimate
from ctr.experiments.report.arms import CHANGED, MetricChange, PairChange, prediction_difference_of
from ctr.experiments.report.costs import CostChange
from ctr.experiments.report.files import ArmCosts
from ctr.experiments.report.loops import SHOWN, LoopResult
from ctr.experiments.report.results import CURVE_COSTS, ArmResult, Experiment
from ctr.experiments.report.slices import SliceChange
from ctr.experiments.report.tuning_points import TuningPoint
from ctr.experiments.report.write_json import spread

_PARTS = {"late": "pd_last_half", "whole": "pd_whole_pass"}


def as_csv(experiment: Experiment) -> str:
    """Raw numbers under columns that say what they are; an empty cell is unknown.

    Differences and changes are against the arm that ``against`` names. Ratios are multiples of its costs or
    PD; ends of intervals are those of 95% over queries, but for quartiles over rounds of timing. Text that a
    spreadsheet would run as a formula has an apostrophe before it, which spreadsheets take to mean text.
    """
    papers = dict.fromkeys(key for result in experiment.arms for key in result.arm.plan.paper)
    has_loops = any(result.loops is not None for result in experiment.arms)
    slices = [one.name for one in experiment.plan.slices]
    rows = [_row(result, has_loops, slices, list(papers)) for result in experiment.arms]
    plain = [{_escaped(name): _escaped(value) for name, value in row.items()} for row in rows]
    return pd.DataFrame(plain).to_csv(index=False, lineterminator="\n")


# What spreadsheets take for the start of a formula, in both widths; a number with a sign is one.
_FORMULA_STARTS = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
_NUMBER = re.compile(r"[+-]?[0-9]+([.][0-9]+)?%?")


def _escaped(value: object) -> object:
    """The titles and notes of an experiment may come from other people."""
    if not isinstance(value, str) or _NUMBER.fullmatch(value):
        return value
    return f"'{value}" if value.lstrip(" ").startswith(_FORMULA_STARTS) else value


def _row(result: ArmResult, has_loops: bool, slices: list[str], papers: list[str]) -> dict[str, object]:
    arm, plan = result.arm, result.arm.plan
    row: dict[str, object] = {
        "arm": plan.name,
        "title": plan.shown,
        "against": result.reference,
        "sweep_of": plan.of,
        "sweep_point": plan.point,
        "runs_planned": len(arm.outcomes),
        "runs_finished": len(arm.estimates),
        "not_compared": result.refusal or None,
    }
    for name in CHANGED:
        row |= _ends(name, arm.metric(name))
        row |= _change(name, result.changes.get(name))
    for part, column in _PARTS.items():
        row |= _ends(column, prediction_difference_of(arm, part))
        row |= _pairs(column, [float(one.point) for one in arm.prediction_pairs.pairs[part].values()])
        row |= _ratio(f"{column}_ratio", result.prediction_changes[part])
    row |= _costs(result.costs, result.cost_change)
    for kind in CURVE_COSTS:
        tuning = result.tuning.get(kind)
        row |= _tuned(f"accuracy_change_at_neutral_{kind}", None if tuning is None else tuning.accuracy)
        row |= _tuned(f"{kind}_change_at_neutral_accuracy", None if tuning is None else tuning.cost)
    if has_loops:
        row |= _loops(result.loops)
    for name in slices:
        found = [one for one in result.slices if one.shown is not None and one.shown.name == name]
        row |= _slice(f"slice_{name}", found[0] if found else None)
    return row | {f"paper_{key}": plan.paper.get(key) for key in papers}


def _ends(column: str, estimate: Estimate | None) -> dict[str, object]:
    if estimate is None:
        return dict.fromkeys((column, f"{column}_low", f"{column}_high"))
    low, high = estimate.interval()
    return {column: float(estimate.point), f"{column}_low": float(low), f"{column}_high": float(high)}


def _change(name: str, change: MetricChange | None) -> dict[str, object]:
    row = _ends(f"{name}_difference", None if change is None else change.difference)
    row |= _ends(f"{name}_change_percent", None if change is None else change.percent)
    seeds = (f"{name}_difference_{which}" for which in ("lowest_seed", "highest_seed", "seed_deviation"))
    row |= zip(seeds, (None, None, None) if change is None else spread(change.by_seed.values()), strict=True)
    row[f"{name}_seeds_compared"] = None if change is None else len(change.by_seed)
    row[f"{name}_significant"] = None if change is None else change.significant
    return row


def _pairs(column: str, values: list[float]) -> dict[str, object]:
    return {
        f"{column}_lowest_pair": min(values, default=None),
        f"{column}_highest_pair": max(values, default=None),
    }


def _ratio(column: str, change: PairChange | None) -> dict[str, object]:
    if change is None:
        return _ends(column, None) | _pairs(column, [])
    return _ends(column, change.ratio) | _pairs(column, list(change.by_pair.values()))


def _loops(result: LoopResult | None) -> dict[str, object]:
    row: dict[str, object] = {
        name: None if result is None else result.loops.mean_shown(name) for name in SHOWN
    }
    row["loops_finished"] = None if result is None else len(result.loops.shown)
    for measure in MEASURES:
        row |= _ends(measure, None if result is None else result.loops.mean_churn(measure))
        pairs = [] if result is None else [float(one.point) for one in result.loops.churn[measure].values()]
        row |= _pairs(measure, pairs)
        row |= _ratio(f"{measure}_ratio", None if result is None else result.changes[measure])
    return row


def _slice(column: str, change: SliceChange | None) -> dict[str, object]:
    return {
        f"{column}_weight": None if change is None else change.weight,
        **_ends(f"{column}_reference_bias", None if change is None else change.reference_bias),
        **_ends(f"{column}_bias", None if change is None else change.bias),
        **_ends(f"{column}_size_change_percent", None if change is None else change.size_change),
    }


def _costs(costs: ArmCosts | None, change: CostChange) -> dict[str, object]:
    measured: Mapping[str, Any] = (ArmCosts() if costs is None else costs).model_dump(
        exclude={"step_ratio", "inference_ratio"}
    )
    row: dict[str, object] = dict(measured)
    for name in ("train_time", "train_flops", "inference_time", "inference_flops"):
        multiple = getattr(change, name)
        row[f"{name}_ratio"] = None if multiple is None else multiple.value
        if name.endswith("time"):
            row[f"{name}_ratio_lower_quartile"] = None if multiple is None else multiple.low
            row[f"{name}_ratio_upper_quartile"] = None if multiple is None else multiple.high
    return row


def _tuned(column: str, point: TuningPoint | None) -> dict[str, object]:
    if point is None:
        return dict.fromkeys((column, f"{column}_bound", f"{column}_low", f"{column}_high"))
    return {
        column: point.value,
        f"{column}_bound": point.bound or None,
        f"{column}_low": point.low,
        f"{column}_high": point.high,
    }
