"""The duals of the bias constraints as results tell them."""

from typing import Any

from ctr.training.state import TrainState

# Of larger families of slices a line of metrics has the extremes of the duals only,
_DUALS_SHOWN = 32
# and of yet larger ones no calibration is kept, which takes 8 kB a slice, in every checkpoint too.
SLICES_MEASURED = 1000


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
