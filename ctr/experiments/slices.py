"""The slices of bias constraints in words, for tables that know numbers alone (FF 7.2, 7.3)."""

from collections.abc import Mapping, Sequence

from ctr.experiments.config import ShownSliceConfig
from ctr.experiments.plan import PlannedFamily
from ctr.io.errors import InputError
from ctr.objective.bias_constraints import Family
from ctr.objective.slice_names import slice_names
from ctr.training.config import TrainConfig
from ctr.training.run.metrics import SLICES_MEASURED


def slice_families(config: TrainConfig, families: Sequence[Family]) -> list[PlannedFamily]:
    """The families of a configuration that are measured; ``families`` are the same, resolved for its log."""
    constraints = config.objective.bias_constraints
    if constraints is None:
        return []
    return [
        PlannedFamily(name=given.name, log=given.log, slices=slice_names(given, family))
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
