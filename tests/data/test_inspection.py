"""`ctr inspect`: every number against one computed otherwise, and the warnings."""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ctr.cli import main
from ctr.data.inspection import Period, Span, inspect_log, shared_buckets
from ctr.data.inspection_text import inspection_text, log_warnings
from ctr.data.log import create_log, read_manifests
from ctr.data.sample_log import write_decisions
from ctr.data.sampling import SamplingConfig
from ctr.data.schema import Category, Cross, LogBuckets, Number, Schema, Text
from ctr.data.shards import pack_ids, publish_partition
from ctr.data.sidecar import write_sidecar_partition
from ctr.io.errors import InputError

HOUR = 3_600_000_000
START = 1_700_006_400_000_000  # on the hour

SCHEMA = Schema(
    features=(
        Category(name="user", source="user", buckets=40, width=4),
        Category(name="device", source="device", vocabulary=("phone", "desk"), tower="ui"),
        Number(name="price", source="price", log=LogBuckets(per_octave=1, maximum=4)),
        Category(name="tags", source="tags", buckets=30, multivalent=True, max_values=3),
        Text(name="title", source="title", buckets=1000),
        Cross(name="user_x_device", of=("user", "device"), buckets=100),
    )
)
# The same features, but where there can be, ids that grow.
GROWING = Schema(
    features=tuple(
        feature.model_copy(update={"buckets": None})
        if feature.name in ("user", "tags", "title", "user_x_device")
        else feature
        for feature in SCHEMA.features
    )
)
SINGLE = SCHEMA.single_valued


