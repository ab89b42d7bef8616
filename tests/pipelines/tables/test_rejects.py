"""Bad rows go to the rejects one by one, with reason and place; too many stop the job in one line."""

import json

import pytest

import raw_logs
from ctr.io.errors import InputError
from ctr.pipelines.tables.rejects import EARLY_ROWS, REPEATED_HEADER, RejectLog, make_reject, reject_reasons
from raw_logs import ingest

ROWS = 40


def reject_one(folder, suffix="csv", column=None, value=None, change=None, **options):
    """Ingests good rows and a bad one, the 21st; returns the reject."""
    rows = raw_logs.make_rows(ROWS)
    if column is not None:
        rows[20][column] = value
    path = raw_logs.write_rows(folder / "in", rows, suffix)
    if change is not None:
        content = path.read_bytes().split(b"\n")
        index = 21 if suffix != "jsonl" else 20
        content[index] = change(content[index])
        path.write_bytes(b"\n".join(content))
    mapping = raw_logs.make_mapping(input={"type": suffix.partition(".")[0]}, **options)
    result = ingest(mapping, [path], folder / "log", max_reject_share=0.05)
    assert (result.rows, result.examples, result.rejected) == (ROWS, ROWS - 1, 1)
    good = [(path.name, 0, row) for row in rows if row is not rows[20]]
    assert raw_logs.read_log(folder / "log") == raw_logs.reference(good, mapping)
    (reject,) = raw_logs.read_rejects(folder / "log")
    assert json.loads(result.rejects_file.read_text()) == reject
    assert list(result.reject_reasons.items()) == [(f"{reject['key']}: {reject['reason']}", 1)]
    assert reject["file"] == path.name
    return reject


NUMBER, WEIGHT, ID = "a number", "a number from 0 to 1,000,000,000", "a whole number or text"
TIME = "unit s, 1970-01-01 to 9999-12-31"


@pytest.mark.parametrize(
    ("column", "value", "key", "reason", "allowed"),
    [
        ("rating", "good", "label", "not a label", NUMBER),
        ("rating", None, "label", "missing", NUMBER),
        ("weight", "-0.5", "weight", "not a weight", WEIGHT),
        ("weight", "1.1e9", "weight", "not a weight", WEIGHT),
        ("weight", None, "weight", "missing", WEIGHT),
        ("time", "yesterday", "time", "unreadable or out of range", TIME),
        ("time", "1600000000000", "time", "unreadable or out of range", TIME),
        ("time", None, "time", "missing", TIME),
        ("user", None, "query", "missing", ID),
        ("id", None, "example_id", "missing", ID),
        ("price", "cheap", "price", "not a number", "a number, or empty"),
    ],
)
def test_a_bad_value(tmp_path, column, value, key, reason, allowed):
    message = {"key": key, "reason": reason, "value": value or "", "allowed": allowed}
    assert reject_one(tmp_path, column=column, value=value) == {"file": "rows.csv", "row": 22, **message}


def nested(column, value):
    return lambda line: json.dumps({**json.loads(line), column: value}).encode()


@pytest.mark.parametrize(
    ("suffix", "change", "key", "reason"),
    [
        ("csv", lambda line: line + b",more", "line", "wrong number of fields"),
        ("csv", lambda line: line.rpartition(b",")[0], "line", "wrong number of fields"),
        ("csv", lambda line: line.replace(b'"abz"', b'"a\xe9z"'), "code", "invalid UTF-8"),
        ("tsv", lambda line: line.replace(b"abz", b"a\xe9z"), "code", "invalid UTF-8"),
        # Of a category, which is read as a dictionary.
        (
            "tsv",
            lambda line: b"\t".join([*line.split(b"\t")[:6], b"bl\xe9", *line.split(b"\t")[7:]]),
            "color",
            "invalid UTF-8",
        ),
        ("jsonl", lambda line: line[:-1], "line", "malformed JSON"),
        ("jsonl", lambda line: b"[1, 2]", "line", "malformed JSON"),
        ("jsonl", lambda line: line.replace(b'"id"', b'"\xff": 1, "id"'), "line", "invalid UTF-8"),
        ("jsonl", lambda line: line.replace(b'"id"', b'"x": "\\ud800", "id"'), "line", "malformed JSON"),
        ("jsonl", lambda line: b"[" * 100_000, "line", "malformed JSON"),
        ("jsonl", nested("price", {"a": 1}), "price", "a nested value"),
        ("jsonl", nested("color", ["red"]), "color", "a nested value"),
        ("jsonl", nested("tags", ["a", ["b"]]), "tags", "a nested value"),
    ],
)
def test_a_malformed_line(tmp_path, suffix, change, key, reason):
    reject = reject_one(tmp_path, suffix, column="code", value="abz", change=change)
    assert (reject["row"], reject["key"], reject["reason"]) == (21 if suffix == "jsonl" else 22, key, reason)
    if key == "code":
        assert reject["value"] == "a\\xe9z"
    if "fields" in reason:
        assert reject["allowed"] == "10 fields"


