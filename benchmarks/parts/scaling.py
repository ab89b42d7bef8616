"""Measures how the step's time grows with batch size, embedding width, features, buckets and rows of a query."""

import gc
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ctr_model import make_model
from parts.setting import Setting
from reference import ADAGRAD, SLATE, Size, reference_batches
from runner import compare

AXES: dict[str, tuple[int, ...]] = {
    "batch": (1024, 4096, 16384),
    "width": (8, 16, 32),
    "features": (13, 26, 52),
    "buckets": (10_000, 100_000, 1_000_000),
}
SLATES = (4, 16, 64)
TURNS = 3
RANKED = {**ADAGRAD, "objective": {"ranking": {}}}


def step_row(size: Size, slate: int = SLATE, changes: Mapping[str, Any] = ADAGRAD) -> dict[str, float]:
    """Times the step of one model, after freeing the previous one, which may have gigabytes."""
    gc.collect()
    size = replace(size, feeds=min(size.feeds, 4))
    model = make_model(size, changes, reference_batches(size, slate))
    ms = compare({"step": model.turn}, TURNS)["step"]["ms"]
    distinct = sum(plan.distinct_count for plan in model.feeds[0].plans)
    return {"ms": ms, "examples_per_second": 1000 * size.batch / ms, "distinct_rows": distinct}


def measure(setting: Setting) -> dict[str, Any]:
    """Times the step by axis and value; each axis repeats the reference model, since the machine's speed may change."""
    size, axes, slates = setting.size, AXES, SLATES
    if setting.quick:
        axes, slates = {"batch": (64, size.batch)}, (4,)
    results = {
        f"{axis} {value:,}": step_row(replace(size, **{axis: value}))
        for axis, values in axes.items()
        for value in values
    }
    return results | {f"rows of a query, ranked {slate}": step_row(size, slate, RANKED) for slate in slates}
