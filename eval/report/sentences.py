"""Verdicts of a report as sentences."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ctr.eval import display
from ctr.eval.click_ratio import describe
from ctr.eval.display import Number
from ctr.eval.importance import Importance
from ctr.eval.intervals import Estimate, difference
from ctr.eval.run_comparison import RunComparison

_FEATURES_NAMED = 3


def what_was_learned(summary: Mapping[str, Any]) -> str:
    """States whether a run is better than the base rate, and whether it is calibrated.

    ``summary`` has the metrics of `ctr.eval.progressive.ProgressiveMetrics.summary`.
    """
    ratio = Number(summary["calibration_ratio"], *summary["calibration_ratio_ci95"])
    if ratio.value is None:
        return f"{_learned(summary)}; there were no clicks to compare the predictions with."
    says = describe(ratio.value, ratio.low, ratio.high)
    return f"{_learned(summary)}; predicted / actual clicks are {ratio.whole()} ({says})."


def accuracy(summary: Mapping[str, Any], importance: Importance | None) -> str:
    """States the AUC, and the features that the model uses most."""
    auc = Number(summary["auc"], *summary["auc_ci95"])
    says = auc.whole() if auc.value is not None else "undefined, because all rows are clicks, or none is"
    return f"AUC over {display.amount(summary['examples'])} rows is {says}{_used(importance)}."


def _learned(summary: Mapping[str, Any]) -> str:
    entropy, (low, high) = summary["normalized_entropy"], summary["normalized_entropy_ci95"]
    if entropy is None:
        return "Without both clicks and non-clicks there is no base rate to compare with"
    gain = 100 * (1 - entropy)
    says = f"{abs(gain):.1f}% {'below' if gain >= 0 else 'above'} that of always predicting the base rate"
    if low is None or high is None:
        return f"The logloss is {says}, which is too little data for an interval"
    bounds = f"95% interval: {100 * (1 - high):.1f}% to {100 * (1 - low):.1f}% below"
    if high < 1:
        return f"The model learned more than the base rate: its logloss is {says} ({bounds})"
    if low > 1:
        return f"The model predicts worse than the base rate alone: its logloss is {says} ({bounds})"
    return f"Whether the model learned more than the base rate is open: its logloss is {says} ({bounds})"


def _used(importance: Importance | None) -> str:
    if importance is None or not importance.features:
        return ""
    names = [feature.name for feature in importance.features if feature.matters][:_FEATURES_NAMED]
    if not names:
        return "; no feature alone is certain to matter"
    if len(names) == 1:
        return f"; the only feature that is certain to matter alone is {names[0]}"
    return f"; the features that it uses most are {', '.join(names[:-1])} and {names[-1]}"


def against_baselines(loss: Estimate, baselines: Mapping[str, Estimate]) -> str:
    """Compares a run's logloss with the best base rate by a single feature."""
    features = {name: baseline for name, baseline in baselines.items() if name != "the base rate"}
    if not features:
        return (
            "No base rate by a single feature stands beside it: the run was sliced by none (metrics.slices)."
        )
    best = min(features, key=lambda name: float(features[name].point))
    change = difference(features[best], loss).number()
    text = f"the {best} alone, the best of the {len(features)} features that the run is sliced by"
    text = text if len(features) > 1 else f"the {best} alone, the only feature that the run is sliced by"
    if change.low is None or change.high is None or change.low <= 0 <= change.high:
        return f"Whether its logloss is below that of {text}, is open: {change.whole(signed=True)}."
    side = "below" if change.high < 0 else "above"
    return f"Its logloss is {side} that of {text}: {change.whole(signed=True)}."


def gates(summary: Mapping[str, Any]) -> str:
    """States each expert's share of the prediction, except the first expert's; empty for a single model."""
    shares = [
        f"the share of {key.removesuffix('_gate')} is {value:.2f}"
        for key, value in summary.items()
        if key.endswith("_gate") and isinstance(value, int | float)
    ]
    text = ", ".join(shares)
    return f"Of several experts, {text} on this log." if shares else ""


def compared(comparison: RunComparison, names: tuple[str, str]) -> str:
    """States whether the second run is better, by how much, and at what cost in time."""
    metrics, (first, second) = comparison.metrics, names
    metric = next(
        (name for name in ("per_query_auc", "auc", "logloss") if not metrics.loc[name, "no_interval"]), None
    )
    if metric is None:
        return (
            f"Whether {second} is better than {first} is not known: there are too few clicks for an interval."
        )
    verdicts = {str(name): str(verdict) for name, verdict in metrics["verdict"].items()}
    says = {
        "better": f"{second} is better than {first}",
        "worse": f"{second} is worse than {first}",
        "differs": f"{second} differs from {first}, but by the seed alone",
    }.get(verdicts[metric], f"{second} is neither better nor worse than {first} for certain")
    parts = [f"{says}: {display.METRIC_TITLES[metric]} {_change(metrics, metric)}"]
    loss = verdicts["logloss"]
    if metric != "logloss" and loss in ("better", "worse") and loss != verdicts[metric]:
        parts.append(f"its logloss is {loss}, {_change(metrics, 'logloss')}")
    if (step := comparison.costs["step_ms_p50"]).ratio is not None:
        parts.append(
            f"{display.times(step.ratio)} the time per step{' (no certain difference)' * bool(step.verdict)}"
        )
    elif (speed := comparison.costs["examples_per_second"]).ratio is not None:
        parts.append(f"{display.times(speed.ratio)} the examples per second")
    return f"{'; '.join(parts)}."


def _change(metrics: pd.DataFrame, metric: str) -> str:
    columns = ["difference", "ci95_low", "ci95_high"]
    return Number(*map(float, metrics.loc[metric, columns])).whole(signed=True)


def worst_slice(slices: Sequence[tuple[str, pd.DataFrame]]) -> str:
    """Names the worst calibrated slice, by the end of its interval of predicted / actual clicks that is nearer to 1.

    ``slices``: for each feature, a table with name, calibration_ratio and the ends of its interval. Distances from 1
    are on a log scale; slices whose interval contains 1 do not count.
    """
    worst = 0.0, ""
    for feature, table in slices:
        for row in table.to_dict("records"):
            value, low, high = (float(row[f"calibration_ratio{end}"]) for end in ("", "_low", "_high"))
            if not 0 < low <= high < np.inf or low <= 1 <= high:
                continue
            distance = float(min(abs(np.log(low)), abs(np.log(high))))
            if distance > worst[0]:
                says = describe(value, low, high).split(":")[0].split(";")[0]
                ratio = f"predicted / actual clicks {Number(value, low, high).whole()}"
                worst = distance, f"{feature} {row['name']}: {ratio}, it {says}"
    if not worst[1]:
        return "No slice is miscalibrated for certain: each interval of predicted / actual clicks contains 1."
    return f"The worst calibrated slice is {worst[1]}."
