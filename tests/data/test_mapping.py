"""The mapping file: what it accepts, and how it says what it does not."""

import copy
import re

import pytest
import yaml

from ctr.config import dump_yaml, parse_model
from ctr.data.mapping import (
    Label,
    Mapping,
    duration_us,
    format_names,
    input_patterns,
    load_format,
    load_mapping,
)
from ctr.io.errors import InputError

CONTENT = {
    "input": {"type": "csv"},
    "joins": [{"file": "items.csv", "key": "item", "prefix": "item_"}],
    "time": {"column": "at", "unit": "ms"},
    "query": {"session": {"by": "user", "gap": "30m"}},
    "example_id": "id",
    "label": "rating >= 4",
    "weight": "w",
    "derive": {
        "hour": {"from": "time", "part": "hour"},
        "zip3": {"from": "zip", "prefix": 3},
        "copy": {"from": "z"},
    },
    "partition": "1d",
    "features": [
        {"name": "user", "kind": "category", "source": "user"},
        {"name": "hour", "kind": "category", "source": "hour"},
        {"name": "zip3", "kind": "category", "source": "zip3"},
        {"name": "copy", "kind": "category", "source": "copy"},
        {"name": "price", "kind": "number", "source": "item_price", "log": {}},
        {"name": "tags", "kind": "category", "source": "tags", "multivalent": True, "separator": "|"},
        {"name": "title", "kind": "text", "source": "item_title"},
        {"name": "user_x_price", "kind": "cross", "of": ["user", "price"]},
    ],
}


def changed(path, value):
    content = copy.deepcopy(CONTENT)
    node = content
    *parents, last = path.split(".")
    for key in parents:
        node = node[int(key) if isinstance(node, list) else key]
    if value is ...:
        del node[last]
    elif isinstance(node, list):
        node[int(last)] = value
    else:
        node[last] = value
    return content


def parse(content):
    return parse_model(Mapping, content, "mapping")


def test_key_and_raw_columns_are_those_that_the_mapping_names():
    mapping = parse(CONTENT)
    assert mapping.key_columns == ("at", "user", "id", "rating", "w")
    assert mapping.raw_columns == (
        *("at", "user", "id", "rating", "w", "zip", "z"),
        *("item_price", "tags", "item_title"),
    )
    assert mapping.number_sources == ("item_price",)
    assert mapping.text_sources == ("user", "hour", "zip3", "copy", "tags", "item_title")
    assert mapping.list_sources == {"tags": "|"}
    assert mapping.partition_us == 86_400_000_000
    assert mapping.query.session.gap_us == 1_800_000_000
    assert [feature.name for feature in mapping.feature_schema.features][-1] == "user_x_price"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("input.delimitr", ",", "input.csv.delimitr: unknown key"),
        ("input.delimiter", ";;", "input.csv.delimiter: ';;'"),
        ("input.header", False, "required with header: false, and allowed only there"),
        ("input.columns", ["a"], "required with header: false, and allowed only there"),
        ("input", {"type": "csv", "header": False, "columns": ["a", "a"]}, "columns: a name appears twice"),
        ("input", {"type": "jsonl"}, "with jsonl, each join requires input"),
        ("input", {"type": "mind"}, "the mind reader already joins the news"),
        ("time", {}, "exactly one of column and row_order"),
        ("time.format", "iso8601", "exactly one of unit and format"),
        ("time.unit", ..., "exactly one of unit and format"),
        ("time", {"row_order": {"start": "soon", "step_us": 1}}, "time.row_order.start: 'soon'"),
        ("time", {"row_order": {"start": 0, "step_us": 0}}, "time.row_order.step_us: 0"),
        ("time", {"row_order": {"start": 0, "step_us": 1}, "unit": "s"}, "row_order allows neither"),
        ("query", {"column": "q", "session": {"by": "u", "gap": "1m"}}, "exactly one of column and session"),
        ("query", {}, "exactly one of column and session"),
        ("query.session.gap", "30 minutes", "a duration is a whole number and a unit"),
        ("label", {"column": "r", "op": ">="}, "both op and value"),
        ("label", "event >= buy", ">= compares numbers"),
        ("partition", "0h", "a duration is a whole number and a unit"),
        ("derive.hour.from", "at", "part and every are computed from the row's time; required: from: time"),
        ("derive.hour.prefix", 2, "part, every, prefix and cast cannot be combined"),
        ("derive.zip3.cast", "integer", "part, every, prefix and cast cannot be combined"),
        ("derive.zip3.from", "copy", "copy is itself derived"),
        ("derive.at", {"from": "zip"}, "derive.at: a column of this name is read as a key"),
    ],
)
def test_faults_are_named_by_their_path(path, value, message):
    with pytest.raises(InputError, match=message) as caught:
        parse(changed(path, value))
    assert "\n" not in str(caught.value)


def test_labels_and_durations_as_text():
    for text, column, op, value in (
        ("click", "click", None, None),
        (" rating >= 4 ", "rating", ">=", 4.0),
        ("rating>=4", "rating", ">=", 4.0),
        ("rating:float < -1.5", "rating:float", "<", -1.5),
        ("event == buy", "event", "==", "buy"),
        ("event != 'no buy'", "event", "!=", "no buy"),
        ("two words <= 1e3", "two words", "<=", 1000.0),
    ):
        label = Label.model_validate(text)
        assert (label.column, label.op, label.value) == (column, op, value)
    microseconds = {"1us": 1, "5ms": 5000, "90s": 90_000_000, "30m": 1.8e9, "2h": 7.2e9, "7d": 6.048e11}
    assert {text: duration_us(text) for text in microseconds} == microseconds


def test_the_start_of_row_order_is_utc():
    for start in ("2020-01-01T00:00:00Z", "2020-01-01", "2020-01-01T01:00:00+01:00", 1_577_836_800):
        time = {"row_order": {"start": start, "step_us": 1}}
        assert parse(changed("time", time)).time.row_order.start_us == 1_577_836_800_000_000


def test_the_pattern_of_files_follows_the_input_type():
    for path, value, patterns in (
        ("label", "rating", ("*.csv", "*.csv.gz", "*.csv.zst")),
        ("input", {"type": "parquet"}, ("*.parquet",)),
        ("input.pattern", "day_*", ("day_*",)),
    ):
        assert input_patterns(parse(changed(path, value)).input) == patterns


def test_a_mapping_survives_its_own_echo(tmp_path):
    mapping = parse(CONTENT)
    path = tmp_path / "mapping.yaml"
    path.write_text(yaml.safe_dump(mapping.model_dump(mode="json", by_alias=True)))
    assert load_mapping(path) == mapping
    assert "rating" in dump_yaml(mapping)


def test_a_file_is_named_in_its_faults(tmp_path):
    path = tmp_path / "mapping.yaml"
    for text, fault in ((None, "no such file"), ("input: [", "not YAML"), ("- 1", "a mapping of keys")):
        if text is not None:
            path.write_text(text)
        with pytest.raises(InputError, match=re.escape(f"mapping {path}: {fault}")):
            load_mapping(path)


def test_the_shipped_formats():
    assert format_names() == ("avazu", "criteo", "mind", "movielens", "open_bandit")
    for name in format_names():
        assert load_format(name).features
    with pytest.raises(InputError, match="format yahoo: unknown; the formats are avazu, criteo, mind"):
        load_format("yahoo")
