"""Weights and example ids, and how many rows a role may cost: rejects within the tolerance, else questions."""

import numpy as np
import pytest

from ctr.pipelines.inference.roles import too_many
from made_tables import becomes, inferred, reasons, write_table

ROWS = 2000


@pytest.mark.parametrize(
    ("rows", "clicks", "lost", "lost_clicks", "told"),
    [
        # 0.5% of the rows exactly, and one more.
        (2000, 300, 10, 1, ""),
        (2000, 300, 11, 1, "11 of 2,000 rows"),
        # 0.5% of the positive rows, and one more, where chance would lose fewer: 1 + 4 + 1 of 20,000.
        (20_000, 2000, 10, 10, ""),
        (20_000, 2000, 11, 11, "11 of 2,000 positive rows"),
        # Of few positive rows chance loses 2 + 4 * sqrt(2) + 1, which is more than 0.5% of them.
        (2000, 400, 10, 8, ""),
        (2000, 400, 10, 9, "9 of 400 positive rows"),
        (2000, None, 10, 0, ""),
        (2000, 0, 10, 0, ""),
    ],
)
def test_a_role_costs_at_most_half_a_percent_of_the_rows_and_of_the_positive_ones(
    rows, clicks, lost, lost_clicks, told
):
    bad, positive = np.zeros(rows, bool), np.zeros(rows, bool)
    bad[:lost] = True
    positive[lost - lost_clicks : lost - lost_clicks + (clicks or 0)] = True
    assert too_many(bad, None if clicks is None else positive) == told


def table(path, **columns):
    rng = np.random.default_rng(0)
    made = {"ad": rng.integers(0, 9, ROWS).tolist(), "click": rng.integers(0, 2, ROWS).tolist()}
    return write_table(path / "x.csv", made | columns)


def changed(values, step, value):
    values = list(values)
    values[1::step] = [value] * len(values[1::step])
    return values


WEIGHTS = [1, 2.5] * (ROWS // 2)
IDS = [f"e{row}" for row in range(ROWS)]


@pytest.mark.parametrize(
    ("name", "values", "role", "because"),
    [
        ("sample_weight", changed(WEIGHTS, 500, None), "weight", "its name and values; {} (no value, {})"),
        ("sample_weight", changed(WEIGHTS, 500, -1), "weight", "its name and values; {} (-1, {})"),
        ("event_id", changed(IDS, 500, None), "example_id", "hardly a value comes twice; {} (no value, {})"),
        ("impression_id", changed(IDS, 500, "e0"), "example_id", "hardly a value comes twice; {} (e0, {})"),
        # Numbers that are codes elsewhere.
        ("sample_weight", ["007", "012"] * (ROWS // 2), "weight", "its name and values"),
        # The id of another thing names rows only without repetition.
        ("id", IDS, "example_id", "its name, and no value comes twice"),
        ("id", changed(IDS, 500, "e0"), None, ""),
    ],
)
def test_a_few_rows_without_a_weight_or_an_id_of_their_own_are_rejects(tmp_path, name, values, role, because):
    found = inferred(table(tmp_path, **{name: values}))
    assert {key: found.content.get(key) for key in ("weight", "example_id", "query")} == {
        **{"weight": None, "example_id": None, "query": None},
        **({role: name} if role else {}),
    }
    assert because.format("4 of 2,000 rows become rejects", "first in row 3") in reasons(found)[name]


@pytest.mark.parametrize(
    ("value", "fault"), [(None, "there is no value"), (-1, "-1 is no weight"), ("x", "x is no weight")]
)
def test_a_name_of_a_weight_that_fails_is_a_question(tmp_path, value, fault):
    path = table(tmp_path, sample_weight=changed(WEIGHTS, 50, value))
    (doubt,) = inferred(path).doubts
    assert f"{fault}, first in row 3 (40 of 2,000 rows)" in doubt.question
    assert [choice.value for choice in doubt.choices] == ["none"]
    found = inferred(path, weight="none")
    assert "weight" not in found.content and becomes(found)["sample_weight"] == "not used"


def test_ids_that_come_again_are_said_and_not_used(tmp_path):
    found = inferred(table(tmp_path, event_id=changed(IDS, 20, "e0")))
    assert "example_id" not in found.content
    (note,) = [note for note in found.notes if "event_id" in note]
    assert "event_id is named like the id of a row and is none: 100 of 2,000 rows" in note
    assert "(e0 again, first in row 3)" in note
