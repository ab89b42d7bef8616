"""Columns with the roles of time, example id and weight, where they are uncertain, and how many rows they may cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import ValidationError

from ctr.config import describe_validation_error
from ctr.data.mapping import Time
from ctr.io.errors import InputError
from ctr.io.words import listed
from ctr.pipelines.inference.columns import ColumnFacts, percent
from ctr.pipelines.inference.names import EXAMPLE_NAMES, WEIGHT_NAMES
from ctr.pipelines.inference.times import BAD_SHARE, TimeColumn, find_time, promised_rank, read_as, show_value
from ctr.pipelines.rows.convert import parse_weights
from ctr.pipelines.rows.rejects import MAX_REJECT_SHARE

NONE = "none"  # what --query, --time and --weight take for: there is none
# At most this share of the rows, and of the positive ones, becomes rejects for a role's sake.
TOLERANCE = 0.005


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
    """Finds the column that the user names: exactly, without RecBole's ending, or in other case; or InputError."""
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
    """Chooses the weights, given or certain by their name, and says why; InputError for a wrong --weight."""
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


# What may follow the column of --time.
FORMS = "s, ms, us, ns (since 1970), serial (days, as spreadsheets count), iso8601, or a format of strptime"

_UNITS = ("s", "ms", "us", "ns", "serial")


def choose_time(
    text: str | None, columns: Mapping[str, ColumnFacts], head_rows: int, used: Sequence[str]
) -> TimeColumn | Doubt | None:
    """Chooses the time of the rows, given by ``--time`` or certain; None: it is the order of the file.

    A column that is named like a time and is not read as one is a question, unless another one is the time. Raises
    InputError: --time names no column, or one that cannot be read as a time.
    """
    if text == NONE and NONE not in columns:
        return None
    if text is not None:
        return _given(text, columns, head_rows)
    found = {name: find_time(facts, head_rows) for name, facts in columns.items() if name not in used}
    read = [one for one in found.values() if one is not None and one.bad_share <= BAD_SHARE]
    read.sort(key=lambda one: -one.rank)
    own = [one for one in read if one.rank >= 0]
    failed = [(rank, columns[name]) for name in found if (rank := promised_rank(columns[name])) > 0]
    failed = [(rank, facts) for rank, facts in failed if facts.name not in {one.facts.name for one in read}]
    best = own[0] if own else None
    # What is certainly no time at all, such as the number of minutes, is a question only where nothing else is a time.
    doubted = [
        facts
        for rank, facts in sorted(failed, key=lambda pair: -pair[0])
        if best is None or (rank > best.rank and (found[facts.name] is not None or facts.numbers is None))
    ]
    others = [one for one in read if -1 <= one.rank < 0]
    if best is not None and not doubted:
        if best.is_open:
            return _open_order(best)
        if best.rank > 0 and all(one.rank < best.rank for one in own[1:]):
            return best
    if not (own or doubted or others):
        return None
    return _doubt(own, [(facts, found[facts.name]) for facts in doubted], others)


def _given(text: str, columns: Mapping[str, ColumnFacts], head_rows: int) -> TimeColumn | Doubt:
    name, form = _parted(text, columns)
    facts = find_column(name, columns, "--time")
    if form is None:
        found = find_time(facts, head_rows, named=True)
        if found is None:
            raise InputError(
                f"--time {text}: {_first_strange(facts, None).removeprefix('is ')}; name its form with "
                f"--time '{facts.name}=FORM': {FORMS} such as %d.%m.%y"
            )
        if found.is_open:
            return _open_order(found)
    else:
        way = {"unit": form} if form in _UNITS else {"format": form}
        try:
            time = Time.model_validate({"column": facts.name, **way})
        except ValidationError as error:
            raise InputError(describe_validation_error(error, Time, f"--time {text!r}")) from None
        try:
            found = read_as(facts, time)
        except InputError as error:
            raise InputError(f"--time {text}: the column {facts.name} is {error}") from None
    if found.bad_share > MAX_REJECT_SHARE:
        raise InputError(
            f"--time {text}: {found.rejects}; allowed: a time (read as {found.time.form}) in at least "
            f"{percent(1 - MAX_REJECT_SHARE)} of the rows, or another form: {FORMS}"
        )
    return found


def _parted(text: str, columns: Mapping[str, ColumnFacts]) -> tuple[str, str | None]:
    """The column and the form that ``--time`` gives; a column may have = in its name."""
    if text in columns or "=" not in text:
        return text, None
    cuts = [place for place, mark in enumerate(text) if mark == "="]
    cut = next((place for place in cuts if text[:place] in columns), cuts[0])
    return text[:cut], text[cut + 1 :]


def _open_order(found: TimeColumn) -> Doubt:
    name, forms = found.facts.name, (found.time.format or "", found.other)
    choices = [Choice(f"{name}={form}", "reads all values", name) for form in forms]
    both = f"{' and '.join(forms)} both read {found.facts.texts[0]!r}"
    question = f"which form the dates of {name} have: {both}"
    return Doubt("--time", question, (*choices, Choice(NONE, "the order of the file is the time")))


def _doubt(
    own: Sequence[TimeColumn],
    failed: Sequence[tuple[ColumnFacts, TimeColumn | None]],
    others: Sequence[TimeColumn],
) -> Doubt:
    """Asks which column is the time: one that is read as such, or one of the others.

    ``failed`` are named like times and not read as such, the likeliest first; ``others`` are named like other events.
    """
    choices, hint = [], ""
    for facts, found in failed:
        if found is not None and found.bad_share <= MAX_REJECT_SHARE:
            choices.append(
                Choice(facts.name, f"{found.time.form}; the {int(found.bad.sum()):,} become rejects")
            )
        elif found is None and facts.numbers is not None and facts.finite.min() >= 0:
            choices.append(Choice(f"{facts.name}=s", "seconds as they are, whenever they begin", facts.name))
    choices += [Choice(one.facts.name, f"{one.time.form}; {one.facts.describe()}") for one in own]
    if not own:
        choices += [Choice(one.facts.name, f"{one.time.form}, named like another event's") for one in others]
    choices.append(Choice(NONE, "the order of the file is the time"))
    why = ""
    if failed:
        facts, found = failed[0]
        why = f": {facts.name} is named like it, but {_first_strange(facts, found)}"
        hint = f" (name another form with --time '{facts.name}=%d.%m.%y %H:%M', =ms or the like)"
        if found is not None and found.bad_share > MAX_REJECT_SHARE:
            hint = f", more than the {percent(MAX_REJECT_SHARE)} that may become rejects{hint}"
    elif not own:
        why = f": {' and '.join(one.facts.name for one in others)} may be that of the outcome or of another event"
    return Doubt("--time", f"which column is the time of the row{why}{hint}", tuple(choices))


def _first_strange(facts: ColumnFacts, found: TimeColumn | None) -> str:
    if found is not None:
        return found.rejects
    if not facts.present:
        return "has no values"
    return f"is not read as a time: {show_value(facts, facts.codes >= 0)}"
