"""All events at once: the same log from every form, order and cut of them, and after every break."""

import gzip
import io
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

import event_files
import model_cases
import raw_logs
import single_events
from ctr.config import parse_model, read_yaml
from ctr.data.event_mapping import EventMapping
from ctr.data.ids.arrow import string_ids
from ctr.data.log import read_manifests
from ctr.data.sample_log import write_sampled_log
from ctr.data.sidecar import read_sidecar_partition
from ctr.io.errors import InputError
from ctr.pipelines.events.follow import EventsResult, ingest_events
from ctr.pipelines.events.join import CLICK_COUNTERS, NOT_PUBLISHED
from ctr.pipelines.events.rules import partition_rules
from ctr.serving.metadata import find_model
from ctr.simulator.config import SimulatorConfig
from ctr.simulator.simulate import simulate

COUNT = 150
CLICK = ("impression_id", "event_time", "arrival_time")
NOTHING_LATE = {"delivery_seconds": 0, "straggler_seconds": 0, "click_seconds": 0, "late_click_seconds": 0}


def ingest(mapping: EventMapping, folder: Path, log: Path, **options: Any) -> EventsResult:
    return ingest_events(mapping, [folder], log, **{"max_reject_share": 0.0, **options})


@pytest.fixture(scope="module")
def events() -> dict[str, list[dict[str, Any]]]:
    drawn: dict[str, list[dict[str, Any]]] = event_files.draw_events(COUNT)
    return drawn


