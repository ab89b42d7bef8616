"""How fast an exported model scores, and what Quality x UI saves.

    python benchmarks/bench_serving.py [--seconds 2] [--compute-dtype auto] [--json]

The reference model (26 features, DCNv2 with three crosses of rank 64, layers of 1024, 512 and 256), exported and loaded
in one process. First predictions of the plain model at three batch sizes, from raw strings. Then requests of ads and
treatments: the plain model scores every pair as a row, the factorized one makes Q once for each ad, takes U from its
cache or makes it, and combines all pairs. The same features of the same widths are in both; four of the 26 belong to
the UI. What the saving could be at most is the ratio of the floating-point operations.
"""

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from reference import MODEL

from ctr.config import parse_model
from ctr.data.schema import Category, Schema
from ctr.serving.export import publish
from ctr.serving.scorer import Scorer
from ctr.training.config import TrainConfig
from ctr.training.device import resolve_compute_dtype
from ctr.training.run.rollback import Position
from ctr.training.run.snapshot import Snapshot
from ctr.training.state import TrainState

FEATURES = 26
UI_FEATURES = 4
BUCKETS, WIDTH = 100_000, 16
BATCHES = (1, 64, 2048)
SMALL_BATCHES = (1, 2, 4, 8, 16, 32)
DIFFERENT_REQUESTS = 2000
REQUESTS = ((1, 200), (5, 200), (20, 200))
MODELS: dict[str, dict[str, Any]] = {"plain": MODEL, "factorized": {**MODEL, "factorized": {}}}


def make_schema() -> Schema:
    return Schema(
        features=tuple(
            Category(
                name=f"c{n}",
                source=f"c{n}",
                buckets=BUCKETS,
                width=WIDTH,
                tower="quality" if n >= UI_FEATURES else "ui",
            )
            for n in range(FEATURES)
        )
    )


def export_model(folder: Path, model: Mapping[str, Any], compute_dtype: str) -> Scorer:
    """A model with fresh weights, exported and loaded."""
    content = {"model": model, "compute_dtype": compute_dtype}
    config, schema = parse_model(TrainConfig, content, "benchmark"), make_schema()
    dtype = resolve_compute_dtype(config)
    layouts = config.table_layouts(schema)
    state = TrainState(layouts, config, dtype)
    position = vars(Position(1, batches=1, trained_examples=10**9))
    progress = {"position": position, "window_times": [0, 0], "consumed": []}
    parts = state.tables.weights, {}, {}, state.architecture, state.weights
    snapshot = Snapshot(folder, config, schema, dtype, layouts, *parts, progress)
    return Scorer(publish(snapshot, folder / "models").path)


def draw_rows(rng: np.random.Generator, rows: int) -> dict[str, list[str]]:
    values = rng.zipf(1.2, (FEATURES, rows)) % 10**6
    return {f"c{n}": [f"v{value}" for value in values[n]] for n in range(FEATURES)}


def measure(call: Callable[[], object], seconds: float) -> dict[str, float]:
    """Milliseconds of a call: median and 99th percentile, and calls a second."""
    for _ in range(5):
        call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 10:
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    p50, p99 = np.quantile(times, [0.5, 0.99])
    return {"p50_ms": 1000 * p50, "p99_ms": 1000 * p99, "calls_per_second": len(times) / sum(times)}


def matmul_peak(compute_dtype: str, seconds: float) -> float:
    """Floating-point operations a second of large matrix products."""
    size = 2048
    left, right = (tf.cast(tf.random.normal([size, size]), compute_dtype) for _ in range(2))
    product = tf.function(lambda: tf.matmul(left, right))
    return 2 * size**3 / (measure(lambda: product()[0, 0].numpy(), seconds)["p50_ms"] / 1000)


