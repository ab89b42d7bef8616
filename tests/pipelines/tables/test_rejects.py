"""Bad rows go to the rejects one by one, with reason and place; too many stop the job in one line."""

import json
import re

import pytest

import raw_logs
from ctr.io.errors import InputError
from ctr.pipelines.tables.rejects import REPEATED_HEADER, RejectLog, make_reject, reject_reasons
from raw_logs import ingest

ROWS = 40


TIME = "unit s, 1970-01-01 to 9999-12-31"


def test_a_bad_value_is_a_reject_of_its_own(tmp_path):
    number, weight, name = "a number", "a number from 0 to 1,000,000,000", "a whole number or text"
    faults = [
        ("rating", "good", "label", "not a label", number),
        ("rating", None, "label", "missing", number),
        ("weight", "-0.5", "weight", "not a weight", weight),
        ("weight", "1.1e9", "weight", "not a weight", weight),
        ("weight", None, "weight", "missing", weight),
        ("time", "yesterday", "time", "unreadable or out of range", TIME),
        ("time", "1600000000000", "time", "unreadable or out of range", TIME),
        ("time", None, "time", "missing", TIME),
        ("user", None, "query", "missing", name),
        ("id", None, "example_id", "missing", name),
        ("price", "cheap", "price", "not a number", "a number, or empty"),
    ]
    rows, expected, good = raw_logs.make_rows(ROWS), [], []
    for place, row in enumerate(rows):
        # Every third row is bad, as long as there are faults.
        if place % 3 == 1 and faults:
            column, value, key, reason, allowed = faults.pop(0)
            row[column] = value
            message = {"key": key, "reason": reason, "value": value or "", "allowed": allowed}
            expected.append({"file": "rows.csv", "row": place + 2, **message})
        else:
            good.append(("rows.csv", 0, row))
    path = raw_logs.write_rows(tmp_path / "in", rows)
    mapping = raw_logs.make_mapping()
    result = ingest(mapping, [path], tmp_path / "log", max_reject_share=0.5)
    assert (result.rows, result.examples, result.rejected) == (ROWS, len(good), len(expected))
    assert raw_logs.read_log(tmp_path / "log") == raw_logs.reference(good, mapping)
    assert raw_logs.read_rejects(tmp_path / "log") == expected
    assert [json.loads(line) for line in result.rejects_file.read_text().splitlines()] == expected
    assert result.reject_reasons["weight: not a weight"] == 2


def nested(column, value):
    return lambda line: json.dumps({**json.loads(line), column: value}).encode()


FIELDS, UTF8, JSON = ("line", "wrong number of fields"), ("code", "invalid UTF-8"), ("line", "malformed JSON")
MALFORMED = {
    "csv": [
        (lambda line: line + b",more", FIELDS),
        (lambda line: line.rpartition(b",")[0], FIELDS),
        (lambda line: line.replace(b'"abz"', b'"a\xe9z"'), UTF8),
    ],
    "tsv": [
        (lambda line: line.replace(b"abz", b"a\xe9z"), UTF8),
        # Of a category, which is read as a dictionary.
        (lambda line: re.sub(rb"((.*?\t){6}).*?\t", b"\\1bl\xe9\t", line), ("color", "invalid UTF-8")),
    ],
    "jsonl": [
        (lambda line: line[:-1], JSON),
        (lambda line: b"[1, 2]", JSON),
        (lambda line: line.replace(b'"id"', b'"\xff": 1, "id"'), ("line", "invalid UTF-8")),
        (lambda line: line.replace(b'"id"', b'"x": "\\ud800", "id"'), JSON),
        (lambda line: b"[" * 100_000, JSON),
        (nested("price", {"a": 1}), ("price", "a nested value")),
        (nested("color", ["red"]), ("color", "a nested value")),
        (nested("tags", ["a", ["b"]]), ("tags", "a nested value")),
    ],
}


@pytest.mark.parametrize("suffix", MALFORMED)
def test_a_malformed_line_is_a_reject_of_its_own(tmp_path, suffix):
    rows = raw_logs.make_rows(ROWS)
    bad = range(3, 3 + 2 * len(MALFORMED[suffix]), 2)
    for place in bad:
        rows[place]["code"] = "abz"
    path = raw_logs.write_rows(tmp_path / "in", rows, suffix)
    # The header of a delimited file is its first line.
    header = 0 if suffix == "jsonl" else 1
    lines = path.read_bytes().split(b"\n")
    for place, (change, _) in zip(bad, MALFORMED[suffix], strict=True):
        lines[place + header] = change(lines[place + header])
    path.write_bytes(b"\n".join(lines))
    mapping = raw_logs.make_mapping(input={"type": suffix})
    result = ingest(mapping, [path], tmp_path / "log", max_reject_share=0.5)
    good = [(path.name, 0, row) for place, row in enumerate(rows) if place not in bad]
    assert raw_logs.read_log(tmp_path / "log") == raw_logs.reference(good, mapping)
    assert (result.rows, result.rejected) == (ROWS, len(bad))
    rejects = raw_logs.read_rejects(tmp_path / "log")
    found = [(reject["row"], (reject["key"], reject["reason"])) for reject in rejects]
    numbers = [place + header + 1 for place in bad]
    assert found == list(zip(numbers, (why for _, why in MALFORMED[suffix]), strict=True))
    for reject in rejects:
        assert reject["key"] != "code" or reject["value"] == "a\\xe9z"
        assert "fields" not in reject["reason"] or reject["allowed"] == "10 fields"


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


def test_a_hopeless_input_is_stopped_early(tmp_path, monkeypatch):
    monkeypatch.setattr("ctr.pipelines.tables.examples.EARLY_ROWS", 1000)
    path = raw_logs.write_rows(tmp_path / "in", [])
    line = "1,not a time,1,1,5,1,red,1,a,ab\n"
    path.write_text(path.read_text() + line * 2000)
    seen = []
    with pytest.raises(InputError, match="time: unreadable"):
        ingest(raw_logs.make_mapping(), [path], tmp_path / "log", progress=seen.append, block_bytes=1 << 12)
    assert sum(seen) < 1500


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
