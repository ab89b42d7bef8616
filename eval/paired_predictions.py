"""Prediction difference of two runs over the same log, from the predictions that they recorded.

Both runs wrote their predictions in the order of the log, cut into files at different places. The two are read
side by side, a stretch of query time at a time, and joined by example_id inside the stretch: memory holds
about one file of each run, however long the log.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ctr.eval.intervals import Estimate
from ctr.eval.prediction_difference import PredictionDifference, join_predictions
from ctr.eval.run_files import prediction_parts, read_predictions
from ctr.io.errors import InputError

ALWAYS = (-math.inf, math.inf)
"""All query times: the first one, and the first one behind."""
_COLUMNS = ("example_id", "query_id", "query_time", "logit")


@dataclass(frozen=True)
class PairedPredictions:
    """Prediction difference PD of two runs, and the numbers of examples that both or one recorded."""

    difference: Estimate
    late: Estimate  # over the late part of the pass alone; undefined when none was asked for
    examples: int
    only_a: int
    only_b: int


def pair_predictions(
    run_a: Path, run_b: Path, late_from: float = math.inf, between: tuple[float, float] = ALWAYS
) -> PairedPredictions:
    """Joins the predictions of two runs over the same log.

    Args:
        late_from: query time, in microseconds, with which the late part of the pass begins.
        between: the first query time that counts, and the first one behind; of others nothing is joined or
            counted.

    Raises:
        InputError: a file is damaged or not in the order of the log.
        ValueError: the predictions cannot be joined: an example_id repeats, or has two queries.
    """
    whole, late = PredictionDifference(), PredictionDifference()
    only_a = only_b = 0
    stream_a, stream_b = PredictionStream(run_a, _COLUMNS), PredictionStream(run_b, _COLUMNS)
    begin, end = between
    done_up_to = -math.inf
    while done_up_to < end:
        stream_a.read_beyond(done_up_to)
        stream_b.read_beyond(done_up_to)
        # A stretch ends where another part begins, and so lies on one side of it.
        ahead = [bound for bound in (begin, late_from, end) if bound > done_up_to]
        stretch_begin, done_up_to = done_up_to, min(stream_a.complete_up_to, stream_b.complete_up_to, *ahead)
        taken = stream_a.take_before(done_up_to), stream_b.take_before(done_up_to)
        if stretch_begin < begin:
            continue
        state = whole if stretch_begin < late_from else late
        joined = join_predictions(*taken)
        state.update(joined.first, joined.second, joined.query_id)
        only_a += joined.only_first
        only_b += joined.only_second
    whole.merge(late)
    return PairedPredictions(whole.estimate(), late.estimate(), int(whole.examples.sum()), only_a, only_b)


def last_half(run: Path, between: tuple[float, float] = ALWAYS) -> int | None:
    """Query time, in microseconds, with which the last half of the recorded span of time begins.

    That is the middle between the first and the last query time within ``between``; None when the run
    recorded no predictions. Raises InputError where a file is damaged.
    """
    times: list[int] = []
    parts = prediction_parts(run)
    for order, place in ((parts, 0), (parts[::-1], -1)):
        for path in order:
            column = read_predictions(path, ["query_time"])["query_time"].to_numpy()
            if len(column):
                times.append(int(column[place]))
                break
    if not times:
        return None
    first, last = int(max(times[0], between[0])), int(min(times[1], between[1] - 1))
    return first + (last - first + 1) // 2


class PredictionStream:
    """Predictions of a run, taken by query time; ``columns`` has ``query_time``.

    All rows with a query time before ``complete_up_to`` are read; it is infinite after the last file.
    """

    def __init__(self, run: Path, columns: Sequence[str]) -> None:
        self._parts = prediction_parts(run)
        self._columns = columns
        self._held = pd.DataFrame({name: np.empty(0, np.int64) for name in columns})
        self.complete_up_to = -math.inf if self._parts else math.inf

    def read_beyond(self, time: float) -> None:
        """Reads files until all rows up to and including `time` are there."""
        while self._parts and self.complete_up_to <= time:
            path = self._parts.pop(0)
            part = read_predictions(path, self._columns)
            times = part["query_time"].to_numpy()
            if len(times) and (times[0] < self.complete_up_to or np.any(times[1:] < times[:-1])):
                raise InputError(
                    f"{path}: predictions must be in the order of the log, ascending by query_time"
                )
            self._held = pd.concat([self._held, part]) if len(self._held) else part
            if not self._parts:
                self.complete_up_to = math.inf
            elif len(times):
                self.complete_up_to = int(times[-1])

    def take_before(self, time: float) -> pd.DataFrame:
        """Hands out the rows before `time` that were not handed out yet."""
        end = len(self._held)
        if time < math.inf:
            end = int(np.searchsorted(self._held["query_time"].to_numpy(), int(time)))
        taken, self._held = self._held.iloc[:end], self._held.iloc[end:]
        return taken
