"""Sums of a pass over time in a bounded number of windows, in a form that two runs can pair."""

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ctr.eval.arrays import FloatArray, IntArray, ratio
from ctr.eval.click_ratio import click_ratio_interval
from ctr.eval.intervals import Estimate
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.states import BUCKETS, Arrays

MAX_WINDOWS = 512  # maximum number of entries; beyond it, neighbors are merged two by two
GROUPS = 32  # groups of query buckets, over which the intervals of a window run

SUMS = ("weight", "clicks", "predicted", "loss", "auc_sum", "queries_scored")
_ENOUGH = 5_000
PLACE = ("examples", "window_begin", "window_end", "window_examples", "windows")

SERIES = {
    "per_query_auc": ("auc_sum", "queries_scored"),
    "logloss": ("loss", "weight"),
    "click_rate": ("clicks", "weight"),
    "predicted_click_rate": ("predicted", "weight"),
    "calibration_ratio": ("predicted", "clicks"),
}
"""Numerator and denominator of each metric that sums suffice for; AUC, which compares rows of all queries, has none."""


class Timeline:
    """Windows of a pass, bounded in number, with sums per group of query buckets.

    Beyond `MAX_WINDOWS`, neighbors are merged, so that an entry covers twice as many
    windows from then on: 1.6 kB an entry, at most 0.8 MB. Nothing depends on when a pass was interrupted.

    Attributes:
        windows: int64 [W, 5]: rows of the log up to the entry's end, event time of its first and last row in
            microseconds, examples, and the number of windows that it covers.
        sums: float64 [W, 32, 6], `SUMS`.
    """

    def __init__(self) -> None:
        self.windows: IntArray = np.zeros((0, len(PLACE)), np.int64)
        self.sums: FloatArray = np.zeros((0, GROUPS, len(SUMS)))
        self._stride = 1

    def __len__(self) -> int:
        return len(self.windows)

    def add(self, window: ProgressiveMetrics, examples: int, times: tuple[int, int]) -> None:
        """Adds a window.

        ``examples``: rows of the log up to its end; ``times``: event times of its first and last row, in microseconds.
        """
        row = np.array([[examples, *times, int(window.traffic.examples), 1]], np.int64)
        goes_on = bool(len(self)) and self.windows[-1, -1] < self._stride
        self.windows = np.concatenate([self.windows, row])
        self.sums = np.concatenate([self.sums, _grouped(window)[np.newaxis]])
        if goes_on:
            self._join(np.arange(len(self) - 1))
        elif len(self) > MAX_WINDOWS:
            self._stride *= 2
            self._join(np.arange(0, len(self), 2))

    def _join(self, starts: IntArray) -> None:
        coarse = self.joined(starts)
        self.windows, self.sums = coarse.windows, coarse.sums

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Copies the state as plain arrays; `from_arrays` restores it bit for bit."""
        return {
            "windows": self.windows.copy(),
            "sums": self.sums.copy(),
            "stride": np.array(self._stride, np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Inverts `to_arrays`; raises KeyError if an array is missing."""
        timeline = cls()
        timeline.windows, timeline.sums = arrays["windows"].copy(), arrays["sums"].copy()
        timeline._stride = int(arrays["stride"])
        return timeline

    def joined(self, starts: IntArray) -> Self:
        """Returns a timeline of merged entries: from each of ``starts`` (ascending, the first is 0) up to the next."""
        coarse = type(self)()
        if len(starts) == len(self):
            coarse.windows, coarse.sums = self.windows, self.sums
            return coarse
        ends = np.append(starts[1:], len(self)) - 1
        coarse.windows = self.windows[ends].copy()
        coarse.windows[:, 1] = self.windows[starts, 1]
        coarse.windows[:, 3:] = np.add.reduceat(self.windows[:, 3:], starts, axis=0)
        coarse.sums = np.add.reduceat(self.sums, starts, axis=0)
        return coarse

    def estimate(self, metric: str) -> Estimate:
        """Estimates a metric of `SERIES` for each entry; replicates [32, W]."""
        over, under = (self.sums[..., SUMS.index(name)].T for name in SERIES[metric])
        without = np.ones((GROUPS, GROUPS)) - np.eye(GROUPS)
        return Estimate(
            point=ratio(over.sum(axis=0), under.sum(axis=0)),
            replicates=ratio(without @ over, without @ under),
            occupied=(over != 0) | (under != 0),
            scale="logit" if metric == "per_query_auc" else "log",
        )

    def series(self, metric: str) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Returns a metric of `SERIES` and the interval's ends, each [W]; NaN where the denominator is 0."""
        estimate = self.estimate(metric)
        if metric == "calibration_ratio":
            return estimate.point, *click_ratio_interval(estimate, self.sums[..., SUMS.index("clicks")].T)
        return estimate.point, *estimate.interval()

    def last_window(self) -> Self:
        """Returns the end of the pass as a timeline of one entry; empty if this timeline is empty.

        The last window of a pass may be incomplete, and the windows of a short pass are small: the last entries
        are joined until they have at least as many examples as the entry of the median example, and as a
        tenth of the pass, or 5,000 if that is fewer.
        """
        last = type(self)()
        if not len(self):
            return last
        examples = self.windows[:, 3]
        until = np.cumsum(np.sort(examples))
        # The size of the window that the median example is in.
        usual = int(np.sort(examples)[np.searchsorted(until, until[-1] / 2)])
        least = max(usual, min(examples.sum() / 10, _ENOUGH))
        enough = np.cumsum(examples[::-1]) >= least
        start = len(self) - 1 - int(np.argmax(enough))
        last.windows, last.sums = self.windows[-1:].copy(), self.sums[start:].sum(axis=0, keepdims=True)
        last.windows[:, 1] = self.windows[start, 1]
        last.windows[:, 3:] = self.windows[start:, 3:].sum(axis=0)
        return last

    def matches(self, other: Self) -> bool:
        """Returns whether both have the same entries: the same examples, at the same times."""
        same = self.windows.shape == other.windows.shape and bool((self.windows == other.windows).all())
        weight = SUMS.index("weight")
        return same and bool(np.allclose(self.sums[..., weight], other.sums[..., weight], rtol=1e-9))


def _grouped(window: ProgressiveMetrics) -> FloatArray:
    """Returns the sums of a window per group of buckets, float64 [32, 6]."""
    columns = np.stack(
        [
            *window.calibration.sums.T,
            window.logloss.loss,
            window.per_query_auc.auc_sum.sum(axis=1),
            window.per_query_auc.scored.sum(axis=1).astype(np.float64),
        ],
        axis=1,
    )
    grouped: FloatArray = columns.reshape(GROUPS, BUCKETS // GROUPS, len(SUMS)).sum(axis=1)
    return grouped
