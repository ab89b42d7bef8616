"""All events at once: every form of them, input that is not as it should be, sampling and teachers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import event_files
import model_cases
import raw_logs
from ctr.config import parse_model
from ctr.data.event_mapping import EventMapping
from ctr.data.log import read_manifests
from ctr.data.sample_log import write_sampled_log
from ctr.data.sidecar import read_sidecar_partition
from ctr.io.errors import InputError
from ctr.pipelines.events.follow import EventsResult, ingest_events
from ctr.serving.metadata import find_model

COUNT = 150
EVENT_TYPES = {"impressions": "view", "clicks": "click"}


def ingest(mapping: EventMapping, folder: Path, log: Path, **options: Any) -> EventsResult:
    return ingest_events(mapping, [folder], log, **{"max_reject_share": 0.0, **options})


@pytest.fixture(scope="module")
def events():
    return event_files.draw_events(COUNT)


@pytest.fixture(scope="module")
def folder(events, tmp_path_factory):
    return event_files.write_events(tmp_path_factory.mktemp("events"), events)


@pytest.fixture(scope="module")
def log(folder, tmp_path_factory):
    """What the events of ``folder`` become under ``event_files.mapping()``; tests leave it as it is."""
    log = tmp_path_factory.mktemp("log")
    ingest(event_files.mapping(), folder, log)
    return log


# ---------------------------------------------------------------- forms


def test_every_form_becomes_the_same_log_also_of_one_file_whose_column_tells_the_kinds_apart(tmp_path):
    views = [event_files.impression(number, number) for number in range(1, 6)]
    views[0]["tags"] = ["a", "b"]
    clicks = [event_files.click(2, 4), event_files.click(4, 5)]
    kinds = {"view": views, "click": clicks, "hover": [{"impression_id": 3, "event_time": 0}]}
    rows = [{**dict.fromkeys(views[0]), **event, "type": kind} for kind in kinds for event in kinds[kind]]
    types = {**event_files.TYPES, "type": pa.string()}
    schema = pa.schema([pa.field(name, types[name]) for name in rows[0]])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "events.parquet")
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    logs = []
    for form in ("jsonl", "parquet"):
        source = {"input": {"type": form, "pattern": f"events.{form}"}}
        where = {name: {**source, "where": {"type": kind}} for name, kind in EVENT_TYPES.items()}
        logs.append(tmp_path / f"{form} log")
        result = ingest(event_files.mapping(form, **where), tmp_path, logs[-1])
        assert (result.counts.impressions.read, result.counts.clicks.read, result.clicks) == (5, 2, 2)
    folder = event_files.write_events(tmp_path / "two", {"impressions": views, "clicks": clicks}, 1, "csv.gz")
    logs.append(tmp_path / "csv log")
    ingest(event_files.mapping("csv"), folder, logs[-1])
    # The schema and what names it know how lists are separated in a CSV file.
    beside = ("rejects", "manifests", "schema.json", "events.yaml")
    first, *others = (event_files.published(log, beside) for log in logs)
    assert others == [first] * 2
    assert {name.partition("/")[0] for name in first} == {"shards"}


def test_row_groups_that_are_read_apart_count_together(events, log, tmp_path, monkeypatch):
    # And more than one chunk of each.
    monkeypatch.setattr("ctr.pipelines.events.read._UNIT_ROWS", 40)
    monkeypatch.setattr("ctr.pipelines.tables.reader._BATCH_ROWS", 12)
    folder = event_files.write_events(tmp_path / "events", events, 2, "parquet")
    bad = {**events["impressions"][0], "weight": -1.0}
    more = [*[events["impressions"][0]] * 30, bad, *[events["impressions"][0]] * 30, bad]
    event_files.write_files(folder, [("impressions/2.parquet", event_files.encode(more, "parquet"))])
    result = ingest(event_files.mapping("parquet"), folder, tmp_path / "log", max_reject_share=0.1)
    assert result.counts.impressions.read == len(events["impressions"]) + len(more)
    lines = next((tmp_path / "log" / "rejects").iterdir()).read_text().splitlines()
    assert [json.loads(line)["row"] for line in lines] == [31, 62]
    shards = [
        {name: hashed for name, hashed in event_files.published(one).items() if name.startswith("shards")}
        for one in (log, tmp_path / "log")
    ]
    assert shards[0] == shards[1] != {}


# ---------------------------------------------------------------- input that is not as it should be


def test_what_is_no_job_is_refused_before_anything_is_published(folder, log, tmp_path):
    before = event_files.published(log, ())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    (tmp_path / "hidden" / "impressions").mkdir(parents=True)
    for name in (".0.jsonl", "0.jsonl.tmp"):
        (tmp_path / "hidden" / "impressions" / name).write_text("{}")
    twice = event_files.write_files(tmp_path / "twice", [("clicks/0.jsonl", b"{}")])
    plain, new = event_files.mapping(), tmp_path / "new"
    fewer = event_files.mapping(features=event_files.FEATURES[:1])
    for mapping, folders, out, message in (
        (event_files.mapping(click_window="9s"), [folder], log, r"another configuration.*click_window"),
        (fewer, [folder], log, "features cannot change"),
        (plain, [folder], tmp_path / "other", "neither empty nor an example log"),
        (plain, [tmp_path / "nowhere"], new, "no such folder"),
        (plain, [tmp_path / "hidden"], new, r"no files of impressions or clicks found; .*/clicks/\*\.jsonl"),
        (plain, [folder, twice], new, r"both named clicks/0\.jsonl"),
    ):
        with pytest.raises(InputError, match=message):
            ingest_events(mapping, folders, out)
    assert not (new / "manifests").exists()
    assert event_files.published(log, ()) == before
    (log / "events.yaml").rename(tmp_path / "kept.yaml")
    with pytest.raises(InputError, match="not made from events"):
        ingest(plain, folder, log)
    (tmp_path / "kept.yaml").rename(log / "events.yaml")


def test_clicks_alone_are_accounted_for_but_make_no_example(events, tmp_path):
    files = [("clicks/0.jsonl", event_files.encode(events["clicks"], "jsonl")), ("impressions/0.jsonl", b"")]
    event_files.write_files(tmp_path / "events", files)
    with pytest.raises(InputError, match="none of 0 impressions became an example"):
        ingest(event_files.mapping(), tmp_path / "events", tmp_path / "log")
    counters = [manifest.counters["orphan_clicks"] for manifest in read_manifests(tmp_path / "log")]
    assert sum(counters) == len(event_files.read_side(tmp_path / "log", "unmatched")) > 0


def test_a_damaged_file_and_one_without_a_column_are_named(events, tmp_path):
    folder = event_files.write_events(tmp_path / "events", events, form="csv.gz")
    path = folder / "impressions" / "1.csv.gz"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"impressions/1\.csv\.gz: damaged, truncated") as caught:
        ingest(event_files.mapping("csv"), folder, tmp_path / "log")
    assert len(str(caught.value).splitlines()) == 1
    (folder / "clicks" / "3.csv").write_text("impression_id,event_time\n1,2\n")
    path.unlink()
    with pytest.raises(InputError, match=r"clicks/3\.csv: no column arrival_time"):
        ingest(event_files.mapping("csv"), folder, tmp_path / "other")
    assert not list(tmp_path.glob("*/manifests"))


# ---------------------------------------------------------------- sampling and teachers

RULE = {"salt": "7", "non_click_rate": 0.5}
SELDOM = {"rate": 0.5, "low_visibility": {"feature": "color", "values": ["blue", None]}}


def test_examples_are_sampled_as_the_log_would_be(folder, log, tmp_path):
    rule = {**RULE, "uninformative": SELDOM}
    mapping = event_files.mapping(sampling={"name": "half", "rule": rule})
    assert mapping.sampling is not None
    result = ingest(mapping, folder, tmp_path / "sampled")
    write_sampled_log(log, "half", mapping.sampling.rule, tmp_path / "later")
    found = raw_logs.read_log(tmp_path / "sampled")
    assert found == raw_logs.read_log(tmp_path / "later")
    # What is kept stands for what is not: by 1 / rate, of those that two rules drop by the product.
    weights = {example["example_id"]: example["train_weight"] for example in raw_logs.read_log(log)}
    factors = {example["train_weight"] / weights[example["example_id"]] for example in found}
    assert factors == {1.0, 2.0, 4.0}
    assert all(example["metric_weight"] == example["train_weight"] for example in found)
    assert 0 < len(found) == result.examples < len(raw_logs.read_log(log))
    assert result.counters["sampled_out"] == len(raw_logs.read_log(log)) - len(found)
    rules = [(tmp_path / name / "sampling.yaml").read_bytes() for name in ("sampled", "later")]
    assert rules[0] == rules[1]
    assert event_files.read_side(tmp_path / "sampled", "unmatched") == event_files.read_side(log, "unmatched")


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    """Publishes a model with the features of a mapping in a folder, as what a run had after some examples."""
    from ctr.serving.export import publish
    from ctr.training.config import TrainConfig
    from ctr.training.state import TrainState

    content = {"model": model_cases.MODELS["logistic"], "batch": {"rows": 64}}
    config = parse_model(TrainConfig, content, "test")

    def make(mapping: EventMapping, folder: Path, examples: int) -> Path:
        schema = mapping.feature_schema
        state = TrainState(config.table_layouts(schema), config, "float32")
        model_cases.randomize(state, examples)
        snapshot = model_cases.make_snapshot(state, config, schema, tmp_path_factory.mktemp("run"), examples)
        return publish(snapshot, folder).path

    return make


@pytest.fixture(scope="module")
def model(export, tmp_path_factory):
    """A folder of versions, of which there is one."""
    folder = tmp_path_factory.mktemp("models")
    export(event_files.mapping(), folder, 1)
    return folder


def scored(log: Path, model: Path, out: Path) -> dict[int, float]:
    from ctr.serving.score import score_log
    from ctr.serving.scorer import Scorer

    score_log(Scorer(model), log, out)
    table = pq.read_table(out)
    return dict(zip(table.column("example_id").to_pylist(), table.column("logit").to_pylist(), strict=True))


def recorded(log: Path, name: str) -> dict[int, float]:
    found: dict[int, float] = {}
    for manifest in read_manifests(log):
        table = read_sidecar_partition(log, name, manifest)
        found |= zip(table.column("example_id").to_pylist(), table.column("logit").to_pylist(), strict=True)
    return found


@pytest.mark.slow
def test_a_teacher_is_recorded_as_it_scores_a_log_and_samples_by_loss(export, model, folder, log, tmp_path):
    teacher = {"name": "old", "model": str(model)}
    ingest(event_files.mapping(teacher=teacher), folder, tmp_path / "scored")
    found = recorded(tmp_path / "scored", "old")
    expected = scored(log, find_model(model), tmp_path / "scores.parquet")
    assert found == expected
    assert len(set(found.values())) > 10
    assert raw_logs.read_log(tmp_path / "scored") == raw_logs.read_log(log)

    below = float(np.median(np.logaddexp(0, list(found.values()))))
    rule = {"uninformative": {"rate": 0.3, "low_loss": {"teacher": "old", "max_loss": below}}}
    sampled = event_files.mapping(teacher=teacher, sampling={"name": "hard", "rule": rule})
    assert sampled.sampling is not None
    ingest(sampled, folder, tmp_path / "sampled")
    write_sampled_log(tmp_path / "scored", "hard", sampled.sampling.rule, tmp_path / "later")
    rows = raw_logs.read_log(tmp_path / "sampled")
    assert rows == raw_logs.read_log(tmp_path / "later")
    assert 0 < len(rows) < len(found)
    assert recorded(tmp_path / "sampled", "old") == recorded(tmp_path / "later", "old")

    # A version that appears while the log grows is another teacher: the log keeps its own.
    export(event_files.mapping(), model, 2)
    before = event_files.published(tmp_path / "scored", ())
    ingest(event_files.mapping(teacher=teacher), folder, tmp_path / "scored")
    assert event_files.published(tmp_path / "scored", ()) == before
    ingest(event_files.mapping(teacher=teacher), folder, tmp_path / "newer")
    assert recorded(tmp_path / "newer", "old") != found


def test_a_teacher_of_other_features_or_none_is_refused(model, folder, tmp_path):
    teacher = {"name": "old", "model": str(model)}
    fewer = event_files.mapping(features=event_files.FEATURES[:2], teacher=teacher)
    with pytest.raises(InputError, match="the model has the features of schema"):
        ingest(fewer, folder, tmp_path / "log")
    (tmp_path / "models").mkdir()
    nowhere = event_files.mapping(teacher={**teacher, "model": str(tmp_path / "models")})
    with pytest.raises(InputError, match="neither an exported model"):
        ingest(nowhere, folder, tmp_path / "log")
    assert not (tmp_path / "log").exists()
