"""Measures how the speed of training depends on rows, features, ids and workers; draws plots and fits exponents.

    python benchmarks/study.py growth --out runs/growth [--rows 1000000 ... 100000000] [--plot runs/growth.svg]

Each axis changes one quantity of the reference model:

- rows: a whole pass of ``ctr train`` over logs of so many rows, with checkpoints and metrics;
- features: the step alone, with 10,000 ids for each feature;
- ids: the step alone, with so many table rows in total, of width 4; ids are drawn by Zipf's law;
- workers: a pass with one thread for each worker; more workers than processors are of no use.

An exponent is the slope of log(seconds per example) over log(quantity), by least squares: 0 if the time of an example
does not depend on the quantity, 1 if it is proportional to it. Finished results are kept in ``--out``, and repeating
the command continues with the rest.
"""

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from parts.scaling import step_row
from reference import REFERENCE, make_log
from runner import cached_json, main
from workers import pass_speed as speed_of_command
from workers import write_config

Speeds = Mapping[int, float]
"""Examples per second by the quantity that grows."""


def exponent(speeds: Speeds) -> float | None:
    """Fits the slope of log(seconds per example) over log(quantity); None with fewer than two values."""
    if len(speeds) < 2:
        return None
    return -float(np.polyfit(np.log(list(speeds)), np.log(list(speeds.values())), 1)[0])


def pass_speed(rows: int, workers: int, threads: int) -> float:
    """Returns the examples per second of a pass over ``rows`` rows, the median over all windows but the first two."""
    changes = {"metrics": {"window_examples": max(rows // 16, REFERENCE.batch)}, "record_predictions": True}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log, config = make_log(folder / "log", rows), folder / "config.yaml"
        write_config(config, changes, REFERENCE.batch)
        return speed_of_command(log, config, folder / "run", workers, threads)["examples_per_second"]


def step_speed(**changes: int) -> float:
    """Returns the examples per second of the reference model's step with changes to its size."""
    return step_row(replace(REFERENCE, **changes))["examples_per_second"]


def draw(by_axis: Mapping[str, Speeds], path: Path) -> None:
    """Draws examples per second over each quantity, on logarithmic scales, as SVG."""
    with mpl.rc_context({"svg.hashsalt": "growth", "font.size": 8}):
        figure = Figure(figsize=(9, 2.6), layout="constrained")
        axes = figure.subplots(1, len(by_axis), sharey=True, squeeze=False)[0]
        for panel, (axis, speeds) in zip(axes, by_axis.items(), strict=True):
            slope = exponent(speeds)
            panel.plot(list(speeds), list(speeds.values()), "o-")
            panel.set(xscale="log", yscale="log", xlabel="rows of the log" if axis == "rows" else axis)
            panel.set_xticks(list(speeds), minor=False)
            panel.set_xticks([], minor=True)
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
            panel.set_title("" if slope is None else f"exponent {slope:+.2f}")
        axes[0].set_ylabel("examples/s")
        figure.savefig(path, format="svg", metadata={"Date": None})


def measure(
    out: Path = Path("runs/growth"),
    rows: tuple[int, ...] = (1_000_000, 3_000_000, 10_000_000),
    features: tuple[int, ...] = (10, 26, 50, 100, 200, 500),
    ids: tuple[int, ...] = (10**5, 10**6, 10**7, 10**8),
    workers: tuple[int, ...] = (1, 2),
    plot: Path | None = None,
) -> dict[str, Any]:
    """Returns examples per second along each axis, and the exponents; results are kept in ``out``."""
    threads = os.cpu_count() or 1
    axes: dict[str, tuple[tuple[int, ...], Callable[[int], float]]] = {
        "rows": (rows, lambda number: pass_speed(number, 1, threads)),
        "features": (features, lambda number: step_speed(features=number, buckets=10_000)),
        "ids": (ids, lambda number: step_speed(buckets=number // REFERENCE.features, width=4)),
        "workers": (workers, lambda number: pass_speed(500_000, number, 1)),
    }
    by_axis: dict[str, dict[int, float]] = {}
    for axis, (values, speed) in axes.items():
        for value in values:
            cached_json(out / axis / f"{value}.json", lambda value=value, speed=speed: speed(value))
        files = sorted((out / axis).glob("*.json"), key=lambda file: int(file.stem))
        if files:
            by_axis[axis] = {int(file.stem): json.loads(file.read_text()) for file in files}
    if plot is not None and by_axis:
        draw(by_axis, plot)
    exponents = {axis: {"exponent": exponent(speeds)} for axis, speeds in by_axis.items()}
    table = {
        axis: {f"{value:,}": {"examples_per_second": speed} for value, speed in axis_speeds.items()}
        for axis, axis_speeds in by_axis.items()
    }
    return {**table, "exponents": exponents}


if __name__ == "__main__":
    main(measure, {"rows": (), "ids": (), "workers": (), "features": (2, 3)})
