"""Streams that are opened, given up half-way and opened again leave no thread, file or memory behind."""

import gc
import os
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from typing import Any

import numpy as np
import pytest

from ctr.io.errors import InputError
from ctr.training.feed import Feed
from ctr.training.inputs import Inputs, open_inputs, read_feeds
from growing_logs import constrained
from small_runs import make_config, merged, write_teacher

TIMES = 200


@pytest.fixture
def inputs(growing, exposure) -> Inputs:
    """A log with faulty rows, a teacher beside it and a constraint log."""
    log = growing.grow(3)
    write_teacher(log, "teacher", np.sin)
    taught = {"objective": {"distillation": {"teacher": "teacher"}}}
    return open_inputs(log, make_config(merged(constrained(exposure.grow(3)), taught)))


def read(inputs: Inputs) -> Any:
    layouts = inputs.config.table_layouts(inputs.schema)
    return read_feeds(inputs, lambda: layouts)


def close_half_way(inputs: Inputs, turn: int) -> None:
    with closing(read(inputs)) as feeds:
        assert len(list(islice(feeds, turn % 4))) == turn % 4


def drop_half_way(inputs: Inputs, turn: int) -> None:
    next(islice(read(inputs), turn % 4, None))


def fail_half_way(inputs: Inputs, turn: int) -> None:
    def step(feed: Feed) -> None:
        raise ArithmeticError(f"in a step on {len(feed.batch.rows)} rows")

    with pytest.raises(ArithmeticError), closing(read(inputs)) as feeds:
        step(next(feeds))


def damaged_half_way(inputs: Inputs, turn: int) -> None:
    shards = [entry for manifest in inputs.log.manifests for entry in manifest.shards]
    path = inputs.log.path / "shards" / shards[1 + turn % 3].file
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(InputError, match=f"{path.name}: damaged"):
        list(read(inputs))
    path.write_bytes(content)


def resources() -> tuple[int, int, int]:
    """Threads of Python's, threads of the system, open files."""
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


@pytest.mark.slow(first=2)
@pytest.mark.parametrize("give_up", [close_half_way, fail_half_way, drop_half_way, damaged_half_way])
def test_streams_that_are_given_up_leave_nothing_behind(
    inputs: Inputs, give_up: Callable[[Inputs, int], None]
) -> None:
    for turn in range(8):
        give_up(inputs, turn)
    before = resources()
    tracemalloc.start()
    try:
        for turn in range(TIMES // 2):
            give_up(inputs, turn)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        for turn in range(TIMES // 2):
            give_up(inputs, turn)
        gc.collect()
        held_at_last, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Arrow may start a thread of its pools late, but not one for each stream.
    after = resources()
    assert after[0] == before[0]
    assert after[1] <= before[1] + 4
    assert after[2] == before[2]
    # A feed holds more than 10 kB, and a reader four of them.
    assert held_at_last - held < 200_000
