"""The duals of the bias constraints and their slices, as results tell them."""

from typing import Any

from ctr.objective.bias_constraints import Family
from ctr.training.state import TrainState

# Of larger families of slices a line of metrics has the extremes of the duals only,
_DUALS_SHOWN = 32
# and of yet larger ones no calibration is kept, which takes 8 kB a slice, in every checkpoint too.
SLICES_MEASURED = 1000


def is_measured(family: Family, source: int) -> bool:
    """Whether the metrics of a log, the ``source``-th, have the calibration of a family's slices."""
    return family.source == source and family.slices <= SLICES_MEASURED


def slices_name(family: str) -> str:
    """The name of a family's slices in the metrics."""
    # No feature has a colon in its name.
    return f"constraint:{family}"


def duals_of(state: TrainState, most: int = SLICES_MEASURED) -> dict[str, Any]:
    """lambda_k of every family, or the least and the greatest where there are more than ``most``."""
    duals: dict[str, Any] = {}
    for family, variable in zip(state.families, state.duals, strict=True):
        values = variable.numpy()
        if family.slices <= most:
            duals[family.name] = values.tolist()
        else:
            duals[family.name] = {"min": float(values.min()), "max": float(values.max())}
    return duals


def dual_scalars(state: TrainState) -> dict[str, float]:
    """Those that a line of metrics has, by name."""
    scalars: dict[str, float] = {}
    for name, values in duals_of(state, _DUALS_SHOWN).items():
        keys = values if isinstance(values, dict) else range(len(values))
        scalars |= {f"dual_{name}_{key}": values[key] for key in keys}
    return scalars
