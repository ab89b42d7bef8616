"""Which columns are label, query, time, example id and weight, and where that is not certain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import ValidationError

from ctr.config import describe_validation_error
from ctr.data.mapping import Label
from ctr.io.errors import InputError
from ctr.pipelines.inference.columns import ColumnFacts, percent
from ctr.pipelines.inference.names import (
    EXAMPLE_NAMES,
    LABEL_HELPERS,
    LABEL_WORDS,
    QUERY_NAMES,
    QUERY_WORDS,
    RATING_WORDS,
    USER_WORDS,
    WEIGHT_NAMES,
)
from ctr.pipelines.rows.convert import is_text, parse_labels

NONE = "none"
"""What --query and --time take for: there is none."""

_PAIRS = (
    ("no", "yes"),
    ("n", "y"),
    ("f", "t"),
    ("neg", "pos"),
    ("negative", "positive"),
    ("notclicked", "clicked"),
    ("none", "click"),
)
_PLAIN = (frozenset(("0", "1")), frozenset(("false", "true")), frozenset(("0.0", "1.0")))
_LABELED = 0.005
_RUNS = 20
_LONGEST_GROUP = 200


@dataclass(frozen=True)
class Choice:
    """A possible answer to a doubt: the value of an option, and what speaks for it."""

    value: str
    because: str


@dataclass(frozen=True)
class Doubt:
    """What cannot be decided with certainty.

    Attributes:
        option: that decides it.
        question: in words.
        choices: the possible answers, the likeliest first.
    """

    option: str
    question: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class LabelColumn:
    """The label: its column and rule, why, and of N rows the label and whether there is one."""

    label: Label
    because: str
    values: np.ndarray
    known: np.ndarray


def find_column(name: str, columns: Mapping[str, ColumnFacts], option: str) -> ColumnFacts:
    """The column of a name as the user gives it: exact, without what RecBole puts behind it, or in other case.

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
    raise InputError(f"{option} {name}: no such column; the columns are {', '.join(columns)}")


def plain_label(facts: ColumnFacts) -> Label | None:
    """The label that a column with two values is, such as 0 and 1 or no and yes; None for other columns."""
    if facts.distinct != 2 or facts.is_list or facts.missing_share > _LABELED:
        return None
    lower = {text.strip().lower(): text for text in facts.texts}
    if any(frozenset(facts.texts) == plain for plain in _PLAIN) or (
        frozenset(lower) == _PLAIN[1]
        and set(facts.texts) <= {"true", "false", "True", "False", "TRUE", "FALSE"}
    ):
        return Label(column=facts.name)
    if facts.numbers is not None:
        values = sorted(set(facts.finite.tolist()))
        if values == [0.0, 1.0]:
            return Label(column=facts.name, op="==", value=1.0)
        return Label(column=facts.name, op=">", value=0.0) if values == [-1.0, 1.0] else None
    for no, yes in _PAIRS:
        if frozenset(lower) == {no, yes} and is_text(facts.array.type):
            return Label(column=facts.name, op="==", value=lower[yes])
    return None


def is_label_name(facts: ColumnFacts) -> bool:
    """Whether a name is one of labels: click, is_click, click_bool, label, installed and so on."""
    words = set(facts.words) - LABEL_HELPERS
    return bool(words) and words <= LABEL_WORDS


