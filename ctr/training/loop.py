"""One pass over a log: every batch is scored by the weights from before it, and then learned from."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ctr.data.batches import Batch, whole_query_batches
from ctr.data.log import Manifest, log_sha256, read_manifests, read_schema
from ctr.data.reader import read_rows
from ctr.data.schema import Schema
from ctr.errors import InputError
from ctr.eval.progressive import ProgressiveMetrics
from ctr.files import remove_temporaries
from ctr.training import checkpoint
from ctr.training.config import TrainConfig
from ctr.training.device import describe_environment, make_deterministic, resolve_compute_dtype, resolve_jit
from ctr.training.feed import Feed, make_feed, read_ahead
from ctr.training.run_directory import (
    GrowingFile,
    PredictionWriter,
    adopt_config,
    adopt_environment,
    describe_rejects,
    only_process,
    write_json,
    write_metric_states,
)
from ctr.training.state import TrainState, table_layouts
from ctr.training.step import make_step

# Tables that a single window has too few rows for.
_WHOLE_RUN_TABLES = frozenset({"calibration_buckets", "per_query_auc_by_size", "calibration_slices"})

# What is left out of the promise that runs of the same configuration give the same results.
TIMING = ("examples_per_second", "step_ms_p50", "shampoo_seconds_waited", "shampoo_seconds_computing")

Progress = Callable[[int, dict[str, Any]], None]


# A step that is skipped again and again must not make the checkpoints grow.
_RANGES_NOTED = 100


@dataclass
class Position:
    """Where a run stands, and what went wrong on the way.

    Attributes:
        examples: rows of the log that are behind it, rejects included.
        batches: batches that are behind it.
        skipped_steps: steps that changed nothing because the loss or a gradient was not finite.
        skipped_ranges: the rows [begin, end) of the log of the first such steps.
        rejected_rows: faulty rows.
        nonfinite_predictions: rows whose prediction was not finite.
        examples_at_window: ``examples`` when the present window of the metrics began.
    """

    examples: int = 0
    batches: int = 0
    skipped_steps: int = 0
    skipped_ranges: list[list[int]] = field(default_factory=list)
    rejected_rows: int = 0
    nonfinite_predictions: int = 0
    examples_at_window: int = 0


class _Run:
    """The state of a pass besides the weights, and its files."""

    def __init__(
        self, run: Path, config: TrainConfig, state: TrainState, schema: Schema, manifests: list[Manifest]
    ) -> None:
        self.single_valued = schema.single_valued
        self.folder = run
        self.config = config
        self.state = state
        self.manifests = manifests
        self.position = Position()
        self.total = ProgressiveMetrics(config.metrics.slices)
        self.window = ProgressiveMetrics(config.metrics.slices)
        self.window_times = [0, 0]
        remove_temporaries(run)
        saved = checkpoint.restore_newest(run / "checkpoints")
        checkpoint.clean_up(run / "checkpoints", config.checkpoint.keep)
        lengths = {"metrics": 0, "rejects": 0}
        parts: list[str] = []
        if saved is not None:
            lengths, parts = self._restore(*saved)
        self.saved_at = self.position.examples
        self.predictions = PredictionWriter(run / "predictions", parts) if config.record_predictions else None
        self.metrics_file = GrowingFile(run / "metrics.jsonl", lengths["metrics"])
        self.rejects_file = GrowingFile(run / "rejects.jsonl", lengths["rejects"])
        # TensorBoard's events are written anew from metrics.jsonl: those from after the checkpoint disappear.
        for old in (run / "tensorboard").glob("events.out.tfevents.*"):
            old.unlink()
        self.events = tf.summary.create_file_writer(str(run / "tensorboard"))
        for line in (run / "metrics.jsonl").read_bytes().splitlines():
            self._write_events(json.loads(line))

    def _write_events(self, line: dict[str, Any]) -> None:
        with self.events.as_default(step=line["examples"]):
            for name, value in line.items():
                if isinstance(value, int | float) and name != "examples":
                    tf.summary.scalar(f"window/{name}", value)

    def _restore(
        self, arrays: dict[str, np.ndarray], state: dict[str, Any]
    ) -> tuple[dict[str, int], list[str]]:
        consumed = state["consumed_intervals"]
        if state["consumed_sha256"] != log_sha256(self.manifests[:consumed]):
            raise InputError(
                f"{self.folder}: the log is not the one that this run was trained on: "
                f"its first {consumed} intervals differ; use another folder to start anew"
            )
        groups: dict[str, dict[str, np.ndarray]] = {"weights": {}, "total": {}, "window": {}}
        for name, array in arrays.items():
            group, _, key = name.partition("|")
            groups[group][key] = array
        try:
            self.state.restore(groups["weights"])
        except ValueError as error:
            raise InputError(f"{self.folder}: {error}") from None
        self.total = ProgressiveMetrics.from_arrays(groups["total"])
        self.window = ProgressiveMetrics.from_arrays(groups["window"])
        self.window_times = state["window_times"]
        self.position = Position(**state["position"])
        return state["lengths"], state["prediction_parts"]

    def save(self) -> None:
        """Writes a checkpoint of everything up to the current position."""
        if self.predictions is not None:
            self.predictions.flush(self.position.examples)
        begins = np.cumsum([0, *(manifest.rows for manifest in self.manifests)])
        consumed = int(np.searchsorted(begins, self.position.examples))
        arrays = {f"weights|{name}": array for name, array in self.state.arrays().items()}
        arrays |= {f"total|{name}": array for name, array in self.total.to_arrays().items()}
        arrays |= {f"window|{name}": array for name, array in self.window.to_arrays().items()}
        content = {
            "position": vars(self.position),
            "window_times": self.window_times,
            "consumed_intervals": consumed,
            "consumed_sha256": log_sha256(self.manifests[:consumed]),
            "lengths": {"metrics": self.metrics_file.sync(), "rejects": self.rejects_file.sync()},
            "prediction_parts": self.predictions.parts if self.predictions is not None else [],
        }
        checkpoint.save(
            self.folder / "checkpoints", self.position.examples, arrays, content, self.config.checkpoint.keep
        )
        self.saved_at = self.position.examples

    def record(self, batch: Batch, logit: np.ndarray, applied: bool) -> None:
        """Takes the scores of a batch into metrics, predictions and rejects."""
        rows = batch.rows
        for reject in describe_rejects(batch):
            self.rejects_file.append(reject)
        self.position.examples = batch.end
        self.position.batches += 1
        self.position.rejected_rows += len(batch.rejects)
        if not len(rows):
            return
        if not applied:
            self.position.skipped_steps += 1
            self.position.skipped_ranges += [[rows.first, batch.end]]
            del self.position.skipped_ranges[_RANGES_NOTED:]
        if not self.window.traffic.examples:
            self.window_times[0] = int(rows.query_time[0])
        self.window_times[1] = int(rows.query_time[-1])
        logit = self._finite(logit)
        slices = {name: rows.ids[:, self.single_valued.index(name)] for name in self.window.slices}
        self.window.update(rows.label, logit, rows.metric_weight, rows.query_id, slices)
        if self.predictions is not None:
            self.predictions.add(batch, logit)

    def _finite(self, logit: np.ndarray) -> np.ndarray:
        """A prediction that is not finite is counted and scored as what it would have been without a model."""
        bad = ~np.isfinite(logit)
        if not bad.any():
            return logit
        self.position.nonfinite_predictions += int(bad.sum())
        prior = self.config.model.prior
        return np.where(bad, np.float32(math.log(prior / (1 - prior))), logit)

    def close_window(self, extra: dict[str, float]) -> dict[str, Any]:
        """Writes the line of the window that ends here (with ``extra``), and begins the next one."""
        summary = self.window.summary()
        line = {
            "examples": self.position.examples,
            "window_begin": self.window_times[0],
            "window_end": self.window_times[1],
            "window_examples": summary.pop("examples"),
            **{name: value for name, value in summary.items() if name not in _WHOLE_RUN_TABLES},
            "alpha2": self.config.model.crosses.ramp.at(self.position.examples),
            **{f"shampoo_{name}": value for name, value in _root_report(self.state).items()},
            **extra,
        }
        self.metrics_file.append(line)
        self._write_events(line)
        self.events.flush()
        self.total.merge(self.window)
        self.window = ProgressiveMetrics(self.config.metrics.slices)
        self.position.examples_at_window = self.position.examples
        return line

    def close(self) -> None:
        """Closes the files."""
        self.metrics_file.close()
        self.rejects_file.close()
        self.events.close()


def train(log: Path, config: TrainConfig, run: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Trains one pass over ``log``, or goes on with it where ``run``'s newest checkpoint stands.

    Args:
        log: a folder with an example log.
        config: what to compute.
        run: the run directory; a new one, or one begun under the same configuration.
        progress: called after every batch with the position in the log and the last window's metrics.

    Returns:
        The content of summary.json.

    Raises:
        InputError: bad log, bad configuration for this log, or a run directory of another configuration,
            environment or log, or in use.
    """
    schema = read_schema(log)
    manifests = read_manifests(log)
    if not sum(manifest.rows for manifest in manifests):
        raise InputError(f"{log}: the log has no rows")
    _check_slices(schema, config)
    layouts = table_layouts(schema, config)
    adopt_config(run, config)
    with only_process(run):
        adopt_environment(run, describe_environment(config))
        make_deterministic(config.seed)
        state = TrainState(layouts, config, resolve_compute_dtype(config))
        current = _Run(run, config, state, schema, manifests)
        try:
            timing = _pass_over(log, schema, current, progress)
        finally:
            current.close()
        return _finish(current, timing)


