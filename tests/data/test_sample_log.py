"""Sampling a log: the sidecar of decisions, the smaller log, what they are bound to, and what is refused."""

import json
import shutil
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctr.config import parse_model
from ctr.data import sample_log
from ctr.data.features import Category, Text
from ctr.data.ids.values import feature_ids
from ctr.data.joined_sidecar import JoinedSidecar
from ctr.data.log import create_log, read_manifests, read_schema
from ctr.data.reader import join_rows, read_rows
from ctr.data.sample_log import applied_samplings, write_decisions, write_sampled_log
from ctr.data.sampling import SamplingConfig
from ctr.data.schema import Schema
from ctr.data.shards import pack_ids, publish_partition
from ctr.data.sidecar import list_sidecars, read_sidecar_partition, write_sidecar_partition
from ctr.eval.arrays import row_logloss
from ctr.io.hashing import uniform_hash
from hashed_rows import hashed_rows
from log_files import digests, refused, rows_of

STEP = 10**6
SIZES = (40, 0, 60, 50)
SCHEMA = Schema(
    features=(
        Category(name="place", source="place", vocabulary=("1", "2", "3", "4")),
        Category(name="device", source="device"),
        Text(name="words", source="words"),
    ),
    labels=("sale",),
)
DEVICES = feature_ids(SCHEMA, "device", [f"d{number}" for number in range(6)])


def make_config(**content: Any) -> SamplingConfig:
    return parse_model(SamplingConfig, content, "test")


def publish(log: Path, *partitions: int, shard_rows: int = 25) -> Path:
    """Queries of three rows; the id of a place is the number that is its value."""
    create_log(log, SCHEMA)
    for partition in partitions:
        rng, rows, start = np.random.default_rng(100 + partition), SIZES[partition], partition * STEP
        query = np.arange(rows) // 3
        columns = {
            "query_time": start + query * 1000,
            "query_id": query + 1000 * partition,
            "example_id": np.arange(rows) + 1000 * partition,
            "ids": pack_ids(np.stack([rng.integers(1, 5, rows), rng.choice(DEVICES, rows)], axis=1)),
        }
        table = hashed_rows(SCHEMA, rows, seed=partition, **columns)
        publish_partition(log, SCHEMA, start, start + STEP, table, {"seen": 7}, shard_rows)
    return log


def column(log: Path, name: str) -> np.ndarray:
    """A column of a log, over all its partitions."""
    blocks = [*read_rows(log, read_schema(log), read_manifests(log))]
    return getattr(join_rows(blocks), name)


def decisions_of(log: Path, name: str) -> dict[str, np.ndarray]:
    """The columns of a sidecar over all partitions of its log."""
    whole = pa.concat_tables([read_sidecar_partition(log, name, one) for one in read_manifests(log)])
    return {key: whole.column(key).to_numpy() for key in whole.column_names}


def places_of(log: Path, other: Path) -> list[int]:
    """Where in ``log`` the rows of ``other`` are."""
    place = {number: row for row, number in enumerate(column(log, "example_id").tolist())}
    return [place[number] for number in column(other, "example_id").tolist()]


def add_teacher(log: Path, name: str = "teacher", missing: tuple[int, ...] = ()) -> None:
    """Logits for all rows; NaN for those with a row number of the whole log among ``missing``."""
    logits = np.random.default_rng(50).normal(-1, 2, sum(SIZES)).astype(np.float32)
    logits[list(missing)] = np.nan
    first = 0
    for manifest in read_manifests(log):
        ids = rows_of(log, manifest)["example_id"] if manifest.rows else pa.array([], pa.int64())
        part = logits[first : first + manifest.rows]
        write_sidecar_partition(log, name, manifest, pa.table({"example_id": ids, "logit": part}))
        first += manifest.rows


