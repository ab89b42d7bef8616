"""`ctr inspect`: every number against one computed otherwise, and the warnings."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctr.cli import main
from ctr.data.features import Category, Cross, LogBuckets, Number, Text
from ctr.data.id_counts import IdCounts
from ctr.data.inspection import Period, Span, inspect_log, shared_buckets
from ctr.data.inspection_text import inspection_text, log_warnings
from ctr.data.log import create_log, read_manifests
from ctr.data.sample_log import write_decisions
from ctr.data.sampling import SamplingConfig
from ctr.data.schema import Schema
from ctr.data.shards import pack_ids, publish_partition, unpack_ids
from ctr.data.sidecar import write_sidecar_partition
from ctr.io.errors import InputError
from hashed_rows import hashed_rows
from log_files import rows_of

HOUR = 3_600_000_000
START = 1_700_006_400_000_000  # on the hour

# Some with buckets, and some whose ids grow.
SCHEMA = Schema(
    features=(
        Category(name="user", source="user", width=4),
        Category(name="device", source="device", vocabulary=("phone", "desk"), tower="ui"),
        Number(name="price", source="price", log=LogBuckets(per_octave=1, maximum=4)),
        Category(name="tags", source="tags", buckets=30, multivalent=True, max_values=3),
        Text(name="title", source="title"),
        Cross(name="user_x_device", of=("user", "device"), buckets=100),
    )
)
SINGLE = SCHEMA.single_valued


def table(times: np.ndarray, first: int = 0, largest: Any = None, **more: Any) -> pa.Table:
    """Three rows for each time, one query; ``largest`` bounds ids of some features."""
    rng, count = np.random.default_rng([7, first]), 3 * len(times)
    bounds = {"user": 40, "title": 1000, **(largest or {})}

    def draw(name: str, low: int, count: int) -> np.ndarray:
        ids = rng.integers(low, bounds.get(name) or SCHEMA.by_name[name].buckets, count)
        # Numbers from all of their 64 bits where they grow; 0 stays what it is.
        return ids * -0x61C8864680B583EB if name in SCHEMA.growing else ids

    columns = {
        "query_time": np.repeat(np.sort(times), 3),
        "query_id": np.repeat(np.arange(first, first + len(times)), 3),
        "example_id": np.arange(3 * first, 3 * first + count),
        "label": rng.random(count) < 0.3,
        "metric_weight": rng.choice([0.5, 2], count),
        "ids": pack_ids(np.stack([draw(name, 0, count) for name in SINGLE], axis=1)),
    }
    for name in SCHEMA.multivalent:
        columns[name] = [draw(name, 1, rng.integers(0, 4)).tolist() for _ in range(count)]
    return hashed_rows(SCHEMA, count, **{**columns, **more})


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hours 0, 1 and 4, in two shards each; no queries in hour 5, which is published all the same."""
    folder = tmp_path_factory.mktemp("inspection") / "log"
    create_log(folder, SCHEMA)
    for number, hour in enumerate((0, 1, 4, 5)):
        start = START + hour * HOUR
        times = start + np.random.default_rng(hour).integers(0, HOUR, 60 if number < 3 else 0)
        rows = table(times, 60 * number)
        publish_partition(folder, SCHEMA, start, start + HOUR, rows, {"rejected": number}, shard_rows=100)
    return folder


@pytest.fixture(scope="module")
def rows(log: Path) -> pa.Table:
    """All rows of the log."""
    return pa.concat_tables(rows_of(log, manifest) for manifest in read_manifests(log) if manifest.rows)


