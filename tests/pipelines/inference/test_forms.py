"""How a table is read: delimiter, quotes, header, folders and formats; and which rows are sampled."""

import csv
import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctr.io.errors import InputError
from ctr.pipelines.inference import sample as sampling
from ctr.pipelines.inference.forms import find_table
from ctr.pipelines.inference.sample import read_sample

CELLS = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\n\0", exclude_categories=["C"]), max_size=8
)


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
    table = find_table(path)
    assert table.columns == (tuple(header) if has_header else ("c1", "c2", "c3"))
    assert table.form.field_delimiter == delimiter and table.form.quotes
    sample = read_sample(table)
    assert sample.whole and sample.table_rows == sample.rows == len(rows) and not sample.malformed
    found = zip(*(sample.columns[column].to_pylist() for column in table.columns), strict=True)
    assert [[value or "" for value in row] for row in found] == rows


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("user,clicked\nu1,0\nu2,1\n", ("user", "clicked")),
        ("1,u1,0\n2,u2,1\n", ("c1", "c2", "c3")),
        ("u1,red,0\nu2,blue,1\nu1,red,1\n", ("c1", "c2", "c3")),
        (",user,clicked\n0,u1,0\n1,u2,1\n", ("", "user", "clicked")),
        ("red,big\nblue,small\nred,small\nblue,big\n", ("c1", "c2")),
        # A name that stands twice.
        ("user,item,item,clicked\nu1,a,x,0\nu2,b,y,1\n", ("user", "item", "item", "clicked")),
        # Decimal commas give as many fields in every line but the first.
        ("user;price;clicked\nu1;3,50;0\nu2;4,25;1\n", ("user", "price", "clicked")),
        ("u1;3,50;0\nu2;4,25;1\nu3;9,75;1\n", ("c1", "c2", "c3")),
        ("1,5|6|7,0\n2,6|7|5,1\n", ("c1", "c2", "c3")),
    ],
)
def test_which_first_line_is_a_header(tmp_path, content, columns):
    (tmp_path / "x.csv").write_text(content)
    assert find_table(tmp_path / "x.csv").columns == columns


def test_a_folder_of_one_kind_is_one_table(tmp_path):
    for day in (10, 2):
        (tmp_path / f"day_{day}.inter").write_text(f"user\tclick\nu{day}\t1\n")
    (tmp_path / ".hidden").write_text("mine")
    table = find_table(tmp_path)
    assert [file.name for file in table.files] == ["day_2.inter", "day_10.inter"]
    assert (table.form.type, table.form.pattern) == ("tsv", "*.inter")
    assert read_sample(table).columns["user"].to_pylist() == ["u2", "u10"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "no file in this folder"),
        ({"a.csv": "x,y\n1,2\n", "b.txt": "x"}, "several kinds (a.csv, b.txt)"),
        ({"a.csv": "x,y\n1,2\n", "b.csv": "x,z\n1,2\n"}, "a.csv and b.csv have different columns"),
        ({"a.jsonl": "[1, 2]\n"}, "one JSON array; allowed: one JSON object a line"),
        ({"a.csv": ""}, "is empty"),
        ({"a.csv": "a,a\n1,0\n0,1\n"}, "a.csv: no column has a name of its own; allowed: each name once"),
        ({"a.csv": "a,b\n"}, "there are no rows below the names of the columns"),
        ({"behaviors.tsv": "1\tu\n", "news.tsv": "n\tx\n"}, "use ctr ingest mind"),
    ],
)
def test_refused_tables(tmp_path, files, words):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as refusal:
        read_sample(find_table(tmp_path))
    assert words in str(refusal.value) and "\n" not in str(refusal.value)
    assert "/tmp/tmp" not in str(refusal.value)


def test_parquet_and_json_keep_their_types_and_leave_nested_values_out(tmp_path):
    rows = [{"a": 1, "b": ["x", "y"], "c": {"d": 1}, "e": None}, {"a": 2, "b": [], "c": {"d": 2}, "e": "x"}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "{broken\n")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    for name, malformed in (("x.jsonl", 1), ("x.parquet", 0)):
        sample = read_sample(find_table(tmp_path / name))
        assert list(sample.columns) == ["a", "b", "e"] and list(sample.unusable) == ["c"]
        assert sample.columns["a"].to_pylist() == [1, 2]
        assert sample.columns["b"].to_pylist() == [["x", "y"], []]
        assert sample.malformed == malformed


def test_columns_of_bytes_and_of_other_packages_types_are_left_out(tmp_path):
    raw = [bytes(range(240 + n, 256)) + bytes(n) for n in range(3)]
    columns = {
        "click": pa.array([0, 1, 0]),
        "key": pa.array(raw, pa.binary(16)),
        "uuid": pa.array(raw, pa.uuid()),
        "word": pa.array(["a", "b", "c"]),
    }
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    sample = read_sample(find_table(tmp_path / "x.parquet"))
    assert list(sample.columns) == ["click", "word"]
    assert (
        sample.unusable["key"] == "it is of type fixed_size_binary[16]" and "uuid" in sample.unusable["uuid"]
    )


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.csv.gz", "x.parquet"])
def test_the_sample_of_a_long_table_is_bounded_and_reaches_to_its_end(tmp_path, monkeypatch, name):
    monkeypatch.setattr(sampling, "HEAD_BYTES", 4000)
    monkeypatch.setattr(sampling, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(sampling, "HEAD_ROWS", 300)
    monkeypatch.setattr(sampling, "BATCH_ROWS", 50)
    numbers = list(range(100_000, 140_000))
    path = tmp_path / name
    if name == "x.parquet":
        pq.write_table(pa.table({"n": numbers, "w": ["w"] * len(numbers)}), path, row_group_size=2000)
    elif name == "x.jsonl":
        path.write_text("".join(f'{{"n": {number}, "w": "w"}}\n' for number in numbers))
    else:
        data = ("n,word\n" + "".join(f"{number},word\n" for number in numbers)).encode()
        path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    sample = read_sample(find_table(path))
    found = [int(number) for number in sample.columns["n"].to_pylist()]
    assert not sample.whole and sample.rows == len(found) < 4000 and not sample.malformed
    assert set(found) <= set(numbers) and len(set(found)) == len(found)
    assert found[: sample.head_rows] == numbers[: sample.head_rows]
    assert f"{sample.rows:,} rows of about" in sample.describe()
    if name != "x.csv.gz":
        assert found[-1] > 130_000
        assert sample.table_rows == pytest.approx(len(numbers), rel=0.05)


def test_a_header_in_another_encoding_is_named_with_what_is_allowed(tmp_path):
    (tmp_path / "x.csv").write_bytes("user,größe,clicked\nu1,2,0\nu2,3,1\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"x.csv: is not text in UTF-8 \(byte 0xf6\); save it as UTF-8$"):
        read_sample(find_table(tmp_path / "x.csv"))


def test_a_column_that_is_no_text_is_not_used(tmp_path):
    rows = b"".join(b"%d,\xff%d,%d\n" % (row, row, row % 2) for row in range(300))
    (tmp_path / "x.csv").write_bytes(b"a,bytes,click\n" + rows)
    sample = read_sample(find_table(tmp_path / "x.csv"))
    assert list(sample.columns) == ["a", "click"]
    assert sample.unusable == {"bytes": "300 values of the sample are not UTF-8"}
