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
from ctr.experiments.report.runs import Ending, MeasuredArm, open_run
from ctr.io.errors import InputError

LATE, WHOLE = "last half", ""
"""Parts of the time that is scored over which PD is reported."""

Pairs = Mapping[tuple[int, ...], PairedPredictions]
"""Predictions of pairs of runs, by their seeds: one where both have it, or two."""


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


def prediction_rows(
    folder: Path, plan: Plan, arms: Mapping[str, MeasuredArm], late_from: int | None
) -> tuple[list[Row], dict[tuple[str, str], str], list[tuple[str, Ending]]]:
    """Measures PD of the pairs of seeds of each arm, and of its runs and their retrains over the last half.

    ``prediction_difference`` is of pairs of seeds and their mean, and ``prediction_difference_ratio`` relates it to the
    reference's, over the pairs of both. ``retrain_difference`` is of a run and its retrain, ``seed`` among them the
    pairs of the arm's seeds; means have intervals by a jackknife over seeds. ``retrain_pairs_planned`` counts the pairs
    that there are once all runs are finished. Returns also why a result of an arm is lacking, and the retrains that are
    not finished.
    """
    rows: list[Row] = []
    reasons: dict[tuple[str, str], str] = {}
    unfinished: list[tuple[str, Ending]] = []
    measured: dict[tuple[str, str], Pairs] = {}

    def measure(
        name: str, kind: str, what: str, folders: Mapping[tuple[int, ...], tuple[Path, Path]]
    ) -> None:
        measured[name, kind] = {}
        try:
            measured[name, kind] = {pair: _paired(*both, plan, late_from) for pair, both in folders.items()}
        except (InputError, ValueError) as error:
            reasons[name, what] = str(error)

    for name, arm in arms.items():
        own = {seed: run.folder for seed, run in arm.runs.items()}
        pairs = {pair: (own[pair[0]], own[pair[1]]) for pair in combinations(sorted(own), 2)}
        measure(name, SEED, "prediction_difference", pairs)
        if not pairs:
            reasons[name, "prediction_difference"] = "two finished seeds are required"
        for kind, runs in arm.plan.retrains.items():
            endings = [open_run(folder, f"{name}~{kind}", run)[1] for run in runs]
            unfinished += [(f"{name}~{kind}", ending) for ending in endings if ending.state != "finished"]
            again = {
                (ending.seed,): (own[ending.seed], folder / ending.folder)
                for ending in endings
                if ending.state == "finished" and ending.seed in own
            }
            measure(name, kind, f"retrain_difference {kind}", again)
    for name, arm in arms.items():
        reference = plan.reference(arm.plan)
        other = "" if reference is None else reference.name
        rows += _pair_rows(name, measured[name, SEED], measured.get((other, SEED)))
        count = len(arm.plan.runs)
        kinds = {kind: len(runs) for kind, runs in arm.plan.retrains.items()}
        for kind, planned in {**kinds, SEED: count * (count - 1) // 2}.items() if kinds else ():
            keys = {"arm": name, "slice": kind}
            sides = [
                {pair: float(paired.late.point) for pair, paired in measured[owner, kind].items()}
                for owner in (name, other)
                if (owner, kind) in measured and (owner == name or arms[owner].plan.retrains)
            ]
            if not sides[0]:
                reasons.setdefault((name, f"retrain_difference {kind}"), "no pair of runs is finished")
            rows.append(row("retrain_pairs_planned", planned, **keys))
            means = {"retrain_difference": over_seeds(sides[0])}
            if len(sides) > 1:
                means["retrain_difference_ratio"] = over_seeds(*sides)
            rows += [row(metric, value, **keys) for metric, value in means.items() if value is not None]
            rows += [row("retrain_difference", pd, seed=_text(pair), **keys) for pair, pd in sides[0].items()]
    return rows, reasons, unfinished


def _paired(first: Path, second: Path, plan: Plan, late_from: int | None) -> PairedPredictions:
    lacking = [folder.name for folder in (first, second) if not prediction_parts(folder)]
    if lacking or late_from is None:
        raise InputError(f"no predictions were recorded in {' and '.join(lacking)}")
    paired = pair_predictions(first, second, late_from, plan.scored_us or ALWAYS)
    if not paired.examples:
        raise InputError(f"{first.name} and {second.name} have no example in common")
    return paired


def _pair_rows(arm: str, pairs: Pairs, others: Pairs | None) -> list[Row]:
    rows = []
    common = [pair for pair in pairs if pair in (others or {})]
    for part in (LATE, WHOLE) if pairs else ():
        ours, theirs = (
            {pair: paired.late if part == LATE else paired.difference for pair, paired in side.items()}
            for side in (pairs, others or {})
        )
        keys = {"arm": arm, "window": part}
        rows.append(row("prediction_difference", mean([*ours.values()]), **keys))
        for pair, value in ours.items():
            rows.append(row("prediction_difference", float(value.point), seed=_text(pair), **keys))
        for pair in common:
            value = float(quotient(ours[pair], theirs[pair]).point)
            rows.append(row("prediction_difference_ratio", value, seed=_text(pair), **keys))
        if common:
            whole = quotient(mean([ours[pair] for pair in common]), mean([theirs[pair] for pair in common]))
            rows.append(row("prediction_difference_ratio", whole, **keys))
    return rows


def over_seeds(
    ours: Mapping[tuple[int, ...], float], theirs: Mapping[tuple[int, ...], float] | None = None
) -> Estimate | None:
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