@pytest.fixture(scope="module")
def made_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four partitions, the second empty, with the sidecars teacher (whole) and part (one partition)."""
    folder = publish(tmp_path_factory.mktemp("sample") / "log", 0, 1, 2, 3)
    add_teacher(folder)
    manifest = read_manifests(folder)[2]
    # In another order than the log's.
    ids = rows_of(folder, manifest)["example_id"].to_numpy()[::-1]
    write_sidecar_partition(folder, "part", manifest, pa.table({"example_id": ids, "probability": ids / 1e4}))
    return folder


@pytest.fixture
def log(made_log: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made_log, tmp_path / "log")


LOW_LOSS = {"teacher": "teacher", "max_loss": 0.2}
UNSEEN = {"feature": "device", "values": ["d1", "d4", None]}
UNINFORMATIVE = {"rate": 0.25, "low_loss": LOW_LOSS, "low_visibility": UNSEEN}
ALL_RULES = {"non_click_rate": 0.5, "uninformative": UNINFORMATIVE}
GRADIENT = {"gradient": {"teacher": "teacher", "threshold": 0.4, "lowest_rate": 0.2}}
STRATIFIED = {"non_click_rate": 0.4, "stratify_by": "device"}
HALF, STRATA = make_config(non_click_rate=0.5), make_config(**STRATIFIED)


def masks_of(log: Path) -> dict[str, np.ndarray]:
    """Of ``ALL_RULES``, from the raw values."""
    click = column(log, "label") == 1
    loss = row_logloss(click, decisions_of(log, "teacher")["logit"].astype(np.float64)) < 0.2
    unseen = np.isin(column(log, "ids")[:, 1], DEVICES[[1, 4]])
    masks = {"all": np.ones(150, bool), "clicks": click, "non_clicks": ~click, "low_loss": loss}
    return {**masks, "low_visibility": unseen, "both": loss & unseen, "uninformative": loss | unseen}


def test_the_sidecar_holds_the_decisions_on_every_row_and_they_are_counted(log):
    seen: list[int] = []
    result = write_decisions(log, "quarter", make_config(**ALL_RULES), seen.append)
    found, masks = decisions_of(log, "quarter"), masks_of(log)
    assert list(found) == ["example_id", "weight", "keep_probability", "kept"]
    assert [values.dtype for values in found.values()] == [np.int64, np.float32, np.float32, np.bool_]
    assert np.array_equal(found["example_id"], column(log, "example_id"))
    probability = np.where(masks["clicks"], 1, 0.5) * np.where(masks["uninformative"], 0.25, 1)
    assert len(set(probability)) == 4 and 0 < found["kept"].mean() < 1
    assert np.array_equal(found["keep_probability"], probability.astype(np.float32))
    assert np.array_equal(found["kept"], uniform_hash(found["example_id"], "1") < probability)
    assert np.array_equal(found["weight"], np.where(found["kept"], 1 / probability, 0).astype(np.float32))
    assert (result.rows, result.partitions, result.faulty, result.outside_time_range) == (150, 4, 0, 0)
    assert list_sidecars(log) == ["part", "quarter", "teacher"]
    # The teacher's logits are looked through before anything is decided.
    assert sum(seen) == 2 * 150
    content = json.loads(json.dumps(result.as_dict()))
    assert list(content["conditions"]) == list(masks)
    for name, mask in masks.items():
        rows, kept = np.count_nonzero(mask), np.count_nonzero(found["kept"] & mask)
        counts = {"rows": rows, "kept": kept, "kept_fraction": kept / rows}
        total = found["weight"][mask].sum(dtype=np.float64)
        assert content["conditions"][name] == {**counts, "weight_sum": total}
    text = result.as_text()
    assert all(name in text for name in masks) and "150 rows in, 4 partitions written" in text


@pytest.mark.parametrize("killed_in", ["publish_partition", "write_sidecar_partition"])
@pytest.mark.parametrize("calls", [0, 3])
def test_what_was_cut_off_is_completed_to_the_same_bytes(log, tmp_path, monkeypatch, killed_in, calls):
    def sample(folder: Path) -> None:
        config = make_config(**ALL_RULES)
        write_sampled_log(folder, "quarter", config, folder.parent / "small")
        write_decisions(folder, "quarter", config)

    whole = shutil.copytree(log, tmp_path / "whole" / "log")
    sample(whole)
    publish_one, done = getattr(sample_log, killed_in), []

    def until_killed(*arguments: Any, **options: Any) -> Any:
        if len(done) == calls:
            raise KeyboardInterrupt
        done.append(arguments)
        return publish_one(*arguments, **options)

    def made(folder: Path) -> list[dict[str, str]]:
        return [digests(folder / name) for name in ("log", "small")]

    with monkeypatch.context() as patch:
        patch.setattr(sample_log, killed_in, until_killed)
        with pytest.raises(KeyboardInterrupt):
            sample(log)
    assert made(log.parent) != made(whole.parent)
    sample(log)
    assert made(log.parent) == made(whole.parent)


def test_one_name_is_one_configuration_and_other_folders_are_left_alone(log, tmp_path):
    small, filled, other = tmp_path / "small", tmp_path / "filled", shutil.copytree(log, tmp_path / "other")
    filled.mkdir()
    (filled / "x").touch()
    write_decisions(log, "half", HALF)
    before, less = digests(log), make_config(non_click_rate=0.4)
    changed = r"half was started with another configuration \(non_click_rate was 0\.5, is 0\.4\)"
    # Also where the first partition would come out the same.
    late = make_config(non_click_rate=0.5, time_range={"end": "1970-01-01T00:00:03.5"})
    no_sample = "is a log that was not made by sampling: use another output directory"
    for message, name, config, out in (
        (changed, "half", less, None),
        (changed, "half", less, small),
        ("time_range.end was None, is '1970-01-01T00:00:03.50000", "half", late, None),
        ("holds something other than sampling decisions", "teacher", HALF, None),
        (no_sample, "half", HALF, log),
        (no_sample, "half", HALF, other),
        ("is neither empty nor an example log", "half", HALF, filled),
        ("a name consists of letters", "a/b", HALF, small),
    ):
        run, more = (write_sampled_log, (out,)) if out else (write_decisions, ())
        refused(message, run, log, name, config, *more)
    assert digests(log) == before and not small.exists() and not (other / "sidecars" / "half").exists()
    write_sampled_log(log, "half", HALF, small)
    refused("name was 'half', is 'other'", write_sampled_log, log, "other", HALF, small)
    # The configuration stands first: another one cannot slip in before the first partition.
    for path in (log / "sidecars" / "half").iterdir():
        if path.name != "sampling.yaml":
            path.unlink()
    refused(changed, write_decisions, log, "half", less)
    shutil.rmtree(log / "sidecars" / "half")
    refused(r"config\.non_click_rate was 0\.5, is 0\.4", write_sampled_log, log, "half", less, small)


@pytest.mark.parametrize("rules", [ALL_RULES, GRADIENT, STRATIFIED], ids=["conditions", "gradient", "strata"])
def test_the_smaller_log_is_the_kept_rows_with_both_weights_multiplied(log, tmp_path, rules):
    small, config = tmp_path / "small", make_config(**rules)
    decided, result = write_decisions(log, "s", config), write_sampled_log(log, "s", config, small)
    found, manifests, sampled = decisions_of(log, "s"), read_manifests(log), read_manifests(small)
    kept = found["kept"]
    assert read_schema(small) == read_schema(log)
    assert [(m.start, m.end) for m in sampled] == [(m.start, m.end) for m in manifests]
    for name in ("query_time", "timestamp", "query_id", "example_id", "label", "ids"):
        assert np.array_equal(column(small, name), column(log, name)[kept]), name
    for name in ("train_weight", "metric_weight"):
        assert np.array_equal(column(small, name), (column(log, name) * found["weight"])[kept]), name
    words = (column(folder, "multivalent")["words"] for folder in (log, small))
    before, after = ([part.tolist() for part in np.split(ids, ends[1:-1])] for ids, ends in words)
    assert after == list(compress(before, kept))
    # Further labels are those of their own log, whatever the reader knows.
    for labels in (("sale",), (), ("other",)):
        known = SCHEMA.model_copy(update={"labels": labels})
        rows = [join_rows([*read_rows(folder, known, read_manifests(folder))]) for folder in (log, small)]
        before, after = (one.joined["label:sale"] for one in rows)
        np.testing.assert_array_equal(after, before[kept])
        assert np.isnan(before).any() and set(before[~np.isnan(before)]) == {0, 1}
    for manifest, smaller in zip(manifests, sampled, strict=True):
        counts = {"rows_before_sampling": manifest.rows, "faulty_rows_dropped": 0}
        assert smaller.counters == {"seen": 7, **counts}
    assert result.conditions == decided.conditions
    assert result.conditions["all"].kept == kept.sum() == sum(m.rows for m in sampled) > 0


def test_sidecars_are_carried_along_but_decisions_are_not(log, tmp_path):
    small = tmp_path / "small"
    write_decisions(log, "tenth", make_config(non_click_rate=0.1, salt="x"))
    result = write_sampled_log(log, "quarter", make_config(**ALL_RULES), small)
    assert list_sidecars(small) == ["part", "teacher"]
    assert dict(result.sidecars) == result.as_dict()["sidecars"] == {"part": 1, "teacher": 4}
    ids, times = column(small, "example_id"), column(small, "query_time")
    for name, value in (("teacher", "logit"), ("part", "probability")):
        before, after = (JoinedSidecar(folder, name, [value]).at(times, ids) for folder in (log, small))
        assert np.array_equal(after["found"], before["found"])
        assert np.array_equal(after[value], before[value], equal_nan=True)
    assert np.array_equal(decisions_of(small, "teacher")["example_id"], ids)
    # One that came later is carried along by the same command.
    add_teacher(log, "second")
    again = write_sampled_log(log, "quarter", make_config(**ALL_RULES), small)
    assert dict(again.sidecars) == {"part": 1, "second": 4, "teacher": 4}


def test_a_salt_is_used_once_and_weights_multiply(log, tmp_path):
    small, smaller = tmp_path / "small", tmp_path / "smaller"
    same, again = make_config(non_click_rate=0.4), make_config(non_click_rate=0.4, salt="2")
    write_sampled_log(log, "half", HALF, small)
    assert [(one.name, one.config) for one in applied_samplings(small)] == [("half", HALF)]
    assert applied_samplings(log) == ()
    message = "small was made by the sampling half with the same salt '1'.*use another salt"
    refused(message, write_decisions, small, "more", same)
    refused(message, write_sampled_log, small, "more", same, smaller)
    write_decisions(small, "more", again)
    write_sampled_log(small, "more", again, smaller)
    assert [one.name for one in applied_samplings(smaller)] == ["half", "more"]
    for config in (HALF, again):
        refused(f"with the same salt '{config.salt}'", write_decisions, smaller, "third", config)
    rows = places_of(log, smaller)
    factor = np.where(column(log, "label")[rows] == 1, 1, 5)
    expected = column(log, "train_weight")[rows] * factor
    np.testing.assert_allclose(column(smaller, "train_weight"), expected, rtol=1e-6)
    # The rows of the first log stay on record.
    assert [m.counters["rows_before_sampling"] for m in read_manifests(smaller)] == list(SIZES)


def test_strata_refuse_a_partition_that_comes_before_decided_ones(tmp_path):
    grown = publish(tmp_path / "grown", 2, 3)
    write_sampled_log(grown, "even", STRATA, tmp_path / "small")
    write_decisions(grown, "even", STRATA)
    # One without rows changes nothing.
    publish(grown, 1)
    assert write_decisions(grown, "even", STRATA).partitions == 3
    publish(grown, 0)
    message = r"the partition \[0, 1000000\) was added before others that are sampled.*use another name"
    before = digests(grown), digests(tmp_path / "small")
    refused(message, write_decisions, grown, "even", STRATA)
    # Nor would a smaller log that begins now have the decisions of the sidecar.
    for out in (tmp_path / "small", tmp_path / "new"):
        refused(message, write_sampled_log, grown, "even", STRATA, out)
    assert (digests(grown), digests(tmp_path / "small")) == before and not (tmp_path / "new").exists()


def test_a_partition_that_comes_after_others_is_decided_as_if_it_had_been_there(tmp_path):
    whole, later = publish(tmp_path / "whole", 0, 1, 2, 3), tmp_path / "later"
    for number in range(4):
        publish(later, number)
        result = write_decisions(later, "even", STRATA)
        small = write_sampled_log(later, "even", STRATA, tmp_path / "small")
        assert result.partitions == small.partitions == number + 1
    write_decisions(whole, "even", STRATA)
    kept = decisions_of(whole, "even")["kept"]
    assert np.array_equal(decisions_of(later, "even")["kept"], kept)
    assert np.array_equal(column(tmp_path / "small", "example_id"), column(whole, "example_id")[kept])


def test_missing_teacher_values_are_counted_and_nothing_is_written(log):
    add_teacher(log, "gaps", missing=(5, 41, 149))
    small, rule = log.parent / "small", {"rate": 0.25, "low_loss": {"teacher": "gaps", "max_loss": 0.2}}
    example = column(log, "example_id")[5]
    message = f"^teacher gaps has no value for 3 of 150 rows, first: example_id {example} .row 5 of the "
    refused(message, write_decisions, log, "s", make_config(uninformative=rule))
    refused(message, write_sampled_log, log, "s", make_config(uninformative=rule), small)
    refused(message, write_decisions, log, "s", make_config(gradient={"teacher": "gaps", "threshold": 0.2}))
    assert not (log / "sidecars" / "s").exists() and not small.exists()
    # What lies outside the time range needs none.
    inside = {"start": "1970-01-01T00:00:00.003", "end": "1970-01-01T00:00:02"}
    write_decisions(log, "s", make_config(uninformative=rule, time_range=inside))


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"stratify_by": "words"}, "^stratify_by: words is not a single-valued .*; allowed: place, device$"),
        ({"gradient": {"teacher": "nobody", "threshold": 0.2}}, "no sidecar nobody; .* it: part, teacher$"),
        ({"gradient": {"teacher": "part", "threshold": 0.2}}, "has no column logit; it has probability"),
        # Which values a feature cannot have is tested with ``feature_ids``.
        (
            {"uninformative": {"rate": 0.5, "low_visibility": {"feature": "place", "values": [3, 5]}}},
            "^uninformative.low_visibility: .*'5' is not in its vocabulary; allowed: 1, 2, 3, 4",
        ),
        ({"time_range": {"start": "2026-01-05"}}, "inside time_range: .* from 1970-01-01T00:00:00Z to 1970-"),
    ],
)
def test_what_the_log_does_not_have_is_refused(log, rules, message):
    refused(message, write_decisions, log, "s", make_config(**rules))
    assert not (log / "sidecars" / "s").exists()


def test_a_time_range_drops_what_lies_outside_and_reweights_nothing_inside(log, tmp_path):
    times = column(log, "query_time")
    # From a time inside the first partition to one inside the third; the end is a query's own time.
    start, end = int(times[12]), int(times[70])
    assert start % STEP and end % STEP and 0 < start < STEP and 2 * STEP < end < 3 * STEP
    text = [f"1970-01-01T00:00:{time / STEP:09.6f}" for time in (start, end)]
    inside = make_config(**ALL_RULES, time_range={"start": text[0], "end": text[1]})
    write_decisions(log, "all", make_config(**ALL_RULES))
    seen: list[int] = []
    result = write_decisions(log, "range", inside, seen.append)
    mask = (times >= start) & (times < end)
    whole, part = decisions_of(log, "all"), decisions_of(log, "range")
    for name in ("weight", "keep_probability", "kept"):
        assert np.array_equal(part[name], np.where(mask, whole[name], 0)), name
    assert result.outside_time_range == (~mask).sum() and result.conditions["all"].rows == mask.sum()
    small = write_sampled_log(log, "range", inside, tmp_path / "small", seen.append)
    assert sum(seen) == 2 * (150 + mask.sum())
    # The last partition lies outside: it is not published.
    assert [m.start // STEP for m in read_manifests(tmp_path / "small")] == [0, 1, 2]
    assert np.array_equal(column(tmp_path / "small", "example_id"), column(log, "example_id")[part["kept"]])
    assert small.conditions == result.conditions
    assert (small.rows, small.outside_time_range) == (result.rows, result.outside_time_range)
    assert f"dropped: {(~mask).sum()} rows outside the time range" in small.as_text()


def publish_few(log: Path, *ids: int, **columns: Any) -> Path:
    """Non-clicks with these ids."""
    create_log(log, SCHEMA)
    rows = hashed_rows(SCHEMA, len(ids), example_id=list(ids), label=[0] * len(ids), **columns)
    publish_partition(log, SCHEMA, 0, STEP, rows)
    return log


def test_faulty_rows_are_dropped_and_counted(tmp_path):
    """No teacher has scored them, so they must not stop a rule by loss either."""
    log, small = publish_few(tmp_path / "log", 5, 6, 7, train_weight=[1, np.nan, 1]), tmp_path / "small"
    logit = pa.array([-1.0, np.nan, 3.0], pa.float32())
    teacher = pa.table({"example_id": [5, 6, 7], "logit": logit})
    write_sidecar_partition(log, "teacher", read_manifests(log)[0], teacher)
    config = make_config(uninformative={"rate": 1.0, "low_loss": LOW_LOSS})
    result = write_decisions(log, "s", config)
    assert decisions_of(log, "s")["weight"].tolist() == [1, 0, 1]
    assert (result.rows, result.faulty, result.conditions["all"].rows) == (3, 1, 2)
    assert "dropped: 1 faulty rows" in result.as_text()
    write_sampled_log(log, "s", config, small)
    assert column(small, "example_id").tolist() == [5, 7]
    assert read_manifests(small)[0].counters == {"rows_before_sampling": 3, "faulty_rows_dropped": 1}


def test_a_teacher_beside_another_log(log, tmp_path):
    """The teacher saw everything; the log that is sampled holds part of it, without a sidecar of its own."""
    part = tmp_path / "part"
    write_sampled_log(log, "half", HALF, part)
    shutil.rmtree(part / "sidecars")
    rule = {"rate": 0.25, "low_loss": {**LOW_LOSS, "log": str(log)}}
    write_decisions(part, "low", make_config(salt="2", uninformative=rule))
    logit = decisions_of(log, "teacher")["logit"].astype(np.float64)[places_of(log, part)]
    expected = np.where(row_logloss(column(part, "label") == 1, logit) < 0.2, 0.25, 1)
    assert len(set(expected)) == 2
    assert np.array_equal(decisions_of(part, "low")["keep_probability"], expected)


def test_a_partition_of_which_nothing_is_kept_is_published_empty(tmp_path):
    log, small = publish_few(tmp_path / "log", 5), tmp_path / "small"
    write_sidecar_partition(log, "t", read_manifests(log)[0], pa.table({"example_id": [5], "logit": [0.5]}))
    result = write_sampled_log(log, "s", make_config(non_click_rate=1e-9, min_rate=1e-9), small)
    (manifest,) = read_manifests(small)
    assert (manifest.rows, manifest.shards) == (0, ())
    assert read_sidecar_partition(small, "t", manifest).num_rows == 0
    kept_fractions = [result.conditions[name].kept_fraction for name in ("clicks", "non_clicks")]
    assert kept_fractions == [None, 0]
    create_log(tmp_path / "bare", SCHEMA)
    refused("it has no partition", write_decisions, tmp_path / "bare", "s", make_config())
