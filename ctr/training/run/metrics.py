"""Metrics of a run: of the window that it is in, of all windows before, and of each of them over time."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ctr.data.reader import Rows
from ctr.data.schema import QUERY_SIZE, Schema
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.timeline import Timeline
from ctr.objective.bias_constraints import slice_names
from ctr.objective.losses import loss_terms
from ctr.objective.targets import label_outcomes
from ctr.training.config import TrainConfig
from ctr.training.run.event_file import CUMULATIVE
from ctr.training.run.features import MissingValues
from ctr.training.state import TrainState

# Of larger families of slices a line of metrics has the extremes of the duals only,
_DUALS_SHOWN = 32
# and of yet larger ones no calibration is kept, which takes 8 kB a slice, in every checkpoint too.
SLICES_MEASURED = 1000

FULL_WINDOW = 50_000
"""Examples of a window where the configuration leaves them open, but for those of the first so many."""
_SMALLEST_WINDOW = 64
_SHARE_BEFORE = 16


class RunMetrics:
    """The metrics of a run."""

    def __init__(
        self, config: TrainConfig, schema: Schema, state: TrainState, constraint_logs: Sequence[str]
    ) -> None:
        self._config, self._families = config, state.families
        counted = [QUERY_SIZE] if schema.counts_rows else []
        sliced = dict.fromkeys([*config.metrics.slices, *counted])
        self._slice_columns = {name: schema.single_valued.index(name) for name in sliced}
        own = [*sliced, *self._measured_families(0)]
        self.window, self.total = ProgressiveMetrics(own), ProgressiveMetrics(own)
        self.constraint_logs = {
            name: ProgressiveMetrics(list(self._measured_families(source)))
            for source, name in enumerate(constraint_logs, 1)
        }
        # Of rows whose label is known, and counts.
        self.labels = {name: ProgressiveMetrics() for name in config.objective.labels}
        self.missing = MissingValues(schema)
        self.timeline = Timeline()  # the sums of all windows, one by one
        self.window_times = [0, 0]  # query times, in microseconds, of the window's first and last row
        # Of the window: the sum of each term of the loss over its steps, each times its rows; last, these rows.
        self._terms = np.zeros(len(loss_terms(config.objective)) + 1)
        self._running: dict[str, Any] = {}
        self._running_calls = 0

    def _measured_families(self, source: int) -> dict[str, int]:
        """Returns the numbers of the families whose slices a log's metrics have, by names that no feature has."""
        return {
            f"constraint:{family.name}": number
            for number, family in enumerate(self._families)
            if family.source == source and family.slices <= SLICES_MEASURED
        }

    def family_slices(self) -> dict[str, list[str]]:
        """Returns what the slices of each measured family of constraints hold, by the family's name in the metrics."""
        constraints = self._config.objective.bias_constraints
        given = () if constraints is None else constraints.families
        measured = self._measured_families(0).items()
        return {name: slice_names(given[number], self._families[number]) for name, number in measured}

    def update(self, rows: Rows, logit: np.ndarray, slices: Sequence[np.ndarray]) -> None:
        """Adds rows of the log to the window: finite logits, float32 [N], and by family the slices, int32 [N]."""
        if not self.window.traffic.examples:
            self.window_times[0] = int(rows.query_time[0])
        self.window_times[1] = int(rows.query_time[-1])
        self.missing.update(rows)
        ids = {name: rows.ids[:, column] for name, column in self._slice_columns.items()}
        ids |= {name: slices[number] for name, number in self._measured_families(0).items()}
        self.window.update(rows.label, logit, rows.metric_weight, rows.query_id, ids)

    def update_constraint_log(
        self, source: int, rows: Rows, logit: np.ndarray, slices: Sequence[np.ndarray]
    ) -> None:
        """Adds rows of a constraint log, the ``source``-th from 1 on; for the arguments see ``update``."""
        metrics = list(self.constraint_logs.values())[source - 1]
        ids = {name: slices[number] for name, number in self._measured_families(source).items()}
        metrics.update(rows.label, logit, rows.metric_weight, rows.query_id, ids)

    def update_labels(self, rows: Rows, logits: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Adds rows of the log to the labels' metrics: for each label finite logits, float32 [N].

        Returns columns of predictions: by label its logits, and whether a row has it, NaN where that is not known.
        """
        columns: dict[str, np.ndarray] = {}
        for (name, metrics), logit in zip(self.labels.items(), logits, strict=True):
            label = self._config.objective.labels[name]
            outcome = label_outcomes(label, name, rows)
            known = np.flatnonzero(np.isfinite(outcome))
            if len(known):
                own = rows.metric_weight[known], rows.query_id[known]
                metrics.update(outcome[known], logit[known], *own)
            columns |= {f"logit_{name}": logit, f"label_{name}": outcome}
        return columns

    def add_terms(self, terms: np.ndarray, rows: np.ndarray) -> None:
        """Adds what each term of the loss, float32 [K, T], was in steps with so many rows, int64 [K]."""
        self._terms[:-1] += rows @ terms.astype(np.float64)
        self._terms[-1] += rows.sum()

    def window_is_full(self, ahead: int = 0) -> bool:
        """Tells whether the window is full, or will be with ``ahead`` more rows."""
        examples = self._config.metrics.window_examples
        if examples == "auto":
            examples = open_window(int(self.total.traffic.examples))
        return bool(self.window.traffic.examples + ahead >= examples)

    def close_window(self, examples: int) -> dict[str, Any]:
        """Adds the window to the total and the timeline, begins the next one, and returns what its line says."""
        begin, end = self.window_times
        line = self.window.line()
        self.timeline.add(self.window, examples, (begin, end))
        self.total.merge(self.window)
        self.window.clear()
        total = self.total.headline()
        rows = self._terms[-1]
        names = loss_terms(self._config.objective) if rows else ()
        terms = {name: float(one / rows) for name, one in zip(names, self._terms, strict=False)}
        self._terms[:] = 0
        return {
            "window_begin": begin,
            "window_end": end,
            "window_examples": line.pop("examples"),
            **line,
            "terms": terms,
            "cumulative": {name: total[name] for name in CUMULATIVE},
        }

    def running(self, is_window_end: bool) -> dict[str, Any]:
        """Returns the metrics of the pass so far, computed anew so seldom that they cost nothing.

        AUC, which takes thirty times as long, after 1, 2, 4, 8 ... batches, and with each window.
        """
        self._running_calls += 1
        calls = self._running_calls
        with_auc = is_window_end or not calls & (calls - 1)
        if with_auc or calls <= 32 or calls % 8 == 0:
            self._running |= self.total.running(self.window, with_auc)
        return dict(self._running)

    def to_arrays(self) -> dict[str, np.ndarray]:
        groups: dict[str, Mapping[str, np.ndarray]] = {
            "total": self.total.to_arrays(),
            "window": self.window.to_arrays(),
            "timeline": self.timeline.to_arrays(),
            "missing": {"counts": self.missing.counts},
            "terms": {"window": self._terms},
        }
        groups |= {f"other:{name}": metrics.to_arrays() for name, metrics in self.constraint_logs.items()}
        groups |= {f"label:{name}": metrics.to_arrays() for name, metrics in self.labels.items()}
        return {f"{group}|{name}": array for group, part in groups.items() for name, array in part.items()}

    def restore(self, arrays: Mapping[str, np.ndarray], window_times: Sequence[int]) -> None:
        """Goes on from what ``to_arrays`` returned. Raises KeyError or ValueError: arrays are missing or others."""
        groups: dict[str, dict[str, np.ndarray]] = {}
        for name, array in arrays.items():
            group, _, key = name.partition("|")
            groups.setdefault(group, {})[key] = array
        self.total = ProgressiveMetrics.from_arrays(groups["total"])
        self.window = ProgressiveMetrics.from_arrays(groups["window"])
        for name in self.constraint_logs:
            self.constraint_logs[name] = ProgressiveMetrics.from_arrays(groups[f"other:{name}"])
        for name in self.labels:
            self.labels[name] = ProgressiveMetrics.from_arrays(groups[f"label:{name}"])
        self.timeline = Timeline.from_arrays(groups["timeline"])
        self.missing.counts[:] = groups["missing"]["counts"]
        self._terms[:] = groups["terms"]["window"]
        self.window_times = list(window_times)


def open_window(begin: int) -> int:
    """Examples of a window that the configuration leaves open, from how many the run has measured before it.

    From the first 50,000 on windows have 50,000. Those before them are in parts, so that a short log has a course over
    time: of 64, and later of a sixteenth of what is before. The length of the log, which may grow, has no say.
    """
    left = FULL_WINDOW - begin
    if left <= 0:
        return FULL_WINDOW
    examples = max(_SMALLEST_WINDOW, begin // _SHARE_BEFORE)
    return examples if left >= 2 * examples else left


def finite_logits(logit: np.ndarray, prior: float) -> np.ndarray:
    """Replaces predictions (float32 [N]) that are not finite by what they would have been without a model."""
    return np.where(np.isfinite(logit), logit, np.float32(math.log(prior / (1 - prior))))


def duals_of(state: TrainState, limit: int = SLICES_MEASURED) -> dict[str, Any]:
    """Returns lambda_k of every family; the least and the greatest where there are more than ``limit``."""
    duals: dict[str, Any] = {}
    for family, variable in zip(state.families, state.duals, strict=True):
        values = variable.numpy()
        if family.slices <= limit:
            duals[family.name] = values.tolist()
        else:
            duals[family.name] = {"min": float(values.min()), "max": float(values.max())}
    return duals


def dual_scalars(state: TrainState) -> dict[str, float]:
    """Returns the duals that a line of metrics has, by name."""
    scalars: dict[str, float] = {}
    for name, values in duals_of(state, _DUALS_SHOWN).items():
        keys = values if isinstance(values, dict) else range(len(values))
        scalars |= {f"dual_{name}_{key}": values[key] for key in keys}
    return scalars
