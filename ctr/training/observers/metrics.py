"""Metrics of a run: of the current window, of all windows before it, and of each window over time."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.data.schema import QUERY_SIZE
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.timeline import Timeline
from ctr.eval.windows import PASS, Sums
from ctr.io.documents import json_number
from ctr.objective.bias_constraints import measured_families
from ctr.objective.losses import loss_terms
from ctr.training.observers.observer import Arrays, Observer, Scored, Turn, WatchedRun
from ctr.training.run.summary import calibration_warning

CUMULATIVE = (
    "per_query_auc", "auc", "logloss", "normalized_entropy", "calibration_bias", "calibration_ratio",
)  # fmt: skip
"""Metrics of the pass so far that each line has under ``cumulative``."""
_WINDOW = "window"


class Metrics(Observer):
    """Computes metrics of the log, of constraint logs, and of further labels over the rows that have the label."""

    name = "metrics"

    def begin(self, run: WatchedRun, state: Mapping[str, np.ndarray]) -> None:
        self._run, config, families = run, run.config, run.state.families
        counted = [QUERY_SIZE] if run.schema.counts_rows else []
        sliced = dict.fromkeys([*config.metrics.slices, *counted])
        self._slice_columns = {name: run.schema.single_valued.index(name) for name in sliced}
        # By log index: the name of its metrics, and the indices of the families that it is sliced by.
        self._names = [_WINDOW, *(f"log {name}" for name in run.inputs.constraint_logs)]
        self._families = [measured_families(families, source) for source in range(len(self._names))]
        slices = [[*sliced, *self._families[0]], *map(list, self._families[1:])]
        # Metrics by part of windows.parquet, and of the window, which is merged into the pass at its end.
        self._parts = {
            PASS: ProgressiveMetrics(slices[0]),
            **{name: ProgressiveMetrics(keys) for name, keys in zip(self._names, slices, strict=True)},
            **{f"label {name}": ProgressiveMetrics() for name in config.objective.labels},
        }
        self._timeline = Timeline()  # the sums of all windows, one by one
        # Sums over the window's steps of each loss term times the step's rows; last, the sum of these rows.
        self._terms = np.zeros(len(loss_terms(config.objective)) + 1)
        if state:
            self._restore(state)

    def batch(self, turn: Turn) -> None:
        for scored in turn.scored:
            self._update(scored)
        if turn.terms is not None:
            self._terms[:-1] += turn.terms
            self._terms[-1] += turn.learned

    def _update(self, scored: Scored) -> None:
        rows, source = scored.batch.rows, scored.source
        ids = {name: scored.slices[index] for name, index in self._families[source].items()}
        if not source:
            ids |= {name: rows.ids[:, column] for name, column in self._slice_columns.items()}
        part = self._parts[self._names[source]]
        part.update(rows.label, scored.logit, rows.metric_weight, rows.query_id, ids)
        for name, (outcome, logit) in scored.labels.items():
            valid = np.flatnonzero(np.isfinite(outcome))
            if len(valid):
                part = self._parts[f"label {name}"]
                part.update(outcome[valid], logit[valid], rows.metric_weight[valid], rows.query_id[valid])

    def window(self, line: dict[str, Any]) -> None:
        window, total = self._parts[_WINDOW], self._parts[PASS]
        measured = window.line()
        del measured["examples"]
        self._timeline.add(window, line["examples"], (line["window_begin"], line["window_end"]))
        total.merge(window)
        window.clear()
        rows = self._terms[-1]
        names = loss_terms(self._run.config.objective) if rows else ()
        terms = {f"loss_{name}": float(term / rows) for name, term in zip(names, self._terms, strict=False)}
        self._terms[:] = 0
        so_far = total.headline()
        line |= {**measured, **terms, "cumulative": {name: so_far[name] for name in CUMULATIVE}}

    def running(self, with_auc: bool) -> dict[str, Any]:
        """Returns the metrics of the pass so far, the window included; AUC takes thirty times as long as the others."""
        return self._parts[PASS].running(self._parts[_WINDOW], with_auc)

    def checkpoint(self) -> Arrays:
        states: dict[str, ProgressiveMetrics | Timeline] = {**self._parts, "timeline": self._timeline}
        arrays = {
            f"{part}|{name}": array
            for part, state in states.items()
            for name, array in state.to_arrays().items()
        }
        return {**arrays, "terms|window": self._terms}

    def _restore(self, state: Mapping[str, np.ndarray]) -> None:
        groups: dict[str, dict[str, np.ndarray]] = {}
        for name, array in state.items():
            group, _, key = name.partition("|")
            groups.setdefault(group, {})[key] = array
        self._terms[:] = groups["terms"]["window"]
        self._timeline = Timeline.from_arrays(groups["timeline"])
        for part, metrics in self._parts.items():
            metrics.merge(ProgressiveMetrics.from_arrays(groups[part]))

    def warnings(self) -> list[str]:
        lines = []
        for name in self._run.config.objective.labels:
            label = self._parts[f"label {name}"]
            rows, weights = int(label.traffic.examples), label.logloss.class_weight.sum(axis=0)
            if not rows:
                lines.append(f"label {name}: nothing was learned: it is known of no row that was scored")
            elif weights.any() and not weights.all():
                only = "none of its {} rows is" if weights[0] else "all of its {} rows are"
                lines.append(f"label {name}: nothing was learned: {only.format(rows)} positive")
        return lines

    def end(self, summary: dict[str, Any]) -> list[pa.Table]:
        config = self._run.config
        results = {part: metrics.summary() for part, metrics in self._parts.items() if part != _WINDOW}
        summary |= results[PASS]
        summary["last_window"] = last_window(self._timeline)
        summary["constraint_logs"] = {
            name: results[f"log {name}"] for name in self._run.inputs.constraint_logs
        }
        if config.objective.labels:
            summary["labels"] = {name: results[f"label {name}"] for name in config.objective.labels}
        failed = summary["learning_failure"] is not None
        summary["calibration_warning"] = None if failed else calibration_warning(summary, config)
        sums = Sums()
        for part in results:
            sums.add_metrics(part, self._parts[part])
        sums.add_timeline(self._timeline)
        return [sums.table()]


def last_window(timeline: Timeline) -> dict[str, Any] | None:
    """Returns the calibration of ``Timeline.last_window`` for summary.json, or None without a window."""
    last = timeline.last_window()
    if not len(last):
        return None
    _, begin, end, examples, _ = last.windows[0].tolist()
    point, low, high = (json_number(values[0]) for values in last.series("calibration_ratio"))
    return {
        "window_begin": begin,
        "window_end": end,
        "examples": examples,
        "calibration_ratio": point,
        "calibration_ratio_ci95": [low, high],
    }
