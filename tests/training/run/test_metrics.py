"""The windows of a run that leaves their size open."""

import numpy as np
import pytest

from ctr.data.batches import BatchSize
from ctr.training.config import TrainConfig
from ctr.training.run.position import FULL_WINDOW, open_window


def window_ends(rows: int, batch: int | None, window: int | None = None) -> list[int]:
    """Where the windows of a log end, with batches of one size, or growing ones as by default."""
    ends, position = [0], 0
    growing = BatchSize(4096, TrainConfig().batch.growth, origin=0)
    while position < rows:
        position = min(rows, position + (growing.at(position) if batch is None else batch))
        size = open_window(ends[-1]) if window is None else window
        if position - ends[-1] >= size or position == rows:
            ends.append(position)
    return ends[1:]


def test_a_short_log_has_some_tens_of_windows():
    for rows, fewest, most in ((300, 4, 6), (1000, 10, 16), (3000, 20, 40), (49_000, 40, 90)):
        for batch in (None, 10):
            assert fewest <= len(window_ends(rows, batch)) <= most


@pytest.mark.parametrize("batch", [None, 100, 4096, 70_000])
def test_from_50000_examples_on_the_windows_are_those_of_50000(batch):
    rows = 230_001
    open_ends, full = (window_ends(rows, batch, window) for window in (None, FULL_WINDOW))
    assert [end for end in open_ends if end >= full[0]] == full
    # No window is a remnant, and none depends on how far the log goes on.
    assert np.diff([0, *open_ends[:-1]]).min() >= 64
    assert window_ends(20_000, batch)[:-1] == open_ends[: len(window_ends(20_000, batch)) - 1]
