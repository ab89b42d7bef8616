"""Resident memory of a process that trains, and what of it is what."""

from collections.abc import Mapping
from typing import Any

from parts.fresh import fresh_process
from parts.setting import Setting
from reference import table

PARTS = {
    "rows": "tables",
    "rows_accumulator": "accumulators of tables",
    "dense": "dense weights",
    "shampoo": "optimizer of dense weights",
    "checkpoint_copy": "copies for checkpoints",
}


def measure(setting: Setting) -> dict[str, Any]:
    """In bytes: resident at some points, and the size of what is kept."""
    found = fresh_process(setting.size)
    points = ("libraries", "with_state", "after_steps", "after_checkpoint_copy")
    return {
        "resident": {name: found[name] for name in points},
        "parts": {title: found[f"bytes_{name}"] for name, title in PARTS.items()},
    }


def report(found: Mapping[str, Any]) -> str:
    """The table."""
    points = {
        "libraries": "resident with all libraries",
        "with_state": "with tables, accumulators and weights",
        "after_steps": "after the first steps",
        "after_checkpoint_copy": "with the copies that a checkpoint is written from",
    }
    rows = [[title, f"{1e-6 * found['resident'][name]:.0f}"] for name, title in points.items()]
    rows += [[f"of it: {title}", f"{1e-6 * size:.1f}"] for title, size in found["parts"].items()]
    return table(["memory", "MB"], rows)
