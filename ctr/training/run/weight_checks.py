"""Checks that weights are those of a run that learned: finite, not absurdly large, and predicting."""

from collections.abc import Iterable

import numpy as np

# Of a logit or a weight, either way. What lies beyond it has not been learned: the weights are broken, though finite.
_LARGEST = 1e6

# Of the variables by name: what predicts,
_WEIGHTS = ("rows/", "dense/")
# and what else a step changes by its gradient. Statistics and roots are certified instead.
_CHECKED = (
    *_WEIGHTS,
    "rows_accumulator/",
    "rows_prior/",
    "rows_variance_slope/",
    "rows_weight_slope/",
    "prior_precision/",
    "forgetting/",
    "rows_moment/",
    "rows_linear_accumulator/",
    "columns_moment/",
    "newton/",
    "shampoo/tensor",
    "adafactor/tensor",
    "duals/",
    "slices_seen/",
)


def predicts_soundly(logit: np.ndarray) -> bool:
    """Returns whether logits (float [N]) are such as sound weights give."""
    # False also for NaN.
    return bool((np.abs(logit) <= _LARGEST).all())


def first_broken(arrays: Iterable[tuple[str, np.ndarray]]) -> str | None:
    """Names the first variable, whole or in pieces, that is not finite or too large for a weight, and what is wrong."""
    for name, array in arrays:
        if not name.startswith(_CHECKED) or not array.size:
            continue
        # NaN is neither within nor beyond, and comes out of either.
        low, high = float(array.min()), float(array.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            return f"{name} is not finite"
        if name.startswith(_WEIGHTS) and max(-low, high) > _LARGEST:
            return f"{name} has weights beyond {_LARGEST:g}"
    return None
