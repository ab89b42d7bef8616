"""Prediction differences of an arm's runs: of pairs of seeds, and of runs and their retrains (FF section 5)."""

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import numpy as np

from ctr.eval.arrays import ratio
from ctr.eval.intervals import Estimate, mean, quotient
from ctr.eval.prediction_difference import ALWAYS, last_half, pair_predictions
from ctr.eval.run_files import prediction_parts
from ctr.eval.tidy import Row, row
from ctr.experiments.plan import SEED, Plan
from ctr.experiments.report.arms import MeasuredArm
from ctr.experiments.report.files import Ending, open_run
from ctr.io.errors import InputError

LATE, WHOLE = "last half", ""
"""Parts of the time that is scored over which PD is reported."""

Pairs = Mapping[tuple[int, ...], float]
"""Differences of pairs of runs, by their seeds: one where both have it, or two."""

SeedPairs = Mapping[str, Mapping[tuple[int, int], Estimate]]
"""PD of the pairs of an arm's seeds, by the part of the pass."""


def begin_of_late(folder: Path, plan: Plan) -> int | None:
    """Returns the query time with which the late part begins, by the first run whose predictions can be read."""
    for arm in (plan.arm(plan.baseline), *plan.arms):
        for planned in arm.runs:
            if (folder / planned.folder / "summary.json").exists():
                try:
                    begin = last_half(folder / planned.folder, plan.scored_us or ALWAYS)
                except InputError:
                    continue
                if begin is not None:
                    return begin
    return None


def seed_pairs(
    arm: MeasuredArm, late_from: int | None, between: tuple[float, float]
) -> tuple[SeedPairs, str]:
    """Measures PD of the pairs of an arm's seeds; beside it stands why there is none, else nothing."""
    runs = arm.folders
    empty: SeedPairs = {LATE: {}, WHOLE: {}}
    if len(runs) < 2:
        return empty, "two finished seeds are required"
    lacking = [folder.name for folder in runs.values() if not prediction_parts(folder)]
    if lacking or late_from is None:
        return empty, f"no predictions were recorded in {' and '.join(lacking)}"
    pairs: dict[str, dict[tuple[int, int], Estimate]] = {LATE: {}, WHOLE: {}}
    for one, other in combinations(sorted(runs), 2):
        try:
            paired = pair_predictions(runs[one], runs[other], late_from, between)
        except (InputError, ValueError) as error:
            return empty, f"the predictions cannot be joined: {error}"
        if not paired.examples:
            return empty, f"the runs of seeds {one} and {other} have no example in common"
        pairs[LATE][one, other] = paired.late
        pairs[WHOLE][one, other] = paired.difference
    return pairs, ""


def pair_rows(arm: str, ours: SeedPairs, theirs: SeedPairs | None) -> list[Row]:
    """Returns PD of pairs of seeds and its ratio to a reference's, over the pairs of both; means over the pairs."""
    rows = []
    for part, pairs in ours.items():
        keys = {"arm": arm, "window": part}
        if pairs:
            rows.append(row("prediction_difference", mean(list(pairs.values())), **keys))
        rows += [
            row("prediction_difference", float(one.point), seed=_text(pair), **keys)
            for pair, one in pairs.items()
        ]
        others = {} if theirs is None else theirs[part]
        common = [pair for pair in pairs if pair in others]
        if common:
            whole = quotient(mean([pairs[pair] for pair in common]), mean([others[pair] for pair in common]))
            rows.append(row("prediction_difference_ratio", whole, **keys))
        for pair in common:
            value = float(quotient(pairs[pair], others[pair]).point)
            rows.append(row("prediction_difference_ratio", value, seed=_text(pair), **keys))
    return rows


def retrain_rows(
    folder: Path,
    plan: Plan,
    arms: Mapping[str, MeasuredArm],
    seeds: Mapping[str, SeedPairs],
    late_from: int | None,
) -> tuple[list[Row], dict[tuple[str, str], str], list[tuple[str, Ending]]]:
    """Measures PD over the last half of the scored time, of arms with retrains, by what the pairs differ in.

    ``retrain_difference`` is of a run and its retrain, ``seed`` among them the pairs of the arm's seeds; means have
    intervals by a jackknife over seeds. ``retrain_pairs_planned`` counts the pairs that there are once all runs are
    finished. Returns also why a kind of an arm has none, and the retrains that are not finished.
    """
    rows: list[Row] = []
    reasons: dict[tuple[str, str], str] = {}
    unfinished: list[tuple[str, Ending]] = []
    measured: dict[str, dict[str, Pairs]] = {}
    for planned in plan.arms:
        if not planned.retrains:
            continue
        arm, count = arms[planned.name], len(planned.runs)
        measured[planned.name] = {}
        numbers = {kind: len(runs) for kind, runs in planned.retrains.items()} | {
            SEED: count * (count - 1) // 2
        }
        for kind, number in numbers.items():
            endings = [
                open_run(folder, f"{planned.name}~{kind}", run)[1] for run in planned.retrains.get(kind, [])
            ]
            unfinished += [(f"{planned.name}~{kind}", one) for one in endings if one.state != "finished"]
            pairs: Pairs = {pair: float(one.point) for pair, one in seeds[planned.name][LATE].items()}
            if kind != SEED:
                again = {one.seed: folder / one.folder for one in endings if one.state == "finished"}
                try:
                    pairs = {(seed,): _late_difference(arm.folders[seed], other, plan, late_from)
                             for seed, other in again.items() if seed in arm.folders}  # fmt: skip
                except (InputError, ValueError) as error:
                    pairs, reasons[planned.name, kind] = {}, f"the runs cannot be compared: {error}"
            if not pairs:
                reasons.setdefault((planned.name, kind), "no pair of runs is finished")
            measured[planned.name][kind] = pairs
            rows.append(row("retrain_pairs_planned", number, arm=planned.name, slice=kind))
    for name, kinds in measured.items():
        reference = plan.reference(plan.arm(name))
        others = {} if reference is None else measured.get(reference.name, {})
        for kind, pairs in kinds.items():
            keys = {"arm": name, "slice": kind}
            means = {"retrain_difference": over_seeds(pairs)}
            if kind in others:
                means["retrain_difference_ratio"] = over_seeds(pairs, others[kind])
            rows += [row(metric, one, **keys) for metric, one in means.items() if one is not None]
            rows += [
                row("retrain_difference", value, seed=_text(pair), **keys) for pair, value in pairs.items()
            ]
    return rows, reasons, unfinished


def over_seeds(ours: Pairs, theirs: Pairs | None = None) -> Estimate | None:
    """Returns the mean over pairs, or its ratio to that of others, over the pairs that both have; None without any.

    A replicate leaves out the pairs of one seed.
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


def _late_difference(first: Path, second: Path, plan: Plan, late_from: int | None) -> float:
    for run in (first, second):
        if not prediction_parts(run):
            raise InputError(f"no predictions were recorded in {run.name}")
    paired = pair_predictions(
        first, second, np.inf if late_from is None else late_from, plan.scored_us or ALWAYS
    )
    if not paired.examples:
        raise InputError(f"{first.name} and {second.name} have no example in common")
    return float(paired.late.point)


def _text(pair: tuple[int, ...]) -> str:
    return "-".join(map(str, pair))
