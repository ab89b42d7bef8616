"""Sampling a log: the sidecar of decisions, the smaller log, what they are bound to, and what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctr.config import parse_model
from ctr.data import sample_log
from ctr.data.ids.tables import pack_table
from ctr.data.joined_sidecar import JoinedSidecar
from ctr.data.log import Manifest, create_log, read_manifests, read_schema
from ctr.data.reader import read_rows
from ctr.data.sample_log import applied_samplings, write_decisions, write_sampled_log
from ctr.data.sampling import SamplingConfig, decide
from ctr.data.schema import Schema
from ctr.data.shards import publish_partition, read_shard, shard_schema
from ctr.data.sidecar import list_sidecars, read_sidecar_partition, write_sidecar_partition
from ctr.eval.logistic import row_logloss
from ctr.io.errors import InputError

STEP = 10**6
SIZES = (40, 0, 60, 50)
SCHEMA = parse_model(
    Schema,
    {
        "features": [
            {"kind": "category", "name": "place", "source": "place", "vocabulary": ["1", "2", "3", "4"]},
            {"kind": "category", "name": "device", "source": "device", "buckets": 1000},
            {"kind": "number", "name": "height", "source": "height", "boundaries": [10, 20, 30]},
            {"kind": "text", "name": "words", "source": "words", "buckets": 50},
            {"kind": "cross", "name": "place_device", "of": ["place", "device"], "buckets": 100_000},
        ]
    },
    "test",
)
# The same, but where there can be, ids that grow.
GROWING = Schema(
    features=tuple(
        feature.model_copy(update={"buckets": None})
        if feature.name in ("device", "words", "place_device")
        else feature
        for feature in SCHEMA.features
    )
)


def make_config(**content: Any) -> SamplingConfig:
    return parse_model(SamplingConfig, content, "test")


def raw_columns(partition: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(100 + partition)
    rows = SIZES[partition]
    return {
        "place": rng.integers(1, 5, rows).astype(str),
        "device": np.array([f"d{number}" for number in rng.integers(0, 6, rows)], str),
        "height": rng.uniform(0, 40, rows),
        "words": np.array([" ".join(f"w{n}" for n in range(row % 4)) for row in range(rows)], str),
    }


def publish(log: Path, partition: int, shard_rows: int = 25, schema: Schema = SCHEMA) -> Manifest:
    rng = np.random.default_rng(partition)
    rows = SIZES[partition]
    query = np.arange(rows) // 3
    time = partition * STEP + query * 1000
    keys = pa.table(
        {
            "query_time": time,
            "timestamp": time + 1,
            "query_id": query + 1000 * partition,
            "example_id": np.arange(rows) + 1000 * partition,
            "label": rng.integers(0, 2, rows),
            # Neither weight is 1, and the two differ.
            "train_weight": rng.uniform(0.5, 3, rows).astype(np.float32),
            "metric_weight": rng.uniform(0.5, 3, rows).astype(np.float32),
        }
    )
    create_log(log, schema)
    packed = pack_table(schema, keys, pa.table(raw_columns(partition)))
    start = partition * STEP
    return publish_partition(log, schema, start, start + STEP, packed, {"seen": 7}, shard_rows)


def column(log: Path, name: str) -> np.ndarray:
    """A column of a log, over all its partitions."""
    parts = [getattr(block, name) for block in read_rows(log, read_schema(log), read_manifests(log))]
    return np.concatenate(parts)


def table_of(log: Path, manifest: Manifest) -> pa.Table:
    tables = [read_shard(log, entry, read_schema(log)) for entry in manifest.shards]
    return pa.concat_tables([shard_schema(SCHEMA).empty_table(), *tables])


def decisions_of(log: Path, name: str) -> dict[str, np.ndarray]:
    """The columns of a sidecar over all partitions of its log."""
    tables = [read_sidecar_partition(log, name, manifest) for manifest in read_manifests(log)]
    whole = pa.concat_tables(tables)
    return {key: whole.column(key).to_numpy() for key in whole.column_names}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def add_teacher(log: Path, name: str = "teacher", missing: tuple[int, ...] = ()) -> None:
    """Logits for all rows; NaN for those with a row number of the whole log among ``missing``."""
    first = 0
    for manifest in read_manifests(log):
        ids = table_of(log, manifest).column("example_id").to_numpy()
        logit = np.random.default_rng(50 + first).normal(-1, 2, len(ids)).astype(np.float32)
        logit[[row - first for row in missing if first <= row < first + len(ids)]] = np.nan
        first += len(ids)
        write_sidecar_partition(log, name, manifest, pa.table({"example_id": ids, "logit": logit}))


@pytest.fixture(scope="module")
def made_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four partitions, the second empty, with the sidecars teacher (whole) and part (one partition)."""
    folder = tmp_path_factory.mktemp("sample") / "log"
    manifests = [publish(folder, partition) for partition in range(4)]
    add_teacher(folder)
    ids = table_of(folder, manifests[2]).column("example_id").to_numpy()
    # In another order than the log's.
    part = pa.table({"example_id": ids[::-1], "probability": ids[::-1] / 1e4})
    write_sidecar_partition(folder, "part", manifests[2], part)
    return folder


