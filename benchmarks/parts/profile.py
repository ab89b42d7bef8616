"""What the step spends its time on, by TensorFlow's profiler, and what reading and metrics take beside it.

An operation belongs to the part whose name scope it lies in, its gradient (``gradient_tape/...``) likewise. Times are
those of the threads that run operations: with two of them busy, they add up to more than the step. An operation
that others lie in counts without these.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from bench_shampoo import settle
from own import Model, make_model, median_ms
from parts.setting import Setting
from parts.trace import OTHER, by_part, is_operation, own_times, part_of
from reference import table
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from ctr.eval.progressive import ProgressiveMetrics
from ctr.training.feed import make_feed
from ctr.training.tables.plan import pad_plan, plan_table

SHOWN = 12


def read_trace(folder: Path) -> tuple[dict[str, float], float]:
    """Milliseconds of each operation in a trace, all runs together, and those of the graph as the caller saw it."""
    space = xplane_pb2.XSpace()
    space.ParseFromString(next(folder.rglob("*.xplane.pb")).read_bytes())
    operations: dict[str, float] = defaultdict(float)
    graph = 0.0
    for plane in space.planes:
        names = {number: metadata.name for number, metadata in plane.event_metadata.items()}
        stats = {number: metadata.name for number, metadata in plane.stat_metadata.items()}
        for line in plane.lines:
            events = []
            for event in line.events:
                name = names[event.metadata_id]
                if name.startswith("EagerLocalExecute: __inference_"):
                    graph += event.duration_ps / 1e9
                elif is_operation(name := _called(name, event, stats)):
                    events.append((event.offset_ps, event.duration_ps, name))
            for name, picoseconds in own_times(events):
                operations[name] += picoseconds / 1e9
    return dict(operations), graph


def _called(name: str, event: xplane_pb2.XEvent, stats: Mapping[int, str]) -> str:
    """The name of an event; of a call of a function, as what XLA compiled is, that of the operation that calls it."""
    if name != "ExecutorState::ProcessAsync::Start":
        return name
    told = {stats[stat.metadata_id]: stat.str_value for stat in event.stats}
    return f"{told.get('name')}:{told.get('kernel_type')}"


def trace_steps(model: Model) -> tuple[dict[str, float], float, float]:
    """``read_trace`` of one turn, divided by its steps, and milliseconds of a step meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        traced = model.seconds()
        tf.profiler.experimental.stop()
        operations, graph = read_trace(Path(folder))
    steps = len(model.feeds)
    return {name: spent / steps for name, spent in operations.items()}, graph / steps, 1000 * traced


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def times_beside(model: Model) -> dict[str, float]:
    """Milliseconds of a batch outside the step: its distinct rows, all of its arrays, and its metrics."""
    layouts, batches = model.state.layouts, [feed.batch for feed in model.feeds]
    rows = model.config.batch.rows
    plans = [
        _timed(lambda b=b: [pad_plan(one, plan_table(one, b.rows.ids, {}), rows) for one in layouts])
        for b in batches
    ]
    feeds = [_timed(lambda b=b: make_feed(b, layouts, rows)) for b in batches]
    metrics = ProgressiveMetrics()
    scored = [
        _timed(lambda r=b.rows: metrics.update(r.label, r.label, r.metric_weight, r.query_id))
        for b in batches
    ]
    return {
        "distinct_rows_ms": median_ms(plans),
        "feed_ms": median_ms(feeds),
        "metrics_ms": median_ms(scored),
    }


def measure(setting: Setting) -> dict[str, Any]:
    """Of AdaGrad, which the targets are about, and of Shampoo."""
    found: dict[str, Any] = {}
    for name, model in (("adagrad", make_model(setting.size)), ("shampoo", make_model(setting.size, {}))):
        model.seconds()
        if name == "shampoo":
            # As it is late in a run, when exchanges of roots are rare: none is in the few steps that are traced.
            settle(model.state.dense_optimizer.core)
            model.seconds()
        step_ms = median_ms([model.seconds() for _ in range(setting.rounds)])
        operations, graph, traced = trace_steps(model)
        unnamed = {o: ms for o, ms in operations.items() if part_of(o)[0] == OTHER}
        found[name] = {
            "step_ms": step_ms,
            "graph_ms": graph,
            "traced_step_ms": traced,
            "around_graph_ms": traced - graph,
            "thread_ms": sum(operations.values()),
            "parts": by_part(operations),
            "largest_of_none": dict(sorted(unnamed.items(), key=lambda one: -one[1])[:SHOWN]),
            "beside": times_beside(model),
        }
    return {**found, "parts": found["adagrad"]["parts"]}


def report(found: Mapping[str, Any]) -> str:
    """The tables."""
    shown = []
    for name in ("adagrad", "shampoo"):
        one = found[name]
        rows = [
            [
                part,
                f"{own['forward_ms'] + own['backward_ms']:.2f}",
                f"{own['backward_ms']:.2f}",
                f"{own['share']:.1%}",
            ]
            for part, own in one["parts"].items()
        ]
        head = [f"{name}: part of the graph", "ms of threads", "of them for gradients", "share"]
        shown.append(table(head, rows))
        shown.append(
            f"step {one['step_ms']:.1f} ms; while traced {one['traced_step_ms']:.1f} ms, of them graph "
            f"{one['graph_ms']:.1f} ms, threads of the graph {one['thread_ms']:.1f} ms, "
            f"around it (arrays handed over, Python) {one['around_graph_ms']:.1f} ms; "
            f"reading thread {one['beside']['feed_ms']:.1f} ms, of them distinct rows "
            f"{one['beside']['distinct_rows_ms']:.1f} ms; metrics {one['beside']['metrics_ms']:.2f} ms"
        )
        largest = ", ".join(f"{op} {ms:.2f}" for op, ms in one["largest_of_none"].items())
        shown.append(f"the longest in none of the parts, ms: {largest}")
    return "\n\n".join(shown)
