"""How the step grows with the batch, the embeddings, the features, the buckets and the pairs of a query."""

import gc
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from own import make_model, median_ms
from parts.setting import Setting
from reference import ADAGRAD, SLATE, Size, reference_batches, table

AXES: dict[str, tuple[int, ...]] = {
    "batch": (1024, 4096, 16384),
    "width": (8, 16, 32),
    "features": (13, 26, 52),
    "buckets": (10_000, 100_000, 1_000_000),
}
SLATES = (4, 16, 64)
TURNS = 2


def step_row(size: Size, slate: int = SLATE, changes: Mapping[str, Any] = ADAGRAD) -> dict[str, float]:
    """Of one model alone, after the one before, of perhaps gigabytes, is let go."""
    gc.collect()
    size = replace(size, feeds=min(size.feeds, 4))
    model = make_model(size, changes, reference_batches(size, slate))
    model.seconds()
    step_ms = median_ms([model.seconds() for _ in range(TURNS + 1)])
    return {
        "step_ms": step_ms,
        "examples_per_second": 1000 * size.batch / step_ms,
        "distinct_rows": sum(plan.distinct_count for plan in model.feeds[0].plans),
    }


def measure(setting: Setting) -> dict[str, Any]:
    """By axis and value; the reference model anew for each axis, as the machine may have slowed down meanwhile."""
    size, axes, slates = setting.size, AXES, SLATES
    if setting.quick:
        axes, slates = {"batch": (64, size.batch)}, (4,)
    found: dict[str, Any] = {
        axis: {str(value): step_row(replace(size, **{axis: value})) for value in values}
        for axis, values in axes.items()
    }
    ranking = {**ADAGRAD, "objective": {"ranking": {}}}
    found["rows of a query, ranked"] = {str(slate): step_row(size, slate, ranking) for slate in slates}
    return found


def report(found: Mapping[str, Any]) -> str:
    """The table."""
    rows = [
        [
            axis,
            f"{int(value):,}",
            f"{row['step_ms']:.1f}",
            f"{row['examples_per_second']:,.0f}",
            f"{row['distinct_rows']:,}",
        ]
        for axis, values in found.items()
        if isinstance(values, Mapping)
        for value, row in values.items()
    ]
    return table(["grows", "to", "ms", "examples/s", "distinct rows of a batch"], rows)
