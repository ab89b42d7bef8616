"""Results of an experiment as one tidy table (`ctr.eval.tidy`), and what numbers do not say."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ctr.eval.display import Number
from ctr.eval.intervals import mean
from ctr.eval.run_comparison import NotComparableError
from ctr.eval.tidy import Numbers, Row, as_records, row, tidy
from ctr.experiments.plan import Plan, read_plan
from ctr.experiments.report.arms import CHANGED, MeasuredArm, measure_arms, metric_rows
from ctr.experiments.report.costs import cost_ratios, pass_flops, pass_time
from ctr.experiments.report.files import Costs, read_costs, shared_failures
from ctr.experiments.report.predictions import begin_of_late, pair_rows, retrain_rows, seed_pairs
from ctr.experiments.report.slices import slice_rows
from ctr.experiments.report.tuning_points import (
    CurvePoint,
    accuracy_at_neutral_cost,
    cost_at_neutral_accuracy,
)

ACCURACY = "per_query_auc"  # metric that the tuning points and the plots call accuracy
CURVE_COSTS = ("flops", "time")  # costs of a curve of accuracy over cost: FLOPs of a pass, or its time


@dataclass(frozen=True)
class Experiment:
    """An experiment and its results."""

    plan: Plan
    table: pd.DataFrame
    numbers: Numbers  # of the table
    arms: Mapping[str, MeasuredArm]  # in the order of the plan
    costs: Costs
    late_from: int | None  # query time, microseconds, of the last half; None without predictions
    missing: list[str]  # runs and teachers that are not there, and arms that are not compared, with reasons
    unavailable: Mapping[tuple[str, str], str]  # why an arm lacks a result
    sweeps: Mapping[tuple[str, str], Mapping[str, Any]]  # points of the curve of an arm and a kind of cost

    def as_json(self) -> str:
        """Returns everything as JSON; null where undefined."""
        content = {
            **self.plan.model_dump(exclude={"arms"}),
            "late_from": self.late_from,
            "timing_rounds": self.costs.rounds,
            "teacher_flops": self.costs.teacher_flops,
            "missing": self.missing,
            "arms": [self._arm(arm) for arm in self.arms.values()],
            "results": as_records(self.table),
        }
        # What plans hold as NaN or infinity is no JSON: it becomes text.
        plain = json.loads(json.dumps(content), parse_constant=str)
        return json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def _arm(self, arm: MeasuredArm) -> dict[str, Any]:
        name, reference = arm.plan.name, self.plan.reference(arm.plan)
        return {
            **arm.plan.model_dump(by_alias=True, exclude={"runs", "retrains"}),
            "against": None if reference is None else reference.name,
            "runs": [{**vars(run), "config_sha256": arm.hashes.get(run.seed)} for run in arm.endings],
            "unavailable": {what: reason for (of, what), reason in self.unavailable.items() if of == name},
            "sweeps": {kind: dict(sweep) for (of, kind), sweep in self.sweeps.items() if of == name},
        }


def read_experiment(folder: Path) -> Experiment:
    """Reads and compares everything that the folder of an experiment holds.

    Raises InputError: the plan or the costs cannot be read, or a run read another log than the rest.
    """
    plan, costs = read_plan(folder), read_costs(folder)
    arms, late_from = measure_arms(folder, plan), begin_of_late(folder, plan)
    pairs, unavailable, sweeps = {}, {}, {}
    for name, arm in arms.items():
        pairs[name], reason = seed_pairs(arm, plan, late_from)
        if reason:
            unavailable[name, "prediction_difference"] = reason
    rows: list[Row] = []
    for name, arm in arms.items():
        planned = plan.reference(arm.plan)
        reference = None if planned is None else arms[planned.name]
        rows += _arm_rows(arm) + _cost_rows(name, planned.name if planned is not None else None, costs, plan)
        rows += pair_rows(name, pairs[name], None if planned is None else pairs[planned.name])
        if reference is None:
            continue
        try:
            rows += metric_rows(arm, reference)
        except NotComparableError as error:
            unavailable[name, "changes"] = str(error)
        rows += slice_rows(name, arm.plan.families, reference.plan.families, arm.biases, reference.biases)
        points = [arms[point.name] for point in plan.points(arm.plan)]
        for kind in CURVE_COSTS if points else ():
            sweeps[name, kind], sweep_rows = _tuning(kind, arm, points, reference, costs, plan.baseline)
            rows += sweep_rows
    retrained, reasons, unfinished = retrain_rows(folder, plan, arms, pairs, late_from)
    unavailable |= {(name, f"retrain_difference {kind}"): reason for (name, kind), reason in reasons.items()}
    missing = [f"{name} failed: {reason}" for name, reason in shared_failures(folder, plan).items()]
    endings = unfinished + [(name, ending) for name, arm in arms.items() for ending in arm.endings]
    missing += [
        f"{name} seed {ending.seed} {ending.state}: {ending.reason}"
        for name, ending in endings
        if ending.state != "finished"
    ]
    # An arm without any run is among the lines above.
    missing += [f"{name} not compared: {unavailable[name, 'changes']}" for name, arm in arms.items()
                if arm.estimates and (name, "changes") in unavailable]  # fmt: skip
    table = tidy(rows + retrained)
    return Experiment(plan, table, Numbers(table), arms, costs, late_from, missing, unavailable, sweeps)


def _arm_rows(arm: MeasuredArm) -> list[Row]:
    """Returns the metrics of an arm, by seed and as the mean, and its calibration by decile."""
    name, rows = arm.plan.name, []
    for metric in CHANGED:
        if (value := arm.metric(metric)) is not None:
            rows.append(row(metric, value, arm=name))
        rows += [row(metric, of[metric], arm=name, seed=seed) for seed, of in arm.estimates.items()]
    for index, decile in enumerate([] if arm.deciles is None else arm.deciles.to_dict("records"), 1):
        keys = {"arm": name, "slice": f"decile {index}"}
        rows += [row(key, decile[key], **keys) for key in ("weight", "mean_label", "mean_prediction")]
        for metric, ends in (
            ("calibration_bias", ("bias", "ci95_low", "ci95_high")),
            ("calibration_ratio", ("calibration_ratio", "calibration_ratio_low", "calibration_ratio_high")),
        ):
            rows.append(row(metric, Number(*(decile[end] for end in ends)), **keys))
    return rows


def _cost_rows(name: str, reference: str | None, costs: Costs, plan: Plan) -> list[Row]:
    """Returns the costs of an arm, also as multiples of its reference's."""
    arm = costs.arms.get(name)
    if arm is None:
        return []
    # The quartiles of steps by turns are in the ratios.
    amounts = arm.model_dump(exclude={"step_ratio", "inference_ratio"}, exclude_none=True)
    ratios = cost_ratios(arm, costs.arms.get(reference or ""), costs.arms.get(plan.baseline))
    return [row(kind, amount, arm=name) for kind, amount in amounts.items()] + [
        row(f"{kind}_ratio", ratio, arm=name) for kind, ratio in ratios.items()
    ]


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

    def point_of(entry: MeasuredArm) -> CurvePoint | None:
        """Returns the cost and the accuracy at all seeds; None if a run or the cost is missing."""
        arm_costs, base = costs.arms.get(entry.plan.name), costs.arms.get(baseline)
        cost = None
        if arm_costs is not None and kind == "flops":
            cost = pass_flops(arm_costs)
        elif arm_costs is not None and base is not None and (time := pass_time(arm_costs, base)) is not None:
            cost = time.value
        is_whole = seeds and all(
            seed in entry.scored and entry.scored[seed].same_as(reference.scored[seed]) for seed in seeds
        )
        if not cost or not is_whole:
            return None
        return CurvePoint(entry.plan.name, cost, mean([entry.estimates[seed][ACCURACY] for seed in seeds]))

    points = {entry.plan.name: point_of(entry) for entry in (arm, *swept)}
    curve, target = [point for point in points.values() if point is not None], point_of(reference)
    sweep = {
        "points": [point.name for point in curve],
        "left_out": [name for name, point in points.items() if point is None],
        "seeds": seeds,
        "bounds": {},
    }
    reason = None
    if not seeds:
        reason = f"{reference.plan.name} has not finished a seed of the sweep"
    elif target is None:
        reason = f"the cost of {reference.plan.name} is not known"
    elif not curve:
        reason = "no point of the sweep has all its runs and its cost"
    elif not all(math.isfinite(point.accuracy.point) for point in (target, *curve)):
        reason = "its accuracy is undefined"
    if reason is not None or target is None:
        return {**sweep, "unavailable": reason}, []
    readings = {
        f"accuracy_change_at_neutral_{kind}": accuracy_at_neutral_cost(curve, target.cost, target.accuracy),
        f"{kind}_change_at_neutral_accuracy": cost_at_neutral_accuracy(curve, target.cost, target.accuracy),
    }
    bounds = {metric: reading.bound for metric, reading in readings.items() if reading.bound}
    rows = [
        row(metric, Number(reading.value, reading.low, reading.high), arm=arm.plan.name)
        for metric, reading in readings.items()
    ]
    return {**sweep, "bounds": bounds, "unavailable": None}, rows
