"""Which files are input, in what order, under what names."""

import gzip
import json

import pyarrow.parquet as pq
import pytest

import raw_logs
from ctr.io.errors import InputError
from ctr.pipelines.tables.ingest import ingest
from ctr.pipelines.tables.input_files import find_files, open_bytes


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


DAYS = ("day_10.csv", "day_2.csv", "day_1.csv", "day_1.csv.gz", "notes.txt", "sub/day_0.csv")
HIDDEN = ("a.csv", ".b.csv", "_c.csv", "_temporary/d.csv", "k=1/.e.csv")


@pytest.mark.parametrize(
    ("names", "inputs", "patterns", "sides", "found"),
    [
        # The natural order within a folder, and that of the command between inputs.
        (DAYS, ["."], ["*.csv", "*.csv.gz"], [], ["day_1.csv", "day_1.csv.gz", "day_2.csv", "day_10.csv"]),
        (DAYS, ["."], ["**/*.csv"], [], ["day_1.csv", "day_2.csv", "day_10.csv", "sub/day_0.csv"]),
        (("b.csv", "a.csv", "c/x.csv"), ["b.csv", "c", "a.csv"], ["*.csv"], [], ["b.csv", "x.csv", "a.csv"]),
        # Side tables are no input, and hidden files only where a pattern names them.
        (("r.csv", "i.csv", "s/i.csv", "s/r.csv"), ["."], ["**/*.csv"], ["i.csv"], ["r.csv", "s/r.csv"]),
        (HIDDEN, ["."], ["**/*.csv"], [], ["a.csv"]),
        (HIDDEN, ["."], ["_*.csv"], [], ["_c.csv"]),
    ],
)
def test_files_that_are_input_and_their_order(tmp_path, names, inputs, patterns, sides, found):
    touch(tmp_path, *names)
    sources = find_files([tmp_path / name for name in inputs], patterns, sides)
    assert [source.name for source in sources] == found
    assert [source.number for source in sources] == list(range(len(found)))


@pytest.mark.parametrize(
    ("names", "inputs", "message"),
    [
        ([], ["absent"], "absent: no such file or folder"),
        ([], ["."], r"no file in this folder matches \*.csv"),
        ([], [], "no input is given"),
        (["a/x.csv", "b/x.csv"], ["a", "b"], "both named x.csv"),
        (["x.csv"], ["x.csv", "x.csv"], "both named x.csv"),
    ],
)
def test_bad_inputs_are_refused(tmp_path, names, inputs, message):
    touch(tmp_path, *names)
    with pytest.raises(InputError, match=message):
        find_files([tmp_path / name for name in inputs], ["*.csv"], [])


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_folders_give_columns_and_a_file_may_lack_some_or_hold_nothing(tmp_path, suffix):
    features = [f for f in raw_logs.GROWING_FEATURES if f["name"] not in ("kind", "zone")]
    rows = raw_logs.make_rows(60)
    for row in rows:
        row["price"] = None if row["color"] == "green" else row["price"]
    form = {"type": suffix, "pattern": f"**/rows.{suffix}"}
    content = {"features": features, "joins": (), "input": form}
    raw_logs.write_rows(tmp_path / "whole", rows, suffix)
    ingest(raw_logs.make_mapping(**content), [tmp_path / "whole"], tmp_path / "log")
    folders = {"red": "red", "green": "green", "blue": "blue", "pink": "p%69nk"}
    for color in {row["color"] for row in rows}:
        part = [row for row in rows if row["color"] == color]
        folder = tmp_path / "parts" / f"color={folders.get(color, '__HIVE_DEFAULT_PARTITION__')}"
        table = raw_logs.typed_table(part).drop_columns(["color", *(["price"] if color == "green" else [])])
        folder.mkdir(parents=True)
        path = folder / f"rows.{suffix}"
        if suffix == "csv":
            lines = [table.column_names, *([row[name] or "" for name in table.column_names] for row in part)]
            path.write_text("".join(",".join(line) + "\n" for line in lines))
        elif suffix == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
        else:
            pq.write_table(table, path)
    (tmp_path / "parts" / f"rows.{suffix}").write_bytes(b"")
    with pytest.raises(InputError, match="no column price"):
        ingest(raw_logs.make_mapping(**content), [tmp_path / "parts"], tmp_path / "refused")
    content["input"] = {**form, "optional": ["price"]}
    result = ingest(raw_logs.make_mapping(**content), [tmp_path / "parts"], tmp_path / "again")
    assert raw_logs.read_log(tmp_path / "again") == raw_logs.read_log(tmp_path / "log")
    assert result.warnings == [f"1 of 6 files hold no rows: rows.{suffix}"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "t,y\n1,0\n".encode("utf-16"), "is UTF-16"),
        ("a.jsonl", "{}".encode("utf-16-be"), "is UTF-16"),
        ("a.csv", b"PK\x03\x04", "is a zip archive"),
        ("a.csv", gzip.compress(b"t,y\n", mtime=0), "is compressed with gzip"),
        ("a.csv.gz", b"t,y\n", "is not compressed with gzip, though its name ends in .gz"),
        ("a.tsv", b"PAR1", "is a Parquet file"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"{name}: {words}; allowed: text in UTF-8, and compressed text"):
        open_bytes(tmp_path / name)


@pytest.mark.parametrize(
    ("suffix", "share"),
    [("csv.gz", 0.5), ("tsv.zst", 0.98), ("jsonl.gz", 0.98), ("parquet", 0.5), ("parquet", 0)],
)
def test_a_truncated_file_is_named(tmp_path, suffix, share):
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(500), suffix)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)] or b"no,parquet\n")
    mapping = raw_logs.make_mapping(input={"type": suffix.partition(".")[0]})
    with pytest.raises(InputError, match=rf"in/rows.{suffix}: damaged, truncated or not of this format"):
        ingest(mapping, [path], tmp_path / "log")
    assert not (tmp_path / "log" / "manifests").exists()
    assert not list((tmp_path / "log").glob(".spill-*"))