@pytest.fixture(scope="module")
def folder(events: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = event_files.write_events(tmp_path_factory.mktemp("events"), events)
    return found


@pytest.fixture(scope="module")
def log(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the events of ``folder`` become under ``event_files.mapping()``."""
    log = tmp_path_factory.mktemp("log")
    ingest(event_files.mapping(), folder, log)
    return log


# ---------------------------------------------------------------- forms, order and cuts


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes the log and the events of a small simulation."""

    def make(**events: Any) -> Path:
        folder = tmp_path_factory.mktemp("simulated")
        world = {"examples": 400, "queries_per_day": 50, "users": 20, "ads": 20, "words": 30, "topics": 3}
        content = {**world, "advertisers": 3, "base_ctr": 0.3, "buckets": False, "events": events}
        simulate(parse_model(SimulatorConfig, content, "test"), folder / "log", events=folder / "events")
        return folder

    return make


@pytest.fixture(scope="module")
def shipped(root: Path) -> Any:
    """The mapping that ships for simulated events, for files of a form."""
    content = read_yaml(root / "examples/events/simulated.yaml", "mapping")
    assert isinstance(content, dict)

    def make(form: str, **changes: str) -> EventMapping:
        kinds = {kind: {**content[kind], "input": {"type": form}} for kind in ("impressions", "clicks")}
        return parse_model(EventMapping, {**content, **kinds, **changes}, "test")

    return make


def merged(folder: Path, target: Path) -> Path:
    """The events of a folder of Parquet files in two files a kind, which saves most of the time."""
    for kind in ("impressions", "clicks"):
        table = pq.read_table(folder / kind)
        (target / kind).mkdir(parents=True)
        for number, begin in enumerate((0, len(table) // 2)):
            size = len(table) // 2 if number == 0 else len(table)
            pq.write_table(table.slice(begin, size), target / kind / f"{number}.parquet", row_group_size=50)
    return target


@pytest.mark.slow
def test_every_form_of_the_simulated_events_becomes_the_same_log(
    simulated: Any, shipped: Any, tmp_path: Path
) -> None:
    events = merged(simulated(duplicate_share=0.1, straggler_share=0.1) / "events", tmp_path / "parquet")
    for path in sorted(events.glob("*/*.parquet")):
        table = pq.read_table(path)
        sink = io.BytesIO()
        pa_csv.write_csv(table, sink)
        rows = [{key: value for key, value in row.items() if value is not None} for row in table.to_pylist()]
        for form, data in (
            ("csv", sink.getvalue()),
            ("csv.gz", gzip.compress(sink.getvalue())),
            ("jsonl", event_files.encode(rows, "jsonl")),
        ):
            event_files.write_files(tmp_path / form, [(f"{path.parent.name}/{path.stem}.{form}", data)])
    logs = {}
    for form in ("parquet", "jsonl", "csv", "csv.gz"):
        log = tmp_path / f"{form} log"
        result = ingest(shipped(form.partition(".")[0], partition="6h"), tmp_path / form, log)
        assert result.counts.impressions.late > 0
        assert result.counters["duplicate_impressions"] > 0
        logs[form] = event_files.published(log)
        del logs[form]["events.yaml"]  # names the form
    assert logs["jsonl"] == logs["csv"] == logs["csv.gz"] == logs["parquet"]
    assert len(logs["parquet"]) > 20


@pytest.mark.slow
def test_simulated_events_of_which_nothing_is_late_become_the_simulated_log(
    simulated: Any, shipped: Any, tmp_path: Path
) -> None:
    folder = simulated(**NOTHING_LATE, duplicate_share=0.2)
    mapping = shipped("parquet", partition="1d", click_window="1h", delay="1d")
    result = ingest(mapping, merged(folder / "events", tmp_path / "events"), tmp_path / "log")
    assert result.counters["duplicate_impressions"] > 0
    shards = [
        {path.name: path.read_bytes() for path in (log / "shards").iterdir()}
        for log in (folder / "log", tmp_path / "log")
    ]
    assert shards[0] == shards[1]
    assert result.clicks == sum(manifest.clicks for manifest in read_manifests(folder / "log")) > 0


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("files", [1, 7])
def test_neither_order_nor_cut_of_the_events_counts(
    files: int, events: Any, log: Path, tmp_path: Path
) -> None:
    source = random.Random(files)
    shuffled = {kind: source.sample(found, len(found)) for kind, found in events.items()}
    ingest(
        event_files.mapping(),
        event_files.write_events(tmp_path / "events", shuffled, files),
        tmp_path / "log",
    )
    # Events that are too late lie in files of their own for each piece of the input.
    assert event_files.published(tmp_path / "log", ("late",)) == event_files.published(log, ("late",))
    assert event_files.read_side(tmp_path / "log", "late") == event_files.read_side(log, "late") != []


def test_row_groups_that_are_read_apart_count_together(
    events: Any, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # And more than one chunk of each.
    monkeypatch.setattr("ctr.pipelines.events.read._UNIT_ROWS", 40)
    monkeypatch.setattr("ctr.pipelines.rows.table_files._BATCH_ROWS", 12)
    folder = event_files.write_events(tmp_path / "events", events, 2, "parquet")
    bad = {**events["impressions"][0], "weight": -1.0}
    more = [*[events["impressions"][0]] * 30, bad, *[events["impressions"][0]] * 30, bad]
    event_files.write_files(folder, [("impressions/2.parquet", event_files.encode(more, "parquet"))])
    result = ingest(event_files.mapping("parquet"), folder, tmp_path / "log", max_reject_share=0.1)
    assert result.counts.impressions.read == len(events["impressions"]) + len(more)
    lines = next((tmp_path / "log" / "rejects").iterdir()).read_text().splitlines()
    assert [json.loads(line)["row"] for line in lines] == [31, 62]
    for name, data in event_files.published(log).items():
        if name.startswith("shards"):
            assert (tmp_path / "log" / name).read_bytes() == data


def test_events_in_several_folders_count_together(events: Any, log: Path, tmp_path: Path) -> None:
    files = event_files.encode_files(events, 3)
    folders = [event_files.write_files(tmp_path / str(number), files[number::2]) for number in range(2)]
    ingest_events(event_files.mapping(), folders, tmp_path / "log")
    assert event_files.published(tmp_path / "log") == event_files.published(log)


def test_the_log_is_that_of_a_join_of_single_events(events: Any, log: Path) -> None:
    mapping = event_files.mapping()
    shown = [
        single_events.Impression(
            e["impression_id"], e["event_time"], e["event_time"], e["query_id"], 0, e["arrival_time"]
        )
        for e in events["impressions"]
    ]
    clicks = [single_events.Click(*(e[name] for name in CLICK)) for e in events["clicks"]]
    reported, late_shown, late_clicks = single_events.join_plainly(partition_rules(mapping), shown, clicks)
    examples = {number: row for partition in reported.values() for number, row in partition.examples.items()}
    found = raw_logs.read_log(log)
    assert [(e["query_time"], e["query_id"], e["example_id"], e["label"]) for e in found] == sorted(
        (time, query, number, label) for number, (time, _, query, _, label) in examples.items()
    )
    source = {(e["impression_id"], e["event_time"]): e for e in events["impressions"]}
    colors = ("red", "green", "blue", "pink")
    for example in found:
        event = source[example["example_id"], example["query_time"]]
        assert example["train_weight"] == example["metric_weight"] == event["weight"]
        assert example["color"] == (0 if event["color"] is None else 1 + colors.index(event["color"]))
        assert len(example["tags"]) == min(len(event["tags"] or []), 3)
    unmatched = {
        (row["impression_id"], row["time"], row["arrival"], row["reason"])
        for row in event_files.read_side(log, "unmatched")
    }
    assert unmatched == {row for partition in reported.values() for row in partition.unmatched}
    assert {reason for *_, reason in unmatched} == {"late", "orphan"}
    conflicting = Counter(
        (row["example_id"], row["query_time"], row["arrival"])
        for row in event_files.read_side(log, "conflicting")
    )
    assert conflicting == Counter(
        (f.id, f.time, f.arrival) for partition in reported.values() for f in partition.conflicting
    )
    # Some of them conflict with an impression of an earlier partition.
    assert any(
        set(partition.examples).isdisjoint({f.id for f in partition.conflicting})
        for partition in reported.values()
        if partition.conflicting
    )
    late = Counter(row["arrival"] for row in event_files.read_side(log, "late"))
    assert late == Counter(event.arrival for event in [*late_shown, *late_clicks])
    for manifest in read_manifests(log):
        counters = Counter({name: count for name, count in manifest.counters.items() if count})
        assert counters == +reported[manifest.start].counters
    assert {manifest.start for manifest in read_manifests(log)} == set(reported)


def test_all_events_are_accounted_for(events: Any, folder: Path, log: Path, tmp_path: Path) -> None:
    result = ingest(event_files.mapping(), folder, tmp_path / "log")
    counters, manifests = result.counters, read_manifests(log)
    for kind in ("impressions", "clicks"):
        counts = getattr(result.counts, kind)
        assert counts.read == len(events[kind]) == counters[kind] + counts.late
        assert counts.late > 0
    assert result.examples == counters["impressions"] - sum(counters[name] for name in NOT_PUBLISHED)
    assert counters["clicks"] == sum(counters[name] for name in CLICK_COUNTERS)
    assert all(counters[name] > 0 for name in (*CLICK_COUNTERS, *NOT_PUBLISHED) if name != "sampled_out")
    assert result.partitions == len(manifests) > 3
    assert result.examples == sum(manifest.rows for manifest in manifests)
    unmatched = event_files.read_side(log, "unmatched")
    assert len(unmatched) == counters["late_clicks"] + counters["orphan_clicks"]
    assert len(event_files.read_side(log, "conflicting")) == counters["conflicting_impressions"]
    late = result.counts.impressions.late + result.counts.clicks.late
    assert len(event_files.read_side(log, "late")) == late


# ---------------------------------------------------------------- again, and after a break


@pytest.mark.slow
def test_a_job_that_is_run_again_changes_nothing(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    ingest(event_files.mapping(), folder, log)
    before = event_files.published(log, ())
    ingest(event_files.mapping(), folder, log)
    assert event_files.published(log, ()) == before


class Broken(BaseException):
    pass


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("syncs", [1, 25, 90])
def test_a_job_that_broke_off_is_simply_run_again(
    syncs: int, folder: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(range(syncs))

    def break_off(descriptor: int) -> None:
        if next(left, None) is None:
            raise Broken

    with monkeypatch.context() as patched:
        patched.setattr("ctr.io.files.os.fsync", break_off)
        with pytest.raises((Broken, RuntimeError)):
            ingest(event_files.mapping(), folder, tmp_path / "log")
    assert len(read_manifests(tmp_path / "log") if syncs > 20 else []) < len(read_manifests(log))
    ingest(event_files.mapping(), folder, tmp_path / "log")
    assert event_files.published(tmp_path / "log") == event_files.published(log)


def test_a_log_of_another_mapping_or_of_no_events_is_refused(folder: Path, log: Path, tmp_path: Path) -> None:
    before = event_files.published(log, ())
    with pytest.raises(InputError, match=r"started with another configuration.*click_window"):
        ingest(event_files.mapping(click_window="9s"), folder, log)
    with pytest.raises(InputError, match="features cannot change"):
        ingest(event_files.mapping(features=event_files.FEATURES[:1]), folder, log)
    assert event_files.published(log, ()) == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(InputError, match="neither empty nor an example log"):
        ingest(event_files.mapping(), folder, tmp_path / "other")
    (log / "events.yaml").rename(tmp_path / "kept.yaml")
    with pytest.raises(InputError, match="not made from events"):
        ingest(event_files.mapping(), folder, log)
    (tmp_path / "kept.yaml").rename(log / "events.yaml")


# ---------------------------------------------------------------- input that is not as it should be


def test_without_events_there_is_no_job(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        ingest(event_files.mapping(), tmp_path / "events", tmp_path / "log")
    (tmp_path / "events" / "impressions").mkdir(parents=True)
    for hidden in (".0.jsonl", "0.jsonl.tmp"):
        (tmp_path / "events" / "impressions" / hidden).write_text("{}")
    with pytest.raises(InputError, match="no files of impressions or clicks found"):
        ingest(event_files.mapping(), tmp_path / "events", tmp_path / "log")
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("kind", ["impressions", "clicks"])
def test_one_kind_alone_and_empty_files_are_events(kind: str, events: Any, tmp_path: Path) -> None:
    event_files.write_files(
        tmp_path / "events", [(f"{kind}/0.jsonl", event_files.encode(events[kind], "jsonl"))]
    )
    other = "clicks" if kind == "impressions" else "impressions"
    event_files.write_files(tmp_path / "events", [(f"{other}/0.jsonl", b"")])
    if kind == "impressions":
        result = ingest(event_files.mapping(), tmp_path / "events", tmp_path / "log")
        assert result.examples > 0
        assert result.clicks == 0
        return
    # Clicks alone are accounted for, but make no example: that is an error.
    with pytest.raises(InputError, match="none of 0 impressions became an example"):
        ingest(event_files.mapping(), tmp_path / "events", tmp_path / "log")
    counters = [manifest.counters["orphan_clicks"] for manifest in read_manifests(tmp_path / "log")]
    assert sum(counters) == len(event_files.read_side(tmp_path / "log", "unmatched")) > 0


@pytest.mark.parametrize("form", ["parquet", "csv.gz"])
def test_a_damaged_file_is_named(form: str, events: Any, tmp_path: Path) -> None:
    folder = event_files.write_events(tmp_path / "events", events, form=form)
    path = folder / "impressions" / f"1.{form}"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=rf"impressions/1\.{form}: damaged, truncated") as caught:
        ingest(event_files.mapping(form.partition(".")[0]), folder, tmp_path / "log")
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "log" / "manifests").exists()


def test_a_file_without_a_column_is_named(events: Any, tmp_path: Path) -> None:
    folder = event_files.write_events(tmp_path / "events", events, form="csv")
    (folder / "clicks" / "3.csv").write_text("impression_id,event_time\n1,2\n")
    with pytest.raises(InputError, match=r"clicks/3\.csv: no column arrival_time"):
        ingest(event_files.mapping("csv"), folder, tmp_path / "log")


def test_files_of_one_name_are_refused(folder: Path, tmp_path: Path) -> None:
    copy = event_files.write_files(tmp_path / "copy", [("clicks/0.jsonl", b"{}")])
    with pytest.raises(InputError, match=r"both named clicks/0\.jsonl"):
        ingest_events(event_files.mapping(), [folder, copy], tmp_path / "log")


@pytest.mark.slow
def test_bad_events_are_described_and_too_many_of_them_end_the_job(
    events: Any, log: Path, tmp_path: Path
) -> None:
    folder = event_files.write_events(tmp_path / "events", events)
    bad = b'{"impression_id": 1}\nno JSON\n'
    event_files.write_files(
        folder, [("impressions/1.jsonl", (folder / "impressions/1.jsonl").read_bytes() + bad)]
    )
    total = sum(map(len, events.values())) + 2
    with pytest.raises(
        InputError, match=rf"^2 of {total} events rejected, more than the allowed share of 0\.001"
    ) as caught:
        ingest(event_files.mapping(), folder, tmp_path / "log", max_reject_share=0.001)
    assert "impressions/1.jsonl row" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert read_manifests(tmp_path / "log") == []
    result = ingest(event_files.mapping(), folder, tmp_path / "log", max_reject_share=0.01)
    assert result.counts.impressions.rejected == 2
    assert event_files.published(tmp_path / "log") == event_files.published(log)
    rejects = raw_logs.read_rejects(tmp_path / "log")
    assert [(reject["file"], reject["key"], reject["reason"]) for reject in rejects] == [
        ("impressions/1.jsonl", "line", "malformed JSON"),
        ("impressions/1.jsonl", "time", "missing"),
    ]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("--runner=Nothing", "Nothing"),
        ("--runner", "expected one argument"),
        ("--temp_location 'x", "quotation"),
    ],
)
def test_options_that_beam_does_not_read_are_one_line(
    options: str, complaint: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=complaint) as caught:
        ingest(event_files.mapping(), folder, tmp_path / "log", options=options)
    assert "--beam-options" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


# ---------------------------------------------------------------- sampling and teachers

RULE = {"salt": "7", "non_click_rate": 0.5}
SELDOM = {"rate": 0.5, "low_visibility": {"feature": "color", "values": ["blue", None]}}


@pytest.mark.parametrize("rule", [RULE, {**RULE, "uninformative": SELDOM}], ids=["rate", "visibility"])
def test_examples_are_sampled_as_the_log_would_be(
    rule: dict[str, Any], folder: Path, log: Path, tmp_path: Path
) -> None:
    mapping = event_files.mapping(sampling={"name": "half", "rule": rule})
    assert mapping.sampling is not None
    result = ingest(mapping, folder, tmp_path / "sampled")
    write_sampled_log(log, "half", mapping.sampling.rule, tmp_path / "later")
    found = raw_logs.read_log(tmp_path / "sampled")
    assert found == raw_logs.read_log(tmp_path / "later")
    assert 0 < len(found) == result.examples < len(raw_logs.read_log(log))
    assert result.counters["sampled_out"] == len(raw_logs.read_log(log)) - len(found)
    assert (tmp_path / "sampled/sampling.yaml").read_bytes() == (
        tmp_path / "later/sampling.yaml"
    ).read_bytes()
    assert event_files.read_side(tmp_path / "sampled", "unmatched") == event_files.read_side(log, "unmatched")


@pytest.mark.soak
def test_ids_that_grow_are_sampled_as_those_with_buckets(folder: Path, tmp_path: Path) -> None:
    """By the values of a feature, which one with a vocabulary and one whose ids grow have in common."""
    content = event_files.content()
    shade = {"name": "shade", "kind": "category", "source": "color"}
    words = {"name": "words", "kind": "category", "source": "tags", "multivalent": True}
    features = [*content["features"], shade, words]
    kept = []
    for name in ("color", "shade"):
        seldom = {"rate": 0.5, "low_visibility": {"feature": name, "values": ["blue", None]}}
        sampling = {"name": "half", "rule": {**RULE, "uninformative": seldom}}
        mapping = event_files.mapping(features=features, sampling=sampling)
        assert mapping.sampling is not None
        ingest(mapping, folder, tmp_path / name)
        kept.append(raw_logs.read_log(tmp_path / name))
    assert kept[0] == kept[1] != []
    ingest(event_files.mapping(features=features), folder, tmp_path / "log")
    write_sampled_log(tmp_path / "log", "half", mapping.sampling.rule, tmp_path / "later")
    assert raw_logs.read_log(tmp_path / "later") == kept[0]
    shades = {row["shade"] for row in raw_logs.read_log(tmp_path / "log")}
    assert shades == {0, *string_ids(pa.array(["red", "green", "blue", "pink"])).tolist()}
    assert all(0 not in row["words"] for row in kept[0])


@pytest.fixture(scope="module")
def export(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Publishes a model with the features of a mapping in a folder, as what a run had after some examples."""
    from ctr.serving.export import publish
    from ctr.training.config import TrainConfig
    from ctr.training.state import TrainState

    config = parse_model(
        TrainConfig, {"model": model_cases.MODELS["logistic"], "batch": {"rows": 64}}, "test"
    )

    def make(mapping: EventMapping, folder: Path, examples: int) -> Path:
        schema = mapping.feature_schema
        state = TrainState(config.table_layouts(schema), config, "float32")
        model_cases.randomize(state, examples)
        snapshot = model_cases.make_snapshot(state, config, schema, tmp_path_factory.mktemp("run"), examples)
        path: Path = publish(snapshot, folder).path
        return path

    return make


@pytest.fixture(scope="module")
def model(export: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
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
def test_a_teacher_is_recorded_as_it_scores_the_log_and_its_losses_sample_it(
    export: Any, model: Path, folder: Path, log: Path, tmp_path: Path
) -> None:
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


def test_a_teacher_of_other_features_or_none_is_refused(
    export: Any, model: Path, folder: Path, tmp_path: Path
) -> None:
    fewer = event_files.mapping(
        features=event_files.FEATURES[:2], teacher={"name": "old", "model": str(model)}
    )
    with pytest.raises(InputError, match="the model has the features of schema"):
        ingest(fewer, folder, tmp_path / "log")
    (tmp_path / "models").mkdir()
    with pytest.raises(InputError, match="neither an exported model"):
        ingest(
            event_files.mapping(teacher={"name": "old", "model": str(tmp_path / "models")}),
            folder,
            tmp_path / "log",
        )
    assert not (tmp_path / "log").exists()