@pytest.fixture
def log(made_log: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made_log, tmp_path / "log")


LOW_LOSS = {"teacher": "teacher", "max_loss": 0.2}
UNSEEN = {"feature": "place", "values": [3, "4"]}
ALL_RULES = {
    "non_click_rate": 0.5,
    "uninformative": {"rate": 0.25, "low_loss": LOW_LOSS, "low_visibility": UNSEEN},
}


def expected_probability(log: Path) -> np.ndarray:
    """Of ``ALL_RULES``, from the raw values."""
    raw = np.concatenate([raw_columns(partition)["place"] for partition in range(4)])
    click = column(log, "label") == 1
    loss = row_logloss(click, decisions_of(log, "teacher")["logit"].astype(np.float64))
    rare = (loss < 0.2) | np.isin(raw, ["3", "4"])
    return np.where(click, 1, 0.5) * np.where(rare, 0.25, 1)


# ---------------------------------------------------------------- the sidecar


def test_the_sidecar_holds_the_decisions_on_every_row(log):
    result = write_decisions(log, "quarter", make_config(**ALL_RULES))
    found = decisions_of(log, "quarter")
    assert list(found) == ["example_id", "weight", "keep_probability", "kept"]
    assert [found[name].dtype for name in found] == [np.int64, np.float32, np.float32, np.bool_]
    assert np.array_equal(found["example_id"], column(log, "example_id"))
    probability = expected_probability(log)
    assert len(set(probability)) == 4
    assert np.array_equal(found["keep_probability"], probability.astype(np.float32))
    assert np.array_equal(found["weight"], np.where(found["kept"], 1 / probability, 0).astype(np.float32))
    assert 0 < found["kept"].mean() < 1
    assert (result.rows, result.partitions, result.faulty, result.outside_time_range) == (150, 4, 0, 0)
    assert list_sidecars(log) == ["part", "quarter", "teacher"]


def test_counts_are_those_of_the_sidecar(log):
    result = write_decisions(log, "quarter", make_config(**ALL_RULES))
    found = decisions_of(log, "quarter")
    click = column(log, "label") == 1
    loss = row_logloss(click, decisions_of(log, "teacher")["logit"].astype(np.float64)) < 0.2
    unseen = np.isin(np.concatenate([raw_columns(k)["place"] for k in range(4)]), ["3", "4"])
    masks = {
        "all": np.ones(150, bool),
        "clicks": click,
        "non_clicks": ~click,
        "low_loss": loss,
        "low_visibility": unseen,
        "both": loss & unseen,
        "uninformative": loss | unseen,
    }
    content = json.loads(json.dumps(result.as_dict()))
    assert list(content["conditions"]) == list(masks)
    for name, mask in masks.items():
        kept = found["kept"] & mask
        assert mask.any()
        assert content["conditions"][name] == {
            "rows": mask.sum(),
            "kept": kept.sum(),
            "kept_fraction": kept.sum() / mask.sum(),
            "weight_sum": found["weight"][mask].sum(dtype=np.float64),
        }
    text = result.as_text()
    assert all(name in text for name in masks)
    assert "150 rows in, 4 partitions written" in text


def test_the_same_command_again_gives_the_same_bytes(log, tmp_path):
    write_decisions(log, "quarter", make_config(**ALL_RULES))
    first = contents(log)
    result = write_decisions(log, "quarter", make_config(**ALL_RULES))
    assert contents(log) == first
    assert result.partitions == 4
    # And beside a copy of the log, with other shards: the decisions follow from the rows.
    other = tmp_path / "other"
    for partition in range(4):
        publish(other, partition, shard_rows=10)
    add_teacher(other)
    write_decisions(other, "quarter", make_config(**ALL_RULES))
    assert len(list((other / "shards").iterdir())) > len(list((log / "shards").iterdir()))
    for name, values in decisions_of(other, "quarter").items():
        assert np.array_equal(values, decisions_of(log, "quarter")[name])


