"""One pass over a log: every batch is scored by the weights from before it, and then learned from."""

import json
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ctr.data.log import log_sha256
from ctr.data.sample_log import applied_samplings
from ctr.data.sidecar import sidecar_folder
from ctr.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.device import describe_environment, make_deterministic, resolve_compute_dtype, resolve_jit
from ctr.training.feed import Feed
from ctr.training.inputs import Inputs, check_rows, open_inputs, read_feeds
from ctr.training.record import record_predictions
from ctr.training.run import Run, root_report
from ctr.training.run_directory import (
    adopt_config,
    adopt_environment,
    adopt_schema,
    only_process,
    write_json,
    write_metric_states,
)
from ctr.training.snapshot import Exporter, take_snapshot
from ctr.training.state import TrainState
from ctr.training.step import Steps, make_steps
from ctr.training.weight_spectra import write_weight_spectra

# What is left out of the promise that runs of the same configuration give the same results.
TIMING = ("examples_per_second", "step_ms_p50", "shampoo_seconds_waited", "shampoo_seconds_computing")

Progress = Callable[[int, dict[str, Any]], None]


def train(
    log: Path,
    config: TrainConfig,
    run: Path,
    progress: Progress | None = None,
    record: str | None = None,
    exporter: Exporter | None = None,
) -> dict[str, Any]:
    """Trains one pass over ``log``, or goes on with it where ``run``'s newest checkpoint stands.

    Args:
        log: a folder with an example log.
        config: what to compute.
        run: the run directory; a new one, or one begun under the same configuration.
        progress: called after every batch with the position in the log and the last window's metrics.
        record: publishes the predictions as this sidecar of the log, after the pass.
        exporter: writes a servable model of a snapshot, wherever ``config.export`` asks for one; for instance
            ``ctr.serving.export.export_from_run``.

    Returns:
        The content of summary.json; with ``record`` also ``recorded``, what was published.

    Raises:
        InputError: bad log, bad configuration for this log, a run directory of another configuration,
            environment or log, or in use, or exports asked for without an exporter.
    """
    if config.export is not None and exporter is None:
        raise InputError(
            "config: export: nothing here can export; ctr train can, or train(..., exporter=...)"
        )
    inputs = open_inputs(log, config)
    if record is not None:
        _check_record(log, config, run, record)
    if not (run / "checkpoints").exists():
        check_rows(inputs)
    layouts = config.model.table_layouts(inputs.schema)
    adopt_config(run, config)
    with only_process(run):
        adopt_schema(run, inputs.schema)
        adopt_environment(run, describe_environment(config))
        make_deterministic(config.seed)
        state = TrainState(layouts, config, resolve_compute_dtype(config), inputs.families)
        others = {name: other.manifests for name, other in inputs.others.items()}
        current = Run(run, config, state, inputs.schema, inputs.log.manifests, others, inputs.sidecars)
        try:
            timing = _pass_over(inputs, current, progress, exporter)
        finally:
            current.close()
        summary = _finish(inputs, current, timing)
        if record is not None:
            summary["recorded"] = record_predictions(log, run, record, current.position.examples)
        return summary


def _check_record(log: Path, config: TrainConfig, run: Path, name: str) -> None:
    """Refuses before the pass what could not be published after it."""
    folder = sidecar_folder(log, name)
    if not config.record_predictions:
        raise InputError(f"--record {name} needs the run's predictions: record_predictions is false")
    distillation = config.objective.distillation
    if distillation is not None and distillation.teacher == name:
        teacher_log = log if distillation.log is None else Path(distillation.log)
        if teacher_log.resolve() == log.resolve():
            raise InputError(f"--record {name}: the run's own teacher has this name; another one is needed")
    if folder.exists() and any(folder.iterdir()) and not (run / "summary.json").exists():
        raise InputError(
            f"--record {name}: {folder} is there already, from another run; another name is needed"
        )


class _Learner:
    """Learns from a stream of feeds; under a label delay, when their labels are known."""

    def __init__(self, steps: Steps, current: Run) -> None:
        self.steps = steps
        self.current = current
        self.seconds: list[float] = []

    def learn(self, feed: Feed) -> tuple[np.ndarray, list[np.ndarray]]:
        """Scores a batch and learns from it; returns the logits and slices of its own rows."""
        current = self.current
        rows = len(feed.batch.rows)
        counts = [rows, *(0 if other is None else len(other.rows) for other in feed.others)]
        logit, slices = np.zeros(0, np.float32), [np.zeros(0, np.int32) for _ in current.state.families]
        applied = True
        if sum(counts):
            begun = time.perf_counter()
            result = self.steps.learn(feed, current.config.ramps_at(current.position.trained_examples))
            logit, slices = result.logit.numpy(), [index.numpy() for index in result.slices]
            applied = bool(result.applied)
            self.seconds.append(time.perf_counter() - begun)
        begin = rows
        for source, (other, count) in enumerate(zip(feed.others, counts[1:], strict=True), 1):
            if other is not None:
                end = begin + count
                current.record_other(source, other, logit[begin:end], [index[begin:end] for index in slices])
                begin = end
        current.learned(feed.batch, applied)
        return logit[:rows], [index[:rows] for index in slices]

    def score(self, feed: Feed) -> tuple[np.ndarray, list[np.ndarray]]:
        """Scores a batch; returns as ``learn`` does."""
        rows = len(feed.batch.rows)
        if not rows:
            return np.zeros(0, np.float32), [np.zeros(0, np.int32) for _ in self.current.state.families]
        logit, slices = self.steps.score(
            feed, self.current.config.ramps_at(self.current.position.trained_examples)
        )
        return logit.numpy()[:rows], [index.numpy()[:rows] for index in slices]


