"""Warnings of labels and features that teach nothing, and of values that are no part of a number's statistics."""

from ctr.models.numbers import FAR
from ctr.models.rows import feature_names
from ctr.training.run.features import outlying_values
from ctr.training.run.run import Run


def input_warnings(run: Run) -> list[str]:
    """Names the labels and features that taught nothing, and values that are no part of a number's statistics."""
    metrics, lines = run.metrics, []
    for name, label in metrics.labels.items():
        rows, weights = int(label.traffic.examples), label.logloss.class_weight.sum(axis=0)
        if not rows:
            lines.append(f"label {name}: nothing was learned: it is known of no row that was scored")
        elif weights.any() and not weights.all():
            only = "none of its {} rows is" if weights[0] else "all of its {} rows are"
            lines.append(f"label {name}: nothing was learned: {only.format(rows)} positive")
    lines += [
        f"feature {name}: {left} values (mean {mean:g}) are more than {FAR:,.0f} deviations from the others, and no "
        "part of its mean and deviation"
        for name, (left, _, mean) in outlying_values(run.state).items()
        if left
    ]
    missing, rows = metrics.missing.by_feature, metrics.missing.rows
    lines += [
        f"feature {name}: nothing was learned: it is missing in all {rows} rows"
        for name in feature_names(run.state.layouts)
        if rows and missing[name] == rows
    ]
    return lines
