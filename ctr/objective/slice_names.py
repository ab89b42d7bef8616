"""Names of the slices of a family of bias constraints."""

from itertools import pairwise, product

from ctr.objective.bias_constraints import Family
from ctr.objective.config import RawValue, SliceConfig


def slice_names(config: SliceConfig, family: Family) -> list[str]:
    """Says in words what each slice holds, in the order of ``ctr.objective.bias_constraints``."""
    axes = []
    for (feature, values), axis in zip(sorted(config.features.items()), family.axes, strict=True):
        if values == "all":
            axes.append([f"{feature} id {place}" for place in range(axis.size)])
        else:
            axes.append([f"{feature} {_value(value)}" for value in values])
    if bounds := family.boundaries:
        inner = [f"estimated CTR {low:g} to {high:g}" for low, high in pairwise(bounds)]
        axes.append([f"estimated CTR < {bounds[0]:g}", *inner, f"estimated CTR >= {bounds[-1]:g}"])
    return [", ".join(parts) or "all examples" for parts in product(*axes)]


def _value(value: RawValue) -> str:
    return "missing" if value is None or value == "" else str(value)
