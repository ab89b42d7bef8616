"""Common parts of metrics: array types, checks of input columns, which raise ValueError, and the logistic function."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def checked_finite(name: str, values: npt.ArrayLike) -> FloatArray:
    """Returns `values` as float64 [N]; refuses NaN and infinity."""
    return _checked(name, values, np.isfinite, "finite numbers")


def checked_labels(values: npt.ArrayLike) -> BoolArray:
    """Returns `values` as bool [N]; refuses labels that are neither 0 nor 1."""
    column = np.asarray(values)
    _check_one_dimensional("label", column)
    clicked = column.astype(np.bool_)
    _check_all("label", clicked == column, column, "0 or 1")
    return clicked


def checked_weights(values: npt.ArrayLike) -> FloatArray:
    """Returns `values` as float64 [N]; refuses weights that are negative, infinite or NaN."""
    return _checked("weight", values, lambda w: (w >= 0) & (w < np.inf), "finite numbers of at least 0")


def checked_probabilities(name: str, values: npt.ArrayLike) -> FloatArray:
    """Returns `values` as float64 [N]; refuses values outside 0..1 and NaN."""
    return _checked(name, values, lambda p: (p >= 0) & (p <= 1), "probabilities from 0 to 1")


def _checked(
    name: str, values: npt.ArrayLike, is_allowed: Callable[[FloatArray], BoolArray], allowed: str
) -> FloatArray:
    column = np.asarray(values, dtype=np.float64)
    _check_one_dimensional(name, column)
    _check_all(name, is_allowed(column), column, allowed)
    return column


def checked_ids(name: str, values: npt.ArrayLike) -> IntArray:
    """Returns `values` as int64 [N]; refuses all but signed integers.

    Unsigned integers from 2**63 up would wrap around, and then name another query.
    """
    column = np.asarray(values)
    _check_one_dimensional(name, column)
    if column.dtype.kind != "i" and column.size:
        raise ValueError(f"{name} must be int64, got {column.dtype}")
    return column.astype(np.int64, copy=False)


def check_same_length(**columns: npt.NDArray[np.generic]) -> None:
    """Raises ValueError when the named columns, each [N], differ in N."""
    if len({len(column) for column in columns.values()}) > 1:
        lengths = ", ".join(f"{name} {len(column)}" for name, column in columns.items())
        raise ValueError(f"columns must have one length, got {lengths}")


def ratio(numerator: npt.ArrayLike, denominator: npt.ArrayLike) -> FloatArray:
    """Computes `numerator` / `denominator` (each broadcast to [...]), NaN where the denominator is 0."""
    below = np.asarray(denominator, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below != 0, np.divide(numerator, below), np.nan)


def sigmoid(logit: npt.ArrayLike) -> FloatArray:
    """Computes 1 / (1 + exp(-logit)), without overflow; float64 [...]."""
    logit = np.asarray(logit, dtype=np.float64)
    decay: FloatArray = np.exp(-np.abs(logit))
    numerator: FloatArray = np.where(logit >= 0, 1.0, decay)
    return numerator / (1.0 + decay)


def row_logloss(label: BoolArray, logit: FloatArray) -> FloatArray:
    """Computes -log of the probability that `logit` [N] gives to `label` [N], in nats, float64 [N].

    Computed as max(z, 0) + log(1 + exp(-abs(z))) with z = -logit for a click and z = logit otherwise, which
    neither overflows nor loses the loss of a confident prediction (a probability rounded to 1 would).
    """
    wrong_way = np.where(label, -logit, logit)
    return np.maximum(wrong_way, 0.0) + np.log1p(np.exp(-np.abs(logit)))


def _check_one_dimensional(name: str, column: npt.NDArray[np.generic]) -> None:
    if column.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {column.shape}")


def _check_all(name: str, good: BoolArray, column: npt.NDArray[np.generic], allowed: str) -> None:
    if not good.all():
        row = int(np.argmin(good))
        raise ValueError(f"{name} must hold {allowed}, got {column[row]} at row {row}")
