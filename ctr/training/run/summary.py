"""Summary of a run: a verdict on predicted over actual clicks, and summary.json in a few lines.

Loads no TensorFlow, so that a finished run is printed at once.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctr.eval import display
from ctr.eval.click_ratio import describe, judge
from ctr.eval.display import nothing_learned
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.run.directory import read_warm_start

# Keys that may differ between runs of the same configuration.
TIMING = (
    "wall_seconds",
    "wall_examples_per_second",
    "examples_per_second",
    "step_ms_p50",
    "step_ms_p25",
    "step_ms_p75",
    "shampoo_seconds_waited",
    "shampoo_seconds_computing",
)

LABEL_METRICS = ("per_query_auc", "auc", "logloss", "calibration_ratio")

# A prior that differs from the click rate by more than this factor is named as a cause.
_PRIOR_FACTOR = 1.5
# The highest decile is named if it has at least this share of the excess of predicted clicks.
_TOP_SHARE = 0.5
# Number of set-aside queries that are named.
_SHOWN = 3


class LearningError(InputError):
    """Raised at the end of a run that learned nothing, or whose weights are useless; its files are complete."""

    def __init__(self, message: str, summary: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.summary = summary


def train_result(log: Path, run_dir: Path, summary: Mapping[str, Any], record: str | None) -> dict[str, Any]:
    """Returns a finished run's result; publishes the sidecar ``record``. Raises LearningError if it did not learn."""
    result = dict(summary)
    if failure := summary["learning_failure"]:
        raise LearningError(f"{run_dir}: {failure}", result)
    if record is not None:
        from ctr.training.run.predictions import record_predictions

        result["recorded"] = record_predictions(log, run_dir, record, summary["log_rows"])
    if (begun := read_warm_start(run_dir)) is not None:
        result["init_from"] = begun
    return result


def summary_text(run: Path, summary: Mapping[str, Any]) -> str:
    """Formats a run's summary.json as ``ctr train`` prints it; for ``recorded`` see ``ctr.training.session.train``."""

    def interval(name: str) -> str:
        value, bounds = summary.get(name), summary.get(f"{name}_ci95")
        if value is None:
            return "-"
        return f"{value:.5f}" + (
            f"  [{bounds[0]:.5f}, {bounds[1]:.5f}]" if bounds and bounds[0] is not None else ""
        )

    lines = [f"{run}: {summary['examples']} examples, {summary['queries']} queries"]
    for name in ("per_query_auc", "auc", "logloss", "normalized_entropy", "calibration_bias"):
        lines.append(f"  {name:<20}{interval(name)}")
    for name, label in summary.get("labels", {}).items():
        metrics = [f"{key} {'-' if label[key] is None else f'{label[key]:.5f}'}" for key in LABEL_METRICS]
        lines.append(f"  {name:<20}{', '.join(metrics)}; {label['examples']} rows with a known label")
    for name in ("trained_rows", "examples_per_second", "step_ms_p50", "skipped_steps", "rejected_rows"):
        lines.append(f"  {name:<20}{summary[name]}")
    lines.append(f"  dense weights       {summary['dense_optimizer']}")
    if summary.get("wall_seconds"):
        seconds, speed = summary["wall_seconds"], summary["wall_examples_per_second"]
        lines.append(f"  wall_seconds        {seconds} ({speed:,.0f} examples/s, everything included)")
    lost = summary["skipped_rows"] + summary["left_out_rows"]
    if lost:
        lines.append(f"  not trained on      {lost} rows ({lost / max(summary['examples'], 1):.1%})")
    if rows := summary.get("set_aside_rows"):
        queries = [f"{q['query_id']} (rows {q['begin']} to {q['end']})" for q in summary["set_aside"]]
        shown = ", ".join(queries[:_SHOWN]) + (", ..." if len(queries) > _SHOWN else "")
        lines.append(
            f"  set aside           {rows} rows, in queries of more than batch.max_query_rows: {shown}"
        )
    if recorded := summary.get("recorded"):
        missing = recorded["without_prediction"]
        without = f", {missing} without a prediction" if missing else ""
        lines.append(
            f"  recorded            {recorded['rows']} rows as the sidecar {recorded['sidecar']}{without}"
        )
    if summary["per_query_auc_of_sample"]:
        lines.append("  per_query_auc is that of the sampled queries, not an estimate of full traffic's")
    lines.append(f"  {calibration_text(summary)}")
    if fault := nothing_learned(summary):
        lines.append(f"  warning: {fault}")
    lines += [f"  warning: {warning}" for warning in summary.get("warnings", ())]
    if warning := summary.get("init_from", {}).get("warning"):
        lines.append(f"  warning: {warning}")
    return "\n".join(lines)