@pytest.mark.parametrize(
    ("suffix", "query"), [("csv", "session"), ("jsonl", "column"), ("parquet", "session")]
)
def test_of_an_example_twice_in_a_query_the_first_row_is_kept(tmp_path, suffix, query):
    rows = raw_logs.make_rows(ROWS)
    again = dict(rows[7], color="blue", rating="5")
    path = raw_logs.write_rows(tmp_path / "in", [*rows[:30], again, *rows[30:]], suffix)
    mapping = raw_logs.make_mapping(input={"type": suffix}, query=raw_logs.QUERIES[query])
    result = ingest(mapping, [path], tmp_path / "log", max_reject_share=0.05, block_bytes=2000)
    assert (result.rows, result.examples, result.rejected) == (ROWS + 1, ROWS, 1)
    expected = raw_logs.reference([(path.name, 0, row) for row in rows], mapping)
    assert raw_logs.read_log(tmp_path / "log") == expected
    (reject,) = raw_logs.read_rejects(tmp_path / "log")
    assert (reject["row"], reject["key"]) == (32 if suffix == "csv" else 31, "example_id")
    assert (reject["reason"], reject["value"]) == ("duplicate in its query", again["id"])


def test_a_row_has_one_reject_and_holds_no_session_together(tmp_path):
    rows = raw_logs.make_rows(30)
    rows[9] |= {"time": "x", "rating": "x", "weight": "x", "price": "x", "id": None}
    for index, (time, rating) in enumerate([("1600000000", "4"), ("1600001200", "bad"), ("1600002400", "4")]):
        rows[index] |= {"user": "77", "time": time, "rating": rating}
    path = raw_logs.write_rows(tmp_path / "in", rows)
    result = ingest(raw_logs.make_mapping(), [path], tmp_path / "log", max_reject_share=0.1)
    assert (result.examples, result.rejected) == (28, 2)
    examples = {e["example_id"]: e for e in raw_logs.read_log(tmp_path / "log")}
    assert examples[10_000]["query_id"] != examples[10_002]["query_id"]


def test_too_many_rejects_stop_the_job_in_one_line(tmp_path):
    rows = raw_logs.make_rows(100)
    rows[3]["weight"] = "-1"
    rows[8]["rating"] = rows[5]["rating"] = "x"
    path = raw_logs.write_rows(tmp_path / "in", rows)
    with pytest.raises(InputError) as caught:
        ingest(raw_logs.make_mapping(), [path], tmp_path / "log", max_reject_share=0.02)
    assert str(caught.value) == (
        "3 of 100 rows rejected, more than the allowed share of 0.02; most often label: not a label (2 rows, first "
        "rows.csv row 7, value 'x'; allowed: a number)"
    )
    assert [reject["row"] for reject in raw_logs.read_rejects(tmp_path / "log")] == [5, 7, 10]
    assert not (tmp_path / "log" / "manifests").exists()
    result = ingest(raw_logs.make_mapping(), [path], tmp_path / "log", max_reject_share=0.03)
    assert (result.examples, result.rejected) == (97, 3)
    # Duplicates count among them.
    twice = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(50) * 2)
    with pytest.raises(InputError, match=r"of 100 rows rejected.*duplicate in its query"):
        ingest(raw_logs.make_mapping(), [twice], tmp_path / "twice")


@pytest.mark.slow
def test_a_hopeless_input_is_stopped_early(tmp_path):
    path = raw_logs.write_rows(tmp_path / "in", [])
    line = "1,not a time,1,1,5,1,red,1,a,ab\n"
    path.write_text(path.read_text() + line * (EARLY_ROWS * 2))
    seen = []
    with pytest.raises(InputError, match="time: unreadable"):
        ingest(raw_logs.make_mapping(), [path], tmp_path / "log", progress=seen.append, block_bytes=1 << 18)
    assert sum(seen) < EARLY_ROWS * 1.5


def test_the_record_is_ordered_and_holds_odd_text(tmp_path):
    log = RejectLog(["a", "b"], 1.0, tmp_path / "r" / "x.jsonl")
    log.add([make_reject(1, 2, "k", "r", "x" * 200, "y"), make_reject(1, 1, "k", "r", None, "y")])
    log.add([make_reject(0, 9, "k", "r", "\ud800ü\n", "y"), make_reject(0, 8, "k", "r", b"\xff", "y")])
    log.write()
    records = [json.loads(line) for line in (tmp_path / "r" / "x.jsonl").read_text().splitlines()]
    assert [(r["file"], r["row"]) for r in records] == [("a", 8), ("a", 9), ("b", 1), ("b", 2)]
    assert [r["value"] for r in records] == ["\\xff", "\ud800ü\n", "", "x" * 80]
    assert reject_reasons(log.rejects) == {"k: r": 4}


def test_the_share_is_checked_exactly(tmp_path):
    log = RejectLog(["a"], 0.25, tmp_path / "x.jsonl")
    log.add([make_reject(0, 1, "k", "r", "v", "y")])
    log.check(4)
    with pytest.raises(InputError, match="1 of 3 rows rejected"):
        log.check(3)
    # Lines that are no rows.
    log.add([make_reject(0, row, "line", REPEATED_HEADER, "a,b", "first") for row in range(2, 7)])
    log.check(9)
    with pytest.raises(InputError, match=r"1 of 3 rows rejected, .* most often k: r"):
        log.check(8)
