"""The windows of a run that leaves their size open."""

import json

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.data.batches import BatchSize
from ctr.training.config import TrainConfig
from ctr.training.loop import train
from ctr.training.run.metrics import FULL_WINDOW, open_window

CONTENT = {
    "batch": {"rows": 50, "max_query_rows": 64},
    "model": {"crosses": {"layers": 0}, "deep": {"units": []}},
    "checkpoint": {"every_examples": 310},
}


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


@pytest.mark.parametrize(
    ("rows", "fewest", "most"), [(300, 4, 6), (1000, 10, 16), (3000, 20, 40), (49_000, 40, 90)]
)
@pytest.mark.parametrize("batch", [None, 10])
def test_a_short_log_has_some_tens_of_windows(rows, fewest, most, batch):
    assert fewest <= len(window_ends(rows, batch)) <= most


@pytest.mark.parametrize("batch", [None, 1, 100, 4096, 70_000])
def test_from_50000_examples_on_the_windows_are_those_of_50000(batch):
    rows = 230_001
    open_ends, full = (window_ends(rows, batch, window) for window in (None, FULL_WINDOW))
    assert [end for end in open_ends if end >= full[0]] == full
    # No window is a remnant, and none depends on how far the log goes on.
    assert np.diff([0, *open_ends[:-1]]).min() >= 64
    assert window_ends(20_000, batch)[:-1] == open_ends[: len(window_ends(20_000, batch)) - 1]


def test_windows_do_not_depend_on_an_interruption(log, tmp_path):
    config = parse_model(TrainConfig, CONTENT, "test")
    train(log, config, tmp_path / "whole")

    def interrupt(position: int, _: object) -> None:
        if position > 700:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(log, config, tmp_path / "resumed", interrupt)
    train(log, config, tmp_path / "resumed")
    ends = [
        [json.loads(line)["examples"] for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("whole", "resumed")
    ]
    assert ends[0] == ends[1] and len(ends[0]) > 8
