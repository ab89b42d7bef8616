"""A run that goes on, in one process, as its log grows; between its batches it scores what it is asked to."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ctr.data.batches import set_rejects_apart
from ctr.data.reader import Rows
from ctr.io.errors import InputError
from ctr.training.analysis.weight_spectra import write_weight_spectra
from ctr.training.config import TrainConfig
from ctr.training.device import describe_environment, make_deterministic, resolve_compute_dtype, resolve_jit
from ctr.training.feed import make_feed
from ctr.training.follow.published import Publications
from ctr.training.inputs import Inputs, check_rows, open_inputs
from ctr.training.learner import Learner, Phase, announced, scored_feeds
from ctr.training.preflight import LearningError
from ctr.training.rows_to_score import rows_to_score
from ctr.training.run.directory import (
    adopt_config,
    adopt_environment,
    adopt_schema,
    only_process,
    write_json,
    write_metric_states,
    write_timeline,
)
from ctr.training.run.id_counts import write_data_health
from ctr.training.run.position import check_rejects
from ctr.training.run.results import (
    TIMING,
    learning_failure,
    losses_text,
    lost_rows,
    results,
    timing_before,
)
from ctr.training.run.rollback import RollbackNeeded, is_export_due, query_times
from ctr.training.run.run import Run, finite_logits
from ctr.training.run.snapshot import Exporter, take_snapshot
from ctr.training.state import TrainState
from ctr.training.step import TrainStep, scored_part

__all__ = ["TIMING", "Advance", "Phase", "Progress", "Session", "open_session"]

log = logging.getLogger(__name__)

Progress = Callable[[int, dict[str, Any]], None]

_SCORED_TOGETHER = 8192


class Advance(NamedTuple):
    """What an ``advance`` did.

    Attributes:
        rows: of the log that it passed, also those that were faulty or not selected; below 0 when it went back.
        waiting: published rows that are not passed yet: from the first one on that something is still to be done with.
        windows: the lines of metrics.jsonl that it wrote.
    """

    rows: int
    waiting: int
    windows: list[dict[str, Any]]


@contextmanager
def open_session(
    log: Path,
    config: TrainConfig,
    run: Path,
    progress: Progress | None = None,
    exporter: Exporter | None = None,
    wait_for_sidecars: bool = False,
    phase: Phase | None = None,
) -> Iterator["Session"]:
    """Begins a run, or goes on with it where its newest checkpoint stands; holds its folder until the block ends.

    What was not saved when the block ends is computed again by the next session.

    Args:
        log: a folder with an example log, which may grow.
        config: what to compute.
        run: the run directory; a new one, or one begun under the same configuration.
        progress: called after every batch with the position in the log and the metrics of the pass so far:
            ``per_query_auc``, ``auc``, ``logloss``, ``calibration_bias``, ``calibration_ratio``, None where undefined.
            They may be those of a few batches before, and AUC that of the last window.
        exporter: writes a servable model of a snapshot, wherever ``config.export`` asks for one; for instance
            ``ctr.serving.export.export_from_run``.
        wait_for_sidecars: an interval of the log that a sidecar is not published for waits, and those after it;
            else it is refused where the configuration needs what the sidecar says.
        phase: called with a word when something other than learning takes time (``checking rows``, ``compiling``),
            and with an empty one when that is over.

    Raises:
        InputError: bad log, bad configuration for this log, a run directory of another configuration,
            environment or log, or in use, or exports asked for without an exporter.
    """
    if config.export is not None and exporter is None:
        raise InputError(
            "config: export: this session cannot export; use ctr train or train(..., exporter=...)"
        )
    inputs = open_inputs(log, config)
    publications = Publications(inputs, wait_for_sidecars)
    is_new = not (run / "checkpoints").exists()
    # What has waited may be long, and the wish to stop has to be heard (``advance``).
    check_first = is_new and not wait_for_sidecars
    if check_first:
        with announced(phase, "checking rows"):
            check_rows(inputs)
    layouts = config.model.table_layouts(inputs.schema)

    def begin() -> TrainState:
        make_deterministic(config.seed)
        return TrainState(layouts, config, resolve_compute_dtype(config), inputs.families)

    adopt_config(run, config)
    with only_process(run):
        adopt_schema(run, inputs.schema)
        adopt_environment(run, describe_environment(config))
        others = {name: other.manifests for name, other in inputs.others.items()}
        current = Run(
            run,
            config,
            begin(),
            inputs.schema,
            inputs.log.manifests,
            others,
            inputs.sidecars,
            lambda: begin().arrays(),
        )
        try:
            checked = inputs.log.rows if check_first else current.position.examples
            yield Session(publications, current, checked, progress, exporter, phase)
        finally:
            current.close()


class Session:
    """A run with its weights and compiled functions; see ``open_session``.

    Attributes:
        publications: what it reads, as it was published at the last ``look``.
        current: where it stands, and its metrics.
        learner: what it learns with.
    """

    def __init__(
        self,
        publications: Publications,
        current: Run,
        checked: int,
        progress: Progress | None,
        exporter: Exporter | None,
        phase: Phase | None = None,
    ) -> None:
        """Takes over an opened run. ``checked``: the rows of the log that ``check_rows`` has gone over."""
        self.publications = publications
        self.current = current
        self._checked = checked
        self._progress = progress
        self._exporter = exporter if current.config.export is not None else None
        jit = resolve_jit(current.config)
        self.learner = Learner(TrainStep(current.state, current.config, jit), current, jit, phase)
        self._running: dict[str, Any] = {}
        self._batches_shown = 0
        self._failed = False
        # Of advancing alone. A window that was begun before a resume is timed from the resume on.
        self._examples = self._examples_at_window = 0
        self._seconds = self._seconds_at_window = 0.0

    @property
    def inputs(self) -> Inputs:
        """What it reads, as it was published at the last ``look``."""
        return self.publications.inputs

    def look(self) -> bool:
        """Finds what was published since the last look, for little where there is nothing; whether there was anything.

        Raises:
            InputError: intervals seen before are not there or not what they were.
        """
        self._check_usable()
        new = self.publications.look()
        others = {name: other.manifests for name, other in self.inputs.others.items()}
        self.current.take_in(self.inputs.log.manifests, others)
        return new

    def advance(self, partial: bool = False, stop: Callable[[], bool] = lambda: False) -> Advance:
        """Scores and learns from what was published since, batch by batch.

        A batch that is not full waits for the intervals to come (unless ``batch.within_partitions``), and with a
        constraint log each batch waits until that log is published up to its time: so however the logs grew,
        weights, metrics and predictions are those of one pass over them. An interval that a sidecar has to know and
        does not know yet is refused before anything of it is learned from, or waits (``open_session``); the session
        can advance once the sidecar has it.

        Args:
            partial: leaves nothing waiting but for a sidecar. The last batch ends with the log, as in no pass over a
                longer log; a run that is resumed knows it from a checkpoint only (``save``). Under a label delay this
                is about scoring; what is learned from when is decided by the delay alone.
            stop: asked after each batch whether to leave the rest to another ``advance``.

        Raises:
            InputError: see ``look``; a sidecar says nothing of a new row; a damaged shard; too many faulty rows.
        """
        self.look()
        readable, before = self.publications.readable, self.current.position.examples
        if self._checked < readable.log.rows:
            if self.publications.has_more(self._checked) and not check_rows(readable, self._checked, stop):
                return Advance(0, self.inputs.log.rows - before, [])
            self._checked = readable.log.rows
        windows: list[dict[str, Any]] = []
        # Within a batch weights, metrics and position do not go together.
        self._failed = True
        while True:
            try:
                passed = self._pass_over(readable, partial, stop, windows)
                break
            except RollbackNeeded as needed:
                self._roll_back(needed)
                windows[:] = [w for w in windows if w["examples"] <= self.current.position.examples]
        self._failed = False
        return Advance(self.current.position.examples - before, self.inputs.log.rows - passed, windows)

    def _roll_back(self, needed: RollbackNeeded) -> None:
        failed, self._failed = self._failed, True
        log = self.inputs.log
        times = query_times(log.path, self.inputs.schema, log.manifests, needed.rows)
        self.current.roll_back(needed.rows, times, needed.reason)
        # As in the process that would go on if this one were killed now.
        self.learner.applied = None
        self._failed = failed

    def _check_usable(self) -> None:
        if self._failed:
            raise RuntimeError(
                f"{self.current.folder}: the session ended with an exception; open another one"
            )

    def _pass_over(
        self, inputs: Inputs, partial: bool, stop: Callable[[], bool], windows: list[dict[str, Any]]
    ) -> int:
        """Returns up to which position of the log nothing is left to do for now; adds the windows' lines."""
        current, position = self.current, self.current.position
        config = current.config
        paths = {"": inputs.log.path, **{name: other.path for name, other in inputs.others.items()}}
        held: list[int] = []
        stopped = False
        begun, seconds = time.perf_counter(), self._seconds
        scored = scored_feeds(inputs, self.learner, partial, held.append)
        try:
            for feed, logit, slices in scored if self.publications.has_more(position.examples) else ():
                behind = position.examples
                current.record(feed, logit, slices)
                self._examples += len(feed.batch.rows)
                self._seconds = seconds + time.perf_counter() - begun
                check_rejects(position, config.max_rejected_share, paths, current.folder / "rejects.jsonl")
                is_full = current.window_is_full()
                if is_full:
                    extra = {"examples_per_second": self._window_rate(), **self._root_seconds()}
                    windows.append(current.close_window(extra, self._histograms()))
                current.background.check()
                if self._progress is not None:
                    self._progress(position.examples, self._running_metrics(is_full))
                # Before the checkpoint: a run that is killed between the two makes it again, none is left out.
                if self._exporter is not None and config.export is not None:
                    limit = config.rollback.after_skipped_steps
                    is_due = is_export_due(limit, config.export.every_examples, behind, position)
                    if is_due and current.check_weights(self.learner.predicts()):
                        self._exporter(take_snapshot(current))
                if current.is_checkpoint_due():
                    current.check_weights(self.learner.predicts())
                    current.save()
                stopped = stop()
                if stopped:
                    break
        finally:
            scored.close()
        self._seconds = seconds + time.perf_counter() - begun
        if stopped:
            return position.examples
        passed = held[0] if held else max(position.examples, inputs.log.rows)
        if partial:
            # Rows that a sample dropped, or that lie after the time range, are behind the run too.
            position.examples = passed
            if not config.label_delay:
                position.learned = position.examples
        return passed

    def _running_metrics(self, is_window_end: bool) -> dict[str, Any]:
        """The metrics of the pass so far, computed anew so seldom that they cost nothing.

        After each of the first batches, later after every eighth one; AUC, which takes thirty times as long, after
        1, 2, 4, 8 ... of them, and with each window.
        """
        self._batches_shown += 1
        shown = self._batches_shown
        with_auc = is_window_end or not shown & (shown - 1)
        if with_auc or shown <= 32 or shown % 8 == 0:
            self._running |= self.current.total.running(self.current.window, with_auc)
        return dict(self._running)

    def _histograms(self) -> dict[str, np.ndarray]:
        return self.learner.weights_and_gradients() if self.current.config.tensorboard.histograms else {}

    def _window_rate(self) -> float:
        examples, seconds = self._examples - self._examples_at_window, self._seconds - self._seconds_at_window
        self._examples_at_window, self._seconds_at_window = self._examples, self._seconds
        return round(examples / seconds, 1)

    def score(self, rows: Rows | pa.Table) -> np.ndarray:
        """The logits, float32 [N], that the present weights give N rows; changes nothing.

        Args:
            rows: good rows of the log's features (``ctr.data.reader``), or a table of a shard's columns. Labels and
                weights are of no effect, and queries need not be whole.

        Raises:
            InputError: a faulty row, or rows of other features.
        """
        self._check_usable()
        good = rows_to_score(rows, self.inputs.schema)
        config = self.current.config
        # A call of the compiled function costs as much as a thousand rows.
        most = max(config.batch.rows, _SCORED_TOGETHER)
        logit = np.zeros(len(good), np.float32)
        for begin in range(0, len(good), most):
            end = min(begin + most, len(good))
            # Padded as the batches of the log are, so that nothing is compiled for it.
            feed = make_feed(
                set_rejects_apart(good.slice(begin, end)),
                self.current.state.layouts,
                config.batch.rows,
                scored_part(config.objective),
                self.inputs.families,
            )
            logit[begin:end] = self.learner.score(feed)[0]
        return finite_logits(logit, config.model.prior)

    def save(self) -> bool:
        """Writes a checkpoint, unless the newest one is of this position; it is on the disk when this returns.

        Where weights are broken the run goes back to one before instead; the next ``advance`` goes on from there.

        Returns:
            Whether it has gone back.

        Raises:
            InputError: it has gone back twice, and that did not help.
        """
        self._check_usable()
        went_back = False
        try:
            if self.current.position.examples != self.current.saved_at:
                self.current.check_weights(self.learner.predicts())
                self.current.save()
        except RollbackNeeded as needed:
            self._roll_back(needed)
            went_back = True
        self.current.background.wait()
        return went_back

    def finish(self) -> dict[str, Any]:
        """Advances to the end of the log and writes the results over all of it.

        Returns:
            The content of summary.json.

        Raises:
            LearningError: all is written, but nothing was learned, or the weights are of no use.
            InputError: see ``advance``.
        """
        current, broken = self.current, None
        while True:
            self.advance(partial=True)
            try:
                predicts = self.learner.predicts()
                if not current.check_weights(predicts):
                    broken = current.broken_weights(predicts)
                break
            except RollbackNeeded as needed:
                self._roll_back(needed)
        failure = learning_failure(current, broken)
        if current.window.traffic.examples:
            current.close_window({}, self._histograms())
        if self._exporter is not None and failure is None:
            self._exporter(take_snapshot(current))
        if current.position.examples != current.saved_at:
            current.save()
        # Nothing below is to say that all is well before it is.
        current.background.wait()
        summary_path = current.folder / "summary.json"
        summary = {
            **results(self.inputs, current),
            "learning_failure": failure,
            **(self._timing() or timing_before(summary_path)),
        }
        write_metric_states(current.folder, current.total.to_arrays())
        for name, metrics in current.others.items():
            write_metric_states(current.folder, metrics.to_arrays(), name)
        write_weight_spectra(current.folder, current.state)
        write_timeline(current.folder, current.timeline.to_arrays())
        write_data_health(
            current.folder, current.ids, current.timeline, current.schema, summary["calibration_slices"]
        )
        write_json(summary_path, summary)
        current.events.end(failure is None)
        if failure is not None:
            raise LearningError(f"{current.folder}: {failure}", summary)
        if lost_rows(current.position):
            log.warning("%s: %s", current.folder, losses_text(current))
        return summary

    def _timing(self) -> dict[str, float]:
        if not self._examples:
            return {}
        return {
            "examples_per_second": round(self._examples / self._seconds, 1),
            "step_ms_p50": round(1000 * self.learner.seconds.median(), 3),
            **self._root_seconds(),
        }

    def _root_seconds(self) -> dict[str, float]:
        timing = self.current.state.optimizer_timing()
        return {f"shampoo_{name}": round(seconds, 3) for name, seconds in timing.items()}
