"""Inputs that ended the process, or ingests with an error that nobody is meant to read, before fuzzing found them."""

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr.config import apply_settings, parse_model
from ctr.data.mapping import DelimitedInput, Mapping
from ctr.data.schema import Schema
from ctr.eval.run_files import read_columns, read_predictions
from ctr.io.errors import InputError
from ctr.pipelines.evaluate.rows import find_row_groups
from ctr.pipelines.tables.delimited import delimited_columns, read_delimited
from ctr.pipelines.tables.input_files import SourceFile
from ctr.pipelines.tables.jsonl import JsonlReader
from ctr.pipelines.tables.reader import read_parquet
from ctr.training.config import TrainConfig


def source(path):
    return SourceFile(0, path, path.name)


def read_lines(path, content):
    """The values of the column ``t``, and the rows and reasons of rejects."""
    path.write_text(content)
    chunks = list(JsonlReader(["t"], ["t"], {}, False).read(source(path), 1 << 20))
    values = [value for chunk in chunks for value in chunk.table.column("t").to_pylist()]
    return values, [(reject.row, reject.reason) for chunk in chunks for reject in chunk.rejects]


def test_a_null_in_the_place_of_an_object(tmp_path):
    """Arrow's parser ends the process at the first ones, and takes the last one for an object."""
    for content, expected, rejected in (
        ("null\n", [], 1),
        ('null\n{"t": 1}\n', [1], 1),
        ('{"t": 1}\nnull\n', [1], 2),
    ):
        assert read_lines(tmp_path / "x", content) == (expected, [(rejected, "malformed JSON")])


def test_whole_numbers_beyond_every_float_and_values_nested_as_deep_as_reading_goes(tmp_path):
    huge = "1" + "0" * 400
    infinite = float("inf")
    numbers = "".join(f'{{"t": {number}}}\n' for number in (huge, f"-{huge}", 1.5))
    assert read_lines(tmp_path / "x", numbers) == ([infinite, -infinite, 1.5], [])
    nested = "".join(f'{{"t": {"[" * depth + "]" * depth}}}\n' for depth in range(900, 1000))
    assert len(read_lines(tmp_path / "y", nested)[1]) == 100


def test_a_csv_row_of_a_wrong_length_that_is_no_text(tmp_path, capfd):
    path = tmp_path / "x.csv"
    path.write_bytes(b"a,b\n1,2\n\xff,2,3\n")
    with pytest.raises(InputError, match="Row #3: Expected 2 columns, got 3"):
        list(read_delimited(source(path), DelimitedInput(type="csv"), ["a", "b"], 1 << 20))
    assert capfd.readouterr().err == ""


def test_a_header_with_line_ends_of_another_kind(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b"a,b\rc,d\n1,2,3\n")
    assert delimited_columns(path, DelimitedInput(type="csv")) == ("a", "b")
    chunks = list(read_delimited(source(path), DelimitedInput(type="csv"), ["a"], 10_000))
    assert [value for chunk in chunks for value in chunk.table.column("a").to_pylist()] == [b"c"]
    assert [reject.row for chunk in chunks for reject in chunk.rejects] == [3]


def test_columns_that_stand_twice_in_parquet(tmp_path):
    path = tmp_path / "x.parquet"
    ids = pa.array([1, 2])
    pq.write_table(pa.table([ids, ids, pa.array([0.5, 1.5])], names=["query_id", "query_id", "logit"]), path)
    with pytest.raises(InputError, match="the column query_id appears twice"):
        list(read_parquet(source(path), ["query_id"], 10))
    names = ["example_id", "query_id", "query_id", "logit"]
    pq.write_table(pa.table([ids, ids, ids, pa.array([0.5, 1.5])], names=names), path)
    with pytest.raises(InputError, match="the column query_id appears twice"):
        find_row_groups([path])
    with pytest.raises(InputError, match="the column query_id appears 2 times"):
        read_columns(path, ["query_id"], "a test")


@pytest.mark.parametrize("metadata", [b"{}", b"[" * 5000, b'{"index_columns": [{"kind": "range"}]}', b"\xff"])
def test_what_a_parquet_file_says_of_pandas(tmp_path, metadata):
    path = tmp_path / "x.parquet"
    table = pa.table({"query_id": [1, 2], "logit": [0.5, 1.5]}).replace_schema_metadata({b"pandas": metadata})
    pq.write_table(table, path)
    assert read_predictions(path, ["query_id", "logit"])["query_id"].tolist() == [1, 2]


@pytest.mark.parametrize("column", [["a", "b"], [None, 1], [[1], [2]]])
def test_predictions_that_are_no_numbers(tmp_path, column):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"query_id": column}), path)
    with pytest.raises(InputError, match="query_id must hold numbers without nulls"):
        read_predictions(path, ["query_id"])


SETTINGS = [
    *("seed=2026-13-45", "seed=!!timestamp x", "seed=" + "9" * 5000, "seed=" + "[" * 3000, "seed=&a [*a]"),
    *("model.deep.units=[1000000000]", f"model.deep.units={[8] * 1000}", "model.crosses.rank=1" + "0" * 18),
    *("metrics.window_examples=" + "9" * 30, "batch.rows=1152921504606846976"),
    *(f"optimizer.embeddings.learning_rate={value}" for value in ("9" * 400, "1e400", ".nan")),
    "checkpoint={keep: 1, keep: 2}",
]
PLAIN = {"name": "a", "kind": "category", "source": "a"}
MAPPING = {"input": {"type": "csv"}, "time": {"column": "t", "unit": "s"}, "label": "l", "features": [PLAIN]}


def test_hostile_settings_are_refused_in_one_short_line():
    for setting in SETTINGS:
        with pytest.raises(InputError) as raised:
            parse_model(TrainConfig, apply_settings({}, [setting]), "settings")
        assert "\n" not in str(raised.value) and len(str(raised.value)) < 6000, setting
    for interval in ("9" * 400 + "d", "36501d", "1d\n", "0h", "-1h", "1"):
        with pytest.raises(InputError, match="partition"):
            parse_model(Mapping, {**MAPPING, "partition": interval}, "test")
    for changes in (
        {"boundaries": [0, 1e300]},
        {"boundaries": [-1e39, 0]},
        {"log": {"maximum": 1e200}},
        {"step": {"low": -1e300, "high": 1e300, "size": 1e299}},
    ):
        with pytest.raises(InputError, match="boundaries must fit float32"):
            parse_model(Schema, {"features": [{**PLAIN, "kind": "number", **changes}]}, "test")
    # Tables that no machine holds.
    schema = parse_model(Schema, {"features": [{**PLAIN, "buckets": 2**31 - 1, "width": 4096}]}, "test")
    message = r"the embeddings have 8,798,240,501,759 weights; allowed: 68,719,476,736"
    with pytest.raises(InputError, match=message):
        TrainConfig().table_layouts(schema)


def test_a_file_that_unpacks_without_end_is_read_in_pieces(tmp_path):
    """64 MB of one line from 64 kB: what is held is a block, and of the line its beginning."""
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(b"a\n" + b"x" * (64 << 20)))
    with pytest.raises(InputError, match="a record is longer than the read buffer"):
        list(read_delimited(source(path), DelimitedInput(type="csv"), ["a"], 1 << 20))
