"""Compares the training step with the limits of the machine: the rates of its matrix products and its memory."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf
from ctr_model import Model, make_model
from parts.setting import Setting
from reference import ADAGRAD, Size
from runner import Arm, ratio, summarize, take_turns, timed

from ctr.training.config import TrainConfig
from ctr.training.device import resolve_compute_dtype

SQUARES = ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 1024, 1024))
COPIED = 2**28
COPIES = {"copy, one thread": 1, "copy, two threads": 2}
REPEATS = 4
"""Number of times that a turn repeats the products."""
Product = tuple[int, int, int, str]


def product_arm(shapes: list[Product], with_gradients: bool) -> Arm:
    """Returns an arm that times products [m, k] x [k, n] of random matrices, one after the other in one graph.

    Args:
        shapes: m, k, n and the dtype of each product.
        with_gradients: whether to add, for each product, the two products of its backward pass.
    """
    operands = []
    for m, k, n, dtype in shapes:
        # Variables: TensorFlow would fold products of constants.
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
    return timed(lambda: [compiled()[-1].numpy() for _ in range(REPEATS)], REPEATS)


def copy_arm(threads: int, size: int) -> Arm:
    """Returns an arm that times a copy of ``size`` bytes, each read and written once."""
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    pool, step = ThreadPoolExecutor(threads), -(-size // threads)
    pieces = [slice(begin, begin + step) for begin in range(0, size, step)]
    return timed(lambda: list(pool.map(lambda piece: np.copyto(target[piece], source[piece]), pieces)))


def operations(shapes: list[Product]) -> float:
    return float(sum(2 * m * k * n for m, k, n, _ in shapes))


def bytes_of_step(model: Model, size: Size, dtype: str) -> dict[str, float]:
    """Returns the bytes that a step has to read and write at least, if caches keep nothing between operations.

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


def measure_dtype(setting: Setting, dtype: str, copies: Mapping[str, Arm], copied: int) -> dict[str, Any]:
    size = setting.size
    model = make_model(size, {**ADAGRAD, "compute_dtype": dtype})
    # Heads compute in float32.
    layers = [(size.batch, *shape, "float32" if shape[1] == 1 else dtype) for shape in model.dense_matrices()]
    squares = {
        "x".join(map(str, shape)): [(*shape, dtype)] for shape in (SQUARES[:1] if setting.quick else SQUARES)
    }
    arms = {"step": model.turn, "products": product_arm(layers, True), **copies}
    arms |= {name: product_arm(shape, False) for name, shape in squares.items()}
    turns = take_turns(arms, setting.rounds)
    results = summarize(turns)
    rates = {name: 1e-6 * operations(shape) / results[name]["ms"] for name, shape in squares.items()}
    best, work = max(rates, key=rates.__getitem__), 3 * operations(layers)
    times = {name: [numbers["ms"] for numbers in turns[name]] for name in ("step", "products", best)}
    at_best = [ms * work / operations(squares[best]) for ms in times[best]]
    touched = bytes_of_step(model, size, dtype)
    bandwidth = {name: 2e-6 * copied / results[name]["ms"] for name in copies}
    return {
        "step_ms": results["step"]["ms"],
        "products_ms": results["products"]["ms"],
        "products_gflops": 1e-6 * work / results["products"]["ms"],
        "examples_per_second_of_products": 1000 * size.batch / results["products"]["ms"],
        "share": ratio(times["products"], times["step"]),
        "fastest_product": best,
        "fastest_gflops": rates[best],
        "gflop_of_step": 1e-9 * work,
        "share_of_fastest": ratio(at_best, times["step"]),
        "megabytes_of_step": 1e-6 * sum(touched.values()),
        **{f"{name}, GB/s": rate for name, rate in bandwidth.items()},
        "memory_ms": 1e-6 * sum(touched.values()) / max(bandwidth.values()),
    }


def measure(setting: Setting) -> dict[str, Any]:
    """Measures the limits in the processor's best dtype, to which the targets apply, and in float32."""
    copied = COPIED // 64 if setting.quick else COPIED
    copies = {name: copy_arm(threads, copied) for name, threads in COPIES.items()}
    dtype = resolve_compute_dtype(TrainConfig().compute_dtype)
    dtypes = dict.fromkeys([dtype, "float32"])
    results = {name: measure_dtype(setting, name, copies, copied) for name in dtypes}
    return {**results, "own": dtype, "share": results[dtype]["share"]}
