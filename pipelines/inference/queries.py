"""The query column, whose equal values are the rows of one page, and where it is not certain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ctr.io.errors import InputError
from ctr.pipelines.inference.columns import ColumnFacts, percent
from ctr.pipelines.inference.names import EXAMPLE_NAMES, QUERY_NAMES, QUERY_WORDS, SESSION_WORDS, USER_WORDS
from ctr.pipelines.inference.roles import NONE, TOLERANCE, Choice, Doubt, find_column, rejects_text, too_many
from ctr.pipelines.inference.times import TimeColumn
from ctr.pipelines.rows.rejects import MAX_REJECT_SHARE

FEW_USERS = 20  # a column of users has more values
LONGEST_PAGE = 200  # rows

_RUNS = 20
_HOUR_US = 3_600_000_000
# Of a page all rows are shown together, and a session ends where nothing happens.
_PAGE_US, _SESSION_GAP_US = _HOUR_US, 6 * _HOUR_US
# Of the rows of a query so many may be another user's, such as one whose id is not known.
_OTHER_USERS = 0.05


@dataclass(frozen=True)
class Rows:
    """Facts about the rows of a sample: the first ``head`` stand together in the file."""

    head: int
    time: TimeColumn | None = None
    positive: np.ndarray | None = None  # [N] bool, the rows with the label 1; None where there is no label


@dataclass(frozen=True)
class _Fault:
    """Why a column named like a query is none, and whether that is certain."""

    facts: ColumnFacts
    why: str
    certain: bool = False


def choose_query(
    text: str | None, columns: Mapping[str, ColumnFacts], used: Sequence[str], rows: Rows
) -> tuple[ColumnFacts | None, str] | Doubt:
    """Chooses the column of queries and says why; None: each row is its own. InputError for a wrong --query."""
    if text == NONE and NONE not in columns:
        return None, "each row is its own query, as --query none says"
    if text is not None:
        return _given_query(text, columns)
    free = [
        facts for facts in columns.values() if facts.name not in used and facts.kind in ("word", "number")
    ]
    users = [facts for facts in free if _is_user(facts)]
    named = [facts for facts in free if _is_query_name(facts)]
    grouped = [facts for facts in named if facts.distinct == 1 or _groups(facts, rows.head)]
    found = {facts.name: _find_fault(facts, users, rows) for facts in grouped}
    good = [facts for facts in grouped if found[facts.name] is None]
    if len(good) == 1:
        why = f"named like a query, {_rows_each(good[0], rows.head):.3g} rows each"
        return good[0], why + rejects_text(good[0], good[0].codes < 0)
    if good:
        ordered = sorted(good, key=lambda facts: _rows_each(facts, rows.head))
        return _query_doubt(f"{len(ordered)} columns are named like one", ordered, rows.head)
    faults = [fault for fault in found.values() if fault is not None]
    asked = [fault for fault in faults if not fault.certain]
    if asked:
        # The ingest of a column with more rejects would stop.
        possible = [fault.facts for fault in asked if fault.facts.missing_share <= MAX_REJECT_SHARE]
        return _query_doubt("; ".join(fault.why for fault in asked), possible, rows.head)
    if len(named) == len(faults):
        runs = [facts for facts in free if facts not in grouped and _is_run(facts, rows.head)]
        if runs:
            return _query_doubt("rows that follow one another share a value", runs, rows.head)
    why = "no column groups rows"
    if faults:
        why = faults[0].why
    elif named:
        why = f"every {named[0].name} occurs once"
    people = (facts.name for facts in free if set(facts.words) & USER_WORDS and facts.distinct > FEW_USERS)
    user = next(people, None)
    hint = f"; sessions of a user: --query {user} --session-gap 30m" if user is not None else ""
    return None, f"each row is its own query: {why}{hint}"


def _given_query(text: str, columns: Mapping[str, ColumnFacts]) -> tuple[ColumnFacts, str]:
    facts = find_column(text, columns, "--query")
    missing = facts.codes < 0
    if missing.mean() > MAX_REJECT_SHARE:
        shown = facts.placed(f"no value in {int(missing.sum()):,} of {len(missing):,} rows", missing)
        raise InputError(
            f"--query {text}: {shown}; allowed: in at most 1% of the rows, which become rejects",
            "leave these rows out of the table, or give each an id of its own; --query none: each row is its own query",
        )
    return facts, "given by --query" + rejects_text(facts, missing)


def _query_doubt(why: str, found: Sequence[ColumnFacts], head_rows: int) -> Doubt:
    choices = [Choice(f.name, f"{_rows_each(f, head_rows):.3g} rows each; {f.describe()}") for f in found]
    choices.append(Choice(NONE, "each row is its own query"))
    question = f"which column is the query, of whose rows one page was made: {why}"
    return Doubt("--query", question, tuple(choices))


def _is_query_name(facts: ColumnFacts) -> bool:
    words = facts.words
    is_id = len(words) > 1 and words[-1] == "id" and bool(set(words) & QUERY_WORDS)
    return facts.plain_name in QUERY_NAMES or is_id


def _groups(facts: ColumnFacts, head_rows: int) -> bool:
    sent_twice = 2 * TOLERANCE if facts.plain_name in EXAMPLE_NAMES else 0.001
    return _rows_each(facts, head_rows) > 1 + sent_twice


def _is_user(facts: ColumnFacts) -> bool:
    words = set(facts.words) - {"id", "hash"}
    return bool(words) and words <= USER_WORDS and facts.distinct > FEW_USERS


def _rows_each(facts: ColumnFacts, head_rows: int) -> float:
    codes = facts.codes[:head_rows]
    codes = codes[codes >= 0]
    return len(codes) / max(1, len(np.unique(codes)))


def _find_fault(facts: ColumnFacts, users: Sequence[ColumnFacts], rows: Rows) -> _Fault | None:
    """Why a column that is named like a query, and whose values come several times, is none; None where it is one."""
    codes, missing = facts.codes, facts.codes < 0
    if facts.distinct == 1:
        return _Fault(facts, f"{facts.name} is always {facts.value_at(~missing)}", certain=True)
    if many := too_many(missing, rows.positive):
        why = facts.placed(f"{facts.name} has no value in {many}", missing)
        if facts.missing_share > MAX_REJECT_SHARE:
            why += "; leave these rows out of the table to use it"
        return _Fault(facts, why)
    few = facts.distinct < _RUNS
    each = _rows_each(facts, rows.head)
    apart = _far_apart(facts, users, rows)
    most = codes == int(facts.counts.argmax())
    if each > LONGEST_PAGE or (few and not _is_contiguous(codes[: rows.head])):
        why = f"{facts.name} has {facts.distinct:,} values, {each:.3g} rows each"
        why += ", more than a page holds" if each > LONGEST_PAGE else ", which come back all over the table"
        why = f"{why} ({facts.placed(facts.value_at(most), most)})"
        return _Fault(facts, why, certain=few or bool(apart))
    count = int(facts.counts.max())
    if count > LONGEST_PAGE and count > 20 * np.median(facts.counts) and count > TOLERANCE * len(codes):
        share = f"{facts.name} is {facts.value_at(most)} in {count:,} of {len(codes):,} rows"
        return _Fault(facts, facts.placed(share, most))
    return _Fault(facts, apart) if apart else None


def _is_contiguous(codes: np.ndarray) -> bool:
    """Whether the rows of nearly every value follow one another."""
    codes = codes[codes >= 0]
    begins = 1 + int((codes[1:] != codes[:-1]).sum())
    return begins <= 1.02 * len(np.unique(codes)) + 1


def _far_apart(facts: ColumnFacts, users: Sequence[ColumnFacts], rows: Rows) -> str:
    """Why rows of one value are not of one page: other users', of another time, or far away in the file."""
    codes = facts.codes
    if _is_contiguous(codes):
        return ""
    order = np.flatnonzero(codes >= 0)
    order = order[np.argsort(codes[order], kind="stable")]
    begin = order[_starts(codes[order])]
    for user in users:
        known = (user.codes[order] >= 0) & (user.codes[begin] >= 0)
        other = known & (user.codes[order] != user.codes[begin])
        if user is not facts and other.mean() > _OTHER_USERS:
            share = percent(float(other.mean()))
            text = f"rows of one {facts.name} have several values of {user.name}, {share} another than the first row"
            return _again(facts, order[other], text)
    if rows.time is not None:
        is_session = bool(set(facts.words) & SESSION_WORDS)
        us, limit = rows.time.us, _SESSION_GAP_US if is_session else _PAGE_US
        order = order[us[order] > 0]
        order = order[np.lexsort((us[order], codes[order]))]
        before = np.r_[order[:1], order[:-1]] if is_session else order[_starts(codes[order])]
        far = (codes[order] == codes[before]) & (us[order] - us[before] > limit)
        words = f"after more than {limit // _HOUR_US} hour{'s' * is_session}"
    else:
        before = np.r_[order[:1], order[:-1]]
        far = (codes[order] == codes[before]) & (order - before > LONGEST_PAGE)
        words = f"after more than {LONGEST_PAGE} rows"
    if not len(far) or far.mean() <= TOLERANCE:
        return ""
    text = f"values of {facts.name} come back {words}, in {percent(float(far.mean()))} of the rows"
    return _again(facts, order[far], text)


def _starts(codes: np.ndarray) -> np.ndarray:
    """[N] the place where the run of equal codes begins that each belongs to."""
    first = np.r_[True, codes[1:] != codes[:-1]][: len(codes)]
    return np.maximum.accumulate(np.where(first, np.arange(len(codes)), 0))


def _again(facts: ColumnFacts, places: np.ndarray, text: str) -> str:
    rows = np.zeros(facts.rows, bool)
    rows[places.min()] = True
    return facts.placed(f"{text} ({facts.value_at(rows)}", rows) + ")"


def _is_run(facts: ColumnFacts, head_rows: int) -> bool:
    """Whether the values of a column, ids with many values, stand in groups of consecutive rows."""
    codes = facts.codes[:head_rows]
    codes = codes[codes >= 0]
    if facts.missing_share > TOLERANCE or not (facts.numbers is None or facts.is_whole) or not len(codes):
        return False
    begins = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
    longest = int(np.diff([*begins.tolist(), len(codes)]).max())
    distinct = len(np.unique(codes))
    contiguous = distinct >= _RUNS and len(begins) <= 1.02 * distinct
    return contiguous and len(codes) >= 2 * distinct and longest <= LONGEST_PAGE