def _check_slices(schema: Schema, config: TrainConfig) -> None:
    for name in config.metrics.slices:
        if name not in schema.single_valued:
            raise InputError(
                f"config: metrics.slices names {name}, which is no single-valued feature of the log; "
                f"allowed: {', '.join(schema.single_valued)}"
            )


def _pass_over(log: Path, schema: Schema, current: _Run, progress: Progress | None) -> dict[str, float]:
    config, position = current.config, current.position
    step = make_step(current.state, config, resolve_jit(config))
    started_at = position.examples
    batches = whole_query_batches(
        read_rows(log, schema, current.manifests, position.examples),
        config.batch.rows,
        config.batch.largest_query,
    )
    feeds = read_ahead(make_feed(batch, current.state.layouts, config.batch.rows) for batch in batches)
    step_seconds: list[float] = []
    window_line: dict[str, Any] = {}
    # A window that was begun before a resume is timed from the resume on.
    timed_from = started_at
    begun = window_begun = time.perf_counter()
    try:
        for feed in feeds:
            alpha2 = config.model.crosses.ramp.at(position.examples)
            step_begun = time.perf_counter()
            logit, applied = _score_and_learn(step, feed, alpha2)
            step_seconds.append(time.perf_counter() - step_begun)
            current.record(feed.batch, logit, applied)
            if position.rejected_rows > config.max_rejected_share * max(position.examples, 1000):
                raise InputError(
                    f"{log}: {position.rejected_rows} of the first {position.examples} rows are faulty "
                    f"(see {current.folder / 'rejects.jsonl'}); allowed: a share of {config.max_rejected_share} "
                    "(max_rejected_share)"
                )
            if position.examples - position.examples_at_window >= config.metrics.window_examples:
                now = time.perf_counter()
                rate = (position.examples - timed_from) / (now - window_begun)
                timed_from, window_begun = position.examples, now
                window_line = current.close_window(
                    {"examples_per_second": round(rate, 1), **_root_seconds(current)}
                )
            if progress is not None:
                progress(position.examples, window_line)
            if position.examples - current.saved_at >= config.checkpoint.every_examples:
                current.save()
    finally:
        feeds.close()
    seconds = time.perf_counter() - begun
    if current.window.traffic.examples:
        current.close_window({})
    if position.examples != current.saved_at:
        current.save()
    if not step_seconds:
        return {}
    return {
        "examples_per_second": round((position.examples - started_at) / seconds, 1),
        "step_ms_p50": round(1000 * float(np.median(step_seconds)), 3),
        **_root_seconds(current),
    }


