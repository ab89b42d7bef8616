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
from ctr.experiments.report.costs import CostChange, Multiple
from ctr.experiments.report.files import ArmCosts
from ctr.experiments.report.loops import SHOWN, LoopResult
from ctr.experiments.report.results import CURVE_COSTS, ArmResult, Experiment, Tuning
from ctr.experiments.report.slices import SliceChange, VarianceChange
from ctr.experiments.report.tuning_points import TuningPoint
from ctr.io.documents import json_number

_PARTS = {"late": "pd_last_half", "whole": "pd_whole_pass"}


def as_json(experiment: Experiment) -> str:
    """Everything; null where undefined. Seeds and pairs of seeds are keys as text: ``1``, ``1-2``."""
    # What plans and environments hold as NaN or infinity is no JSON: it becomes text.
    plain = json.loads(json.dumps(_as_dict(experiment)), parse_constant=str)
    return json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def spread(values: Collection[float]) -> tuple[float, float, float | None]:
    """Smallest, largest, and standard deviation (of a sample; None for fewer than two) of numbers."""
    found = list(values)
    return min(found), max(found), float(np.std(found, ddof=1)) if len(found) > 1 else None


def _as_dict(experiment: Experiment) -> dict[str, Any]:
    plan = experiment.plan
    return {
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
        "slices": [one.model_dump() for one in plan.slices],
        "loop_days": plan.loop_days,
        "scored_us": plan.scored_us,
        "failures": dict(experiment.failures),
        "teacher_flops": experiment.costs.teacher_flops,
        "arms": [_arm_dict(result) for result in experiment.arms],
    }


def _arm_dict(result: ArmResult) -> dict[str, Any]:
    arm, plan = result.arm, result.arm.plan
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
            str(seed): {name: json_number(one.point) for name, one in of_seed.items()}
            for seed, of_seed in arm.estimates.items()
        },
        "changes": {name: _change_dict(change) for name, change in result.changes.items()},
        "not_compared": result.refusal or None,
        "accuracy_change_from_baseline": None
        if result.from_baseline is None
        else _change_dict(result.from_baseline),
        "prediction_difference": {
            part: {
                "mean": _estimate_dict(prediction_difference_of(arm, part)),
                "by_pair": {_pair(pair): json_number(one.point) for pair, one in pairs.pairs[part].items()},
                "ratio": None if change is None else _estimate_dict(change.ratio),
                "ratio_by_pair": {}
                if change is None
                else {_pair(pair): json_number(value) for pair, value in change.by_pair.items()},
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
        else [
            {str(key): json_number(value) for key, value in row.items()}
            for row in arm.deciles.to_dict("records")
        ],
    }


def _loops_dict(result: LoopResult) -> dict[str, Any]:
    loops = result.loops
    return {
        "runs": [
            {
                **vars(outcome),
                "reason": outcome.reason or None,
                **{name: json_number(value) for name, value in loops.shown.get(outcome.seed, {}).items()},
            }
            for outcome in loops.outcomes
        ],
        **{name: None if (value := loops.mean_shown(name)) is None else json_number(value) for name in SHOWN},
        "churn": {
            measure: {
                "mean": _estimate_dict(loops.mean_churn(measure)),
                "by_pair": {_pair(pair): _estimate_dict(one) for pair, one in pairs.items()},
                "ratio": None if change is None else _estimate_dict(change.ratio),
                "ratio_by_pair": {}
                if change is None
                else {_pair(pair): json_number(value) for pair, value in change.by_pair.items()},
            }
            for measure, pairs in loops.churn.items()
            for change in (result.changes[measure],)
        },
        "signed_by_pair": {_pair(pair): json_number(value) for pair, value in loops.signed.items()},
        "churn_unavailable": loops.unavailable or None,
    }


def _slice_dict(change: SliceChange) -> dict[str, Any]:
    return {
        "name": None if change.shown is None else change.shown.name,
        "title": None if change.shown is None else change.shown.title or None,
        "family": change.family,
        "index": change.index,
        "log": change.log,
        "holds": change.holds,
        "weight": change.weight,
        "reference_weight": change.reference_weight,
        "bias": _estimate_dict(change.bias),
        "reference_bias": _estimate_dict(change.reference_bias),
        "size_change_percent": _estimate_dict(change.size_change),
        "size_change_percent_by_seed": {
            str(seed): json_number(value) for seed, value in change.size_change_by_seed.items()
        },
        "significant": change.significant,
    }


def _variance_dict(change: VarianceChange) -> dict[str, Any]:
    return {
        "family": change.family,
        "slices": change.slices,
        "variance": _estimate_dict(change.variance),
        "reference_variance": _estimate_dict(change.reference_variance),
        "change_percent": _estimate_dict(change.change),
        "change_percent_by_seed": {
            str(seed): json_number(value) for seed, value in change.change_by_seed.items()
        },
        "significant": change.significant,
    }


def _estimate_dict(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    low, high = estimate.interval()
    return {"value": json_number(estimate.point), "ci95": [json_number(low), json_number(high)]}


def _change_dict(change: MetricChange) -> dict[str, Any]:
    low, high, deviation = spread(change.by_seed.values())
    return {
        "difference": _estimate_dict(change.difference),
        "percent": _estimate_dict(change.percent),
        "by_seed": {str(seed): json_number(value) for seed, value in change.by_seed.items()},
        "percent_by_seed": {str(seed): json_number(value) for seed, value in change.percent_by_seed.items()},
        "seeds_lowest": json_number(low),
        "seeds_highest": json_number(high),
        "seeds_deviation": None if deviation is None else json_number(deviation),
        "significant": change.significant,
        "one_seed": len(change.by_seed) == 1,
    }


def _costs_dict(change: CostChange) -> dict[str, Any]:
    return {
        name: None if (one := getattr(change, name)) is None else _multiple_dict(one)
        for name in ("train_time", "train_flops", "inference_time", "inference_flops")
    }


def _multiple_dict(multiple: Multiple) -> dict[str, Any]:
    return {"value": multiple.value, "quartiles": [multiple.low, multiple.high]}


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
    return {
        "relative": json_number(point.value),
        "bound": point.bound or None,
        "ci95": [point.low, point.high],
    }


def _pair(pair: tuple[int, int]) -> str:
    return f"{pair[0]}-{pair[1]}"


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
