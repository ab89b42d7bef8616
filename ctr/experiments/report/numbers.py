"""Numbers of an experiment as JSON and as CSV."""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ctr.eval.ads_churn import MEASURES
from ctr.eval.intervals import Estimate
from ctr.experiments.report.arms import CHANGED, MetricChange, PairChange, prediction_difference_of
from ctr.experiments.report.costs import CostChange
from ctr.experiments.report.files import ArmCosts
from ctr.experiments.report.loops import SHOWN, LoopResult
from ctr.experiments.report.results import CURVE_COSTS, ArmResult, Experiment, Tuning
from ctr.experiments.report.slices import SliceChange, VarianceChange
from ctr.experiments.report.tuning_points import TuningPoint
from ctr.io.documents import json_number

_COSTS = ("train_time", "train_flops", "inference_time", "inference_flops")
_PARTS = {"late": "pd_last_half", "whole": "pd_whole_pass"}
# What spreadsheets take for the start of a formula, in both widths; a number with a sign is one.
_FORMULA_STARTS = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
_NUMBER = re.compile(r"[+-]?[0-9]+([.][0-9]+)?%?")


def spread(values: Collection[float]) -> tuple[float, float, float | None]:
    """Smallest, largest, and standard deviation (of a sample; None for fewer than two) of numbers."""
    found = list(values)
    return min(found), max(found), float(np.std(found, ddof=1)) if len(found) > 1 else None


def as_json(experiment: Experiment) -> str:
    """Everything; null where undefined. Seeds and pairs of seeds are keys as text: ``1``, ``1-2``."""
    plan = experiment.plan
    content = {
        "title": plan.title,
        "note": plan.note,
        "log": plan.log,
        "log_sha256": plan.log_sha256,
        "command": plan.command,
        "created": plan.created,
        "ctr_version": plan.ctr_version,
        "baseline": plan.baseline,
        "late_from": experiment.late_from,
        "timing_rounds": experiment.costs.rounds,
        "teachers": [teacher.model_dump() for teacher in plan.teachers],
        "samplings": [sampling.model_dump() for sampling in plan.samplings],
        "slices": [shown.model_dump() for shown in plan.slices],
        "loop_days": plan.loop_days,
        "scored_us": plan.scored_us,
        "failures": dict(experiment.failures),
        "teacher_flops": experiment.costs.teacher_flops,
        "arms": [_arm_dict(result) for result in experiment.arms],
    }
    # What plans and environments hold as NaN or infinity is no JSON: it becomes text.
    plain = json.loads(json.dumps(content), parse_constant=str)
    return json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _arm_dict(result: ArmResult) -> dict[str, Any]:
    arm, plan, baseline_change = result.arm, result.arm.plan, result.from_baseline
    pairs = arm.prediction_pairs
    return {
        "name": plan.name,
        "title": plan.shown,
        "note": plan.note,
        "against": result.reference,
        "of": plan.of,
        "point": plan.point,
        "teacher": plan.teacher,
        "sampling": plan.sampling,
        "set": plan.changes,
        "paper": plan.paper,
        "runs": [
            {
                "seed": outcome.seed,
                "folder": outcome.folder,
                "state": outcome.state,
                "reason": outcome.reason or None,
                "config_sha256": outcome.config_sha256 or None,
                "environment": outcome.environment or None,
            }
            for outcome in arm.outcomes
        ],
        "metrics": {name: _estimate_dict(arm.metric(name)) for name in CHANGED},
        "metrics_by_seed": {
            str(seed): {name: json_number(estimate.point) for name, estimate in of_seed.items()}
            for seed, of_seed in arm.estimates.items()
        },
        "changes": {name: _change_dict(change) for name, change in result.changes.items()},
        "not_compared": result.refusal or None,
        "accuracy_change_from_baseline": None if baseline_change is None else _change_dict(baseline_change),
        "prediction_difference": {
            part: {
                "mean": _estimate_dict(prediction_difference_of(arm, part)),
                "by_pair": _numbers({pair: one.point for pair, one in pairs.pairs[part].items()}),
                **_ratio_dict(change),
            }
            for part, change in result.prediction_changes.items()
        },
        "prediction_difference_unavailable": pairs.unavailable or None,
        "costs": None if result.costs is None else result.costs.model_dump(),
        "cost_ratio": _costs_dict(result.cost_change),
        "cost_ratio_to_baseline": _costs_dict(result.cost_from_baseline),
        "loops": None if result.loops is None else _loops_dict(result.loops),
        "slices": [_slice_dict(change) for change in result.slices],
        "slice_variances": [_variance_dict(change) for change in result.variances],
        "tuning": {kind: _tuning_dict(tuning) for kind, tuning in result.tuning.items()},
        "calibration": None
        if arm.deciles is None
        else [_numbers(row) for row in arm.deciles.to_dict("records")],
    }


