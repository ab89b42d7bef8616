"""Calibration bias, label minus prediction (FF section 6): overall, by decile of prediction, by slice."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from ctr.eval.arrays import BoolArray, FloatArray, IntArray, check_same_length, checked_ids, ratio, sigmoid
from ctr.eval.auc import LogitHistogram, coarse_edges
from ctr.eval.click_ratio import click_ratio_interval
from ctr.eval.intervals import Estimate, deletions, difference, quotient
from ctr.eval.rows import ScoredRows
from ctr.eval.states import BUCKETS, Arrays, SumState

# Loaded where it is needed: commands that need no tables start sooner.
if TYPE_CHECKING:
    import pandas as pd

DECILES = 10

_SLICES_AT_ONCE = 1024
_CELL_SUMS = 4
_BIN_LIMIT = 8.0
_BINS_PER_LOGIT = 16.0
_SMALLEST_MERGE = 1024
_STATE = {"id", "key", "sums", "bin_key", "bin_sums"}


class Calibration(SumState):
    """Calibration over all rows: sums of labels and predictions by query bucket."""

    LAYOUT: ClassVar = {"sums": ((BUCKETS, 3), np.float64)}

    sums: FloatArray  # [K, 3]: weight, weight * label, weight * probability

    def update(self, rows: ScoredRows) -> None:
        for column, values in enumerate(_terms(rows)):
            self.sums[:, column] += np.bincount(rows.bucket, values, BUCKETS)

    def result(self) -> float:
        """Returns the bias: weighted mean label minus weighted mean probability; NaN without rows."""
        return float(_bias(self.sums.sum(axis=0)))

    def prediction_ratio(self) -> float:
        """Returns predicted clicks over clicks: above 1 the model over-predicts; NaN without clicks."""
        _, label, prediction = self.sums.sum(axis=0)
        return float(ratio(prediction, label))

    def ratio_estimate(self) -> Estimate:
        return _ratio_estimate(self.sums)

    def ratio_interval(self) -> tuple[float, float]:
        """Returns the 95% interval of `prediction_ratio`, also for few clicks; NaN without clicks."""
        low, high = click_ratio_interval(self.ratio_estimate(), self.sums[:, 1])
        return float(low), float(high)

    def estimate(self) -> Estimate:
        return _bias_estimate(self.sums)


class SliceCalibration:
    """Calibration, logloss and AUC by the ids of one feature, one slice per id; new ids get slices as they occur.

    A time window is an id too: ``query_time // window``; so is a fingerprint of 64 bits. Memory is 40 bytes for each
    pair of a slice and a query bucket that occurs, and 24 for each pair of a slice and a bin of logits, at most 16 kB a
    slice. Bins are 1/16 logit wide, from -8 to 8; rows of one bin count as tied.
    """

    def __init__(self) -> None:
        # Slices are numbered as they come: an id and a bucket do not fit 64 bits together.
        self._numbers: dict[int, int] = {}
        self._cells = KeyedSums(width=_CELL_SUMS)
        self._bins = KeyedSums(width=2)

    def update(self, rows: ScoredRows, ids: npt.ArrayLike) -> None:
        """Adds a batch; ``ids`` int64 [rows.examples], one for each row read, including weight 0."""
        import pandas as pd

        checked = checked_ids("slice ids", ids)
        check_same_length(slice_ids=checked, rows=rows.has_weight)
        indices, distinct = pd.factorize(checked[rows.has_weight])
        slices = self._number(distinct)[indices]
        self._cells.add(slices * BUCKETS + rows.bucket, (*_terms(rows), rows.weight * rows.loss))
        bins = np.clip((rows.logit + _BIN_LIMIT) * _BINS_PER_LOGIT, 0, BUCKETS - 1).astype(np.int64)
        self._bins.add(
            slices * BUCKETS + bins,
            (np.where(rows.label, 0.0, rows.weight), np.where(rows.label, rows.weight, 0.0)),
        )

    def merge(self, other: Self) -> None:
        numbers = self._number(np.fromiter(other._numbers, np.int64, len(other._numbers)))
        for target, table in ((self._cells, other._cells), (self._bins, other._bins)):
            keys, sums = table.items()
            target.add(_renumbered(keys, numbers), sums)

    def clear(self) -> None:
        self._numbers = {}
        self._cells = KeyedSums(width=_CELL_SUMS)
        self._bins = KeyedSums(width=2)

    def _number(self, ids: IntArray) -> IntArray:
        """Returns the slice numbers of distinct ids [S]; new ids get the next numbers."""
        table = self._numbers
        return np.fromiter((table.setdefault(key, len(table)) for key in ids.tolist()), np.int64, len(ids))

    def _ordered(self) -> tuple[IntArray, list[tuple[IntArray, FloatArray]]]:
        """Returns the ids [S] and, for cells and bins, the keys by rank of the id, all ascending, with their sums."""
        ids = np.fromiter(self._numbers, np.int64, len(self._numbers))
        order = np.argsort(ids)
        ranks = np.empty(len(ids), np.int64)
        ranks[order] = np.arange(len(ids))
        tables = []
        for table in (self._cells, self._bins):
            keys, sums = table.items()
            keys = _renumbered(keys, ranks)
            by_key = np.argsort(keys)
            tables.append((keys[by_key], sums[:, by_key]))
        return ids[order], tables

    def result(self) -> "pd.DataFrame":
        """Returns a table with a row per slice, by ascending id.

        Columns: id, weight, mean_label, mean_prediction, bias with ci95_low and ci95_high (NaN for a slice
        in fewer than two query buckets), calibration_ratio and logloss with ``_low`` and ``_high``, and auc.
        """
        import pandas as pd

        ids, ((keys, sums), bins) = self._ordered()
        slice_index = keys // BUCKETS
        parts = []
        for start in range(0, max(len(ids), 1), _SLICES_AT_ONCE):
            part = ids[start : start + _SLICES_AT_ONCE]
            cells = slice(*np.searchsorted(slice_index, [start, start + len(part)]))
            dense = np.zeros((BUCKETS, len(part), _CELL_SUMS))
            dense[keys[cells] % BUCKETS, slice_index[cells] - start] = sums[:, cells].T
            table = _bias_table(part, dense[..., :3])
            clicks, logloss = _ratio_estimate(dense), _mean_estimate(dense[..., 3], dense[..., 0])
            for name, estimate, (low, high) in (
                ("calibration_ratio", clicks, click_ratio_interval(clicks, dense[..., 1])),
                ("logloss", logloss, logloss.interval()),
            ):
                table = table.assign(**{name: estimate.point, f"{name}_low": low, f"{name}_high": high})
            parts.append(table)
        return pd.concat(parts, ignore_index=True).assign(auc=_auc_of_slices(len(ids), *bins))

    def estimate(self, count: int) -> tuple[FloatArray, Estimate, Estimate]:
        """Returns weight [`count`], bias, bias / mean prediction of ids 0 to `count` - 1; without rows 0, NaN, NaN."""
        all_ids, ((keys, sums), _) = self._ordered()
        ids = all_ids[keys // BUCKETS]
        inside = (ids >= 0) & (ids < count)
        dense = np.zeros((BUCKETS, count, 3))
        dense[keys[inside] % BUCKETS, ids[inside]] = sums[:3, inside].T
        label, prediction = (_mean_estimate(dense[..., column], dense[..., 0]) for column in (1, 2))
        bias = _bias_estimate(dense)
        return dense[..., 0].sum(axis=0), bias, quotient(difference(prediction, label), prediction)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the state as plain arrays, C pairs of slice and bucket in ascending order.

        ``id``: int64 [S], ascending. ``key``: int64 [C], index into ``id`` * 256 + bucket. ``sums``: float64
        [4, C]: weight, weight * label, weight * probability, weight * logloss. ``bin_key``: int64 [D], index *
        256 + bin of the logit. ``bin_sums``: float64 [2, D], weight of non-clicks and of clicks.
        """
        ids, ((key, sums), (bin_key, bin_sums)) = self._ordered()
        return {"id": ids, "key": key, "sums": sums, "bin_key": bin_key, "bin_sums": bin_sums}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Inverts `to_arrays`; raises ValueError for anything else."""
        if set(arrays) != _STATE:
            raise ValueError(f"SliceCalibration has arrays {sorted(_STATE)}, got {sorted(arrays)}")
        tables = (
            _checked_table(arrays["key"], arrays["sums"], _CELL_SUMS),
            _checked_table(arrays["bin_key"], arrays["bin_sums"], 2),
        )
        ids = arrays["id"]
        if ids.dtype != np.int64 or ids.ndim != 1 or not (ids[1:] > ids[:-1]).all():
            raise ValueError("SliceCalibration.id must be int64 [S], ascending")
        state = cls()
        state._number(ids)
        for target, (key, sums) in zip((state._cells, state._bins), tables, strict=True):
            indices = key // BUCKETS
            if ((indices < 0) | (indices >= len(ids))).any():
                raise ValueError("SliceCalibration: a key is of no slice")
            target.add(key, sums)
        return state


def _renumbered(keys: IntArray, numbers: IntArray) -> IntArray:
    """Returns keys [C] of slices and buckets with the slices renumbered by `numbers` [S]."""
    renumbered: IntArray = numbers[keys // BUCKETS] * BUCKETS + keys % BUCKETS
    return renumbered


def _auc_of_slices(slices: int, keys: IntArray, sums: FloatArray) -> FloatArray:
    """Returns the AUC of each slice [S] from the sums [2, D] of ascending `keys` [D]; NaN where a class is absent."""
    auc = np.full(slices, np.nan)
    bounds = np.searchsorted(keys // BUCKETS, np.arange(slices + 1))
    for index, (begin, end) in enumerate(pairwise(bounds)):
        negative, positive = sums[:, begin:end]
        if negative.sum() > 0 and positive.sum() > 0:
            below = np.cumsum(negative) - negative / 2
            auc[index] = (positive @ below) / (negative.sum() * positive.sum())
    return auc


def _checked_table(key: npt.NDArray[Any], sums: npt.NDArray[Any], width: int) -> tuple[IntArray, FloatArray]:
    if (
        key.dtype != np.int64
        or sums.dtype != np.float64
        or key.ndim != 1
        or sums.shape != (width, *key.shape)
    ):
        raise ValueError(
            f"SliceCalibration must have keys int64 [C] and sums float64 [{width}, C], "
            f"got {key.dtype} {key.shape} and {sums.dtype} {sums.shape}"
        )
    return key, sums


def calibration_buckets(histogram: LogitHistogram) -> "pd.DataFrame":
    """Computes the bias by decile of prediction, the deciles cut by weight between coarse bins of the histogram.

    A bin (1/32 logit wide) belongs whole to the decile of its middle, so the deciles' weights
    differ a little, and a prediction that very many rows share leaves other deciles empty: NaN, with weight 0.
    Ten rows: low, high (the range of probabilities of the decile), weight, mean_label, mean_prediction,
    bias with ci95_low and ci95_high, calibration_ratio with ``_low`` and ``_high``.
    """
    weight = histogram.coarse_weight()
    used = np.flatnonzero(weight)
    low, high = np.full((2, DECILES), np.nan)
    sums = np.zeros((BUCKETS, DECILES, 3))
    if len(used):
        through = np.cumsum(weight[used])
        middle = (through - weight[used] / 2) / through[-1]
        decile = np.minimum((middle * DECILES).astype(np.int64), DECILES - 1)
        starts = np.flatnonzero(np.diff(decile, prepend=-1))
        occurring = decile[starts]
        edges = sigmoid(coarse_edges())
        low[occurring] = edges[used[starts]]
        high[occurring] = edges[used[np.append(starts[1:], len(used)) - 1] + 1]
        per_bin = np.stack(
            [
                histogram.coarse[:, used].sum(axis=2),
                histogram.coarse[:, used, 1],
                histogram.coarse_prediction[:, used],
            ],
            axis=2,
        )
        sums[:, occurring] = np.add.reduceat(per_bin, starts, axis=1)
    table = _bias_table(np.arange(DECILES), sums)
    table.insert(0, "high", high)
    table.insert(0, "low", low)
    ratios = _ratio_estimate(sums)
    ratio_low, ratio_high = click_ratio_interval(ratios, sums[..., 1])
    return table.drop(columns="id").assign(
        calibration_ratio=ratios.point, calibration_ratio_low=ratio_low, calibration_ratio_high=ratio_high
    )


def _terms(rows: ScoredRows) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Computes weight, weight * label and weight * probability of each row, each [N]."""
    return rows.weight, np.where(rows.label, rows.weight, 0.0), rows.weight * rows.probability


