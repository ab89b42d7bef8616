"""The roles that the user names: labels and their rules, times in every spelling, and what cannot be."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr.data.mapping import Time
from ctr.io.errors import InputError
from ctr.pipelines.infer.dialect import find_table, read_sample
from ctr.pipelines.infer.draft import list_labels
from ctr.pipelines.tables.convert import parse_times
from made_tables import becomes, drafted, ingested, write_table

ROWS = 1000
SECONDS = np.random.default_rng(0).permutation(1_700_000_000 + 4000 * np.arange(ROWS)).tolist()
"""46 days, not in order."""
CLICKS = np.random.default_rng(0).random(ROWS) < 0.15


def table(path, **columns):
    """A file of rows with a user and clicks, besides the columns."""
    users = np.random.default_rng(1).integers(0, 30, ROWS).tolist()
    given = {"user": users, "click": CLICKS.astype(int).tolist()}
    return write_table(path / "x.csv", given | {name: list(values) for name, values in columns.items()}, "\t")


def spelled(no, yes):
    return [yes if click else no for click in CLICKS]


def refusal(path, **options) -> str:
    with pytest.raises(InputError) as found:
        drafted(path, **options)
    assert "\n" not in str(found.value)
    return str(found.value)


LABELS = [
    (("0", "1"), {}),
    (("FALSE", "true"), {}),
    (("0.00", "1.00"), {"op": ">", "value": 0.0}),
    (("-1", "1"), {"op": ">", "value": 0.0}),
    (("no", "Yes"), {"op": "==", "value": "Yes"}),
]


@pytest.mark.parametrize(("values", "rule"), LABELS)
def test_a_column_of_two_values_is_a_label(tmp_path, values, rule):
    path = table(tmp_path, sold=spelled(*values))
    found = drafted(path, label="sold")
    assert found.content["label"] == {"column": "sold", **rule}
    _, result = ingested(found, path)
    assert (result.examples, result.clicks) == (ROWS, int(CLICKS.sum()))


def test_a_click_known_by_its_time_is_a_label(tmp_path):
    times = [datetime.fromtimestamp(second, UTC) for second in SECONDS]
    clicked = [time if click else None for time, click in zip(times, CLICKS, strict=True)]
    path = table(tmp_path, clicked_at=[time and time.isoformat() for time in clicked])
    pq.write_table(pa.table({"clicked_at": clicked, "user": [*range(ROWS // 4)] * 4}), tmp_path / "x.parquet")
    for name in (path, tmp_path / "x.parquet"):
        found = drafted(name, label="clicked_at", drop=("click",) if name is path else ())
        assert found.content["label"] == {"column": "clicked_at", "op": "!=", "value": ""}
        _, result = ingested(found, name)
        assert (result.examples, result.clicks, result.rejected) == (ROWS, int(CLICKS.sum()), 0)
        (tmp_path / "log").rename(tmp_path / f"log of {name.name}")


@pytest.mark.parametrize(
    ("values", "choice"),
    [
        ((np.arange(ROWS) % 5 + 1).tolist(), "--label 'x>=3' (60% positive)"),
        ((CLICKS * 2 + CLICKS[::-1]).tolist(), "--label 'x>=1'"),
        (spelled("<=50K", ">50K"), "--label 'x==>50K'"),
        (spelled("01", "02"), "--label 'x==\"02\"'"),
        ([*spelled("seen", "bought")[:-1], "kept"], "--label x==bought"),
        ([f"w{n}" for n in range(ROWS)], "or a rule; such as --label 'COLUMN>=4'"),
        (spelled(None, 1), "--label 'x!=\"\"'"),
        ([0] * ROWS, "or a rule; such as --label"),
    ],
)  # fmt: skip
def test_a_column_of_other_values_takes_a_rule_that_can_be_pasted(tmp_path, values, choice):
    path = table(tmp_path, x=values)
    assert choice in (message := refusal(path, label="x")) and "this column is no label by itself" in message
    if choice.startswith("--label"):
        rule = choice.removeprefix("--label ").split(" (")[0].strip("'")
        assert drafted(path, label=rule, drop=("click",)).content["label"]["op"] in (">=", "==", "!=")


def test_the_columns_that_could_be_the_label_are_listed_with_their_shares(tmp_path):
    times = [SECONDS[row] if row % 4 == 0 else None for row in range(ROWS)]
    path = table(tmp_path, sold=spelled("no", "yes"), grade=[n % 5 for n in range(ROWS)], sold_at=times)
    sample = read_sample(find_table(path, None))
    share = f"{CLICKS.mean():.0%} positive"
    assert list_labels(find_table(path, None), sample) == [
        ("click", f"0 and 1; {share}"),
        ("sold", f"no and yes; {share}"),
        ("sold_at", "times, none in other rows; 25% positive"),
    ]


# What each spelling keeps: the unit in seconds, and what it adds in microseconds.
SPELLINGS = {
    (1, 0): [
        *("s", "ms", "us", "ns", "%Y-%m-%d %H:%M:%S UTC", "%Y-%m-%d %H:%M:%S+00:00", "%Y%m%dT%H%M%SZ"),
        *("%Y%m%d %H:%M:%S", "%Y%m%d%H%M%S", "%a %b %d %H:%M:%S %Y", "%d/%b/%Y:%H:%M:%S +0000"),
        *("%a, %d %b %Y %H:%M:%S +0000", "%a %b %d %H:%M:%S +0000 %Y"),
    ],
    (1, 123_456): ["%Y-%m-%dT%H:%M:%S.123456789Z"],
    (1, 250_000): ["s.f"],
    (1, 123_000): ["%Y%m%d%H%M%S123"],
    (60, 0): ["%b %d, %Y %I:%M %p", "%d %b %Y %H:%M", "%d.%m.%Y %H:%M", "%m-%d-%Y %H:%M", "%Y%m%d%H%M"],
    (3600, 0): ["%y%m%d%H", "%Y%m%d%H"],
    (86_400, 0): ["%B %d, %Y", "%d.%m.%y", "%d-%b-%y", "%Y/%m/%d", "%Y%m%d"],
}
NUMBERS = {
    "s": str,
    "ms": lambda second: str(second * 10**3),
    "us": lambda second: str(second * 10**6),
    "ns": lambda second: str(second * 10**9),
    "s.f": lambda second: f"{second}.250",
}


def written(form, second):
    """A second of 2023 or later in a spelling of strftime, or as a number."""
    return NUMBERS[form](second) if form in NUMBERS else datetime.fromtimestamp(second, UTC).strftime(form)


def test_the_form_of_a_named_time_is_found(tmp_path):
    few = SECONDS[:100]
    for (unit, more), forms in SPELLINGS.items():
        expected = [second // unit * unit * 10**6 + more for second in few]
        for form in forms:
            texts = [written(form, second) for second in few]
            columns = {"ad": [place % 7 for place in range(100)], "click": [0, 1] * 50, "when": texts}
            found = drafted(write_table(tmp_path / "x.csv", columns, "\t"), time="when")
            us, bad = parse_times(pa.array(texts), Time.model_validate(found.content["time"]))
            assert not bad.any() and us.tolist() == expected, form


def test_a_time_that_is_not_named_is_said_and_no_feature(tmp_path):
    forms = ["s", "ms", "%Y%m%d%H%M%S123", "%d/%b/%Y:%H:%M:%S +0000", "%d.%m.%Y %H:%M", "%Y%m%d"]
    columns = {f"t{n}": [written(form, second) for second in SECONDS] for n, form in enumerate(forms)}
    unnamed = drafted(table(tmp_path, **columns))
    assert "row_order" in unnamed.content["time"]
    for name in columns:
        assert becomes(unnamed)[name] == "not used"
        assert f"{name} looks like a time: --time {name} makes it the time of the rows" in unnamed.notes


def test_numbers_that_are_no_times_are_features(tmp_path):
    rng = np.random.default_rng(0)
    for values in (rng.integers(0, 24, ROWS), rng.integers(10**9, 4 * 10**9, ROWS), rng.random(ROWS) * 1e9):
        found = drafted(table(tmp_path, spend=values))
        assert becomes(found)["spend"] != "not used" or len(set(values)) == ROWS
        assert not any("looks like a time" in note for note in found.notes)


def test_the_order_of_day_and_month_is_asked_where_both_read_the_dates(tmp_path):
    dates = [f"{1 + k % 12:02d}/{1 + k * 7 % 11:02d}/2023" for k in range(ROWS)]
    message = refusal(table(tmp_path, date=dates), time="date")
    assert "--time date=%d/%m/%Y or --time date=%m/%d/%Y" in message
    dates[5] = "13/02/2023"
    assert drafted(table(tmp_path, date=dates), time="date").content["time"]["format"] == "%d/%m/%Y"


def test_a_form_of_the_time_can_be_given(tmp_path):
    when = [written("%d.%m.%y %H:%M", second) for second in SECONDS]
    days = [f"{25569 + second / 86400:.10f}" for second in SECONDS]
    path = table(tmp_path, **{"when": when, "a=b": SECONDS, "since": range(ROWS), "day": days})
    for given, expected in {
        "when=%d.%m.%y %H:%M": {"format": "%d.%m.%y %H:%M"},
        "when=%d.%m.%y %H:%M Europe/Berlin": {"format": "%d.%m.%y %H:%M", "zone": "Europe/Berlin"},
        "a=b=s": {"unit": "s"},
        "a=b": {"unit": "s"},
        "since=ms": {"unit": "ms"},
        "day=serial": {"unit": "serial"},
    }.items():
        found = drafted(path, time=given, keep=("when",)).content["time"]
        assert {key: found[key] for key in found if key != "column"} == expected


def test_values_that_stand_for_no_time_become_rejects_up_to_a_share(tmp_path):
    path = table(tmp_path, when=[0, None, *SECONDS[2:]])
    for given in ("when", "when=s"):
        found = drafted(path, time=given)
        assert found.content["time"] == {"column": "when", "unit": "s", "first": "1990-01-01"}
        assert "2 of 1,000 rows have no readable time and become rejects" in found.columns["when"].because
    _, result = ingested(found, path)
    assert (result.examples, result.rejected) == (ROWS - 2, 2)
    message = refusal(table(tmp_path, when=[None] * 11 + SECONDS[11:]), time="when")
    assert "--time when: 11 of 1,000 rows cannot be read, which have no value" in message
    assert "at least 99%" in message


def test_roles_that_cannot_be(tmp_path):
    few = [None, 1] * (ROWS // 2)
    path = table(tmp_path, when=["01.02"] * ROWS, x=["a", *[2] * 9] * (ROWS // 10), few=few)
    unread = "of 1,000 rows cannot be read,"
    for options, words in (
        ({"time": "when=%d.%m.%Y"}, f"--time when=%d.%m.%Y: 1,000 {unread} such as '01.02'"),
        ({"time": "when=soon"}, "'soon' names no part of a time"),
        ({"time": "when"}, "--time when: not read as a time (1 value, e.g. 01.02); name its form with"),
        ({"time": "nothing=s"}, "--time nothing: no such column"),
        ({"label": "nothing"}, "--label nothing: no such column; the columns are user, click, when"),
        ({"label": "user>=1e9"}, "have the label 0; both 0 and 1 are required"),
        ({"label": ""}, "--label '': column: '' is not allowed"),
        ({"label": "when>yes"}, "--label 'when>yes': > compares numbers; strings allow only == and !="),
        ({"session_gap": "30m"}, "--session-gap goes with --query"),
        ({"query": "user", "session_gap": "30m"}, "--session-gap requires --time COLUMN"),
        ({"weight": "x"}, f"--weight x: 100 {unread} such as 'a' (2 values"),
        ({"drop": ("user",), "query": "user"}, "--query user: --drop names the same column"),
        ({"query": "click"}, "--query click: --label names the same column"),
        ({"drop": ("user", "x", "few")}, "no column is left as a feature ("),
        ({"query": "few"}, f"--query few: 500 {unread} which have no value"),
    ):
        assert words in refusal(path, **options)


def test_weights_queries_and_sessions_are_those_that_are_named(tmp_path):
    page = [n // 4 for n in range(ROWS)]
    path = table(tmp_path, page=page, cost=[1, 2.5] * (ROWS // 2), when=SECONDS)
    found = drafted(path)
    assert found.content["query"] == "none" and "weight" not in found.content
    assert "page looks like a query, 4 rows each: --query page makes it one" in found.notes
    found = drafted(path, query="page", weight="cost")
    assert found.content["query"] == {"column": "page"} and found.content["weight"] == "cost"
    assert not any("looks like a query" in note for note in found.notes)
    found = drafted(path, query="user", session_gap="30m", time="when")
    assert found.content["query"] == {"session": {"by": "user", "gap": "30m"}}
    names = [feature["name"] for feature in found.content["features"]]
    assert (names[0], names[-2:]) == ("user", ["hour", "weekday"])
