"""The runner of all benchmarks: arms in turns, statistics, tables, JSON and the command line.

An *arm* is a function that does one round of its work and returns numbers. ``compare`` lets arms take turns and
returns, for each number, the median and the ratio to the first arm within a round. A benchmark is a function whose
parameters are the options of its command and which returns nested mappings of numbers; ``main`` runs it:

    python benchmarks/bench_NAME.py [--OPTION VALUE ...] [--quick] [--json FILE]

It prints tables and writes FILE, by default runs/bench_NAME.json. ``--quick`` makes a small run, which only shows that
the benchmark works; its numbers are meaningless.
"""

import argparse
import inspect
import json
import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, get_args

import numpy as np
from scipy import stats

from ctr.io.files import write_atomic_bytes

# For benchmarks that load TensorFlow, which they do after this module.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

Numbers = Mapping[str, float]
Arm = Callable[[], Numbers]
Results = Mapping[str, Any]

CONFIDENCE = 0.95
_PACKAGES = (
    "clicktrain",
    "tensorflow",
    "tf-keras",
    "keras",
    "torch",
    "numpy",
    "pyarrow",
    "apache-beam",
    "jax",
)
_THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def take_turns(arms: Mapping[str, Arm], rounds: int, warm: int = 1) -> dict[str, list[Numbers]]:
    """Returns the numbers of each arm, round by round.

    With turns, a slow minute of the machine slows all arms alike. Every other round is in reverse order, so that an arm
    does not always follow the same one, which leaves its state in caches and threads.

    Args:
        arms: the arms by name.
        rounds: number of measured rounds.
        warm: number of unmeasured rounds before, in which functions are compiled and memory is touched.
    """
    turns: dict[str, list[Numbers]] = {name: [] for name in arms}
    for number in range(-warm, rounds):
        for name in list(arms)[:: -1 if number % 2 else 1]:
            numbers = arms[name]()
            if number >= 0:
                turns[name].append(numbers)
    return turns


def ratio(values: Sequence[float], base: Sequence[float]) -> dict[str, float | None]:
    """Returns the geometric mean of the ratios within a round, with its 95% interval.

    The interval is Student's t interval of the mean logarithm; None with a single round.
    """
    logs = np.log(np.asarray(values, np.float64) / np.asarray(base, np.float64))
    center, low, high = float(logs.mean()), None, None
    if len(logs) > 1:
        quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1))
        margin = quantile * float(logs.std(ddof=1)) / math.sqrt(len(logs))
        low, high = math.exp(center - margin), math.exp(center + margin)
    return {"ratio": math.exp(center), "low": low, "high": high}


def summarize(turns: Mapping[str, Sequence[Numbers]]) -> dict[str, dict[str, Any]]:
    """Returns for each arm the median of each number, and as ``NUMBER_ratio`` its ratio to the first arm."""
    base = next(iter(turns.values()))
    results: dict[str, dict[str, Any]] = {}
    for name, arm_turns in turns.items():
        results[name] = {number: median(arm_turns, number) for number in arm_turns[0]}
        if arm_turns is not base:
            for number in arm_turns[0]:
                values, others = ([numbers[number] for numbers in arm] for arm in (arm_turns, base))
                if min(*values, *others) > 0:
                    results[name][f"{number}_ratio"] = ratio(values, others)
    return results


def compare(arms: Mapping[str, Arm], rounds: int, warm: int = 1) -> dict[str, dict[str, Any]]:
    """Returns ``summarize`` of ``take_turns``."""
    return summarize(take_turns(arms, rounds, warm))


def median(turns: Sequence[Numbers], number: str) -> float:
    """Returns the median of a number over rounds."""
    return float(np.median([numbers[number] for numbers in turns]))


def timed(work: Callable[[], object], count: int = 1) -> Arm:
    """Returns an arm that times some work.

    Args:
        work: the function to time.
        count: number of repetitions within ``work``, by which the time is divided.
    """

    def turn() -> Numbers:
        begun = time.perf_counter()
        work()
        return {"ms": 1000 * (time.perf_counter() - begun) / count}

    return turn


def processor_ms(work: Callable[[], object]) -> float:
    """Returns the processor time of ``work`` in milliseconds, over all threads."""
    begun = time.process_time()
    work()
    return 1000 * (time.process_time() - begun)


def repeat(work: Callable[[], object], seconds: float, least: int = 3) -> dict[str, float]:
    """Returns the shortest time, the median, the 99th percentile and the mean processor time of calls, in ms.

    Args:
        work: the function to time; called once before.
        seconds: how long calls are repeated.
        least: minimum number of calls.
    """
    work()
    times: list[float] = []
    end, used = time.perf_counter() + seconds, time.process_time()
    while len(times) < least or time.perf_counter() < end:
        begun = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - begun))
    mean = 1000 * (time.process_time() - used) / len(times)
    shortest, middle, late = np.quantile(times, [0, 0.5, 0.99]).tolist()
    return {"shortest_ms": shortest, "p50_ms": middle, "p99_ms": late, "processor_ms": mean}


def cached_json(path: Path, compute: Callable[[], Any]) -> Any:
    """Returns the content of a JSON file, which is computed if absent, so that a long benchmark can be interrupted."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic_bytes(path, (json.dumps(compute()) + "\n").encode())
    return json.loads(path.read_text())


def resident_bytes() -> int:
    """Returns the resident memory of this process, in bytes."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(fields["VmRSS"].split()[0])


