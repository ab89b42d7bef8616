"""Results of an experiment as one tidy table (`ctr.eval.tidy`), and its missing parts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ctr.eval.display import Number
from ctr.eval.intervals import mean
from ctr.eval.run_comparison import NotComparableError
from ctr.eval.tidy import Numbers, Row, as_records, row, tidy
from ctr.experiments.plan import Plan, read_plan
from ctr.experiments.report.changes import metric_rows, slice_rows
from ctr.experiments.report.predictions import begin_of_late, prediction_rows
from ctr.experiments.report.runs import (
    CHANGED,
    Costs,
    MeasuredArm,
    cost_ratios,
    measure_arms,
    read_costs,
    shared_failures,
)
from ctr.experiments.report.tuning_points import CURVE_COSTS, tuning_rows

_DECILE_RATIOS = {
    "calibration_bias": ("bias", "ci95_low", "ci95_high"),
    "calibration_ratio": ("calibration_ratio", "calibration_ratio_low", "calibration_ratio_high"),
}


@dataclass(frozen=True)
class Experiment:
    """An experiment: its plan, the table of its results, and the parts that are missing."""

    plan: Plan
    table: pd.DataFrame
    numbers: Numbers  # of the table
    arms: Mapping[str, MeasuredArm]  # in the order of the plan
    costs: Costs
    late_from: int | None  # query time, microseconds, of the last half; None without predictions
    missing: list[str]  # missing runs and skipped comparisons, with reasons

    def as_json(self) -> str:
        """Returns the plan, the results and the missing parts as JSON text; undefined numbers are null."""
        content = {
            **self.plan.model_dump(exclude={"arms"}),
            "late_from": self.late_from,
            "timing_rounds": self.costs.rounds,
            "teacher_flops": self.costs.teacher_flops,
            "missing": self.missing,
            "arms": [
                {
                    **arm.plan.model_dump(by_alias=True, exclude={"runs", "retrains"}),
                    "runs": [vars(ending) for ending in arm.endings],
                }
                for arm in self.arms.values()
            ],
            "results": as_records(self.table),
        }
        # NaN and infinity in plans are no JSON, and become text.
        plain = json.loads(json.dumps(content), parse_constant=str)
        return json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_experiment(folder: Path) -> Experiment:
    """Reads and compares everything that the folder of an experiment holds.

    Raises InputError if the plan or the costs cannot be read, or a run read another log than the rest.
    """
    plan, costs = read_plan(folder), read_costs(folder)
    arms, late_from = measure_arms(folder, plan), begin_of_late(folder, plan)
    missing = shared_failures(folder, plan)
    missing += [
        ending.line(name)
        for name, arm in arms.items()
        for ending in arm.endings
        if ending.state != "finished"
    ]
    rows, lacking = prediction_rows(folder, plan, arms, late_from)
    missing += lacking
    for name, arm in arms.items():
        planned = plan.reference(arm.plan)
        rows += _arm_rows(arm) + _cost_rows(name, planned.name if planned is not None else "", costs, plan)
        if planned is None:
            continue
        reference = arms[planned.name]
        try:
            rows += metric_rows(arm, reference)
        except NotComparableError as error:
            # An arm without any run is among the lines above.
            missing += [f"{name} not compared: {error}"] if arm.runs else []
        rows += slice_rows(arm, reference)
        points = [arms[point.name] for point in plan.points(arm.plan)]
        for kind in CURVE_COSTS if points else ():
            read, reason = tuning_rows(kind, arm, points, reference, costs, plan.baseline)
            rows += read
            missing += [f"{name} has no tuning points by {kind}: {reason}"] if reason else []
    table = tidy(rows)
    return Experiment(plan, table, Numbers(table), arms, costs, late_from, missing)


def _arm_rows(arm: MeasuredArm) -> list[Row]:
    """Returns the metrics of an arm, by seed and as the mean, and its calibration by decile."""
    name, rows = arm.plan.name, []
    for metric in CHANGED if arm.runs else ():
        by_seed = {seed: run.estimates[metric] for seed, run in arm.runs.items()}
        rows.append(row(metric, mean([*by_seed.values()]), arm=name))
        rows += [row(metric, estimate, arm=name, seed=seed) for seed, estimate in by_seed.items()]
    for index, decile in enumerate([] if arm.deciles is None else arm.deciles.to_dict("records"), 1):
        keys = {"arm": name, "slice": f"decile {index}"}
        rows += [row(key, decile[key], **keys) for key in ("weight", "mean_label", "mean_prediction")]
        for metric, ends in _DECILE_RATIOS.items():
            rows.append(row(metric, Number(*(decile[end] for end in ends)), **keys))
    return rows


def _cost_rows(name: str, reference: str, costs: Costs, plan: Plan) -> list[Row]:
    """Returns the costs of an arm, also as multiples of its reference's."""
    arm = costs.arms.get(name)
    if arm is None:
        return []
    # The quartiles of steps by turns are in the ratios.
    amounts = arm.model_dump(exclude={"step_ratio", "inference_ratio"}, exclude_none=True)
    ratios = cost_ratios(arm, costs.arms.get(reference), costs.arms.get(plan.baseline))
    numbers = {**amounts, **{f"{kind}_ratio": ratio for kind, ratio in ratios.items()}}
    return [row(kind, number, arm=name) for kind, number in numbers.items()]
