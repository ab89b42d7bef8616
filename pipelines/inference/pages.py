"""Recognizes tables of which a row is a whole page: all that was shown, and what of it was clicked."""

import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from ctr.pipelines.inference.columns import ColumnFacts
from ctr.pipelines.inference.names import LABEL_WORDS, SHOWN_WORDS

_ROWS = 1000
_SHARE = 0.95
_ITEM = re.compile(r"[^\s,;|\[\](){}'\"]+")
# MIND: N55689-1 N35729-0.
_WITH_LABELS = re.compile(r"[^\s,;|]+[-:][01]([\s,;|]+[^\s,;|]+[-:][01])+")
_ALLOWED = "allowed: one row for each impression, with a column of 0 and 1"


def find_page(columns: Mapping[str, ColumnFacts]) -> str:
    """Tells why a row is a whole list of impressions, and what is allowed; empty where nothing says so."""
    for facts in columns.values():
        texts = [] if facts.is_list else facts.texts[:_ROWS]
        # A page of one impression has no second item.
        if texts and sum(_WITH_LABELS.fullmatch(text) is not None for text in texts) > 0.5 * len(texts):
            return (
                f"a row is a whole page: {facts.name} is a list of impressions, each with its label behind it, as in "
                f"MIND's behaviors.tsv (which ctr ingest mind reads under that name, beside its news.tsv); {_ALLOWED}"
            )
    items = {name: _items(facts) for name, facts in columns.items()}
    lists = {name: rows for name, rows in items.items() if _mean_length(rows) > 1.2}
    outcomes = {name for name in items if set(columns[name].words) & LABEL_WORDS}
    for name, rows in sorted(items.items(), key=lambda item: item[0] not in outcomes):
        outcome = name in outcomes
        if outcome and name in lists and {item for row in rows for item in row} <= {"0", "1"}:
            return f"a row is a whole page: {name} is a list of labels, one for each item shown; {_ALLOWED}"
        for shown, others in lists.items():
            named = outcome or bool(set(columns[shown].words) & SHOWN_WORDS)
            if name != shown and named and _is_part(rows, others):
                return (
                    f"a row is a whole page: {shown} lists what was shown, and {name} what was clicked of it; "
                    f"allowed: one row for each item of {shown}, with 1 where {name} has it, else 0"
                )
    return ""


def _items(facts: ColumnFacts) -> list[list[str]]:
    """The items of each of the first rows; of a column of single values, one or none."""
    if facts.is_list and pa.types.is_null(facts.array.type.value_type):
        return [[]] * min(_ROWS, len(facts.array))
    if facts.is_list:
        values = facts.array.slice(0, _ROWS).cast(pa.list_(pa.string())).to_pylist()
        return [[item for item in row or [] if item is not None] for row in values]
    found = [_ITEM.findall(text) for text in facts.texts]
    return [found[code] if code >= 0 else [] for code in facts.codes[:_ROWS].tolist()]


def _mean_length(rows: list[list[str]]) -> float:
    return float(np.mean([len(row) for row in rows if row] or [0]))


def _is_part(rows: list[list[str]], others: list[list[str]]) -> bool:
    """Whether a column's items are, row by row, some of those of another column."""
    pairs = [(set(row), set(other)) for row, other in zip(rows, others, strict=True) if row]
    inside = sum(row <= other for row, other in pairs)
    fewer = sum(len(row) < len(other) for row, other in pairs)
    return len(pairs) >= 5 and inside >= _SHARE * len(pairs) and fewer > 0.5 * len(pairs)
