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
from ctr.experiments.report.runs import MeasuredArm, open_run, seed_rows
from ctr.io.errors import InputError

LATE, WHOLE = "last half", ""
"""Parts of the time that is scored over which PD is reported."""

Pairs = Mapping[tuple[int, ...], PairedPredictions]
"""Predictions of pairs of runs, by their seeds: one seed if both have the same, else two."""


def begin_of_late(folder: Path, plan: Plan) -> int | None:
    """Returns the query time at which the late part begins, by the first finished run with readable predictions."""
    for run in (run for arm in (plan.arm(plan.baseline), *plan.arms) for run in arm.runs):
        if (folder / run.folder / "summary.json").exists():
            try:
                begin = last_half(folder / run.folder, plan.scored_us or ALWAYS)
            except InputError:
                continue
            if begin is not None:
                return begin
    return None


def prediction_rows(
    folder: Path, plan: Plan, arms: Mapping[str, MeasuredArm], late_from: int | None
) -> tuple[list[Row], list[str]]:
    """Measures the prediction difference (PD) between seeds of an arm, and between runs and retrains, in the last half.

    ``prediction_difference`` has each pair of seeds and their mean; ``prediction_difference_ratio`` divides this mean
    by the reference's, over the pairs that both have. ``retrain_difference`` has each run with its retrain, by kind;
    the kind ``seed`` has the pairs of the arm's seeds. Means have intervals by a jackknife over seeds.
    ``retrain_pairs_planned`` counts the pairs once all runs are finished. Also returns missing parts, with reasons.
    """
    rows: list[Row] = []
    missing: list[str] = []
    measured: dict[str, dict[str, Pairs]] = {}  # by arm and kind
    for name, arm in arms.items():
        runs = {seed: run.folder for seed, run in arm.runs.items()}
        kinds: dict[str, dict[tuple[int, ...], tuple[Path, Path]]] = {
            SEED: {(a, b): (runs[a], runs[b]) for a, b in combinations(sorted(runs), 2)}
        }
        for kind, retrains in arm.plan.retrains.items():
            endings = [open_run(folder, f"{name}~{kind}", run)[1] for run in retrains]
            missing += [ending.line(f"{name}~{kind}") for ending in endings if ending.state != "finished"]
            kinds[kind] = {
                (ending.seed,): (runs[ending.seed], folder / ending.folder)
                for ending in endings
                if ending.state == "finished" and ending.seed in runs
            }
        measured[name] = {}
        for kind, folders in kinds.items():
            pairs: Pairs = {}
            try:
                pairs = {pair: _paired(*both, plan, late_from) for pair, both in folders.items()}
            except (InputError, ValueError) as error:
                missing.append(f"{name} has no prediction difference by {kind}: {error}")
            measured[name][kind] = pairs
    for name, arm in arms.items():
        reference = plan.reference(arm.plan)
        others = measured[reference.name] if reference is not None else {}
        rows += _pair_rows(name, measured[name][SEED], others.get(SEED, {}))
        count = len(arm.plan.runs)
        planned = {kind: len(runs) for kind, runs in arm.plan.retrains.items()}
        for kind, number in {**planned, SEED: count * (count - 1) // 2}.items() if planned else ():
            keys = {"arm": name, "slice": kind}
            ours, theirs = (
                {pair: float(paired.late.point) for pair, paired in side.get(kind, {}).items()}
                for side in (measured[name], others)
            )
            rows.append(row("retrain_pairs_planned", number, **keys))
            means = {
                "retrain_difference": over_seeds(ours),
                "retrain_difference_ratio": over_seeds(ours, theirs),
            }
            rows += [row(metric, value, **keys) for metric, value in means.items() if value is not None]
            rows += [row("retrain_difference", pd, seed=_text(pair), **keys) for pair, pd in ours.items()]
    return rows, missing


def _paired(first: Path, second: Path, plan: Plan, late_from: int | None) -> PairedPredictions:
    lacking = [folder.name for folder in (first, second) if not prediction_parts(folder)]
    if lacking or late_from is None:
        raise InputError(f"no predictions were recorded in {' and '.join(lacking)}")
    paired = pair_predictions(first, second, late_from, plan.scored_us or ALWAYS)
    if not paired.examples:
        raise InputError(f"{first.name} and {second.name} have no example in common")
    return paired


def _pair_rows(arm: str, pairs: Pairs, others: Pairs) -> list[Row]:
    rows = []
    for part in (LATE, WHOLE) if pairs else ():
        ours, theirs = (
            {_text(pair): paired.late if part == LATE else paired.difference for pair, paired in side.items()}
            for side in (pairs, others)
        )
        keys = {"arm": arm, "window": part}
        rows += seed_rows("prediction_difference", mean([*ours.values()]), ours, **keys)
        ratios = {pair: quotient(ours[pair], theirs[pair]) for pair in ours if pair in theirs}
        if ratios:
            whole = quotient(*(mean([side[pair] for pair in ratios]) for side in (ours, theirs)))
            rows += seed_rows("prediction_difference_ratio", whole, ratios, **keys)
    return rows


def over_seeds(
    ours: Mapping[tuple[int, ...], float], theirs: Mapping[tuple[int, ...], float] | None = None
) -> Estimate | None:
    """Returns the mean of ``ours``, or the ratio of both means over common pairs; None if there are no pairs.

    Each jackknife replicate leaves out the pairs of one seed.
    """
    common = [pair for pair in ours if theirs is None or pair in theirs]
    if not common:
        return None
    seeds = sorted({seed for pair in common for seed in pair})

    def value(left_out: int | None) -> float:
        pairs = [pair for pair in common if left_out not in pair]
        means = [np.mean([arm[pair] for pair in pairs]) for arm in (ours, theirs or {}) if arm and pairs]
        return float(np.nan if not means else ratio(*means) if theirs else means[0])

    replicates = np.array([value(seed) for seed in seeds])
    return Estimate(np.array(value(None)), replicates, np.ones(len(seeds), bool))


def _text(pair: tuple[int, ...]) -> str:
    return "-".join(map(str, pair))
