"""The label: two values within the tolerance, questions that show a value, and rules that can be pasted."""

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.data.mapping import Mapping
from ctr.io.documents import parse_yaml
from ctr.io.errors import InputError
from ctr.pipelines.inference.infer import mapping_text
from ctr.pipelines.inference.labels import plain_label
from made_tables import becomes, facts_of, inferred, reasons, write_table

ROWS = 2000


def clicks(seed: int = 0, share: float = 0.15) -> np.ndarray:
    return np.random.default_rng(seed).random(ROWS) < share


ONES, TAKEN = int(clicks().sum()), int(clicks()[::100].sum())


def spelled(no, yes, others=()):
    """A column of two values, in which some rows have others: (every so many rows, value)."""
    values = [yes if click else no for click in clicks()]
    for step, value in others:
        values[::step] = [value] * len(values[::step])
    return values


def table(path, name, values):
    ads = np.random.default_rng(1).integers(0, 9, ROWS).tolist()
    return write_table(path / "x.csv", {"ad": ads, name: values})


@pytest.mark.parametrize(
    ("values", "label", "because"),
    [
        (spelled(0, 1, [(ROWS, 2)]), {}, "1 of 2,000 rows become rejects (2, first in row 2)"),
        (spelled("False", "True", [(500, None)]), {}, "4 of 2,000 rows become rejects (no value, first in row 2)"),
        (spelled("no", "yes", [(ROWS, "maybe")]), {"op": "==", "value": "yes"},
         "1 of 2,000 rows have neither and count as negative (maybe, first in row 2)"),
        (spelled("no", "yes", [(3, "Yes")]), {"op": "!=", "value": "no"}, "named like a label"),
        (spelled(-1, 1), {"op": ">", "value": 0.0}, "named like a label"),
        (spelled(0, "1.0"), {}, "named like a label"),
    ],
)  # fmt: skip
def test_a_few_other_values_are_said_and_change_no_label(tmp_path, values, label, because):
    found = inferred(table(tmp_path, "click", values))
    assert found.content["label"] == {"column": "click", **label}
    assert because in reasons(found)["click"]


@pytest.mark.parametrize(
    ("values", "fault", "choices"),
    [
        (spelled(0, 1, [(100, 2)]), f"2 stands in 20 of {ONES + 20 - TAKEN} positive rows, first in row 2",
         ["click>=1"]),
        (spelled(0, 1, [(50, -1)]), "-1 stands in 40 of 2,000 rows, first in row 2", ["click>0"]),
        (spelled("no", "yes", [(9, "maybe")]), "maybe stands in 223 of 2,000 rows", ["click==yes"]),
        (spelled("No", "Yes", [(9, "yes"), (7, "no")]), "it has 4 values, e.g. no", []),
        (spelled(0, 1, [(9, "?")]), "? stands in 223 of 2,000 rows", ['click=="1"']),
        (spelled(1, 2), "it has 2 values, e.g. 1", ["click==2"]),
        ([round(k / ROWS, 3) for k in range(ROWS)], "other values) stands in", ["click>=0.5"]),
        (spelled(0, 1, [(20, None)]), "no value in 100 of 2,000 rows, first in row 2; write 0 or 1 there", []),
        (spelled(0, 1, [(20, "NULL")]), "no value in 100 of 2,000 rows, first in row 2; write 0 or 1 there", []),
        (spelled(None, 1), f"it is always 1, or has no value ({ROWS - ONES:,} of 2,000 rows), first in row ", []),
        ([0] * ROWS, "it is always 0", []),
    ],
)  # fmt: skip
def test_a_name_of_a_label_with_other_values_is_a_question_that_shows_them(tmp_path, values, fault, choices):
    path = table(tmp_path, "click", values)
    (doubt,) = inferred(path).doubts
    assert fault in doubt.question and doubt.option == "--label"
    assert [choice.value for choice in doubt.choices] == choices
    if choices:
        # The name alone is the same question; the rule is an answer.
        (given,) = inferred(path, label="click").doubts
        assert fault in given.question and given.choices == doubt.choices
        label = inferred(path, label=choices[0]).content["label"]
        assert label["column"] == "click" and label["op"] in (">=", ">", "==")
    else:
        with pytest.raises(InputError):
            inferred(path, label="click")


