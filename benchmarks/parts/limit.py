"""What the machine allows: the rate of its matrix products and of its memory, against the training step."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf
from own import Model, make_model, median_ms, ratio, show_ratio
from parts.setting import Setting
from reference import ADAGRAD, Size, table

from ctr.training.analysis.speed import take_turns
from ctr.training.config import TrainConfig
from ctr.training.device import resolve_compute_dtype

SQUARES = ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 1024, 1024))
COPIED = 2**28
REPEATS = 4
"""Times that a turn of products goes over them."""

Turn = Callable[[], float]


def product_turn(shapes: list[tuple[int, int, int, str]], with_gradients: bool) -> Turn:
    """Products [m, k] x [k, n] of fresh random matrices, one after the other in one graph; seconds for all of them.

    Args:
        shapes: m, k, n and the type of each.
        with_gradients: as many products again for the gradients of each of both factors.
    """
    operands = []
    for m, k, n, dtype in shapes:
        # Variables: of constants TensorFlow would compute the products once for all.
        sizes = [[m, k], [k, n], [m, n]] if with_gradients else [[m, k], [k, n]]
        operands.append([tf.Variable(tf.cast(tf.random.normal(size), dtype)) for size in sizes])

    def products() -> list[tf.Tensor]:
        results = []
        for left, right, *gradient in operands:
            results.append(tf.matmul(left, right))
            if gradient:
                results.append(tf.matmul(gradient[0], right, transpose_b=True))
                results.append(tf.matmul(left, gradient[0], transpose_a=True))
        return results

    compiled = tf.function(products, autograph=False)

    def turn() -> float:
        begun = time.perf_counter()
        for _ in range(REPEATS):
            compiled()[-1].numpy()
        return (time.perf_counter() - begun) / REPEATS

    return turn


def operations(shapes: list[tuple[int, int, int, str]]) -> float:
    return float(sum(2 * m * k * n for m, k, n, _ in shapes))


def model_shapes(model: Model, batch: int, dtype: str) -> list[tuple[int, int, int, str]]:
    """The forward products of a model."""
    matrices = [weight for weight in model.state.dense if len(weight.shape) == 2]
    # Heads compute in float32.
    return [(batch, *weight.shape, "float32" if weight.shape[1] == 1 else dtype) for weight in matrices]


def copy_turn(threads: int, size: int) -> Turn:
    """Copies memory; seconds for ``size`` bytes, each read and written once."""
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    pool, step = ThreadPoolExecutor(threads), -(-size // threads)
    pieces = [slice(begin, begin + step) for begin in range(0, size, step)]

    def turn() -> float:
        begun = time.perf_counter()
        list(pool.map(lambda piece: np.copyto(target[piece], source[piece]), pieces))
        return time.perf_counter() - begun

    return turn


def bytes_of_step(model: Model, size: Size, dtype: str) -> dict[str, float]:
    """Bytes that a step has to read and write at least, if nothing but single operations' inputs stays in caches.

    rows          distinct rows read and written, and their accumulators
    look_up       a row of the table for each id, and its gradient: written once, read once
    activations   of crosses and layers: written once, read twice; their gradients: written once, read once
    dense         weights read twice and written, gradients written and read, accumulators read and written
    """
    plans = model.feeds[0].plans
    columns = [layout.columns for layout in model.state.layouts]
    distinct = sum(plan.distinct_count * count for plan, count in zip(plans, columns, strict=True))
    looked_up = sum(plan.single.size * count for plan, count in zip(plans, columns, strict=True))
    m, crosses = size.features * size.width, model.config.model.crosses
    numbers = m + crosses.layers * (crosses.rank + 2 * m) + sum(model.config.model.deep.units)
    dense = sum(int(np.prod(weight.shape)) for weight in model.state.dense)
    return {
        "rows": 4.0 * 4 * distinct,
        "look_up": 4.0 * 4 * looked_up,
        "activations": 5.0 * tf.as_dtype(dtype).size * numbers * size.batch,
        "dense": 7.0 * 4 * dense,
    }


def measure_dtype(setting: Setting, dtype: str, copies: Mapping[str, Turn]) -> dict[str, Any]:
    size = setting.size
    model = make_model(size, {**ADAGRAD, "compute_dtype": dtype})
    own = model_shapes(model, size.batch, dtype)
    squares = {
        "x".join(map(str, shape)): [(*shape, dtype)] for shape in (SQUARES[:1] if setting.quick else SQUARES)
    }
    turns = {"step": model.seconds, "products": product_turn(own, True), **copies}
    turns |= {name: product_turn(shape, False) for name, shape in squares.items()}
    seconds = take_turns(turns, setting.rounds)
    rates = {name: 1e-6 * operations(shape) / median_ms(seconds[name]) for name, shape in squares.items()}
    work = 3 * operations(own)
    best = min(squares, key=lambda name: median_ms(seconds[name]) / operations(squares[name]))
    at_best = [one * work / operations(squares[best]) for one in seconds[best]]
    touched = bytes_of_step(model, size, dtype)
    bandwidth = {name: 2e-6 * setting_bytes(setting) / median_ms(seconds[name]) for name in copies}
    return {
        "step_ms": median_ms(seconds["step"]),
        "products_ms": median_ms(seconds["products"]),
        "products_gflops": 1e-6 * work / median_ms(seconds["products"]),
        "examples_per_second_of_products": 1000 * size.batch / median_ms(seconds["products"]),
        "share": ratio(seconds["products"], seconds["step"]),
        "best_product": best,
        "best_gflops": rates[best],
        "gflops": rates,
        "gflop_of_step": 1e-9 * work,
        "share_of_best": ratio(at_best, seconds["step"]),
        "bytes": touched,
        "gigabytes_per_second": bandwidth,
        "memory_ms": 1e-6 * sum(touched.values()) / max(bandwidth.values()),
    }


def setting_bytes(setting: Setting) -> int:
    return COPIED // 64 if setting.quick else COPIED


def measure(setting: Setting) -> dict[str, Any]:
    """In the type that the processor is best at, which the targets are about, and in float32."""
    names = {"copy, one thread": 1, "copy, two threads": 2}
    copies = {name: copy_turn(threads, setting_bytes(setting)) for name, threads in names.items()}
    dtype = resolve_compute_dtype(TrainConfig())
    found = {one: measure_dtype(setting, one, copies) for one in dict.fromkeys([dtype, "float32"])}
    return {**found, "own": dtype, "share": found[dtype]["share"]}


def report(found: Mapping[str, Any]) -> str:
    """The table."""
    dtypes = [name for name in ("bfloat16", "float32") if name in found]

    def row(what: str, show: Callable[[Mapping[str, Any]], str]) -> list[str]:
        return [what, *(show(found[dtype]) for dtype in dtypes)]

    rows = [
        row("step, ms", lambda one: f"{one['step_ms']:.1f}"),
        row("its products alone, ms", lambda one: f"{one['products_ms']:.1f}"),
        row("their GFLOP/s", lambda one: f"{one['products_gflops']:.0f}"),
        row(
            "examples/s if there were only products",
            lambda one: f"{one['examples_per_second_of_products']:,.0f}",
        ),
        row("step, of that rate (quartiles)", lambda one: show_ratio(one["share"])),
        row("fastest product", lambda one: f"{one['best_product']}: {one['best_gflops']:.0f} GFLOP/s"),
        row("step, of that rate (quartiles)", lambda one: show_ratio(one["share_of_best"])),
        row("GFLOP of a step", lambda one: f"{one['gflop_of_step']:.1f}"),
        row("MB that a step touches", lambda one: f"{1e-6 * sum(one['bytes'].values()):.0f}"),
        *(
            row(f"{name}, GB/s", lambda one, name=name: f"{one['gigabytes_per_second'][name]:.1f}")
            for name in found[dtypes[0]]["gigabytes_per_second"]
        ),
        row("ms to touch them", lambda one: f"{one['memory_ms']:.1f}"),
    ]
    return table(["limit", *dtypes], rows)
