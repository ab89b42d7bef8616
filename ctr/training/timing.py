"""Times of a run in this process: the examples per second of its passes, and the seconds of its steps."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

_STEPS_TIMED = 2**16
"""Number of last steps from whose times the quantiles are computed."""


class Timing:
    """Measures the passes of this process; examples per second exclude the time between passes.

    ``roots`` returns the seconds that optimizers have spent on roots, by name; ``begun`` is when the user began to
    wait.
    """

    def __init__(self, roots: Callable[[], Mapping[str, float]]) -> None:
        self.begun, self._roots = time.perf_counter(), roots
        self._steps = deque[float](maxlen=_STEPS_TIMED)
        self._examples, self._seconds = 0, 0.0
        self._last = 0.0
        # If a window began before a resume, only its part since the resume is timed.
        self._window = 0, 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        self._last = time.perf_counter()
        try:
            yield
        finally:
            self.add(0)

    def add(self, examples: int) -> None:
        """Counts processed examples, and the time since the last call."""
        last, self._last = self._last, time.perf_counter()
        self._examples += examples
        self._seconds += self._last - last

    def add_steps(self, seconds: float, count: int = 1) -> None:
        """Counts steps that took ``seconds`` in total."""
        self._steps.extend([seconds / count] * count)

    def close_window(self) -> dict[str, float]:
        """Returns the examples per second since the last call and the seconds of roots, for a line of metrics."""
        (examples, seconds), self._window = self._window, (self._examples, self._seconds)
        speed = round((self._examples - examples) / (self._seconds - seconds), 1)
        return {"examples_per_second": speed, **self._root_seconds()}

    def summary(self) -> dict[str, float]:
        """Returns this process's times and speed for summary.json; empty before the first batch.

        ``wall_seconds`` is the time since ``begun``; ``examples_per_second`` counts the time of the passes alone,
        compiling included.
        """
        if not self._examples:
            return {}
        seconds = time.perf_counter() - self.begun
        quartiles = (1000 * np.quantile(self._steps or [0.0], [0.25, 0.5, 0.75])).round(3).tolist()
        return {
            "wall_seconds": round(seconds, 2),
            "wall_examples_per_second": round(self._examples / seconds, 1),
            "examples_per_second": round(self._examples / self._seconds, 1),
            **dict(zip(("step_ms_p25", "step_ms_p50", "step_ms_p75"), quartiles, strict=True)),
            **self._root_seconds(),
        }

    def _root_seconds(self) -> dict[str, float]:
        return {f"shampoo_{name}": round(seconds, 3) for name, seconds in self._roots().items()}
