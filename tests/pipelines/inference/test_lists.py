"""Lists written as text in whatever way, vectors, and whole numbers that are names."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr.data.kept_values import read_values
from ctr.pipelines.inference.columns import ListForm, profile_column
from ctr.pipelines.inference.features import decide_feature
from made_tables import facts_of, inferred, ingested

ITEMS = ("art", "music", "new york", "d'or", "x-1", "food", "a.b")


def lists(items=ITEMS, rows: int = 400, longest: int = 4) -> list[list]:
    rng = np.random.default_rng(0)
    return [
        list(rng.choice(np.array(items, object), rng.integers(1, longest + 1), False)) for _ in range(rows)
    ]


def items_read(texts, name: str = "a") -> list[list[str]]:
    """The items of the texts by the inferred feature."""
    feature = decide_feature(facts_of(texts, name)).feature
    assert feature is not None and feature.get("multivalent"), feature
    form = ListForm(feature["separator"], feature.get("strip", ""))
    return [form.items(text) for text in texts]


@pytest.mark.parametrize(
    "write",
    [str, json.dumps, lambda row: json.dumps(row, separators=(",", ":")), lambda row: str(tuple(row)),
     lambda row: f"[{', '.join(row)}]", lambda row: "{" + ",".join(map(json.dumps, row)) + "}"],
    ids=["python", "json", "compact json", "tuple", "without quotes", "set"],
)  # fmt: skip
def test_the_items_of_lists_in_brackets_are_those_that_were_written(write):
    rows = [*lists(), []]
    # Python's quotes are of two kinds where an item has one of them; without them that is no matter.
    assert items_read([write(row) for row in rows]) == rows


def test_commas_within_quotes_are_no_separators():
    rows = lists(("Crime, Drama", "Action", "War, History", "Music"))
    assert items_read([str(row) for row in rows]) == rows


def test_numbers_in_brackets_are_items():
    rows = lists((1, 2, 30, 400))
    expected = [list(map(str, row)) for row in rows]
    assert items_read([str(row) for row in rows]) == expected
    assert items_read([str(np.array(row)) for row in rows]) == expected


@pytest.mark.parametrize("mark", ["^", "#", "~", "\x01", "\x02", "\x1f", "|", ";", ", "])
def test_a_separator_of_ones_own_is_found(mark):
    rows = lists(("Ab1", "Bc2", "Cd3", "De4", "Ef5", "new york"))
    assert items_read([mark.join(row) for row in rows]) == rows


def test_long_histories_and_lists_of_one_length_are_lists():
    rows = lists([f"i{place}" for place in range(900)], 600, 30)
    assert items_read(["^".join(row) for row in rows]) == rows
    rng = np.random.default_rng(0)
    fixed = [list(rng.choice(["kids", "home", "cars", "toys", "food"], 3)) for _ in range(400)]
    assert items_read(["|".join(row) for row in fixed]) == fixed
    parts = [
        f"{rng.choice(['a', 'b'])}|{rng.integers(10, 40)}|{rng.choice(['x', 'y', 'z'])}" for _ in range(400)
    ]
    assert not decide_feature(facts_of(parts)).feature.get("multivalent")


VECTORS = {
    "python": lambda row: str(row),
    "numpy": lambda row: str(np.array(row)),
    "bars": lambda row: "|".join(map(str, row)),
    "commas": lambda row: ",".join(map(str, row)),
    "spaces": lambda row: " ".join(f"{one:.3e}" for one in row),
    "semicolons": lambda row: "; ".join(map(str, row)),
}


@pytest.mark.parametrize("form", [*VECTORS, "list", "fixed list", "list of texts"])
def test_lists_of_fractions_are_no_categories(form):
    rng = np.random.default_rng(0)
    rows = rng.normal(0, 1, (300, 12)).round(4).tolist()
    if form in VECTORS:
        facts = facts_of([VECTORS[form](row) for row in rows], "emb")
    elif form == "list of texts":
        facts = profile_column("emb", pa.array([list(map(str, row)) for row in rows]))
    else:
        kind = pa.list_(pa.float32()) if form == "list" else pa.list_(pa.float64(), 12)
        column = pa.array(rows, kind)
        facts = profile_column("emb", column.cast(pa.list_(column.type.value_type)))
    decision = decide_feature(facts)
    assert decision.feature is None and "vectors" in decision.because


def test_whole_numbers_in_lists_of_floats_are_items_and_zeros_and_ones_are_none():
    floats = profile_column("a", pa.array([[1.0, 2.0], [3.0], None] * 30, pa.list_(pa.float64())))
    assert decide_feature(floats).feature["multivalent"]
    rng = np.random.default_rng(0)
    for texts in ([str(row) for row in rng.integers(0, 2, (300, 8)).tolist()],):
        assert "vectors" in decide_feature(facts_of(texts)).because


def test_a_log_of_lists_in_brackets_has_the_items_as_values(tmp_path):
    rows = lists(("art", "music", "new york"), longest=3)
    label = np.random.default_rng(1).integers(0, 2, len(rows))
    lines = [f'"{row}",{one}' for row, one in zip(rows, label, strict=True)]
    (tmp_path / "x.csv").write_text("\n".join(["tags,click", *lines]) + "\n")
    found = inferred(tmp_path / "x.csv")
    ingested(found, tmp_path / "x.csv")
    columns = [pq.read_table(path, columns=["tags"]) for path in (tmp_path / "log").glob("shards/*.parquet")]
    ids = set(pa.concat_tables(columns)["tags"].combine_chunks().flatten().to_pylist())
    values = read_values(tmp_path / "log", "tags", ids)
    assert len(ids) == 3 and sorted(values.values()) == ["art", "music", "new york"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("agent", "category"), ("FlightNumber", "category"), ("pickup_community_area", "category"), ("zip", "category"),
     ("flight_no", "category"), ("ip", "category"), ("num_flights", "number"), ("visit_number", "number"),
     ("agent_count", "number"), ("area_sqm", "number"), ("clients", "number")],
)  # fmt: skip
def test_whole_numbers_that_are_names_are_categories(name, kind):
    # Like amounts: they begin at 1, and small ones are the most frequent.
    values = np.random.default_rng(0).geometric(0.02, 4000)
    assert decide_feature(facts_of(values.tolist(), name)).feature["kind"] == kind


def test_versions_are_categories():
    values = np.random.default_rng(0).choice([9.0, 10.1, 10.3, 11, 12.4, 8.1], 500)
    assert decide_feature(facts_of(values.tolist(), "os_version")).feature["kind"] == "category"
    assert decide_feature(facts_of(values.tolist(), "conversion_score")).feature["kind"] == "number"
