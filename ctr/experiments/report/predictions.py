"""Prediction differences of an arm's runs: of pairs of seeds, and of runs and their retrains (FF section 5)."""

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import numpy as np

from ctr.eval.arrays import ratio
from ctr.eval.intervals import Estimate, mean, quotient
from ctr.eval.prediction_difference import ALWAYS, PairedPredictions, last_half, pair_predictions
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

SeedPairs = Mapping[str, Mapping[tuple[int, ...], Estimate]]
"""PD of the pairs of an arm's seeds, by the part of the pass."""


def begin_of_late(folder: Path, plan: Plan) -> int | None:
    """Returns the query time with which the late part begins, by the first run whose predictions can be read."""
    for run in (run for arm in (plan.arm(plan.baseline), *plan.arms) for run in arm.runs):
        if (folder / run.folder / "summary.json").exists():
            try:
                begin = last_half(folder / run.folder, plan.scored_us or ALWAYS)
            except InputError:
                continue
            if begin is not None:
                return begin
    return None


def seed_pairs(arm: MeasuredArm, plan: Plan, late_from: int | None) -> tuple[SeedPairs, str]:
    """Measures PD of the pairs of an arm's seeds; returns also why there is none, or an empty string."""
    pairs: dict[str, dict[tuple[int, ...], Estimate]] = {LATE: {}, WHOLE: {}}
    if len(arm.folders) < 2:
        return pairs, "two finished seeds are required"
    try:
        for seeds in combinations(sorted(arm.folders), 2):
            paired = _paired(arm.folders[seeds[0]], arm.folders[seeds[1]], plan, late_from)
            pairs[LATE][seeds], pairs[WHOLE][seeds] = paired.late, paired.difference
    except (InputError, ValueError) as error:
        return {LATE: {}, WHOLE: {}}, str(error)
    return pairs, ""


def _paired(first: Path, second: Path, plan: Plan, late_from: int | None) -> PairedPredictions:
    lacking = [folder.name for folder in (first, second) if not prediction_parts(folder)]
    if lacking or late_from is None:
        raise InputError(f"no predictions were recorded in {' and '.join(lacking)}")
    paired = pair_predictions(first, second, late_from, plan.scored_us or ALWAYS)
    if not paired.examples:
        raise InputError(f"{first.name} and {second.name} have no example in common")
    return paired


def pair_rows(arm: str, pairs: SeedPairs, others: SeedPairs | None) -> list[Row]:
    """Returns PD of pairs of seeds and its ratio to a reference's, over the pairs of both; means over the pairs."""
    rows = []
    for part in pairs:
        ours, theirs = pairs[part], {} if others is None else others[part]
        keys = {"arm": arm, "window": part}
        common = [pair for pair in ours if pair in theirs]
        if ours:
            rows.append(row("prediction_difference", mean([*ours.values()]), **keys))
        if common:
            whole = quotient(mean([ours[pair] for pair in common]), mean([theirs[pair] for pair in common]))
            rows.append(row("prediction_difference_ratio", whole, **keys))
        for pair, difference in ours.items():
            rows.append(row("prediction_difference", float(difference.point), seed=_text(pair), **keys))
        for pair in common:
            value = float(quotient(ours[pair], theirs[pair]).point)
            rows.append(row("prediction_difference_ratio", value, seed=_text(pair), **keys))
    return rows


def retrain_rows(
    folder: Path,
    plan: Plan,
    arms: Mapping[str, MeasuredArm],
    seeds: Mapping[str, SeedPairs],
    late_from: int | None,
) -> tuple[list[Row], dict[tuple[str, str], str], list[tuple[str, Ending]]]:
    """Measures PD over the last half of the scored time, of arms with retrains, by kind of retrain.

    ``retrain_difference`` is of a run and its retrain, ``seed`` among them the pairs of the arm's seeds; means have
    intervals by a jackknife over seeds. ``retrain_pairs_planned`` counts the pairs that there are once all runs are
    finished. Returns also why a kind of an arm has none, and the retrains that are not finished.
    """
    rows: list[Row] = []
    reasons: dict[tuple[str, str], str] = {}
    unfinished: list[tuple[str, Ending]] = []
    measured: dict[tuple[str, str], Pairs] = {}
    for planned in (arm for arm in plan.arms if arm.retrains):
        name, count = planned.name, len(planned.runs)
        for kind, runs in planned.retrains.items():
            endings = [open_run(folder, f"{name}~{kind}", run)[1] for run in runs]
            unfinished += [(f"{name}~{kind}", ending) for ending in endings if ending.state != "finished"]
            again = {ending.seed: folder / ending.folder for ending in endings if ending.state == "finished"}
            measured[name, kind] = {}
            try:
                measured[name, kind] = {
                    (seed,): float(_paired(arms[name].folders[seed], other, plan, late_from).late.point)
                    for seed, other in again.items()
                    if seed in arms[name].folders
                }
            except (InputError, ValueError) as error:
                reasons[name, kind] = f"the runs cannot be compared: {error}"
            rows.append(row("retrain_pairs_planned", len(runs), arm=name, slice=kind))
        measured[name, SEED] = {pair: float(estimate.point) for pair, estimate in seeds[name][LATE].items()}
        rows.append(row("retrain_pairs_planned", count * (count - 1) // 2, arm=name, slice=SEED))
    for (name, kind), pairs in measured.items():
        if not pairs:
            reasons.setdefault((name, kind), "no pair of runs is finished")
        keys, reference = {"arm": name, "slice": kind}, plan.reference(plan.arm(name))
        others = measured.get((reference.name, kind)) if reference is not None else None
        if (difference := over_seeds(pairs)) is not None:
            rows.append(row("retrain_difference", difference, **keys))
        if others is not None and (share := over_seeds(pairs, others)) is not None:
            rows.append(row("retrain_difference_ratio", share, **keys))
        rows += [row("retrain_difference", value, seed=_text(pair), **keys) for pair, value in pairs.items()]
    return rows, reasons, unfinished


def over_seeds(ours: Pairs, theirs: Pairs | None = None) -> Estimate | None:
    """Returns the mean over pairs, or its ratio to the others' mean over common pairs; None without any pair.

    A replicate leaves out the pairs of one seed.
    """
    common = [pair for pair in ours if theirs is None or pair in theirs]
    if not common:
        return None
    seeds = sorted({seed for pair in common for seed in pair})

    def value(left_out: int | None) -> float:
        pairs = [pair for pair in common if left_out not in pair]
        means = [
            np.mean([arm[pair] for pair in pairs]) for arm in (ours, theirs) if arm is not None and pairs
        ]
        return float(np.nan if not means else means[0] if theirs is None else ratio(*means))

    replicates = np.array([value(seed) for seed in seeds])
    return Estimate(np.array(value(None)), replicates, np.ones(len(seeds), bool))


def _text(pair: tuple[int, ...]) -> str:
    return "-".join(map(str, pair))
