"""Measures the speed of training beside other frameworks and the limits of the machine. `make bench` runs all parts.

    python benchmarks/bench.py [--only step limit] [--rounds 6] [--json runs/bench.json] [--quick] [--no-compile]

Arms of a comparison take turns after a first turn of each; a ratio is the geometric mean of the ratios within a round,
with its 95% interval. At the end a table shows which targets are met. docs/evidence/speed.md explains
each number.
"""

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bench_objective
import bench_shampoo
from parts import limit, log, profile, scaling, start, step
from parts.setting import Setting
from reference import ADAGRAD
from runner import Results, check_names, main, nested_tables, table

ALL_LOSSES = "ranking, distillation, constraints"


def shampoo(setting: Setting) -> dict[str, Any]:
    """Returns Shampoo's cost over AdaGrad by batch size. Each round lasts a whole interval between root exchanges."""
    rounds = max(2, setting.rounds // 3)
    size = replace(setting.size, feeds=2) if setting.quick else setting.size
    return {
        str(batch): bench_shampoo.training_step(
            replace(size, batch=64 if setting.quick else batch), rounds, 4 if setting.quick else None
        )
        for batch in (4096, 16384)
    }


def objective(setting: Setting) -> dict[str, Any]:
    """Returns the step's times on a simulated log without and with ranking, distillation and bias constraints."""
    with tempfile.TemporaryDirectory() as folder:
        simulated = bench_objective.make_log(
            Path(folder) / "log", (bench_objective.FEEDS + 1) * setting.size.batch
        )
        return bench_objective.steps(
            simulated, setting.size.batch, setting.rounds, ("logistic", ALL_LOSSES), ADAGRAD
        )


PARTS = {
    "step": step.measure,
    "limit": limit.measure,
    "end_to_end": log.end_to_end,
    "profile": profile.measure,
    "scaling": scaling.measure,
    "shampoo": shampoo,
    "objective": objective,
    "metrics": log.metrics,
    "start": start.start,
    "quickstart": start.quickstart,
    "memory": start.memory,
    "ids": log.ids,
}


@dataclass(frozen=True)
class Target:
    """A target that a measured number must meet.

    Attributes:
        what: description of the number.
        path: keys of the number in the nested results, joined by ``/``; the first is the name of the part.
        limit: minimum of the number, or with ``below`` its maximum.
        unit: format string of the number.
        minus: subtracted from the number: 1 for a ratio of which only the overhead counts.
    """

    what: str
    path: str
    limit: float
    unit: str
    below: bool = False
    minus: float = 0.0

    def value(self, results: Results) -> float:
        node: Any = results
        for name in self.path.split("/"):
            node = node[name]
        return float(node["ratio"] if isinstance(node, Mapping) else node) - self.minus


CPU = Path("/proc/cpuinfo")
AMX = CPU.exists() and "amx_bf16" in CPU.read_text()
"""Whether this processor has AMX units for bfloat16 matrix products."""
TARGETS = (
    Target(
        "step, over the fastest of Keras and PyTorch in bfloat16",
        "step/over_fastest_bfloat16/times_as_fast",
        1.2 if AMX else 1.5,
        "{:.2f}x",
    ),
    Target(
        "step in float32, over the fastest of Keras and PyTorch in float32",
        "step/over_fastest_float32/times_as_fast",
        1.3,
        "{:.2f}x",
    ),
    Target("step, of what its matrix products alone allow", "limit/share", 0.6 if AMX else 0.8, "{:.0%}"),
    Target("a pass over a log, of the step alone", "end_to_end/over_step", 0.9, "{:.2f}x"),
    Target(
        "reader, examples/s",
        "end_to_end/reader_examples_per_second/feeds, all that the reading thread does",
        1e6,
        "{:,.0f}",
    ),
    Target("row update, of the step", "profile/adagrad/parts/row_update/share", 0.15, "{:.1%}", True),
    Target("Shampoo over AdaGrad, batch 4096", "shampoo/4096/over_adagrad", 0.25, "{:.1%}", True, 1),
    Target("Shampoo over AdaGrad, batch 16384", "shampoo/16384/over_adagrad", 0.10, "{:.1%}", True, 1),
    Target(
        "ranking, distillation and constraints, over the logistic loss alone",
        f"objective/{ALL_LOSSES}/ms_ratio",
        0.05,
        "{:.1%}",
        True,
        1,
    ),
    Target("metrics, of the step", "metrics/share", 0.03, "{:.1%}", True),
    Target("step with growing ids, over buckets", "ids/growing_over_buckets", 1.1, "{:.2f}x", True),
    Target("reader with growing ids, of buckets", "ids/reader_buckets_over_growing", 0.9, "{:.2f}x"),
    Target("ctr --help, seconds", "start/commands/help/seconds", 0.3, "{:.2f}", True),
    Target("summary of a finished run, seconds", "start/commands/finished_run/seconds", 0.5, "{:.2f}", True),
    Target("ctr score of one row, seconds", "start/commands/one_row/seconds", 2, "{:.2f}", True),
    Target(
        "ctr train until the first batch, seconds", "start/commands/first_batch/seconds", 3, "{:.2f}", True
    ),
    Target("first step, seconds", "start/first_step_seconds", 20, "{:.1f}", True),
)


def judge(results: Results) -> list[dict[str, Any]]:
    """Returns for each target whose part was run the measured number, and whether the target is met.

    A value of exactly 0 means "not measured": no operation has the name of that part of the step.
    """
    judged = []
    for target in TARGETS:
        if target.path.partition("/")[0] in results:
            value = target.value(results)
            judged.append(
                {
                    "what": target.what,
                    "limit": f"{'at most' if target.below else 'at least'} {target.unit.format(target.limit)}",
                    "measured": target.unit.format(value) if value else "not measured",
                    "value": value,
                    "met": value != 0 and (value <= target.limit if target.below else value >= target.limit),
                }
            )
    return judged


def measure(
    only: tuple[str, ...] = tuple(PARTS), rounds: int = 6, compile: bool = True, small: bool = False
) -> dict[str, Any]:
    """Runs parts, prints the tables of each as soon as it is done, and compares the results with the targets."""
    check_names("part", only, tuple(PARTS))
    setting, results = Setting(rounds, small, compile), {}
    for name in only:
        begun = time.perf_counter()
        results[name] = PARTS[name](setting)
        print(f"## {name}\n\n{nested_tables(results[name])}\n", flush=True)
        results[name]["seconds_taken"] = time.perf_counter() - begun
    results["targets"] = judge(results)
    columns = ("what", "limit", "measured")
    rows = [
        [*(entry[name] for name in columns), "met" if entry["met"] else "NOT met"]
        for entry in results["targets"]
    ]
    print(f"## targets\n\n{table(['target', 'limit', 'measured', ''], rows)}", flush=True)
    return results


if __name__ == "__main__":
    main(measure, {"rounds": 1, "small": True}, prints=False)
