"""Column that is the time of the rows, and where it is not certain."""

from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from ctr.config import describe_validation_error
from ctr.data.mapping import Time
from ctr.io.errors import InputError
from ctr.pipelines.inference.columns import ColumnFacts, percent
from ctr.pipelines.inference.roles import NONE, Choice, Doubt, find_column
from ctr.pipelines.inference.times import (
    BAD_SHARE,
    TimeColumn,
    find_time,
    promised_rank,
    read_as,
    show_value,
)
from ctr.pipelines.rows.rejects import MAX_REJECT_SHARE

# What may follow the column of --time.
FORMS = "s, ms, us, ns (since 1970), serial (days, as spreadsheets count), iso8601, or a format of strptime"

_UNITS = ("s", "ms", "us", "ns", "serial")


def choose_time(
    text: str | None, columns: Mapping[str, ColumnFacts], head_rows: int, used: Sequence[str]
) -> TimeColumn | Doubt | None:
    """Chooses the time of the rows, given by ``--time`` or certain; None: it is the order of the file.

    A column that is named like a time and is not read as one is a question, unless another one is the time.

    Raises:
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