@pytest.mark.parametrize(
    ("smaller", "killed_in"),
    [(False, "write_sidecar_partition"), (True, "publish_partition"), (True, "write_sidecar_partition")],
)
@pytest.mark.parametrize("calls", [0, 1, 3])
def test_what_was_cut_off_is_completed_to_the_same_bytes(
    log, tmp_path, monkeypatch, smaller, killed_in, calls
):
    def sample(folder: Path) -> None:
        if smaller:
            write_sampled_log(folder, "quarter", make_config(**ALL_RULES), folder.parent / "small")
        else:
            write_decisions(folder, "quarter", make_config(**ALL_RULES))

    whole = shutil.copytree(log, tmp_path / "whole" / "log")
    sample(whole)
    publish_one = getattr(sample_log, killed_in)
    done = []

    def until_killed(*arguments: Any) -> Any:
        if len(done) == calls:
            raise KeyboardInterrupt
        done.append(arguments)
        return publish_one(*arguments)

    def made(folder: Path) -> dict[str, dict[str, bytes]]:
        return {name: contents(folder / name) for name in ("log", "small")}

    with monkeypatch.context() as patch:
        patch.setattr(sample_log, killed_in, until_killed)
        with pytest.raises(KeyboardInterrupt):
            sample(log)
    assert made(log.parent) != made(whole.parent)
    sample(log)
    assert made(log.parent) == made(whole.parent)


def test_partitions_that_were_added_since_are_sampled(tmp_path):
    log = tmp_path / "log"
    config = make_config(non_click_rate=0.5)
    for partition in range(4):
        publish(log, partition)
        result = write_decisions(log, "half", config)
        small = write_sampled_log(log, "half", config, tmp_path / "small")
        assert result.partitions == small.partitions == partition + 1
    kept = decisions_of(log, "half")["kept"]
    assert np.array_equal(column(tmp_path / "small", "example_id"), column(log, "example_id")[kept])


def test_one_name_is_one_configuration(log):
    write_decisions(log, "half", make_config(non_click_rate=0.5))
    before = contents(log)
    with pytest.raises(
        InputError, match=r"half was started with another configuration \(non_click_rate was 0\.5, is 0\.4\)"
    ):
        write_decisions(log, "half", make_config(non_click_rate=0.4))
    with pytest.raises(InputError, match=r"salt was '1', is '2'"):
        write_decisions(log, "half", make_config(non_click_rate=0.5, salt="2"))
    # Also where the first partition would come out the same.
    late = {"end": "1970-01-01T00:00:03.5"}
    with pytest.raises(InputError, match=r"time_range\.end was None, is '1970-01-01T00:00:03\.500000Z'"):
        write_decisions(log, "half", make_config(non_click_rate=0.5, time_range=late))
    with pytest.raises(InputError, match="holds something other than sampling decisions"):
        write_decisions(log, "teacher", make_config(non_click_rate=0.5))
    with pytest.raises(InputError, match=r"non_click_rate was 0\.5, is 0\.4"):
        write_sampled_log(log, "half", make_config(non_click_rate=0.4), log.parent / "small")
    assert contents(log) == before
    assert not (log.parent / "small").exists()


def test_a_name_taken_before_anything_was_published(log):
    # The configuration stands first: another one cannot slip in before the first partition.
    write_decisions(log, "half", make_config(non_click_rate=0.5))
    for path in (log / "sidecars" / "half").iterdir():
        if path.name != "sampling.yaml":
            path.unlink()
    with pytest.raises(InputError, match=r"non_click_rate was 0\.5, is 0\.4"):
        write_decisions(log, "half", make_config(non_click_rate=0.4))


# ---------------------------------------------------------------- the smaller log