def test_rows_clicks_queries_times_partitions_and_gaps(log, rows):
    summary = inspect_log(log)
    names = ("label", "query_time", "query_id", "metric_weight")
    label, time, query, weight = (rows[name].to_numpy() for name in names)
    clicks = np.bincount(query, label)
    assert (summary.rows, summary.queries, summary.clicks) == (540, 180, label.sum())
    assert (summary.first, summary.last) == (time[0], time[-1])
    assert (summary.max_query_rows, summary.faulty_rows, summary.shards) == (3, 0, 6)
    assert summary.ranked_queries == np.count_nonzero((clicks > 0) & (clicks < 3))
    assert summary.metric_weight == pytest.approx(weight.mean())
    assert summary.weighted_click_rate == pytest.approx(np.average(label, weights=weight))
    assert summary.bytes == sum(path.stat().st_size for path in (log / "shards").iterdir())
    assert summary.counters == {"rejected": 6}
    assert summary.period == HOUR // 4
    begin = START
    for period in summary.over_time:
        inside = (time >= begin) & (time < begin + summary.period)
        assert period == Period(begin, np.count_nonzero(inside), label[inside].sum())
        begin += summary.period
    assert begin > time[-1] >= begin - summary.period
    hours = [((part.start - START) / HOUR, (part.end - START) / HOUR) for part in summary.partitions]
    assert hours == [(0, 1), (1, 2), (4, 5), (5, 6)]
    assert [part.rows for part in summary.partitions] == [180, 180, 180, 0]
    assert summary.gaps == (Span(START + 2 * HOUR, START + 4 * HOUR),)
    lines = log_warnings(summary)
    longest = "the longest: 2023-11-15 02:00:00 to 2023-11-15 04:00:00"
    assert f"1 gap between partitions, together 2:00:00; {longest}" in lines
    assert "1 partition without rows, the first one from 2023-11-15 05:00:00" in lines


def test_features(log, rows):
    found, label = {feature.name: feature for feature in inspect_log(log).features}, rows["label"].to_numpy()
    assert [feature.buckets for feature in found.values()] == [None, 4, 6, 30, None, 100]
    # Ids that grow collide nowhere, and are of 64 bits.
    for name in ("user", "title"):
        assert (found[name].values, found[name].shared) == (None, None)
        assert max(abs(top.id) for top in found[name].top) > 2**32
    packed = unpack_ids(rows["ids"].combine_chunks(), SCHEMA)
    for column, name in enumerate(SINGLE):
        ids, feature = packed[:, column], found[name]
        values, counts = np.unique(ids[ids != 0], return_counts=True)
        assert feature.missing == pytest.approx(np.mean(ids == 0))
        assert (feature.ids, feature.exact) == (len(values), True)
        assert feature.values_per_row is None and feature.full_rows is None
        top = feature.top[0]
        assert counts[values == top.id] == counts.max() and top.share == counts.max() / counts.sum()
        assert top.click_rate == pytest.approx(label[ids == top.id].mean())
    assert {top.value for top in found["device"].top} == {"phone", "desk", "other"}
    names = {top.id: top.value for top in found["price"].top}
    assert names == {1: "below 0", 2: "0 to 1", 3: "1 to 2", 4: "2 to 4", 5: "4 and more"}
    for name in SCHEMA.multivalent:
        lists, feature = rows[name].to_pylist(), found[name]
        lengths = np.array([len(ids) for ids in lists])
        _, counts = np.unique(np.concatenate(lists), return_counts=True)
        assert feature.missing == pytest.approx(np.mean(lengths == 0))
        assert feature.values_per_row == pytest.approx(lengths.mean())
        assert feature.full_rows == (pytest.approx(np.mean(lengths == 3)) if name == "tags" else 0)
        assert (feature.ids, feature.top[0].share) == (len(counts), counts.max() / counts.sum())


def test_estimated_collisions(log):
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
    summary = inspect_log(log)
    features = {feature.name: feature for feature in summary.features}
    assert features["device"].shared is None and features["price"].values is None
    assert features["tags"].shared > 0.9
    line = next(line for line in log_warnings(summary) if "share a bucket" in line)
    assert line.startswith("hash collisions: in 2 features more than 10% of the values share a bucket")
    assert "buckets)" in line


ONE_USER = np.random.default_rng(0).integers(1, 4, (300, len(SINGLE)))
ONE_USER[:, SINGLE.index("user")] = 7
FAULTY = np.where(np.arange(300) < 30, 7, np.arange(300) % 2)


