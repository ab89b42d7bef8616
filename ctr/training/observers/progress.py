"""Progress of a run, for a progress bar."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ctr.training.observers.metrics import Metrics
from ctr.training.observers.observer import Observer, ProgressCall, Turn, WatchedRun


class Progress(Observer):
    """Calls a function after each new batch with the position and the metrics, which are not recomputed each time."""

    name = "progress"

    def __init__(self, call: ProgressCall | None, metrics: Metrics) -> None:
        self._call, self._metrics = call, metrics
        self._running: dict[str, Any] = {}
        self._calls, self._is_new_window = 0, False

    def begin(self, run: WatchedRun, state: Mapping[str, np.ndarray]) -> None:
        self._run = run

    def batch(self, turn: Turn) -> None:
        if self._call is None or not turn.is_new:
            return
        self._calls += 1
        # AUC takes thirty times as long.
        with_auc = self._is_new_window or not self._calls & (self._calls - 1)
        if with_auc or self._calls <= 32 or self._calls % 8 == 0:
            self._running |= self._metrics.running(with_auc)
        self._is_new_window = False
        self._call(self._run.position.examples, dict(self._running))

    def window(self, line: dict[str, Any]) -> None:
        self._is_new_window = True
