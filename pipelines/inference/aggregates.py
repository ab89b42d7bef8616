"""Tables whose rows are no single impressions: whole pages, or counts of several impressions and their clicks."""

import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from ctr.data.mapping import Label
from ctr.io.errors import InputError
from ctr.pipelines.inference.columns import ColumnFacts, percent
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


def is_count_name(facts: ColumnFacts) -> bool:
    """Tells whether a name is that of a number of outcomes: clicks, num_clicks, total_conversion."""
    words = set(facts.words) - LABEL_HELPERS - COUNT_WORDS
    return bool(words) and words <= LABEL_WORDS


def _counts(facts: ColumnFacts) -> bool:
    """Whether the values are whole numbers from 0 on, and not only 0 and 1."""
    return facts.numbers is not None and facts.is_whole and facts.finite.min() >= 0 and facts.finite.max() > 1


def _numbers(facts: ColumnFacts) -> np.ndarray:
    """[N] the numbers of a column of counts, 0 where there is none."""
    return np.zeros(facts.rows) if facts.numbers is None else np.nan_to_num(facts.numbers)


def _exposures(columns: Mapping[str, ColumnFacts], names: frozenset[str]) -> list[ColumnFacts]:
    return [
        facts
        for facts in columns.values()
        if set(facts.words) & names
        and set(facts.words) <= names | COUNT_WORDS | {"ad", "ads", "page", "of"}
        and _counts(facts)
    ]


def _exposure_of(facts: ColumnFacts, columns: Mapping[str, ColumnFacts]) -> ColumnFacts | None:
    """The column that no number of clicks is above."""
    if not is_count_name(facts) or not _counts(facts):
        return None
    for shown in _exposures(columns, EXPOSURE_WORDS):
        above = _numbers(facts) > _numbers(shown)
        if shown is not facts and above.mean() <= TOLERANCE:
            return shown
    return None


def count_fault(
    facts: ColumnFacts, columns: Mapping[str, ColumnFacts], weight: str | None = None
) -> InputError | None:
    """Tells why a column is no label: it counts the clicks of several impressions; None where it does not.

    Where --weight names a column (``weight``), only a weight by the impressions is wrong.
    """
    shown = _exposure_of(facts, columns)
    if shown is None or (
        weight is not None and weight.lower() not in (shown.name.lower(), shown.stem.lower())
    ):
        return None
    several = _numbers(facts) > 1
    rate = percent(float(facts.finite.sum() / max(shown.finite.sum(), 1.0)))
    values = f"{facts.name} {facts.value_at(several)}, {shown.name} {shown.value_at(several)}"
    return InputError(
        f"{facts.name} is no label: a row counts what became of several impressions ({facts.placed(values, several)}), "
        f"of which {rate} are positive; allowed: a row is one impression, with the label 0 or 1",
        f"write each row {shown.name} times, {facts.name} of them with the label 1 and the others with 0; --label "
        f"'{facts.stem}>0' without --weight predicts whether any of a row's impressions was positive",
    )


def count_warning(label: Label, facts: ColumnFacts, columns: Mapping[str, ColumnFacts]) -> str:
    """Warns of a label in a table that may count impressions; empty where it does not."""
    shown = _exposure_of(facts, columns) if label.op is not None else None
    if shown is not None:
        rate = percent(float(facts.finite.sum() / max(shown.finite.sum(), 1.0)))
        return (
            f"warning: a row counts several impressions, and the label is whether any of them was positive; of the "
            f"impressions {rate} are ({facts.name} / {shown.name})"
        )
    for shown in _exposures(columns, IMPRESSION_WORDS):
        several = _numbers(shown) > 1
        if shown is not facts:
            return (
                f"warning: {shown.name} has values above 1 ({shown.placed(shown.value_at(several), several)}): if a "
                "row counts several impressions, its label is not that of one"
            )
    return ""
