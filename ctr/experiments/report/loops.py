"""Serving loops of an arm: what its runs show, and how retrains differ in it (FF 7.3, table 3)."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from ctr.eval.ads_churn import MEASURES, compare_loops
from ctr.eval.arrays import ratio
from ctr.eval.intervals import Estimate, mean
from ctr.experiments.plan import Plan, PlannedArm
from ctr.experiments.report.arms import PairChange, pair_change
from ctr.experiments.report.files import Ending, Loop, open_loop
from ctr.io.errors import InputError

SHOWN = ("ads_per_query", "clicks_per_1000_queries", "revenue_per_1000_queries")
"""Numbers reported of each loop; all queries of its days count."""


@dataclass(frozen=True)
class MeasuredLoops:
    """Measurements of the finished loops of an arm, and the outcomes of all of them."""

    outcomes: list[Ending]
    shown: Mapping[int, Mapping[str, float]]  # by seed, each of `SHOWN`
    churn: Mapping[str, Mapping[tuple[int, int], Estimate]]  # by measure and pair of seeds
    signed: Mapping[tuple[int, int], float]  # mean ads of a query, first seed less second, over half the sum
    unavailable: str  # why there is no churn; else empty

    def mean_shown(self, name: str) -> float | None:
        """Mean of one of `SHOWN` over finished seeds; None without any."""
        found = [of_seed[name] for of_seed in self.shown.values()]
        return float(np.mean(found)) if found else None

    def mean_churn(self, measure: str) -> Estimate | None:
        """Mean over pairs; None without any."""
        pairs = self.churn[measure]
        return mean(list(pairs.values())) if pairs else None


@dataclass(frozen=True)
class LoopResult:
    """Loops of an arm against its reference's."""

    loops: MeasuredLoops
    changes: Mapping[str, PairChange | None]  # churn over the reference's, by measure; None where unknown


def loop_results(folder: Path, plan: Plan) -> dict[str, LoopResult]:
    """Loops of each arm that has any, by its name."""
    measured = {
        arm.name: _measure(folder, arm, plan.loop_days)
        for arm in plan.arms
        if any(run.loop is not None for run in arm.runs)
    }
    results = {}
    for name, loops in measured.items():
        reference = plan.reference(plan.arm(name))
        theirs = None if reference is None else measured.get(reference.name)
        results[name] = LoopResult(
            loops,
            {
                measure: None if theirs is None else pair_change(loops.churn[measure], theirs.churn[measure])
                for measure in MEASURES
            },
        )
    return results


def _measure(folder: Path, arm: PlannedArm, days: int | None) -> MeasuredLoops:
    outcomes, shown, folders = [], {}, {}
    for planned in arm.runs:
        if planned.loop is None:
            continue
        loop, ending = open_loop(folder, arm.name, planned.seed, planned.loop, days)
        outcomes.append(ending)
        if loop is not None:
            shown[planned.seed] = _shown(loop)
            folders[planned.seed] = folder / planned.loop
    churn: dict[str, dict[tuple[int, int], Estimate]] = {measure: {} for measure in MEASURES}
    signed: dict[tuple[int, int], float] = {}
    unavailable = "" if len(folders) > 1 else "two finished loops are required"
    for one, other in combinations(sorted(folders), 2):
        try:
            whole = compare_loops(folders[one], folders[other]).whole
        except InputError as error:
            empty: dict[str, dict[tuple[int, int], Estimate]] = {measure: {} for measure in MEASURES}
            return MeasuredLoops(outcomes, shown, empty, {}, str(error))
        for measure, estimate in whole.estimates().items():
            churn[measure][one, other] = estimate
        first, second = whole.first.sum(), whole.second.sum()
        signed[one, other] = float(ratio(2 * (first - second), first + second))
    return MeasuredLoops(outcomes, shown, churn, signed, unavailable)


def _shown(loop: Loop) -> dict[str, float]:
    queries = sum(day.queries for day in loop.days)
    totals = (
        sum(day.examples for day in loop.days),
        1000 * sum(day.clicks for day in loop.days),
        1000 * sum(day.revenue for day in loop.days),
    )
    return {name: float(ratio(total, queries)) for name, total in zip(SHOWN, totals, strict=True)}