def test_the_smaller_log_is_the_kept_rows(log, tmp_path):
    small = tmp_path / "small"
    config = make_config(**ALL_RULES)
    write_decisions(log, "quarter", config)
    result = write_sampled_log(log, "quarter", config, small)
    assert read_schema(small) == read_schema(log)
    found = decisions_of(log, "quarter")
    first = 0
    manifests = read_manifests(log)
    sampled = read_manifests(small)
    assert [(m.start, m.end) for m in sampled] == [(m.start, m.end) for m in manifests]
    for manifest, smaller in zip(manifests, sampled, strict=True):
        rows = slice(first, first + manifest.rows)
        first += manifest.rows
        table, weight = table_of(log, manifest), found["weight"][rows]
        expected = table.filter(pa.array(found["kept"][rows]))
        for name in ("train_weight", "metric_weight"):
            values = (table.column(name).to_numpy() * weight)[found["kept"][rows]]
            at = expected.column_names.index(name)
            expected = expected.set_column(at, table.schema.field(name), pa.array(values))
        assert table_of(small, smaller).equals(expected)
        assert smaller.counters == {
            "seen": 7,
            "rows_before_sampling": manifest.rows,
            "faulty_rows_dropped": 0,
        }
    assert result.conditions["all"].kept == found["kept"].sum() == sum(m.rows for m in sampled) > 0
    # The weighted clicks and rows: estimates of those of the log, by the weights alone.
    ratio = column(small, "train_weight").sum() / column(log, "train_weight").sum()
    assert 0.6 < ratio < 1.4


def test_sidecars_are_carried_along(log, tmp_path):
    small = tmp_path / "small"
    write_decisions(log, "tenth", make_config(non_click_rate=0.1, salt="x"))
    result = write_sampled_log(log, "quarter", make_config(**ALL_RULES), small)
    # Decisions are not: neither these, which are in the weights, nor others.
    assert list_sidecars(small) == ["part", "teacher"]
    assert dict(result.sidecars) == {"part": 1, "teacher": 4}
    assert result.as_dict()["sidecars"] == {"part": 1, "teacher": 4}
    ids, times = column(small, "example_id"), column(small, "query_time")
    for name, value in (("teacher", "logit"), ("part", "probability")):
        before = JoinedSidecar(log, name, [value]).at(times, ids)
        after = JoinedSidecar(small, name, [value]).at(times, ids)
        assert np.array_equal(after["found"], before["found"])
        assert np.array_equal(after[value], before[value], equal_nan=True)
    assert np.array_equal(decisions_of(small, "teacher")["example_id"], ids)
    # A sidecar that came later is carried along by the same command.
    add_teacher(log, "second")
    again = write_sampled_log(log, "quarter", make_config(**ALL_RULES), small)
    assert dict(again.sidecars) == {"part": 1, "second": 4, "teacher": 4}


def test_other_folders_are_left_alone(log, tmp_path):
    config = make_config(non_click_rate=0.5)
    before = contents(log)
    with pytest.raises(
        InputError, match="is a log that was not made by sampling: use another output directory"
    ):
        write_sampled_log(log, "half", config, log)
    other = shutil.copytree(log, tmp_path / "other")
    with pytest.raises(
        InputError, match="is a log that was not made by sampling: use another output directory"
    ):
        write_sampled_log(log, "half", config, other)
    (tmp_path / "filled").mkdir()
    (tmp_path / "filled" / "x").touch()
    with pytest.raises(InputError, match="is neither empty nor an example log"):
        write_sampled_log(log, "half", config, tmp_path / "filled")
    with pytest.raises(InputError, match="a name consists of letters"):
        write_sampled_log(log, "a/b", config, tmp_path / "small")
    assert contents(log) == contents(other) == before
    assert not (tmp_path / "small").exists()
    write_sampled_log(log, "half", config, tmp_path / "small")
    with pytest.raises(InputError, match=r"config\.non_click_rate was 0\.5, is 0\.4"):
        write_sampled_log(log, "half", make_config(non_click_rate=0.4), tmp_path / "small")
    with pytest.raises(InputError, match="name was 'half', is 'other'"):
        write_sampled_log(log, "other", config, tmp_path / "small")


