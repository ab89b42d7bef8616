"""Columns with the roles of example id and weight, where they are not certain, and how many rows a role may cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ctr.io.errors import InputError
from ctr.io.words import listed
from ctr.pipelines.inference.columns import ColumnFacts
from ctr.pipelines.inference.names import EXAMPLE_NAMES, WEIGHT_NAMES
from ctr.pipelines.rows.convert import parse_weights

NONE = "none"  # what --query, --time and --weight take for: there is none
TOLERANCE = (
    0.005  # at most this share of the rows, and of the positive ones, becomes rejects for a role's sake
)


@dataclass(frozen=True)
class Choice:
    """Possible answer to a doubt: a value of the option."""

    value: str
    because: str
    column: str = ""  # that it is about, where the value is not its name


@dataclass(frozen=True)
class Doubt:
    """Question that the user has to decide by an option."""

    option: str
    question: str  # with the value that makes it one and its row
    choices: tuple[Choice, ...]  # the likeliest first


def find_column(name: str, columns: Mapping[str, ColumnFacts], option: str) -> ColumnFacts:
    """Finds the column of a name as the user gives it: exact, without what RecBole puts behind it, or in other case.

    Raises:
        InputError: there is none, or there are several.
    """
    if name in columns:
        return columns[name]
    for names in ([facts.stem for facts in columns.values()], [column.lower() for column in columns]):
        wanted = name if name in names else name.lower()
        if names.count(wanted) == 1:
            return list(columns.values())[names.index(wanted)]
        if wanted in names:
            several = [column for column, other in zip(columns, names, strict=True) if other == wanted]
            raise InputError(f"{option} {name}: may be {' or '.join(several)}: write the name as it is there")
    raise InputError(f"{option} {name}: no such column; the columns are {listed(list(columns), name)}")


def rejects_text(facts: ColumnFacts, bad: np.ndarray) -> str:
    """Formats the rows that become rejects, [N] bool, to follow the reason of a role; empty where there are none."""
    if not bad.any():
        return ""
    shown = facts.placed(facts.value_at(bad) or "no value", bad)
    return f"; {int(bad.sum()):,} of {len(bad):,} rows become rejects ({shown})"


def too_many(bad: np.ndarray, positive: np.ndarray | None) -> str:
    """Tells which rows, [N] bool, are too many to become rejects, such as ``60 of 3,000 rows``; empty where few.

    Of the positive rows, [N] bool, no more may be lost than the tolerance and chance allow.
    """
    lost = int(bad.sum())
    if lost > TOLERANCE * len(bad):
        return f"{lost:,} of {len(bad):,} rows"
    if positive is None or not positive.any():
        return ""
    clicks, all_clicks = int((bad & positive).sum()), int(positive.sum())
    expected = lost * all_clicks / len(bad)
    if clicks > max(TOLERANCE * all_clicks, expected + 4 * expected**0.5 + 1):
        return f"{clicks:,} of {all_clicks:,} positive rows"
    return ""


def choose_example_id(
    columns: Mapping[str, ColumnFacts], used: Sequence[str], whole: bool
) -> tuple[ColumnFacts | None, str]:
    """Chooses the column that names each row, by its name and because hardly a value comes twice; and why, or why not.

    Only where the sample is the ``whole`` table may values come twice, as few as the tolerance says.
    """
    why_not = ""
    for facts in columns.values():
        has_fractions = any("." in text or "e" in text.lower() for text in facts.texts[:100])
        is_id = facts.numbers is None or (facts.is_whole and not has_fractions)
        free = facts.name not in used and facts.kind in ("word", "number")
        if not (free and is_id and facts.plain_name in EXAMPLE_NAMES and facts.rows > 1):
            continue
        bad = np.ones(facts.rows, bool)
        bad[np.unique(facts.codes, return_index=True)[1]] = False
        bad |= facts.codes < 0
        if not bad.any():
            return facts, "its name, and no value comes twice"
        # A row may be sent twice; `id` alone may be that of a user.
        may_repeat = whole and facts.plain_name != "id"
        if bad.sum() <= TOLERANCE * facts.rows and (may_repeat or not (bad & (facts.codes >= 0)).any()):
            return facts, "its name, and hardly a value comes twice" + rejects_text(facts, bad)
        if facts.distinct > 0.5 * facts.rows and not why_not:
            shown = facts.placed(f"{facts.value_at(bad)} again" if facts.value_at(bad) else "no value", bad)
            why_not = (
                f"{facts.name} is named like the id of a row and is none: {int(bad.sum()):,} of {facts.rows:,} rows "
                f"have an earlier row's, or none ({shown})"
            )
    return None, why_not


def choose_weight(
    text: str | None,
    columns: Mapping[str, ColumnFacts],
    used: Sequence[str],
    positive: np.ndarray | None = None,
) -> tuple[ColumnFacts | None, str] | Doubt:
    """Chooses the column of importance weights, given by ``--weight`` or certain by its name, and says why.

    Raises:
        InputError: --weight names no column, or one with other values than numbers from 0 on.
    """
    if text == NONE and NONE not in columns:
        return None, ""
    if text is not None:
        facts = find_column(text, columns, "--weight")
        bad, fault = _weight_fault(facts, positive)
        if fault:
            raise InputError(
                f"--weight {text}: allowed: numbers from 0 on in every row; {fault} ({facts.describe()})"
            )
        return facts, "given by --weight" + rejects_text(facts, bad)
    for facts in columns.values():
        if not is_weight_name(facts) or facts.name in used or not facts.present:
            continue
        bad, fault = _weight_fault(facts, positive)
        if fault:
            question = f"which column is the weight: {facts.name} is named like one, but {fault}"
            return Doubt("--weight", question, (Choice(NONE, "each row counts once"),))
        if facts.finite.min() < facts.finite.max():
            return facts, "its name and values" + rejects_text(facts, bad)
    return None, ""


def is_weight_name(facts: ColumnFacts) -> bool:
    """Tells whether a name is one of importance weights."""
    return facts.plain_name in WEIGHT_NAMES


def _weight_fault(facts: ColumnFacts, positive: np.ndarray | None) -> tuple[np.ndarray, str]:
    """[N] bool, the rows without a weight that can be, and why they are too many; empty where they are few."""
    try:
        _, bad = parse_weights(facts.array)
    except InputError as error:
        return np.ones(facts.rows, bool), f"it is {error}"
    many = too_many(bad, positive)
    if not many:
        return bad, ""
    value = facts.value_at(bad)
    stands = f"{value} is no weight" if value else "there is no value"
    return bad, f"{facts.placed(stands, bad)} ({many})"
