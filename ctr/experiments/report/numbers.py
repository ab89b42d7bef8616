"""Numbers of an experiment as JSON and, taken from it, as CSV."""

import dataclasses
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ctr.eval.display import Number
from ctr.eval.intervals import Estimate
from ctr.experiments.report.arms import CHANGED, MetricChange, PairChange, prediction_difference_of
from ctr.experiments.report.costs import CostChange
from ctr.experiments.report.files import ArmCosts, Ending
from ctr.experiments.report.results import CURVE_COSTS, ArmResult, Experiment
from ctr.experiments.report.retrains import PairDifference
from ctr.experiments.report.slices import SliceChange
from ctr.experiments.report.tuning_points import TuningPoint
from ctr.io.documents import json_number

_PARTS = {"late": "pd_last_half", "whole": "pd_whole_pass"}
# What spreadsheets take for the start of a formula, in both widths; a number with a sign is one.
_FORMULA_STARTS = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
_NUMBER = re.compile(r"[+-]?[0-9]+([.][0-9]+)?%?")

Record = Mapping[str, Any]


def spread(values: Collection[float]) -> tuple[float, float, float | None]:
    """Smallest, largest, and standard deviation (of a sample; None for fewer than two) of numbers."""
    found = list(values)
    return min(found), max(found), float(np.std(found, ddof=1)) if len(found) > 1 else None


def as_json(experiment: Experiment) -> str:
    """Everything; null where undefined. Seeds and pairs of seeds are keys as text: ``1``, ``1-2``."""
    planned = experiment.plan.model_dump(exclude={"arms"})
    first = ("title", "note", "log", "log_sha256", "command", "created", "ctr_version", "baseline")
    content = {
        **{key: planned.pop(key) for key in first},
        "late_from": experiment.late_from,
        "timing_rounds": experiment.costs.rounds,
        **planned,
        "failures": dict(experiment.failures),
        "teacher_flops": experiment.costs.teacher_flops,
        "arms": [_arm(result) for result in experiment.arms],
    }
    # What plans and environments hold as NaN or infinity is no JSON: it becomes text.
    plain = json.loads(json.dumps(content), parse_constant=str)
    return json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _arm(result: ArmResult) -> dict[str, Any]:
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
        "runs": [_ending(outcome) for outcome in arm.outcomes],
        "metrics": {name: _plain(arm.metric(name)) for name in CHANGED},
        "metrics_by_seed": {
            str(seed): {name: json_number(estimate.point) for name, estimate in of_seed.items()}
            for seed, of_seed in arm.estimates.items()
        },
        "changes": {name: _change(change) for name, change in result.changes.items()},
        "not_compared": result.refusal or None,
        "accuracy_change_from_baseline": None if baseline_change is None else _change(baseline_change),
        "prediction_difference": {
            part: {
                "mean": _plain(prediction_difference_of(arm, part)),
                "by_pair": _plain({pair: float(one.point) for pair, one in pairs.pairs[part].items()}),
                **_ratio(change),
            }
            for part, change in result.prediction_changes.items()
        },
        "prediction_difference_unavailable": pairs.unavailable or None,
        "retrains": {kind: _retrained(one) for kind, one in result.retrains.items()},
        "costs": None if result.costs is None else result.costs.model_dump(),
        "cost_ratio": _costs(result.cost_change),
        "cost_ratio_to_baseline": _costs(result.cost_from_baseline),
        "slices": [_slice(change) for change in result.slices],
        "slice_variances": _plain(result.variances),
        "tuning": {
            kind: {**_plain(tuning), "unavailable": tuning.unavailable or None}
            for kind, tuning in result.tuning.items()
        },
        "calibration": None if arm.deciles is None else _plain(arm.deciles.to_dict("records")),
    }


def _plain(value: Any) -> Any:
    """Estimates, objects and what holds them as JSON has them."""
    if isinstance(value, Estimate):
        return value.number().as_record()
    if isinstance(value, TuningPoint):
        return {
            "relative": _plain(value.value),
            "bound": value.bound or None,
            "ci95": [value.low, value.high],
        }
    if dataclasses.is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {"-".join(map(str, key)) if isinstance(key, tuple) else str(key): _plain(one)
                for key, one in value.items()}  # fmt: skip
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return json_number(value) if isinstance(value, float) else value


def _ending(outcome: Ending) -> dict[str, Any]:
    entries = {key: value or None for key, value in vars(outcome).items() if key != "config"}
    return {**entries, "seed": outcome.seed}


def _retrained(found: PairDifference) -> dict[str, Any]:
    return {
        "mean": _plain(found.mean),
        "by_pair": _plain(found.pairs),
        "ratio": _plain(found.of_reference),
        "pairs_planned": found.planned,
        "unavailable": found.unavailable or None,
    }


def _ratio(change: PairChange | None) -> dict[str, Any]:
    if change is None:
        return {"ratio": None, "ratio_by_pair": {}}
    return {"ratio": _plain(change.ratio), "ratio_by_pair": _plain(change.by_pair)}


def _slice(change: SliceChange) -> dict[str, Any]:
    entries, shown = _plain(change), change.shown
    del entries["shown"]
    name, title = (None, None) if shown is None else (shown.name, shown.title or None)
    return {"name": name, "title": title, **entries}