def _bias(sums: FloatArray) -> FloatArray:
    """Computes the bias [...] from sums of weight, weight * label and weight * probability [..., 3]."""
    return ratio(sums[..., 1] - sums[..., 2], sums[..., 0])


def _mean_estimate(over: FloatArray, under: FloatArray) -> Estimate:
    return Estimate(
        point=ratio(over.sum(axis=0), under.sum(axis=0)),
        replicates=ratio(np.tensordot(deletions(), over, axes=1), np.tensordot(deletions(), under, axes=1)),
        occupied=under > 0,
        scale="log",
    )


def _ratio_estimate(sums: FloatArray) -> Estimate:
    """Computes predicted clicks over clicks, from sums [K, ..., 3 or more] per bucket."""
    # A bucket without clicks still counts: it has predicted ones.
    estimate = _mean_estimate(sums[..., 2], sums[..., 1])
    return replace(estimate, occupied=sums[..., 0] > 0)


def _bias_estimate(sums: FloatArray) -> Estimate:
    return Estimate(
        point=_bias(sums.sum(axis=0)),
        replicates=_bias(np.tensordot(deletions(), sums, axes=1)),
        occupied=sums[..., 0] > 0,
    )


def _bias_table(ids: IntArray, sums: FloatArray) -> "pd.DataFrame":
    import pandas as pd

    estimate = _bias_estimate(sums)
    low, high = estimate.interval()
    weight, label, prediction = sums.sum(axis=0).T
    return pd.DataFrame(
        {
            "id": ids,
            "weight": weight,
            "mean_label": ratio(label, weight),
            "mean_prediction": ratio(prediction, weight),
            "bias": estimate.point,
            "ci95_low": low,
            "ci95_high": high,
        }
    )