@pytest.mark.parametrize(
    ("clicks", "wrong", "is_label"), [(400, 2, True), (400, 3, False), (1600, 2, True), (1600, 3, False)]
)
def test_a_label_may_have_other_values_in_half_a_percent_of_its_rarer_class(clicks, wrong, is_label):
    """2 of 400: a value that is neither may be one of the rarer kind."""
    values = [1] * clicks + [0] * (ROWS - clicks) + [2] * wrong
    assert (plain_label(facts_of(values, "click")) is not None) == is_label


def test_an_outcome_beside_a_certain_label_is_asked_where_it_nearly_is_one(tmp_path):
    columns = {"ad": [0, 1, 2, 3] * 500, "click": spelled(0, 1, [(100, 2)]), "booked": spelled(0, 1)}
    (doubt,) = inferred(write_table(tmp_path / "x.csv", columns)).doubts
    assert [choice.value for choice in doubt.choices] == ["booked", "click>=1"]
    # Defined for clicks alone, it is no other label.
    columns["click"] = [int(click) for click in clicks()]
    columns["booked"] = [int(row % 3 == 0) if click else None for row, click in enumerate(columns["click"])]
    assert inferred(write_table(tmp_path / "y.csv", columns)).content["label"] == {"column": "click"}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("class", ("<=50K", ">50K")),
        ("a>=b", ("01", "02")),
        ("x==y", ("it's", 'the "b"')),
        ('with "quotes"', ("1", "two")),
        ("y = z", ('"a"', "'b'")),
        ("b", ("a==b", "1e3")),
    ],
)
def test_columns_of_two_values_are_offered_with_rules_that_work_when_pasted(tmp_path, name, values):
    rows = spelled(*values)
    ads = np.random.default_rng(1).integers(0, 9, ROWS).tolist()
    path = write_table(tmp_path / "x.tsv", {"ad": ads, name: rows}, "\t")
    (doubt,) = inferred(path).doubts
    (choice,) = doubt.choices
    assert plain_label(facts_of(rows, name)) is None and f"{ONES / ROWS:.0%} positive" in choice.because
    found = inferred(path, label=choice.value)
    assert f"given by --label; {ONES / ROWS:.0%} positive" in reasons(found)[name]
    assert parse_model(Mapping, parse_yaml(mapping_text(found, "x")), "test").label == found.mapping.label


def test_events_and_grades_are_offered_with_rules(tmp_path):
    events = np.random.default_rng(0).choice(["view", "cart", "purchase"], ROWS, p=[0.8, 0.1, 0.1])
    grades = np.random.default_rng(0).integers(0, 5, ROWS)
    columns = {"ad": [0, 1, 2, 3] * 500, "event_type": events, "relevance": grades}
    (doubt,) = inferred(write_table(tmp_path / "x.csv", columns)).doubts
    assert [choice.value for choice in doubt.choices] == ["relevance>=3", "event_type==purchase"]


@pytest.mark.parametrize(("prefix", "shown"), [("", "Impression"), ("total ", "ad_impressions")])
def test_counts_of_clicks_are_no_label(tmp_path, prefix, shown):
    rng = np.random.default_rng(0)
    impressions = rng.integers(1, 9, ROWS)
    count = rng.binomial(impressions, 0.15)
    columns = {"ad": rng.integers(0, 9, ROWS), shown: impressions, f"{prefix}clicks": count}
    path = write_table(tmp_path / "x.csv", columns)
    row = int(np.flatnonzero(count > 1)[0])
    rule, rate = f"{prefix}clicks>0", count.sum() / impressions.sum()
    for options in ({}, {"label": f"{prefix}clicks"}, {"label": rule, "weight": shown}):
        with pytest.raises(InputError) as refusal:
            inferred(path, **options)
        told = f"clicks {count[row]}, {shown} {impressions[row]}, first in row {row + 2}), of which {rate:.0%} are"
        assert told in str(refusal.value) and f"write each row {shown} times" in refusal.value.hint
    # The rule alone is a label of rows, and it is said that these are no impressions.
    found = inferred(path, label=rule)
    assert any(f"of the impressions {rate:.0%} are" in note for note in found.notes)
    # A history beside a label of its own counts nothing of the row.
    columns = {
        "ad": columns["ad"],
        "user_clicks": count,
        "user_impressions": impressions,
        "click": clicks().astype(int),
    }
    found = inferred(write_table(tmp_path / "y.csv", columns))
    assert becomes(found)["click"] == "label" and not any("warning" in note for note in found.notes)
