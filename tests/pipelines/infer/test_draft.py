"""Mappings of whole tables, whatever their columns: features, leaks, and the file that is written."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import raw_logs
from ctr.config import parse_model
from ctr.data.mapping import Mapping
from ctr.io.documents import parse_yaml
from ctr.io.errors import InputError
from ctr.pipelines.infer.columns import strongest_columns, strongest_text
from ctr.pipelines.infer.draft import decision_table, mapping_text
from made_tables import becomes, column_of, drafted, ingested, write_table

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
}


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(st.sampled_from(sorted(COLUMNS)), min_size=2, unique=True),
    label=st.sampled_from(["clicked", "is_click", "label", "click:float"]),
    seed=st.integers(0, 5),
    delimiter=st.sampled_from("\t;"),
)
@example(names=sorted(COLUMNS), label="clicked", seed=0, delimiter="\t")
def test_any_table_gives_a_mapping_and_a_guess_for_each_column(tmp_path, names, label, seed, delimiter):
    rng = np.random.default_rng(seed)
    columns = {name: COLUMNS[name](rng, 200) for name in [*names, "user id"]}
    columns[label] = np.where(rng.random(200) < 0.3, "yes", "no").tolist()
    path = write_table(tmp_path / "x.csv", columns, delimiter)
    roles = {"time": "ts" if "ts" in names else None, "query": "query_id" if "query_id" in names else None}
    found = drafted(path, label, **roles)
    mapping = parse_model(Mapping, found.content, "test")
    assert mapping.label.column == label and mapping.time.column == roles["time"]
    assert (mapping.query is None) == (roles["query"] is None)
    assert set(found.columns) >= set(columns)
    used = {feature.source for feature in mapping.features}
    assert not used & {label, "const", "row", "ts", "query_id"}
    text = mapping_text(found, "x.csv")
    assert parse_model(Mapping, parse_yaml(text), "test") == mapping
    table = decision_table(found.columns, 80)
    assert "\x1b" not in text + table and max(map(len, table.splitlines())) <= 80


def test_a_column_that_alone_ranks_the_rows_is_refused_as_a_leak(tmp_path):
    rng = np.random.default_rng(0)
    label = (rng.random(3000) < 0.2).astype(int)
    columns = {
        "ad": rng.integers(0, 9, 3000).tolist(),
        "state (mail)": np.where(label, "done", "sent").tolist(),
        "paid": [round(float(rng.random()), 2) if one else None for one in label],
        "strong": np.where(rng.random(3000) < 0.8, label, rng.integers(0, 2, 3000)).tolist(),
        "click": label.tolist(),
    }
    path = write_table(tmp_path / "x.csv", columns)
    with pytest.raises(InputError) as refusal:
        drafted(path)
    # What changes in the same rows as the label is a duplicate of it.
    assert "how well it alone ranks the rows: paid (AUC 1.000)" in str(refusal.value)
    assert refusal.value.hint.startswith("--drop paid trains without; --keep keeps")
    found = drafted(path, drop=("paid",))
    assert becomes(found)["state (mail)"] == "not used"
    assert [feature["name"] for feature in found.content["features"]] == ["ad", "strong"]
    assert found.strongest[0][0] == "strong" and found.strongest[0][1] == pytest.approx(0.9, abs=0.03)
    kept = drafted(path, keep=("paid", "state (mail)"))
    assert [feature["name"] for feature in kept.content["features"]] == ["ad", "state_mail", "paid", "strong"]


def test_the_strongest_columns_are_named_by_their_auc_alone():
    rows, rng = 12_000, np.random.default_rng(1)
    label = (rng.random(rows) < 0.2).astype(np.int8)
    columns = {
        "noise": rng.integers(0, 5, rows),
        "unique": np.arange(rows),
        "ids": rng.integers(0, 4000, rows),
        "strong": np.where(rng.random(rows) < 0.8, label, rng.integers(0, 2, rows)),
        "number": rng.normal(label, 1).round(3),
        "weak": rng.normal(0.6 * label, 1).round(3),
    }
    made = {name: column_of(values.tolist(), name) for name, values in columns.items()}
    found = strongest_columns(made, label, np.ones(rows, bool))
    assert [name for name, _ in found[:3]] == ["strong", "number", "weak"]
    # 0.8 + 0.2 / 2 of either class has the value of its own; Phi(1 / sqrt 2) and Phi(0.6 / sqrt 2).
    assert [auc for _, auc in found[:3]] == pytest.approx([0.9, 0.760, 0.664], abs=0.03)
    # The rows that give the shares are not those that are ranked: ids without a meaning are no better than chance.
    assert dict(found)["ids"] < 0.53 and dict(found)["unique"] < 0.53
    few = {"number": column_of(columns["number"][:50].tolist())}
    assert strongest_columns(few, label[:50], np.ones(50, bool)) == []
    assert "strong 0." in strongest_text(found) and strongest_text([]) == ""


def test_ids_that_were_rounded_as_floats_are_named(tmp_path):
    ids = [2**53 + row % 40 for row in range(400)]
    clicks = [row % 3 // 2 for row in range(400)]
    for kind, warned in ((pa.float64(), True), (pa.int64(), False), (pa.string(), False)):
        texts = [str(one) for one in ids] if kind == pa.string() else ids
        values = pa.array(texts if kind != pa.float64() else [float(one) for one in ids], kind)
        pq.write_table(pa.table({"ad": values, "click": clicks}), tmp_path / "x.parquet")
        found = drafted(tmp_path / "x.parquet")
        assert any("ad has whole numbers above 2^53 as floats" in note for note in found.notes) == warned
        assert found.columns["ad"].because.split("; ")[-1].startswith("21 values" if warned else "40 values")


def test_duplicates_and_what_is_dropped_are_no_features(tmp_path):
    rng = np.random.default_rng(0)
    item = rng.integers(0, 20, 400)
    columns = {
        "event_id": [f"e{k}" for k in range(400)],
        "item": item.tolist(),
        "item_code": [f"i{k}" for k in item],
        "weight": rng.random(400).round(2).tolist(),
        "click": rng.integers(0, 2, 400).tolist(),
    }
    path = write_table(tmp_path / "x.csv", columns)
    found = drafted(path)
    assert [feature["name"] for feature in found.content["features"]] == ["item", "weight"]
    assert "a duplicate of item" in mapping_text(found, "x.csv")
    kept = drafted(path, keep=("item_code",), drop=("weight",)).content["features"]
    assert [feature["name"] for feature in kept] == ["item", "item_code"]


def test_decimal_commas_become_numbers_of_the_log(tmp_path):
    rng = np.random.default_rng(0)
    prices = rng.integers(100, 900_000, 300) / 100
    columns = {"price": [f"{price:.2f}".replace(".", ",") for price in prices]}
    for name, values in {"a": 9, "price_decimal_comma": 3, "click": 2}.items():
        columns[name] = rng.integers(0, values, 300).tolist()
    path = write_table(tmp_path / "x.csv", columns, ";")
    found = drafted(path)
    assert drafted(path, keep=("price",)).content == found.content
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
    found = drafted(path)
    assert {feature["source"]: feature["name"] for feature in found.content["features"]} == names
    _, result = ingested(found, path)
    assert (result.examples, result.clicks) == (60, 30)
