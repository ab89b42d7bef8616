"""Tables of arms and what stands in them, for a terminal and for a report alike."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ctr.eval import display
from ctr.eval.intervals import Estimate
from ctr.experiments.report.results import ArmResult

_LEAST_DECIMALS, _MOST_DECIMALS = 2, 5


@dataclass(frozen=True)
class Cell:
    """What stands in a table.

    Attributes:
        text: in a terminal and in a report.
        detail: more of it, in a report alone.
        verdict: better or worse, if it is significant; else empty.
    """

    text: str
    detail: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class ArmTable:
    """A table with a row for each of some arms.

    Attributes:
        name: in links.
        title: what it says.
        columns: heads of the cells; `PAPER` is that of what a publication reports.
        rows: names of the arms, and their cells.
        notes: how to read it.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, list[Cell]]]
    notes: tuple[str, ...]


NOTHING = Cell(display.ABSENT)
PAPER = "paper"
_PAPER_NOTE = (
    "paper: what the technique's publication reports, on its own data, as the experiment's file quotes it."
)


def without_empty_columns(table: ArmTable) -> ArmTable:
    """The table without the columns that say nothing of any arm; with a note on `PAPER` where that one stays."""
    kept = [
        place
        for place in range(len(table.columns))
        if any(
            cells[place].text not in ("", display.ABSENT) or cells[place].detail for _, cells in table.rows
        )
    ]
    columns = tuple(table.columns[place] for place in kept)
    return replace(
        table,
        columns=columns,
        rows=[(name, [cells[place] for place in kept]) for name, cells in table.rows],
        notes=(*table.notes, _PAPER_NOTE) if PAPER in columns else table.notes,
    )


def paper_cell(result: ArmResult, key: str) -> Cell:
    """What a publication reports of an arm's technique under a column's name."""
    reported = result.arm.plan.paper.get(key)
    return NOTHING if reported is None else Cell(str(reported))


def bounds(estimate: Estimate, decimals: int) -> str:
    """The interval of a scalar."""
    low, high = (float(end) for end in estimate.interval())
    return display.interval(low, high, decimals)


def span(values: Iterable[float], decimals: int) -> str:
    """Smallest to largest; of a single value only that it is one."""
    found = list(values)
    if not found:
        return display.ABSENT
    ends = (display.fixed(end, decimals) for end in (min(found), max(found)))
    return "one" if len(found) == 1 else "..".join(ends)


def decimals_within(low: float, high: float) -> int:
    """Digits after the point with which half of a span still shows two digits, within reason."""
    half = (high - low) / 2
    if not 0 < half < math.inf:
        return _LEAST_DECIMALS
    return min(max(_LEAST_DECIMALS, math.ceil(-math.log10(half)) + 1), _MOST_DECIMALS)
