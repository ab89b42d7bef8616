"""Differences of an arm's runs and their retrains with the same seed, beside those of pairs of seeds (FF 5)."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ctr.eval.arrays import ratio
from ctr.eval.intervals import Estimate
from ctr.eval.prediction_difference import ALWAYS, pair_predictions
from ctr.eval.run_files import prediction_parts
from ctr.experiments.plan import SEED, Plan, PlannedArm
from ctr.experiments.report.arms import MeasuredArm
from ctr.experiments.report.files import Ending, open_run
from ctr.io.errors import InputError

Pairs = Mapping[tuple[int, ...], float]
"""Differences of pairs of runs, by their seeds: one where both have it, or two."""


class _Own(NamedTuple):
    """What is known of an arm's own runs: the seeds that are finished, and the differences of their pairs."""

    seeds: Collection[int]
    pairs: Pairs
    unavailable: str  # why there are no pairs; else empty


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


def prediction_retrains(
    folder: Path, plan: Plan, arms: Mapping[str, MeasuredArm], late_from: int | None
) -> RetrainResults:
    """Measures PD over the last half of the scored time, of arms with retrains."""

    def measured(first: Path, second: Path) -> float:
        for run in (first, second):
            if not prediction_parts(run):
                raise InputError(f"no predictions were recorded in {run.name}")
        late = np.inf if late_from is None else late_from
        found = pair_predictions(first, second, late, plan.scored_us or ALWAYS)
        if not found.examples:
            raise InputError(f"{first.name} and {second.name} have no example in common")
        return float(found.late.point)

    own = {
        name: _Own(
            {*arm.estimates}, _points(arm.prediction_pairs.pairs["late"]), arm.prediction_pairs.unavailable
        )
        for name, arm in arms.items()
    }
    return _results(folder, plan, own, measured)


def _points(pairs: Mapping[tuple[int, int], Estimate]) -> Pairs:
    return {pair: float(one.point) for pair, one in pairs.items()}


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
    folder: Path,
    plan: Plan,
    own: Mapping[str, _Own],
    measured: Callable[[Path, Path], float],
) -> RetrainResults:
    """Measures the arms of ``own``."""
    results: dict[str, dict[str, PairDifference]] = {}
    # What an arm is compared with may come after it.
    arms = [arm for arm in plan.arms if arm.retrains and arm.name in own]
    found = {arm.name: _of_arm(folder, arm, own[arm.name], measured) for arm in arms}
    for arm in arms:
        reference = plan.reference(arm)
        others = {} if reference is None else found.get(reference.name, {})
        results[arm.name] = {
            kind: replace(one, of_reference=over_seeds(one.pairs, others[kind].pairs))
            if kind in others
            else one
            for kind, one in found[arm.name].items()
        }
    return results


def _of_arm(
    folder: Path,
    arm: PlannedArm,
    own: _Own,
    measured: Callable[[Path, Path], float],
) -> dict[str, PairDifference]:
    originals = {run.seed: run.folder for run in arm.runs}
    found = {}
    for kind, runs in arm.retrains.items():
        again = [open_run(folder, f"{arm.name}~{kind}", run)[1] for run in runs]
        finished = [one for one in again if one.state == "finished" and one.seed in own.seeds]
        reason = ""
        try:
            pairs: Pairs = {
                (one.seed,): measured(folder / originals[one.seed], folder / one.folder) for one in finished
            }
        except (InputError, ValueError) as error:
            pairs, reason = {}, f"the runs cannot be compared: {error}"
        unfinished = tuple(one for one in again if one.state != "finished")
        found[kind] = _difference(pairs, len(runs), unfinished, reason)
    count = len(arm.runs)
    return {**found, SEED: _difference(own.pairs, count * (count - 1) // 2, reason=own.unavailable)}


def _difference(
    pairs: Pairs, planned: int, unfinished: tuple[Ending, ...] = (), reason: str = ""
) -> PairDifference:
    unavailable = reason or ("" if pairs else "no pair of runs is finished")
    return PairDifference(pairs, over_seeds(pairs), None, planned, unfinished, unavailable)
