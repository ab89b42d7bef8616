"""Sessions of a run: ``train`` makes one pass over a whole log, a ``Session`` continues as the log grows.

Both give the same result. ``ctr.training.loop`` is the pass.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from ctr.data.reader import Rows
from ctr.io.signals import Interrupted, Stop, signal_number
from ctr.training.compiled_step import CompiledStep, Phase, announced, fresh_state
from ctr.training.config import TrainConfig
from ctr.training.device import describe_environment
from ctr.training.inputs import Inputs, PublishedInputs, check_rows, open_inputs
from ctr.training.loop import check_weights, one_pass, save_in_passing
from ctr.training.observers.every import make_observers
from ctr.training.observers.observer import Observer, ProgressCall
from ctr.training.row_scores import score_rows
from ctr.training.run.directory import hold_run, with_skip_of
from ctr.training.run.results import learning_failure, unlearned_text, write_results
from ctr.training.run.run import Run, finite_logits, open_run
from ctr.training.run.snapshot import Exporter, take_snapshot
from ctr.training.run.summary import LearningError, train_result
from ctr.training.validate import check_possible, validate
from ctr.training.warm_start.start import InitFrom, warm_start
from ctr.workers.collectives import ALONE, Workers

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Process:
    """The process that trains.

    Attributes:
        group: the workers that train together; all make the same calls to sessions, but the first alone writes files
            and calls ``progress``, ``exporter`` and ``phase``.
        stop: called after each batch; returns a reason to stop, or None to continue.
        phase: called with a word when something other than learning takes time (``checking rows``, ``compiling``),
            and with an empty one when that is over.
        begun: ``time.perf_counter()`` when the user began to wait: the start of ``wall_seconds``.
    """

    group: Workers = ALONE
    stop: Stop = lambda: None
    phase: Phase | None = None
    begun: float = field(default_factory=time.perf_counter)


def train(
    log: Path | str,
    config: TrainConfig,
    run_dir: Path | str,
    progress: ProgressCall | None = None,
    record: str | None = None,
    exporter: Exporter | None = None,
    init_from: InitFrom | None = None,
    process: Process | None = None,
) -> dict[str, Any]:
    """Trains one pass over ``log``, or resumes it from the newest checkpoint in ``run_dir``.

    A finished run is returned unchanged. For arguments not named here see ``open_session``.

    Args:
        record: publishes the predictions as this sidecar of the log, after the pass.
        init_from: another run, from whose weights and position in the log a new run starts.

    Returns:
        The content of summary.json; with ``record`` also ``recorded``, the published sidecar, and for a run that was
        started from another one also ``init_from``.

    Raises:
        LearningError: nothing was learned, or the weights are useless; all is written except the sidecar.
        Interrupted: a stop was requested; a checkpoint has all processed rows.
        InputError: predictions cannot be published; see also ``open_session``, ``Session.advance`` and ``warm_start``.
    """
    process = process or Process()
    log, run_dir, group = Path(log), Path(run_dir), process.group
    source = None if init_from is None else Path(init_from.run_dir)
    with group.noticing_losses():
        summary = group.once(
            lambda: validate(config, log, run_dir, record=record, source=source, workers=group.size)
        )
        if summary is None:
            if init_from is not None:
                group.once(partial(warm_start, log, config, run_dir, init_from, workers=group.size))
            with open_session(log, config, run_dir, progress, exporter, process=process) as session:
                summary = session.finish(process.stop)
        result = group.once(lambda: train_result(log, run_dir, summary, record))
        group.leave()
        return result


def begin_step(inputs: Inputs, process: Process) -> CompiledStep:
    """Makes a run's initial state, the same in every call, and the compiled step that trains it."""
    state = fresh_state(inputs.config, inputs.schema, inputs.families, process.group)
    return CompiledStep(state, inputs.config, phase=process.phase)