def operations(scorer: Scorer, tower: str) -> int:
    """Of one row in the matrix products of a tower, multiplications and additions."""
    model = parse_model(TrainConfig, scorer.metadata["config"], "metadata").model
    if tower == "ui":
        assert model.factorized is not None
        sizes = [UI_FEATURES * WIDTH, *model.factorized.ui_units, model.factorized.width]
        return 2 * sum(a * b for a, b in itertools.pairwise(sizes))
    inputs = WIDTH * (FEATURES - UI_FEATURES if scorer.factorized else FEATURES)
    crosses = model.crosses.layers * 2 * inputs * model.crosses.rank
    outputs = model.factorized.width if model.factorized is not None else 1
    sizes = [inputs, *model.deep.units, outputs]
    return 2 * (crosses + sum(a * b for a, b in itertools.pairwise(sizes)))


def paired_rows(ads: Mapping[str, list[str]], treatments: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """The request as rows of the plain model: every ad with every treatment."""
    counts = [len(next(iter(part.values()))) for part in (ads, treatments)]
    repeated = {name: [value for value in values for _ in range(counts[1])] for name, values in ads.items()}
    return repeated | {name: values * counts[0] for name, values in treatments.items()}


def measure_request(
    scorers: Mapping[str, Scorer], uncached: Scorer, ads: int, treatments: int, peak: float, seconds: float
) -> dict[str, Any]:
    """One kind of request, in the three ways."""
    rng = np.random.default_rng(0)
    plain, factorized = scorers["plain"], scorers["factorized"]
    # A server builds the columns of a request once, whichever model it asks. Requests have other ads each time, and the
    # same treatments.
    requests = [
        {n: v for n, v in draw_rows(rng, ads).items() if int(n[1:]) >= UI_FEATURES}
        for _ in range(DIFFERENT_REQUESTS)
    ]
    treatment_columns = {n: v for n, v in draw_rows(rng, treatments).items() if int(n[1:]) < UI_FEATURES}
    asked = itertools.cycle(requests)
    rows = itertools.cycle([paired_rows(ad_columns, treatment_columns) for ad_columns in requests[:16]])

    def factors(scorer: Scorer) -> np.ndarray:
        return scorer.combine_pairs(scorer.quality(next(asked)), scorer.ui(treatment_columns))

    ways: dict[str, Callable[[], object]] = {
        "plain": lambda: plain.predict(next(rows)),
        "factorized": lambda: factors(uncached),
        "factorized, U cached": lambda: factors(factorized),
    }
    pairs = ads * treatments
    quality, ui = operations(factorized, "quality"), operations(factorized, "ui")
    needed = {
        "plain": pairs * operations(plain, "quality"),
        "factorized": ads * quality + treatments * ui,
        "factorized, U cached": ads * quality,
    }
    # In turns, so that what else the machine does meets all of them.
    rounds = 5
    timings: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            timings[name].append(measure(call, seconds / rounds))
    found: dict[str, Any] = {}
    for name in ways:
        p50 = float(np.median([timing["p50_ms"] for timing in timings[name]]))
        found[name] = {
            "p50_ms": p50,
            "p99_ms": float(np.median([timing["p99_ms"] for timing in timings[name]])),
            "treatments_per_second": 1000 * pairs / p50,
            "limit_ms": 1000 * needed[name] / peak,
        }
        found[name]["times_plain"] = found["plain"]["p50_ms"] / p50
        found[name]["times_plain_limit"] = needed["plain"] / needed[name]
    return {"ads": ads, "treatments": treatments, "ways": found}


def measure_small_batches(scorer: Scorer, function: str, seconds: float) -> dict[str, Any]:
    """A few rows in NumPy and in TensorFlow, in turns; in NumPy also more than the scorer would by itself."""
    rng = np.random.default_rng(2)
    call = getattr(scorer, function)
    found: dict[str, Any] = {}
    usual = scorer._few
    for rows in SMALL_BATCHES:
        raw = itertools.cycle([draw_rows(rng, rows) for _ in range(DIFFERENT_REQUESTS // rows)])
        timings: dict[str, list[dict[str, float]]] = {"numpy": [], "tensorflow": []}
        for _ in range(5):
            for way, few in (("numpy", rows), ("tensorflow", 0)):
                scorer._few = few
                timings[way].append(measure(lambda raw=raw: call(next(raw)), seconds / 10))  # type: ignore[misc]
        ratios = [
            other["p50_ms"] / own["p50_ms"]
            for own, other in zip(timings["numpy"], timings["tensorflow"], strict=True)
        ]
        found[str(rows)] = {
            way: {key: float(np.median([one[key] for one in own])) for key in ("p50_ms", "p99_ms")}
            for way, own in timings.items()
        } | {"times": float(np.median(ratios))}
    scorer._few = usual
    return found


def run(seconds: float, compute_dtype: str) -> dict[str, Any]:
    """All measurements."""
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        scorers = {
            name: export_model(Path(folder) / name, model, compute_dtype) for name, model in MODELS.items()
        }
        uncached = Scorer(scorers["factorized"].path, cached_rows=0)
    dtype = str(scorers["plain"].metadata["compute_dtype"])
    peak = matmul_peak(dtype, seconds)
    batches = {}
    for rows in BATCHES:
        raw = itertools.cycle([draw_rows(rng, rows) for _ in range(max(DIFFERENT_REQUESTS // rows, 4))])
        timing = measure(lambda raw=raw: scorers["plain"].predict(next(raw)), seconds)  # type: ignore[misc]
        limit = 1000 * rows * operations(scorers["plain"], "quality") / peak
        batches[str(rows)] = {
            **timing,
            "predictions_per_second": rows * timing["calls_per_second"],
            "share_of_limit": limit / timing["p50_ms"],
        }
    requests = [
        measure_request(scorers, uncached, ads, treatments, peak, seconds) for ads, treatments in REQUESTS
    ]
    return {
        "small_batches": {
            tower: measure_small_batches(scorers[name], tower, seconds)
            for name, tower in (("plain", "predict"), ("factorized", "quality"))
        },
        "compute_dtype": dtype,
        "matmul_gflops": peak / 1e9,
        "predict": batches,
        "requests": requests,
    }


def report(results: Mapping[str, Any]) -> str:
    """Three tables."""
    lines = [
        f"{results['compute_dtype']}, matrix products at {results['matmul_gflops']:.0f} GFLOP/s",
        "",
        "| rows | p50 ms | p99 ms | predictions/s | share of the FLOP limit |",
        "|---|---|---|---|---|",
    ]
    for rows, row in results["predict"].items():
        numbers = f"{row['p50_ms']:.2f} | {row['p99_ms']:.2f} | {row['predictions_per_second']:,.0f}"
        lines.append(f"| {rows} | {numbers} | {row['share_of_limit']:.0%} |")
    lines += [
        "",
        "| function | rows | NumPy p50, p99 ms | TensorFlow p50, p99 ms | times |",
        "|---|---|---|---|---|",
    ]
    for function, batches in results["small_batches"].items():
        for rows, row in batches.items():
            ways = [f"{row[way]['p50_ms']:.2f}, {row[way]['p99_ms']:.2f}" for way in ("numpy", "tensorflow")]
            lines.append(f"| {function} | {rows} | {' | '.join(ways)} | {row['times']:.1f} |")
    lines += [
        "",
        "| request | way | p50 ms | p99 ms | treatments/s | times plain | at most, by FLOPs |",
        "|---|---|---|---|---|---|---|",
    ]
    for request in results["requests"]:
        for name, row in request["ways"].items():
            numbers = f"{row['p50_ms']:.2f} | {row['p99_ms']:.2f} | {row['treatments_per_second']:,.0f}"
            times = f"{row['times_plain']:.1f} | {row['times_plain_limit']:.0f}"
            lines.append(f"| {request['ads']} x {request['treatments']} | {name} | {numbers} | {times} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="that each measurement takes")
    parser.add_argument("--compute-dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    results = run(arguments.seconds, arguments.compute_dtype)
    print(json.dumps(results, indent=1) if arguments.json else report(results))


if __name__ == "__main__":
    main()
