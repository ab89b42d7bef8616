"""Measures how much of a training step bottlenecks in deep layers save (FF 3.1). The limit is the products' FLOPs.

    python benchmarks/bench_bottleneck.py [--ranks 128,128,0 ...] [--batch 4096] [--rounds 12]

Models with and without bottlenecks take turns on the same batches in one process, in float32 and in bfloat16, with
dense weights trained by AdaGrad or by Shampoo.
"""

from dataclasses import replace
from typing import Any

from ctr_model import gigaflops, make_model
from reference import ADAGRAD, REFERENCE
from runner import compare, main

BATCHES = 10
"""Number of batches in a turn, as many as the steps from one collection of Shampoo's statistics to the next."""
RANKS = ("256,256,0", "128,128,0", "64,64,0", "0,128,0", "128,128,64")
"""Settings to compare: the rank of each layer's bottleneck, 0 for none."""
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adagrad": ADAGRAD["optimizer"],
    # As it is after the first few hundred steps, in which training waits for more frequent roots.
    "shampoo": {"dense": {"shampoo": {"roots": {"early_growth": 0}}}},
}


def measure(
    ranks: tuple[str, ...] = RANKS,
    batch: int = 4096,
    rounds: int = 12,
    dtypes: tuple[str, ...] = ("float32", "bfloat16"),
    optimizers: tuple[str, ...] = tuple(OPTIMIZERS),
) -> dict[str, Any]:
    """Compares the steps of each setting with the model without bottlenecks."""
    return {
        f"{dtype}, {optimizer}": steps(dtype, optimizer, ranks, batch, rounds)
        for dtype in dtypes
        for optimizer in optimizers
    }


def steps(dtype: str, optimizer: str, settings: tuple[str, ...], batch: int, rounds: int) -> dict[str, Any]:
    models = {}
    for setting in ("none", *settings):
        ranks = [] if setting == "none" else [int(part) for part in setting.split(",")]
        changes = {
            "compute_dtype": dtype,
            "model": {"deep": {"ranks": ranks}},
            "optimizer": OPTIMIZERS[optimizer],
        }
        models[setting] = make_model(replace(REFERENCE, batch=batch, feeds=BATCHES), changes)
    results = compare({name: model.turn for name, model in models.items()}, rounds)
    return {
        name: row | {"gigaflops": gigaflops(models[name].dense_matrices(), batch)}
        for name, row in results.items()
    }


if __name__ == "__main__":
    main(
        measure,
        {
            "ranks": ("128,64,0",),
            "batch": 32,
            "rounds": 1,
            "dtypes": ("float32",),
            "optimizers": ("adagrad",),
        },
    )