def test_a_salt_is_used_once(log, tmp_path):
    small, smaller = tmp_path / "small", tmp_path / "smaller"
    half, again = make_config(non_click_rate=0.5), make_config(non_click_rate=0.4, salt="2")
    write_sampled_log(log, "half", half, small)
    assert [(one.name, one.config) for one in applied_samplings(small)] == [("half", half)]
    assert applied_samplings(log) == ()
    message = "small was made by the sampling half with the same salt '1'.*use another salt"
    with pytest.raises(InputError, match=message):
        write_decisions(small, "more", make_config(non_click_rate=0.4))
    with pytest.raises(InputError, match=message):
        write_sampled_log(small, "more", make_config(non_click_rate=0.4), smaller)
    write_decisions(small, "more", again)
    write_sampled_log(small, "more", again, smaller)
    assert [one.name for one in applied_samplings(smaller)] == ["half", "more"]
    with pytest.raises(InputError, match="with the same salt '1'"):
        write_decisions(smaller, "third", half)
    with pytest.raises(InputError, match="with the same salt '2'"):
        write_decisions(smaller, "third", again)
    # The two weights multiply; the rows of the first log stay on record.
    ids = column(log, "example_id")
    place = {number: row for row, number in enumerate(ids.tolist())}
    rows = [place[number] for number in column(smaller, "example_id").tolist()]
    factor = np.where(column(log, "label")[rows] == 1, 1, 5)
    np.testing.assert_allclose(
        column(smaller, "train_weight"), column(log, "train_weight")[rows] * factor, rtol=1e-6
    )
    assert [m.counters["rows_before_sampling"] for m in read_manifests(smaller)] == list(SIZES)


# ---------------------------------------------------------------- conditions


@pytest.mark.parametrize(
    ("feature", "values", "holds"),
    [
        ("place", [3, "4"], lambda raw: np.isin(raw["place"], ["3", "4"])),
        ("device", ["d1"], lambda raw: raw["device"] == "d1"),
        (
            "height",
            [15, 35.5],
            lambda raw: ((raw["height"] >= 10) & (raw["height"] < 20)) | (raw["height"] >= 30),
        ),
    ],
)
def test_low_visibility_by_raw_values(log, feature, values, holds):
    rule = {"rate": 0.5, "low_visibility": {"feature": feature, "values": values}}
    result = write_decisions(log, "s", make_config(uninformative=rule))
    expected = np.concatenate([holds(raw_columns(partition)) for partition in range(4)])
    assert 0 < expected.sum() < 150
    assert np.array_equal(decisions_of(log, "s")["keep_probability"], np.where(expected, 0.5, 1))
    assert result.conditions["low_visibility"].rows == expected.sum()


def test_ids_that_grow_are_sampled_as_those_with_buckets(log, tmp_path):
    grown = tmp_path / "grown"
    for partition in range(4):
        publish(grown, partition, schema=GROWING)
    seldom = {"rate": 0.25, "low_visibility": {"feature": "device", "values": ["d1", "d4", None]}}
    rule = make_config(non_click_rate=0.5, uninformative=seldom)
    found, expected = (
        write_sampled_log(one, "s", rule, one.parent / f"{one.name}-s") for one in (grown, log)
    )
    assert found.as_dict()["conditions"] == expected.as_dict()["conditions"]
    assert found.conditions["low_visibility"].rows > 20
    smaller, other = tmp_path / "grown-s", tmp_path / "log-s"
    for name in ("example_id", "train_weight", "metric_weight"):
        assert np.array_equal(column(smaller, name), column(other, name))
    assert 0 < len(column(smaller, "label")) < sum(SIZES)
    # The rows that are kept are kept as they were.
    place = {number: row for row, number in enumerate(column(grown, "example_id").tolist())}
    rows = [place[number] for number in column(smaller, "example_id").tolist()]
    assert read_schema(smaller) == GROWING
    assert np.array_equal(column(smaller, "ids"), column(grown, "ids")[rows])
    wrong = {"rate": 0.5, "low_visibility": {"feature": "place_device", "values": [1]}}
    with pytest.raises(InputError, match="place_device is a cross"):
        write_decisions(grown, "t", make_config(uninformative=wrong))


@pytest.mark.parametrize(
    ("feature", "values", "message"),
    [
        ("position", [1], "position is not a feature of the log; allowed: place, device, height"),
        ("words", ["w1"], "words is a text"),
        ("place_device", [1], "place_device is a cross"),
        ("place", [3, 5], "'5' is not in its vocabulary; allowed: 1, 2, 3, 4"),
        ("place", [1.5], "feature place: .1.5. is not in its vocabulary"),
        ("height", ["tall"], "'tall' is not a number"),
    ],
)
def test_values_that_the_log_does_not_have(log, feature, values, message):
    rule = {"rate": 0.5, "low_visibility": {"feature": feature, "values": values}}
    with pytest.raises(InputError, match=f"^uninformative.low_visibility: .*{message}"):
        write_decisions(log, "s", make_config(uninformative=rule))
    assert "s" not in list_sidecars(log) and not (log / "sidecars" / "s").exists()


