"""Measurements of the runs of each arm of an experiment, and each arm against its reference."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ctr.eval.auc import StreamingAUC
from ctr.eval.calibration import calibration_buckets
from ctr.eval.compare import ScoredExamples, is_beyond_noise, scored_examples
from ctr.eval.intervals import Estimate, difference, mean, quotient
from ctr.eval.prediction_difference import ALWAYS, last_half, pair_predictions
from ctr.eval.run_comparison import NotComparableError
from ctr.eval.run_files import Run, config_text, metrics_between, prediction_parts, read_environment
from ctr.experiments.plan import Plan, PlannedArm
from ctr.experiments.report.files import Ending, open_run
from ctr.experiments.report.slices import FamilyBias, family_biases
from ctr.io.errors import InputError

CHANGED = ("per_query_auc", "auc", "logloss")  # metrics whose change is reported
PARTS = ("late", "whole")
"""Parts over which PD is reported: the last half of the time that is scored, and all of it."""


@dataclass(frozen=True)
class RunOutcome(Ending):
    """Ending of a planned run, and what it was made with, which is empty for a run that is not finished."""

    config: str = ""
    config_sha256: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PredictionPairs:
    """PD of the pairs of an arm's seeds (FF section 5)."""

    pairs: Mapping[str, Mapping[tuple[int, int], Estimate]]  # for each of `PARTS`, by pair of seeds
    unavailable: str  # why there are none; else empty


@dataclass(frozen=True)
class MeasuredArm:
    """Measurements of the finished runs of an arm, by seed, and the outcomes of all of them."""

    plan: PlannedArm
    outcomes: list[RunOutcome]
    estimates: Mapping[int, Mapping[str, Estimate]]
    scored: Mapping[int, ScoredExamples]
    deciles: pd.DataFrame | None  # of all finished runs together; None without any
    prediction_pairs: PredictionPairs
    slices: Mapping[int, Mapping[str, FamilyBias]]  # bias by family

    def metric(self, name: str) -> Estimate | None:
        """Mean over finished seeds; None without any."""
        found = [of_seed[name] for of_seed in self.estimates.values()]
        return mean(found) if found else None


@dataclass(frozen=True)
class MetricChange:
    """A metric of an arm against its reference's, at the same seeds."""

    difference: Estimate  # mean over the seeds of the differences
    percent: Estimate  # of the reference's mean
    by_seed: Mapping[int, float]
    percent_by_seed: Mapping[int, float]  # of the reference's at this seed
    significant: bool | None  # interval excludes 0, seeds have one sign; None: no interval


@dataclass(frozen=True)
class PairChange:
    """PD of the pairs of an arm's seeds against its reference's, over the pairs of both."""

    ratio: Estimate  # of the means over the pairs
    by_pair: Mapping[tuple[int, int], float]


def measure_arms(folder: Path, plan: Plan) -> tuple[list[MeasuredArm], int | None]:
    """Reads the runs of all arms, and the query time with which the late part begins, if any was recorded.

    Raises InputError: a run read another log than the rest, or its calibration by slice is damaged.
    """
    late_from = _late_from(folder, plan)
    arms = []
    log = (plan.log_sha256, str(folder / "plan.json")) if plan.log_sha256 else None
    for arm in plan.arms:
        measured, log = _measure(folder, arm, log, late_from, plan.scored_us)
        arms.append(measured)
    return arms, late_from


def metric_changes(arm: MeasuredArm, reference: MeasuredArm) -> dict[str, MetricChange]:
    """Compares each of `CHANGED` of an arm with its reference's, at the seeds that both finished.

    Raises NotComparableError: they have no finished seed in common, or scored different examples.
    """
    seeds = [seed for seed in arm.estimates if seed in reference.estimates]
    if not seeds:
        raise NotComparableError(f"no seed was finished by both {arm.plan.name} and {reference.plan.name}")
    for seed in seeds:
        ours, theirs = arm.scored[seed], reference.scored[seed]
        if not ours.same_as(theirs):
            raise NotComparableError(
                f"{arm.plan.name} and {reference.plan.name} scored different examples of the log with seed {seed} "
                f"({ours.examples} and {theirs.examples}, or with other weights); allowed: runs that scored the same"
            )
    return {
        name: metric_change(
            *({seed: one.estimates[seed][name] for seed in seeds} for one in (arm, reference))
        )
        for name in CHANGED
    }


def prediction_difference_of(arm: MeasuredArm, part: str) -> Estimate | None:
    """PD of an arm over one of `PARTS`: the mean over its pairs; None without any."""
    pairs = arm.prediction_pairs.pairs[part]
    return mean(list(pairs.values())) if pairs else None


def prediction_change(arm: MeasuredArm, reference: MeasuredArm, part: str) -> PairChange | None:
    """PD of an arm over its reference's, over one of `PARTS`; None without a common pair of seeds."""
    ours, theirs = arm.prediction_pairs.pairs[part], reference.prediction_pairs.pairs[part]
    common = [pair for pair in ours if pair in theirs]
    if not common:
        return None
    return PairChange(
        ratio=quotient(mean([ours[pair] for pair in common]), mean([theirs[pair] for pair in common])),
        by_pair={pair: float(quotient(ours[pair], theirs[pair]).point) for pair in common},
    )