@pytest.mark.parametrize(
    ("queries", "columns", "lines"),
    [
        (100, {"label": [0] * 300}, ["all labels are 0: there is nothing to learn"]),
        (100, {"label": [1] * 300}, ["all labels are 1: there is nothing to learn"]),
        (100, {"largest": {"user": 1}}, ["feature user has no value in any row"]),
        (100, {"largest": {"tags": 2, "title": 2, "user_x_device": 3}}, []),
        (0, {}, ["the log has no rows"]),
        (100, {"label": FAULTY}, ["10.0% of the rows (30) are faulty: a label is neither 0 nor 1, a weight is none, "
                                  "or an id lies outside its feature's buckets"]),
        (100, {"ids": pack_ids(ONE_USER)}, ["feature user has one value only: nothing can be learned from it"]),
    ],
)  # fmt: skip
def test_an_unusual_log_has_its_warning_and_a_usual_one_none(tmp_path, queries, columns, lines):
    create_log(tmp_path / "log", SCHEMA)
    rows = table(START + np.arange(queries) * 1_000_000, **columns)
    publish_partition(tmp_path / "log", SCHEMA, START, START + HOUR, rows)
    summary = inspect_log(tmp_path / "log")
    assert [text for text in log_warnings(summary) if "share a bucket" not in text] == lines
    assert all(f"warning: {text}" in inspection_text(summary) for text in lines)


def test_what_lies_beside_the_log_and_what_is_none(log, tmp_path):
    copy = shutil.copytree(log, tmp_path / "log")
    write_decisions(copy, "half", SamplingConfig(non_click_rate=0.5))
    ids = np.arange(180)
    teacher = pa.table({"example_id": ids, "logit": ids / 9})
    write_sidecar_partition(copy, "teacher", read_manifests(copy)[0], teacher)
    half, teacher = inspect_log(copy).sidecars
    assert (half.name, half.sample, half.partitions, half.rows) == ("half", True, 4, 540)
    assert (teacher.sample, teacher.partitions, teacher.columns) == (False, 1, ("example_id", "logit"))
    text = inspection_text(inspect_log(copy))
    assert "teacher: columns example_id, logit; 180 rows, 1 of 4 partitions" in text
    shutil.rmtree(copy)
    (copy / "checkpoints").mkdir(parents=True)
    shutil.copy(log / "schema.json", copy)
    with pytest.raises(InputError, match="is a run directory: name the log that it was trained on"):
        inspect_log(copy)


def test_ctr_inspect_prints_text_and_json(log, capsys):
    assert main(["inspect", str(log)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(f"{log}: 540 rows, 180 queries, ") and "\nwarning: 1 gap between partitions" in out
    assert main(["inspect", str(log), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["rows"] == 540
    assert [feature["name"] for feature in printed["features"]] == list(SCHEMA.by_name)
    assert len(printed["warnings"]) == out.count("\nwarning: ")
    assert main(["inspect", str(log.parent)]) == 1
    assert "is not an example log" in capsys.readouterr().err


def counted(ids: np.ndarray, clicked: np.ndarray) -> dict[int, tuple[int, int]]:
    found, place = np.unique(ids, return_inverse=True)
    both = np.bincount(place), np.bincount(place, clicked).astype(int)
    return dict(zip(found.tolist(), zip(*(counts.tolist() for counts in both), strict=True), strict=True))


@pytest.mark.parametrize("kept", [50, 500, 20_000])
def test_counts_that_do_not_fit_say_how_far_off_they_are(kept):
    rng = np.random.default_rng(3)
    ids = np.minimum(rng.zipf(1.3, 20_000), 10**9)
    clicked = rng.random(len(ids)) < 0.2
    counts = IdCounts(kept)
    for places in np.array_split(np.arange(len(ids)), 35):
        counts.add(ids[places], clicked[places])
    exact = counted(ids, clicked)
    assert counts.distinct() == pytest.approx(len(exact), rel=0.04 if kept < 20_000 else 0)
    assert counts.exact == (kept == 20_000) == (not counts.shortfall)
    for one, occurrences, clicks in counts.top(10):
        assert 0 <= exact[one][0] - occurrences <= counts.shortfall
        assert clicks == exact[one][1] or not counts.exact
    # The most frequent one was never dropped.
    assert counts.top(1) == [(1, *exact[1])]


def test_what_an_id_lost_each_time_adds_up():
    counts = IdCounts(2)
    for times in (1, 2):
        ids = np.repeat([1, 2, 3], [3, 3, 2])
        counts.add(ids, ids < 0)
        # The two of the rarest id are dropped each time.
        assert (counts.shortfall, counts.top(3)) == (2 * times, [(1, 3 * times, 0), (2, 3 * times, 0)])
