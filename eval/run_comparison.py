"""Compares two runs over the same log: gains and costs of the second one."""

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ctr.eval import display
from ctr.eval.compare import compare, same_examples
from ctr.eval.display import Number
from ctr.eval.prediction_difference import PairedPredictions, pair_predictions
from ctr.eval.run_files import COMPARED, Run, prediction_parts, read_environment, read_run
from ctr.eval.tidy import Row, as_records, row, tidy
from ctr.io.errors import InputError

COSTS = {
    "step_ms_p50": "step, median ms (less is faster)",
    "examples_per_second": "examples/s (more is faster)",
    "parameters_dense": "dense parameters",
    "parameters_embedding": "embedding parameters",
}
"""Costs of a run in summary.json, with their titles."""


SEED_NOTE = (
    "The configurations are the same but for the seed. The intervals are over queries and do not cover how far runs of "
    "different seeds lie apart, so that a metric is said to differ, and never to be better or worse; ctr replay "
    "repeats configurations with several seeds."
)
_TEXT_WIDTH = 110
_VALUE_WIDTH = 36
_TIMES_NOTE = (
    "The range of b / a is from the quartiles of all steps. The runs did not take turns, so that another load on the "
    "machine counts; examples/s is with reading and compiling."
)
_BATCH_NOTE = "The batches differ, so that the times of steps have no ratio: examples/s compares the runs."


@dataclass(frozen=True)
class Cost:
    """A cost of two runs, with their ratio; None where unknown."""

    a: float | None
    b: float | None
    ratio: float | None = None  # b / a
    span: tuple[float, float] | None = None  # the range of b / a for a step, from the quartiles of steps

    @property
    def verdict(self) -> str:
        """Returns a note if the ratio is not distinguishable from 1, else an empty string."""
        return "not significant" if self.span is not None and self.span[0] <= 1 <= self.span[1] else ""

    @property
    def bounds(self) -> str:
        return "" if self.span is None else f"[{display.times(self.span[0])}, {display.times(self.span[1])}]"


class NotComparableError(InputError):
    """Raised for two runs that did not score the same examples."""


@dataclass(frozen=True)
class Difference:
    """A setting that differs between trees: its dotted key, and by name of the tree its value, if it has one."""

    key: str
    values: dict[str, Any]

    def text(self, side: str) -> str:
        """Formats the value of a side as JSON; `ABSENT` if it has none."""
        return json.dumps(self.values[side]) if side in self.values else display.ABSENT


