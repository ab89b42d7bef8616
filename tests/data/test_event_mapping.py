"""The mapping file of events: what is refused, with its key, and that the shipped one is that of the simulator."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from ctr.config import dump_yaml, parse_model
from ctr.data.event_mapping import EventMapping, load_event_mapping
from ctr.io.errors import InputError
from ctr.simulator.config import WorldConfig
from ctr.simulator.features import world_schema

KEYS = {
    "input": {"type": "jsonl"},
    "time": {"column": "at", "unit": "us"},
    "impression_id": "id",
}
CONTENT: dict[str, Any] = {
    "impressions": {**KEYS, "query_id": "query"},
    "clicks": KEYS,
    "partition": "1h",
    "click_window": "30m",
    "delay": "10m",
    "features": [{"name": "user", "kind": "category", "source": "user"}],
}
BY_LOSS = {"uninformative": {"rate": 0.1, "low_loss": {"teacher": "t", "max_loss": 0.1}}}


def changed(path: str, value: object) -> dict[str, Any]:
    content = copy.deepcopy(CONTENT)
    *above, last = path.split(".")
    place = content
    for name in above:
        place = place[name]
    place[last] = value
    return content


def test_the_mapping_of_simulated_events_has_the_features_of_the_simulated_log(root: Path):
    mapping = load_event_mapping(root / "examples/events/simulated.yaml")
    assert mapping.feature_schema == world_schema(WorldConfig(buckets=False))


def test_a_mapping_reads_back_what_it_was_written_as():
    content = changed("impressions.derive", {"hour": {"from": "time", "part": "hour"}})
    mapping = parse_model(EventMapping, content, "test")
    assert parse_model(EventMapping, yaml.safe_load(dump_yaml(mapping)), "test") == mapping
    assert mapping.raw_columns == ("at", "id", "query", "user")
    assert mapping.windows_us == (1_800_000_000, 1_800_000_000)


def test_a_teacher_scores_this_log_alone():
    low_loss = {"teacher": "t", "max_loss": 0.1, "log": "elsewhere"}
    sampling = {"name": "s", "rule": {"uninformative": {"rate": 0.5, "low_loss": low_loss}}}
    content = {**CONTENT, "sampling": sampling, "teacher": {"name": "t", "model": "models"}}
    with pytest.raises(InputError, match="the teacher scores this log"):
        parse_model(EventMapping, content, "test")


def test_hashed_impressions_have_the_columns_of_a_shard():
    parquet = {**KEYS, "input": {"type": "parquet"}, "query_id": "query", "weight": "w", "hashed": True}
    tags = {"name": "tags", "kind": "category", "source": "tags", "multivalent": True}
    content = {**CONTENT, "impressions": parquet, "features": [*CONTENT["features"], tags]}
    assert parse_model(EventMapping, content, "test").raw_columns == ("at", "id", "query", "w", "ids", "tags")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("partition", "1 hour", "partition"),
        ("clock_skew", "0s", "clock_skew"),
        ("show_window", "1h", "show_window: requires impressions.timestamp"),
        ("impressions.time", {"row_order": {"start": 0, "step_us": 1}}, "time: events require a column"),
        ("impressions.arrival", {"column": "got", "unit": "us"}, "arrival: set it for both"),
        ("clicks.topic", "clicks", "topic: set it for both"),
        ("impressions.hashed", True, "require Parquet"),
        ("impressions.derive", {"id": {"from": "time", "part": "hour"}}, "read as a key"),
        ("impressions.derive", {"a": {"from": "b"}, "b": {"from": "c"}}, "itself derived"),
        ("sampling", {"name": "s", "rule": BY_LOSS}, "t is not the teacher of this mapping"),
        ("sampling", {"name": "s", "rule": {"stratify_by": "ad"}}, "rule.stratify_by: not allowed here"),
        ("sampling", {"name": "../s", "rule": {}}, "sampling.name"),
        ("teacher", {"name": "a/b", "model": "models"}, "teacher.name"),
        ("click_window", "36501d", "36501d is longer than 36500d"),
        ("delay", "99999999999999d", "99999999999999d is longer than 36500d"),
        ("late_window", "60d", "less than a thousandth of the windows"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(path, value, message):
    with pytest.raises(InputError, match="mapping test") as raised:
        parse_model(EventMapping, changed(path, value), "mapping test")
    assert message in str(raised.value)
