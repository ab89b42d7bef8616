"""Warnings of labels and features that teach nothing, and of values that are no part of a number's statistics."""

import math

from ctr.models.numbers import FAR
from ctr.models.rows import all_numbers
from ctr.training.run.run import Run


def input_warnings(run: Run) -> list[str]:
    """Names the labels and features that taught nothing, and values that are no part of a number's statistics."""
    position, metrics, lines = run.position, run.metrics, []
    for name, label in metrics.labels.items():
        rows, weights = int(label.traffic.examples), label.logloss.class_weight.sum(axis=0)
        if not rows:
            lines.append(f"label {name}: nothing was learned: it is known of no row that was scored")
        elif weights.any() and not weights.all():
            only = "none of its {} rows is" if weights[0] else "all of its {} rows are"
            lines.append(f"label {name}: nothing was learned: {only.format(rows)} positive")
    missing = []
    for name, (rows, without, *_) in zip(metrics.ids.features, metrics.ids.window.tolist(), strict=True):
        total = metrics.timeline.total(name)
        rows, without = rows + total["rows"], without + total["missing"]
        missing += [(name, rows)] if rows and rows == without else []
    state = run.state
    if state.statistics is not None and state.apart is not None and position.trained_rows:
        statistics, apart = state.statistics.numpy(), state.apart.numpy()
        for one in all_numbers(state.layouts):
            columns = slice(one.first, one.first + one.size)
            if not (statistics[0, columns] + apart[0, columns]).any():
                missing.append((one.name, position.trained_rows))
            elif one.normalize and (left := int(apart[0, columns].sum())):
                mean = float(apart[1, columns][apart[0, columns] > 0][0])
                mean = math.copysign(math.expm1(abs(mean)), mean) if one.log else mean
                lines.append(
                    f"feature {one.name}: {left} values (mean {mean:g}) are more than {FAR:,.0f} deviations from the "
                    "others, and no part of its mean and deviation"
                )
    lines += [
        f"feature {name}: nothing was learned: it is missing in all {rows} rows" for name, rows in missing
    ]
    return lines