def _change(change: MetricChange) -> dict[str, Any]:
    entries = _plain(change)
    significant = entries.pop("significant")
    ends = zip(("lowest", "highest", "deviation"), spread(change.by_seed.values()), strict=True)
    return {
        **entries,
        **{f"seeds_{name}": _plain(value) for name, value in ends},
        "significant": significant,
        "one_seed": len(change.by_seed) == 1,
    }


def _costs(change: CostChange) -> dict[str, Any]:
    return {
        name: None if cost is None else {"value": cost.value, "quartiles": [cost.low, cost.high]}
        for name, cost in vars(change).items()
    }


def as_csv(experiment: Experiment) -> str:
    """Raw numbers, one row an arm, under columns that say what they are; an empty cell is unknown.

    Differences and changes are against the arm that ``against`` names. Ratios are multiples of its costs or
    PD; ends of intervals are those of 95% over queries, but for quartiles over rounds of timing. Text that a
    spreadsheet would run as a formula has an apostrophe before it, which spreadsheets take to mean text.
    """
    papers = dict.fromkeys(key for result in experiment.arms for key in result.arm.plan.paper)
    slices = [one.name for one in experiment.plan.slices]
    rows = [_row(_arm(result), slices, list(papers)) for result in experiment.arms]
    plain = [{_escaped(name): _escaped(value) for name, value in row.items()} for row in rows]
    return pd.DataFrame(plain).to_csv(index=False, lineterminator="\n")


def _escaped(value: object) -> object:
    """The titles and notes of an experiment may come from other people."""
    if not isinstance(value, str) or _NUMBER.fullmatch(value):
        return value
    return f"'{value}" if value.lstrip(" ").startswith(_FORMULA_STARTS) else value


def _row(arm: Record, slices: list[str], papers: list[str]) -> dict[str, object]:
    """Columns of an arm, from its part of the JSON."""
    row: dict[str, object] = {
        "arm": arm["name"],
        "title": arm["title"],
        "against": arm["against"],
        "sweep_of": arm["of"],
        "sweep_point": arm["point"],
        "runs_planned": len(arm["runs"]),
        "runs_finished": len(arm["metrics_by_seed"]),
        "not_compared": arm["not_compared"],
    }
    for name in CHANGED:
        change = arm["changes"].get(name) or {}
        row |= _number(name, arm["metrics"][name])
        row |= _number(f"{name}_difference", change.get("difference"))
        row |= _number(f"{name}_change_percent", change.get("percent"))
        row[f"{name}_difference_lowest_seed"] = change.get("seeds_lowest")
        row[f"{name}_difference_highest_seed"] = change.get("seeds_highest")
        row[f"{name}_difference_seed_deviation"] = change.get("seeds_deviation")
        row[f"{name}_seeds_compared"] = len(change["by_seed"]) if change else None
        row[f"{name}_significant"] = change.get("significant")
    for part, column in _PARTS.items():
        row |= _pairs(column, arm["prediction_difference"][part])
    for kind, found in arm["retrains"].items():
        row |= _number(f"prediction_difference_{kind}", found["mean"])
        row |= _number(f"prediction_difference_{kind}_ratio", found["ratio"])
    costs = arm["costs"] or ArmCosts().model_dump()
    row |= {name: value for name, value in costs.items() if name not in ("step_ratio", "inference_ratio")}
    for name, cost in arm["cost_ratio"].items():
        cost = cost or {"value": None, "quartiles": [None, None]}
        row[f"{name}_ratio"] = cost["value"]
        if name.endswith("time"):
            row[f"{name}_ratio_lower_quartile"], row[f"{name}_ratio_upper_quartile"] = cost["quartiles"]
    for kind in CURVE_COSTS:
        for column, key in (
            (f"accuracy_change_at_neutral_{kind}", "accuracy_at_neutral_cost"),
            (f"{kind}_change_at_neutral_accuracy", "cost_at_neutral_accuracy"),
        ):
            point = arm["tuning"].get(kind, {}).get(key) or {}
            low, high = point.get("ci95", (None, None))
            row |= {column: point.get("relative"), f"{column}_bound": point.get("bound")}
            row |= {f"{column}_low": low, f"{column}_high": high}
    for name in slices:
        shown: Record = next((one for one in arm["slices"] if one["name"] == name), {})
        row[f"slice_{name}_weight"] = shown.get("weight")
        for key in ("reference_bias", "bias", "size_change_percent"):
            row |= _number(f"slice_{name}_{key}", shown.get(key))
    return row | {f"paper_{key}": arm["paper"].get(key) for key in papers}


def _number(column: str, record: Record | None) -> dict[str, float | None]:
    return Number.from_record(record).as_columns(column)


def _pairs(column: str, record: Record) -> dict[str, object]:
    """Returns what the pairs of an arm's seeds differ by, and its ratio to the reference's."""
    row: dict[str, object] = {}
    for name, mean, pairs in ((column, "mean", "by_pair"), (f"{column}_ratio", "ratio", "ratio_by_pair")):
        each = [one["value"] if isinstance(one, dict) else one for one in record.get(pairs, {}).values()]
        known = [one for one in each if one is not None]
        row |= _number(name, record.get(mean))
        row |= {
            f"{name}_lowest_pair": min(known, default=None),
            f"{name}_highest_pair": max(known, default=None),
        }
    return row
