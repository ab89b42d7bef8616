"""Metrics of a training run, collected as it predicts."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from ctr.eval.arrays import IntArray
from ctr.eval.auc import StreamingAUC
from ctr.eval.calibration import Calibration, SliceCalibration, calibration_buckets
from ctr.eval.intervals import Estimate
from ctr.eval.logloss import Logloss
from ctr.eval.per_query_auc import PerQueryAUC
from ctr.eval.rows import ScoredRows, scored_rows
from ctr.eval.states import Arrays, SumState
from ctr.io.documents import json_number

if TYPE_CHECKING:
    import pandas as pd

SLICES_SHOWN = 20  # slices of a feature that `ProgressiveMetrics.summary` lists, the heaviest first

_SLICES = "slices/"


class Traffic(SumState):
    """Counts of rows and queries read, including weight 0; each int64 []."""

    LAYOUT: ClassVar = {"examples": ((), np.int64), "queries": ((), np.int64)}

    examples: IntArray
    queries: IntArray

    def update(self, rows: ScoredRows) -> None:
        self.examples += rows.examples
        self.queries += rows.queries


class ProgressiveMetrics:
    """Mergeable state of all metrics of progressive validation (FF section 2.1).

    Each example is added once, with the prediction from before training on it. A window of a run has a
    separate state, which is merged into the run's, then cleared and reused: allocating its 7 MB anew
    would cost more than the window's rows. Rows of metric weight 0 count in ``traffic`` and nowhere
    else. ``slices`` names the features whose ids are slices for calibration.

        window.update(...)      # every batch
        window.line()           # at the window's end: a line of metrics.jsonl
        run.merge(window); window.clear()
        run.summary()           # at the run's end, with tables

    Example:
        >>> window = ProgressiveMetrics()
        >>> window.update(label=[1, 0, 0], logit=[0.4, -1.0, 0.4], weight=[1, 1, 1], query_id=[7, 7, 8])
        >>> {name: window.headline()[name] for name in ("examples", "auc", "per_query_auc")}
        {'examples': 3, 'auc': 0.75, 'per_query_auc': 1.0}
    """

    def __init__(self, slices: Sequence[str] = ()) -> None:
        self.traffic = Traffic()
        self.auc = StreamingAUC()
        self.per_query_auc = PerQueryAUC()
        self.logloss = Logloss()
        self.calibration = Calibration()
        self.slices = {name: SliceCalibration() for name in slices}

    def update(
        self,
        label: npt.ArrayLike,
        logit: npt.ArrayLike,
        weight: npt.ArrayLike,
        query_id: npt.ArrayLike,
        slices: Mapping[str, npt.ArrayLike] | None = None,
    ) -> None:
        """Adds a batch of whole queries; columns as `ctr.eval.rows.scored_rows` takes them.

        ``slices`` are int64 [N] for each name passed to the constructor. Raises ValueError where a column is
        invalid, or lengths or slice names differ.
        """
        rows = scored_rows(label, logit, weight, query_id)
        ids = slices or {}
        self._check_slices(ids)
        for name, state in self.slices.items():
            state.update(rows, ids[name])
        for metric in (self.traffic, self.auc, self.per_query_auc, self.logloss, self.calibration):
            metric.update(rows)

    def merge(self, other: Self) -> None:
        """Adds the batches of `other`, which is unchanged. Raises ValueError where slices differ."""
        self._check_slices(other.slices)
        others = other._states()
        for name, state in self._states().items():
            state.merge(others[name])

    def clear(self) -> None:
        """Resets the state, with the same slices and in the same memory."""
        for state in self._states().values():
            state.clear()

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the state as plain arrays, named like ``auc/fine`` and ``slices/position/key``."""
        return {
            f"{name}/{key}": array
            for name, state in self._states().items()
            for key, array in state.to_arrays().items()
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Inverts `to_arrays`, slices included; raises ValueError for anything else."""
        parts: dict[str, dict[str, npt.NDArray[Any]]] = {}
        for path, array in arrays.items():
            name, _, key = path.rpartition("/")
            parts.setdefault(name, {})[key] = array
        metrics = cls([name.removeprefix(_SLICES) for name in parts if name.startswith(_SLICES)])
        states = metrics._states()
        if set(parts) != set(states):
            raise ValueError(f"ProgressiveMetrics has states {sorted(states)}, got {sorted(parts)}")
        for name, state in states.items():
            state.merge(state.from_arrays(parts[name]))
        return metrics

    def headline(self) -> dict[str, float | int | None]:
        """Returns counts and point values for JSON, without intervals and tables; None where undefined."""
        return {
            "examples": int(self.traffic.examples),
            "queries": int(self.traffic.queries),
            "queries_scored": int(self.per_query_auc.scored.sum()),
            "queries_one_class": int(self.per_query_auc.one_class.sum()),
            "weight_sum": float(self.logloss.class_weight.sum()),
            "auc": json_number(self.auc.result()),
            "auc_error_bound": json_number(self.auc.error_bound()),
            "logits_clipped": int(self.auc.clipped.sum()),
            "per_query_auc": json_number(self.per_query_auc.result()),
            "logloss": json_number(self.logloss.result()),
            "normalized_entropy": json_number(self.logloss.normalized_entropy()),
            "calibration_bias": json_number(self.calibration.result()),
            "calibration_ratio": json_number(self.calibration.prediction_ratio()),
        }

    def running(self, window: Self, with_auc: bool) -> dict[str, float | int | None]:
        """Returns some of `headline` over this state and a window that is not merged yet, for a progress bar."""

        def both(name: str) -> Any:
            state = type(getattr(self, name))()
            state.merge(getattr(self, name))
            state.merge(getattr(window, name))
            return state

        calibration = both("calibration")
        out: dict[str, float | int | None] = {
            "per_query_auc": json_number(both("per_query_auc").result()),
            "logloss": json_number(both("logloss").result()),
            "calibration_bias": json_number(calibration.result()),
            "calibration_ratio": json_number(calibration.prediction_ratio()),
        }
        if with_auc:
            out["auc"] = json_number(both("auc").result())
        return out

    def line(self) -> dict[str, Any]:
        """Returns `headline` with ``<metric>_ci95`` [low, high], the 95% intervals, fast enough for every window."""
        out: dict[str, Any] = dict(self.headline())
        for name, estimate in self.estimates().items():
            out[f"{name}_ci95"] = [json_number(float(end)) for end in estimate.interval()]
        out["calibration_ratio_ci95"] = [json_number(end) for end in self.calibration.ratio_interval()]
        return out

    def summary(self) -> dict[str, Any]:
        """Returns `line` and tables: calibration by decile and of the heaviest slices, PerQueryAUC by query size."""
        out = self.line()
        out["calibration_buckets"] = _records(calibration_buckets(self.auc), "bias_ci95")
        out["per_query_auc_by_size"] = _records(self.per_query_auc.by_size(), "auc_ci95")
        out["calibration_slices"] = {name: _heaviest(state) for name, state in self.slices.items()}
        return out

    def estimates(self) -> dict[str, Estimate]:
        """Returns the estimates, with replicates, of all metrics that have an interval, except calibration_ratio."""
        return {
            "auc": self.auc.estimate(),
            "per_query_auc": self.per_query_auc.estimate(),
            "logloss": self.logloss.estimate(),
            "normalized_entropy": self.logloss.normalized_entropy_estimate(),
            "calibration_bias": self.calibration.estimate(),
        }

    def _states(self) -> dict[str, Any]:
        return {
            "traffic": self.traffic,
            "auc": self.auc,
            "per_query_auc": self.per_query_auc,
            "logloss": self.logloss,
            "calibration": self.calibration,
            **{_SLICES + name: state for name, state in self.slices.items()},
        }

    def _check_slices(self, slices: Mapping[str, object]) -> None:
        if set(slices) != set(self.slices):
            raise ValueError(f"slices must be {sorted(self.slices)}, got {sorted(slices)}")


def _heaviest(state: SliceCalibration) -> dict[str, Any]:
    table = state.result()
    heaviest = table.sort_values(["weight", "id"], ascending=[False, True]).head(SLICES_SHOWN)
    return {"slices": len(table), "heaviest": _records(heaviest, "bias_ci95")}


def _records(table: "pd.DataFrame", interval: str) -> list[dict[str, Any]]:
    """Converts the rows to dicts, with ci95_low and ci95_high as the list `interval`."""
    records = []
    for row in table.to_dict("records"):
        record = {
            str(key): json_number(value) if isinstance(value, float) else value for key, value in row.items()
        }
        for name in [
            key.removesuffix("_low") for key in record if key.endswith("_low") and key != "ci95_low"
        ]:
            record[f"{name}_ci95"] = [record.pop(f"{name}_low"), record.pop(f"{name}_high")]
        record[interval] = [record.pop("ci95_low"), record.pop("ci95_high")]
        records.append(record)
    return records