@dataclass(frozen=True)
class RunComparison:
    """Comparison of run b with run a, the baseline."""

    run_a: Run
    run_b: Run
    metrics: pd.DataFrame  # rows of `ctr.eval.compare.compare`, in the order of `COMPARED`
    predictions: PairedPredictions | None  # None when unknown
    no_predictions: str  # why they are unknown
    costs: dict[str, Cost]
    configuration: list[Difference]  # where config.yaml differs
    environment: list[Difference]  # if any, speeds may differ by more than the configuration

    @property
    def differs_by_seed(self) -> bool:
        return is_seed_alone(self.configuration)

    @property
    def cost_notes(self) -> list[str]:
        notes = [_TIMES_NOTE] if any(cost.span is not None for cost in self.costs.values()) else []
        return [*notes, *([_BATCH_NOTE] if _other_batches(self.configuration) else [])]

    def table(self) -> pd.DataFrame:
        """Returns all numbers as a tidy table (`ctr.eval.tidy`).

        ``METRIC`` and costs have rows for the runs ``a`` and ``b``. ``METRIC_difference`` is b - a,
        ``METRIC_change_percent`` the same in percent of a. ``METRIC_significant`` is 1 if the difference's interval
        excludes 0, else 0, and absent without an interval. ``COST_ratio`` is b / a, with its range (see `Cost`). If
        predictions could be paired, ``prediction_difference`` follows, with its counts of examples.
        """
        rows: list[Row] = []
        for name, run in (("a", self.run_a), ("b", self.run_b)):
            line = run.metrics.line()
            rows += [row(key, Number(line[key], *line[f"{key}_ci95"]), run=name) for key in COMPARED]
            rows += [row(key, run.number(key), run=name) for key in COSTS]
        for metric, values in self.metrics.iterrows():
            ends = (float(values[key]) for key in ("difference", "ci95_low", "ci95_high"))
            rows.append(row(f"{metric}_difference", Number(*ends)))
            rows.append(row(f"{metric}_change_percent", float(values["relative_percent"])))
            if not values["no_interval"]:
                rows.append(row(f"{metric}_significant", float(values["significant"])))
        for key, cost in self.costs.items():
            if cost.ratio is not None:
                rows.append(row(f"{key}_ratio", Number(cost.ratio, *(cost.span or (None, None)))))
        if (paired := self.predictions) is not None:
            rows.append(row("prediction_difference", paired.difference))
            counts = {"examples": paired.examples, "only_a": paired.only_a, "only_b": paired.only_b}
            rows += [row(f"prediction_difference_{key}", count) for key, count in counts.items()]
        return tidy(rows)

    def as_dict(self) -> dict[str, Any]:
        """Returns everything for JSON; None where undefined."""
        reasons = {str(metric): reason for metric, reason in self.metrics["no_interval"].items()}
        reasons["prediction_difference"] = self.no_predictions
        return {
            "baseline": "a",
            "run_a": str(self.run_a.folder),
            "run_b": str(self.run_b.folder),
            "log_sha256": self.run_a.log_sha256,
            "examples": int(self.run_a.metrics.traffic.examples),
            "queries": int(self.run_a.metrics.traffic.queries),
            "results": as_records(self.table()),
            "verdicts": {str(metric): verdict for metric, verdict in self.metrics["verdict"].items()},
            "unavailable": {name: reason for name, reason in reasons.items() if reason},
            "differs_by_seed_alone": self.differs_by_seed,
            "configuration": [{"key": entry.key, **entry.values} for entry in self.configuration],
            "environment": [{"key": entry.key, **entry.values} for entry in self.environment],
        }

    def as_text(self) -> str:
        traffic = self.run_a.metrics.traffic
        lines = [
            f"a, the baseline: {self.run_a.folder}",
            f"b: {self.run_b.folder}",
            f"{int(traffic.examples):,} examples, {int(traffic.queries):,} queries, "
            f"log {self.run_a.log_sha256[:12]}",
            "",
            *display.aligned([["", "a", "b", "b - a", "95% interval", "relative", ""], *self.metric_cells()]),
            *display.no_interval_lines({str(name): why for name, why in self.metrics["no_interval"].items()}),
            *(textwrap.wrap(SEED_NOTE, _TEXT_WIDTH) if self.differs_by_seed else []),
            "",
            *self._prediction_lines(),
            "",
            *display.aligned([["cost", "a", "b", "b / a", "range", ""], *self.cost_cells()]),
            *(line for note in self.cost_notes for line in textwrap.wrap(note, _TEXT_WIDTH)),
        ]
        if not self.configuration:
            lines += ["", "The configurations are equal."]
        for title, differences in (("configuration", self.configuration), ("environment", self.environment)):
            if differences:
                rows = [[entry.key, *(_clipped(entry.text(side)) for side in "ab")] for entry in differences]
                lines += ["", *display.aligned([[title, "a", "b"], *rows])]
        if self.environment:
            lines.append("Speeds may differ by more than the configuration.")
        return "\n".join(lines)

    def metric_cells(self) -> list[list[str]]:
        """Returns each metric's title, both values, the difference, its interval, the relative change, a verdict."""
        rows = []
        for metric, values in self.metrics.iterrows():
            ends = map(float, values[["a", "b", "difference", "ci95_low", "ci95_high"]])
            relative = values["relative_percent"]
            text = display.ABSENT if math.isnan(relative) else f"{display.fixed(relative, 2, signed=True)}%"
            rows.append([*display.paired_cells(str(metric), *ends), text, values["verdict"]])
        return rows

    def cost_cells(self) -> list[list[str]]:
        """Returns each cost's title, both values, their ratio, its range, and whether it is distinguishable from 1."""
        return [
            [
                COSTS[key],
                display.amount(cost.a),
                display.amount(cost.b),
                display.times(cost.ratio),
                cost.bounds,
                cost.verdict,
            ]
            for key, cost in self.costs.items()
        ]

    def _prediction_lines(self) -> list[str]:
        paired = self.predictions
        if paired is None:
            return [f"prediction difference: unknown, because {self.no_predictions}"]
        number = paired.difference.number()
        return [
            f"prediction difference: {number.text()}  {number.bounds()}",
            f"  {paired.examples:,} examples in both, {paired.only_a:,} only in a, {paired.only_b:,} only in b",
        ]


