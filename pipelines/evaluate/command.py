"""Command ``ctr evaluate``: metrics of recorded predictions, or a comparison of two sets, as text."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ctr.eval.display import (
    METRIC_TITLES,
    VERDICT_WIDTH,
    aligned,
    decimals_for,
    fixed,
    interval,
    no_interval_lines,
    nothing_learned,
    paired_cells,
)
from ctr.eval.run_files import COMPARED
from ctr.io.errors import InputError
from ctr.pipelines.evaluate.run import evaluate, evaluate_difference
from ctr.pipelines.processes import quiet_beam

_OF_SLICES = ("predicted / actual clicks", "logloss", "AUC")


def run_evaluate(
    predictions: Sequence[Path],
    against: Sequence[Path] | None = None,
    beam_options: str = "",
    by_day: bool = False,
) -> dict[str, Any]:
    """Calls `evaluate`, or `evaluate_difference` with `against`; silences Beam. Raises InputError as they do."""
    if against is not None and by_day:
        raise InputError("--by-day: not with --against; allowed: one set of predictions")
    options: Sequence[str] = ()
    with quiet_beam() if beam_options else contextlib.nullcontext():
        if beam_options:
            from ctr.pipelines.beam import split_beam_options

            options = split_beam_options(beam_options)
        if against is None:
            return evaluate(predictions, options, by_day=by_day)
        return evaluate_difference(predictions, against, options)


def evaluate_text(result: dict[str, Any]) -> str:
    """Formats the result of `run_evaluate` as tables for a terminal."""
    if "prediction_difference" not in result:
        lines = [_traffic(result), *_metric_lines(result), *_training_lines(result)]
        for name, label in result.get("labels", {}).items():
            lines += [f"{name}: {_traffic(label)}", *_metric_lines(label)]
        for name, table in result["calibration_slices"].items():
            lines += ["", *aligned([[name, "weight", *_OF_SLICES], *_slice_rows(table["heaviest"])])]
        if new := result.get("new"):
            lines += [_traffic(new), *_metric_lines(new)]
        if days := result.get("days"):
            rows = [["day", "examples", *(METRIC_TITLES[name] for name in COMPARED)]]
            for day, summary in days.items():
                cells = [fixed(summary[name], decimals_for(*summary[f"{name}_ci95"])) for name in COMPARED]
                rows.append([day, f"{summary['examples']:,}", *cells])
            lines += ["", *aligned(rows)]
        return "\n".join(lines)
    difference = result["prediction_difference"]
    low, high = difference["ci95"]
    decimals = decimals_for(low, high)
    lines = [
        *(
            f"{name}: {' '.join(result['predictions'][side])}: {_traffic(result[side])}"
            for side, name in (("a", "a, the baseline"), ("b", "b"))
        ),
        *(f"{side}: {line}" for side in ("a", "b") for line in _training_lines(result[side])),
        "",
        f"prediction difference: {fixed(difference['value'], decimals)}  {interval(low, high, decimals)}",
        f"  {difference['examples']:,} examples in both, {difference['only_a']:,} only in a, "
        f"{difference['only_b']:,} only in b",
    ]
    if result["metrics"] is not None:
        metrics = result["metrics"]
        reasons = {name: row["no_interval"] or "" for name, row in metrics.items()}
        rows = [["", "a", "b", "b - a", "95% interval", ""]]
        for name, row in metrics.items():
            cells = paired_cells(name, row["a"], row["b"], row["difference"], *row["ci95"])
            rows.append([*cells, row["verdict"].ljust(VERDICT_WIDTH)])
        return "\n".join([*lines, "", *aligned(rows), *no_interval_lines(reasons)])
    lines += ["", "The metrics are not paired: the two do not hold the same labeled examples."]
    for side in ("a", "b"):
        if result[side]["weight_sum"]:
            lines += ["", *aligned([[side, "value", "95% interval"], *_metric_rows(result[side])])]
    return "\n".join(lines)


def _traffic(summary: dict[str, Any]) -> str:
    return f"{summary['examples']:,} examples, {summary['queries']:,} queries"


def _metric_lines(summary: dict[str, Any]) -> list[str]:
    lines = aligned([["", "value", "95% interval"], *_metric_rows(summary)])
    return [*lines, *([f"warning: {fault}"] if (fault := nothing_learned(summary)) else [])]


def _training_lines(summary: dict[str, Any]) -> list[str]:
    """Returns a warning or note on whether the model was trained on these rows; empty if no row is marked."""
    training = summary.get("training")
    if training is None:
        return []
    learned, new, untold = (training[f"{name}_rows"] for name in ("learned", "new", "untold"))
    if learned:
        rest = "" if new else "; score later rows: ctr score --start, or train with time_range.end"
        if "new" in summary:
            rest = f"; of the {new:,} rows that are later:"
        of = f"{learned:,} of these {learned + new + untold:,} rows"
        return [f"warning: not held out: the model was trained on {of}{rest}"]
    if untold:
        unknown = f"the times of {untold:,} rows are not known"
        return [f"warning: {unknown}: the model may have been trained on them"]
    return ["held out: the model was trained on none of these rows"]


def _slice_rows(slices: Sequence[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for part in slices:
        low, high = part["calibration_ratio_ci95"]
        decimals = decimals_for(low, high)
        ratio = f"{fixed(part['calibration_ratio'], decimals)} {interval(low, high, decimals)}"
        rows.append([part["id"], f"{part['weight']:,g}", ratio, fixed(part["logloss"]), fixed(part["auc"])])
    return rows


def _metric_rows(summary: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name in COMPARED:
        low, high = summary[f"{name}_ci95"]
        decimals = decimals_for(low, high)
        rows.append([METRIC_TITLES[name], fixed(summary[name], decimals), interval(low, high, decimals)])
    return rows
