"""Tables whose rows are no single impressions: whole pages, or counts of several impressions and their clicks."""

import re
from itertools import chain

import numpy as np
import pyarrow as pa

from ctr.data.mapping import Label
from ctr.io.errors import InputError
from ctr.pipelines.inference.columns import ColumnProfile, Columns, percent
from ctr.pipelines.inference.names import (
    COUNT_WORDS,
    EXPOSURE_WORDS,
    IMPRESSION_WORDS,
    LABEL_HELPERS,
    LABEL_WORDS,
    SHOWN_WORDS,
)
from ctr.pipelines.inference.roles import TOLERANCE

_ROWS = 1000
_SHARE = 0.95
_ITEM = re.compile(r"[^\s,;|\[\](){}'\"]+")
# MIND: N55689-1 N35729-0.
_WITH_LABELS = re.compile(r"[^\s,;|]+[-:][01]([\s,;|]+[^\s,;|]+[-:][01])+")
_ALLOWED = "allowed: one row for each impression, with a column of 0 and 1"


def find_page(columns: Columns) -> str:
    """Tells why a row is a whole list of impressions, and what is allowed; empty where nothing says so."""
    for column in columns.values():
        texts = [] if column.is_list else column.texts[:_ROWS]
        # A page of one impression has no second item.
        if texts and sum(_WITH_LABELS.fullmatch(text) is not None for text in texts) > 0.5 * len(texts):
            return (
                f"a row is a whole page: {column.name} is a list of impressions, each with its label behind it, as in "
                f"MIND's behaviors.tsv (which ctr ingest mind reads under that name, beside its news.tsv); {_ALLOWED}"
            )
    items = {name: _items(column) for name, column in columns.items()}
    lengths = {name: [len(row) for row in rows if row] for name, rows in items.items()}
    lists = {name: items[name] for name, found in lengths.items() if found and np.mean(found) > 1.2}
    outcomes = {name for name, column in columns.items() if column.has_word(LABEL_WORDS)}
    for name, rows in sorted(items.items(), key=lambda item: item[0] not in outcomes):
        outcome = name in outcomes
        if outcome and name in lists and set(chain.from_iterable(rows)) <= {"0", "1"}:
            return f"a row is a whole page: {name} is a list of labels, one for each item shown; {_ALLOWED}"
        for shown, others in lists.items():
            named = outcome or columns[shown].has_word(SHOWN_WORDS)
            if name != shown and named and _is_part(rows, others):
                return (
                    f"a row is a whole page: {shown} lists what was shown, and {name} what was clicked of it; "
                    f"allowed: one row for each item of {shown}, with 1 where {name} has it, else 0"
                )
    return ""


def _items(column: ColumnProfile) -> list[list[str]]:
    """The items of each of the first rows; of a column of single values, one or none."""
    if column.is_list and pa.types.is_null(column.array.type.value_type):
        return [[]] * min(_ROWS, len(column.array))
    if column.is_list:
        values = column.array.slice(0, _ROWS).cast(pa.list_(pa.string())).to_pylist()
        return [[item for item in row or [] if item is not None] for row in values]
    found = [_ITEM.findall(text) for text in column.texts]
    return [found[code] if code >= 0 else [] for code in column.codes[:_ROWS].tolist()]


def _is_part(rows: list[list[str]], others: list[list[str]]) -> bool:
    """Whether a column's items are, row by row, some of those of another column."""
    pairs = [(set(row), set(other)) for row, other in zip(rows, others, strict=True) if row]
    inside = sum(row <= other for row, other in pairs)
    fewer = sum(len(row) < len(other) for row, other in pairs)
    return len(pairs) >= 5 and inside >= _SHARE * len(pairs) and fewer > 0.5 * len(pairs)


def is_count_name(column: ColumnProfile) -> bool:
    """Tells whether a name is that of a number of outcomes: clicks, num_clicks, total_conversion."""
    return column.consists_of(LABEL_WORDS, LABEL_HELPERS | COUNT_WORDS)


def _counts(column: ColumnProfile) -> np.ndarray | None:
    """[N] whole numbers from 0 on, 0 where there is none; None where they are others, or only 0 and 1."""
    found = column.finite
    if column.numbers is None or not column.is_whole or found.min() < 0 or found.max() <= 1:
        return None
    return np.nan_to_num(column.numbers)


def _exposures(columns: Columns, names: frozenset[str]) -> list[tuple[ColumnProfile, np.ndarray]]:
    """The columns that count impressions, by the words of their names; and the counts."""
    named = [
        one for one in columns.values() if one.consists_of(names, COUNT_WORDS | {"ad", "ads", "page", "of"})
    ]
    return [(one, counts) for one in named if (counts := _counts(one)) is not None]


def _exposure_of(column: ColumnProfile, columns: Columns) -> tuple[ColumnProfile, str, np.ndarray] | None:
    """The column that no number of clicks is above; the share of clicks; and [N] bool, where there are several."""
    clicks = _counts(column) if is_count_name(column) else None
    if clicks is None:
        return None
    for shown, counts in _exposures(columns, EXPOSURE_WORDS):
        if shown is not column and (clicks > counts).mean() <= TOLERANCE:
            rate = percent(float(column.finite.sum() / max(shown.finite.sum(), 1.0)))
            return shown, rate, clicks > 1
    return None


def count_fault(column: ColumnProfile, columns: Columns, weight: str | None = None) -> InputError | None:
    """Tells why a column is no label: it counts the clicks of several impressions; None where it does not.

    Where --weight names a column (``weight``), only a weight by the impressions is wrong.
    """
    found = _exposure_of(column, columns)
    if found is None:
        return None
    shown, rate, several = found
    if weight is not None and weight.lower() not in (shown.name.lower(), shown.stem.lower()):
        return None
    values = f"{column.name} {column.value_at(several)}, {shown.name} {shown.value_at(several)}"
    return InputError(
        f"{column.name} is no label: a row counts what became of several impressions "
        f"({column.placed(values, several)}), of which {rate} are positive; allowed: a row is one impression, with the "
        "label 0 or 1",
        f"write each row {shown.name} times, {column.name} of them with the label 1 and the others with 0; --label "
        f"'{column.stem}>0' without --weight predicts whether any of a row's impressions was positive",
    )


def count_warning(label: Label, column: ColumnProfile, columns: Columns) -> str:
    """Warns of a label in a table that may count impressions; empty where it does not."""
    if label.op is not None and (found := _exposure_of(column, columns)) is not None:
        return (
            f"warning: a row counts several impressions, and the label is whether any of them was positive; of the "
            f"impressions {found[1]} are ({column.name} / {found[0].name})"
        )
    for shown, counts in _exposures(columns, IMPRESSION_WORDS):
        if shown is not column:
            return (
                f"warning: {shown.name} has values above 1 ({shown.first_of(counts > 1)}): if a "
                "row counts several impressions, its label is not that of one"
            )
    return ""