def _scored_feeds(
    inputs: Inputs, current: Run, learner: _Learner
) -> Generator[tuple[Feed, np.ndarray, list[np.ndarray]], None, None]:
    """Each batch in the order of the log with its logits and slices, learned from when its time has come."""
    position, layouts = current.position, current.state.layouts
    delay = round(inputs.config.label_delay * 1_000_000)
    learned = read_feeds(inputs, layouts, position.learned, position.others)
    if not delay:
        try:
            for feed in learned:
                yield feed, *learner.learn(feed)
        finally:
            learned.close()
        return
    # A stream of its own, so that the batches in between need not be kept.
    scored = read_feeds(inputs, layouts, position.examples)
    waiting = next(learned, None)
    try:
        for feed in scored:
            known = feed.batch.times[0] - delay
            while waiting is not None and waiting.batch.times[1] <= known:
                learner.learn(waiting)
                waiting = next(learned, None)
            yield feed, *learner.score(feed)
    finally:
        scored.close()
        learned.close()


def _pass_over(
    inputs: Inputs, current: Run, progress: Progress | None, exporter: Exporter | None
) -> dict[str, float]:
    config, position = current.config, current.position
    learner = _Learner(make_steps(current.state, config, resolve_jit(config)), current)
    scored = _scored_feeds(inputs, current, learner)
    paths = {"": inputs.log.path, **{name: other.path for name, other in inputs.others.items()}}
    examples = examples_at_window = 0
    window_line: dict[str, Any] = {}
    # A window that was begun before a resume is timed from the resume on.
    begun = window_begun = time.perf_counter()
    try:
        for feed, logit, slices in scored:
            behind = position.examples
            current.record(feed.batch, logit, slices)
            examples += len(feed.batch.rows)
            current.check_rejects(paths)
            if current.window_is_full():
                now = time.perf_counter()
                rate = (examples - examples_at_window) / (now - window_begun)
                examples_at_window, window_begun = examples, now
                window_line = current.close_window(
                    {"examples_per_second": round(rate, 1), **_root_seconds(current)}
                )
            if progress is not None:
                progress(position.examples, window_line)
            # Before the checkpoint: a run that is killed between the two makes it again, none is left out.
            if config.export is not None and exporter is not None:
                every = config.export.every_examples
                if behind // every < position.examples // every:
                    exporter(take_snapshot(current))
            if position.examples - current.saved_at >= config.checkpoint.every_examples:
                current.save()
    finally:
        scored.close()
    seconds = time.perf_counter() - begun
    # Rows that a sample dropped, or that lie after the time range, are behind the run too.
    position.examples = inputs.log.rows
    if not config.label_delay:
        position.learned = position.examples
    if current.window.traffic.examples:
        current.close_window({})
    if config.export is not None and exporter is not None:
        exporter(take_snapshot(current))
    if position.examples != current.saved_at:
        current.save()
    if not examples:
        return {}
    return {
        "examples_per_second": round(examples / seconds, 1),
        "step_ms_p50": round(1000 * float(np.median(learner.seconds)), 3) if learner.seconds else 0.0,
        **_root_seconds(current),
    }


def _root_seconds(current: Run) -> dict[str, float]:
    timing = current.state.shampoo.timing()
    return {f"shampoo_{name}": round(seconds, 3) for name, seconds in timing.items()}


def _finish(inputs: Inputs, current: Run, timing: Mapping[str, float]) -> dict[str, Any]:
    summary_path = current.folder / "summary.json"
    position = current.position
    summary = {
        **current.total.summary(),
        "log_rows": position.examples,
        "batches": position.batches,
        "trained_examples": position.trained_examples,
        "trained_rows": position.trained_rows,
        "per_query_auc_of_sample": _sampled_queries(inputs),
        "skipped_steps": position.skipped_steps,
        "skipped_ranges": position.skipped_ranges,
        "rejected_rows": position.rejected_rows,
        "nonfinite_predictions": position.nonfinite_predictions,
        **current.state.parameter_counts(),
        "duals": current.duals(),
        "constraint_logs": {name: metrics.summary() for name, metrics in current.others.items()},
        "shampoo": root_report(current.state),
        "config_sha256": current.config.sha256(),
        "log_sha256": log_sha256(current.manifests),
        "constraint_logs_sha256": {name: log_sha256(log.manifests) for name, log in inputs.others.items()},
        "sidecars_sha256": current.sidecar_hashes(),
        **(timing or _timing_before(summary_path)),
    }
    write_metric_states(current.folder, current.total.to_arrays())
    write_weight_spectra(current.folder, current.state)
    write_json(summary_path, summary)
    return summary


def _sampled_queries(inputs: Inputs) -> bool:
    """Whether PerQueryAUC is that of queries as a sample left them, which is not an estimate of full traffic's."""
    sampling = inputs.config.sampling
    only_kept = sampling is not None and sampling.score == "kept"
    return only_kept or bool(applied_samplings(inputs.log.path))


def _timing_before(summary_path: Path) -> dict[str, float | None]:
    """A finished run that is asked for again has nothing left to time: its first timing stands, if any."""
    try:
        before = json.loads(summary_path.read_bytes())
    except (FileNotFoundError, ValueError):
        before = {}
    return {key: before.get(key) for key in TIMING}
