"""State of a run between its steps: its position, weights, metrics and files."""

import copy
import logging
import math
import shlex
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ctr.data.batches import Batch
from ctr.data.sidecar import SidecarHash
from ctr.io.errors import InputError, of_another_version
from ctr.io.files import remove_temporaries
from ctr.objective.bias_constraints import SLICES_MEASURED
from ctr.objective.targets import label_outcomes
from ctr.training.fused_feed import AnyFeed
from ctr.training.inputs import Inputs
from ctr.training.logs import LogsSeen
from ctr.training.observers.observer import Observer, Scored, Turn
from ctr.training.run import checkpoint
from ctr.training.run.directory import refuse_without_checkpoint
from ctr.training.run.files import Background, GrowingFile, Unwritten, describe_rejects
from ctr.training.run.part_files import ONLY_WRITER, Writer
from ctr.training.run.position import (
    Passed,
    Position,
    check_rejects,
    note_large_query,
    note_scored,
    note_step,
    open_window,
)
from ctr.training.state import TrainState, first_broken, predicts_soundly
from ctr.training.step import Scores

log = logging.getLogger(__name__)

# For larger families of slices, a line of metrics has only the extremes of the duals.
_DUALS_SHOWN = 32


@contextmanager
def open_run(
    run_dir: Path, inputs: Inputs, state: TrainState, observers: Sequence[Observer] = ()
) -> Iterator["Run"]:
    """Resumes a run from its newest checkpoint in ``run_dir``, or starts it; closes its files after the block.

    Raises InputError if the run was trained on another log; see also ``Run.resume``.
    """
    run = Run(run_dir, inputs, state, observers)
    run.group.once(lambda: remove_temporaries(run_dir))
    with ExitStack() as opened:
        run.resume(opened)
        # Touches the memory for the first checkpoint now that the restored arrays are freed.
        run.background.submit(lambda: run._copies.make_room(run._weight_layout()))
        yield run


