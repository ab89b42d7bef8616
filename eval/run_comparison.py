"""Two runs over the same log: what the second one gained, and what it cost."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ctr.eval.compare import compare, same_examples
from ctr.eval.display import (
    ABSENT,
    VERDICT_WIDTH,
    aligned,
    amount,
    decimals_for,
    fixed,
    interval,
    no_interval_lines,
    paired_cells,
    times,
)
from ctr.eval.paired_predictions import PairedPredictions, pair_predictions
from ctr.eval.run_files import COMPARED, Run, prediction_parts, read_environment, read_run
from ctr.io.documents import json_number
from ctr.io.errors import InputError

COSTS = {
    "step_ms_p50": "step, median ms",
    "examples_per_second": "examples/s",
    "parameters_dense": "dense parameters",
    "parameters_embedding": "embedding parameters",
}
"""Entries of summary.json that tell what a run costs, with their titles."""


class NotComparableError(InputError):
    """Two runs that did not score the same examples."""


@dataclass(frozen=True)
class Difference:
    """A setting that differs.

    Attributes:
        key: its path, ``model.crosses.rank``.
        values: its value by side, ``a`` and ``b``; a side that lacks the key is absent.
    """

    key: str
    values: dict[str, Any]

    def shown(self, side: str) -> str:
        """The value of a side as JSON; `ABSENT` when it has none."""
        return json.dumps(self.values[side]) if side in self.values else ABSENT


@dataclass(frozen=True)
class RunComparison:
    """Run b against run a.

    Attributes:
        run_a: the run to compare with.
        run_b: the run under study.
        metrics: rows as `ctr.eval.compare.compare` gives them, in the order of `COMPARED`.
        predictions: how far apart the predictions lie; None when that is unknown.
        no_predictions: why it is unknown.
        costs: for each of `COSTS` its value in run a, in run b, and b / a; None where unknown.
        configuration: where config.yaml differs.
        environment: where environment.json differs. If it does, speeds may differ by more than the
            configuration.
    """

    run_a: Run
    run_b: Run
    metrics: pd.DataFrame
    predictions: PairedPredictions | None
    no_predictions: str
    costs: dict[str, tuple[float | None, float | None, float | None]]
    configuration: list[Difference]
    environment: list[Difference]

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON; None where undefined."""
        paired = self.predictions
        difference: dict[str, Any] = {"unavailable": self.no_predictions}
        if paired is not None:
            low, high = paired.difference.interval()
            difference = {
                "value": json_number(float(paired.difference.point)),
                "ci95": [json_number(float(low)), json_number(float(high))],
                "examples": paired.examples,
                "only_a": paired.only_a,
                "only_b": paired.only_b,
            }
        return {
            "run_a": str(self.run_a.folder),
            "run_b": str(self.run_b.folder),
            "log_sha256": self.run_a.log_sha256,
            "examples": int(self.run_a.metrics.traffic.examples),
            "queries": int(self.run_a.metrics.traffic.queries),
            "metrics": {
                str(metric): {
                    "a": json_number(row["a"]),
                    "b": json_number(row["b"]),
                    "difference": json_number(row["difference"]),
                    "ci95": [json_number(row["ci95_low"]), json_number(row["ci95_high"])],
                    "relative_percent": json_number(row["relative_percent"]),
                    "significant": None if row["no_interval"] else bool(row["significant"]),
                    "no_interval": row["no_interval"] or None,
                    "verdict": row["verdict"],
                }
                for metric, row in self.metrics.iterrows()
            },
            "prediction_difference": difference,
            "cost": {key: {"a": a, "b": b, "ratio": ratio} for key, (a, b, ratio) in self.costs.items()},
            "configuration": [{"key": entry.key, **entry.values} for entry in self.configuration],
            "environment": [{"key": entry.key, **entry.values} for entry in self.environment],
        }

    def as_text(self) -> str:
        """Everything, as tables for a terminal."""
        traffic = self.run_a.metrics.traffic
        lines = [
            f"a: {self.run_a.folder}",
            f"b: {self.run_b.folder}",
            f"{int(traffic.examples):,} examples, {int(traffic.queries):,} queries, "
            f"log {self.run_a.log_sha256[:12]}",
            "",
            *aligned([["", "a", "b", "b - a", "95% interval", "relative", ""], *self._metric_rows()]),
            *no_interval_lines({str(name): row["no_interval"] for name, row in self.metrics.iterrows()}),
            "",
            *self._prediction_lines(),
            "",
            *aligned(
                [["cost", "a", "b", "b / a"]]
                + [
                    [COSTS[key], amount(a), amount(b), times(ratio)]
                    for key, (a, b, ratio) in self.costs.items()
                ]
            ),
        ]
        if not self.configuration:
            lines += ["", "The configurations are equal."]
        for title, differences in (("configuration", self.configuration), ("environment", self.environment)):
            if differences:
                rows = [[entry.key, entry.shown("a"), entry.shown("b")] for entry in differences]
                lines += ["", *aligned([[title, "a", "b"], *rows])]
        if self.environment:
            lines.append("Speeds may differ by more than the configuration.")
        return "\n".join(lines)

    def _metric_rows(self) -> list[list[str]]:
        rows = []
        for metric, row in self.metrics.iterrows():
            low, high, name = row["ci95_low"], row["ci95_high"], str(metric)
            relative = row["relative_percent"]
            rows.append(
                [
                    *paired_cells(name, row["a"], row["b"], row["difference"], low, high),
                    ABSENT if math.isnan(relative) else f"{fixed(relative, 2, signed=True)}%",
                    row["verdict"].ljust(VERDICT_WIDTH),
                ]
            )
        return rows

    def _prediction_lines(self) -> list[str]:
        paired = self.predictions
        if paired is None:
            return [f"prediction difference: unknown, because {self.no_predictions}"]
        low, high = paired.difference.interval()
        decimals = decimals_for(float(low), float(high))
        return [
            f"prediction difference: {fixed(float(paired.difference.point), decimals)}  "
            f"{interval(float(low), float(high), decimals)}",
            f"  {paired.examples:,} examples in both, {paired.only_a:,} only in a, {paired.only_b:,} only in b",
        ]