def test_a_teacher_beside_another_log(log, tmp_path):
    """The teacher saw everything; the log that is sampled holds part of it, without a sidecar of its own."""
    part = tmp_path / "part"
    write_sampled_log(log, "half", make_config(non_click_rate=0.5), part)
    shutil.rmtree(part / "sidecars")
    rule = {"rate": 0.25, "low_loss": {**LOW_LOSS, "log": str(log)}}
    write_decisions(part, "low", make_config(salt="2", uninformative=rule))
    logit = dict(zip(column(log, "example_id").tolist(), decisions_of(log, "teacher")["logit"], strict=True))
    ids = column(part, "example_id")
    loss = row_logloss(
        column(part, "label") == 1, np.array([logit[number] for number in ids.tolist()], float)
    )
    expected = np.where(loss < 0.2, 0.25, 1)
    assert len(set(expected)) == 2
    assert np.array_equal(decisions_of(part, "low")["keep_probability"], expected)


def test_rates_by_a_teacher_s_gradient(log, tmp_path):
    config = make_config(gradient={"teacher": "teacher", "threshold": 0.4, "lowest_rate": 0.2})
    result = write_decisions(log, "hard", config)
    found = decisions_of(log, "hard")
    logit = decisions_of(log, "teacher")["logit"].astype(np.float64)
    size = np.abs((column(log, "label") == 1) - 1 / (1 + np.exp(-logit)))
    expected = np.clip(size / 0.4, 0.2, 1)
    assert len(set(expected)) > 5
    np.testing.assert_allclose(found["keep_probability"], expected, rtol=1e-6)
    assert result.conditions["low_gradient"].rows == (size < 0.4).sum() > 0
    write_sampled_log(log, "hard", config, tmp_path / "small")
    assert column(tmp_path / "small", "example_id").tolist() == found["example_id"][found["kept"]].tolist()


def test_strata_keep_what_rates_add_up_to(log, tmp_path):
    config = make_config(non_click_rate=0.4, stratify_by="device")
    write_decisions(log, "even", config)
    found, click = decisions_of(log, "even"), column(log, "label") == 1
    raw = np.concatenate([raw_columns(partition)["device"] for partition in range(4)])
    assert np.array_equal(found["keep_probability"], np.where(click, np.float32(1), np.float32(0.4)))
    assert np.array_equal(found["weight"] > 0, found["kept"])
    for device in np.unique(raw):
        rows = raw == device
        kept, expected = (np.cumsum(found[name][rows], dtype=float) for name in ("kept", "keep_probability"))
        assert np.abs(kept - expected).max() < 1 + 1e-5
    assert found["kept"][click].all() and 0 < found["kept"][~click].mean() < 1
    # Not what each example's own hash decides.
    write_decisions(log, "alone", make_config(non_click_rate=0.4))
    assert not np.array_equal(found["kept"], decisions_of(log, "alone")["kept"])
    # The decisions follow from the rows, whatever the shards are.
    other = tmp_path / "other"
    for number in range(4):
        publish(other, number, shard_rows=10)
    write_decisions(other, "even", config)
    assert np.array_equal(decisions_of(other, "even")["kept"], found["kept"])
    write_sampled_log(log, "even", config, tmp_path / "small")
    assert column(tmp_path / "small", "example_id").tolist() == found["example_id"][found["kept"]].tolist()


def test_strata_go_on_in_later_partitions_and_refuse_earlier_ones(tmp_path):
    whole, grown = tmp_path / "whole", tmp_path / "grown"
    config = make_config(non_click_rate=0.4, stratify_by="device")
    for number in range(4):
        publish(whole, number)
    write_decisions(whole, "even", config)
    for number in (2, 3):
        publish(grown, number)
    write_sampled_log(grown, "even", config, tmp_path / "small")
    write_decisions(grown, "even", config)
    # One without rows changes nothing.
    publish(grown, 1)
    assert write_decisions(grown, "even", config).partitions == 3
    publish(grown, 0)
    message = r"the partition \[0, 1000000\) was added before others that are sampled.*use another name"
    before = contents(grown), contents(tmp_path / "small")
    with pytest.raises(InputError, match=message):
        write_decisions(grown, "even", config)
    with pytest.raises(InputError, match=message):
        write_sampled_log(grown, "even", config, tmp_path / "small")
    # Nor would a smaller log that begins now have the decisions of the sidecar.
    with pytest.raises(InputError, match=message):
        write_sampled_log(grown, "even", config, tmp_path / "new")
    assert (contents(grown), contents(tmp_path / "small")) == before
    assert not (tmp_path / "new").exists()
    # One that comes after them is decided as if it had been there.
    later = tmp_path / "later"
    for number in range(3):
        publish(later, number)
    write_decisions(later, "even", config)
    publish(later, 3)
    write_decisions(later, "even", config)
    assert np.array_equal(decisions_of(later, "even")["kept"], decisions_of(whole, "even")["kept"])


