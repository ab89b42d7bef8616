"""A run between its steps: where it stands, its metrics and its files."""

import copy
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ctr.data.batches import Batch
from ctr.data.log import MAX_TIME_US, Manifest
from ctr.data.schema import Schema
from ctr.data.sidecar import SidecarHash
from ctr.errors import InputError
from ctr.eval.progressive import ProgressiveMetrics
from ctr.files import remove_temporaries
from ctr.objective.bias_constraints import Family
from ctr.training import checkpoint
from ctr.training.background import Background
from ctr.training.config import TrainConfig
from ctr.training.logs_seen import LogsSeen
from ctr.training.position import Position
from ctr.training.run_directory import (
    GrowingFile,
    PredictionWriter,
    describe_rejects,
    refuse_without_checkpoint,
)
from ctr.training.state import TrainState
from ctr.training.tensor_files import written_by_tensorflow

# Tables that a single window has too few rows for.
_WHOLE_RUN_TABLES = frozenset({"calibration_buckets", "per_query_auc_by_size", "calibration_slices"})

# A step that is skipped again and again must not make the checkpoints grow.
_RANGES_NOTED = 100


# Of larger families of slices a line of metrics has the extremes of the duals only,
_DUALS_SHOWN = 32
# and of yet larger ones no calibration is kept, which takes 8 kB a slice, in every checkpoint too.
SLICES_MEASURED = 1000


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
    ) -> None:
        """Goes on where the newest checkpoint in ``folder`` stands, or begins.

        Args:
            manifests: the log's intervals.
            other_manifests: those of the constraint logs, by name.
            sidecars: the log and name of each sidecar that is read.

        Raises:
            InputError: the run was trained on another log, or its files are damaged.
        """
        self.schema = schema
        self.single_valued = schema.single_valued
        self.folder = folder
        self.config = config
        self.state = state
        self.logs = LogsSeen(folder, {"": manifests, **other_manifests})
        self.sidecars = sidecars
        self._sidecar_hashes = {role: SidecarHash(log, name) for role, (log, name) in sidecars.items()}
        self.position = Position(
            others=dict.fromkeys(other_manifests, 0),
            others_rejected=dict.fromkeys(other_manifests, 0),
            others_read=dict.fromkeys(other_manifests, 0),
        )
        self.total = self._metrics()
        self.window = self._metrics()
        self.others = {
            name: ProgressiveMetrics(self._families(source)) for source, name in enumerate(other_manifests, 1)
        }
        self.window_times = [0, 0]
        remove_temporaries(folder)
        self.background = Background("run-files")
        # Memory for copies of what is saved, kept from one checkpoint to the next: fresh pages cost more than copying.
        self._copies: dict[str, np.ndarray] = {}
        saved = checkpoint.restore_newest(folder / "checkpoints")
        checkpoint.clean_up(folder / "checkpoints", config.checkpoint.keep)
        if saved is None:
            refuse_without_checkpoint(folder)
        lengths = {"metrics": 0, "rejects": 0}
        parts: list[str] = []
        if saved is not None:
            lengths, parts = self._restore(*saved)
        self.saved_at = self.position.examples
        self.predictions = (
            PredictionWriter(folder / "predictions", parts, submit=self.background.submit)
            if config.record_predictions
            else None
        )
        self.metrics_file = GrowingFile(folder / "metrics.jsonl", lengths["metrics"])
        self.rejects_file = GrowingFile(folder / "rejects.jsonl", lengths["rejects"])
        # TensorBoard's events are written anew from metrics.jsonl: those from after the checkpoint disappear.
        for old in (folder / "tensorboard").glob("events.out.tfevents.*"):
            old.unlink()
        self.events = tf.summary.create_file_writer(str(folder / "tensorboard"))
        for line in (folder / "metrics.jsonl").read_bytes().splitlines():
            self._write_events(json.loads(line))

    def _metrics(self) -> ProgressiveMetrics:
        return ProgressiveMetrics([*self.config.metrics.slices, *self._families(0)])

    def _families(self, source: int) -> list[str]:
        """The names, as slices of the metrics, of the families of constraints about a log."""
        return [_slices_name(family.name) for family in self.state.families if _is_measured(family, source)]

    def _writing_events(self) -> AbstractContextManager[None]:
        return written_by_tensorflow(self.folder / "tensorboard")

    def _write_events(self, line: dict[str, Any]) -> None:
        with self._writing_events(), self.events.as_default(step=line["examples"]):
            for name, value in line.items():
                if isinstance(value, int | float) and name != "examples":
                    tf.summary.scalar(f"window/{name}", value)

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
        if state["sidecars"] != self.sidecar_hashes(state["window_times"][1] + 1):
            raise InputError(
                f"{self.folder}: the sidecars {', '.join(self.sidecars)} are not those that this run has read so far; "
                "use another folder to start anew"
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

    def sidecar_hashes(self, until: int = MAX_TIME_US) -> dict[str, str]:
        """For each sidecar a hash of its intervals that begin before ``until``, in microseconds."""
        return {role: sidecar.until(until) for role, sidecar in self._sidecar_hashes.items()}

    def save(self) -> None:
        """Begins a checkpoint of everything up to the current position; ``background`` finishes it.

        One at a time: it waits for the one before. Raises what went wrong with that.
        """
        self.background.wait()
        if self.predictions is not None:
            self.predictions.flush(self.position.examples)
        groups = {"weights": self.state.arrays()}
        groups |= {"total": self.total.to_arrays(), "window": self.window.to_arrays()}
        groups |= {_other_group(name): metrics.to_arrays() for name, metrics in self.others.items()}
        arrays = {f"{group}|{name}": array for group, part in groups.items() for name, array in part.items()}
        arrays = self._copied(arrays)
        content = {
            **copy.deepcopy(self.progress()),
            "sidecars": self.sidecar_hashes(self.window_times[1] + 1),
            "lengths": {"metrics": self.metrics_file.length, "rejects": self.rejects_file.length},
            "prediction_parts": list(self.predictions.parts) if self.predictions is not None else [],
        }
        self.background.submit(partial(self._write_checkpoint, self.position.examples, arrays, content))
        self.saved_at = self.position.examples

    def _copied(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        before, self._copies = self._copies, {}
        for name, array in arrays.items():
            copied = before.get(name)
            if copied is None or (copied.shape, copied.dtype) != (array.shape, array.dtype):
                copied = np.empty_like(array, order="C")
            np.copyto(copied, array)
            self._copies[name] = copied
        return self._copies

    def _write_checkpoint(
        self, examples: int, arrays: Mapping[str, np.ndarray], content: Mapping[str, Any]
    ) -> None:
        self.metrics_file.sync()
        self.rejects_file.sync()
        kept = self.config.checkpoint
        checkpoint.save(self.folder / "checkpoints", examples, arrays, content, kept.keep, kept.disk_limit)

    def record(self, batch: Batch, logit: np.ndarray, slices: Sequence[np.ndarray]) -> None:
        """Takes the scores of a batch into metrics, predictions and rejects.

        Args:
            logit: float32 [N], of the batch's good rows.
            slices: for each family of constraints int32 [N].
        """
        rows = batch.rows
        self._reject(batch)
        self.position.rejected_rows += len(batch.rejects)
        self.position.read += len(rows) + len(batch.rejects)
        self.position.examples = batch.end
        self.position.scored_until = batch.last_query
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
        """Takes in the scores of rows of a constraint log, the ``source``-th; arguments as of ``record``."""
        name = list(self.others)[source - 1]
        rows = batch.rows
        self._reject(batch, name)
        self.position.others_rejected[name] += len(batch.rejects)
        self.position.others_read[name] += len(rows) + len(batch.rejects)
        self.position.others[name] = batch.end
        self.position.others_until[name] = batch.last_query
        if len(rows):
            ids = self._own_slices(source, slices)
            self.others[name].update(rows.label, self._finite(logit), rows.metric_weight, rows.query_id, ids)

    def learned(self, batch: Batch, applied: bool) -> None:
        """Notes that a batch was learned from."""
        rows = batch.rows
        self.position.learned = batch.end
        self.position.learned_until = batch.last_query
        self.position.trained_examples += len(rows)
        self.position.trained_rows += int(np.count_nonzero(rows.train_weight))
        if not applied:
            self.position.skipped_steps += 1
            self.position.skipped_ranges += [[batch.begin, batch.end]]
            del self.position.skipped_ranges[_RANGES_NOTED:]

    def _own_slices(self, source: int, slices: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        return {
            _slices_name(family.name): index
            for family, index in zip(self.state.families, slices, strict=True)
            if _is_measured(family, source)
        }

    def _reject(self, batch: Batch, log: str | None = None) -> None:
        for reject in describe_rejects(batch, log):
            self.rejects_file.append(reject)

    def check_rejects(self, paths: Mapping[str, Path]) -> None:
        """Raises InputError when too large a share of a log's rows is faulty; ``paths`` by name, "" the first log."""
        position, allowed = self.position, self.config.max_rejected_share
        counts = {"": (position.rejected_rows, position.read)}
        for name, rejected in position.others_rejected.items():
            counts[name] = rejected, position.others_read[name]
        for name, (rejected, read) in counts.items():
            if rejected > allowed * max(read, 1000):
                raise InputError(
                    f"{paths[name]}: {rejected} of the first {read} rows that were read are faulty "
                    f"(see {self.folder / 'rejects.jsonl'}); allowed: a share of {allowed} (max_rejected_share)"
                )

    def _finite(self, logit: np.ndarray) -> np.ndarray:
        self.position.nonfinite_predictions += int(np.count_nonzero(~np.isfinite(logit)))
        return finite_logits(logit, self.config.model.prior)

    def window_is_full(self) -> bool:
        """Whether the present window has as many examples as it should."""
        return bool(self.window.traffic.examples >= self.config.metrics.window_examples)

    def close_window(self, extra: Mapping[str, float]) -> dict[str, Any]:
        """Writes the line of the window that ends here (with ``extra``), and begins the next one."""
        summary = self.window.summary()
        ramps = self.ramps()
        line = {
            "examples": self.position.examples,
            "window_begin": self.window_times[0],
            "window_end": self.window_times[1],
            "window_examples": summary.pop("examples"),
            **{name: value for name, value in summary.items() if name not in _WHOLE_RUN_TABLES},
            "alpha2": ramps.pop("alpha2"),
            **{
                f"ramp_{name}": ramp
                for name, ramp in ramps.items()
                if getattr(self.config.objective, name) is not None
            },
            **self._dual_scalars(),
            **{f"shampoo_{name}": value for name, value in root_report(self.state).items()},
            **extra,
        }
        self.metrics_file.append(line)
        self._write_events(line)
        with self._writing_events():
            self.events.flush()
        self.total.merge(self.window)
        self.window = self._metrics()
        return line

    def _dual_scalars(self) -> dict[str, float]:
        scalars: dict[str, float] = {}
        for name, values in self.duals(_DUALS_SHOWN).items():
            keys = values if isinstance(values, dict) else range(len(values))
            scalars |= {f"dual_{name}_{key}": values[key] for key in keys}
        return scalars

    def duals(self, most: int = SLICES_MEASURED) -> dict[str, Any]:
        """lambda_k of every family, or the least and the greatest where there are more than ``most``."""
        duals: dict[str, Any] = {}
        for family, variable in zip(self.state.families, self.state.duals, strict=True):
            values = variable.numpy()
            if family.slices <= most:
                duals[family.name] = values.tolist()
            else:
                duals[family.name] = {"min": float(values.min()), "max": float(values.max())}
        return duals

    def close(self) -> None:
        """Closes the files, once a checkpoint that was begun is written."""
        self.background.close()
        self.metrics_file.close()
        self.rejects_file.close()
        with self._writing_events():
            self.events.close()


def finite_logits(logit: np.ndarray, prior: float) -> np.ndarray:
    """A prediction (float32 [N]) that is not finite becomes what it would have been without a model."""
    return np.where(np.isfinite(logit), logit, np.float32(math.log(prior / (1 - prior))))


def _is_measured(family: Family, source: int) -> bool:
    return family.source == source and family.slices <= SLICES_MEASURED


def _slices_name(family: str) -> str:
    # No feature has a colon in its name.
    return f"constraint:{family}"


def _other_group(name: str) -> str:
    return f"other:{name}"


def root_report(state: TrainState) -> dict[str, float | int]:
    """How Shampoo's roots are doing."""
    report = state.shampoo.report()
    # Here skipped_steps tells, which also knows of the rows' gradients.
    del report["nonfinite_steps"]
    return report
