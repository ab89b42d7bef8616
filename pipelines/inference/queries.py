"""The query column, whose equal values are the rows of one page, and where it is not certain."""

from collections.abc import Sequence

import numpy as np

from ctr.io.errors import InputError
from ctr.pipelines.inference import lexicon
from ctr.pipelines.inference.columns import ColumnProfile, count_rows, percent
from ctr.pipelines.inference.roles import (
    NONE,
    TOLERANCE,
    Choice,
    Chosen,
    Doubt,
    Roles,
    find_column,
    is_single,
    rejects_text,
    too_many,
)
from ctr.pipelines.rows.rejects import MAX_REJECT_SHARE

FEW_USERS = 20  # a column of users has more values
LONGEST_PAGE = 200  # rows

_RUNS = 20
_HOUR_US = 3_600_000_000
# Of a page all rows are shown together, and a session ends where nothing happens.
_PAGE_US, _SESSION_GAP_US = _HOUR_US, 6 * _HOUR_US
# Of the rows of a query so many may be another user's, such as one whose id is not known.
_OTHER_USERS = 0.05

_Fault = tuple[str, bool]  # why a column named like a query is none, and whether that is certain


def choose_query(roles: Roles) -> Chosen | Doubt:
    """Chooses the column of queries and says why; None: each row is its own. InputError for a wrong --query."""
    text, head = roles.options.query, roles.sample.head_rows
    if roles.is_none(text):
        return None, "each row is its own query, as --query none says"
    if text is not None:
        return _given_query(text, roles)
    free = list(filter(is_single, roles.free))
    ids = frozenset(("id", "hash"))
    users = [c for c in free if c.consists_of(lexicon.USER_WORDS, ids) and c.distinct > FEW_USERS]
    named = list(filter(_is_query_name, free))
    grouped = [column for column in named if column.distinct == 1 or _groups(column, head)]
    found = [(column, _find_fault(column, users, roles)) for column in grouped]
    good = [column for column, fault in found if fault is None]
    if len(good) == 1:
        why = f"named like a query, {_rows_each(good[0], head):.3g} rows each"
        return good[0], why + rejects_text(good[0], good[0].codes < 0)
    if good:
        ordered = sorted(good, key=lambda column: _rows_each(column, head))
        return _query_doubt(f"{len(ordered)} columns are named like one", ordered, head)
    faults = [(column, *fault) for column, fault in found if fault is not None]
    asked = [(column, why) for column, why, certain in faults if not certain]
    if asked:
        # The ingest of a column with more rejects would stop.
        possible = [column for column, _ in asked if column.missing_share <= MAX_REJECT_SHARE]
        return _query_doubt("; ".join(why for _, why in asked), possible, head)
    if len(named) == len(faults):
        runs = [column for column in free if column not in grouped and _is_run(column, head)]
        if runs:
            return _query_doubt("rows that follow one another share a value", runs, head)
    why = "no column groups rows"
    if faults:
        why = faults[0][1]
    elif named:
        why = f"every {named[0].name} occurs once"
    people = (column.name for column in free if column.has_word(lexicon.USER_WORDS))
    user = next((name for name in people if roles.columns[name].distinct > FEW_USERS), None)
    hint = f"; sessions of a user: --query {user} --session-gap 30m" if user is not None else ""
    return None, f"each row is its own query: {why}{hint}"


def _given_query(text: str, roles: Roles) -> Chosen:
    column = find_column(text, roles.columns, "--query")
    missing = column.codes < 0
    if missing.mean() > MAX_REJECT_SHARE:
        shown = column.placed(f"no value in {count_rows(missing)}", missing)
        raise InputError(
            f"--query {text}: {shown}; allowed: in at most 1% of the rows, which become rejects",
            "leave these rows out of the table, or give each an id of its own; --query none: each row is its own query",
        )
    return column, "given by --query" + rejects_text(column, missing)


def _query_doubt(why: str, found: Sequence[ColumnProfile], head: int) -> Doubt:
    choices = [Choice(one.name, f"{_rows_each(one, head):.3g} rows each; {one.describe()}") for one in found]
    choices.append(Choice(NONE, "each row is its own query"))
    question = f"which column is the query, of whose rows one page was made: {why}"
    return Doubt("--query", question, tuple(choices))


def _is_query_name(column: ColumnProfile) -> bool:
    words = column.words
    is_id = len(words) > 1 and words[-1] == "id" and column.has_word(lexicon.QUERY_WORDS)
    return column.plain_name in lexicon.QUERY_NAMES or is_id


