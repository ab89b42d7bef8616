"""What Shampoo adds to AdaGrad's step, roots included: ``bench_shampoo`` at two sizes of the batch."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench_shampoo import training_step
from parts.setting import Setting
from reference import table


def measure(setting: Setting) -> dict[str, Any]:
    """By the size of the batch. Rounds are long: a whole interval of roots each."""
    rounds = max(1, setting.rounds // 3)
    return {
        str(batch): training_step(
            replace(setting.size, batch=64 if setting.quick else batch), rounds, 5 if setting.quick else None
        )
        for batch in (4096, 16384)
    }


def report(found: Mapping[str, Any]) -> str:
    """The table."""
    rows = [
        [
            batch,
            f"{one['adagrad_ms']:.1f}",
            f"{one['shampoo_ms']:.1f}",
            f"{one['overhead']:+.1%}",
            f"{one['root_ms_per_step']:.1f}",
            f"{one['waited_ms_per_step']:.2f}",
        ]
        for batch, one in found.items()
        if isinstance(one, Mapping)
    ]
    head = ["batch", "AdaGrad, ms", "Shampoo, ms", "more", "roots, ms of one processor", "waited for, ms"]
    return table(head, rows)