class Run:
    """A run between two steps. All workers are at the same position; the first one writes the files."""

    def __init__(
        self, run_dir: Path, inputs: Inputs, state: TrainState, observers: Sequence[Observer] = ()
    ) -> None:
        self.run_dir, self.config, self.schema = run_dir, inputs.config, inputs.schema
        self.state, self.group, self.inputs = state, state.group, inputs
        self.observers = [o for o in observers if self.group.is_chief or o.on_all_workers]
        self._logs = LogsSeen(run_dir, {name: log.manifests for name, log in inputs.row_logs.items()})
        self._log_paths = {name: log.path for name, log in inputs.row_logs.items()}
        self._sidecars = {role: SidecarHash(log.path, name) for role, (log, name) in inputs.sidecars.items()}
        self._copies = checkpoint.Copies()
        self.position = Position({name: Passed() for name in inputs.row_logs})
        self._checkpoints = run_dir / "checkpoints"
        # One line per window; unusable rows.
        self.metrics: GrowingFile | Unwritten = Unwritten()
        self.rejects: GrowingFile | Unwritten = Unwritten()
        self.background = Background("run-files")  # its next call raises the error of a failed job
        self._is_closing = threading.Event()
        self._note_saved()

    def _note_saved(self) -> None:
        position = self.position
        self.saved_at, self._saved_when = position.examples, time.monotonic()
        # Rows that the newest checkpoint has learned from; first row of the last batch whose step was applied since.
        self._learned_at_save = self._last_applied = position.learned

    # From checkpoint to checkpoint.

    def resume(self, opened: ExitStack) -> None:
        """Restores the newest checkpoint, or the initial state, and truncates files to it; ``opened`` closes them.

        Raises InputError if all checkpoints are damaged, a warm-started run has none, or a file has lost lines.
        """
        lengths: Mapping[str, int] = {"metrics": 0, "rejects": 0}
        states: dict[str, dict[str, np.ndarray]] = {}
        newest = self.group.once(lambda: checkpoint.newest_sound(self._checkpoints))
        if newest is None:
            self.group.once(lambda: refuse_without_checkpoint(self.run_dir))
        else:
            lengths = self._restore(newest, states)
        self._note_saved()

        def open_files() -> None:
            checkpoint.clean_up(self._checkpoints, self.config.checkpoint.keep)
            self.metrics, self.rejects = (
                opened.enter_context(closing(GrowingFile.open(self.run_dir / f"{name}.jsonl", lengths[name])))
                for name in ("metrics", "rejects")
            )

        self.group.once(open_files)
        opened.callback(self.background.close)
        opened.callback(self._is_closing.set)
        with self.group.raise_if_any_failed():
            for observer in self.observers:
                try:
                    observer.begin(self, states.get(observer.name, {}))
                except InputError:
                    raise
                except (KeyError, ValueError) as error:
                    raise of_another_version(f"{self.run_dir}: its newest checkpoint") from error
                opened.enter_context(closing(observer))

    def _restore(self, newest: int, states: dict[str, dict[str, np.ndarray]]) -> Mapping[str, int]:
        """Restores the checkpoint at position ``newest``; fills observers' ``states``; returns the files' lengths."""
        part = self.state.sharding.part
        with self.group.raise_if_any_failed():
            arrays, state, parts = checkpoint.read_share(
                self._checkpoints,
                newest,
                lambda name, rows: part(name.removeprefix(checkpoint.WEIGHTS), rows),
            )
        self._logs.check(state["consumed"])
        if state["sidecars"] != self.sidecar_hashes(state["position"]["window_times"][1] + 1):
            raise InputError(
                f"{self.run_dir}: the sidecars {', '.join(self._sidecars)} are not those that this run has read so "
                "far: use another output directory to start again"
            )
        try:
            self.state.restore(checkpoint.weights_of(arrays), checkpoint.weights_of(parts))
        except ValueError as error:
            raise InputError(f"{self.run_dir}: {error}") from None
        try:
            self.position = Position.from_json(state["position"])
        except (KeyError, TypeError) as error:
            raise of_another_version(f"{self.run_dir}: its newest checkpoint") from error
        for path, array in arrays.items():
            name, _, key = path.partition("|")
            states.setdefault(name, {})[key] = array
        return dict(state["lengths"])

    @property
    def is_in_doubt(self) -> bool:
        """Returns whether steps are being skipped, which may stop the run; meanwhile nothing is saved or exported."""
        return self.config.max_skipped_steps is not None and self.position.skipped_in_a_row > 0

    def is_checkpoint_due(self) -> bool:
        passed = self.position.examples - self.position.due_from
        return not self.is_in_doubt and passed >= self.config.checkpoint.every_examples

    def agree_on_end(self, stops: bool) -> tuple[bool, bool]:
        """Returns whether a checkpoint is due by the first worker's clock, and whether any worker is to stop."""
        minutes = self.config.checkpoint.every_minutes
        is_old = minutes is not None and time.monotonic() - self._saved_when >= 60 * minutes
        wishes = self.group.gather_numbers(np.array([is_old, stops], np.int64))
        return bool(wishes[0, 0]), bool(wishes[:, 1].any())

    def save(self, is_due: bool = True) -> None:
        """Begins a checkpoint of everything up to the current position; ``background`` finishes it.

        Waits for the previous checkpoint, and raises its error. A checkpoint that is caused by time or a signal (not
        ``is_due``) does not shift the next due one: so such checkpoints do not change the results.
        """
        self.background.wait()
        if is_due:
            self.position.due_from = self.position.examples
        content = {
            **copy.deepcopy(self.progress()),
            # The log's folder may have raw values, which are read only for display.
            "log": str(self._log_paths[""].resolve()),
            "sidecars": self.sidecar_hashes(self.position.window_times[1] + 1),
            "lengths": {"metrics": self.metrics.length, "rejects": self.rejects.length},
        }
        weights = (
            (f"{checkpoint.WEIGHTS}{name}", begin, piece) for name, begin, piece in self.state.pieces()
        )
        observed = {
            f"{observer.name}|{name}": array
            for observer in self.observers
            for name, array in observer.checkpoint().items()
        }
        # The first worker writes the undivided state.
        copied = self._copies.copy(self._weight_layout(), weights, observed if self.group.is_chief else {})
        writer = self._writer(sum(array.nbytes for array in copied.values()))
        examples, keep = self.position.examples, self.config.checkpoint.keep

        def write() -> None:
            self.metrics.sync()
            self.rejects.sync()
            checkpoint.save(self._checkpoints, examples, copied, content, keep, writer)

        self.background.submit(write)
        self._note_saved()

    def _writer(self, nbytes: int) -> Writer:
        if self.group.size == 1:
            return ONLY_WRITER
        # A difference between workers would affect all later predictions.
        self.group.agree({"state in what all workers have": self.state.digest()})
        total = int(self.group.gather_numbers(np.array([nbytes])).sum())
        examples = self.position.examples
        attempt = self.group.once(lambda: checkpoint.begin(self._checkpoints, examples, total))
        parts = {f"{checkpoint.WEIGHTS}{name}": part for name, part in self.state.sharding.parts().items()}
        patience, is_leaving = self.group.patience, self._is_closing.is_set
        return Writer(*self.group.deal, parts, patience, attempt, is_leaving)

    def _weight_layout(self) -> checkpoint.Layout:
        return {f"{checkpoint.WEIGHTS}{name}": layout for name, layout in self.state.layout().items()}

    def progress(self) -> dict[str, Any]:
        return {
            "position": self.position.as_json(),
            "consumed": self._logs.consumed(self._rows_passed()),
        }

    def _rows_passed(self) -> dict[str, int]:
        return {name: self.position.of(name).rows for name in self._log_paths}

    def sidecar_hashes(self, until: int) -> dict[str, str]:
        return {role: sidecar.until(until) for role, sidecar in self._sidecars.items()}

    # From batch to batch.

    def follow_logs(self, inputs: Inputs) -> None:
        """Replaces the logs by newer versions. Raises InputError if partitions read so far have changed."""
        self.inputs = inputs
        manifests = {name: log.manifests for name, log in inputs.row_logs.items()}
        self._logs.update(manifests, self._rows_passed())

    def ramps(self) -> dict[str, float]:
        """Returns the values of the ramps for the next step, by name."""
        return self.config.ramps_at(self.position.trained_examples, self.position.trained_before)

    def rates(self) -> dict[str, float]:
        return self.config.rates_at(self.position.trained_examples, self.position.trained_before)

    def ramps_and_rates(self, ahead: np.ndarray) -> list[dict[str, np.ndarray]]:
        """Returns the ramps and the rates of K steps, by name float32 [K], after ``ahead`` [K] more trained rows."""
        examples = (self.position.trained_examples + ahead).tolist()
        return [
            {
                name: np.array(values, np.float32)
                for name, values in of(examples, self.position.trained_before).items()
            }
            for of in (self.config.ramps_of, self.config.rates_of)
        ]

    def is_due_after(self, rows: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Returns whether anything may be due, bool [K], after ``rows`` [K] more good rows, at ``ends`` [K]."""
        position, exports = self.position, self.config.export
        is_due: np.ndarray = ends - position.due_from >= self.config.checkpoint.every_examples
        is_due |= position.window_examples + rows >= self._window_size()
        if exports is not None:
            is_due |= position.examples // exports.every_examples < ends // exports.every_examples
        return is_due | bool(position.skipped_in_a_row)

    def is_window_full(self) -> bool:
        return self.position.window_examples >= self._window_size()

    def _window_size(self) -> int:
        examples = self.config.metrics.window_examples
        return open_window(self.position.window_from) if examples == "auto" else examples

    def record(self, feed: AnyFeed, scores: Scores) -> None:
        """Records the result of a step and passes it to the observers.

        Raises InputError if too many steps in a row were skipped, or too many rows of a log are faulty.
        """
        batch, position = feed.batch, self.position
        scored, begin = [], len(batch.rows)
        # Rows of constraint logs are always new.
        for source, other in batch.others.items():
            scored += self._record_scored(source, other, scores, begin)
            begin += len(other.rows)
        if batch.is_new:
            scored += self._record_scored(0, batch, scores)
            position.batches += len(feed.batches)
            if len(batch.rows):
                note_scored(position, batch.rows.query_time)
        learned, terms = self.record_learned(feed, scores) if batch.has_labels else (0, None)
        if batch.is_new:
            self.check_faults()
        for observer in self.observers:
            observer.batch(Turn(batch.is_new, scored, learned, terms))

    def _record_scored(self, source: int, batch: Batch, scores: Scores, begin: int = 0) -> list[Scored]:
        """Records the rows of a log, whose scores begin at index ``begin``; returns them if any are good."""
        self._record_read(list(self._log_paths)[source], batch)
        rows = slice(begin, begin + len(batch.rows))
        if not len(batch.rows):
            return []
        labels = {}
        if not source:
            for (name, label), logit in zip(self.config.objective.labels.items(), scores.labels, strict=True):
                labels[name] = label_outcomes(label, name, batch.rows), self._finite(logit[rows])
        slices = [index[rows] for index in scores.slices]
        return [Scored(source, batch, self._finite(scores.logit[rows]), slices, labels)]

    def _record_read(self, name: str, batch: Batch) -> None:
        """Records that rows of a log were read, including faulty rows and queries that are set aside."""
        for reject in describe_rejects(batch, name) if len(batch.rejects) else ():
            self.rejects.append(reject)
        passed = self.position.of(name)
        passed.rows, passed.until = batch.end, batch.last_query
        passed.read += len(batch.rows) + len(batch.rejects)
        passed.rejected += len(batch.rejects)
        for query in batch.large_queries if len(batch.rejects) else ():
            if note_large_query(passed, query):
                log.warning(
                    "%s: query_id %d, rows %d to %d of %s, has %d rows and is set aside: at most %d are allowed "
                    "(batch.max_query_rows)",
                    *(self.run_dir, *query[:3], self._log_paths[name], query.rows),
                    self.config.batch.max_query_rows,
                )

    def _finite(self, logit: np.ndarray) -> np.ndarray:
        self.position.nonfinite_predictions += int(np.count_nonzero(~np.isfinite(logit)))
        return finite_logits(logit, self.config.model.prior)

    def check_faults(self) -> None:
        """Raises InputError if too many rows of a log are faulty; raises the error of a failed background job."""
        allowed, path = self.config.max_rejected_share, self.run_dir / "rejects.jsonl"
        check_rejects(self.position, allowed, self._log_paths, path)
        self.background.check()

    def is_left_out(self, batch: Batch) -> bool:
        """Returns whether a batch is not learned from because ``skip`` contains at least one of its rows."""
        return self.config.leaves_out(batch.begin, batch.end)

    def record_learned(self, feed: AnyFeed, scores: Scores) -> tuple[int, np.ndarray | None]:
        """Records that batches were learned from or left out; returns ``learned`` and ``terms`` of a ``Turn``.

        Raises InputError if too many steps in a row were skipped.
        """
        batch, position = feed.batch, self.position
        rows = batch.rows
        position.learned, position.learned_until = batch.end, batch.last_query
        if self.is_left_out(batch):
            position.left_out_rows += len(rows)
            return 0, None
        position.trained_examples += len(rows)
        if scores.applied is None:
            return 0, None
        counts = feed.counts
        is_learned = np.repeat(scores.applied, counts)
        position.trained_rows += int(np.count_nonzero(rows.train_weight[is_learned]))
        position.skipped_rows += int(np.count_nonzero(~is_learned))
        limit = self.config.max_skipped_steps
        for step_batch, applied in zip(feed.batches, scores.applied.tolist(), strict=True):
            note_step(position, step_batch.begin, step_batch.end, applied)
            if applied:
                self._last_applied = step_batch.begin
            if limit is not None and position.skipped_in_a_row >= limit:
                # Later batches of the same call may be fine.
                position.learned = step_batch.end
                reason = f"{limit} steps in a row were skipped, as the loss or a gradient was not finite"
                raise self._stop(reason, self._last_applied, predicts_soundly(scores.logit))
        if scores.terms is None:
            return int(is_learned.sum()), None
        learned = counts * scores.applied
        # Avoids 0 times a value that is not finite.
        terms = np.where(scores.applied[:, np.newaxis], scores.terms, 0).astype(np.float64)
        return int(learned.sum()), learned @ terms

    def _stop(self, reason: str, begin: int, predicts: bool) -> InputError:
        """Returns the error that ends the run; its hint is a command that resumes it and skips rows from ``begin`` on.

        If rows since the newest checkpoint are skipped already and the weights are unsound (not ``predicts``), the
        command skips all rows since that checkpoint.
        """
        saved, end = self._learned_at_save, self.position.learned
        is_not_first = any(first < end and saved < last for first, last in self.config.skip)
        if begin < saved or (is_not_first and not predicts):
            begin = saved
        command = ["ctr", "train", str(self._log_paths[""]), "--out", str(self.run_dir)]
        if begin >= end:
            return InputError(f"{self.run_dir}: {reason}", f"resume from row {end}: {shlex.join(command)}")
        command += ["--skip", f"{begin}:{end}"]
        return InputError(
            f"{self.run_dir}: {reason}: rows {begin} to {end} of the log",
            f"look at them, or resume without learning from them: {shlex.join(command)}",
        )

    def pass_until(self, examples: int) -> None:
        """Records that all rows before position ``examples`` are processed, including rows outside the time range."""
        self.position.of().rows = examples
        if not self.config.label_delay:
            self.position.learned = examples

    def check_weights(self, predicts: bool) -> str | None:
        """Returns the weights' fault, or None; ``predicts``: whether they give sound predictions for the last batch.

        Raises InputError if the weights are broken, unless ``max_skipped_steps`` is null.
        """
        fault = self.weight_fault(predicts)
        if fault is None:
            return None
        if self.config.max_skipped_steps is None:
            log.warning("%s: %s at row %d", self.run_dir, fault, self.position.learned)
            return fault
        # If the weights still predict, any row since the checkpoint may have broken one.
        is_last = self.position.skipped_in_a_row or not predicts
        raise self._stop(fault, self._last_applied if is_last else self._learned_at_save, predicts)

    def weight_fault(self, predicts: bool) -> str | None:
        """Returns a short description of the weights' fault, or None; ``predicts``: see ``check_weights``."""
        pieces = ((name, piece) for name, _, piece in self.state.pieces())
        # The first worker checks the undivided state: on the others, only their parts can have faults.
        faults = self.group.gather_texts(first_broken(pieces) or "")
        return next(filter(None, faults), None) or (None if predicts else "weights do not predict")

    def is_export_due(self, before: int) -> bool:
        """Returns whether a multiple of ``export.every_examples`` was passed since ``before``; False if in doubt."""
        exports = self.config.export
        if exports is None or self.is_in_doubt:
            return False
        return before // exports.every_examples < self.position.examples // exports.every_examples

    def close_window(self, timing: Mapping[str, float]) -> dict[str, Any]:
        """Writes and returns the metrics line of the window that ends here; begins the next window."""
        position, ramps, rates = self.position, self.ramps(), self.rates()
        spectra = {name: spectrum._asdict() for name, spectrum in self.state.optimizer_spectra().items()}
        line = {
            "examples": position.examples,
            "window_begin": position.window_times[0],
            "window_end": position.window_times[1],
            "window_examples": position.window_examples,
            "alpha2": ramps.pop("alpha2"),
            **{f"ramp_{name}": ramp for name, ramp in ramps.items() if name in self.config.objective.terms},
            **{f"rate_{group}": rates[group] for group in self.config.schedules},
            **dual_scalars(self.state),
            **self.state.experts.report(),
            **{f"shampoo_{name}": value for name, value in self.state.optimizer_report().items()},
            **({"shampoo_spectra": spectra} if spectra else {}),
            **timing,
        }
        for observer in self.observers:
            observer.window(line)
        self.metrics.append(line)
        position.window_from = position.scored_rows
        return line


def finite_logits(logit: np.ndarray, prior: float) -> np.ndarray:
    """Replaces logits, float32 [N], that are not finite by the logit of ``prior``."""
    return np.where(np.isfinite(logit), logit, np.float32(math.log(prior / (1 - prior))))


def duals_of(state: TrainState, limit: int = SLICES_MEASURED) -> dict[str, Any]:
    """Returns lambda_k of each family by name: a list, or minimum and maximum if there are more than ``limit``."""
    duals: dict[str, Any] = {}
    for family, variable in zip(state.families, state.duals, strict=True):
        values = variable.numpy()
        if family.slices <= limit:
            duals[family.name] = values.tolist()
        else:
            duals[family.name] = {"min": float(values.min()), "max": float(values.max())}
    return duals


def dual_scalars(state: TrainState) -> dict[str, float]:
    """Returns the dual variables that a line of metrics shows, by key."""
    scalars: dict[str, float] = {}
    for name, values in duals_of(state, _DUALS_SHOWN).items():
        keys = values if isinstance(values, dict) else range(len(values))
        scalars |= {f"dual_{name}_{key}": values[key] for key in keys}
    return scalars
