"""The mapping files of tables and of events: what they accept, and how they say what they do not."""

import copy
from pathlib import Path
from typing import Any

import pytest

from ctr.config import StrictModel, dump_yaml, parse_model
from ctr.data.event_mapping import EventMapping, load_event_mapping
from ctr.data.mapping import Mapping, format_names, load_format
from ctr.io.documents import parse_yaml
from ctr.io.errors import InputError
from ctr.simulator.config import WorldConfig
from ctr.simulator.features import world_schema

HOUR = {"from": "time", "part": "hour"}
DERIVE = {"hour": HOUR, "zip3": {"from": "zip", "prefix": 3}, "copy": {"from": "z"}}
TABLE: dict[str, Any] = {
    "input": {"type": "csv"},
    "joins": [{"file": "items.csv", "key": "item", "prefix": "item_"}],
    "time": {"column": "at", "unit": "ms"},
    "query": {"session": {"by": "user", "gap": "30m"}},
    "example_id": "id",
    "label": "rating >= 4",
    "weight": "w",
    "derive": DERIVE,
    "partition": "1d",
    "features": [
        *({"name": name, "kind": "category", "source": name} for name in ("user", *DERIVE)),
        {"name": "price", "kind": "number", "source": "item_price", "log": {}},
        {"name": "tags", "kind": "category", "source": "tags", "multivalent": True, "separator": "|"},
        {"name": "title", "kind": "text", "source": "item_title"},
        {"name": "user_x_price", "kind": "cross", "of": ["user", "price"]},
    ],
}
KEYS = {"input": {"type": "jsonl"}, "time": {"column": "at", "unit": "us"}, "impression_id": "id"}
EVENTS: dict[str, Any] = {
    "impressions": {**KEYS, "query_id": "query"},
    "clicks": KEYS,
    "partition": "1h",
    "click_window": "30m",
    "delay": "10m",
    "features": [{"name": "user", "kind": "category", "source": "user"}],
}
LABEL = {**KEYS, "window": "3d"}
LOW_LOSS = {"teacher": "t", "max_loss": 0.1}
BY_LOSS = {"rate": 0.1, "low_loss": LOW_LOSS}


def changed(content: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """With another value of a key; of ``...`` without it."""
    content = copy.deepcopy(content)
    *above, last = path.split(".")
    place = content
    for name in above:
        place = place[name]
    place[last] = value
    if value is ...:
        del place[last]
    return content


def parse(path: str, value: object) -> Mapping:
    return parse_model(Mapping, changed(TABLE, path, value), "mapping")


def refused(model: type[StrictModel], content: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^mapping: .*{message}.*$"):
        parse_model(model, content, "mapping")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("input.delimitr", ",", "input.csv.delimitr: unknown key"),
        ("input.header", False, "required with header: false, and allowed only there"),
        ("input", {"type": "jsonl"}, "with jsonl, each join requires input"),
        ("time", {}, "exactly one of column and row_order"),
        ("time", {"row_order": {"start": "soon", "step_us": 1}}, "time.row_order.start: 'soon'"),
        ("query", {"column": "q", "session": {"by": "u", "gap": "1m"}}, "exactly one of column and session"),
        ("derive.hour.from", "at", "part and every are computed from the row's time; required: from: time"),
        ("derive.hour.prefix", 2, "part, every, prefix, cast and plugin cannot be combined"),
        ("derive.zip3.from", "copy", "copy is itself derived"),
        ("derive.at", {"from": "zip"}, "derive.at: a column of this name is read as a key"),
    ],
)
def test_what_a_mapping_of_a_table_cannot_be(path, value, message):
    refused(Mapping, changed(TABLE, path, value), message)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("show_window", "1h", "show_window: requires impressions.timestamp"),
        ("impressions.time", {"row_order": {"start": 0, "step_us": 1}}, "time: events require a column"),
        ("impressions.arrival", {"column": "got", "unit": "us"}, "set it for all of impressions, clicks"),
        ("sampling", {"name": "s", "rule": {"uninformative": BY_LOSS}}, "t is not the teacher of this"),
        ("sampling", {"name": "s", "rule": {"stratify_by": "ad"}}, "rule.stratify_by: not allowed here"),
        ("labels", {"clicks": LABEL}, "labels.clicks: other events or counters"),
        ("labels", {"sale": {**LABEL, "window": "60d"}}, "less than a thousandth of the windows"),
    ],
)
def test_what_a_mapping_of_events_cannot_be(path, value, message):
    refused(EventMapping, changed(EVENTS, path, value), message)
    elsewhere = {"uninformative": {**BY_LOSS, "low_loss": {**LOW_LOSS, "log": "elsewhere"}}}
    teacher = {"sampling": {"name": "s", "rule": elsewhere}, "teacher": {"name": "t", "model": "models"}}
    refused(EventMapping, {**EVENTS, **teacher}, "the teacher scores this log")


def test_the_start_of_row_order_is_utc():
    for start in ("2020-01-01T00:00:00Z", "2020-01-01", "2020-01-01T01:00:00+01:00", 1_577_836_800):
        time = parse("time", {"row_order": {"start": start, "step_us": 1}}).time
        assert time.row_order.start_us == 1_577_836_800_000_000


def test_a_mapping_reads_back_what_it_was_written_as():
    events = changed(EVENTS, "impressions.derive", {"hour": DERIVE["hour"]})
    for model, content in ((Mapping, TABLE), (EventMapping, events)):
        mapping = parse_model(model, content, "test")
        assert parse_model(model, parse_yaml(dump_yaml(mapping)), "test") == mapping


def test_the_shipped_mappings(root: Path):
    assert format_names() == ("avazu", "criteo", "movielens", "open_bandit", "yambda")
    for name in format_names():
        assert load_format(name).features
    with pytest.raises(InputError, match="format yahoo: unknown; the formats are avazu, criteo, movielens"):
        load_format("yahoo")
    simulated = load_event_mapping(root / "examples/events/simulated.yaml")
    assert simulated.feature_schema == world_schema(WorldConfig(buckets=False))
