"""Sums of a pass over time, in few enough windows to be kept whole, in a form that two runs can pair."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ctr.eval.arrays import FloatArray, IntArray, ratio
from ctr.eval.click_ratio import click_ratio_interval
from ctr.eval.intervals import Estimate
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.states import BUCKETS, Arrays

MAX_WINDOWS = 512  # windows that are kept; beyond them, neighbors are merged two by two
GROUPS = 32  # groups of query buckets, over which the intervals of a window run

_SUMS = ("weight", "clicks", "predicted", "loss", "auc_sum", "queries_scored")
_IDS = ("rows", "missing", "values", "new")
SLOT_COUNTS = ("occupancy", "capacity", "admitted", "evicted", "refused", "shared", "occurrences")
"""Counts of the slots of a feature whose ids grow; the first two at the end of a window, the others in it."""

_ENOUGH = 5_000
_LEVELS = 2
_PLACE = ("examples", "window_begin", "window_end", "window_examples", "windows")
_ID_PREFIX = "ids/"
_SLOT_PREFIX = "slots/"

SERIES = {
    "per_query_auc": ("auc_sum", "queries_scored"),
    "logloss": ("loss", "weight"),
    "click_rate": ("clicks", "weight"),
    "predicted_click_rate": ("predicted", "weight"),
    "calibration_ratio": ("predicted", "clicks"),
}
"""Metrics from the sums of a window: numerator, denominator. AUC compares rows of different queries: none."""


class Timeline:
    """Windows of a pass, bounded in number, with sums per group of query buckets.

    Where there would be more than `MAX_WINDOWS`, neighbors are merged, so that an entry covers twice as many
    windows from then on: 1.7 kB an entry, at most 0.9 MB. Nothing depends on when a pass was interrupted.

    Attributes:
        windows: int64 [W, 5]: rows of the log up to the entry's end, event time of its first and last row in
            microseconds, examples, and the number of windows that it covers.
        sums: float64 [W, 32, 6], `_SUMS`.
        ids: for each feature int64 [W, 4]: rows, rows without a value, values, and values whose id was new.
        slots: for each feature whose ids grow int64 [W, 7], `SLOT_COUNTS`.
    """

    def __init__(self, features: Sequence[str] = (), growing: Sequence[str] = ()) -> None:
        self.windows: IntArray = np.zeros((0, len(_PLACE)), np.int64)
        self.sums: FloatArray = np.zeros((0, GROUPS, len(_SUMS)))
        self.ids: dict[str, IntArray] = {name: np.zeros((0, len(_IDS)), np.int64) for name in features}
        self.slots: dict[str, IntArray] = {
            name: np.zeros((0, len(SLOT_COUNTS)), np.int64) for name in growing
        }
        self._stride = 1

    def __len__(self) -> int:
        return len(self.windows)

    def add(
        self,
        window: ProgressiveMetrics,
        examples: int,
        times: tuple[int, int],
        ids: Mapping[str, Sequence[int]] | None = None,
        slots: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Adds a window that ends: ``examples`` are rows of the log up to its end, ``times`` microseconds.

        ``ids`` and ``slots`` are as in the attributes, for this window; 0 without.
        """
        place = np.array([[examples, *times, int(window.traffic.examples), 1]], np.int64)
        counts, slot_counts = _rows(ids, self.ids, len(_IDS)), _rows(slots, self.slots, len(SLOT_COUNTS))
        goes_on = bool(len(self)) and self.windows[-1, -1] < self._stride
        self.windows = np.concatenate([self.windows, place])
        self.sums = np.concatenate([self.sums, _grouped(window)[np.newaxis]])
        self.ids = {name: np.concatenate([known, counts[name]]) for name, known in self.ids.items()}
        self.slots = {name: np.concatenate([known, slot_counts[name]]) for name, known in self.slots.items()}
        if goes_on:
            self._join(np.arange(len(self) - 1))
        elif len(self) > MAX_WINDOWS:
            self._stride *= 2
            self._join(np.arange(0, len(self), 2))

    def _join(self, starts: IntArray) -> None:
        coarse = self.joined(starts)
        self.windows, self.sums, self.ids, self.slots = coarse.windows, coarse.sums, coarse.ids, coarse.slots

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Copies the state as plain arrays; `from_arrays` brings it back bit for bit."""
        return {
            "windows": self.windows.copy(),
            "sums": self.sums.copy(),
            "stride": np.array(self._stride, np.int64),
            **{_ID_PREFIX + name: counts.copy() for name, counts in self.ids.items()},
            **{_SLOT_PREFIX + name: counts.copy() for name, counts in self.slots.items()},
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Reads what `to_arrays` wrote; raises ValueError for anything else."""
        names = [name for name in arrays if name.startswith(_ID_PREFIX)]
        slots = [name for name in arrays if name.startswith(_SLOT_PREFIX)]
        missing = [name for name in ("windows", "sums", "stride") if name not in arrays]
        if missing or len(arrays) != len(names) + len(slots) + 3:
            raise ValueError(
                f"Timeline has arrays windows, sums, stride, ids/... and slots/..., got {sorted(arrays)}"
            )
        count = len(arrays["windows"]) if arrays["windows"].ndim else 0
        allowed = {
            "windows": ((count, len(_PLACE)), np.int64),
            "sums": ((count, GROUPS, len(_SUMS)), np.float64),
            "stride": ((), np.int64),
            **{name: ((count, len(_IDS)), np.int64) for name in names},
            **{name: ((count, len(SLOT_COUNTS)), np.int64) for name in slots},
        }
        for name, (shape, dtype) in allowed.items():
            if arrays[name].shape != shape or arrays[name].dtype != dtype:
                found = f"{arrays[name].dtype} {arrays[name].shape}"
                raise ValueError(f"Timeline.{name} must be {np.dtype(dtype)} {shape}, got {found}")
        if not np.isfinite(arrays["sums"]).all():
            raise ValueError("Timeline.sums must hold finite numbers")
        timeline = cls()
        timeline.windows, timeline.sums = arrays["windows"].copy(), arrays["sums"].copy()
        timeline.ids = {name.removeprefix(_ID_PREFIX): arrays[name].copy() for name in names}
        timeline.slots = {name.removeprefix(_SLOT_PREFIX): arrays[name].copy() for name in slots}
        timeline._stride = int(arrays["stride"])
        return timeline

    def joined(self, starts: IntArray) -> Self:
        """Copy with one entry for each of the stretches that begin at the given entries, ascending from 0."""
        coarse = type(self)()
        if len(starts) == len(self):
            coarse.windows, coarse.sums = self.windows, self.sums
            coarse.ids, coarse.slots = dict(self.ids), dict(self.slots)
            return coarse
        ends = np.append(starts[1:], len(self)) - 1
        coarse.windows = self.windows[ends].copy()
        coarse.windows[:, 1] = self.windows[starts, 1]
        coarse.windows[:, 3:] = np.add.reduceat(self.windows[:, 3:], starts, axis=0)
        coarse.sums = np.add.reduceat(self.sums, starts, axis=0)
        coarse.ids = {name: np.add.reduceat(counts, starts, axis=0) for name, counts in self.ids.items()}
        for name, counts in self.slots.items():
            coarse.slots[name] = np.add.reduceat(counts, starts, axis=0)
            coarse.slots[name][:, :_LEVELS] = counts[ends, :_LEVELS]
        return coarse

    def estimate(self, metric: str, *, cumulative: bool = False) -> Estimate:
        """A metric of `SERIES` of each entry, or of all entries up to each; replicates [32, W]."""
        over, under = (self.sums[..., _SUMS.index(name)].T for name in SERIES[metric])
        if cumulative:
            over, under = np.cumsum(over, axis=1), np.cumsum(under, axis=1)
        without = np.ones((GROUPS, GROUPS)) - np.eye(GROUPS)
        return Estimate(
            point=ratio(over.sum(axis=0), under.sum(axis=0)),
            replicates=ratio(without @ over, without @ under),
            occupied=(over != 0) | (under != 0),
            scale="logit" if metric == "per_query_auc" else "log",
        )

    def click_ratio(self, *, cumulative: bool = False) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Predicted over actual clicks and the interval's ends, each [W]; NaN without clicks."""
        clicks = self.sums[..., _SUMS.index("clicks")].T
        estimate = self.estimate("calibration_ratio", cumulative=cumulative)
        return estimate.point, *click_ratio_interval(
            estimate, np.cumsum(clicks, axis=1) if cumulative else clicks
        )

    def last_window(self) -> Self:
        """End of the pass as a timeline of one entry; empty where this one is.

        The last window of a pass is cut short, and those of a short pass are small: as many of the last entries
        are joined as it takes to have at least as many examples as the entry of the median example, and as a
        tenth of the pass or 5,000.
        """
        last = type(self)()
        if not len(self):
            return last
        examples = self.windows[:, 3]
        least = max(typical_size(examples), min(examples.sum() / 10, _ENOUGH))
        enough = np.cumsum(examples[::-1]) >= least
        start = len(self) - 1 - int(np.argmax(enough))
        last.windows, last.sums = self.windows[-1:].copy(), self.sums[start:].sum(axis=0, keepdims=True)
        last.windows[:, 1] = self.windows[start, 1]
        last.windows[:, 3:] = self.windows[start:, 3:].sum(axis=0)
        return last

    def matches(self, other: Self) -> bool:
        """Tells whether both have the same entries: the same examples, at the same times."""
        same = self.windows.shape == other.windows.shape and bool((self.windows == other.windows).all())
        weight = _SUMS.index("weight")
        return same and bool(np.allclose(self.sums[..., weight], other.sums[..., weight], rtol=1e-9))

    def new_share(self, feature: str) -> FloatArray:
        """Share of a feature's values in each entry whose id was new, [W]; NaN without values."""
        counts = self.ids[feature]
        return ratio(counts[:, _IDS.index("new")], counts[:, _IDS.index("values")])

    def missing_share(self, feature: str) -> FloatArray:
        """Share of rows in each entry without a value of the feature, [W]; NaN without rows."""
        counts = self.ids[feature]
        return ratio(counts[:, _IDS.index("missing")], counts[:, _IDS.index("rows")])

    def total(self, feature: str) -> dict[str, int]:
        """Rows, rows without a value, values, and values whose id was new, of a feature over the pass."""
        return dict(zip(_IDS, map(int, self.ids[feature].sum(axis=0)), strict=True))

    def slot_series(self, feature: str) -> dict[str, IntArray]:
        """Each of `SLOT_COUNTS`, [W], of a feature whose ids grow."""
        return dict(zip(SLOT_COUNTS, self.slots[feature].T, strict=True))

    def slot_total(self, feature: str) -> dict[str, int]:
        """`SLOT_COUNTS` of a growing feature at the end of the pass, and in all of it; 0 without windows."""
        counts = self.slots[feature]
        total = counts.sum(axis=0)
        if len(counts):
            total[:_LEVELS] = counts[-1, :_LEVELS]
        return dict(zip(SLOT_COUNTS, map(int, total), strict=True))


def typical_size(examples: IntArray) -> int:
    """Size of the window that the median example is in, from the sizes of at least one [W]."""
    ascending = np.sort(examples)
    until = np.cumsum(ascending)
    return int(ascending[np.searchsorted(until, until[-1] / 2)])


def _grouped(window: ProgressiveMetrics) -> FloatArray:
    """Sums of a window per group of buckets, float64 [32, 6]."""
    columns = np.stack(
        [
            *window.calibration.sums.T,
            window.logloss.loss,
            window.per_query_auc.auc_sum.sum(axis=1),
            window.per_query_auc.scored.sum(axis=1).astype(np.float64),
        ],
        axis=1,
    )
    grouped: FloatArray = columns.reshape(GROUPS, BUCKETS // GROUPS, len(_SUMS)).sum(axis=1)
    return grouped


def _rows(given: Mapping[str, Sequence[int]] | None, names: Iterable[str], width: int) -> dict[str, IntArray]:
    """For each name its numbers as an entry, int64 [1, width]; 0 where none are given."""
    return {
        name: np.array((given or {}).get(name, [0] * width), np.int64).reshape(1, width) for name in names
    }
