"""Which distinct table rows a batch needs, against a plain lookup."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr.models.rows import FeatureRows, TableLayout, lay_out_tables, padded_size, plan_table

FEATURES = (
    FeatureRows("a", 5, 4, "quality", 0),
    FeatureRows("m", 7, 4, "quality", None),
    FeatureRows("b", 3, 8, "ui", 1),
    FeatureRows("c", 11, 4, "quality", 2),
    FeatureRows("n", 2, 4, "quality", None),
    FeatureRows("d", 6, 4, "ui", 3),
    FeatureRows("z", 9, 0, "quality", 4),
    FeatureRows("y", 9, 0, "quality", None),
)


def test_features_of_one_tower_and_width_share_a_table():
    layouts = lay_out_tables(FEATURES)
    assert [layout.name for layout in layouts] == ["quality-0", "quality-4", "ui-4", "ui-8"]
    shared = layouts[1]
    # Single-valued before multivalent, else in their own order.
    assert [feature.name for feature in shared.features] == ["a", "c", "m", "n"]
    assert [feature.name for feature in shared.single] == ["a", "c"]
    assert [feature.name for feature in shared.multivalent] == ["m", "n"]
    assert shared.offsets() == {"a": 0, "c": 5, "m": 16, "n": 23}
    assert shared.rows == 25


def test_a_table_that_int32_cannot_number_is_refused():
    half = 2**30
    features = [FeatureRows(name, half, 4, "ui", index) for index, name in enumerate("ab")]
    with pytest.raises(ValueError, match=r"table ui-4: 2147483648 rows are too many"):
        lay_out_tables(features)
    assert len(lay_out_tables([features[0], FeatureRows("b", half, 8, "ui", 1)])) == 2


@given(st.integers(1, 10**7), st.integers(1, 5000))
def test_a_padded_size_holds_its_entries_and_wastes_little(size, smallest):
    padded = padded_size(size, smallest)
    assert padded >= size
    assert padded >= smallest
    if size > smallest:
        assert padded - size < padded / 4
        # A capacity is its own: padding does not creep when it is applied again.
        assert padded_size(padded, smallest) == padded


def test_padded_sizes_are_few():
    sizes = {padded_size(size) for size in range(1, 100_000)}
    assert len(sizes) <= 4 * np.log2(100_000 / 64) + 2
    assert [padded_size(size, 1) for size in range(1, 12)] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 10, 12]


def draw_batch(data, rows):
    draw = data.draw
    ids = [
        [draw(st.integers(0, f.buckets - 1)) for f in FEATURES if f.single is not None] for _ in range(rows)
    ]
    lists = {
        f.name: [draw(st.lists(st.integers(0, f.buckets - 1), max_size=3)) for _ in range(rows)]
        for f in FEATURES
        if f.single is None
    }
    columns = {
        name: (
            np.array([value for row in values for value in row], np.int32),
            np.array([len(row) for row in values], np.int32),
        )
        for name, values in lists.items()
    }
    return np.array(ids, np.int32).reshape(rows, 5), lists, columns


@given(st.data(), st.integers(0, 6), st.integers(0, 3), st.sampled_from(lay_out_tables(FEATURES)))
def test_a_plan_refers_to_the_rows_that_the_ids_name(data, rows, padding, layout: TableLayout):
    ids, lists, columns = draw_batch(data, rows)
    plan = plan_table(layout, ids, columns, padded_rows=rows + padding)
    offsets = layout.offsets()
    count = len(layout.multivalent)

    assert plan.single.shape == (rows + padding, len(layout.single))
    for column, feature in enumerate(layout.single):
        expected = ids[:, feature.single] + offsets[feature.name]
        assert plan.distinct[plan.single[:rows, column]].tolist() == expected.tolist()

    found = {}
    for value, segment in zip(plan.values, plan.segments, strict=True):
        found.setdefault(int(segment), []).append(int(plan.distinct[value]))
    found.pop((rows + padding) * count, None)
    expected_segments = {}
    for index, feature in enumerate(layout.multivalent):
        for row, values in enumerate(lists[feature.name]):
            if values:
                expected_segments[row * count + index] = [value + offsets[feature.name] for value in values]
    assert found == expected_segments
    assert (np.diff(plan.segments) >= 0).all()

    named = plan.distinct[: plan.distinct_count]
    used = {int(plan.distinct[position]) for position in plan.single[:rows].ravel()}
    used |= {row for rows_ in expected_segments.values() for row in rows_}
    assert sorted(used) == named.tolist()
    # What pads are rows of the table, too, and no row is there twice.
    assert len(set(plan.distinct.tolist())) == len(plan.distinct) > 0
    assert plan.distinct.min() >= 0 and plan.distinct.max() < layout.rows
    # Padding refers to positions that exist.
    assert plan.single.max(initial=0) < len(plan.distinct)
    assert plan.values.max(initial=0) < len(plan.distinct)
    assert {plan.distinct.dtype, plan.single.dtype, plan.values.dtype, plan.segments.dtype} == {
        np.dtype(np.int32)
    }


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 1000, 5000, 8192, 40_000])
def test_few_rows_pad_and_batches_of_one_size_have_few_capacities(count):
    (layout,) = lay_out_tables([FeatureRows("a", 100_000, 2, "quality", 0)])
    near = range(count - count // 50, count + count // 50 + 1, max(1, count // 500))
    found = [
        plan_table(layout, np.arange(number, dtype=np.int32)[:, np.newaxis], {}, max(64, number))
        for number in near
    ]
    for plan in found:
        assert 0 <= len(plan.distinct) - plan.distinct_count <= max(256, plan.distinct_count / 32)
    assert len({len(plan.distinct) for plan in found}) <= 3
