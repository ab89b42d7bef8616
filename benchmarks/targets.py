"""What the project promises of its speed, and whether a run of the benchmark bears it out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from reference import table

from ctr.training.device import cpu_flags

Found = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """A promise.

    Attributes:
        part: that measures it.
        what: it is about.
        value: from the results of the part.
        limit: the value is at least this, or with ``below`` at most.
        unit: as a format of the value.
    """

    part: str
    what: str
    value: Callable[[Found], float]
    limit: float
    unit: str
    below: bool = False


def _over(name: str) -> Callable[[Found], float]:
    return lambda found: float(found["arms"][found[name]]["ctr_over_it"]["ratio"])


def _of(*path: str) -> Callable[[Found], float]:
    def value(found: Found) -> float:
        node: Any = found
        for name in path:
            node = node[name]
        return float(node)

    return value


_ALL_LOSSES = "ranking, distillation and constraints, over the logistic loss alone"
_LOWER = "step, over the fastest of Keras and PyTorch in bfloat16"
_FULL = "step in float32, over the fastest of Keras and PyTorch in float32"
_HAS_AMX = "amx_bf16" in cpu_flags()

TARGETS = (
    Target("step", _LOWER, _over("fastest_low_precision"), 1.2 if _HAS_AMX else 1.5, "{:.2f}x"),
    Target("step", _FULL, _of("float32_over_fastest", "ratio"), 1.3, "{:.2f}x"),
    Target(
        "limit",
        "step, of what its matrix products alone allow",
        _of("share", "ratio"),
        0.6 if _HAS_AMX else 0.8,
        "{:.0%}",
    ),
    Target("end_to_end", "a pass over a log, of the step alone", _of("over_step", "ratio"), 0.9, "{:.2f}x"),
    Target("end_to_end", "reader, examples/s", _of("reader", "feeds"), 1e6, "{:,.0f}"),
    Target("profile", "row update, of the step", _of("parts", "row_update", "share"), 0.15, "{:.1%}", True),
    Target("shampoo", "Shampoo over AdaGrad, batch 4096", _of("4096", "overhead"), 0.25, "{:.1%}", True),
    Target("shampoo", "Shampoo over AdaGrad, batch 16384", _of("16384", "overhead"), 0.10, "{:.1%}", True),
    Target("objective", _ALL_LOSSES, _of("overhead"), 0.05, "{:.1%}", True),
    Target("metrics", "metrics, of the step", _of("share"), 0.03, "{:.1%}", True),
    Target(
        "ids",
        "step with growing ids, over buckets",
        _of("growing_over_buckets", "ratio"),
        1.1,
        "{:.2f}x",
        True,
    ),
    Target(
        "ids",
        "reader with growing ids, of buckets",
        _of("reader_buckets_over_growing", "ratio"),
        0.9,
        "{:.2f}x",
    ),
    Target("start", "ctr --help, seconds", _of("help_seconds"), 0.3, "{:.2f}", True),
    Target("start", "summary of a finished run, seconds", _of("finished_run_seconds"), 0.5, "{:.2f}", True),
    Target("start", "ctr score of one row, seconds", _of("one_row_seconds"), 2, "{:.2f}", True),
    Target(
        "start", "ctr train until the first batch, seconds", _of("first_batch_seconds"), 3, "{:.2f}", True
    ),
    Target("start", "first step, seconds", _of("first_step_seconds"), 20, "{:.1f}", True),
)


def judge(found: Found) -> list[dict[str, Any]]:
    """For each target whose part was run what was measured, and whether it is met.

    Nothing is exactly 0 that was measured: a part of the step that no operation bears the name of was not.
    """
    judged = []
    for target in TARGETS:
        if target.part not in found:
            continue
        value = float(target.value(found[target.part]))
        met = value != 0 and (value <= target.limit if target.below else value >= target.limit)
        judged.append(
            {
                "what": target.what,
                "limit": f"{'at most' if target.below else 'at least'} {target.unit.format(target.limit)}",
                "measured": target.unit.format(value) if value else "not measured",
                "value": value,
                "met": met,
            }
        )
    return judged


def targets_report(judged: list[dict[str, Any]]) -> str:
    """The table."""
    rows = [
        [one["what"], one["limit"], one["measured"], "met" if one["met"] else "NOT met"] for one in judged
    ]
    return table(["target", "limit", "measured", ""], rows)
