"""Measures the costs of a pass over a log besides the step: reading, progressive metrics, and growing ids."""

import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from bench_checkpoints import timed_pass
from ctr_model import benchmark_config, make_model
from parts.setting import Setting
from reference import ADAGRAD, Size, make_log, reference_config
from runner import Arm, compare, median, ratio, summarize, take_turns, timed

from ctr.data.batches import Batch, whole_query_batches
from ctr.data.reader import read_rows
from ctr.eval.progressive import ProgressiveMetrics
from ctr.training.inputs import Inputs, open_inputs, read_feeds
from ctr.training.run.position import FULL_WINDOW

EXAMPLES, PASSES, STEPS = 1_100_000, 2, 32
"""The log has enough rows for a pass to include the checkpoint that is due after a million."""
WINDOWS = 4
GROWING_EXAMPLES, GROWING_FEEDS = 600_000, 24
"""There are more feeds than usual: all their ids are new in the first turn, which is not timed."""


@contextmanager
def opened_log(size: Size, examples: int) -> Iterator[Inputs]:
    """Opens a temporary log of the reference model's examples for reading."""
    with tempfile.TemporaryDirectory() as folder:
        yield open_inputs(
            make_log(Path(folder) / "log", examples, size), benchmark_config(ADAGRAD, size.batch)
        )


def consume(read: Callable[[], Iterable[object]]) -> None:
    """Reads and discards all items."""
    deque(read(), maxlen=0)


def end_to_end(setting: Setting) -> dict[str, Any]:
    """Compares passes, from the first batch to the last, with turns of the step alone; measures the reader, too."""
    size = setting.size
    examples = 20 * size.batch if setting.quick else EXAMPLES
    with opened_log(size, examples) as inputs, tempfile.TemporaryDirectory() as folder:
        batch, log = inputs.config.batch, inputs.log
        rows = partial(read_rows, log.path, inputs.schema, log.manifests)
        blocks = list(rows())

        def batches() -> Iterable[Batch]:
            return whole_query_batches(blocks, batch.rows, batch.max_query_rows)

        model = make_model(size, ADAGRAD, list(islice(batches(), STEPS)))
        ways: dict[str, Callable[[], Iterable[object]]] = {
            "feeds, all that the reading thread does": lambda: read_feeds(
                inputs, lambda: model.state.layouts
            ),
            "of it reading and checking shards": rows,
            "of it batches of whole queries": batches,
        }
        reading = compare(
            {name: timed(partial(consume, way)) for name, way in ways.items()}, 1 if setting.quick else 3, 0
        )
        content = reference_config(ADAGRAD, size.batch)
        number = iter(range(PASSES + 1))

        def passing() -> dict[str, float]:
            seconds = timed_pass(log.path, Path(folder) / f"run-{next(number)}", content)
            # The clock starts when the first batch is done.
            return {"ms": 1000 * seconds / (examples - size.batch) * size.batch}

        model.turn()
        before, turns = model.turn()["ms"], {"step": [], "pass": []}
        for _ in range(1 if setting.quick else PASSES):
            turns["pass"].append(passing())
            after = model.turn()["ms"]
            turns["step"].append({"ms": (before + after) / 2})
            before = after
    results = summarize(turns)
    times = ([numbers["ms"] for numbers in turns[name]] for name in ("step", "pass"))
    return {
        "examples": examples,
        "pass_examples_per_second": 1000 * size.batch / results["pass"]["ms"],
        "step_examples_per_second": 1000 * size.batch / results["step"]["ms"],
        "over_step": ratio(*times),
        "reader_examples_per_second": {name: 1000 * examples / row["ms"] for name, row in reading.items()},
    }


def metrics(setting: Setting) -> dict[str, Any]:
    """Compares the step on all feeds, updates of the metrics with all of them, and the close of a window, in turns."""
    model = make_model(setting.size)
    random = np.random.default_rng(0)
    batches = [feed.batch.rows for feed in model.feeds]
    logits = [random.normal(-1.5, 1, len(rows)).astype(np.float32) for rows in batches]
    window, run = ProgressiveMetrics(), ProgressiveMetrics()

    def update() -> None:
        for rows, logit in zip(batches, logits, strict=True):
            window.update(rows.label, logit, rows.metric_weight, rows.query_id)

    def close() -> None:
        for _ in range(WINDOWS):
            window.summary()
            run.merge(window)

    while window.traffic.examples < FULL_WINDOW:
        update()
    arms: dict[str, Arm] = {
        "step": model.turn,
        "update": timed(update, len(batches)),
        "close of a window": timed(close, WINDOWS),
    }
    turns = take_turns(arms, setting.rounds)
    per_window = setting.size.batch / FULL_WINDOW
    step, updated, closed = (np.array([turn["ms"] for turn in arm]) for arm in turns.values())
    return {
        "arms": {name: {"ms": median(arm_turns, "ms")} for name, arm_turns in turns.items()},
        "window_examples": FULL_WINDOW,
        "close_ms_of_a_batch": per_window * float(np.median(closed)),
        "share": ratio(updated + per_window * closed, step),
    }


def ids(setting: Setting) -> dict[str, Any]:
    """Compares steps with buckets and with growing ids, then the readers of both logs of the same examples."""
    size = replace(setting.size, feeds=2 if setting.quick else GROWING_FEEDS)
    sizes = {"buckets": size, "growing": replace(size, growing=True)}
    models = {name: make_model(id_size) for name, id_size in sizes.items()}
    steps = compare({name: model.turn for name, model in models.items()}, setting.rounds)
    examples = 20 * size.batch if setting.quick else GROWING_EXAMPLES
    with opened_log(sizes["buckets"], examples) as buckets, opened_log(sizes["growing"], examples) as growing:

        def reader(inputs: Inputs) -> Arm:
            layouts = inputs.config.table_layouts(inputs.schema)
            return timed(lambda: consume(lambda: read_feeds(inputs, lambda: layouts)))

        reading = take_turns({"buckets": reader(buckets), "growing": reader(growing)}, setting.rounds)
    times = {name: [numbers["ms"] for numbers in arm_turns] for name, arm_turns in reading.items()}
    return {
        "step": steps,
        "growing_over_buckets": steps["growing"]["ms_ratio"],
        "reader_examples_per_second": {
            name: 1000 * examples / median(arm_turns, "ms") for name, arm_turns in reading.items()
        },
        "reader_buckets_over_growing": ratio(times["buckets"], times["growing"]),
        "ids": sum(id_map.rows for id_map in models["growing"].state.tables.id_maps.values()),
    }