def dense_optimizer_text(config: TrainConfig, report: Mapping[str, Any]) -> str:
    """Describes the optimizer of dense weights; ``report``: see ``TrainState.optimizer_report``."""
    dense = config.optimizer.dense
    options, least, steps = dense.shampoo, dense.preconditioned_from_rows, report["steps"]
    graft = type(options.grafting).__name__
    if least is None or not config.model.has_network:
        return graft
    if not steps or not config.preconditions:
        return f"Shampoo (never started: batches stayed below {least} rows; until then {graft})"
    began = f"{steps} steps, from batches of {least} rows on"
    if before := report["graft_steps"]:
        began = f"{began}; {graft} in {before} steps before"
    if options.start_preconditioning_step is None:
        return f"{graft} with momentum ({began})" if options.momentum else graft
    if not report["layers_ready"]:
        began = f"no layer has roots after {began}"
    return f"Shampoo ({began})"


def calibration_text(summary: Mapping[str, Any]) -> str:
    """Formats the ratio of predicted to actual clicks, its interval and a verdict in one line."""
    ratio = _click_ratio(summary)
    text = f"predicted / actual clicks {_ratio_text(*ratio)}: {describe(*ratio)}"
    last = summary["last_window"]
    return f"{text}; in the last window {_ratio_text(*_click_ratio(last))}" if last else text


def calibration_warning(summary: Mapping[str, Any], config: TrainConfig) -> str | None:
    """Returns advice if the interval of predicted over actual clicks lies outside [0.9, 1.1], otherwise None."""
    ratio = _click_ratio(summary)
    if judge(*ratio) != "wrong":
        return None
    excess = _excess(summary)
    many = "many" if ratio[0] > 1 else "few"
    share = (
        f"; {display.percent(min(excess, 1.0))} of the difference is in the decile of the highest predictions"
    )
    last = summary["last_window"]
    is_over = last is not None and judge(*_click_ratio(last)) == "good"
    where = (
        f"; the last window alone is calibrated ({_ratio_text(*_click_ratio(last))})"
        if is_over and last
        else ""
    )
    return (
        f"predicted / actual clicks is {_ratio_text(*ratio)}, too {many} predicted clicks"
        f"{share if excess >= _TOP_SHARE else ''}{where}; look at "
        + "; ".join(_causes(summary, config, ratio[0], excess, is_over))
    )


def _causes(
    summary: Mapping[str, Any], config: TrainConfig, ratio: float, excess: float, is_over: bool
) -> list[str]:
    """Returns possible causes, the likeliest first. ``is_over``: whether the last window is calibrated again."""
    objective, embeddings = config.objective, config.optimizer.embeddings
    causes = []
    deciles = [row for row in summary["calibration_buckets"] if row["weight"]]
    clicks = sum(row["weight"] * row["mean_label"] for row in deciles)
    rate, prior = float(clicks / sum(row["weight"] for row in deciles)), config.model.prior
    if isinstance(prior, float) and not 1 / _PRIOR_FACTOR <= prior / rate <= _PRIOR_FACTOR:
        causes.append(f"model.prior ({prior:g}, the rate of clicks is {rate:.2g})")
    if is_over:
        causes.append(f"batch.rows ({config.batch.rows}; smaller batches find the rate of clicks sooner)")
    if config.label_delay:
        causes.append(f"label_delay ({config.label_delay:g} s; the model does not know newer clicks)")
    if config.sampling is not None:
        causes.append(f"sampling.name (the train weights of the sample {config.sampling.name})")
    if objective.ranking is not None:
        causes.append("objective.ranking (it does not determine the level of predictions)")
    if objective.distillation is not None:
        causes.append("objective.distillation (the calibration of the teacher)")
    if ratio > 1 and excess >= _TOP_SHARE:
        causes.append(
            f"optimizer.embeddings.learning_rate and linear_learning_rate ({embeddings.learning_rate}, "
            f"{embeddings.linear_learning_rate}; lower ones, or higher initial accumulators)"
        )
    elif not is_over:
        causes.append(
            f"optimizer.dense.learning_rate ({config.optimizer.dense.learning_rate}; that of the output bias, too)"
        )
    if objective.bias_constraints is None:
        causes.append("objective.bias_constraints (a family of estimated_ctr calibrates by prediction)")
    else:
        causes.append("objective.bias_constraints (its slices and learning_rate)")
    return causes


def _click_ratio(summary: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return summary["calibration_ratio"], *summary["calibration_ratio_ci95"]


def _ratio_text(value: float | None, low: float | None, high: float | None) -> str:
    decimals = display.decimals_for(low, high)
    return f"{display.fixed(value, decimals)} {display.interval(low, high, decimals)}"


def _excess(summary: Mapping[str, Any]) -> float:
    deciles = [row for row in summary["calibration_buckets"] if row["weight"]]
    excess = [row["weight"] * row["bias"] for row in deciles]
    total = sum(excess)
    return excess[-1] / total if total else 0.0
