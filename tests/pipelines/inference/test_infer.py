"""The inference of whole tables: roles, leaks, doubts, and the mapping file that is written."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import raw_logs
from ctr.config import parse_model
from ctr.data.ids.arrow import string_ids
from ctr.data.kept_values import has_raw_values, read_values
from ctr.data.mapping import Mapping
from ctr.io.documents import parse_yaml
from ctr.io.errors import InputError
from ctr.pipelines.inference.infer import guess_table, mapping_text
from made_tables import becomes, hotel_searches, inferred, ingested, write_table

LABELS = {
    "0": ("0", "1"),
    "yes": ("no", "yes"),
    "TRUE": ("FALSE", "TRUE"),
    "signed": ("-1", "1"),
    "float": ("0.0", "1.0"),
}
COLUMNS = {
    "user id": lambda rng, n: [f"u{k}" for k in rng.integers(0, 30, n)],
    "price": lambda rng, n: rng.normal(50, 20, n).round(2).tolist(),
    "Größe": lambda rng, n: rng.integers(0, 5, n).tolist(),
    "tags": lambda rng, n: ["|".join(rng.choice(list("abcd"), k)) for k in rng.integers(0, 4, n)],
    "label_of_shelf": lambda rng, n: rng.choice(["top", "low", "mid"], n).tolist(),
    "const": lambda rng, n: ["x"] * n,
    "row": lambda rng, n: list(range(5000, 5000 + n)),
    "time_us": lambda rng, n: rng.integers(0, 50, n).tolist(),
    "query_id": lambda rng, n: (np.arange(n) // 4).tolist(),
    "ts": lambda rng, n: (1_700_000_000 + 977 * np.arange(n)).tolist(),
    "# odd: {name}": lambda rng, n: rng.choice(["a", "b\x1b[31m", "é", "yes"], n).tolist(),
    "line\x85end": lambda rng, n: rng.choice(["a", "b\u2028c"], n).tolist(),
    "hour": lambda rng, n: rng.integers(0, 24, n).tolist(),
    "timestamp_of_birth": lambda rng, n: rng.integers(1, 9, n).tolist(),
}


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(st.sampled_from(sorted(COLUMNS)), min_size=2, unique=True),
    label=st.sampled_from(["clicked", "is_click", "label", "click:float"]),
    words=st.sampled_from(sorted(LABELS)),
    seed=st.integers(0, 5),
    delimiter=st.sampled_from("\t;"),
)
def test_any_table_gives_a_mapping_and_a_guess_for_each_column(
    tmp_path, names, label, words, seed, delimiter
):
    rng = np.random.default_rng(seed)
    columns = {name: COLUMNS[name](rng, 200) for name in [*names, "user id"]}
    clicks = rng.random(200) < 0.3
    columns[label] = [LABELS[words][int(click)] for click in clicks]
    path = write_table(tmp_path / "x.csv", columns, delimiter)
    # Named like a time, small numbers are a question, unless another column is the time.
    odd = "time_us" in names and "ts" not in names
    assert [doubt.option for doubt in inferred(path).doubts] == (["--time"] if odd else [])
    found = inferred(path, time="none" if odd else None)
    assert not found.doubts and found.mapping is not None
    assert found.mapping.label.column == label
    assert found.mapping.query is None or found.mapping.query.column == "query_id"
    assert ("query_id" in names) == (found.mapping.query is not None)
    assert found.mapping.time.column == ("ts" if "ts" in names else None)
    assert {guess.column for guess in found.guesses} >= set(columns)
    used = {feature.source for feature in found.mapping.features}
    assert not used & {label, "const", "row", "ts", "query_id"}
    text = mapping_text(found, "x.csv")
    assert parse_model(Mapping, parse_yaml(text), "test") == found.mapping
    assert "\x1b" not in text + guess_table(found.guesses, 80)
    assert max(map(len, guess_table(found.guesses, 80).splitlines())) <= 80


def test_two_outcomes_are_a_question_and_none_is_a_feature_of_the_other(tmp_path):
    columns = hotel_searches()
    path = write_table(tmp_path / "hotel.csv", columns)
    (doubt,) = inferred(path).doubts
    assert doubt.option == "--label"
    assert [choice.value for choice in doubt.choices] == ["click_bool", "booking_bool"]
    for label, other in (("click_bool", "booking_bool"), ("booking_bool", "click_bool")):
        shown = becomes(inferred(path, label=label))
        assert (shown[label], shown[other], shown["gross_usd"]) == ("label", "not used", "not used")
        assert (shown["srch_id"], shown["date_time"]) == ("query", "time, format iso8601")
        assert shown["review"] == "number, even buckets" and shown["site_id"] == "not used"
    # The file that is written makes a log of every row.
    _, result = ingested(inferred(path, label="click_bool"), path)
    assert (result.queries, result.clicks, result.rejected) == (60, 60, 0)
    assert result.examples == result.rows == len(columns["srch_id"])


def test_a_rating_is_offered_with_a_threshold_and_a_user_with_sessions(tmp_path):
    rng = np.random.default_rng(0)
    columns = {"user_id:token": rng.integers(0, 30, 300), "rating:float": rng.integers(1, 6, 300)}
    columns["timestamp:float"] = 881_250_949 + rng.integers(0, 10**7, 300)
    path = write_table(tmp_path / "x.inter", columns, "\t")
    (doubt,) = inferred(path).doubts
    assert doubt.choices[0].value in ("rating>=3", "rating>=4")
    found = inferred(path, label="rating>=4", query="user_id", session_gap="30m")
    assert found.content["label"] == {"column": "rating:float", "op": ">=", "value": 4.0}
    assert found.content["query"] == {"session": {"by": "user_id:token", "gap": "30m"}}
    assert [feature["name"] for feature in found.content["features"]] == ["user_id", "hour", "weekday"]


def test_duplicates_propensities_and_ids_are_no_features(tmp_path):
    rng = np.random.default_rng(0)
    item = rng.integers(0, 20, 400)
    columns = {
        "event_id": [f"e{k}" for k in range(400)],
        "item": item.tolist(),
        "item_code": [f"i{k}" for k in item],
        "propensity_score": rng.random(400).round(3).tolist(),
        "sample_weight": rng.choice([1, 2.5], 400).tolist(),
        "weight": rng.random(400).round(2).tolist(),
        "click": rng.integers(0, 2, 400).tolist(),
    }
    path = write_table(tmp_path / "x.csv", columns)
    found = inferred(path)
    assert found.content["example_id"] == "event_id" and found.content["weight"] == "sample_weight"
    assert [feature["name"] for feature in found.content["features"]] == ["item", "weight"]
    assert "a duplicate of item" in mapping_text(found, "x.csv")
    kept = inferred(path, keep=("item_code",), drop=("weight",)).content["features"]
    assert [feature["name"] for feature in kept] == ["item", "item_code"]


def test_values_are_kept_of_what_is_hashed(tmp_path):
    path = write_table(tmp_path / "hotel.csv", hotel_searches())
    found = inferred(path, label="click_bool")
    hashed = [one.name for one in found.mapping.features if has_raw_values(one)]
    assert parse_yaml(mapping_text(found, path.name))["keep_values"] == hashed != []
    ingested(found, path)
    hotel = str(hotel_searches()["prop_id"][0])
    [fingerprint] = string_ids(np.array([hotel])).tolist()
    wanted = {"prop_id": [fingerprint]}
    assert read_values(tmp_path / "log", wanted) == {"prop_id": {fingerprint: hotel}}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"label": "price"}, "--label price: 100% of the rows have no label there"),
        ({"label": "nothing"}, "--label nothing: no such column; the columns are price, click, a"),
        ({"label": "price>=1e9"}, "have the label 0; both 0 and 1 are required"),
        ({"time": "price"}, "--time price: not read as a time"),
        ({"query": "q"}, "--query q: no such column"),
        ({"session_gap": "30m"}, "--session-gap goes with --query"),
        ({"query": "a", "session_gap": "soon"}, "--session-gap soon: a duration"),
        ({"weight": "a"}, "--weight a: allowed: numbers from 0 on"),
        ({"drop": ("z",)}, "--drop z: no such column"),
        ({"drop": ("a",), "query": "a"}, "--query a: --drop takes the same column out"),
        ({"label": ""}, "--label '': column: '' is not allowed"),
        ({"label": "a>yes"}, "--label 'a>yes': > compares numbers; strings allow only == and !="),
        ({"query": "click"}, "--query click: this column is the label"),
        ({"weight": "CLICK"}, "--weight click: this column is the label"),
        ({"drop": ("a", "price")}, "no column is left as a feature (price: --drop says so; "),
    ],
)
def test_options_that_cannot_be(tmp_path, options, words):
    rng = np.random.default_rng(0)
    columns = {"price": (rng.random(60) + 2).round(3), "click": [0, 1] * 30, "a": rng.choice(list("xyz"), 60)}
    path = write_table(tmp_path / "x.csv", columns)
    with pytest.raises(InputError) as refusal:
        inferred(path, **options)
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


def test_decimal_commas_become_numbers_of_the_log(tmp_path):
    rng = np.random.default_rng(0)
    prices = rng.integers(100, 900_000, 300) / 100
    columns = {"price": [f"{price:.2f}".replace(".", ",") for price in prices]}
    for name, values in {"a": 9, "price_decimal_comma": 3, "click": 2}.items():
        columns[name] = rng.integers(0, values, 300).tolist()
    path = write_table(tmp_path / "x.csv", columns, ";")
    found = inferred(path)
    assert inferred(path, keep=("price",)).content == found.content
    mapping, result = ingested(found, path)
    [price] = [feature for feature in mapping.features if feature.name == "price"]
    assert mapping.derive[price.source].cast == "decimal_comma" and price.source not in columns
    assert (result.rows, result.rejected) == (300, 0)
    ids = [example["price"] for example in raw_logs.read_log(tmp_path / "log")]
    assert ids == (1 + np.searchsorted(price.edges(), prices, side="right")).tolist()
    assert len(set(ids)) > 20


def test_features_keep_the_names_of_their_columns_and_are_told_apart(tmp_path):
    names = {
        "a b": "a_b_2", "a_b": "a_b", "a-b": "a-b", "a.b": "a.b", "a/b": "a_b_3", "点击 率": "点击_率",
        "größe": "größe", "रंग": "रंग", "7": "c_7", "😀": "column", "label": "label_value", "_x": "x",
    }  # fmt: skip
    rng = np.random.default_rng(0)
    columns = {name: rng.choice(list("xyz"), 60).tolist() for name in names}
    path = write_table(tmp_path / "x.csv", {"click": [n % 2 for n in range(60)], **columns})
    found = inferred(path, label="click")
    assert {feature["source"]: feature["name"] for feature in found.content["features"]} == names
    _, result = ingested(found, path)
    assert (result.examples, result.clicks) == (60, 30)