def _numbers(values: Mapping[Any, Any]) -> dict[str, float | None]:
    """Numbers by seed, pair of seeds, or name."""
    return {_key(key): json_number(value) for key, value in values.items()}


def _key(key: Any) -> str:
    return f"{key[0]}-{key[1]}" if isinstance(key, tuple) else str(key)


def _estimate_dict(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else estimate.as_record()


def _ratio_dict(change: PairChange | None) -> dict[str, Any]:
    if change is None:
        return {"ratio": None, "ratio_by_pair": {}}
    return {"ratio": _estimate_dict(change.ratio), "ratio_by_pair": _numbers(change.by_pair)}


def _loops_dict(result: LoopResult) -> dict[str, Any]:
    loops = result.loops
    means = {name: loops.mean_shown(name) for name in SHOWN}
    return {
        "runs": [
            {**vars(outcome), "reason": outcome.reason or None, **_numbers(loops.shown.get(outcome.seed, {}))}
            for outcome in loops.outcomes
        ],
        **{name: None if mean is None else json_number(mean) for name, mean in means.items()},
        "churn": {
            measure: {
                "mean": _estimate_dict(loops.mean_churn(measure)),
                "by_pair": {_key(pair): _estimate_dict(estimate) for pair, estimate in pairs.items()},
                **_ratio_dict(result.changes[measure]),
            }
            for measure, pairs in loops.churn.items()
        },
        "signed_by_pair": _numbers(loops.signed),
        "churn_unavailable": loops.unavailable or None,
    }


def _slice_dict(change: SliceChange) -> dict[str, Any]:
    shown = change.shown
    return {
        "name": None if shown is None else shown.name,
        "title": None if shown is None else shown.title or None,
        "family": change.family,
        "index": change.index,
        "log": change.log,
        "holds": change.holds,
        "weight": change.weight,
        "reference_weight": change.reference_weight,
        "bias": _estimate_dict(change.bias),
        "reference_bias": _estimate_dict(change.reference_bias),
        "size_change_percent": _estimate_dict(change.size_change),
        "size_change_percent_by_seed": _numbers(change.size_change_by_seed),
        "significant": change.significant,
    }


def _variance_dict(change: VarianceChange) -> dict[str, Any]:
    return {
        "family": change.family,
        "slices": change.slices,
        "variance": _estimate_dict(change.variance),
        "reference_variance": _estimate_dict(change.reference_variance),
        "change_percent": _estimate_dict(change.change),
        "change_percent_by_seed": _numbers(change.change_by_seed),
        "significant": change.significant,
    }


def _change_dict(change: MetricChange) -> dict[str, Any]:
    low, high, deviation = spread(change.by_seed.values())
    return {
        "difference": _estimate_dict(change.difference),
        "percent": _estimate_dict(change.percent),
        "by_seed": _numbers(change.by_seed),
        "percent_by_seed": _numbers(change.percent_by_seed),
        "seeds_lowest": json_number(low),
        "seeds_highest": json_number(high),
        "seeds_deviation": None if deviation is None else json_number(deviation),
        "significant": change.significant,
        "one_seed": len(change.by_seed) == 1,
    }


def _costs_dict(change: CostChange) -> dict[str, Any]:
    costs = {name: getattr(change, name) for name in _COSTS}
    return {
        name: None if cost is None else {"value": cost.value, "quartiles": [cost.low, cost.high]}
        for name, cost in costs.items()
    }


def _tuning_dict(tuning: Tuning) -> dict[str, Any]:
    return {
        "points": list(tuning.points),
        "left_out": list(tuning.left_out),
        "seeds": list(tuning.seeds),
        "accuracy_at_neutral_cost": _point_dict(tuning.accuracy),
        "cost_at_neutral_accuracy": _point_dict(tuning.cost),
        "unavailable": tuning.unavailable or None,
    }


def _point_dict(point: TuningPoint | None) -> dict[str, Any] | None:
    if point is None:
        return None
    relative = json_number(point.value)
    return {"relative": relative, "bound": point.bound or None, "ci95": [point.low, point.high]}


def as_csv(experiment: Experiment) -> str:
    """Raw numbers, one row an arm, under columns that say what they are; an empty cell is unknown.

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
        row |= _pairs(column, arm.prediction_pairs.pairs[part])
        row |= _ratio(f"{column}_ratio", result.prediction_changes[part])
    row |= _costs(result.costs, result.cost_change)
    for kind in CURVE_COSTS:
        tuning = result.tuning.get(kind)
        row |= _tuned(f"accuracy_change_at_neutral_{kind}", getattr(tuning, "accuracy", None))
        row |= _tuned(f"{kind}_change_at_neutral_accuracy", getattr(tuning, "cost", None))
    if has_loops:
        row |= _loops(result.loops)
    by_name = {change.shown.name: change for change in reversed(result.slices) if change.shown is not None}
    for name in slices:
        row |= _slice(f"slice_{name}", by_name.get(name))
    return row | {f"paper_{key}": plan.paper.get(key) for key in papers}


def _ends(column: str, estimate: Estimate | None) -> dict[str, object]:
    if estimate is None:
        return dict.fromkeys((column, f"{column}_low", f"{column}_high"))
    low, high = estimate.interval()
    return {column: float(estimate.point), f"{column}_low": float(low), f"{column}_high": float(high)}


def _change(name: str, change: MetricChange | None) -> dict[str, object]:
    low, high, deviation = (None, None, None) if change is None else spread(change.by_seed.values())
    return {
        **_ends(f"{name}_difference", getattr(change, "difference", None)),
        **_ends(f"{name}_change_percent", getattr(change, "percent", None)),
        f"{name}_difference_lowest_seed": low,
        f"{name}_difference_highest_seed": high,
        f"{name}_difference_seed_deviation": deviation,
        f"{name}_seeds_compared": None if change is None else len(change.by_seed),
        f"{name}_significant": getattr(change, "significant", None),
    }


def _pairs(column: str, pairs: Mapping[tuple[int, int], Estimate | float]) -> dict[str, object]:
    values = [float(pair.point if isinstance(pair, Estimate) else pair) for pair in pairs.values()]
    return {
        f"{column}_lowest_pair": min(values, default=None),
        f"{column}_highest_pair": max(values, default=None),
    }


def _ratio(column: str, change: PairChange | None) -> dict[str, object]:
    return _ends(column, getattr(change, "ratio", None)) | _pairs(
        column, {} if change is None else change.by_pair
    )


def _loops(result: LoopResult | None) -> dict[str, object]:
    loops = None if result is None else result.loops
    row: dict[str, object] = {name: None if loops is None else loops.mean_shown(name) for name in SHOWN}
    row["loops_finished"] = None if loops is None else len(loops.shown)
    for measure in MEASURES:
        row |= _ends(measure, None if loops is None else loops.mean_churn(measure))
        row |= _pairs(measure, {} if loops is None else loops.churn[measure])
        row |= _ratio(f"{measure}_ratio", None if result is None else result.changes[measure])
    return row


def _slice(column: str, change: SliceChange | None) -> dict[str, object]:
    return {
        f"{column}_weight": getattr(change, "weight", None),
        **_ends(f"{column}_reference_bias", getattr(change, "reference_bias", None)),
        **_ends(f"{column}_bias", getattr(change, "bias", None)),
        **_ends(f"{column}_size_change_percent", getattr(change, "size_change", None)),
    }


def _costs(costs: ArmCosts | None, change: CostChange) -> dict[str, object]:
    row: dict[str, object] = (costs or ArmCosts()).model_dump(exclude={"step_ratio", "inference_ratio"})
    for name in _COSTS:
        multiple = getattr(change, name)
        row[f"{name}_ratio"] = getattr(multiple, "value", None)
        if name.endswith("time"):
            row[f"{name}_ratio_lower_quartile"] = getattr(multiple, "low", None)
            row[f"{name}_ratio_upper_quartile"] = getattr(multiple, "high", None)
    return row


def _tuned(column: str, point: TuningPoint | None) -> dict[str, object]:
    return {
        column: getattr(point, "value", None),
        f"{column}_bound": getattr(point, "bound", None) or None,
        f"{column}_low": getattr(point, "low", None),
        f"{column}_high": getattr(point, "high", None),
    }