def metric_change(ours: Mapping[int, Estimate], theirs: Mapping[int, Estimate]) -> MetricChange:
    """Compares a metric with another one's, both at the same seeds, at least one, and over the same examples."""
    differences = {seed: difference(theirs[seed], own) for seed, own in ours.items()}
    change = mean(list(differences.values()))
    by_seed = {seed: float(one.point) for seed, one in differences.items()}
    signs = {np.sign(value) for value in by_seed.values()}
    return MetricChange(
        difference=change,
        percent=_percent(change, mean(list(theirs.values()))),
        by_seed=by_seed,
        percent_by_seed={seed: float(_percent(one, theirs[seed]).point) for seed, one in differences.items()},
        significant=None if change.no_interval() else is_beyond_noise(change) and len(signs) == 1,
    )


def _percent(change: Estimate, of: Estimate) -> Estimate:
    share = quotient(change, of)
    return Estimate(100 * share.point, 100 * share.replicates, share.occupied)


def _measure(
    folder: Path,
    arm: PlannedArm,
    log: tuple[str, str] | None,
    late_from: int | None,
    scored_us: tuple[int, int] | None,
) -> tuple[MeasuredArm, tuple[str, str] | None]:
    """Measures an arm by the predictions of some query times.

    `log` is the hash of the log and where it was read, as far as that is known by then.
    """
    outcomes, finished = [], {}
    estimates, scored, slices = {}, {}, {}
    together: StreamingAUC | None = None
    for planned in arm.runs:
        run, ending = open_run(folder, arm.name, planned)
        if run is not None:
            log = log or (run.log_sha256, str(run.folder))
            if run.log_sha256 != log[0]:
                raise NotComparableError(
                    f"{run.folder}: read another log (log_sha256 {run.log_sha256[:12]}) than {log[1]} "
                    f"({log[0][:12]}); allowed: runs over the same log, because the comparison pairs their queries"
                )
            finished[planned.seed] = run.folder
            metrics = run.metrics if scored_us is None else metrics_between(run.folder, *scored_us)
            found = metrics.estimates()
            estimates[planned.seed] = {name: found[name] for name in CHANGED}
            scored[planned.seed] = scored_examples(metrics)
            slices[planned.seed] = family_biases(run, arm.families)
            if together is None:
                together = metrics.auc
            else:
                together.merge(metrics.auc)
        outcomes.append(_outcome(ending, run))
    measured = MeasuredArm(
        plan=arm,
        outcomes=outcomes,
        estimates=estimates,
        scored=scored,
        deciles=None if together is None else calibration_buckets(together),
        prediction_pairs=_prediction_pairs(finished, late_from, scored_us or ALWAYS),
        slices=slices,
    )
    return measured, log


def _outcome(ending: Ending, run: Run | None) -> RunOutcome:
    if run is None:
        return RunOutcome(**vars(ending))
    try:
        environment = read_environment(run.folder)
    except InputError as error:
        # The metrics are whole; only how to repeat them is not known.
        environment = {"unreadable": str(error)}
    return RunOutcome(
        **vars(ending),
        config=config_text(run.folder),
        config_sha256=run.config_sha256,
        environment=environment,
    )


def _prediction_pairs(
    runs: Mapping[int, Path], late_from: int | None, between: tuple[float, float]
) -> PredictionPairs:
    empty: dict[str, dict[tuple[int, int], Estimate]] = {part: {} for part in PARTS}
    if len(runs) < 2:
        return PredictionPairs(empty, "two finished seeds are required")
    lacking = [folder.name for folder in runs.values() if not prediction_parts(folder)]
    if lacking or late_from is None:
        return PredictionPairs(empty, f"no predictions were recorded in {' and '.join(lacking)}")
    pairs: dict[str, dict[tuple[int, int], Estimate]] = {part: {} for part in PARTS}
    for one, other in combinations(sorted(runs), 2):
        try:
            paired = pair_predictions(runs[one], runs[other], late_from, between)
        except (InputError, ValueError) as error:
            return PredictionPairs(empty, f"the predictions cannot be joined: {error}")
        if not paired.examples:
            return PredictionPairs(empty, f"the runs of seeds {one} and {other} have no example in common")
        pairs["late"][one, other] = paired.late
        pairs["whole"][one, other] = paired.difference
    return PredictionPairs(pairs, "")


def _late_from(folder: Path, plan: Plan) -> int | None:
    """Query time with which the late part begins, by the first run whose predictions can be read."""
    for arm in (plan.arm(plan.baseline), *plan.arms):
        for planned in arm.runs:
            if (folder / planned.folder / "summary.json").exists():
                try:
                    found = last_half(folder / planned.folder, plan.scored_us or ALWAYS)
                except InputError:
                    continue
                if found is not None:
                    return found
    return None