def table(
    rng: np.random.Generator,
    times: np.ndarray,
    first: int,
    rate: float = 0.3,
    largest: dict[str, int] | None = None,
    schema: Schema = SCHEMA,
) -> pa.Table:
    """Rows with one query for each time, 3 rows each."""
    time = np.repeat(np.sort(times), 3)
    count = len(time)
    buckets = {name: feature.buckets for name, feature in SCHEMA.by_name.items()} | (largest or {})

    def draw(name: str, low: int, count: int) -> np.ndarray:
        ids = rng.integers(low, buckets[name], count)
        # Numbers from all of their 64 bits where they grow; 0 stays what it is.
        return ids * -0x61C8864680B583EB if name in schema.growing else ids

    single = np.stack([draw(name, 0, count) for name in SINGLE], axis=1)
    columns = {
        "query_time": time,
        "timestamp": time,
        "query_id": np.repeat(np.arange(first, first + count // 3), 3),
        "example_id": np.arange(3 * first, 3 * first + count),
        "label": (rng.random(count) < rate).astype(np.int8),
        "train_weight": np.ones(count, np.float32),
        "metric_weight": rng.choice([0.5, 2], count).astype(np.float32),
        "ids": pack_ids(single.astype(schema.id_type)),
    }
    for name in SCHEMA.multivalent:
        values = [draw(name, 1, rng.integers(0, 4)).tolist() for _ in range(count)]
        columns[name] = pa.array(values, pa.list_(pa.from_numpy_dtype(schema.id_type)))
    return pa.table(columns)


def make_log(folder: Path, schema: Schema) -> Path:
    """Hours 0, 1 and 4, in two shards each; no queries in hour 5, which is published all the same."""
    rng = np.random.default_rng(0)
    create_log(folder, schema)
    for number, hour in enumerate((0, 1, 4)):
        start = START + hour * HOUR
        rows = table(rng, start + rng.integers(0, HOUR, 60), 60 * number, schema=schema)
        publish_partition(folder, schema, start, start + HOUR, rows, {"rejected": number}, shard_rows=100)
    empty = table(rng, np.zeros(0, np.int64), 0, schema=schema)
    publish_partition(folder, schema, START + 5 * HOUR, START + 6 * HOUR, empty)
    return folder


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    return make_log(tmp_path_factory.mktemp("inspection") / "log", SCHEMA)


@pytest.fixture(scope="module")
def rows(log) -> pa.Table:
    """All rows of the log."""
    files = [log / "shards" / entry.file for part in read_manifests(log) for entry in part.shards]
    return pa.concat_tables(pa.parquet.read_table(file) for file in files)


def test_rows_clicks_queries_and_times(log, rows):
    summary = inspect_log(log)
    label = rows["label"].to_numpy()
    time = rows["query_time"].to_numpy()
    weight = rows["metric_weight"].to_numpy().astype(np.float64)
    clicks = np.array([label[rows["query_id"].to_numpy() == query].sum() for query in range(180)])
    assert (summary.rows, summary.queries, summary.clicks) == (540, 180, label.sum())
    assert (summary.first, summary.last) == (time[0], time[-1])
    assert (summary.max_query_rows, summary.faulty_rows, summary.shards) == (3, 0, 6)
    assert summary.ranked_queries == np.count_nonzero((clicks > 0) & (clicks < 3))
    assert summary.metric_weight == pytest.approx(weight.mean())
    assert summary.weighted_click_rate == pytest.approx(np.average(label, weights=weight))
    assert summary.bytes == sum(path.stat().st_size for path in (log / "shards").iterdir())
    assert summary.counters == {"rejected": 3}
    steps = np.diff(time)
    longest = np.argsort(-steps)[:3]
    assert summary.pauses == tuple(Span(int(time[at]), int(time[at + 1])) for at in longest)


def test_the_click_rate_over_time(log, rows):
    summary = inspect_log(log)
    label, time = rows["label"].to_numpy(), rows["query_time"].to_numpy()
    assert summary.period == HOUR // 4
    begin = START
    for period in summary.over_time:
        inside = (time >= begin) & (time < begin + summary.period)
        assert period == Period(begin, np.count_nonzero(inside), label[inside].sum())
        begin += summary.period
    assert begin > time[-1] >= begin - summary.period


def test_partitions_and_gaps(log):
    summary = inspect_log(log)
    assert [(part.start, part.end, part.rows) for part in summary.partitions] == [
        (START + hour * HOUR, START + (hour + 1) * HOUR, count)
        for hour, count in ((0, 180), (1, 180), (4, 180), (5, 0))
    ]
    assert summary.gaps == (Span(START + 2 * HOUR, START + 4 * HOUR),)
    lines = log_warnings(summary)
    assert (
        "1 gap between partitions, together 2 h; the longest: 2023-11-15 02:00:00 to 2023-11-15 04:00:00"
        in lines
    )
    assert "1 partition without rows, the first one from 2023-11-15 05:00:00" in lines
    assert any(line.startswith("no query for ") and "of the time, 2023-11-15 01:5" in line for line in lines)


def test_single_valued_features(log, rows):
    found = {feature.name: feature for feature in inspect_log(log).features}
    label = rows["label"].to_numpy()
    packed = np.frombuffer(b"".join(rows["ids"].to_pylist()), "<i4").reshape(-1, len(SINGLE))
    for column, name in enumerate(SINGLE):
        ids = packed[:, column]
        there = ids > 0
        feature = found[name]
        assert feature.missing == pytest.approx(1 - there.mean())
        assert (feature.ids, feature.exact) == (len(np.unique(ids[there])), True)
        assert feature.values_per_row is None and feature.full_rows is None
        top = feature.top[0]
        counts = np.bincount(ids[there])
        assert counts[top.id] == counts.max()
        assert top.share == counts.max() / there.sum()
        assert top.click_rate == pytest.approx(label[ids == top.id].mean())
    assert {top.value for top in found["device"].top} == {"phone", "desk", "(other values)"}
    names = {top.id: top.value for top in found["price"].top}
    assert names == {1: "-inf to 0", 2: "0 to 1", 3: "1 to 2", 4: "2 to 4", 5: "4 to inf"}


def test_multivalent_features(log, rows):
    found = {feature.name: feature for feature in inspect_log(log).features}
    for name in SCHEMA.multivalent:
        lists = rows[name].to_pylist()
        values = np.concatenate([np.array(ids, np.int64) for ids in lists])
        lengths = np.array([len(ids) for ids in lists])
        feature = found[name]
        assert feature.missing == pytest.approx(np.mean(lengths == 0))
        assert feature.values_per_row == pytest.approx(lengths.mean())
        assert feature.full_rows == (pytest.approx(np.mean(lengths == 3)) if name == "tags" else 0)
        assert feature.ids == len(np.unique(values))
        assert feature.top[0].share == np.bincount(values).max() / len(values)


def test_ids_that_grow(log, tmp_path, capsys):
    """The log differs in its ids alone; these collide nowhere, and have no number of buckets."""
    grown = make_log(tmp_path / "log", GROWING)
    summary, other = inspect_log(grown), inspect_log(log)
    assert (summary.rows, summary.clicks, summary.queries) == (other.rows, other.clicks, other.queries)
    assert summary.faulty_rows == 0
    for found, expected in zip(summary.features, other.features, strict=True):
        grows = found.name in GROWING.growing
        assert found.buckets == (None if grows else expected.buckets)
        for name in ("name", "kind", "ids", "exact", "missing", "values_per_row", "full_rows"):
            assert getattr(found, name) == getattr(expected, name), (found.name, name)
        assert [top.share for top in found.top] == [top.share for top in expected.top]
        if grows:
            assert (found.values, found.shared) == (None, None)
            assert max(abs(top.id) for top in found.top) > 2**32
    assert not any("share a bucket" in line for line in log_warnings(summary))
    row = next(line for line in inspection_text(summary).splitlines() if line.startswith("  user_x_device"))
    assert "growing" in row
    assert main(["inspect", str(grown), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [feature["buckets"] for feature in printed["features"]] == [None, 4, 6, None, None, None]


def test_estimated_collisions():
    rng = np.random.default_rng(0)
    for count in (10, 1000, 20_000):
        places = rng.integers(0, 10_000, count)
        values, shared = shared_buckets(len(np.unique(places)), 10_000)
        alone = np.count_nonzero(np.bincount(places) == 1)
        assert values == pytest.approx(count, rel=0.03)
        assert shared == pytest.approx(1 - alone / count, abs=0.02)
    assert shared_buckets(0, 100) == (0, 0)
    assert shared_buckets(1, 100) == (1, pytest.approx(0))
    # All buckets are filled: by at least so many.
    assert shared_buckets(100, 100)[0] > 400
    features = {feature.name: feature for feature in inspect_log_of(np.random.default_rng(1), 300).features}
    assert features["device"].shared is None and features["price"].values is None
    assert features["user"].shared > 0.9


def inspect_log_of(rng, queries: int, rate: float = 0.3, largest=None, change=None):
    """What is found in a log of one partition."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        create_log(path, SCHEMA)
        rows = table(rng, START + np.arange(queries) * 1_000_000, 0, rate, largest)
        publish_partition(path, SCHEMA, START, START + HOUR, rows if change is None else change(rows))
        return inspect_log(path)


def set_column(name: str, make):
    def change(rows: pa.Table) -> pa.Table:
        at = rows.column_names.index(name)
        return rows.set_column(at, rows.schema.field(name), pa.array(make(rows.num_rows)))

    return change


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"rate": 0.0}, "all labels are 0: there is nothing to learn"),
        ({"rate": 1.0}, "all labels are 1: there is nothing to learn"),
        ({"largest": {"user": 1}}, "feature user has no value in any row"),
        ({"largest": {"tags": 2, "title": 2}}, None),
        ({"queries": 0}, "the log has no rows"),
        (
            {"change": set_column("label", lambda n: np.where(np.arange(n) < 30, 7, np.arange(n) % 2).astype(np.int8))},
            "10.0% of the rows (30) are faulty: the label is neither 0 nor 1, or an id lies outside its feature's "
            "buckets",
        ),
        (
            {
                "queries": 2000,
                "change": set_column(
                    "label", lambda n: (np.arange(n) % np.where(np.arange(n) < n // 2, 10, 4) == 0).astype(np.int8)
                ),
            },
            "the click rate changes from 10.0% to 22.5% at 2023-11-15 00:16:00",
        ),
    ],
)  # fmt: skip
def test_an_unusual_log_has_its_warning_and_a_usual_one_none(arguments, line):
    summary = inspect_log_of(np.random.default_rng(2), **{"queries": 100, **arguments})
    lines = [text for text in log_warnings(summary) if "share a bucket" not in text]
    assert lines == ([] if line is None else [line])
    assert all(f"warning: {text}" in inspection_text(summary) for text in lines)


def test_a_feature_with_one_value():
    def change(rows: pa.Table) -> pa.Table:
        at = rows.column_names.index("ids")
        ids = np.random.default_rng(0).integers(1, 4, (rows.num_rows, len(SINGLE)))
        ids[:, SINGLE.index("user")] = 7
        return rows.set_column(at, "ids", pack_ids(ids.astype(np.int32)))

    lines = log_warnings(inspect_log_of(np.random.default_rng(3), 50, change=change))
    assert "feature user has one value only: nothing can be learned from it" in lines


def test_buckets_that_are_shared_are_named_with_how_many_it_would_take():
    lines = log_warnings(inspect_log_of(np.random.default_rng(4), 40))
    line = next(line for line in lines if "share a bucket" in line)
    assert line.startswith(
        "hash collisions: in 4 features more than 10% of the values share a bucket with another one: tags "
    )
    assert "buckets)" in line


def test_what_lies_beside_the_log(log, tmp_path):
    copy = tmp_path / "log"
    shutil.copytree(log, copy)
    write_decisions(copy, "half", SamplingConfig(non_click_rate=0.5))
    first = read_manifests(copy)[0]
    ids = np.concatenate([np.arange(180)])
    write_sidecar_partition(copy, "teacher", first, pa.table({"example_id": ids, "logit": ids / 9}))
    half, teacher = inspect_log(copy).sidecars
    assert (half.name, half.sample, half.partitions, half.rows) == ("half", True, 4, 540)
    assert (teacher.sample, teacher.partitions, teacher.columns) == (False, 1, ("example_id", "logit"))
    assert "teacher: columns example_id, logit; 180 rows, 1 of 4 partitions" in inspection_text(
        inspect_log(copy)
    )


def test_a_damaged_shard_is_named(log, tmp_path):
    copy = tmp_path / "log"
    shutil.copytree(log, copy)
    shard = sorted((copy / "shards").iterdir())[0]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 16
    shard.write_bytes(content)
    with pytest.raises(InputError, match=str(shard)):
        inspect_log(copy)
    shard.unlink()
    with pytest.raises(InputError, match="the file is missing, though a manifest names it"):
        inspect_log(copy)


def test_ctr_inspect_prints_text_and_json(log, capsys):
    assert main(["inspect", str(log)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(f"{log}: 540 rows, 180 queries, ")
    assert "\nwarning: 1 gap between partitions" in out
    assert main(["inspect", str(log), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["rows"] == 540
    assert [feature["name"] for feature in printed["features"]] == list(SCHEMA.by_name)
    assert len(printed["warnings"]) == out.count("\nwarning: ")
    assert main(["inspect", str(log.parent)]) == 1
    assert "is not an example log" in capsys.readouterr().err


def test_a_run_directory_is_no_log(log, tmp_path):
    shutil.copy(log / "schema.json", tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(InputError, match="is a run directory: name the log that it was trained on"):
        inspect_log(tmp_path)


def test_it_loads_no_tensorflow(log, fresh_python, root):
    script = f"""
import sys
from ctr.cli import main
main(["inspect", {str(log)!r}])
print(sorted({{"tensorflow", "tf_keras", "keras"}} & set(sys.modules)))
"""
    assert fresh_python("-c", script, cwd=root).stdout.splitlines()[-1] == "[]"