def environment() -> dict[str, Any]:
    """Returns what a result depends on besides the code: processor, load, threads, versions."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "threads": {name: os.environ[name] for name in _THREADS if name in os.environ},
        "versions": versions,
    }


def check_names(kind: str, names: Sequence[str], allowed: Sequence[str]) -> None:
    """Raises SystemExit if one of the names is not allowed."""
    if unknown := [name for name in names if name not in allowed]:
        raise SystemExit(f"error: no {kind} {unknown[0]!r}; there are {'; '.join(allowed)}")


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Formats a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def nested_tables(results: Results, title: str = "") -> str:
    """Formats nested numbers as Markdown tables: neighboring mappings of numbers become the rows of one table."""
    parts = [f"### {title}"] if title else []
    plain = {name: value for name, value in results.items() if _is_cell(value)}
    rows = {name: value for name, value in results.items() if _is_row(value)}
    if plain:
        parts.append(table(["", ""], [[name, _cell(value)] for name, value in plain.items()]))
    for group in _alike(rows):
        columns = list(dict.fromkeys(name for row in group.values() for name in row))
        body = [[name, *(_cell(row.get(column)) for column in columns)] for name, row in group.items()]
        parts.append(table(["", *columns], body))
    for name, value in results.items():
        if name not in plain and name not in rows:
            nested = value if isinstance(value, Mapping) else {str(i): part for i, part in enumerate(value)}
            parts.append(nested_tables(nested, f"{title}, {name}" if title else str(name)))
    return "\n\n".join(parts)


def _alike(rows: Mapping[str, Results]) -> list[dict[str, Results]]:
    """Groups neighboring rows: a row joins the group before it if they have a column in common."""
    groups: list[dict[str, Results]] = []
    for name, row in rows.items():
        if not groups or not any(set(row) & set(other) for other in groups[-1].values()):
            groups.append({})
        groups[-1][name] = row
    return groups


def _is_cell(value: object) -> bool:
    if isinstance(value, Mapping):
        return set(value) == {"ratio", "low", "high"}
    return not isinstance(value, list | tuple) or not any(
        isinstance(element, list | tuple | Mapping) for element in value
    )


def _is_row(value: object) -> bool:
    return isinstance(value, Mapping) and not _is_cell(value) and all(map(_is_cell, value.values()))


def _cell(value: object) -> str:
    if isinstance(value, Mapping):
        ends = "" if value["low"] is None else f" [{value['low']:.3g}, {value['high']:.3g}]"
        return f"{value['ratio']:.3g}{ends}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, value))
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def main(measure: Callable[..., Results], quick: Mapping[str, Any], prints: bool = True) -> Results:
    """Runs a benchmark from the command line, writes its results to a JSON file and returns them.

    Args:
        measure: the benchmark; its parameters, all with defaults, are the options of the command.
        quick: replacements of these defaults for a small run.
        prints: whether to print the results; False for a benchmark that prints its parts by itself.
    """
    module = inspect.getmodule(measure)
    name = Path(inspect.getfile(measure)).stem
    parser = argparse.ArgumentParser(
        description=module.__doc__ if module else None, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parameters = inspect.signature(measure).parameters
    for parameter in parameters.values():
        _add_option(parser, parameter)
    parser.add_argument("--quick", action="store_true", help="a small run, whose numbers mean nothing")
    parser.add_argument(
        "--json", type=Path, default=Path("runs") / f"{name}.json", help="where the numbers go"
    )
    arguments = vars(parser.parse_args())
    file, is_quick = arguments.pop("json"), arguments.pop("quick")
    options = {key: parameter.default for key, parameter in parameters.items()}
    options |= {**(quick if is_quick else {}), **arguments}
    around = environment()
    begun = time.perf_counter()
    results = measure(**options)
    if prints:
        print(nested_tables(results))
    versions = ", ".join(f"{key} {value}" for key, value in around["versions"].items())
    print(f"\n{around['cpu']}, {around['cores']} cores, load {around['load']:.1f}; {versions}")
    content = {
        "benchmark": name,
        "environment": around,
        "options": {
            key: value
            for key, value in options.items()
            if isinstance(value, int | float | str | list | tuple)
        },
        "seconds": time.perf_counter() - begun,
        **results,
    }
    write_atomic_bytes(file, (json.dumps(content, indent=1, default=str) + "\n").encode())
    return results


def _add_option(parser: argparse.ArgumentParser, parameter: inspect.Parameter) -> None:
    """Adds the option of a parameter: a tuple takes several values, a Boolean is a switch."""
    default, flag = parameter.default, f"--{parameter.name.replace('_', '-')}"
    help_text = f"default: {' '.join(map(str, default)) if isinstance(default, tuple) else default}"
    common: dict[str, Any] = {"default": argparse.SUPPRESS, "help": help_text}
    if isinstance(default, bool):
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
        return
    kind = get_args(parameter.annotation)
    if isinstance(default, tuple):
        parser.add_argument(flag, nargs="*", type=kind[0], **common)
    else:
        parser.add_argument(flag, type=kind[0] if default is None else type(default), **common)
