"""Faults of a run, for its report."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ctr.eval import display
from ctr.eval.run_files import Run
from ctr.io.errors import InputError

_SHOWN = 5
_ROOTS = {
    "failed": "roots that failed, or whose result was rejected by its check",
    "lost": "roots that were lost",
}


@dataclass(frozen=True)
class Fault:
    """One kind of fault: how often it occurred, and the first of them, or what they were, a line each."""

    title: str
    count: float
    details: list[str]


def faults_of(run: Run, rejects: Mapping[str, int]) -> list[Fault]:
    """Kinds of faults that occurred in a run; raises InputError where summary.json records them otherwise."""
    reasons = [f"{reason}: {display.amount(count)}" for reason, count in rejects.items()]
    skipped = [f"rows {_range(run, rows)}" for rows in _skipped_ranges(run)]
    found = [
        Fault("rejected rows", run.number("rejected_rows") or 0, reasons),
        Fault("rows set aside, in queries with too many rows", run.number("set_aside_rows") or 0, []),
        Fault("skipped steps", run.number("skipped_steps") or 0, _first(skipped)),
        Fault("rows left out by skip: scored, but not trained on", run.number("left_out_rows") or 0, []),
        Fault("predictions that were not finite", run.number("nonfinite_predictions") or 0, []),
    ]
    roots = run.summary.get("shampoo", {})
    if not isinstance(roots, dict):
        raise _malformed(run, "shampoo", "an object", roots)
    for key, title in _ROOTS.items():
        count = roots.get(key, 0)
        if isinstance(count, bool) or not isinstance(count, int):
            raise _malformed(run, f"shampoo.{key}", "a number", count)
        found.append(Fault(title, count, []))
    return [fault for fault in found if fault.count or (fault.details and fault.title != "rejected rows")]


def _first(lines: list[str]) -> list[str]:
    return [*lines[:_SHOWN], *([f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else [])]


def _range(run: Run, rows: object) -> list[int]:
    if isinstance(rows, list) and len(rows) == 2 and all(type(end) is int for end in rows):
        return rows
    raise _malformed(run, "skipped_ranges", "pairs of whole numbers, [first, last]", rows)


def _skipped_ranges(run: Run) -> list[Any]:
    value = run.summary.get("skipped_ranges", [])
    if not isinstance(value, list):
        raise _malformed(run, "skipped_ranges", "a list", value)
    return value


def _malformed(run: Run, key: str, allowed: str, value: object) -> InputError:
    return InputError(f"{run.folder / 'summary.json'}: {key} must be {allowed}, got {value!r:.80}")
