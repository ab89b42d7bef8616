"""Types of columns: numbers, words, lists, texts and times, over generated values."""

import numpy as np
import pytest

from ctr.pipelines.infer.columns import decide_feature, find_nulls
from made_tables import column_of


@pytest.mark.parametrize(
    ("draw", "key"),
    [
        (lambda rng: rng.normal(50, 9, 3000), "step"),
        (lambda rng: rng.lognormal(3, 1, 3000), "boundaries"),
        (lambda rng: 900 - rng.lognormal(3, 1, 3000), "boundaries"),
        # Most are 0: the others decide.
        (lambda rng: rng.lognormal(3, 1, 3000) * (rng.random(3000) < 0.4), "boundaries"),
        (lambda rng: rng.normal(50, 9, 3000) * (rng.random(3000) < 0.4), "step"),
    ],
)
def test_numbers_with_a_heavy_tail_have_as_many_rows_in_each_bucket(draw, key):
    values = draw(np.random.default_rng(0)).round(3)
    assert key in decide_feature(column_of(values.tolist())).feature


def test_titles_are_text_and_codes_are_categories():
    rng = np.random.default_rng(0)
    words = [f"{a}{b}o{c}" for a in "bcdfgklmnprst" for b in ("a", "e", "i", "ar", "un") for c in "dklmnprst"]
    titles = [" ".join(rng.choice(words, rng.integers(2, 6))) for _ in range(400)]
    assert decide_feature(column_of(titles)).feature["kind"] == "text"
    for values in (["01234", "99999", "12345"] * 9, ["de", "fr"] * 9, ["1.2.3", "4.5.6"] * 9, [7, 8] * 9):
        assert decide_feature(column_of(values)).feature["kind"] == "category"
    ids = (rng.integers(0, 200, 2000) * 1217 + 20_000).tolist()
    assert decide_feature(column_of(ids)).feature["kind"] == "category"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([None] * 60, "no values"),
        (["x"] * 60, "constant"),
        ([f"u{place}" for place in range(60)], "unique per row"),
        ([*range(1000, 1100), 1101], "grows from row to row"),
    ],
)
def test_columns_that_say_nothing_are_not_used(values, reason):
    decision = decide_feature(column_of(values))
    assert decision.feature is None and reason in decision.because


def test_words_for_a_missing_value():
    columns = {"a": column_of(["1", "NA", "2.5"]).array, "b": column_of(["NA", "SA", "EU"]).array}
    assert find_nulls(columns) == ("NA",)
    assert find_nulls({"b": columns["b"]}) == ()
    assert find_nulls({"c": column_of(["x", "NULL", "y"]).array}) == ("NULL",)


def test_numbers_with_commas_between_thousands_are_no_lists_and_are_named():
    values = ["1,250", "12,000.50", "999", "1,000,000"]
    decision = decide_feature(column_of([values[place % len(values)] for place in range(90)]))
    assert (decision.becomes, decision.because[:20]) == ("category", "numbers with a comma")
    assert decide_feature(column_of(["1,2", "1,2,3", "3", "2,3,1"] * 30)).feature["multivalent"]
    perhaps = column_of([f"{place},{100 + place}" for place in range(90)] * 2)
    assert decide_feature(perhaps).feature["kind"] == "category"
