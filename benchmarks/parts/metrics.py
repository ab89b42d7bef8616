"""What progressive metrics cost beside the step: each batch's update, and the windows' summaries and merges."""

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np
from own import make_model, median_ms
from parts.setting import Setting
from reference import table

from ctr.eval.progressive import ProgressiveMetrics
from ctr.training.analysis.speed import take_turns
from ctr.training.run.metrics import FULL_WINDOW

WINDOWS = 4


def measure(setting: Setting) -> dict[str, Any]:
    """A turn is the step on all feeds, updates with all of them, or the end of a window."""
    model, window_examples = make_model(setting.size), FULL_WINDOW
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

    def timed(work: Callable[[], None], count: int) -> Callable[[], float]:
        def turn() -> float:
            begun = time.perf_counter()
            work()
            return (time.perf_counter() - begun) / count

        return turn

    while window.traffic.examples < window_examples:
        update()
    turns = {"step": model.seconds, "update": timed(update, len(batches)), "close": timed(close, WINDOWS)}
    seconds = take_turns(turns, setting.rounds)
    per_window = setting.size.batch / window_examples
    shares = [
        (updated + per_window * closed) / step
        for updated, closed, step in zip(seconds["update"], seconds["close"], seconds["step"], strict=True)
    ]
    return {
        "update_ms": median_ms(seconds["update"]),
        "close_ms": median_ms(seconds["close"]),
        "close_ms_of_a_batch": per_window * median_ms(seconds["close"]),
        "window_examples": window_examples,
        "step_ms": median_ms(seconds["step"]),
        "share": median(shares),
    }


def report(found: Mapping[str, Any]) -> str:
    """The table."""
    every = f"{found['window_examples']:,}"
    rows = [
        ["a batch's update", f"{found['update_ms']:.2f}"],
        [f"a window's summary and merge, every {every} examples", f"{found['close_ms']:.2f}"],
        ["of it a batch's part", f"{found['close_ms_of_a_batch']:.2f}"],
        ["the step", f"{found['step_ms']:.1f}"],
        ["both together, of the step", f"{found['share']:.1%}"],
    ]
    return table(["metrics", "ms"], rows)