def choose_label(text: str | None, columns: Mapping[str, ColumnFacts]) -> LabelColumn | Doubt:
    """The label, given by ``--label`` or certain by its name and values; else what the choices are.

    Raises:
        InputError: --label names no column, or one that is no label.
    """
    if text is not None:
        return _given_label(text, columns)
    plain = {name: label for name, facts in columns.items() if (label := plain_label(facts)) is not None}
    named = [name for name in plain if is_label_name(columns[name])]
    if len(named) == 1:
        facts = columns[named[0]]
        return _label_column(plain[named[0]], facts, "two values, and named like a label")
    shown = named or list(plain)
    choices = [Choice(name, _label_share(plain[name], columns[name])) for name in shown]
    choices += [choice for facts in columns.values() if (choice := _rating_choice(facts)) is not None]
    if named:
        question = f"which column is the label: {len(named)} are named like one"
    elif choices:
        question = "which column is the label: no column with two values is named like one"
    else:
        constant = [facts for facts in columns.values() if facts.distinct == 1 and is_label_name(facts)]
        always = f" ({constant[0].name} is always {constant[0].texts[0]})" if constant else ""
        rule = "a rule such as 'rating>=4' makes one of a number"
        question = f"which column is the label: none has two values{always}; {rule}"
    return Doubt("--label", question, tuple(choices))


def _given_label(text: str, columns: Mapping[str, ColumnFacts]) -> LabelColumn:
    # A column may have a name that looks like a rule.
    try:
        rule = Label(column=text) if text in columns else Label.model_validate(text)
    except ValidationError as error:
        raise InputError(describe_validation_error(error, Label, f"--label {text!r}")) from None
    facts = find_column(rule.column, columns, "--label")
    rule = rule.model_copy(update={"column": facts.name})
    if rule.op is None:
        rule = plain_label(facts) or rule
    found = _label_column(rule, facts, "given by --label")
    unread = 1 - found.known.mean()
    if unread > 0.01:
        hint = f"a rule such as --label '{facts.stem}>=4' or --label '{facts.stem}==yes' makes a label of other values"
        raise InputError(
            f"--label {text}: {percent(unread)} of the rows have no label there ({facts.describe()}); allowed: 0, 1, "
            f"true, false, yes, no; {hint}"
        )
    if len(set(found.values[found.known].tolist())) < 2:
        only = int(found.values[found.known][0])
        raise InputError(
            f"--label {text}: all {int(found.known.sum()):,} rows that were looked at have the label {only}; "
            f"both 0 and 1 are required ({facts.describe()})"
        )
    return found


def _label_column(label: Label, facts: ColumnFacts, because: str) -> LabelColumn:
    try:
        values, bad, _ = parse_labels(facts.array, label)
    except InputError as error:
        raise InputError(f"--label: the column {facts.name} is {error}") from None
    return LabelColumn(label, because, values, ~bad)


def _label_share(label: Label, facts: ColumnFacts) -> str:
    found = _label_column(label, facts, "")
    return f"{' and '.join(sorted(facts.texts))}, {percent(float(found.values[found.known].mean()))} positive"


def _rating_choice(facts: ColumnFacts) -> Choice | None:
    if not set(facts.words) & RATING_WORDS or facts.numbers is None or not 3 <= facts.distinct <= 100:
        return None
    values = facts.finite
    levels = np.unique(values)
    level = next((float(level) for level in levels if (values >= level).mean() <= 0.6), float(levels[-1]))
    share = percent(float((values >= level).mean()))
    return Choice(f"{facts.stem}>={level:g}", f"{facts.distinct} ratings, {share} of them so high")


def choose_query(
    text: str | None, columns: Mapping[str, ColumnFacts], head_rows: int, used: Sequence[str]
) -> tuple[ColumnFacts | None, str] | Doubt:
    """The column whose values are queries and why; None: each row is its own; or what the choices are.

    Raises:
        InputError: --query names no column.
    """
    if text == NONE and NONE not in columns:
        return None, "each row is its own query, as --query none says"
    if text is not None:
        return find_column(text, columns, "--query"), "given by --query"
    free = [
        facts for facts in columns.values() if facts.name not in used and facts.kind in ("word", "number")
    ]
    named = [facts for facts in free if _is_query_name(facts) and not facts.missing_share]
    grouped = [facts for facts in named if _rows_each(facts, head_rows) > 1.001]
    if len(grouped) == 1:
        return grouped[0], f"named like a query, {_rows_each(grouped[0], head_rows):.3g} rows each"
    if grouped:
        ordered = sorted(grouped, key=lambda facts: _rows_each(facts, head_rows))
        return _query_doubt(f"{len(ordered)} columns are named like one", ordered, head_rows)
    if not named:
        runs = [facts for facts in free if _is_run(facts, head_rows)]
        if runs:
            return _query_doubt("rows that follow one another share a value", runs, head_rows)
    user = next(
        (facts.name for facts in free if set(facts.words) & USER_WORDS and facts.distinct > FEW_USERS), None
    )
    hint = f"; sessions of a user: --query {user} --session-gap 30m" if user is not None else ""
    if named:
        return None, f"each row is its own query: every {named[0].name} occurs once{hint}"
    return None, f"each row is its own query: no column groups rows{hint}"