def compare_runs(run_a: Path, run_b: Path) -> RunComparison:
    """Compares two finished runs. Raises NotComparableError if they read different logs or scored other examples."""
    return compare_read_runs(read_run(run_a), read_run(run_b))


def compare_read_runs(run_a: Run, run_b: Run) -> RunComparison:
    """Compares two runs that are already read; raises as `compare_runs` does."""
    if run_a.log_sha256 != run_b.log_sha256:
        raise NotComparableError(
            f"{run_a.folder} and {run_b.folder} read different logs (log_sha256 {run_a.log_sha256[:12]} and "
            f"{run_b.log_sha256[:12]}); allowed: runs over the same log, because the comparison pairs their queries"
        )
    if not same_examples(run_a.metrics, run_b.metrics):
        counts = [int(run.metrics.traffic.examples) for run in (run_a, run_b)]
        raise NotComparableError(
            f"{run_a.folder} and {run_b.folder} scored different examples of the log ({counts[0]} and {counts[1]}, "
            "or with other weights); allowed: runs that scored the same, because the comparison pairs their queries"
        )
    predictions, no_predictions = _pair_predictions(run_a, run_b)
    metrics = compare(run_a.metrics, run_b.metrics).loc[list(COMPARED)]
    configuration = differing_keys({"a": run_a.config, "b": run_b.config})
    if is_seed_alone(configuration):
        metrics["verdict"] = metrics["verdict"].replace({"better": "differs", "worse": "differs"})
    return RunComparison(
        run_a=run_a,
        run_b=run_b,
        metrics=metrics,
        predictions=predictions,
        no_predictions=no_predictions,
        costs={key: _cost(key, run_a, run_b, _other_batches(configuration)) for key in COSTS},
        configuration=configuration,
        environment=differing_keys(
            {"a": read_environment(run_a.folder), "b": read_environment(run_b.folder)}
        ),
    )


def differing_keys(trees: Mapping[str, dict[str, Any]]) -> list[Difference]:
    """Returns the settings that differ between the named trees, sorted by key."""
    flat = {side: leaves(tree) for side, tree in trees.items()}
    differences = []
    for key in sorted(set().union(*flat.values())):
        values = {side: tree[key] for side, tree in flat.items() if key in tree}
        if len(values) < len(trees) or any(value != next(iter(values.values())) for value in values.values()):
            differences.append(Difference(key, values))
    return differences


def _clipped(text: str) -> str:
    """Cuts the middle out of a long value: ``ctr compare --json`` has all of it."""
    half = _VALUE_WIDTH // 2
    return text if len(text) <= _VALUE_WIDTH else f"{text[: half - 2]}...{text[1 - half :]}"


def is_seed_alone(configuration: Sequence[Difference]) -> bool:
    """Returns whether the seed is the only difference between two configurations."""
    return bool(configuration) and all(entry.key == "seed" for entry in configuration)


def _other_batches(configuration: Sequence[Difference]) -> bool:
    return any(entry.key.startswith("batch.") for entry in configuration)


def _cost(key: str, run_a: Run, run_b: Run, other_batches: bool) -> Cost:
    a, b = run_a.number(key), run_b.number(key)
    is_step = key == "step_ms_p50"
    if a is None or b is None or a == 0 or (is_step and other_batches):
        return Cost(a, b)
    return Cost(a, b, b / a, _quartile_span(run_a, run_b) if is_step else None)


def _quartile_span(run_a: Run, run_b: Run) -> tuple[float, float] | None:
    low_a, high_a, low_b, high_b = (
        run.number(f"step_ms_{quartile}") for run in (run_a, run_b) for quartile in ("p25", "p75")
    )
    if low_b is None or high_b is None or not low_a or not high_a:
        return None
    return low_b / high_a, high_b / low_a


def _pair_predictions(run_a: Run, run_b: Run) -> tuple[PairedPredictions | None, str]:
    lacking = [str(run.folder) for run in (run_a, run_b) if not prediction_parts(run.folder)]
    if lacking:
        return None, f"no predictions were recorded in {' and '.join(lacking)}"
    try:
        return pair_predictions(run_a.folder, run_b.folder), ""
    except InputError:
        raise
    except ValueError as error:
        return None, f"the predictions cannot be joined: {error}"


def leaves(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the values of a tree of settings by their dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
