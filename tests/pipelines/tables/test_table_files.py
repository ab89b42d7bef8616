"""Parquet: rows are numbered through row groups, and columns keep their types."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raw_logs
from raw_logs import ingest


def write(folder, changes, count=40):
    """Writes rows of which some columns are others."""
    path = raw_logs.write_rows(folder / "in", raw_logs.make_rows(count), "parquet")
    table = pq.read_table(path)
    for name, column in changes.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    pq.write_table(table, path)
    return path


def test_types_of_parquet_are_understood(tmp_path):
    rows = raw_logs.make_rows(40)
    table = raw_logs.typed_table(rows)
    changes = {
        "time": pa.array([int(row["time"]) for row in rows], pa.timestamp("s")),
        "color": table.column("color").combine_chunks().dictionary_encode(),
        "code": table.column("code").cast(pa.large_string()),
        "price": table.column("price").cast(pa.float32()),
        "id": table.column("id").cast(pa.uint32()),
    }
    path = write(tmp_path, changes)
    mapping = raw_logs.make_mapping(input={"type": "parquet"}, time={"column": "time", "format": "iso8601"})
    ingest(mapping, [path], tmp_path / "log")
    expected = raw_logs.reference([(path.name, 0, row) for row in rows], mapping)
    assert raw_logs.read_log(tmp_path / "log") == expected


@pytest.mark.parametrize(
    "kind",
    ["string", "large_string", "string_view", "binary", "list", "large_list", "fixed list", "dictionary"],
)
def test_text_that_is_not_utf8_is_set_aside(tmp_path, kind):
    texts = [b"ab"] * 40
    texts[20] = b"a\xe9"
    broken = pa.array(texts).view(pa.string())
    column = {
        "string": broken,
        "large_string": pa.array(texts, pa.large_binary()).view(pa.large_string()),
        "list": pa.ListArray.from_arrays(pa.array(range(41), pa.int32()), broken),
        "large_list": pa.LargeListArray.from_arrays(pa.array(range(41), pa.int64()), broken),
        "dictionary": broken.dictionary_encode(),
        "string_view": broken.cast(pa.string_view()),
        "binary": pa.array(texts, pa.binary()),
        "fixed list": pa.FixedSizeListArray.from_arrays(broken, 1),
    }[kind]
    name = "tags" if "list" in kind else "code"
    path = write(tmp_path, {name: column})
    ingest(raw_logs.make_mapping(input={"type": "parquet"}), [path], tmp_path / "log", max_reject_share=0.05)
    (reject,) = raw_logs.read_rejects(tmp_path / "log")
    assert (reject["row"], reject["key"], reject["reason"]) == (21, name, "invalid UTF-8")
    assert "xe9" in reject["value"]
    assert len(raw_logs.read_log(tmp_path / "log")) == 39
