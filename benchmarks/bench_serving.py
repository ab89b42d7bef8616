"""Measures the scoring speed of an exported model, and what Quality x UI saves. The limit is the products' FLOPs.

    python benchmarks/bench_serving.py [--seconds 2] [--compute-dtype auto]

predict         the reference model, exported and loaded in one process, at several batch sizes, from raw strings
requests        of ads and treatments: the plain model scores every pair as a row; the factorized one computes Q once
                for each ad, computes U or takes it from the cache, and combines all pairs; where Q is cached, the same
                ads are requested with other treatments

Both models have the same features of the same widths; four of the 26 belong to the UI. ``limit_ms`` is the time of
the operations at the rate of large products; the ratio of these times bounds the saving.
"""

import itertools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from processes import run_command
from reference import MODEL, ZIPF, Size, publish_rows, zipf_ids
from runner import compare, main, repeat

from ctr.config import dump_yaml, parse_model
from ctr.data.features import Category
from ctr.data.log import create_log
from ctr.data.schema import Schema
from ctr.serving.scorer import Scorer
from ctr.training.config import TrainConfig

FEATURES, UI_FEATURES, WIDTH = 26, 4, 16
DIFFERENT_REQUESTS = 2000
ROUNDS = 5
SQUARE = 2048
"""Size of the square matrices whose product gives the peak rate."""
MODELS: dict[str, dict[str, Any]] = {"plain": MODEL, "factorized": {**MODEL, "factorized": {}}}
Columns = dict[str, list[str]]


def make_schema(buckets: int) -> Schema:
    names = [f"c{number}" for number in range(FEATURES)]
    towers = ["ui"] * UI_FEATURES + ["quality"] * (FEATURES - UI_FEATURES)
    features = [
        Category(name=name, source=name, buckets=buckets, width=WIDTH, tower=tower)
        for name, tower in zip(names, towers, strict=True)
    ]
    return Schema(features=tuple(features))


def export_model(folder: Path, model: Mapping[str, Any], compute_dtype: str, buckets: int) -> Scorer:
    """Trains a model on one batch, exports and loads it."""
    schema, log = make_schema(buckets), folder / "log"
    folder.mkdir()
    create_log(log, schema)
    ids = zipf_ids(np.random.default_rng(0), 64, Size(buckets=buckets))
    publish_rows(log, schema, ids, ids[:, 0] % 2, np.arange(len(ids)))
    content = {"model": model, "compute_dtype": compute_dtype}
    (folder / "config.yaml").write_text(dump_yaml(parse_model(TrainConfig, content, "benchmark")))
    run_command("train", log, "--config", folder / "config.yaml", "--out", folder / "run", "-q")
    run_command("export", folder / "run", "--out", folder / "models")
    return Scorer(next((folder / "models").glob("[0-9]*")))


def draw_rows(rng: np.random.Generator, rows: int) -> Columns:
    values = rng.zipf(ZIPF, (FEATURES, rows)) % 10**6
    return {f"c{n}": [f"v{value}" for value in values[n]] for n in range(FEATURES)}


def matmul_peak(compute_dtype: str, seconds: float) -> float:
    """Returns the floating-point operations per second of large matrix products."""
    left, right = (tf.cast(tf.random.normal([SQUARE, SQUARE]), compute_dtype) for _ in range(2))
    product = tf.function(lambda: tf.matmul(left, right))
    return 2 * SQUARE**3 / (repeat(lambda: product()[0, 0].numpy(), seconds)["p50_ms"] / 1000)


def operations(scorer: Scorer, tower: str) -> int:
    """Counts the multiplications and additions of one row in the matrix products of a tower."""
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


def paired_rows(ads: Columns, treatments: Columns) -> Columns:
    """Returns a request as rows of the plain model: every ad with every treatment."""
    counts = [len(next(iter(part.values()))) for part in (ads, treatments)]
    repeated = {name: [value for value in values for _ in range(counts[1])] for name, values in ads.items()}
    return repeated | {name: values * counts[0] for name, values in treatments.items()}


