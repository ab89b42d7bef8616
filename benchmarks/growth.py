"""How the speed of training grows with rows, features, ids and workers: a page of plots, and the exponents.

    python benchmarks/growth.py --out runs/growth [--rows 1000000 ... 100000000] [--plot runs/growth.svg]

Each axis changes one quantity of the reference model:

- rows: a whole pass of ``ctr train`` over logs of so many rows, with checkpoints and metrics;
- features: the step alone, 10,000 ids each;
- ids: the step alone, over so many rows of all tables together, of width 4; ids are drawn by Zipf's law;
- workers: a pass with one thread for each worker, more workers than processors being of no use.

An exponent is the slope of log(seconds an example) over log(quantity), by least squares: 0 where an example takes the
same time however much there is, 1 where its time is proportional. What is finished is kept in ``--out``, and the same
command goes on with the rest.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
from bench_workers import examples_per_second
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from parts.scaling import step_row
from reference import ADAGRAD, REFERENCE, make_log, reference_config, table

from ctr.config import dump_yaml, parse_model
from ctr.io.files import write_atomic_bytes
from ctr.training.config import TrainConfig

TITLES = {"rows": "rows of the log", "features": "features", "ids": "ids", "workers": "workers"}
Speeds = Mapping[int, float]
"""Examples a second by the quantity that grows."""


def exponent(speeds: Speeds) -> float | None:
    """The slope of log(seconds an example) over log(quantity); None of fewer than two."""
    if len(speeds) < 2:
        return None
    return -float(np.polyfit(np.log(list(speeds)), np.log(list(speeds.values())), 1)[0])


def pass_speed(rows: int, workers: int, threads: int) -> float:
    """Examples a second of a pass over a log of so many rows, the median over its windows but the first two."""
    changes = {**ADAGRAD, "metrics": {"window_examples": max(rows // 16, REFERENCE.batch)}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log, config = make_log(folder / "log", rows), folder / "config.yaml"
        config.write_text(dump_yaml(parse_model(TrainConfig, reference_config(changes), "benchmark")))
        return float(np.median(examples_per_second(log, config, folder / "run", workers, threads, None)))


def feature_speed(features: int) -> float:
    """Examples a second of the step with so many features."""
    return step_row(replace(REFERENCE, features=features, buckets=10_000))["examples_per_second"]


def id_speed(ids: int) -> float:
    """Examples a second of the step with so many rows in its tables."""
    size = replace(REFERENCE, buckets=ids // REFERENCE.features, width=4)
    return step_row(size)["examples_per_second"]


def plot(found: Mapping[str, Speeds], path: Path) -> None:
    """Examples a second over each quantity, on logarithmic scales."""
    with mpl.rc_context({"svg.hashsalt": "growth", "font.size": 8}):
        figure = Figure(figsize=(9, 2.6), layout="constrained")
        axes = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
        for own, (axis, speeds) in zip(axes, found.items(), strict=True):
            slope = exponent(speeds)
            own.plot(list(speeds), list(speeds.values()), "o-")
            own.set(xscale="log", yscale="log", xlabel=TITLES[axis])
            own.set_xticks(list(speeds), minor=False)
            own.set_xticks([], minor=True)
            own.xaxis.set_major_formatter(EngFormatter(sep=""))
            own.set_title("" if slope is None else f"exponent {slope:+.2f}")
        axes[0].set_ylabel("examples/s")
        figure.savefig(path, format="svg", metadata={"Date": None})


def report(found: Mapping[str, Speeds]) -> str:
    """The table."""
    lines = []
    for axis, speeds in found.items():
        slope = exponent(speeds)
        for number, (value, speed) in enumerate(speeds.items()):
            shown = "" if number or slope is None else f"{slope:+.2f}"
            lines.append(["" if number else TITLES[axis], f"{value:,}", f"{speed:,.0f}", shown])
    return table(["grows", "to", "examples/s", "exponent"], lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/growth"), help="where results are kept")
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000_000, 3_000_000, 10_000_000])
    parser.add_argument("--features", type=int, nargs="*", default=[10, 26, 50, 100, 200, 500])
    parser.add_argument("--ids", type=int, nargs="*", default=[10**5, 10**6, 10**7, 10**8])
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--plot", type=Path, help="an SVG")
    arguments = parser.parse_args(argv)
    threads = os.cpu_count() or 1
    measures: dict[str, Callable[[int], float]] = {
        "rows": lambda rows: pass_speed(rows, 1, threads),
        "features": feature_speed,
        "ids": id_speed,
        "workers": lambda workers: pass_speed(500_000, workers, 1),
    }
    path = arguments.out / "growth.json"
    kept: dict[str, dict[str, float]] = json.loads(path.read_text()) if path.exists() else {}
    arguments.out.mkdir(parents=True, exist_ok=True)
    for axis, measure in measures.items():
        of_axis = kept.setdefault(axis, {})
        for value in getattr(arguments, axis):
            if str(value) not in of_axis:
                of_axis[str(value)] = measure(value)
                write_atomic_bytes(path, json.dumps(kept, indent=1).encode())
    found = {
        axis: {int(value): speed for value, speed in sorted(own.items(), key=lambda one: int(one[0]))}
        for axis, own in kept.items()
        if own
    }
    print(report(found))
    if arguments.plot is not None and found:
        plot(found, arguments.plot)


if __name__ == "__main__":
    main()