FEW_USERS = 20
"""A column of users has more values."""


def _query_doubt(why: str, found: Sequence[ColumnFacts], head_rows: int) -> Doubt:
    choices = [Choice(f.name, f"{_rows_each(f, head_rows):.3g} rows each; {f.describe()}") for f in found]
    choices.append(Choice(NONE, "each row is its own query"))
    return Doubt(
        "--query", f"which column is the query, of whose rows one page was made: {why}", tuple(choices)
    )


def _is_query_name(facts: ColumnFacts) -> bool:
    words = facts.words
    is_id = len(words) > 1 and words[-1] == "id" and bool(set(words) & QUERY_WORDS)
    return facts.plain_name in QUERY_NAMES or is_id


def _rows_each(facts: ColumnFacts, head_rows: int) -> float:
    codes = facts.codes[:head_rows]
    return len(codes) / max(1, len(np.unique(codes)))


def _is_run(facts: ColumnFacts, head_rows: int) -> bool:
    """Whether the values of a column, ids with many values, stand in groups of consecutive rows."""
    codes = facts.codes[:head_rows]
    if facts.missing_share or not (facts.numbers is None or facts.is_whole):
        return False
    if not len(codes):
        return False
    begins = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
    longest = int(np.diff([*begins.tolist(), len(codes)]).max())
    distinct = len(np.unique(codes))
    contiguous = distinct >= _RUNS and len(begins) <= 1.02 * distinct
    return contiguous and len(codes) >= 2 * distinct and longest <= _LONGEST_GROUP


def choose_example_id(columns: Mapping[str, ColumnFacts], used: Sequence[str]) -> ColumnFacts | None:
    """The column that names each row, by its name and because no value comes twice."""
    for facts in columns.values():
        is_free = facts.name not in used and facts.kind in ("word", "number") and not facts.missing_share
        is_id = facts.numbers is None or (facts.is_whole and not _has_fractions(facts))
        if is_free and is_id and facts.plain_name in EXAMPLE_NAMES and facts.distinct == facts.rows > 1:
            return facts
    return None


def _has_fractions(facts: ColumnFacts) -> bool:
    return any("." in text or "e" in text.lower() for text in facts.texts[:100])


def choose_weight(
    text: str | None, columns: Mapping[str, ColumnFacts], used: Sequence[str]
) -> ColumnFacts | None:
    """The column of importance weights, given by ``--weight`` or certain by its name.

    Raises:
        InputError: --weight names no column, or one with other values than numbers from 0 on.
    """
    if text is not None:
        facts = find_column(text, columns, "--weight")
        if facts.numbers is None or facts.missing_share > _LABELED or facts.finite.min() < 0:
            raise InputError(f"--weight {text}: allowed: numbers from 0 on in every row ({facts.describe()})")
        return facts
    for facts in columns.values():
        fits = facts.plain_name in WEIGHT_NAMES and facts.name not in used and facts.numbers is not None
        if fits and not facts.missing_share and 0 <= facts.finite.min() < facts.finite.max() <= 1e9:
            return facts
    return None
