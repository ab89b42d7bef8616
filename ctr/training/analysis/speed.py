"""How fast a run is: the examples that it passes in a second, and the median time of its steps."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

_SHORTEST, _LONGEST, _RATIO = 1e-6, 1e5, 1.01


class RunningMedian:
    """The median of any number of times, in a fixed amount of memory.

    A histogram of seconds on a logarithmic scale: the median is right to within 0.5%, from 1 us to a day.
    """

    def __init__(self) -> None:
        """Begins without any."""
        bins = math.ceil(math.log(_LONGEST / _SHORTEST) / math.log(_RATIO))
        self._counts = np.zeros(bins, np.int64)

    def add(self, seconds: float) -> None:
        """Counts one time."""
        place = int(math.log(max(seconds, _SHORTEST) / _SHORTEST) / math.log(_RATIO))
        self._counts[min(place, len(self._counts) - 1)] += 1

    def median(self) -> float:
        """Returns the median in seconds; 0 of none. Of an even number the lower of the two in the middle."""
        return self.quantile(0.5)

    def quantile(self, share: float) -> float:
        """Returns the time that this share of the times does not exceed, in seconds; 0 of none."""
        behind = np.cumsum(self._counts)
        if not behind[-1]:
            return 0.0
        place = int(np.searchsorted(behind, max(1, math.ceil(share * behind[-1]))))
        return float(_SHORTEST * _RATIO ** (place + 0.5))


class Throughput:
    """The examples per second of the passes of this process; the time between two passes does not count.

    Attributes:
        examples: that were passed.
        seconds: that it took.
    """

    def __init__(self) -> None:
        """Begins at 0."""
        self.examples, self.seconds = 0, 0.0
        self._last = 0.0
        # A window that was begun before a resume is timed from the resume on.
        self._window = 0, 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts the time of the block."""
        self._last = time.perf_counter()
        try:
            yield
        finally:
            self.add(0)

    def add(self, examples: int) -> None:
        """Counts examples that were passed, and the time since the last call."""
        last, self._last = self._last, time.perf_counter()
        self.examples += examples
        self.seconds += self._last - last

    def close_window(self) -> float:
        """Returns the examples per second since the last call."""
        (examples, seconds), self._window = self._window, (self.examples, self.seconds)
        return round((self.examples - examples) / (self.seconds - seconds), 1)
