"""Bias of constrained slices, of an arm against its reference's (FF 7.2, table 3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ctr.eval.arrays import FloatArray
from ctr.eval.intervals import Estimate, mean, quotient
from ctr.eval.run_files import Run, read_constraint_metrics
from ctr.eval.tidy import Row, row
from ctr.experiments.plan import PlannedFamily


@dataclass(frozen=True)
class FamilyBias:
    """Calibration of the S slices of a family in one run."""

    weight: FloatArray  # [S]
    bias: Estimate  # mean label minus mean prediction, [S]; NaN where nothing is known
    relative: Estimate  # the same over the mean prediction, [S]


BySeed = Mapping[int, Mapping[str, FamilyBias]]
"""By seed and the family's name."""


def family_biases(run: Run, families: Sequence[PlannedFamily]) -> dict[str, FamilyBias]:
    """Returns the calibration of a run by the slices of each family that it measured, by the family's name.

    Raises InputError where a file is damaged.
    """
    biases = {}
    for family in families:
        name, count = f"constraint:{family.name}", len(family.slices)
        metrics = run.metrics if family.log is None else read_constraint_metrics(run, family.log)
        if metrics is not None and name in metrics.slices:
            biases[family.name] = FamilyBias(*metrics.slices[name].estimate(count))
    return biases


def slice_rows(
    arm: str,
    families: Sequence[PlannedFamily],
    reference_families: Sequence[PlannedFamily],
    biases: BySeed,
    reference_biases: BySeed,
) -> list[Row]:
    """Compares the slices of each family that an arm and its reference measured, at the same seeds.

    ``FAMILY/INDEX`` is a slice, which by estimated CTR holds other rows in each run. Its size is the bias's absolute
    value, below 0 is better. Of a whole family, ``slice_variance`` is the unweighted variance of bias over
    mean prediction over the slices that both have (FF 7.2).
    """
    rows: list[Row] = []
    for family in (candidate for candidate in families if candidate in reference_families):
        name = family.name
        seeds = [seed for seed, of in biases.items() if name in of and name in reference_biases.get(seed, {})]
        if not seeds:
            continue
        ours, theirs = ([of[seed][name] for seed in seeds] for of in (biases, reference_biases))
        for index in range(len(family.slices)):
            estimates, reference = ([_at(run.bias, index) for run in side] for side in (ours, theirs))
            if np.isfinite(mean(estimates).point) and np.isfinite(mean(reference).point):
                keys = {"arm": arm, "slice": f"{name}/{index}"}
                weights = (float(np.mean([run.weight[index] for run in side])) for side in (ours, theirs))
                rows += [
                    row("slice_weight", next(weights), **keys),
                    row("reference_slice_weight", next(weights), **keys),
                    row("bias", mean(estimates), **keys),
                    row("reference_bias", mean(reference), **keys),
                    *_change_rows("bias_size", seeds, estimates, reference, keys),
                ]
        both = np.all([np.isfinite(run.relative.point) for run in (*ours, *theirs)], axis=0)
        if both.sum() >= 2:
            # NaN in a replicate that leaves one of the slices without rows.
            estimates, reference = (
                [
                    Estimate(
                        np.asarray(run.relative.point[both].var()),
                        run.relative.replicates[:, both].var(axis=1),
                        np.asarray(run.relative.occupied[:, both].any(axis=1)),
                    )
                    for run in side
                ]
                for side in (ours, theirs)
            )
            keys = {"arm": arm, "slice": name}
            rows += [
                row("slices", int(both.sum()), **keys),
                row("slice_variance", mean(estimates), **keys),
                row("reference_slice_variance", mean(reference), **keys),
                *_change_rows("slice_variance", seeds, estimates, reference, keys),
            ]
    return rows


def _at(estimate: Estimate, index: int) -> Estimate:
    return Estimate(estimate.point[index], estimate.replicates[:, index], estimate.occupied[:, index])


def _change_rows(
    metric: str,
    seeds: Sequence[int],
    ours: Sequence[Estimate],
    theirs: Sequence[Estimate],
    keys: dict[str, str],
) -> list[Row]:
    """Returns the change of an absolute value from the mean of the reference's seeds, by seed, and its significance."""

    def change(estimate: Estimate, other: Estimate) -> Estimate:
        sizes = [Estimate(np.abs(of.point), np.abs(of.replicates), of.occupied) for of in (estimate, other)]
        share = quotient(*sizes)
        return Estimate(100 * (share.point - 1), 100 * (share.replicates - 1), share.occupied)

    whole = change(mean(ours), mean(theirs))
    by_seed = {seed: float(change(a, b).point) for seed, a, b in zip(seeds, ours, theirs, strict=True)}
    low, high = whole.interval()
    one_sign = len({np.sign(value) for value in by_seed.values()}) == 1
    return [
        row(f"{metric}_change_percent", whole, **keys),
        *(row(f"{metric}_change_percent", value, seed=seed, **keys) for seed, value in by_seed.items()),
        row(f"{metric}_significant", float(((low > 0) | (high < 0)) and one_sign), **keys),
    ]
