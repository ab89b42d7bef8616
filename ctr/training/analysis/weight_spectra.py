"""Singular values of a run's weight matrices: how much of each a bottleneck would keep (FF 3.1).

A full product ``x W`` with W [m, n] costs m n multiply-adds an example; through a bottleneck, ``(x U) V`` with
U [m, k] and V [k, n], it costs k (m + n). The spectrum of W shows which k it bears.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from ctr.training.run.directory import write_json
from ctr.training.state import TrainState

# Work is counted in min(m, n)^2 max(m, n). Up to this much the singular values are LAPACK's, a fraction of a second;
# beyond, the roots of the Gram matrix' eigenvalues, several times faster. In float64 these are wrong by about
# 1e-8 of the largest singular value, less than what float32 weights are rounded by.
_EXACT_WORK = 2**29
_EXACT_FACTOR = 4  # how much slower LAPACK's are, at the same size

# Of all weights of a run together: two of 4096 x 4096, for which one waits about half a minute at the end, or
# two of 65536 x 1024, which take some seconds.
_MOST_WORK = 2**37
_GRAM_ROWS = 4096

_DIGITS = 7  # of float32


@dataclass(frozen=True)
class _Matrix:
    """A weight, or the product of two: float32 [m, n], or [m, k] and [k, n]."""

    name: str
    factors: tuple[np.ndarray, ...]
    factor_names: tuple[str, ...] = ()

    def work(self) -> int:
        work = 0
        shape = self.factors[0].shape
        if len(self.factors) == 2:
            rows, inner, columns = *shape, self.factors[1].shape[1]
            work = (rows + columns) * inner**2
            shape = min(rows, inner), min(columns, inner)
        own = min(shape) ** 2 * max(shape)
        return int(work + own * (_EXACT_FACTOR if own <= _EXACT_WORK else 1))


def write_weight_spectra(run_dir: Path, state: TrainState) -> None:
    """Writes weight_spectra.json: what ``weight_spectra`` returns for the dense weights."""
    weights = ((name, weight.numpy()) for name, weight in state.weights.items())
    write_json(run_dir / "weight_spectra.json", weight_spectra(weights))


def weight_spectra(weights: Iterable[tuple[str, np.ndarray]], most_work: int = _MOST_WORK) -> dict[str, Any]:
    """Computes the singular values of all matrices among ``weights``, float32, with both sides above 1.

    Two that differ in their last ``/u`` and ``/v``, [m, k] and [k, n], also have a spectrum of their product, ``uv``:
    that of the low-rank layer. The largest, by min(m, n)^2 max(m, n), are left out where all are more than
    ``most_work``.

    Returns:
        ``weights``: for each matrix, in their order, its ``name`` and ``shape``; for a product also ``factors``,
        their names, and ``inner_rank``, k; then either ``singular_values``, descending, with 7 digits, and
        ``method``, ``svd`` or ``gram``, or ``omitted``, why there are none.
    """
    matrices = _matrices(dict(weights))
    entries: dict[str, dict[str, Any]] = {}
    left = most_work
    for matrix in sorted(matrices, key=_Matrix.work):
        bad = sum(map(_count_nonfinite, matrix.factors))
        if bad:
            entries[matrix.name] = {"omitted": f"{bad} of its entries are not finite"}
        elif matrix.work() > left:
            entries[matrix.name] = {"omitted": "too large to compute"}
        else:
            left -= matrix.work()
            # More threads of BLAS would wait for one another where others compute too, and change last bits.
            with threadpool_limits(1, "blas"):
                entries[matrix.name] = _spectrum(matrix)
    return {"weights": [{**_description(matrix), **entries[matrix.name]} for matrix in matrices]}


def _matrices(weights: dict[str, np.ndarray]) -> list[_Matrix]:
    matrices = []
    for name, weight in weights.items():
        if weight.ndim == 2 and min(weight.shape) > 1:
            matrices.append(_Matrix(name, (weight,)))
        # After v: what its layer computes.
        u = weights.get(f"{name[:-1]}u") if name.endswith("/v") else None
        if u is not None and min(u.shape[0], weight.shape[1]) > 1:
            matrices.append(_Matrix(f"{name[:-1]}uv", (u, weight), (f"{name[:-1]}u", name)))
    return matrices


def _count_nonfinite(weight: np.ndarray) -> int:
    with np.errstate(invalid="ignore"):
        # The sum of any number of finite float32 is finite, and takes no memory.
        if np.isfinite(weight.sum(dtype=np.float64)):
            return 0
    return int(np.count_nonzero(~np.isfinite(weight)))


def _description(matrix: _Matrix) -> dict[str, Any]:
    first, last = matrix.factors[0], matrix.factors[-1]
    description: dict[str, Any] = {"name": matrix.name, "shape": [first.shape[0], last.shape[1]]}
    if matrix.factor_names:
        description |= {"factors": list(matrix.factor_names), "inner_rank": first.shape[1]}
    return description


def _spectrum(matrix: _Matrix) -> dict[str, Any]:
    try:
        if len(matrix.factors) == 1:
            values, method = _singular_values(matrix.factors[0])
        else:
            # U V = Q R_u (Q' R_v)^T: of these only R_u R_v^T, at most [k, k], has a spectrum other than 1.
            u, v = (factor.astype(np.float64) for factor in matrix.factors)
            core = np.linalg.qr(u).R @ np.linalg.qr(v.T).R.T
            values, method = _singular_values(core)
    except np.linalg.LinAlgError as error:
        return {"omitted": f"not computed: {error}"}
    return {"method": method, "singular_values": [float(f"{value:.{_DIGITS}g}") for value in values]}


def _singular_values(matrix: np.ndarray) -> tuple[np.ndarray, str]:
    if min(matrix.shape) ** 2 * max(matrix.shape) <= _EXACT_WORK:
        return np.linalg.svd(matrix.astype(np.float64), compute_uv=False), "svd"
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    gram = np.zeros((tall.shape[1], tall.shape[1]))
    for begin in range(0, len(tall), _GRAM_ROWS):
        part = tall[begin : begin + _GRAM_ROWS].astype(np.float64)
        gram += part.T @ part
    return np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0)), "gram"
