"""Results of an experiment as one tidy table (`ctr.eval.tidy`), and what numbers do not say."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ctr.eval.display import Number
from ctr.eval.intervals import Estimate, mean
from ctr.eval.prediction_difference import ALWAYS
from ctr.eval.run_comparison import NotComparableError
from ctr.eval.tidy import Numbers, Row, as_records, row, tidy
from ctr.experiments.plan import Plan, read_plan
from ctr.experiments.report.arms import CHANGED, MeasuredArm, measure_arms, metric_rows
from ctr.experiments.report.costs import cost_ratios, pass_flops, train_time
from ctr.experiments.report.files import Costs, read_costs, shared_failures
from ctr.experiments.report.predictions import begin_of_late, pair_rows, retrain_rows, seed_pairs
from ctr.experiments.report.slices import slice_rows
from ctr.experiments.report.tuning_points import (
    CurvePoint,
    TuningPoint,
    accuracy_at_neutral_cost,
    cost_at_neutral_accuracy,
)

ACCURACY = "per_query_auc"  # metric that the tuning points and the plots call accuracy
CURVE_COSTS = ("flops", "time")  # costs of a curve of accuracy over cost: FLOPs of a pass, or its time
FROM_BASELINE = "_from_baseline"  # ends metrics against the baseline, of an arm with another reference


@dataclass(frozen=True)
class Experiment:
    """An experiment and what came of it."""

    plan: Plan
    table: pd.DataFrame
    numbers: Numbers  # of the table
    arms: Mapping[str, MeasuredArm]  # in the order of the plan
    costs: Costs
    late_from: int | None  # query time, microseconds, of the last half; None without predictions
    missing: list[
        str
    ]  # runs and teachers that are not there, and arms that are not compared, each with its reason
    unavailable: Mapping[tuple[str, str], str]  # why an arm lacks a result
    sweeps: Mapping[tuple[str, str], Mapping[str, Any]]  # points of the curve of an arm and a kind of cost

    def as_json(self) -> str:
        """Returns everything as JSON; null where undefined."""
        planned = self.plan.model_dump(exclude={"arms"})
        content = {
            **planned,
            "late_from": self.late_from,
            "timing_rounds": self.costs.rounds,
            "teacher_flops": self.costs.teacher_flops,
            "missing": self.missing,
            "arms": [self._arm(arm) for arm in self.arms.values()],
            "results": as_records(self.table),
        }
        # What plans and environments hold as NaN or infinity is no JSON: it becomes text.
        plain = json.loads(json.dumps(content), parse_constant=str)
        return json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def _arm(self, arm: MeasuredArm) -> dict[str, Any]:
        name, reference = arm.plan.name, self.plan.reference(arm.plan)
        return {
            **arm.plan.model_dump(by_alias=True, exclude={"runs", "retrains"}),
            "against": None if reference is None else reference.name,
            "runs": [
                {**vars(one), "config_sha256": arm.hashes.get(one.seed), "environment": arm.environments.get(one.seed)}
                for one in arm.endings
            ],
            "unavailable": {what: reason for (of, what), reason in self.unavailable.items() if of == name},
            "sweeps": {kind: dict(sweep) for (of, kind), sweep in self.sweeps.items() if of == name},
        }  # fmt: skip


def read_experiment(folder: Path) -> Experiment:
    """Reads and compares everything that the folder of an experiment holds.

    Raises InputError: the plan or the costs cannot be read, or a run read another log than the rest.
    """
    plan, costs = read_plan(folder), read_costs(folder)
    arms, late_from = measure_arms(folder, plan), begin_of_late(folder, plan)
    pairs, unavailable, sweeps = {}, {}, {}
    for name, arm in arms.items():
        pairs[name], reason = seed_pairs(arm, late_from, plan.scored_us or ALWAYS)
        if reason:
            unavailable[name, "prediction_difference"] = reason
    rows: list[Row] = []
    for name, arm in arms.items():
        planned = plan.reference(arm.plan)
        reference = None if planned is None else arms[planned.name]
        rows += _own_rows(arm) + _cost_rows(
            name, None if planned is None else planned.name, costs, plan.baseline
        )
        rows += pair_rows(name, pairs[name], None if planned is None else pairs[planned.name])
        if reference is None:
            continue
        try:
            rows += metric_rows(arm, reference)
        except NotComparableError as error:
            unavailable[name, "changes"] = str(error)
        if reference.plan.name != plan.baseline:
            with suppress(NotComparableError):
                rows += metric_rows(arm, arms[plan.baseline], FROM_BASELINE)
        rows += slice_rows(name, arm.plan.families, reference.plan.families, arm.biases, reference.biases)
        points = [arms[point.name] for point in plan.points(arm.plan)]
        for kind in CURVE_COSTS if points else ():
            sweep, sweep_rows = _tuning(kind, arm, points, reference, costs, plan.baseline)
            sweeps[name, kind] = sweep
            rows += sweep_rows
    retrained, reasons, unfinished = retrain_rows(folder, plan, arms, pairs, late_from)
    unavailable |= {(name, f"retrain_difference {kind}"): reason for (name, kind), reason in reasons.items()}
    missing = [f"{name} failed: {reason}" for name, reason in shared_failures(folder, plan).items()]
    endings = unfinished + [
        (name, one) for name, arm in arms.items() for one in arm.endings if one.state != "finished"
    ]
    missing += [f"{name} seed {one.seed} {one.state}: {one.reason}" for name, one in endings]
    # An arm without any run is among the lines above.
    missing += [f"{name} not compared: {unavailable[name, 'changes']}" for name, arm in arms.items()
                if arm.estimates and (name, "changes") in unavailable]  # fmt: skip
    table = tidy(rows + retrained)
    return Experiment(plan, table, Numbers(table), arms, costs, late_from, missing, unavailable, sweeps)


def _own_rows(arm: MeasuredArm) -> list[Row]:
    """Returns the metrics of an arm, by seed and as the mean, and its calibration by decile."""
    name, rows = arm.plan.name, []
    for metric in CHANGED:
        if (value := arm.metric(metric)) is not None:
            rows.append(row(metric, value, arm=name))
        rows += [row(metric, of[metric], arm=name, seed=seed) for seed, of in arm.estimates.items()]
    for place, decile in enumerate([] if arm.deciles is None else arm.deciles.to_dict("records"), 1):
        keys = {"arm": name, "slice": f"decile {place}"}
        rows += [row(key, decile[key], **keys) for key in ("weight", "mean_label", "mean_prediction")]
        rows.append(
            row("calibration_bias", Number(decile["bias"], decile["ci95_low"], decile["ci95_high"]), **keys)
        )
        ends = (decile[f"calibration_ratio{end}"] for end in ("", "_low", "_high"))
        rows.append(row("calibration_ratio", Number(*ends), **keys))
    return rows


def _cost_rows(name: str, reference: str | None, costs: Costs, baseline: str) -> list[Row]:
    """Returns the costs of an arm, also as multiples of its reference's and of the baseline's."""
    own, base = costs.arms.get(name), costs.arms.get(baseline)
    if own is None:
        return []
    # The quartiles of steps by turns are in the ratios.
    amounts = own.model_dump(exclude={"step_ratio", "inference_ratio"}, exclude_none=True)
    rows = [row(kind, amount, arm=name) for kind, amount in amounts.items()]
    if reference is not None:
        ratios = cost_ratios(own, costs.arms.get(reference), base)
        rows += [row(f"{kind}_ratio", one, arm=name) for kind, one in ratios.items()]
    if reference not in (None, baseline):
        ratios = cost_ratios(own, base, base)
        rows += [row(f"{kind}_ratio{FROM_BASELINE}", one, arm=name) for kind, one in ratios.items()]
    return rows


def _tuning(
    kind: str,
    arm: MeasuredArm,
    swept: Sequence[MeasuredArm],
    reference: MeasuredArm,
    costs: Costs,
    baseline: str,
) -> tuple[dict[str, Any], list[Row]]:
    """Reads FF section 3's two tuning points: an arm's curve goes through itself and its points, at the sweep's seeds.

    Returns which points there are, which lack a run or a cost, why there is no reading, and the bounds ``<`` and ``>``
    of readings that lie beyond the sweep.
    """
    planned = dict.fromkeys(seed for point in swept for seed in point.plan.seeds)
    seeds = [seed for seed in planned if seed in reference.estimates]
    cost = _curve_cost(kind, reference.plan.name, costs, baseline)
    curve, left_out = [], []
    for point in (arm, *swept):
        own = _curve_cost(kind, point.plan.name, costs, baseline)
        finished = seeds and all(
            seed in point.scored and point.scored[seed].same_as(reference.scored[seed]) for seed in seeds
        )
        if own and finished:
            curve.append(CurvePoint(point.plan.name, own, _accuracy(point, seeds)))
        else:
            left_out.append(point.plan.name)
    sweep = {"points": [point.name for point in curve], "left_out": left_out, "seeds": seeds, "bounds": {}}
    reason = None
    if not seeds:
        reason = f"{reference.plan.name} has not finished a seed of the sweep"
    elif not cost:
        reason = f"the cost of {reference.plan.name} is not known"
    elif not curve:
        reason = "no point of the sweep has all its runs and its cost"
    else:
        target = _accuracy(reference, seeds)
        if all(math.isfinite(one.point) for one in (target, *(point.accuracy for point in curve))):
            readings = {
                f"accuracy_change_at_neutral_{kind}": accuracy_at_neutral_cost(curve, cost, target),
                f"{kind}_change_at_neutral_accuracy": cost_at_neutral_accuracy(curve, cost, target),
            }
            bounds = {metric: one.bound for metric, one in readings.items() if one.bound}
            rows = [row(metric, _as_number(one), arm=arm.plan.name) for metric, one in readings.items()]
            return {**sweep, "bounds": bounds, "unavailable": None}, rows
        reason = "its accuracy is undefined"
    return {**sweep, "unavailable": reason}, []


def _as_number(point: TuningPoint) -> Number:
    return Number(point.value, point.low, point.high)


def _accuracy(arm: MeasuredArm, seeds: Sequence[int]) -> Estimate:
    return mean([arm.estimates[seed][ACCURACY] for seed in seeds])


def _curve_cost(kind: str, name: str, costs: Costs, baseline: str) -> float | None:
    """Returns FLOPs for each row of the log, or the time of a pass as a multiple of the baseline's."""
    own, base = costs.arms.get(name), costs.arms.get(baseline)
    if own is None:
        return None
    if kind == "flops":
        return pass_flops(own)
    multiple = None if base is None else train_time(own, base)
    return None if multiple is None else multiple.value
