"""Results as one tidy table: a row is a number with its interval, and the other columns are its keys.

metric    name of the number
run       run
arm       arm of an experiment, or candidate of a search
seed      seed, or a pair of seeds as ``1-2``; empty for all of them together
slice     slice, decile, or kind of retrain; empty for all rows
window    part of the pass; empty for all of it
value, low, high    the number and the ends of its interval: 95% over queries, unless the metric says otherwise; with
                    an infinite end (null in JSON) the value is only a bound
"""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ctr.eval.display import Number
from ctr.eval.intervals import Estimate
from ctr.io.documents import json_number

# Loaded where it is needed: commands that need no tables start sooner.
if TYPE_CHECKING:
    import pandas as pd

KEYS = ("run", "arm", "seed", "slice", "window")
COLUMNS = ("metric", *KEYS, "value", "low", "high")

# Characters that start a formula in a spreadsheet, in both widths; a number with a sign is none.
_FORMULA_STARTS = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
_NUMBER = re.compile(r"[+-]?[0-9]+([.][0-9]+)?%?")

Row = dict[str, Any]


def row(metric: str, number: Number | Estimate | float | None, **keys: object) -> Row:
    """Returns the row of a number; `keys` are among `KEYS`."""
    if isinstance(number, Estimate):
        number = number.number()
    if not isinstance(number, Number):
        number = Number(number)
    ends = {"value": number.value, "low": number.low, "high": number.high}
    return {
        "metric": metric,
        **dict.fromkeys(KEYS, ""),
        **{key: str(value) for key, value in keys.items()},
        **ends,
    }


def tidy(rows: Iterable[Row]) -> "pd.DataFrame":
    """Returns a table with ``COLUMNS`` from rows; its numbers are float64, NaN if unknown or undefined."""
    import pandas as pd

    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.astype({name: np.float64 for name in ("value", "low", "high")})


def as_records(table: "pd.DataFrame") -> list[dict[str, Any]]:
    """Converts a table to JSON records: null where a number is unknown or undefined."""
    return [
        {str(key): json_number(cell) if isinstance(cell, float) else cell for key, cell in record.items()}
        for record in table.to_dict("records")
    ]


def as_csv(table: "pd.DataFrame") -> str:
    """Formats a table as CSV, with an apostrophe before text that a spreadsheet would run as a formula."""
    plain = table.copy()
    for name in ("metric", *KEYS):
        plain[name] = plain[name].map(_escaped)
    return plain.to_csv(index=False, lineterminator="\n")


def _escaped(text: str) -> str:
    if _NUMBER.fullmatch(text):
        return text
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA_STARTS) else text


class Numbers:
    """Numbers of a table by metric and keys."""

    def __init__(self, table: "pd.DataFrame") -> None:
        # None where a number is unknown: JSON and tables show both alike.
        columns = [table[name].tolist() for name in ("metric", *KEYS)]
        values = [[None if x != x else x for x in table[name].tolist()] for name in ("value", "low", "high")]
        self._numbers = {
            tuple(key): Number(*number)
            for key, number in zip(zip(*columns, strict=True), zip(*values, strict=True), strict=True)
        }

    def __call__(self, metric: str, **keys: object) -> Number | None:
        """Returns a number, or None where the table does not have it."""
        return self._numbers.get((metric, *(str(keys.get(name, "")) for name in KEYS)))

    def by(self, column: str, metric: str, **keys: object) -> dict[str, Number]:
        """Returns the numbers of a metric by a column; the other keys are `keys`, or empty."""
        index = KEYS.index(column) + 1
        wanted = (metric, *(str(keys.get(name, "")) for name in KEYS))
        return {
            key[index]: number
            for key, number in self._numbers.items()
            if key[index] and all(key[i] == value for i, value in enumerate(wanted) if i != index)
        }
