"""How a table is read: delimiter, quotes, header, folders and formats; and which rows are sampled."""

import csv
import gzip
import io
import json

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctr.config import parse_model
from ctr.data.mapping import Mapping
from ctr.io.errors import InputError
from ctr.pipelines.infer import dialect
from ctr.pipelines.infer.dialect import find_table, read_sample
from ctr.pipelines.infer.draft import draft_mapping
from ctr.pipelines.infer.roles import Options
from ctr.pipelines.tables.ingest import ingest
from made_tables import drafted

CELLS = st.text(st.characters(codec="utf-8", exclude_categories=["C"]) | st.just("\n"), max_size=8)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(CELLS, min_size=5, max_size=30),
    delimiter=st.sampled_from(",;|\t"),
    name=st.sampled_from(["x.csv", "x.txt", "x.data", "x.csv.gz"]),
    mark=st.booleans(),
    has_header=st.booleans(),
)
def test_a_written_table_is_read_as_it_was_written(tmp_path, texts, delimiter, name, mark, has_header):
    header = ["the number", "quoted, or; not|so", "third"]
    rows = [[str(number), text, f"w{number % 3}"] for number, text in enumerate(texts)]
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
    writer.writerows([header, *rows] if has_header else rows)
    data = (("\ufeff" if mark else "") + stream.getvalue()).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    table = find_table(path, "third" if has_header else "c3")
    assert table.columns == (tuple(header) if has_header else ("c1", "c2", "c3"))
    assert table.form.field_delimiter == delimiter and table.form.quotes
    sample = read_sample(table)
    assert sample.whole and sample.table_rows == sample.rows == len(rows) and not sample.malformed
    found = zip(*(sample.columns[column].to_pylist() for column in table.columns), strict=True)
    assert [[value or "" for value in row] for row in found] == rows


R_ROWS = "".join(f'"{n}","u{n}",{n % 2}\n' for n in range(1, 20))


@pytest.mark.parametrize(
    ("content", "label", "columns"),
    [
        ("user,clicked\nu1,0\nu2,1\n", "clicked", "user clicked"),
        # A label of a column's number says that there is no header.
        ("1,u1,0\n2,u2,1\n", "c3", "c1 c2 c3"),
        # A name that stands twice.
        ("user,item,item,clicked\nu1,a,x,0\nu2,b,y,1\n", "clicked", "user item item clicked"),
        # Decimal commas give as many fields in every line but the first.
        ("user;price;clicked\nu1;3,50;0\nu2;4,25;1\n", "clicked", "user price clicked"),
        ("u1;3,50;0\nu2;4,25;1\nu3;9,75;1\n", "c3", "c1 c2 c3"),
        # Names that are numbers.
        ("click,101,109_14\n0,7,1\n1,8,2\n", "click", "click 101 109_14"),
        # Comments, Excel's line and titles come before the line that names the label.
        ("# of May\n\n#\nuser,click\nu1,0\nu2,1\n", "click", "user click"),
        ("# of May\n#user,click\nu1,0\nu2,1\n", "click", "#user click"),
        ('"sep=;"\nuser;click\nu1;0\nu2;1\n', "click", "user click"),
        ("Clicks of May\n\nuser,ad,click\nu1,a,0\nu2,b,1\n", "click", "user ad click"),
        ("user,click\nu1,0,\nu2,1,\n", None, "user click "),
        ("user,click\ru1,0\ru2,1\r", "click", "user click"),
        ('"user","click"\n' + R_ROWS, "click", " user click"),
        # Lines that are like those of other formats.
        ("time,user,click\n2026-01-05 08:00:00,u1,0\n2026-01-05 08:01:00,u2,1\n", None, "time user click"),
        ("id|title|click\n8|Blue hat|0\n9|Red hat|1\n", None, "id title click"),
        ("user,ad,click\na::1,x::2,0\nb::1,y::2,1\n", None, "user ad click"),
    ],
)
def test_the_line_that_names_the_label_is_the_header(tmp_path, content, label, columns):
    (tmp_path / "x.csv").write_text(content, newline="")
    table = find_table(tmp_path / "x.csv", label)
    names = columns.split(" ")
    assert list(table.columns) == names
    sample = read_sample(table)
    assert list(sample.columns) == [name for name in names if names.count(name) == 1 and name]
    lines = [line for line in content.replace("\r", "\n").split("\n") if line]
    skipped = table.form.skip_lines - content.count("\n\n")
    rows = len(lines) - skipped - table.form.header - sample.headers
    assert (sample.rows, sample.malformed) == (rows, 0)


