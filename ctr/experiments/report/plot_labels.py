"""Labels beside the points of a plot."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from ctr.eval.arrays import FloatArray
from ctr.eval.report.plot_style import QUIET, of_run


def name_points(
    axes: Axes,
    places: Sequence[tuple[float, float]],
    labels: Sequence[str],
    colors: Sequence[str],
    runs: Sequence[int],
) -> None:
    """Write a label beside each point, where it hides the fewest other labels and points.

    Args:
        axes: laid out already, so that it knows where the points lie.
        places: the points, in the units of the data.
        labels: their texts; an empty one is not written.
        colors: of the texts.
        runs: the number of each point's run or arm.
    """
    if not places:
        return
    points = axes.transData.transform(np.array(places))
    frame = axes.get_window_extent()
    # In pixels, from the font's usual proportions: the text is laid out by whoever shows the picture.
    pixel = axes.figure.dpi / 72
    boxes = np.column_stack([points - 3 * pixel, points + 3 * pixel])
    for place, label, color, run, (x, y) in zip(places, labels, colors, runs, points, strict=True):
        if not label:
            continue
        size = np.array([4.1 * len(label), 8.5]) * pixel
        tries = []
        for distance in (5, 10, 17, 26):
            for across, up in ((0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1), (1, 0), (-1, 0)):
                low = np.array([x, y]) + np.array([across, up]) * distance * pixel
                low -= size * [(1 - across) / 2, 0.5]
                box = np.concatenate([low, low + size])
                outside = low[0] < frame.x0 or box[2] > frame.x1 or low[1] < frame.y0 or box[3] > frame.y1
                cost = _hidden(box, boxes) + 1e6 * outside + distance
                tries.append((cost, distance, across, up, box))
        _, distance, across, up, box = min(tries, key=lambda found: found[0])
        boxes = np.vstack([boxes, box])
        text = axes.annotate(
            label,
            place,
            (across * distance, up * distance),
            textcoords="offset points",
            ha={1: "left", 0: "center", -1: "right"}[across],
            va="center",
            fontsize=7.5,
            color=color,
            arrowprops={"arrowstyle": "-", "color": QUIET, "linewidth": 0.4} if distance > 10 else None,
        )
        of_run(run, text)


def _hidden(box: FloatArray, others: FloatArray) -> float:
    """The area that a box [4] (left, bottom, right, top) shares with others [N, 4]."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    return float(np.prod(np.maximum(high - low, 0), axis=1).sum())
