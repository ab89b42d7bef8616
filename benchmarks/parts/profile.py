"""Profiles the parts of the step with TensorFlow's profiler, and times reading and metrics outside it.

An operation and its gradient (``gradient_tape/...``) belong to the part whose name scope contains them. Times are
thread times of operations: with two threads busy, they add up to more than the step. The time of an operation
excludes the operations nested in it.
"""

import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from bench_shampoo import settle
from ctr_model import Model, make_model
from parts.setting import Setting
from runner import compare, timed
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from ctr.eval.progressive import ProgressiveMetrics
from ctr.training.feed import make_feed
from ctr.training.tables.plan import pad_plan, plan_table

SCOPES = (
    *("gather", "look_up", "crosses", "deep", "loss"),
    *("row_update", "dense_update", "statistics", "precondition"),
)
OTHER = "none of them"
LARGEST_OPERATIONS = 12
_OPERATION = re.compile(r"^([\w./>-]+):(\w+)$")
"""An operation of the graph in a trace: its name, a colon, and its type."""
_NUMBER = re.compile(r"_\d+$")
_GRADIENT = "gradient_tape"


def read_planes(folder: Path) -> Iterator[tuple[dict[int, str], dict[int, str], Iterable[xplane_pb2.XEvent]]]:
    """Yields for each line of a trace the names of events and of their stats, by id, and the line's events."""
    space = xplane_pb2.XSpace()
    space.ParseFromString(next(folder.rglob("*.xplane.pb")).read_bytes())
    for plane in space.planes:
        names = {number: metadata.name for number, metadata in plane.event_metadata.items()}
        facts = {number: metadata.name for number, metadata in plane.stat_metadata.items()}
        yield from ((names, facts, line.events) for line in plane.lines)


def read_trace(folder: Path) -> tuple[dict[str, float], float]:
    """Returns the milliseconds of each operation in a trace, summed over runs, and of the graph's calls."""
    operations: dict[str, float] = defaultdict(float)
    graph = 0.0
    for names, facts, line in read_planes(folder):
        events = []
        for event in line:
            name = names[event.metadata_id]
            if name.startswith("EagerLocalExecute: __inference_"):
                graph += event.duration_ps / 1e9
            elif _OPERATION.match(name := _called(name, event, facts)):
                events.append((event.offset_ps, event.duration_ps, name))
        for name, picoseconds in exclusive_times(events):
            operations[name] += picoseconds / 1e9
    return dict(operations), graph


def _called(name: str, event: xplane_pb2.XEvent, facts: Mapping[int, str]) -> str:
    """Returns an event's name; for a function call, such as of XLA-compiled code, the calling operation's name."""
    if name != "ExecutorState::ProcessAsync::Start":
        return name
    texts = {facts[stat.metadata_id]: stat.str_value for stat in event.stats}
    return f"{texts.get('name')}:{texts.get('kernel_type')}"


def part_of(name: str) -> tuple[str, str]:
    """Returns the innermost part that contains an operation, by its name, and ``forward`` or ``backward``."""
    scopes = name.rpartition(":")[0].split("/")
    way = "backward" if _GRADIENT in scopes else "forward"
    plain = (_NUMBER.sub("", scope) for scope in reversed(scopes[:-1]))
    return next((scope for scope in plain if scope in SCOPES), OTHER), way


def exclusive_times(events: Iterable[tuple[int, int, str]]) -> Iterator[tuple[str, int]]:
    """Yields each event's name and duration without the events of the same thread that are nested in it.

    Args:
        events: begin, duration and name of each event of a thread.
    """
    open_events: list[list[Any]] = []
    for begin, duration, name in sorted(events, key=lambda event: (event[0], -event[1])):
        while open_events and open_events[-1][0] <= begin:
            _, inner, closed = open_events.pop()
            yield closed, inner
        if open_events:
            open_events[-1][1] -= duration
        open_events.append([begin + duration, duration, name])
    yield from ((name, inner) for _, inner, name in open_events)


def by_part(operations: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Returns the milliseconds of each part, forward and backward, and its share of the total."""
    parts = {name: {"forward_ms": 0.0, "backward_ms": 0.0} for name in (*SCOPES, OTHER)}
    for operation, spent in operations.items():
        part, way = part_of(operation)
        parts[part][f"{way}_ms"] += spent
    total = sum(operations.values())
    return {name: {**ms, "share": sum(ms.values()) / total} for name, ms in parts.items()}


def trace_steps(model: Model) -> dict[str, Any]:
    """Traces one turn; returns its times per step, in milliseconds, in total and by part."""
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        traced = model.turn()["ms"]
        tf.profiler.experimental.stop()
        operations, graph = read_trace(Path(folder))
    steps = len(model.feeds)
    operations, graph = {name: spent / steps for name, spent in operations.items()}, graph / steps
    unnamed = {name: ms for name, ms in operations.items() if part_of(name)[0] == OTHER}
    return {
        "graph_ms": graph,
        "traced_step_ms": traced,
        "around_graph_ms": traced - graph,
        "thread_ms": sum(operations.values()),
        "parts": by_part(operations),
        "largest_of_none": dict(sorted(unnamed.items(), key=lambda item: -item[1])[:LARGEST_OPERATIONS]),
    }


def times_beside(model: Model) -> dict[str, float]:
    """Returns a batch's milliseconds outside the step: for its distinct rows, for all its arrays, and for metrics."""
    layouts, batches = model.state.layouts, [feed.batch for feed in model.feeds]
    rows, metrics = model.config.batch.rows, ProgressiveMetrics()

    def plan() -> None:
        for batch in batches:
            for layout in layouts:
                pad_plan(layout, plan_table(layout, batch.rows.ids, {}), rows)

    def feed() -> None:
        for batch in batches:
            make_feed(batch, layouts, rows)

    def score() -> None:
        for batch in batches:
            examples = batch.rows
            metrics.update(examples.label, examples.label, examples.metric_weight, examples.query_id)

    works = {"distinct_rows_ms": plan, "feed_ms": feed, "metrics_ms": score}
    return {name: timed(work, len(batches))()["ms"] for name, work in works.items()}


def measure(setting: Setting) -> dict[str, Any]:
    """Profiles the step with AdaGrad, to which the targets apply, and with Shampoo."""
    results: dict[str, Any] = {}
    for name, model in (("adagrad", make_model(setting.size)), ("shampoo", make_model(setting.size, {}))):
        model.turn()
        if name == "shampoo":
            # As late in a run, when root exchanges are rare: none is among the few traced steps.
            settle(model.state.dense_optimizer.core)
        step_ms = compare({"step": model.turn}, setting.rounds)["step"]["ms"]
        results[name] = {"step_ms": step_ms, **trace_steps(model), **times_beside(model)}
    return results
