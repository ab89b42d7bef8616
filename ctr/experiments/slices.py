"""The slices of bias constraints in words, for tables that know numbers alone (FF 7.2, 7.3)."""

from collections.abc import Mapping, Sequence
from itertools import pairwise, product

from ctr.experiments.config import ShownSliceConfig
from ctr.experiments.plan import PlannedFamily
from ctr.io.errors import InputError
from ctr.objective.bias_constraints import Family
from ctr.objective.config import RawValue, SliceConfig
from ctr.training.config import TrainConfig
from ctr.training.run.metrics import SLICES_MEASURED


def slice_families(config: TrainConfig, families: Sequence[Family]) -> list[PlannedFamily]:
    """The families of a configuration that are measured; ``families`` are the same, resolved for its log."""
    constraints = config.objective.bias_constraints
    if constraints is None:
        return []
    return [
        PlannedFamily(name=given.name, log=given.log, slices=_slice_names(given, family))
        for given, family in zip(constraints.families, families, strict=True)
        if family.slices <= SLICES_MEASURED
    ]


def check_shown(
    shown: Mapping[str, ShownSliceConfig], arms: Sequence[Sequence[PlannedFamily]], where: str
) -> None:
    """Raises InputError when no arm measures a slice that the tables are to show."""
    sizes: dict[str, int] = {}
    for family in (family for families in arms for family in families):
        sizes[family.name] = max(sizes.get(family.name, 0), len(family.slices))
    for name, one in shown.items():
        if one.family not in sizes:
            known = ", ".join(sizes) or "none is measured by any arm"
            raise InputError(
                f"{where}: slices.{name}.family: there is no {one.family} of at most {SLICES_MEASURED} slices; "
                f"allowed: {known}"
            )
        if one.index >= sizes[one.family]:
            raise InputError(
                f"{where}: slices.{name}.index: {one.index} is not allowed; the family {one.family} has "
                f"the slices 0 to {sizes[one.family] - 1}"
            )


def _slice_names(config: SliceConfig, family: Family) -> list[str]:
    """What each slice holds, in the order of ``ctr.objective.bias_constraints``."""
    axes = []
    for (feature, values), axis in zip(sorted(config.features.items()), family.axes, strict=True):
        if values == "all":
            axes.append([f"{feature} id {place}" for place in range(axis.size)])
        else:
            axes.append([f"{feature} {_value(value)}" for value in values])
    if family.boundaries:
        axes.append(_bucket_names(family.boundaries))
    return [", ".join(parts) or "all examples" for parts in product(*axes)]


def _bucket_names(boundaries: Sequence[float]) -> list[str]:
    inner = [f"estimated CTR {low:g} to {high:g}" for low, high in pairwise(boundaries)]
    return [f"estimated CTR < {boundaries[0]:g}", *inner, f"estimated CTR >= {boundaries[-1]:g}"]


def _value(value: RawValue) -> str:
    return "missing" if value is None or value == "" else str(value)
