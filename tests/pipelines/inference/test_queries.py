"""The query: groups of one page, rejects within the tolerance, and what a name of a query fails by."""

import numpy as np
import pytest

from ctr.io.errors import InputError
from made_tables import becomes, inferred, ingested, reasons, write_table

PAGES, PLACES = 500, 4
PAGE = np.repeat(np.arange(PAGES), PLACES)
USERS = np.random.default_rng(1).integers(0, 200, PAGES)[PAGE]
TIMES = 1_700_000_000 + 40 * PAGE
CLICKS = (np.random.default_rng(2).random(len(PAGE)) < 0.15).astype(int)


def table(path, query, name="request_id", order=None, **others):
    columns = {name: list(query), **{key: list(values) for key, values in others.items()}}
    columns |= {"ad": np.random.default_rng(3).integers(0, 30, len(PAGE)).tolist(), "click": CLICKS.tolist()}
    if order is not None:
        columns = {key: [values[row] for row in order] for key, values in columns.items()}
    return write_table(path / "x.csv", columns)


def without(rows):
    query = PAGE.tolist()
    for row in rows:
        query[row] = None
    return query


def test_a_few_rows_without_a_query_are_rejects(tmp_path):
    missing = [3, 70, 901, 1500]
    path = table(tmp_path, without(missing), ts=TIMES)
    found = inferred(path)
    why = "named like a query, 3.99 rows each; 4 of 2,000 rows become rejects (no value, first in row 5)"
    assert why in reasons(found)["request_id"]
    _, result = ingested(found, path)
    assert (result.queries, result.examples, result.rejected) == (PAGES, len(PAGE) - 4, 4)


FEW = np.random.default_rng(0).integers(0, 12, len(PAGE))


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("page_id", FEW % 5, "page_id has 5 values, "),
        ("search_id", FEW, "search_id has 12 values, "),
        ("impression_id", FEW % 5, "impression_id has 5 values, "),
        ("request_id", [7] * len(PAGE), "request_id is always 7"),
    ],
)
def test_a_few_values_that_come_back_are_no_query(tmp_path, name, values, told):
    found = inferred(table(tmp_path, values, name, ts=TIMES))
    assert found.mapping.query is None
    assert becomes(found)[name] == ("not used" if "always" in told else "category")
    assert f"each row is its own query: {told}" in found.reasons["query"]


ZEROS = [0 if row % 3 == 0 else int(page) + 9 for row, page in enumerate(PAGE)]
SHUFFLED = np.random.default_rng(4).permutation(len(PAGE))
FAULTS = {
    "missing": ({"query": without(range(1, 2000, 40))}, "has no value in 50 of 2,000 rows, first in row 3", False),
    "missing in clicks": ({"query": without(np.flatnonzero(CLICKS)[:9])},
                          f"has no value in 9 of {CLICKS.sum()} positive rows", True),
    "another user": ({"query": PAGE % 100, "user": USERS},
                     "rows of one request_id have several values of user, 79% another than the first row "
                     "(0, first in row 402)", True),
    "another day": ({"query": PAGE % 100, "ts": TIMES + 86_400 * (PAGE // 100)},
                    "come back after more than 1 hour, in 80% of the rows (0, first in row 402)", True),
    "far away": ({"query": PAGE % 100}, "come back after more than 200 rows, in 20% of the rows (0, first", True),
    "none": ({"query": ZEROS}, "request_id is 0 in 667 of 2,000 rows, first in row 2", True),
    "shuffled": ({"query": PAGE, "order": SHUFFLED}, "come back after more than 200 rows", True),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAULTS)
def test_a_name_of_a_query_that_fails_is_a_question_with_the_value_and_its_row(tmp_path, kind):
    columns, fault, possible = FAULTS[kind]
    path = table(tmp_path, **columns)
    (doubt,) = inferred(path).doubts
    assert doubt.option == "--query" and fault in doubt.question
    assert [choice.value for choice in doubt.choices] == ["request_id"] * possible + ["none"]
    assert inferred(path, query="none").mapping.query is None
    if possible:
        assert inferred(path, query="request_id").mapping.query.column == "request_id"
    else:
        with pytest.raises(
            InputError, match="no value in 50 of 2,000 rows, first in row 3; allowed: in at most 1%"
        ):
            inferred(path, query="request_id")


SESSIONS = [f"s{user}" for user in USERS]


@pytest.mark.parametrize(
    "columns",
    [
        {"query": PAGE + 500, "order": SHUFFLED, "ts": TIMES, "user": USERS},
        {"query": PAGE, "session_id": SESSIONS, "ts": TIMES + 86_400 * (PAGE // 50)},
    ],
    ids=["a shuffled log with times", "of two names that which keeps its word"],
)
def test_the_query_that_needs_no_question(tmp_path, columns):
    assert inferred(table(tmp_path, **columns)).mapping.query.column == "request_id"


def test_ids_that_begin_again_in_each_file_are_asked(tmp_path):
    for day in range(3):
        rows = slice(600 * day, 600 * day + 600)
        columns = {"request_id": PAGE[:600], "ad": PAGE[rows] % 7, "click": CLICKS[rows]}
        write_table(tmp_path / f"day{day}.csv", columns)
    (doubt,) = inferred(tmp_path).doubts
    assert (
        doubt.option == "--query"
        and "values of request_id come back after more than 200 rows" in doubt.question
    )


def test_consecutive_groups_without_a_name_are_a_question(tmp_path):
    pages = np.random.default_rng(0).permutation(100_000)[:PAGES][PAGE]
    path = table(tmp_path, pages, name="page_of")
    (doubt,) = inferred(path).doubts
    assert (doubt.option, [choice.value for choice in doubt.choices]) == ("--query", ["page_of", "none"])
    assert inferred(path, query="none").mapping.query is None
    assert inferred(path, query="page_of").mapping.query.column == "page_of"