def _root_report(state: TrainState) -> dict[str, float | int]:
    report = state.shampoo.report()
    # Here skipped_steps tells, which also knows of the rows' gradients.
    del report["nonfinite_steps"]
    return report


def _root_seconds(current: _Run) -> dict[str, float]:
    timing = current.state.shampoo.timing()
    return {f"shampoo_{name}": round(seconds, 3) for name, seconds in timing.items()}


def _score_and_learn(
    step: Callable[[Feed, float], Any], feed: Feed, alpha2: float
) -> tuple[np.ndarray, bool]:
    rows = len(feed.batch.rows)
    if not rows:
        return np.zeros(0, np.float32), True
    result = step(feed, alpha2)
    return result.logit.numpy()[:rows], bool(result.applied)


def _finish(current: _Run, timing: dict[str, float]) -> dict[str, Any]:
    summary_path = current.folder / "summary.json"
    position = current.position
    summary = {
        **current.total.summary(),
        "log_rows": position.examples,
        "batches": position.batches,
        "skipped_steps": position.skipped_steps,
        "skipped_ranges": position.skipped_ranges,
        "rejected_rows": position.rejected_rows,
        "nonfinite_predictions": position.nonfinite_predictions,
        **current.state.parameter_counts(),
        "shampoo": _root_report(current.state),
        "config_sha256": current.config.sha256(),
        "log_sha256": log_sha256(current.manifests),
        **(timing or _timing_before(summary_path)),
    }
    write_metric_states(current.folder, current.total.to_arrays())
    write_json(summary_path, summary)
    return summary


def _timing_before(summary_path: Path) -> dict[str, float | None]:
    """A finished run that is asked for again has nothing left to time: its first timing stands, if any."""
    try:
        before = json.loads(summary_path.read_bytes())
    except (FileNotFoundError, ValueError):
        before = {}
    return {key: before.get(key) for key in TIMING}
