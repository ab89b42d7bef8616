"""The results of a run in a few lines; loads no TensorFlow, so that a finished run is printed at once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctr.eval.base_rate import nothing_learned
from ctr.training.run.calibration import calibration_text


def summary_text(run: Path, summary: Mapping[str, Any]) -> str:
    """What ``ctr train`` prints of a run's summary.json; for ``recorded`` see ``ctr.training.loop.train``."""

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
    for name in ("trained_rows", "examples_per_second", "step_ms_p50", "skipped_steps", "rejected_rows"):
        lines.append(f"  {name:<20}{summary[name]}")
    lost = summary["skipped_rows"] + summary["quarantined_rows"]
    if lost:
        lines.append(f"  not trained on      {lost} rows ({lost / max(summary['examples'], 1):.1%})")
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
    return "\n".join(lines)