@contextmanager
def open_session(
    log: Path | str,
    config: TrainConfig,
    run_dir: Path | str,
    progress: ProgressCall | None = None,
    exporter: Exporter | None = None,
    wait_for_sidecars: bool = False,
    process: Process | None = None,
    begin: Callable[[Inputs, Process], CompiledStep] = begin_step,
) -> Iterator["Session"]:
    """Starts a run, or resumes it from its newest checkpoint; locks its folder until the block ends.

    The next session repeats work that was not saved when the block ends.

    Args:
        log: a folder with an example log, which may grow.
        run_dir: a new run directory, or one of a run with the same configuration.
        progress: called after each batch, or several small batches that one call learns from, with the position
            in the log and the metrics of the pass so far: ``per_query_auc``, ``auc``, ``logloss``,
            ``calibration_bias``, ``calibration_ratio``, None where undefined. The metrics may be a few calls old,
            and AUC as old as the last window.
        exporter: writes a servable model of a snapshot when ``config.export`` requires one; for instance
            ``ctr.serving.export.export_from_run``.
        wait_for_sidecars: whether a partition of the log and all later ones wait until its sidecars are published;
            otherwise a partition without a required sidecar is refused.
        begin: makes the initial state of a run, the same in every call, and the step that trains it.

    Raises:
        InputError: bad log, bad configuration for this log, a run directory of another configuration, environment or
            log, or one in use, exports configured without an exporter, or members of a group that differ in these.
        WorkerLostError: another worker was lost.
    """
    process = process or Process()
    log, run_dir, group = Path(log), Path(run_dir), process.group
    if not group.is_chief:
        process = replace(process, phase=None)
    with group.noticing_losses(), ExitStack() as held:
        with group.raise_if_any_failed():
            config = with_skip_of(run_dir, config)
            check_possible(config, group.size, exporter is not None)
        inputs = open_inputs(log, config, group)
        config = inputs.config
        for note in inputs.notes:
            logger.warning("%s: %s", run_dir, note)

        def check_new_run() -> bool:
            # Many rows may have waited, and a stop must be noticed meanwhile (``advance``).
            if wait_for_sidecars or (run_dir / "checkpoints").exists():
                return False
            with announced(process.phase, "checking rows"):
                return check_rows(inputs)

        is_checked = group.once(check_new_run)
        environment = describe_environment(config, group.size, inputs.schema)
        held.enter_context(hold_run(run_dir, config, inputs.schema, environment, group))
        step = begin(inputs, process)
        step.timing.begun = process.begun
        with open_run(run_dir, inputs, step.state, make_observers(progress)) as run:
            checked = inputs.log.rows if is_checked else run.position.examples
            published = PublishedInputs(inputs, wait_for_sidecars, group)
            yield Session(run, step, published, checked, exporter)


class Advance(NamedTuple):
    """Result of ``Session.advance``."""

    rows: int  # rows of the log that were processed, faulty ones included
    waiting: int  # published rows that have not been processed yet


