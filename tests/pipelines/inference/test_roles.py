"""Weights and example ids: rejects within the tolerance, else what is said and asked."""

import numpy as np
import pytest

from made_tables import becomes, inferred, reasons, write_table

ROWS = 2000


def table(path, **columns):
    rng = np.random.default_rng(0)
    made = {"ad": rng.integers(0, 9, ROWS).tolist(), "click": rng.integers(0, 2, ROWS).tolist()}
    return write_table(path / "x.csv", made | columns)


def changed(values, step, value):
    values = list(values)
    values[1::step] = [value] * len(values[1::step])
    return values


WEIGHTS = [1, 2.5] * (ROWS // 2)


@pytest.mark.parametrize(("value", "shown"), [(None, "no value"), (-1, "-1")])
def test_a_few_rows_without_a_weight_are_rejects(tmp_path, value, shown):
    found = inferred(table(tmp_path, sample_weight=changed(WEIGHTS, 500, value)))
    assert found.content["weight"] == "sample_weight"
    why = f"its name and values; 4 of 2,000 rows become rejects ({shown}, first in row 3)"
    assert why in reasons(found)["sample_weight"]


def test_numbers_that_are_codes_elsewhere_are_weights(tmp_path):
    found = inferred(table(tmp_path, sample_weight=["007", "012"] * (ROWS // 2)))
    assert found.content["weight"] == "sample_weight"


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


IDS = [f"e{row}" for row in range(ROWS)]


@pytest.mark.parametrize("name", ["event_id", "impression_id"])
@pytest.mark.parametrize(("value", "shown"), [(None, "no value"), ("e0", "e0")])
def test_a_few_rows_of_another_id_are_rejects(tmp_path, name, value, shown):
    found = inferred(table(tmp_path, **{name: changed(IDS, 500, value)}))
    assert found.content["example_id"] == name and "query" not in found.content
    told = f"hardly a value comes twice; 4 of 2,000 rows become rejects ({shown}, first in row 3)"
    assert told in reasons(found)[name]


def test_an_id_that_may_be_another_things_is_that_of_rows_only_without_repetition(tmp_path):
    assert inferred(table(tmp_path, id=IDS)).content["example_id"] == "id"
    assert "example_id" not in inferred(table(tmp_path, id=changed(IDS, 500, "e0"))).content


def test_ids_that_come_again_are_said_and_not_used(tmp_path):
    found = inferred(table(tmp_path, event_id=changed(IDS, 20, "e0")))
    assert "example_id" not in found.content
    assert any("event_id is named like the id of a row and is none: 100 of 2,000 rows" in note
               and "(e0 again, first in row 3)" in note for note in found.notes)  # fmt: skip