def _groups(column: ColumnProfile, head: int) -> bool:
    sent_twice = 2 * TOLERANCE if column.plain_name in lexicon.EXAMPLE_NAMES else 0.001
    return _rows_each(column, head) > 1 + sent_twice


def _rows_each(column: ColumnProfile, head: int) -> float:
    codes = column.codes[:head]
    codes = codes[codes >= 0]
    return len(codes) / max(1, len(np.unique(codes)))


def _find_fault(column: ColumnProfile, users: Sequence[ColumnProfile], roles: Roles) -> _Fault | None:
    """Why a column that is named like a query, and whose values come several times, is none; None where it is one."""
    codes, missing, head = column.codes, column.codes < 0, roles.sample.head_rows
    if column.distinct == 1:
        return f"{column.name} is always {column.value_at(~missing)}", True
    if many := too_many(missing, roles.positive):
        why = column.placed(f"{column.name} has no value in {many}", missing)
        if column.missing_share > MAX_REJECT_SHARE:
            why += "; leave these rows out of the table to use it"
        return why, False
    few = column.distinct < _RUNS
    each = _rows_each(column, head)
    apart = _far_apart(column, users, roles)
    most = codes == int(column.counts.argmax())
    if each > LONGEST_PAGE or (few and not _is_contiguous(codes[:head])):
        why = f"{column.name} has {column.distinct:,} values, {each:.3g} rows each"
        why += ", more than a page holds" if each > LONGEST_PAGE else ", which come back all over the table"
        return f"{why} ({column.first_of(most)})", few or bool(apart)
    count = int(column.counts.max())
    if count > LONGEST_PAGE and count > 20 * np.median(column.counts) and count > TOLERANCE * len(codes):
        share = f"{column.name} is {column.value_at(most)} in {count:,} of {len(codes):,} rows"
        return column.placed(share, most), False
    return (apart, False) if apart else None


def _is_contiguous(codes: np.ndarray) -> bool:
    """Returns whether the rows of nearly every value follow one another."""
    codes = codes[codes >= 0]
    return int(_begins(codes).sum()) <= 1.02 * len(np.unique(codes)) + 1


def _begins(codes: np.ndarray) -> np.ndarray:
    """[N] bool: where a run of equal codes begins."""
    return np.r_[True, codes[1:] != codes[:-1]][: len(codes)]


def _far_apart(column: ColumnProfile, users: Sequence[ColumnProfile], roles: Roles) -> str:
    """Why rows of one value are not of one page: other users', of another time, or far away in the file."""
    codes = column.codes
    if _is_contiguous(codes):
        return ""
    order = np.flatnonzero(codes >= 0)
    order = order[np.argsort(codes[order], kind="stable")]
    begin = order[_starts(codes[order])]
    for user in users:
        known = (user.codes[order] >= 0) & (user.codes[begin] >= 0)
        other = known & (user.codes[order] != user.codes[begin])
        if user is not column and other.mean() > _OTHER_USERS:
            share = percent(float(other.mean()))
            text = f"rows of one {column.name} have several values of {user.name}, {share} another than the first row"
            return _again(column, order[other], text)
    if roles.time is not None:
        is_session = column.has_word(lexicon.SESSION_WORDS)
        us, limit = roles.time.us, _SESSION_GAP_US if is_session else _PAGE_US
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
    text = f"values of {column.name} come back {words}, in {percent(float(far.mean()))} of the rows"
    return _again(column, order[far], text)


def _starts(codes: np.ndarray) -> np.ndarray:
    """[N] the place where the run of equal codes begins that each belongs to."""
    return np.maximum.accumulate(np.where(_begins(codes), np.arange(len(codes)), 0))


def _again(column: ColumnProfile, places: np.ndarray, text: str) -> str:
    rows = np.zeros(column.rows, bool)
    rows[places.min()] = True
    return column.placed(f"{text} ({column.value_at(rows)}", rows) + ")"


def _is_run(column: ColumnProfile, head: int) -> bool:
    """Returns whether the values of a column, ids with many values, stand in groups of consecutive rows."""
    codes = column.codes[:head]
    codes = codes[codes >= 0]
    if column.missing_share > TOLERANCE or not (column.numbers is None or column.is_whole) or not len(codes):
        return False
    begins = np.flatnonzero(_begins(codes))
    longest = int(np.diff([*begins.tolist(), len(codes)]).max())
    distinct = len(np.unique(codes))
    contiguous = distinct >= _RUNS and len(begins) <= 1.02 * distinct
    return contiguous and len(codes) >= 2 * distinct and longest <= LONGEST_PAGE
