"""What a mapping of events may say, and the one line for what it may not."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ctr.config import parse_model
from ctr.data.event_mapping import EventMapping, load_event_mapping
from ctr.errors import InputError
from ctr.pipelines.events.rules import interval_rules


def changed(content: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The content with another value at a.dotted.path."""
    first, _, rest = path.partition(".")
    return {**content, first: changed(content.get(first, {}), rest, value) if rest else value}


RULE = {"name": "half", "rule": {"non_click_rate": 0.5}}


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("interval", "1", "a duration is a whole number and a unit"),
        ("interval", "0s", "a duration is a whole number and a unit"),
        ("click_window", "36501d", "click_window: 36501d is longer than 36500d"),
        ("delay", "99999999999999d", "delay: 99999999999999d is longer than 36500d"),
        ("largest_value", 0, "largest_value"),
        ("shard_rows", 0, "shard_rows"),
        ("features", [], "features"),
        ("features", [{"name": "a", "kind": "category", "source": "a", "buckets": 2}] * 2, "features"),
        ("impressions.time", {"row_order": {"start": "2020-01-01", "step_us": 1}}, "events need a column"),
        ("clicks.arrival", None, "arrival: of both impressions and clicks, or of neither"),
        ("clicks.topic", "clicks", "topic: of both impressions and clicks, or of neither"),
        ("clicks.topic", "a b", "topic"),
        ("clicks.query_id", "q", "query_id"),
        ("impressions.hashed", True, "ids as a log packs them need Parquet files"),
        (
            "impressions.derive",
            {"weight": {"from": "color", "prefix": 1}},
            "a column of this name is read as a key",
        ),
        (
            *("impressions.derive", {"a": {"from": "color", "prefix": 1}, "b": {"from": "a", "prefix": 1}}),
            "a is itself derived",
        ),
        ("sampling", {**RULE, "name": "a/b"}, "sampling.name"),
        (
            "sampling",
            {**RULE, "rule": {"uninformative": {"rate": 0.5, "low_loss": {"teacher": "t", "below": 0.1}}}},
            "t is not the teacher here",
        ),
        ("unknown", 1, "unknown"),
    ],
)
def test_what_a_mapping_may_not_say_is_one_line(
    path: str, value: Any, complaint: str, made: Any, tmp_path: Path
) -> None:
    file = tmp_path / "mapping.yaml"
    file.write_text(yaml.safe_dump(changed(made.content(), path, value)))
    with pytest.raises(InputError) as caught:
        load_event_mapping(file)
    assert complaint in str(caught.value)
    assert str(file) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_teacher_scores_this_log_alone(made: Any) -> None:
    low_loss = {"teacher": "t", "below": 0.1, "log": "elsewhere"}
    sampling = {**RULE, "rule": {"uninformative": {"rate": 0.5, "low_loss": low_loss}}}
    with pytest.raises(InputError, match="the teacher scores this log"):
        made.mapping(sampling=sampling, teacher={"name": "t", "model": "models"})


def test_durations_are_those_of_the_rules(made: Any) -> None:
    rules = interval_rules(made.mapping(interval="1h", click_window="30m", delay="10s"))
    assert (rules.length, rules.window, rules.late_window) == (3_600_000_000, 1_800_000_000, 1_800_000_000)
    assert (rules.delay, rules.lookback) == (10_000_000, 3_600_000_000)
    assert interval_rules(made.mapping(late_window="1d")).late_window == 86_400_000_000


def test_wanted_columns_are_named_once(made: Any) -> None:
    mapping = made.mapping()
    names = ["event_time", "arrival_time", "impression_id", "query_id", "weight", "color", "price", "tags"]
    assert list(mapping.raw_columns) == names
    hashed = made.mapping("parquet", impressions={"hashed": True})
    assert list(hashed.raw_columns) == [*names[:5], "ids", "tags"]


def test_the_mapping_that_ships_can_be_read(root: Path) -> None:
    mapping = load_event_mapping(root / "examples/events/simulated.yaml")
    assert mapping == parse_model(EventMapping, mapping.model_dump(mode="json"), "again")
