"""Tables of counts: rows that stand for several impressions, with how many of these were clicked."""

from collections.abc import Mapping

import numpy as np

from ctr.data.mapping import Label
from ctr.io.errors import InputError
from ctr.pipelines.inference.columns import ColumnFacts, percent
from ctr.pipelines.inference.names import (
    COUNT_WORDS,
    EXPOSURE_WORDS,
    IMPRESSION_WORDS,
    LABEL_HELPERS,
    LABEL_WORDS,
)
from ctr.pipelines.inference.roles import TOLERANCE


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

    Where ``--weight`` is given, only a weight by the impressions is wrong.
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