@pytest.mark.parametrize("name", ["words", "nothing"])
def test_strata_of_what_has_no_single_value(log, name):
    allowed = "place, device, height, place_device"
    message = f"^stratify_by: {name} is not a single-valued feature of .*; allowed: {allowed}$"
    with pytest.raises(InputError, match=message):
        write_decisions(log, "s", make_config(non_click_rate=0.5, stratify_by=name))
    assert not (log / "sidecars" / "s").exists()


def test_missing_teacher_values_are_counted_and_nothing_is_written(log):
    add_teacher(log, "gaps", missing=(5, 41, 149))
    rule = {"rate": 0.25, "low_loss": {"teacher": "gaps", "max_loss": 0.2}}
    ids = column(log, "example_id")
    message = (
        f"^teacher gaps has no value for 3 of 150 rows, first: example_id {ids[5]} \\(row 5 of the log\\), "
    )
    with pytest.raises(InputError, match=message):
        write_decisions(log, "s", make_config(uninformative=rule))
    with pytest.raises(InputError, match=message):
        write_sampled_log(log, "s", make_config(uninformative=rule), log.parent / "small")
    with pytest.raises(InputError, match=message):
        write_decisions(log, "s", make_config(gradient={"teacher": "gaps", "threshold": 0.2}))
    assert not (log / "sidecars" / "s").exists() and not (log.parent / "small").exists()
    # What lies outside the time range needs none.
    inside = {"start": "1970-01-01T00:00:00.003", "end": "1970-01-01T00:00:02"}
    write_decisions(log, "s", make_config(uninformative=rule, time_range=inside))
    with pytest.raises(
        InputError, match="has no sidecar nobody; the sidecars beside it: gaps, part, s, teacher"
    ):
        write_decisions(
            log, "t", make_config(uninformative={**rule, "low_loss": {**LOW_LOSS, "teacher": "nobody"}})
        )
    with pytest.raises(InputError, match="has no column logit; it has probability"):
        write_decisions(
            log, "t", make_config(uninformative={**rule, "low_loss": {**LOW_LOSS, "teacher": "part"}})
        )


# ---------------------------------------------------------------- time ranges and edges


