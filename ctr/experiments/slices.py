"""The slices of bias constraints in words, for tables that know numbers alone (FF 7.2, 7.3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from ctr.experiments.config import ShownSliceConfig
from ctr.io.errors import InputError
from ctr.objective.bias_constraints import Family
from ctr.objective.config import RawValue, SliceConfig
from ctr.training.config import TrainConfig
from ctr.training.run.metrics import SLICES_MEASURED


@dataclass(frozen=True)
class SliceFamily:
    """A family whose slices are measured.

    Attributes:
        name: as configured.
        log: the constraint log whose rows it is about; None: the training log.
        slices: what each slice holds, by its number.
    """

    name: str
    log: str | None
    slices: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """What plan.json records of it."""
        return {"name": self.name, "log": self.log, "slices": list(self.slices)}


def slice_families(config: TrainConfig, families: Sequence[Family]) -> tuple[SliceFamily, ...]:
    """The families of a configuration that are measured; ``families`` are the same, resolved for its log."""
    constraints = config.objective.bias_constraints
    if constraints is None:
        return ()
    return tuple(
        SliceFamily(given.name, given.log, _slice_names(given, family))
        for given, family in zip(constraints.families, families, strict=True)
        if family.slices <= SLICES_MEASURED
    )


def check_shown(
    shown: Mapping[str, ShownSliceConfig], arms: Sequence[Sequence[SliceFamily]], where: str
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


def _slice_names(config: SliceConfig, family: Family) -> tuple[str, ...]:
    """What each slice holds, in the order of ``ctr.objective.bias_constraints``."""
    axes = []
    for (feature, values), axis in zip(sorted(config.features.items()), family.axes, strict=True):
        if values == "all":
            axes.append([f"{feature} id {place}" for place in range(axis.size)])
        else:
            axes.append([f"{feature} {_value(value)}" for value in values])
    if family.boundaries:
        axes.append(_bucket_names(family.boundaries))
    return tuple(", ".join(parts) or "all examples" for parts in product(*axes))


def _bucket_names(boundaries: Sequence[float]) -> list[str]:
    inner = [f"estimated CTR {low:g} to {high:g}" for low, high in pairwise(boundaries)]
    return [f"estimated CTR < {boundaries[0]:g}", *inner, f"estimated CTR >= {boundaries[-1]:g}"]


def _value(value: RawValue) -> str:
    return "missing" if value is None or value == "" else str(value)