EXCEL = b"PK\x03\x04" + bytes(26) + b"[Content_Types].xml"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "no file in this folder"),
        ({"a.csv": "x,y\n1,2\n", "b.txt": "x"}, "several kinds (a.csv, b.txt)"),
        ({"a.csv": "x,y\n1,2\n", "b.csv": "x,z\n1,2\n"}, "a.csv and b.csv have different columns: y, z"),
        ({"a.jsonl": "[1, 2]\n"}, "not hold one JSON object a line; allowed: one JSON object a line, as jq"),
        ({"a.csv": ""}, "is empty"),
        ({"a.csv": "\n" * 2000}, "its beginning holds no row"),
        ({"a.json": '{"x": {"0": 1}, "y": {"0": 1}}'}, "(x: it holds objects or lists of lists; y"),
        ({"a.txt": "1 qid:3 1:1 7:0.5 # a\n0 qid:3 4:1\n"}, "the format is libsvm"),
        ({"a.txt": "-1 |u id=3 |a ad=4\n1 0.5 'x |u id=4\n"}, "the format is Vowpal Wabbit's"),
        ({"a.dat": "1::3::0\n2::4::1\n"}, "separated by ::; allowed: one character"),
        ({"a.xml": "<rows>\n<row/>\n"}, "the format is XML or HTML"),
        ({"a.csv": "x,y\n1,2\n".encode("utf-16")}, "a.csv: is UTF-16; allowed: text in UTF-8"),
        ({"a.xlsx": EXCEL}, "an Excel workbook (.xlsx)"),
        ({"a.tfrecord": b"\x12" + bytes(7) + b"abcd\n\x10\n\x0e"}, "a TFRecord file"),
        ({"a.parquet": "x,y\n1,2\n"}, "is no Parquet file, though its name ends in .parquet"),
        ({"a.csv": "größe,y\n1,2\n".encode("latin-1")}, "is not text in UTF-8 (byte 0xf6); save it as UTF-8"),
        ({"a.csv": "a,a\n1,0\n0,1\n"}, "no column can be read (a: the name stands twice in the header); all"),
        ({"behaviors.tsv": "1\tu\n", "news.tsv": "n\tx\n"}, "by examples/mind/rows.py"),
    ],
)
def test_refused_tables(tmp_path, files, words):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as refusal:
        read_sample(find_table(tmp_path, None))
    assert words in str(refusal.value) and "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300 + len(str(tmp_path))
    assert "/tmp/tmp" not in str(refusal.value)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_files_with_columns_in_another_order_or_fewer_or_none_are_one_table(tmp_path, suffix):
    folder, names = tmp_path / "in", ["ts", "user", "ad", "pos", "click"]
    rows = [(1_700_000_000 + 60 * n, f"u{n % 7}", f"a{n % 5}", n % 3, n % 4 // 3) for n in range(120)]
    rows = [dict(zip(names, row, strict=True)) for row in rows]
    first, second = (folder / f"dt=2023-11-{day}" for day in (14, 15))
    for path, begin, columns in (
        (first / f"part-1.{suffix}", 0, ["ts", "user", "ad", "click"]),
        (first / f"part-2.{suffix}", 40, names[::-1]),
        (second / f"part-1.{suffix}", 80, names),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = pa.Table.from_pylist(rows[begin : begin + 40]).select(columns)
        pq.write_table(part, path) if suffix == "parquet" else pa_csv.write_csv(part, path)
    for empty in (second / f"part-2.{suffix}", folder / "_SUCCESS"):
        empty.write_bytes(b"")
    table = find_table(folder, "click")
    parts = ["2023-11-14/part-1", "2023-11-14/part-2", "2023-11-15/part-1"]
    assert [file.name for file in table.files] == [f"dt={part}.{suffix}" for part in parts]
    sample = read_sample(table)
    assert sample.columns["dt"].to_pylist() == ["2023-11-14"] * 80 + ["2023-11-15"] * 40
    for name in names[1:]:
        wanted = [None if name == "pos" and n < 40 else str(row[name]) for n, row in enumerate(rows)]
        found = sample.columns[name].to_pylist()
        assert [None if value in (None, "") else str(value) for value in found] == wanted
    found = draft_mapping(table, sample, Options(label="click"))
    assert found.content["input"]["optional"] == ["pos"]
    notes = "\n".join(found.notes)
    assert f"1 of 4 files are empty and are skipped: dt=2023-11-15/part-2.{suffix}" in notes
    assert "the folders of the files give the column dt" in notes
    assert "missing where a file lacks them: pos" in notes
    # As an ingest reads it.
    result = ingest(parse_model(Mapping, found.content, ""), [folder], tmp_path / "log")
    assert (result.examples, result.clicks, result.rejected) == (120, 30, 0)


def test_files_put_together_by_cat_give_the_same_rows_in_the_sample_and_in_an_ingest(tmp_path):
    header, lines = "ts,user,click,\n", [f"{1_700_000_000 + n},u{n % 9},{n % 5 // 4},\n" for n in range(100)]
    days = ["".join([header, *lines[begin : begin + 20]]) for begin in range(0, 100, 20)]
    (tmp_path / "in").mkdir()
    for name, some in (("a", days[:3]), ("b", days[3:])):
        (tmp_path / "in" / f"{name}.csv").write_text("".join(some))
    table = find_table(tmp_path / "in", "click")
    sample = read_sample(table)
    assert (sample.rows, sample.malformed, sample.headers) == (100, 0, 3)
    found = draft_mapping(table, sample, Options(label="click"))
    assert "3 lines of the sample repeat the header: they are rejects, not rows" in found.notes
    result = ingest(parse_model(Mapping, found.content, ""), [tmp_path / "in"], tmp_path / "log")
    assert (result.examples, result.reject_reasons) == (100, {"line: repeats the header": 3})


def test_a_byte_order_mark_hides_no_row(tmp_path):
    rows = "".join(json.dumps({"user": f"u{n % 7}", "click": n % 2}) + "\n" for n in range(80))
    (tmp_path / "x.jsonl").write_bytes(b"\xef\xbb\xbf" + rows.encode())
    found = drafted(tmp_path / "x.jsonl")
    result = ingest(parse_model(Mapping, found.content, ""), [tmp_path / "x.jsonl"], tmp_path / "log")
    assert (result.examples, result.clicks, result.rejected) == (80, 40, 0)


def test_parquet_and_json_keep_their_types_and_leave_nested_values_out(tmp_path):
    rows = [{"a": 1, "b": ["x", "y"], "c": {"d": 1}, "e": None}, {"a": 2, "b": [], "c": {"d": 2}, "e": "x"}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "{broken\n")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    for name, malformed in (("x.jsonl", 1), ("x.parquet", 0)):
        sample = read_sample(find_table(tmp_path / name, None))
        assert list(sample.columns) == ["a", "b", "e"] and list(sample.unusable) == ["c"]
        assert sample.columns["a"].to_pylist() == [1, 2]
        assert sample.columns["b"].to_pylist() == [["x", "y"], []]
        assert sample.malformed == malformed


def test_columns_of_bytes_and_of_other_packages_types_are_left_out(tmp_path):
    raw = [bytes(range(240 + n, 256)) + bytes(n) for n in range(3)]
    columns = {"click": [0, 1, 0], "key": pa.array(raw, pa.binary(16)), "uuid": pa.array(raw, pa.uuid())}
    pq.write_table(pa.table({**columns, "word": ["a", "b", "c"]}), tmp_path / "x.parquet")
    sample = read_sample(find_table(tmp_path / "x.parquet", "click"))
    assert list(sample.columns) == ["click", "word"]
    assert sample.unusable["key"] == "it is of type fixed_size_binary[16]"
    assert "uuid" in sample.unusable["uuid"]
    lines = b"".join(b"%d,\xff%d,%d\n" % (row, row, row % 2) for row in range(300))
    (tmp_path / "x.csv").write_bytes(b"a,bytes,click\n" + lines)
    sample = read_sample(find_table(tmp_path / "x.csv", "click"))
    assert list(sample.columns) == ["a", "click"]
    assert sample.unusable == {"bytes": "300 values of the sample are not UTF-8"}


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv.gz", "x.parquet"])
def test_the_sample_of_a_long_table_is_bounded(tmp_path, monkeypatch, name):
    monkeypatch.setattr(dialect, "SAMPLE_ROWS", 1000)
    numbers = list(range(100_000, 140_000))
    path = tmp_path / name
    if name == "x.parquet":
        pq.write_table(pa.table({"n": numbers, "w": ["w"] * len(numbers)}), path, row_group_size=2000)
    elif name == "x.jsonl":
        path.write_text("".join(f'{{"n": {number}, "w": "w"}}\n' for number in numbers))
    else:
        data = ("n,w\n" + "".join(f"{number},w\n" for number in numbers)).encode()
        path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    sample = read_sample(find_table(path, "n"))
    assert [int(number) for number in sample.columns["n"].to_pylist()] == numbers[:1000]
    assert not sample.whole and sample.rows == 1000 and not sample.malformed
    assert sample.describe().startswith("the first 1,000 of about ")
    if name != "x.csv.gz":
        assert sample.table_rows == pytest.approx(len(numbers), rel=0.05)
    monkeypatch.setattr(dialect, "SAMPLE_ROWS", 40_000)
    assert read_sample(find_table(path, "n")).describe() == "all 40,000 rows"
