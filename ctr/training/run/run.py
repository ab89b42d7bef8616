"""A run between its steps: where it stands, its metrics and its files."""

import copy
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ctr.data.batches import Batch
from ctr.data.log import MAX_TIME_US, Manifest
from ctr.data.schema import Schema
from ctr.data.sidecar import SidecarHash
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.timeline import Timeline
from ctr.io.errors import InputError
from ctr.io.files import remove_temporaries
from ctr.objective.total import loss_terms
from ctr.training.config import TrainConfig
from ctr.training.duals import dual_scalars, is_measured, slices_name
from ctr.training.feed import Feed
from ctr.training.run import checkpoint, rollback
from ctr.training.run.background import Background
from ctr.training.run.directory import (
    GrowingFile,
    PredictionWriter,
    describe_rejects,
    refuse_without_checkpoint,
)
from ctr.training.run.event_file import CUMULATIVE, EventFiles
from ctr.training.run.id_counts import IdCounts
from ctr.training.run.logs_seen import LogsSeen
from ctr.training.run.position import Position, mark_here, note_step
from ctr.training.state import TrainState

log = logging.getLogger(__name__)


class Run:
    """The state of a pass besides the weights, and its files."""

    def __init__(
        self,
        folder: Path,
        config: TrainConfig,
        state: TrainState,
        schema: Schema,
        manifests: Sequence[Manifest],
        other_manifests: Mapping[str, Sequence[Manifest]],
        sidecars: Mapping[str, tuple[Path, str]],
        initial: Callable[[], Mapping[str, np.ndarray]],
    ) -> None:
        """Goes on where the newest checkpoint in ``folder`` stands, or begins.

        Args:
            manifests: the log's intervals.
            other_manifests: those of the constraint logs, by name.
            sidecars: the log and name of each sidecar that is read.
            initial: computes the values with which the variables of ``state`` begin, for a rollback to there.

        Raises:
            InputError: the run was trained on another log, or its files are damaged.
        """
        self.schema, self.single_valued = schema, schema.single_valued
        self.folder, self.config, self.state = folder, config, state
        self.logs = LogsSeen(folder, {"": manifests, **other_manifests})
        self.sidecars = sidecars
        self._sidecar_hashes = {role: SidecarHash(log, name) for role, (log, name) in sidecars.items()}
        self._initial = initial
        self._copies = checkpoint.Copies()
        self._other_names = tuple(other_manifests)
        remove_temporaries(folder)
        self.rollbacks = rollback.read_rollbacks(folder)
        self._go_on(self._newest_checkpoint())
        # Now, that what was restored is gone.
        self.background.submit(partial(self._copies.make_room, self._weight_layout()))

    def _newest_checkpoint(self) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        saved = checkpoint.restore_newest(self.folder / "checkpoints")
        if saved is None:
            refuse_without_checkpoint(self.folder)
        return saved

    def _go_on(self, saved: tuple[dict[str, np.ndarray], dict[str, Any]] | None) -> None:
        """Sets everything to where a checkpoint stands, or to the beginning, the weights of which are there already."""
        folder, config = self.folder, self.config
        self.background = Background("run-files")
        none = dict.fromkeys(self._other_names, 0)
        self.position = Position(others=none, others_rejected=dict(none), others_read=dict(none))
        self.total = self._metrics()
        self.window = self._metrics()
        self.others = {
            name: ProgressiveMetrics(self._families(source))
            for source, name in enumerate(self._other_names, 1)
        }
        self.timeline = Timeline([feature.name for feature in self.schema.features])
        self.ids = IdCounts(self.state.layouts, self.schema)
        # Of the window: the sum of each term of the loss over its steps, each times its rows; last, these rows.
        self.window_terms = np.zeros(len(loss_terms(config.objective)) + 1)
        self.window_times = [0, 0]
        lengths = {"metrics": 0, "rejects": 0}
        parts: list[str] = []
        if saved is not None:
            lengths, parts = self._restore(*saved)
            mark_here(self.position)
        checkpoint.clean_up(folder / "checkpoints", config.checkpoint.keep, self.position.mark[0])
        self.saved_at = self.position.examples
        self.predictions = None
        if config.record_predictions:
            self.predictions = PredictionWriter(folder / "predictions", parts, submit=self.background.submit)
        self.metrics_file = GrowingFile(folder / "metrics.jsonl", lengths["metrics"])
        self.rejects_file = GrowingFile(folder / "rejects.jsonl", lengths["rejects"])
        self.events = EventFiles(folder / "tensorboard", folder / "metrics.jsonl", config)

    def roll_back(self, rows: tuple[int, int], times: tuple[int, int] | None, reason: str) -> None:
        """Goes back to the last checkpoint that is not within a streak of skipped steps, or to the beginning.

        As a resume does. A run that is killed on the way comes to the same rollback again, or goes on after it.

        Args:
            rows: [begin, end) of the log, from now on scored only.
            times: the query times of the first and the last of them, in microseconds; None without rows.
            reason: in a few words.
        """
        folder, mark = self.folder, self.position.mark[0]
        self.background.wait()
        self.close()
        rollback.drop_after(folder, mark)
        new = rollback.Rollback(checkpoint=mark, rows=rows, query_times=times, reason=reason)
        self.rollbacks = [*self.rollbacks, new]
        rollback.write_rollbacks(folder, self.rollbacks)
        log.warning(
            "%s: %s; rolled back to row %d, with rows %d to %d quarantined", folder, reason, mark, *rows
        )
        saved = self._newest_checkpoint()
        if saved is None:
            self.state.restore(self._initial())
        self._go_on(saved)

    def _metrics(self) -> ProgressiveMetrics:
        return ProgressiveMetrics([*self.config.metrics.slices, *self._families(0)])

    def _families(self, source: int) -> list[str]:
        """The names, as slices of the metrics, of the families of constraints about a log."""
        return [slices_name(family.name) for family in self.state.families if is_measured(family, source)]

    def _rows_behind(self) -> dict[str, int]:
        """Of each log, the first one's name being "", how many rows the run has passed."""
        return {"": self.position.examples, **self.position.others}

    def take_in(
        self, manifests: Sequence[Manifest], other_manifests: Mapping[str, Sequence[Manifest]]
    ) -> None:
        """Goes on with these intervals. Raises InputError: of those seen so far some are not what they were."""
        self.logs.take_in({"": manifests, **other_manifests}, self._rows_behind())

    def _restore(
        self, arrays: dict[str, np.ndarray], state: dict[str, Any]
    ) -> tuple[dict[str, int], list[str]]:
        self.logs.check(state["consumed"])
        rollback.check_kept(self.folder, state.get("rollbacks", []), self.rollbacks)
        if state["sidecars"] != self.sidecar_hashes(state["window_times"][1] + 1):
            raise InputError(
                f"{self.folder}: the sidecars {', '.join(self.sidecars)} are not those that this run has read so far: "
                "use another output directory to start again"
            )
        groups: dict[str, dict[str, np.ndarray]] = {}
        for name, array in arrays.items():
            group, _, key = name.partition("|")
            groups.setdefault(group, {})[key] = array
        try:
            self.state.restore(groups["weights"])
        except ValueError as error:
            raise InputError(f"{self.folder}: {error}") from None
        self.total = ProgressiveMetrics.from_arrays(groups["total"])
        self.window = ProgressiveMetrics.from_arrays(groups["window"])
        for name in self.others:
            self.others[name] = ProgressiveMetrics.from_arrays(groups[_other_group(name)])
        try:
            self.timeline = Timeline.from_arrays(groups["timeline"])
            self.ids.restore(groups["ids"])
            self.window_terms[:] = groups["terms"]["window"]
        except (KeyError, ValueError):
            raise InputError(
                f"{self.folder}: its newest checkpoint is of an earlier version and cannot be resumed; "
                "use another output directory to start anew"
            ) from None
        self.window_times = state["window_times"]
        self.position = Position(**state["position"])
        return state["lengths"], state["prediction_parts"]

    def progress(self) -> dict[str, Any]:
        """Where the run stands, as a checkpoint's state tells it: position, last times and the logs it has seen."""
        return {
            "position": dict(vars(self.position)),
            "window_times": self.window_times,
            "consumed": self.logs.consumed(self._rows_behind()),
        }

    def ramps(self) -> dict[str, float]:
        """What every ramp has reached (``TrainConfig.ramps_at``)."""
        return self.config.ramps_at(self.position.trained_examples, self.position.trained_before)

    def rates(self) -> dict[str, float]:
        """The learning rates of the next step (``TrainConfig.rates_at``)."""
        return self.config.rates_at(self.position.trained_examples, self.position.trained_before)

    def sidecar_hashes(self, until: int = MAX_TIME_US) -> dict[str, str]:
        """For each sidecar a hash of its intervals that begin before ``until``, in microseconds."""
        return {role: sidecar.until(until) for role, sidecar in self._sidecar_hashes.items()}

    def save(self) -> None:
        """Begins a checkpoint of everything up to the current position; ``background`` finishes it.

        One at a time: it waits for the one before. Raises what went wrong with that.
        """
        self.background.wait()
        sound = self.position.mark[0], mark_here(self.position).examples
        if self.predictions is not None:
            self.predictions.flush(self.position.examples)
        groups = {
            "total": self.total.to_arrays(),
            "window": self.window.to_arrays(),
            "timeline": self.timeline.to_arrays(),
            "ids": self.ids.to_arrays(),
            "terms": {"window": self.window_terms},
        }
        groups |= {_other_group(name): metrics.to_arrays() for name, metrics in self.others.items()}
        more = {f"{group}|{name}": array for group, part in groups.items() for name, array in part.items()}
        content = {
            **copy.deepcopy(self.progress()),
            "sidecars": self.sidecar_hashes(self.window_times[1] + 1),
            "lengths": {"metrics": self.metrics_file.length, "rejects": self.rejects_file.length},
            "prediction_parts": list(self.predictions.parts) if self.predictions is not None else [],
            "rollbacks": rollback.as_json(self.rollbacks),
        }
        weights = ((f"weights|{name}", begin, piece) for name, begin, piece in self.state.pieces())
        copied = self._copies.of(self._weight_layout(), weights, more)
        write = partial(self._write_checkpoint, self.position.examples, copied, content, sound)
        self.background.submit(write)
        self.saved_at = self.position.examples

    def _weight_layout(self) -> checkpoint.Layout:
        return {f"weights|{name}": told for name, told in self.state.layout().items()}

    def _write_checkpoint(
        self,
        examples: int,
        arrays: Mapping[str, np.ndarray],
        content: Mapping[str, Any],
        sound: tuple[int, int],
    ) -> None:
        self.metrics_file.sync()
        self.rejects_file.sync()
        kept, folder = self.config.checkpoint, self.folder / "checkpoints"
        checkpoint.save(folder, examples, arrays, content, kept.keep, kept.disk_limit, sound)

    def is_checkpoint_due(self) -> bool:
        """Whether the next checkpoint is to be written now."""
        limit, every = self.config.rollback.after_skipped_steps, self.config.checkpoint.every_examples
        return rollback.is_checkpoint_due(limit, every, self.saved_at, self.position, self.rollbacks)

    def record(self, feed: Feed, logit: np.ndarray, slices: Sequence[np.ndarray]) -> None:
        """Takes the ids and the scores of a batch into metrics, predictions and rejects.

        Args:
            logit: float32 [N], of the batch's good rows.
            slices: for each family of constraints int32 [N].
        """
        batch = feed.batch
        rows = batch.rows
        self.ids.update(feed)
        self._reject(batch)
        self.position.rejected_rows += len(batch.rejects)
        self.position.read += len(rows) + len(batch.rejects)
        self.position.examples, self.position.scored_until = batch.end, batch.last_query
        self.position.batches += 1
        if not len(rows):
            return
        if not self.window.traffic.examples:
            self.window_times[0] = int(rows.query_time[0])
        self.window_times[1] = int(rows.query_time[-1])
        logit = self._finite(logit)
        ids = {name: rows.ids[:, self.single_valued.index(name)] for name in self.config.metrics.slices}
        ids |= self._own_slices(0, slices)
        self.window.update(rows.label, logit, rows.metric_weight, rows.query_id, ids)
        if self.predictions is not None:
            self.predictions.add(batch, logit)

    def record_other(
        self, source: int, batch: Batch, logit: np.ndarray, slices: Sequence[np.ndarray]
    ) -> None:
        """Takes in the scores of rows of a constraint log, the ``source``-th; for the arguments see ``record``."""
        name = list(self.others)[source - 1]
        rows = batch.rows
        self._reject(batch, name)
        self.position.others_rejected[name] += len(batch.rejects)
        self.position.others_read[name] += len(rows) + len(batch.rejects)
        self.position.others[name], self.position.others_until[name] = batch.end, batch.last_query
        if len(rows):
            ids = self._own_slices(source, slices)
            self.others[name].update(rows.label, self._finite(logit), rows.metric_weight, rows.query_id, ids)

    def learned(
        self, batch: Batch, applied: bool | None, logit: np.ndarray, terms: np.ndarray | None = None
    ) -> None:
        """Notes that a batch was learned from.

        Args:
            applied: whether its step changed the weights; None: it had no rows, and there was no step.
            logit: float32, the predictions of all rows of the step.
            terms: float32 [T], what each term contributed to the step's loss; None without a step.

        Raises:
            RollbackNeeded: with this step so many were skipped in a row that the run has to go back.
            InputError: the same, and rollbacks did not help.
        """
        rows, position = batch.rows, self.position
        position.learned, position.learned_until = batch.end, batch.last_query
        position.trained_examples += len(rows)
        if applied is None:
            return
        if applied:
            position.trained_rows += int(np.count_nonzero(rows.train_weight))
            if terms is not None:
                self.window_terms[:-1] += terms.astype(np.float64) * len(rows)
                self.window_terms[-1] += len(rows)
        else:
            position.skipped_rows += len(rows)
        note_step(position, batch.begin, batch.end, applied, rollback.predicts_soundly(logit))
        limit = self.config.rollback.after_skipped_steps
        aside = rollback.rows_of_streak(limit, position, self.rollbacks, self.folder)
        if aside is not None:
            reason = f"{position.skipped_in_a_row} steps in a row were skipped, up to row {batch.end}"
            raise rollback.RollbackNeeded(aside, reason)

    def is_quarantined(self, batch: Batch) -> bool:
        """Whether a rollback has set rows of a batch aside, so that nothing is learned from it."""
        return bool(self.rollbacks) and rollback.is_quarantined(batch.begin, batch.end, self.rollbacks)

    def passed_by(self, batch: Batch) -> None:
        """Notes that a batch that is quarantined was not learned from."""
        self.position.learned, self.position.learned_until = batch.end, batch.last_query
        self.position.set_aside_rows += len(batch.rows)

    def check_weights(self, predicts: bool) -> bool:
        """Looks whether the weights may be written.

        Args:
            predicts: whether they give sound predictions for the last batch that they learned from.

        Returns:
            True; False, with a warning, where they may not but the run never goes back.

        Raises:
            RollbackNeeded: they do not, or are not such as learning leads to.
            InputError: the same, and rollbacks did not help.
        """
        what = self.broken_weights(predicts)
        if what is None:
            return True
        if self.config.rollback.after_skipped_steps is None:
            log.warning("%s: %s at row %d", self.folder, what, self.position.learned)
            return False
        aside = rollback.rows_of_broken_weights(self.position, self.rollbacks, self.folder, predicts)
        raise rollback.RollbackNeeded(aside, f"{what} at row {self.position.learned}")

    def broken_weights(self, predicts: bool) -> str | None:
        """What is wrong with the weights, in a few words; None: nothing. ``predicts``: see ``check_weights``."""
        pieces = ((name, piece) for name, _, piece in self.state.pieces())
        return rollback.first_broken(pieces) or (None if predicts else "weights do not predict")

    def _own_slices(self, source: int, slices: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        return {
            slices_name(family.name): index
            for family, index in zip(self.state.families, slices, strict=True)
            if is_measured(family, source)
        }

    def _reject(self, batch: Batch, log: str | None = None) -> None:
        for reject in describe_rejects(batch, log):
            self.rejects_file.append(reject)

    def _finite(self, logit: np.ndarray) -> np.ndarray:
        self.position.nonfinite_predictions += int(np.count_nonzero(~np.isfinite(logit)))
        return finite_logits(logit, self.config.model.prior)

    def window_is_full(self) -> bool:
        """Whether the present window has as many examples as it should."""
        return bool(self.window.traffic.examples >= self.config.metrics.window_examples)

    def close_window(
        self, extra: Mapping[str, float], histograms: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, Any]:
        """Writes the line of the window that ends here (with ``extra``), and begins the next one.

        Args:
            histograms: arrays by their tags, for TensorBoard.
        """
        measured = self.window.line()
        times = self.window_times[0], self.window_times[1]
        self.timeline.add(self.window, self.position.examples, times, self.ids.close_window())
        self.total.merge(self.window)
        self.window.clear()
        total = self.total.headline()
        ramps, rates = self.ramps(), self.rates()
        line = {
            "examples": self.position.examples,
            "window_begin": self.window_times[0],
            "window_end": self.window_times[1],
            "window_examples": measured.pop("examples"),
            **measured,
            "alpha2": ramps.pop("alpha2"),
            **{
                f"ramp_{name}": ramp
                for name, ramp in ramps.items()
                if getattr(self.config.objective, name) is not None
            },
            **{f"rate_{group}": rates[group] for group in self.config.optimizer.schedules},
            **self._mean_terms(),
            **dual_scalars(self.state),
            **{f"shampoo_{name}": value for name, value in self.state.optimizer_report().items()},
            **extra,
            "cumulative": {name: total[name] for name in CUMULATIVE},
        }
        self.metrics_file.append(line)
        self.events.append(line, histograms)
        self.window_terms[:] = 0
        return line

    def _mean_terms(self) -> dict[str, float]:
        """What each term of the loss contributed to it, per row, in the steps of the window; nothing without a step."""
        rows = self.window_terms[-1]
        if not rows:
            return {}
        names = loss_terms(self.config.objective)
        return {
            f"loss_{name}": float(total / rows) for name, total in zip(names, self.window_terms, strict=False)
        }

    def close(self) -> None:
        """Closes the files, once a checkpoint that was begun is written."""
        self.background.close()
        self.metrics_file.close()
        self.rejects_file.close()
        self.events.close()


def finite_logits(logit: np.ndarray, prior: float) -> np.ndarray:
    """A prediction (float32 [N]) that is not finite becomes what it would have been without a model."""
    return np.where(np.isfinite(logit), logit, np.float32(math.log(prior / (1 - prior))))


def _other_group(name: str) -> str:
    return f"other:{name}"
