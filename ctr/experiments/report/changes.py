"""Changes of an arm against its reference: of metrics, and of the bias of constrained slices (FF 7.2, table 3)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ctr.eval.arrays import BoolArray, ratio
from ctr.eval.compare import is_beyond_noise
from ctr.eval.intervals import Estimate, combined, difference, mean
from ctr.eval.run_comparison import NotComparableError
from ctr.eval.tidy import Row, row
from ctr.experiments.report.runs import CHANGED, MeasuredArm, seed_rows


def metric_rows(arm: MeasuredArm, reference: MeasuredArm) -> list[Row]:
    """Compares the metrics in `CHANGED` of an arm and its reference, at the seeds that both finished.

    ``METRIC_difference`` is the mean over the seeds and the value of each seed; ``METRIC_change_percent`` the same in
    percent of the reference's. ``METRIC_significant`` is 1 if the interval excludes 0 and all seeds have one sign, 0
    if not, and absent without an interval. Raises NotComparableError if they have no finished seed in common,
    or scored different examples.
    """
    name, other = arm.plan.name, reference.plan.name
    seeds = [seed for seed in arm.runs if seed in reference.runs]
    if not seeds:
        raise NotComparableError(f"no seed was finished by both {name} and {other}")
    for seed in seeds:
        ours, theirs = arm.runs[seed].scored, reference.runs[seed].scored
        if not ours.same_as(theirs):
            raise NotComparableError(
                f"{name} and {other} scored different examples of the log with seed {seed} "
                f"({ours.examples} and {theirs.examples}, or with other weights); allowed: runs that scored the same"
            )
    rows = []
    for metric in CHANGED:
        base = {seed: reference.runs[seed].estimates[metric] for seed in seeds}
        changes = {seed: difference(base[seed], arm.runs[seed].estimates[metric]) for seed in seeds}
        whole = mean([*changes.values()])
        percents = {seed: _percent(change, base[seed]) for seed, change in changes.items()}
        percent = _percent(whole, mean([*base.values()]))
        rows += seed_rows(f"{metric}_difference", whole, changes, arm=name)
        rows += seed_rows(f"{metric}_change_percent", percent, percents, arm=name)
        rows += _significance(metric, whole, changes, arm=name)
    return rows


def slice_rows(arm: MeasuredArm, reference: MeasuredArm) -> list[Row]:
    """Compares the slices of each family that an arm and its reference measured, at the same seeds.

    ``FAMILY/INDEX`` is a slice; slices by estimated CTR hold other rows in each run. A slice's size is the absolute
    value of its bias; a change below 0 is better. For a whole family, ``slice_variance`` is the unweighted variance,
    over the slices that both have, of bias divided by mean prediction (FF 7.2).
    """
    rows: list[Row] = []
    for family in arm.plan.families:
        pairs = {
            seed: (run.biases[family.name], reference.runs[seed].biases[family.name])
            for seed, run in arm.runs.items()
            if seed in reference.runs
            and family.name in run.biases.keys() & reference.runs[seed].biases.keys()
        }
        if not pairs or family not in reference.plan.families:
            continue
        sides = [*zip(*pairs.values(), strict=True)]  # by seed: the arm's, and the reference's
        for index in range(len(family.slices)):
            biases = [[_at(run.bias, index) for run in side] for side in sides]
            if all(np.isfinite(mean(side).point) for side in biases):
                keys = {"arm": arm.plan.name, "slice": f"{family.name}/{index}"}
                weights = [float(np.mean([run.weight[index] for run in side])) for side in sides]
                rows.append(row("slice_weight", weights[0], **keys))
                rows.append(row("reference_slice_weight", weights[1], **keys))
                rows += _size_rows("bias", "bias_size", [*pairs], biases, **keys)
        both = np.all([np.isfinite(run.relative.point) for side in sides for run in side], axis=0)
        if both.sum() >= 2:
            variances = [[_variance(run.relative, both) for run in side] for side in sides]
            keys = {"arm": arm.plan.name, "slice": family.name}
            rows.append(row("slices", int(both.sum()), **keys))
            rows += _size_rows("slice_variance", "slice_variance", [*pairs], variances, **keys)
    return rows


def _size_rows(
    metric: str, size: str, seeds: Sequence[int], sides: Sequence[Sequence[Estimate]], **keys: object
) -> list[Row]:
    """Returns a metric of both sides, and the change of its absolute value from the mean of the reference's seeds."""

    def change(ours: Estimate, theirs: Estimate) -> Estimate:
        return combined(lambda *sides: 100 * (ratio(*map(np.abs, sides)) - 1), ours, theirs)

    whole = change(*map(mean, sides))
    by_seed = {seed: change(*pair) for seed, *pair in zip(seeds, *sides, strict=True)}
    return [
        row(metric, mean(sides[0]), **keys),
        row(f"reference_{metric}", mean(sides[1]), **keys),
        *seed_rows(f"{size}_change_percent", whole, by_seed, **keys),
        *_significance(size, whole, by_seed, **keys),
    ]


def _significance(metric: str, whole: Estimate, by_seed: Mapping[int, Estimate], **keys: object) -> list[Row]:
    if whole.no_interval():
        return []
    is_one_sign = len({np.sign(change.point) for change in by_seed.values()}) == 1
    return [row(f"{metric}_significant", float(is_beyond_noise(whole) and is_one_sign), **keys)]


def _at(estimate: Estimate, index: int) -> Estimate:
    return Estimate(estimate.point[index], estimate.replicates[:, index], estimate.occupied[:, index])


def _variance(estimate: Estimate, both: BoolArray) -> Estimate:
    """Returns the variance over slices; NaN in a replicate that leaves one of them without rows."""
    variance = combined(lambda shares: shares[..., both].var(axis=-1), estimate)
    return replace(variance, occupied=np.any(estimate.occupied[:, both], axis=1))


def _percent(change: Estimate, of: Estimate) -> Estimate:
    return combined(lambda part, whole: 100 * ratio(part, whole), change, of)
