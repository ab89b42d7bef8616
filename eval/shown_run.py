"""A run as a report shows it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ctr.eval import display
from ctr.eval.calibration import calibration_buckets
from ctr.eval.plot_style import COLORS
from ctr.eval.run_comparison import COSTS
from ctr.eval.run_faults import Fault, faults_of
from ctr.eval.run_files import (
    Run,
    config_text,
    count_rejects,
    distinct_names,
    read_environment,
    read_run,
    read_weight_spectra,
    read_windows,
)
from ctr.eval.weight_spectra import WeightSpectrum

COUNTS = {
    "log_rows": "rows of the log",
    "batches": "batches",
    "skipped_steps": "skipped steps",
    "rollbacks": "rollbacks",
    "nonfinite_predictions": "predictions that were not finite",
    "rejected_rows": "rejected rows",
}
"""Entries of summary.json that tell how the pass went, with their titles."""

SIGNS = "●■▲◆▼✚"
"""`plot_style.MARKERS` as text."""

_SIZE_DECIMALS = 4


@dataclass(frozen=True)
class ShownRun:
    """A run with its name, its colour and its tables.

    Attributes:
        name: tells the run from the others.
        color: its colour in all plots.
        sign: its marker in all plots.
        run: what was read.
        summary: the metrics, with intervals and tables, as `ProgressiveMetrics.summary` gives them.
        windows: the windows of the pass.
        deciles: calibration by decile of prediction.
        sizes: PerQueryAUC by query size.
        config: text of config.yaml.
        environment: keys and values of environment.json.
        costs: what it costs, for each of `COSTS`.
        counts: how the pass went, for each of `COUNTS`.
        faults: what went wrong.
        weights: spectra of the weight matrices; None when the run did not write them.
    """

    name: str
    color: str
    sign: str
    run: Run
    summary: dict[str, Any]
    windows: pd.DataFrame
    deciles: pd.DataFrame
    sizes: pd.DataFrame
    config: str
    environment: dict[str, str]
    costs: dict[str, float | None]
    counts: dict[str, float | None]
    faults: list[Fault]
    weights: list[WeightSpectrum] | None

    def value(self, metric: str) -> str:
        """A metric, with as many digits as its interval deserves."""
        return display.fixed(self.summary[metric], display.decimals_for(*self.summary[f"{metric}_ci95"]))

    def bounds(self, metric: str) -> str:
        """The interval of a metric."""
        low, high = self.summary[f"{metric}_ci95"]
        return display.interval(low, high, display.decimals_for(low, high))

    def by_size(self, size: str) -> tuple[str, str, str]:
        """Number of queries of a size, their PerQueryAUC, and its interval."""
        for row in self.sizes[self.sizes["size"] == size].to_dict("records"):
            bounds = display.interval(row["ci95_low"], row["ci95_high"], _SIZE_DECIMALS)
            return display.amount(row["queries"]), display.fixed(row["auc"], _SIZE_DECIMALS), bounds
        return "0", display.ABSENT, display.ABSENT


def show_runs(folders: Sequence[Path]) -> list[ShownRun]:
    """Read finished runs.

    Raises:
        RunError: a run cannot be read, or is given twice.
    """
    return [
        ShownRun(
            name=name,
            color=COLORS[index % len(COLORS)],
            sign=SIGNS[index % len(SIGNS)],
            run=run,
            summary=run.metrics.summary(),
            windows=read_windows(folder),
            deciles=calibration_buckets(run.metrics.auc),
            sizes=run.metrics.per_query_auc.by_size(),
            config=config_text(folder),
            environment={key: _text(value) for key, value in read_environment(folder).items()},
            costs={key: run.number(key) for key in COSTS},
            counts={key: run.number(key) for key in COUNTS},
            faults=faults_of(run, count_rejects(folder)),
            weights=read_weight_spectra(folder),
        )
        for index, (folder, name, run) in enumerate(
            zip(folders, distinct_names(folders), map(read_run, folders), strict=True)
        )
    ]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
