"""Results of an experiment: everything that its report shows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ctr.eval.intervals import Estimate, mean
from ctr.eval.run_comparison import NotComparableError
from ctr.experiments.plan import Plan, read_plan
from ctr.experiments.report.arms import (
    PARTS,
    MeasuredArm,
    MetricChange,
    PairChange,
    measure_arms,
    metric_changes,
    prediction_change,
)
from ctr.experiments.report.costs import UNKNOWN, CostChange, cost_change, pass_flops, train_time
from ctr.experiments.report.files import ArmCosts, Costs, read_costs, shared_failures
from ctr.experiments.report.retrains import PairDifference, prediction_retrains
from ctr.experiments.report.slices import (
    SliceChange,
    VarianceChange,
    common_families,
    slice_changes,
    variance_changes,
)
from ctr.experiments.report.tuning_points import (
    CurvePoint,
    TuningPoint,
    accuracy_at_neutral_cost,
    cost_at_neutral_accuracy,
)

ACCURACY = "per_query_auc"  # metric that the tuning points and the plots call accuracy
CURVE_COSTS = ("flops", "time")  # costs of a curve of accuracy over cost: FLOPs of a pass, or its time


@dataclass(frozen=True)
class Tuning:
    """FF section 3's two tuning points of an arm, by one kind of cost."""

    points: tuple[str, ...]
    left_out: tuple[str, ...]  # points that lack a run or a cost
    seeds: tuple[int, ...]  # of the runs on both sides
    accuracy_at_neutral_cost: TuningPoint | None = None  # relative change
    cost_at_neutral_accuracy: TuningPoint | None = None  # relative change
    unavailable: str = ""  # why there are none


@dataclass(frozen=True)
class ArmResult:
    """An arm, measured, against its reference."""

    arm: MeasuredArm
    reference: str | None  # None for the baseline
    changes: Mapping[str, MetricChange]  # by metric; empty when there is no comparison
    refusal: str  # why there is none; else empty
    from_baseline: MetricChange | None  # of accuracy, against the experiment's baseline
    prediction_changes: Mapping[str, PairChange | None]  # by part of the pass
    costs: ArmCosts | None
    cost_change: CostChange  # from the reference
    cost_from_baseline: CostChange
    tuning: Mapping[str, Tuning]  # for arms with a sweep, by kind of cost
    slices: Sequence[SliceChange] = ()  # those that the tables show first
    variances: Sequence[VarianceChange] = ()
    # PD by what pairs of runs differ in, of arms with retrains.
    retrains: Mapping[str, PairDifference] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """An experiment and what came of it, arms in the order of the plan."""

    folder: Path
    plan: Plan
    arms: list[ArmResult]
    costs: Costs
    late_from: int | None  # query time, microseconds, of the last half; None without predictions
    failures: Mapping[str, str]  # why teachers and samplings are not there, by name


def read_experiment(folder: Path) -> Experiment:
    """Reads and compares everything that the folder of an experiment holds.

    Raises InputError: the plan or the costs cannot be read, or a run read another log than the rest.
    """
    plan, costs = read_plan(folder), read_costs(folder)
    measured, late_from = measure_arms(folder, plan)
    by_name = {arm.plan.name: arm for arm in measured}
    retrains = prediction_retrains(folder, plan, by_name, late_from)
    results = [
        replace(_result(plan, costs, by_name, arm), retrains=retrains.get(arm.plan.name, {}))
        for arm in measured
    ]
    return Experiment(folder, plan, results, costs, late_from, shared_failures(folder, plan))


def _result(plan: Plan, costs: Costs, arms: Mapping[str, MeasuredArm], arm: MeasuredArm) -> ArmResult:
    own, baseline = costs.arms.get(arm.plan.name), costs.arms.get(plan.baseline)
    planned = plan.reference(arm.plan)
    if planned is None:
        return ArmResult(
            arm, None, {}, "", None, dict.fromkeys(PARTS), own, UNKNOWN, cost_change(own, own, baseline), {}
        )
    reference = arms[planned.name]
    changes, refusal = _changes(arm, reference)
    from_baseline, _ = _changes(arm, arms[plan.baseline])
    swept = plan.points(arm.plan)
    common = common_families(arm.plan.families, reference.plan.families, arm.slices, reference.slices)
    return ArmResult(
        arm=arm,
        reference=planned.name,
        changes=changes,
        refusal=refusal,
        from_baseline=from_baseline.get(ACCURACY),
        prediction_changes={part: prediction_change(arm, reference, part) for part in PARTS},
        costs=own,
        cost_change=cost_change(own, costs.arms.get(planned.name), baseline),
        cost_from_baseline=cost_change(own, baseline, baseline),
        tuning={
            kind: _tuning(kind, arm, [arms[point.name] for point in swept], reference, costs, plan.baseline)
            for kind in (CURVE_COSTS if swept else ())
        },
        slices=slice_changes(common, plan.slices),
        variances=variance_changes(common),
    )


def _changes(arm: MeasuredArm, reference: MeasuredArm) -> tuple[dict[str, MetricChange], str]:
    try:
        return metric_changes(arm, reference), ""
    except NotComparableError as error:
        return {}, str(error)


def _tuning(
    kind: str,
    arm: MeasuredArm,
    swept: Sequence[MeasuredArm],
    reference: MeasuredArm,
    costs: Costs,
    baseline: str,
) -> Tuning:
    """Tuning points of an arm: its curve goes through itself and its points, at the sweep's seeds alone."""
    planned = dict.fromkeys(seed for point in swept for seed in point.plan.seeds)
    seeds = tuple(seed for seed in planned if seed in reference.estimates)
    cost = _curve_cost(kind, reference.plan.name, costs, baseline)
    curve, left_out = [], []
    for point in (arm, *swept):
        own = _curve_cost(kind, point.plan.name, costs, baseline)
        if (
            own
            and seeds
            and all(
                seed in point.scored and point.scored[seed].same_as(reference.scored[seed]) for seed in seeds
            )
        ):
            curve.append(CurvePoint(point.plan.name, own, _accuracy(point, seeds)))
        else:
            left_out.append(point.plan.name)
    tuning = Tuning(tuple(point.name for point in curve), tuple(left_out), seeds)
    if not seeds:
        return replace(tuning, unavailable=f"{reference.plan.name} has not finished a seed of the sweep")
    if not cost:
        return replace(tuning, unavailable=f"the cost of {reference.plan.name} is not known")
    if not curve:
        return replace(tuning, unavailable="no point of the sweep has all its runs and its cost")
    target = _accuracy(reference, seeds)
    if not math.isfinite(target.point) or not all(math.isfinite(point.accuracy.point) for point in curve):
        return replace(tuning, unavailable="its accuracy is undefined")
    return replace(
        tuning,
        accuracy_at_neutral_cost=accuracy_at_neutral_cost(curve, cost, target),
        cost_at_neutral_accuracy=cost_at_neutral_accuracy(curve, cost, target),
    )


def _accuracy(arm: MeasuredArm, seeds: Sequence[int]) -> Estimate:
    return mean([arm.estimates[seed][ACCURACY] for seed in seeds])


def _curve_cost(kind: str, name: str, costs: Costs, baseline: str) -> float | None:
    """FLOPs for each row of the log, or the time of a pass as a multiple of the baseline's."""
    own, base = costs.arms.get(name), costs.arms.get(baseline)
    if own is None:
        return None
    if kind == "flops":
        return pass_flops(own)
    multiple = None if base is None else train_time(own, base)
    return None if multiple is None else multiple.value