def compare_runs(run_a: Path, run_b: Path) -> RunComparison:
    """Compare two finished runs, paired query bucket by query bucket.

    Raises:
        NotComparableError: the two read different logs, or scored different examples of one.
        InputError: a run cannot be read.
    """
    return compare_read_runs(read_run(run_a), read_run(run_b))


def compare_read_runs(run_a: Run, run_b: Run) -> RunComparison:
    """`compare_runs` for runs that are read already.

    Raises:
        NotComparableError: as there.
        InputError: as there.
    """
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
    return RunComparison(
        run_a=run_a,
        run_b=run_b,
        metrics=compare(run_a.metrics, run_b.metrics).loc[list(COMPARED)],
        predictions=predictions,
        no_predictions=no_predictions,
        costs={key: _cost(run_a.number(key), run_b.number(key)) for key in COSTS},
        configuration=differing_keys(run_a.config, run_b.config),
        environment=differing_keys(read_environment(run_a.folder), read_environment(run_b.folder)),
    )


def differing_keys(a: dict[str, Any], b: dict[str, Any]) -> list[Difference]:
    """Where two trees of settings differ, by ascending key."""
    sides = {"a": dict(_leaves(a)), "b": dict(_leaves(b))}
    differences = []
    for key in sorted(sides["a"].keys() | sides["b"].keys()):
        values = {side: leaves[key] for side, leaves in sides.items() if key in leaves}
        if len(values) < 2 or values["a"] != values["b"]:
            differences.append(Difference(key, values))
    return differences


def _cost(a: float | None, b: float | None) -> tuple[float | None, float | None, float | None]:
    return a, b, None if a is None or b is None or a == 0 else b / a


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


def _leaves(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            leaves += _leaves(value, f"{prefix}{key}.")
        else:
            leaves.append((f"{prefix}{key}", value))
    return leaves