def test_a_time_range(log, tmp_path):
    times = column(log, "query_time")
    # From a time inside the first partition to one inside the third.
    start, end = int(times[12]), int(times[70])
    assert start % STEP and end % STEP and 0 < start < STEP and 2 * STEP < end < 3 * STEP
    text = [f"1970-01-01T00:00:{time / STEP:09.6f}" for time in (start, end)]
    everywhere, inside = (
        make_config(**ALL_RULES),
        make_config(**ALL_RULES, time_range={"start": text[0], "end": text[1]}),
    )
    write_decisions(log, "all", everywhere)
    result = write_decisions(log, "range", inside)
    mask = (times >= start) & (times < end)
    whole, part = decisions_of(log, "all"), decisions_of(log, "range")
    for name in ("weight", "keep_probability", "kept"):
        assert np.array_equal(part[name], np.where(mask, whole[name], 0)), name
    assert result.outside_time_range == (~mask).sum()
    assert result.conditions["all"].rows == mask.sum()
    small = write_sampled_log(log, "range", inside, tmp_path / "small")
    # The last partition lies outside: it is not published.
    assert [m.start // STEP for m in read_manifests(tmp_path / "small")] == [0, 1, 2]
    assert np.array_equal(column(tmp_path / "small", "example_id"), column(log, "example_id")[part["kept"]])
    assert small.conditions == result.conditions
    assert (small.rows, small.outside_time_range) == (result.rows, result.outside_time_range)
    assert f"dropped: {(~mask).sum()} rows outside the time range" in small.as_text()
    # A query is inside or outside as a whole.
    queries = column(log, "query_id")
    assert not set(queries[mask]) & set(queries[~mask])


def test_nothing_inside_the_time_range(log):
    late = make_config(time_range={"start": "2026-01-05"})
    message = (
        "nothing inside time_range: its partitions reach from 1970-01-01T00:00:00Z to 1970-01-01T00:00:04Z"
    )
    with pytest.raises(InputError, match=message):
        write_decisions(log, "s", late)
    create_log(log.parent / "bare", SCHEMA)
    with pytest.raises(InputError, match="it has no partition"):
        write_decisions(log.parent / "bare", "s", make_config())
    with pytest.raises(InputError, match="is not an example log"):
        write_decisions(log.parent / "nowhere", "s", make_config())


def test_an_partition_with_nothing_kept_and_one_example(tmp_path):
    log, small = tmp_path / "log", tmp_path / "small"
    create_log(log, SCHEMA)
    one = table_of_one(example_id=5)
    publish_partition(log, SCHEMA, 0, STEP, one)
    write_sidecar_partition(log, "t", read_manifests(log)[0], pa.table({"example_id": [5], "logit": [0.5]}))
    ids = np.array([5])
    dropped = next(
        config
        for config in (make_config(non_click_rate=0.5, salt=f"{salt}") for salt in range(100))
        if not decide(config, ids, np.zeros(1, np.int64), np.zeros(1)).kept[0]
    )
    result = write_sampled_log(log, "s", dropped, small)
    (manifest,) = read_manifests(small)
    assert (manifest.rows, manifest.shards) == (0, ())
    assert read_sidecar_partition(small, "t", manifest).num_rows == 0
    assert result.conditions["clicks"].kept_fraction is None
    assert result.conditions["non_clicks"].kept_fraction == 0
    write_decisions(log, "s", dropped)
    assert {name: values.tolist() for name, values in decisions_of(log, "s").items()} == {
        "example_id": [5],
        "weight": [0],
        "keep_probability": [0.5],
        "kept": [False],
    }


def table_of_one(example_id: int, label: int = 0, train_weight: float = 1.0) -> pa.Table:
    keys = pa.table(
        {
            "query_time": [1],
            "timestamp": [1],
            "query_id": [1],
            "example_id": [example_id],
            "label": [label],
            "train_weight": [1.0],
            "metric_weight": [1.0],
        }
    )
    raw = pa.table({"place": ["1"], "device": ["d"], "height": [1.0], "words": [""]})
    table = pack_table(SCHEMA, keys, raw)
    at = table.column_names.index("train_weight")
    return table.set_column(at, table.schema.field(at), pa.array([train_weight], pa.float32()))


def test_faulty_rows_are_dropped_and_counted(tmp_path):
    """No teacher has scored them, so they must not stop a rule by loss either."""
    log, small = tmp_path / "log", tmp_path / "small"
    create_log(log, SCHEMA)
    rows = pa.concat_tables([table_of_one(5), table_of_one(6, train_weight=np.nan), table_of_one(7)])
    publish_partition(log, SCHEMA, 0, STEP, rows)
    (manifest,) = read_manifests(log)
    logit = pa.array([-1.0, np.nan, 3.0], pa.float32())
    write_sidecar_partition(log, "teacher", manifest, pa.table({"example_id": [5, 6, 7], "logit": logit}))
    config = make_config(uninformative={"rate": 1.0, "low_loss": LOW_LOSS})
    result = write_decisions(log, "s", config)
    assert decisions_of(log, "s")["weight"].tolist() == [1, 0, 1]
    assert (result.rows, result.faulty, result.conditions["all"].rows) == (3, 1, 2)
    assert "dropped: 1 faulty rows" in result.as_text()
    write_sampled_log(log, "s", config, small)
    assert column(small, "example_id").tolist() == [5, 7]
    assert read_manifests(small)[0].counters == {"rows_before_sampling": 3, "faulty_rows_dropped": 1}


def test_progress_covers_all_that_is_read(log, tmp_path):
    for config, passes in ((make_config(), 1), (make_config(**ALL_RULES), 2)):
        for time_range in ({}, {"end": "1970-01-01T00:00:02"}):
            config = make_config(**{**config.model_dump(mode="json"), "time_range": time_range})
            name = f"s{passes}{len(time_range)}"
            seen: list[int] = []
            write_decisions(log, name, config, seen.append)
            assert sum(seen) == passes * 150
            seen.clear()
            write_sampled_log(log, name, config, tmp_path / name, seen.append)
            assert sum(seen) == passes * 150


def test_damage_stops_it(log):
    shard = sorted((log / "shards").iterdir())[-1]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(InputError, match=f"{shard.name}: damaged"):
        write_decisions(log, "s", make_config(non_click_rate=0.5))