class Session:
    """A run that continues in one process as its log grows; see ``open_session``."""

    def __init__(
        self,
        run: Run,
        step: CompiledStep,
        published: PublishedInputs,
        checked: int,
        exporter: Exporter | None,
    ) -> None:
        self.run, self.step, self.published = run, step, published
        self._checked = checked
        self._exporter = exporter if run.config.export is not None else None
        self._failed = False

    @property
    def inputs(self) -> Inputs:
        return self.published.inputs

    def refresh(self) -> bool:
        """Reads new partitions; returns whether there is more to read. Raises InputError if logs have changed."""
        self._check_usable()
        is_more = self.published.refresh()
        self.run.follow_logs(self.inputs)
        return is_more

    def advance(self, partial: bool = False, stop: Callable[[], bool] = lambda: False) -> Advance:
        """Scores and learns from newly published rows, batch by batch.

        A batch that is not full waits for the next partitions (unless ``batch.within_partitions``), and with a
        constraint log each batch waits until that log is published up to its time. So weights, metrics and predictions
        equal one pass over the logs, however they grew. A partition without a required sidecar is refused before any
        of its rows is learned from, or waits (``open_session``); the session can advance once the sidecar is there.

        With ``partial`` only rows without sidecars wait. The last batch ends with the log, unlike in a pass over a
        longer log; a resumed run restores it from a checkpoint only (``save``). With a label delay, ``partial``
        affects scoring only; the delay alone determines when rows are learned from. When ``stop`` returns True, the
        remaining rows are left to another ``advance``.

        Raises InputError for a damaged shard, a new row that a sidecar lacks, too many faulty rows or skipped steps
        in a row, or broken weights (the message names the rows); see also ``refresh``.
        """
        self.refresh()
        readable, before = self.published.readable, self.run.position.examples
        if self._checked < readable.log.rows:
            start = self._checked
            if readable.has_rows_after(start) and not self.run.group.once(
                lambda: check_rows(readable, start, stop)
            ):
                return Advance(0, self.inputs.log.rows - before)
            self._checked = readable.log.rows
        # Within a batch, weights, metrics and position are not consistent.
        self._failed = True
        passed = one_pass(
            self.run, self.step, readable, partial, self._export if self._exporter else None, stop
        )
        self._failed = False
        return Advance(self.run.position.examples - before, self.inputs.log.rows - passed)

    def _export(self) -> None:
        snapshot, exporter = take_snapshot(self.run), self._exporter
        assert exporter is not None

        def export() -> None:
            exporter(snapshot)

        self.run.group.once(export)

    def _check_usable(self) -> None:
        if self._failed:
            raise RuntimeError(f"{self.run.run_dir}: the session ended with an exception; open another one")

    def score(self, rows: Rows | pa.Table) -> np.ndarray:
        """Returns the logits, float32 [N], of valid rows or of the columns of a shard; changes nothing.

        Labels and weights are ignored. Queries may be incomplete, unless the model has the feature ``query_size``,
        which counts their rows. Raises InputError for a faulty row, or rows with other features.
        """
        self._check_usable()
        logit = score_rows(self.step, self.run.config, rows, self.inputs.schema, self.run.ramps())
        return finite_logits(logit, self.run.config.model.prior)

    def save(self) -> None:
        """Writes a checkpoint, unless this position has one; it is on disk when this returns.

        None is written while steps are being skipped. Raises InputError if the weights are broken.
        """
        self._check_usable()
        if self.run.position.examples != self.run.saved_at and not self.run.is_in_doubt:
            check_weights(self.run, self.step)
            self.run.save()
        self.run.background.wait()
        self.run.group.wait_for_all()

    def interrupt(self, reason: str) -> NoReturn:
        """Writes a checkpoint, which changes no result, and raises Interrupted with ``reason``, a signal's name."""
        self._check_usable()
        run = self.run
        if run.position.examples != run.saved_at:
            save_in_passing(run, self.step)
        run.background.wait()
        run.group.leave()
        raise Interrupted(reason, f"interrupted at row {run.saved_at:,}; the same command resumes there")

    def finish(self, stop: Stop = lambda: None) -> dict[str, Any]:
        """Advances to the end of the log and writes the results of the whole pass; returns the content of summary.json.

        Raises LearningError if nothing was learned or the weights are useless (all is written), Interrupted if
        ``stop``, called after each batch, returned a reason (a checkpoint is written), and InputError: see ``advance``.
        """
        run = self.run
        while True:
            for observer in self._waiting():
                observer.pause(self.inputs, self.score)
            self.advance(partial=True, stop=lambda: stop() is not None or bool(self._waiting()))
            if not self._waiting():
                break
        if number := run.group.gather_numbers(np.array([signal_number(stop())])).max():
            self.interrupt(Signals(number).name)
        fault = check_weights(run, self.step)
        failure = learning_failure(run, fault)
        if run.position.window_examples:
            run.close_window({})
        if self._exporter is not None and failure is None:
            self._export()
        if run.position.examples != run.position.due_from or run.position.examples != run.saved_at:
            run.save()
        # No file may report success before everything is written.
        run.background.wait()
        summary = run.group.once(lambda: write_results(run, failure, self.step.timing.summary))
        if failure is not None:
            run.group.leave()
            raise LearningError(f"{run.run_dir}: {failure}", summary)
        if run.position.unlearned_rows:
            logger.warning("%s: %s", run.run_dir, unlearned_text(run))
        if warning := summary.get("calibration_warning"):
            logger.warning("%s: %s", run.run_dir, warning)
        return summary

    def _waiting(self) -> list[Observer]:
        """Returns the observers that need the pass to pause at this position."""
        return [observer for observer in self.run.observers if observer.wants_pause(self.inputs)]
