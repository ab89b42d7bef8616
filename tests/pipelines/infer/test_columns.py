"""Types of columns: numbers, words, lists, texts and times, over generated values."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.pipelines.infer.columns import decide_feature, find_nulls
from made_tables import column_of


@settings(max_examples=25, deadline=None)
@given(
    values=st.lists(st.none() | st.floats(-1e9, 1e9).map(lambda x: round(x, 3)), min_size=20, max_size=200)
)
def test_every_number_of_a_column_has_a_bucket_of_its_feature(values):
    values = [*values, 0.125, 7.5]
    facts = column_of(values)
    assert facts.numbers is not None
    assert facts.missing_share == pytest.approx(sum(value is None for value in values) / len(values))
    decision = decide_feature(facts)
    assert decision.feature is not None, decision
    assert sum(key in decision.feature for key in ("step", "boundaries")) == 1


@pytest.mark.parametrize(
    "values",
    [
        # A few are far from the rest, and more digits than six tell the ends.
        [*np.round(np.linspace(0, 10, 990), 3).tolist(), 19.47, -3.25],
        [*np.round(np.random.default_rng(0).normal(30, 5, 500), 2).tolist(), 1234567.89],
        [*np.random.default_rng(1).integers(0, 300, 900).tolist(), 98_765_432],
    ],
)
def test_the_range_that_is_named_holds_every_value(values):
    found = decide_feature(column_of(values))
    begin, end = re.search(r"from (\S+) to (\S+)$", found.because).groups()
    assert found.becomes.startswith("number")
    assert float(begin) <= min(values) and max(values) <= float(end)
    assert float(end) == pytest.approx(max(values), rel=1e-5)


@pytest.mark.parametrize(
    ("draw", "key"),
    [
        (lambda rng: rng.normal(50, 9, 3000), "step"),
        (lambda rng: rng.exponential(30, 3000), "boundaries"),
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
    # Perhaps thousands.
    assert (
        decide_feature(column_of([f"{place},{100 + place}" for place in range(90)] * 2)).feature["kind"]
        == "category"
    )


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(-(10**9), 10**9), min_size=60, max_size=80, unique=True), st.booleans())
def test_decimal_commas_are_read_as_numbers(cents, grouped):
    numbers = [cent / 100 for cent in [*cents, 105]]
    texts = [f"{number:{',' if grouped else ''}.2f}" for number in numbers]
    decision = decide_feature(column_of([text.translate(str.maketrans(",.", ".,")) for text in texts]))
    assert decision.feature["kind"] == "number" and decision.cast == "decimal_comma"
    assert f"from {min(numbers):.15g} to {max(numbers):.15g}" in decision.because