class KeyedSums:
    """A growing table: key -> `width` sums of float64.

    Each key has exactly one entry, so its sums depend on the values added and their order alone. The entries
    are in sorted arrays: a large one, and a small one of recently added keys, which is merged into the large
    one when it has grown to an eighth of it; inserting straight into the large one would copy it with every
    batch.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._main = _empty(width)
        self._recent = _empty(width)

    def add(self, keys: IntArray, values: Sequence[FloatArray] | FloatArray) -> None:
        """Adds `values` [width, N] to the sums of `keys` [N], which may repeat."""
        import pandas as pd

        index, distinct = pd.factorize(keys)
        added = np.array([np.bincount(index, column, len(distinct)) for column in values])
        # Ascending, because a sorted search goes through a large table several times faster.
        order = np.argsort(distinct)
        keys, added = distinct[order], added[:, order]
        for table_keys, table_sums in (self._main, self._recent):
            where, matched = _find(table_keys, keys)
            for table_column, column in zip(table_sums, added, strict=True):
                table_column[where[matched]] += column[matched]
            keys, added = keys[~matched], added[:, ~matched]
        if len(keys):
            self._recent = _inserted(self._recent, keys, added)
            if len(self._recent[0]) > max(_SMALLEST_MERGE, len(self._main[0]) // 8):
                self._main = _inserted(self._main, *self._recent)
                self._recent = _empty(self._width)

    def items(self) -> tuple[IntArray, FloatArray]:
        """Returns copies of all keys [C], ascending, and their sums [width, C]."""
        return _inserted(self._main, *self._recent)


def _empty(width: int) -> tuple[IntArray, FloatArray]:
    return np.empty(0, np.int64), np.empty((width, 0))


def _find(table: IntArray, keys: IntArray) -> tuple[IntArray, BoolArray]:
    """Returns the indices of `keys` [N] in the sorted `table`, or where to insert them; and whether they occur."""
    index = np.searchsorted(table, keys)
    inside = index < len(table)
    is_present = np.zeros(len(keys), dtype=np.bool_)
    is_present[inside] = table[index[inside]] == keys[inside]
    return index, is_present


def _inserted(
    table: tuple[IntArray, FloatArray], keys: IntArray, sums: FloatArray
) -> tuple[IntArray, FloatArray]:
    index = np.searchsorted(table[0], keys)
    return np.insert(table[0], index, keys), np.insert(table[1], index, sums, axis=1)
