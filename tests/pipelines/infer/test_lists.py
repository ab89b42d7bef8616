"""Lists written as text in whatever way, and vectors."""

import json

import numpy as np
import pyarrow as pa
import pytest

from ctr.pipelines.infer.columns import decide_feature, profile_column, split_items
from made_tables import column_of

ITEMS = ("art", "music", "new york", "d'or", "x-1", "food", "a.b")
CODES = ("Ab1", "Bc2", "Cd3", "De4", "Ef5", "new york")
COMMAS = ("Crime, Drama", "Action", "War, History", "Music")
NUMBERS = (1, 2, 30, 400)
HISTORIES = tuple(f"i{place}" for place in range(900))


def lists(items=ITEMS, rows=400, longest=4):
    rng, items = np.random.default_rng(0), np.array(items, object)
    return [list(rng.choice(items, rng.integers(1, longest + 1), False)) for _ in range(rows)]


@pytest.mark.parametrize(
    ("rows", "write"),
    [
        # Python's quotes are of two kinds where an item has one of them; without them that is no matter.
        ([*lists(), []], str),
        ([*lists(), []], json.dumps),
        ([*lists(), []], lambda row: json.dumps(row, separators=(",", ":"))),
        ([*lists(), []], lambda row: str(tuple(row))),
        ([*lists(), []], lambda row: f"[{', '.join(row)}]"),
        ([*lists(), []], lambda row: "{" + ",".join(map(json.dumps, row)) + "}"),
        # Commas within quotes are no separators.
        (lists(COMMAS), str),
        (lists(NUMBERS), str),
        (lists(NUMBERS), lambda row: str(np.array(row))),
        *((lists(CODES), mark.join) for mark in ("^", "#", "~", "\x01", "\x02", "\x1f", "|", ";", ", ")),
        # Long histories.
        (lists(HISTORIES, 600, 30), "^".join),
    ],
)
def test_the_items_of_lists_are_those_that_were_written(rows, write):
    texts = [write(row) for row in rows]
    feature = decide_feature(column_of(texts)).feature
    assert feature is not None and feature.get("multivalent"), feature
    form = feature["separator"], feature.get("strip", "")
    assert [split_items(text, *form) for text in texts] == [list(map(str, row)) for row in rows]


def test_parts_of_one_value_are_no_list():
    rng = np.random.default_rng(0)
    texts = [f"{'ab'[n % 2]}|{rng.integers(10, 40)}|{rng.choice(list('xyz'))}" for n in range(400)]
    assert not decide_feature(column_of(texts)).feature.get("multivalent")


VECTORS = {
    "python": str,
    "numpy": lambda row: str(np.array(row)),
    "bars": lambda row: "|".join(map(str, row)),
    "commas": lambda row: ",".join(map(str, row)),
    "zeros and ones": lambda row: str([int(one > 0) for one in row]),
}
ARRAYS = {"list": pa.list_(pa.float32()), "fixed list": pa.list_(pa.float64(), 12)}


@pytest.mark.parametrize("form", [*VECTORS, *ARRAYS, "list of texts"])
def test_lists_of_fractions_are_no_categories(form):
    rows = np.random.default_rng(0).normal(0, 1, (300, 12)).round(4).tolist()
    if form in VECTORS:
        facts = column_of([VECTORS[form](row) for row in rows], "emb")
    elif form in ARRAYS:
        column = pa.array(rows, ARRAYS[form])
        facts = profile_column("emb", column.cast(pa.list_(column.type.value_type)))
    else:
        facts = profile_column("emb", pa.array([list(map(str, row)) for row in rows]))
    decision = decide_feature(facts)
    assert decision.feature is None and "vectors" in decision.because
    # Whole numbers in lists of floats are items.
    whole = pa.array([[1.0, 2.0], [3.0], None] * 30, pa.list_(pa.float64()))
    assert decide_feature(profile_column("a", whole)).feature["multivalent"]
