"""Faults of a run, for its report."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

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
    quarantined = [_rollback(run, "quarantined", entry) for entry in _list(run, "quarantined")]
    skipped = [_rows(run, "skipped_ranges", rows) for rows in _list(run, "skipped_ranges")]
    found = [
        Fault("rejected rows", run.number("rejected_rows") or 0, reasons),
        Fault("rows set aside, in queries with too many rows", run.number("set_aside_rows") or 0, []),
        Fault("skipped steps", run.number("skipped_steps") or 0, _first(skipped)),
        Fault("rollbacks", run.number("rollbacks") or 0, quarantined),
        Fault("quarantined rows: scored, but not trained on", run.number("quarantined_rows") or 0, []),
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


def _rows(run: Run, key: str, rows: object) -> str:
    return f"rows {_two(run, key, rows)}"


def _two(run: Run, key: str, pair: object) -> list[int]:
    if isinstance(pair, list) and len(pair) == 2 and all(type(end) is int for end in pair):
        return pair
    raise _malformed(run, key, "pairs of whole numbers, [first, last]", pair)


def _rollback(run: Run, key: str, entry: object) -> str:
    if not isinstance(entry, dict) or type(entry.get("checkpoint")) is not int:
        raise _malformed(run, key, "objects that name a checkpoint", entry)
    rows, times = _rows(run, key, entry.get("rows")), entry.get("query_times")
    where = "nothing quarantined"
    if times is not None:
        where = f"{rows} quarantined, query times {_period(run, key, times)}"
    return f"back to row {entry['checkpoint']}, {where}: {entry.get('reason')}"


def _period(run: Run, key: str, times: object) -> str:
    pair = _two(run, f"{key}.query_times", times)
    try:
        first, last = pd.to_datetime(pair, unit="us")
    except (ValueError, OverflowError):
        raise _malformed(run, f"{key}.query_times", "times in microseconds", times) from None
    return f"{first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} UTC"


def _list(run: Run, key: str) -> list[Any]:
    value = run.summary.get(key, [])
    if not isinstance(value, list):
        raise _malformed(run, key, "a list", value)
    return value


def _malformed(run: Run, key: str, allowed: str, value: object) -> InputError:
    return InputError(f"{run.folder / 'summary.json'}: {key} must be {allowed}, got {value!r:.80}")
