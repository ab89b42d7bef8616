"""Bias of constrained slices, of an arm against its reference's (FF 7.2, table 3)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ctr.eval.arrays import BoolArray, FloatArray
from ctr.eval.intervals import Estimate, mean, quotient
from ctr.eval.run_files import Run, read_constraint_metrics
from ctr.experiments.plan import PlannedFamily, ShownSlice


@dataclass(frozen=True)
class FamilyBias:
    """Calibration of the S slices of a family in one run."""

    weight: FloatArray  # [S]
    bias: Estimate  # mean label minus mean prediction, [S]; NaN where nothing is known
    relative: Estimate  # the same over the mean prediction, [S]


class CommonFamily(NamedTuple):
    """A family that an arm and its reference measured, at the seeds that have both."""

    family: PlannedFamily
    seeds: list[int]
    ours: list[FamilyBias]
    theirs: list[FamilyBias]


@dataclass(frozen=True)
class SliceChange:
    """A slice of an arm against its reference's, at the same seeds; weights and biases are means over seeds.

    A slice by estimated CTR holds other rows in each run.
    """

    shown: ShownSlice | None  # how the tables show it; None: they do not
    family: str
    index: int
    log: str | None  # the constraint log whose rows it holds; None: the training log
    holds: str  # in words
    weight: float
    reference_weight: float
    bias: Estimate
    reference_bias: Estimate
    size_change_percent: Estimate  # of the bias's absolute value, of the reference's; below 0 is better
    size_change_percent_by_seed: Mapping[int, float]
    significant: bool  # interval of size_change_percent excludes 0, and all seeds have one sign


@dataclass(frozen=True)
class VarianceChange:
    """Change of how differently the slices of a family are biased, at the same seeds (FF 7.2).

    The variance is that of bias over mean prediction, over the slices that both have; each slice counts the
    same.
    """

    family: str
    slices: int  # how many both have
    variance: Estimate
    reference_variance: Estimate
    change_percent: Estimate  # of the reference's; below 0 is better
    change_percent_by_seed: Mapping[int, float]
    significant: bool  # interval of change_percent excludes 0, and all seeds have one sign


def family_biases(run: Run, families: Sequence[PlannedFamily]) -> dict[str, FamilyBias]:
    """Calibration of a run by the slices of each family that it measured, by the family's name.

    Raises InputError where a file is damaged.
    """
    found = {}
    for family in families:
        name, count = f"constraint:{family.name}", len(family.slices)
        metrics = run.metrics if family.log is None else read_constraint_metrics(run, family.log)
        if metrics is not None and name in metrics.slices:
            found[family.name] = FamilyBias(*metrics.slices[name].estimate(count))
    return found


def common_families(
    families: Sequence[PlannedFamily],
    reference_families: Sequence[PlannedFamily],
    biases: Mapping[int, Mapping[str, FamilyBias]],
    reference_biases: Mapping[int, Mapping[str, FamilyBias]],
) -> list[CommonFamily]:
    """Families that an arm and its reference measured; biases are by seed what `family_biases` found."""
    common = []
    for family in families:
        name = family.name
        seeds = [
            seed for seed, found in biases.items() if name in found and name in reference_biases.get(seed, {})
        ]
        if seeds and family in reference_families:
            ours, theirs = ([found[seed][name] for seed in seeds] for found in (biases, reference_biases))
            common.append(CommonFamily(family, seeds, ours, theirs))
    return common


def slice_changes(common: Sequence[CommonFamily], shown: Sequence[ShownSlice]) -> list[SliceChange]:
    """Changes of each slice that both measured; those that the tables show come first, in their order."""
    places = {(one.family, one.index): (place, one) for place, one in reversed([*enumerate(shown)])}
    last = len(shown), None
    changes = []
    for both in common:
        for index in range(len(both.family.slices)):
            change = _change(both, index, places.get((both.family.name, index), last)[1])
            if np.isfinite(change.bias.point) and np.isfinite(change.reference_bias.point):
                changes.append(change)
    return sorted(changes, key=lambda change: places.get((change.family, change.index), last)[0])


def variance_changes(common: Sequence[CommonFamily]) -> list[VarianceChange]:
    """Changes of each family of which both measured at least two slices."""
    changes = []
    for family, seeds, ours, theirs in common:
        both = np.all([np.isfinite(found.relative.point) for found in (*ours, *theirs)], axis=0)
        if both.sum() < 2:
            continue
        own, reference = ([_variance(found.relative, both) for found in side] for side in (ours, theirs))
        change, by_seed, significant = _compared(
            lambda one, other: _percent_change(quotient(one, other)), seeds, own, reference
        )
        changes.append(
            VarianceChange(
                family=family.name,
                slices=int(both.sum()),
                variance=mean(own),
                reference_variance=mean(reference),
                change_percent=change,
                change_percent_by_seed=by_seed,
                significant=significant,
            )
        )
    return changes


def _variance(values: Estimate, which: BoolArray) -> Estimate:
    return Estimate(
        np.asarray(np.var(values.point[which])),
        np.var(values.replicates[:, which], axis=1),
        np.any(values.occupied[:, which], axis=1),
    )


def _compared(
    change: Callable[[Estimate, Estimate], Estimate],
    seeds: Sequence[int],
    own: Sequence[Estimate],
    reference: Sequence[Estimate],
) -> tuple[Estimate, dict[int, float], bool]:
    """Change from the mean of the reference's seeds, that of each seed, and whether it is significant."""
    found = change(mean(own), mean(reference))
    by_seed = {seed: float(change(a, b).point) for seed, a, b in zip(seeds, own, reference, strict=True)}
    low, high = found.interval()
    one_sign = len({np.sign(value) for value in by_seed.values()}) == 1
    return found, by_seed, bool((low > 0) | (high < 0)) and one_sign


def _change(common: CommonFamily, index: int, shown: ShownSlice | None) -> SliceChange:
    family, seeds, ours, theirs = common
    own, reference = ([_estimate_at(found.bias, index) for found in side] for side in (ours, theirs))
    change, by_seed, significant = _compared(_size_change, seeds, own, reference)
    return SliceChange(
        shown=shown,
        family=family.name,
        index=index,
        log=family.log,
        holds=family.slices[index],
        weight=float(np.mean([found.weight[index] for found in ours])),
        reference_weight=float(np.mean([found.weight[index] for found in theirs])),
        bias=mean(own),
        reference_bias=mean(reference),
        size_change_percent=change,
        size_change_percent_by_seed=by_seed,
        significant=significant,
    )


def _estimate_at(estimate: Estimate, index: int) -> Estimate:
    return Estimate(estimate.point[index], estimate.replicates[:, index], estimate.occupied[:, index])


def _size_change(bias: Estimate, reference: Estimate) -> Estimate:
    return _percent_change(quotient(_absolute(bias), _absolute(reference)))


def _percent_change(share: Estimate) -> Estimate:
    """Change in percent of a whole, from a share of it."""
    return Estimate(100 * (share.point - 1), 100 * (share.replicates - 1), share.occupied)


def _absolute(bias: Estimate) -> Estimate:
    return Estimate(np.abs(bias.point), np.abs(bias.replicates), bias.occupied)
