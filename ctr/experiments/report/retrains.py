"""Differences of an arm's runs and their retrains with the same seed, beside those of pairs of seeds (FF 5)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from ctr.eval.ads_churn import compare_loops
from ctr.eval.arrays import ratio
from ctr.eval.intervals import Estimate
from ctr.eval.prediction_difference import ALWAYS, pair_predictions
from ctr.eval.run_files import prediction_parts
from ctr.experiments.plan import Plan, PlannedArm, PlannedRun
from ctr.experiments.report.files import Ending, open_loop, open_run
from ctr.io.errors import InputError

SEED = "seed"
"""What pairs of an arm's own runs differ in, beside what its retrains do."""

Pairs = Mapping[tuple[int, ...], float]
"""Differences of pairs of runs, by their seeds: one where both have it, or two."""

Opened = tuple[Path | None, Ending]
"""A folder, if what is in it is finished, and how it ended."""

_Folders = dict[tuple[int, ...], tuple[Path, Path]]
_Measure = Callable[[Path, Path], float]


@dataclass(frozen=True)
class PairDifference:
    """Differences of pairs of an arm's runs that differ in one thing, and against its reference's pairs."""

    pairs: Pairs
    mean: Estimate | None  # None without pairs; its interval is by a jackknife over seeds
    of_reference: Estimate | None  # ratio of the means over the pairs that both have, likewise
    planned: int  # pairs that there are once all runs are finished
    unfinished: tuple[Ending, ...]  # of the retrains
    unavailable: str  # why there are none; else empty


RetrainResults = Mapping[str, Mapping[str, PairDifference]]
"""By arm, and by what its pairs differ in."""


def prediction_retrains(folder: Path, plan: Plan, late_from: int | None) -> RetrainResults:
    """Measures PD over the last half of the scored time, of arms with retrains."""

    def measured(first: Path, second: Path) -> float:
        for run in (first, second):
            if not prediction_parts(run):
                raise InputError(f"no predictions were recorded in {run.name}")
        late = np.inf if late_from is None else late_from
        return float(pair_predictions(first, second, late, plan.scored_us or ALWAYS).late.point)

    def opened(owner: str, run: PlannedRun) -> Opened:
        found, ending = open_run(folder, owner, run)
        return None if found is None else folder / run.folder, ending

    return _results(plan, plan.arms, opened, measured)


def loop_retrains(folder: Path, plan: Plan) -> RetrainResults:
    """Measures how the mean number of ads per query differs over the served days, of arms with retrains and loops."""

    def measured(first: Path, second: Path) -> float:
        return float(compare_loops(first, second).whole.estimates()["mean_churn"].point)

    def opened(owner: str, run: PlannedRun) -> Opened:
        assert run.loop is not None
        found, ending = open_loop(folder, owner, run.seed, run.loop, plan.loop_days)
        return None if found is None else folder / run.loop, ending

    serving = [arm for arm in plan.arms if all(run.loop is not None for run in arm.runs)]
    return _results(plan, serving, opened, measured)


def over_seeds(ours: Pairs, theirs: Pairs | None = None) -> Estimate | None:
    """Mean over pairs, or its ratio to that of others; replicates leave out the pairs of one seed; None without pairs.

    Only pairs that both have count.
    """
    common = [pair for pair in ours if theirs is None or pair in theirs]
    if not common:
        return None
    seeds = sorted({seed for pair in common for seed in pair})

    def value(left_out: int | None) -> float:
        kept = [pair for pair in common if left_out not in pair]
        own = np.mean([ours[pair] for pair in kept]) if kept else np.nan
        if theirs is None:
            return float(own)
        return float(ratio(own, np.mean([theirs[pair] for pair in kept]) if kept else np.nan))

    replicates = np.array([value(seed) for seed in seeds])
    return Estimate(np.array(value(None)), replicates, np.ones(len(seeds), bool))


def _results(
    plan: Plan,
    arms: Sequence[PlannedArm],
    opened: Callable[[str, PlannedRun], Opened],
    measured: _Measure,
) -> RetrainResults:
    found: dict[str, dict[str, tuple[Pairs, int, str, tuple[Ending, ...]]]] = {}
    for arm in arms:
        if not arm.retrains:
            continue
        own = {run.seed: path for run in arm.runs if (path := opened(arm.name, run)[0]) is not None}
        found[arm.name] = {}
        for kind, runs in arm.retrains.items():
            again = {run.seed: opened(f"{arm.name}~{kind}", run) for run in runs}
            unfinished = tuple(ending for path, ending in again.values() if path is None)
            folders: _Folders = {
                (seed,): (own[seed], path)
                for seed, (path, _) in again.items()
                if path is not None and seed in own
            }
            found[arm.name][kind] = *_measured(folders, len(runs), measured), unfinished
        by_seed: _Folders = {
            (one, other): (own[one], own[other]) for one, other in combinations(sorted(own), 2)
        }
        count = len(arm.runs)
        found[arm.name][SEED] = *_measured(by_seed, count * (count - 1) // 2, measured), ()
    results = {}
    for name, kinds in found.items():
        reference = plan.reference(plan.arm(name))
        others = {} if reference is None else found.get(reference.name, {})
        results[name] = {
            kind: PairDifference(
                pairs,
                over_seeds(pairs),
                over_seeds(pairs, others[kind][0]) if kind in others else None,
                planned,
                unfinished,
                unavailable,
            )
            for kind, (pairs, planned, unavailable, unfinished) in kinds.items()
        }
    return results


def _measured(folders: _Folders, planned: int, measured: _Measure) -> tuple[Pairs, int, str]:
    try:
        pairs = {pair: measured(*paths) for pair, paths in folders.items()}
    except (InputError, ValueError) as error:
        return {}, planned, f"the runs cannot be compared: {error}"
    return pairs, planned, "" if pairs else "no pair of runs is finished"