def predict(scorer: Scorer, rows: int, peak: float, seconds: float) -> dict[str, float]:
    """Measures ``Scorer.predict`` on batches of ``rows`` raw rows."""
    random = np.random.default_rng(1)
    raw = itertools.cycle([draw_rows(random, rows) for _ in range(max(DIFFERENT_REQUESTS // rows, 4))])
    times = repeat(lambda: scorer.predict(next(raw)), seconds, 10)
    limit = 1000 * rows * operations(scorer, "quality") / peak
    rate, share = 1000 * rows / times["p50_ms"], limit / times["p50_ms"]
    return {**times, "predictions_per_second": rate, "share_of_limit": share}


def request(
    scorers: Mapping[str, Scorer], ads: int, treatments: int, peak: float, seconds: float
) -> dict[str, dict[str, Any]]:
    """Compares the four ways to answer requests of ``ads`` ads and ``treatments`` treatments."""
    rng, plain = np.random.default_rng(0), scorers["plain"]
    # A server builds the columns of a request once, whichever model it calls. Requests have different ads each time,
    # and the same treatments.
    requests = [
        {name: values for name, values in draw_rows(rng, ads).items() if int(name[1:]) >= UI_FEATURES}
        for _ in range(DIFFERENT_REQUESTS)
    ]
    treatment_columns = {
        name: values for name, values in draw_rows(rng, treatments).items() if int(name[1:]) < UI_FEATURES
    }
    asked = itertools.cycle(requests)
    rows = itertools.cycle([paired_rows(ad_columns, treatment_columns) for ad_columns in requests[:16]])

    remembered = scorers["uncached"].quality(next(asked))

    def factors(scorer: Scorer) -> np.ndarray:
        return scorer.combine_pairs(scorer.quality(next(asked)), scorer.ui(treatment_columns))

    def other_treatments() -> np.ndarray:
        return scorers["uncached"].combine_pairs(remembered, scorers["uncached"].ui(treatment_columns))

    quality, ui = (operations(scorers["factorized"], tower) for tower in ("quality", "ui"))
    pairs = ads * treatments
    ways: dict[str, tuple[Callable[[], object], int]] = {
        "plain": (lambda: plain.predict(next(rows)), pairs * operations(plain, "quality")),
        "factorized": (lambda: factors(scorers["uncached"]), ads * quality + treatments * ui),
        "factorized, U cached": (lambda: factors(scorers["factorized"]), ads * quality),
        "factorized, Q cached": (other_treatments, treatments * ui),
    }
    turns = {name: lambda call=call: repeat(call, seconds / ROUNDS, 10) for name, (call, _) in ways.items()}
    results = compare(turns, ROUNDS, 0)
    for name, row in results.items():
        row |= {
            "limit_ms": 1000 * ways[name][1] / peak,
            "times_plain_limit": ways["plain"][1] / ways[name][1],
        }
    return results


def measure(
    seconds: float = 2.0,
    compute_dtype: str = "auto",
    batches: tuple[int, ...] = (1, 16, 64, 1000, 2048),
    ads: tuple[int, ...] = (1, 5, 20),
    treatments: int = 200,
    buckets: int = 100_000,
) -> dict[str, Any]:
    """Measures predictions and requests; each measurement takes about ``seconds``."""
    with tempfile.TemporaryDirectory() as folder:
        scorers = {
            name: export_model(Path(folder) / name, model, compute_dtype, buckets)
            for name, model in MODELS.items()
        }
        scorers["uncached"] = Scorer(scorers["factorized"].path, cached_rows=0)
    dtype = str(scorers["plain"].metadata["compute_dtype"])
    peak = matmul_peak(dtype, seconds)
    return {
        "compute_dtype": dtype,
        "matmul_gflops": peak / 1e9,
        "predict": {f"{rows} rows": predict(scorers["plain"], rows, peak, seconds) for rows in batches},
        "requests": {
            f"{count} x {treatments}": request(scorers, count, treatments, peak, seconds) for count in ads
        },
    }


if __name__ == "__main__":
    main(measure, {"seconds": 0.0, "batches": (1, 16), "ads": (2,), "treatments": 4, "buckets": 100})
