"""Which distinct table rows a batch needs, against a plain lookup."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.models.rows import FeatureRows, TableLayout, lay_out_tables
from ctr.training.tables.plan import assign_rows, pad_plan, plan_table

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


# Few, so that they repeat and that features have the same ones; among them 0, which says missing, and others that are
# numbers of rows, too.
FINGERPRINTS = (0, 1, 2, 7, -1, 2**32, 2**63 - 1, -(2**63), 0x1234_5678_9ABC_DEF0)


def draw_batch(data, rows, features=FEATURES, dtype=np.int32):
    draw = data.draw

    def an_id(feature):
        return st.sampled_from(FINGERPRINTS) if feature.growing else st.integers(0, feature.buckets - 1)

    singles = [f for f in features if f.single is not None]
    ids = [[draw(an_id(f)) for f in singles] for _ in range(rows)]
    several = [f for f in features if f.single is None]
    lists = {f.name: [draw(st.lists(an_id(f), max_size=3)) for _ in range(rows)] for f in several}
    columns = {
        name: (
            np.array([value for row in values for value in row], dtype),
            np.array([len(row) for row in values], np.int32),
        )
        for name, values in lists.items()
    }
    return np.array(ids, dtype).reshape(rows, len(singles)), lists, columns


def assert_refers(plan, layout, ids, lists, padding, table_rows, row_of):
    """A plan of a batch refers to ``row_of`` each id of it, and lists no row twice."""
    count, rows = len(layout.multivalent), len(ids)
    assert plan.single.shape == (rows + padding, len(layout.single))
    used: set[int] = set()
    for column, feature in enumerate(layout.single):
        expected = [row_of(feature, one) for one in ids[:, feature.single].tolist()]
        assert plan.distinct[plan.single[:rows, column]].tolist() == expected
        used.update(expected)

    found = {}
    for value, segment in zip(plan.values, plan.segments, strict=True):
        found.setdefault(int(segment), []).append(int(plan.distinct[value]))
    found.pop((rows + padding) * count, None)
    expected_segments = {}
    for index, feature in enumerate(layout.multivalent):
        for row, values in enumerate(lists[feature.name]):
            if values:
                expected_segments[row * count + index] = [row_of(feature, value) for value in values]
                used.update(expected_segments[row * count + index])
    assert found == expected_segments
    assert (np.diff(plan.segments) >= 0).all()

    named = plan.distinct[: plan.distinct_count].tolist()
    assert set(named) == used and len(named) == len(used)
    # What pads are rows of the table, too, and no row is there twice.
    assert len(set(plan.distinct.tolist())) == len(plan.distinct) > 0
    assert plan.distinct.min() >= 0 and plan.distinct.max() < table_rows
    # Padding refers to positions that exist.
    assert plan.single.max(initial=0) < len(plan.distinct)
    assert plan.values.max(initial=0) < len(plan.distinct)
    for part in (plan.distinct, plan.single, plan.values, plan.segments):
        assert part.dtype == np.int32
    assert plan.pending is None


# One row for a missing value and three that ids without a slot share.
GROWING = (
    FeatureRows("a", 5, 4, "quality", 0),
    FeatureRows("g", 4, 4, "quality", 1, growing=True),
    FeatureRows("m", 7, 4, "quality", None),
    FeatureRows("h", 4, 4, "quality", None, growing=True),
    FeatureRows("i", 4, 4, "quality", 2, growing=True),
    FeatureRows("j", 4, 8, "ui", None, growing=True),
    FeatureRows("k", 4, 8, "ui", None, growing=True),
    FeatureRows("l", 4, 0, "ui", 3, growing=True),
    FeatureRows("z", 9, 4, "ui", 4),
)


class Slots:
    """The rows of ids that grow, as a dictionary has them; of every second one a row that ids share."""

    def __init__(self, layout: TableLayout, numbers: list[int]) -> None:
        self.layout, self.numbers, self.offsets = layout, numbers, layout.offsets()
        self.known: dict[tuple[str, int], int] = {}

    def row_of(self, feature: FeatureRows, one: int) -> int:
        begin = self.offsets[feature.name]
        if not feature.growing:
            return begin + one
        if not one:
            return begin
        key = feature.name, one
        if key not in self.known:
            shared = len(self.known) % 2 == 0
            slot = self.layout.rows + self.numbers[len(self.known)]
            self.known[key] = begin + 1 + one % 2 if shared else slot
        return self.known[key]


def occurrences(layout, ids, lists, drawn):
    """By feature and id that grows: how often it occurs, and whether it does in a row that was drawn."""
    counts: Counter[tuple[str, int]] = Counter()
    found = set()
    for feature in layout.growing:
        for row, is_drawn in enumerate(drawn):
            values = lists[feature.name][row] if feature.single is None else [int(ids[row, feature.single])]
            for one in values:
                if one:
                    counts[feature.name, one] += 1
                    found |= {(feature.name, one)} if is_drawn else set()
    return counts, found


@settings(max_examples=100)
@given(
    st.data(),
    st.integers(0, 6),
    st.integers(0, 3),
    st.sampled_from([(one, layout) for one in (FEATURES, GROWING) for layout in lay_out_tables(one)]),
    st.integers(0, 300),
    st.randoms(use_true_random=False),
)
def test_a_plan_refers_to_the_rows_that_the_ids_name_or_are_given(
    data, rows, padding, features_and_layout, more_rows, random
):
    features, layout = features_and_layout
    # The ids of a log are int64 where some of its features grow, also in tables without these.
    dtype = np.int64 if features is GROWING else data.draw(st.sampled_from([np.int32, np.int64]))
    ids, lists, columns = draw_batch(data, rows, features, dtype)
    drawn = np.array(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)), bool)
    is_drawing = bool(layout.growing) and data.draw(st.booleans())
    plan = pad_plan(layout, plan_table(layout, ids, columns, drawn if is_drawing else None), rows + padding)
    if not layout.growing:
        row_of = Slots(layout, []).row_of
        assert_refers(plan, layout, ids, lists, padding, layout.rows, row_of)
        named_rows = plan.distinct[: plan.distinct_count].tolist()
        assert sorted(named_rows) == named_rows
        return
    assert plan.pending is not None
    names = [feature.name for feature in layout.growing]
    of_names, prints = plan.pending.features.tolist(), plan.pending.fingerprints.tolist()
    named = [(names[feature], one) for feature, one in zip(of_names, prints, strict=True)]
    counts, admitted = occurrences(layout, ids, lists, drawn)
    assert len(set(named)) == len(named)
    assert dict(zip(named, plan.pending.counts.tolist(), strict=True)) == counts
    if is_drawing:
        assert plan.pending.admitted is not None
        assert {key for key, one in zip(named, plan.pending.admitted, strict=True) if one} == admitted
    else:
        assert plan.pending.admitted is None

    # Slots in any order, in a table with others beside them.
    numbers = list(range(len(named) + more_rows))
    random.shuffle(numbers)
    slots = Slots(layout, numbers)
    table_rows = layout.rows + len(numbers)
    given_rows = np.array([slots.row_of(layout.growing[names.index(name)], one) for name, one in named])
    placed = assign_rows(plan, given_rows.astype(np.int32), table_rows)
    assert_refers(placed, layout, ids, lists, padding, table_rows, slots.row_of)


@pytest.mark.parametrize("count", [0, 1, 256, 257, 5000, 40_000])
def test_few_rows_pad_and_batches_of_one_size_have_few_capacities(count):
    (layout,) = lay_out_tables([FeatureRows("a", 100_000, 2, "quality", 0)])
    near = range(count - count // 50, count + count // 50 + 1, max(1, count // 500))
    ids = [np.arange(number, dtype=np.int32)[:, np.newaxis] for number in near]
    found = [pad_plan(layout, plan_table(layout, one, {}), max(64, len(one))) for one in ids]
    for plan in found:
        assert 0 <= len(plan.distinct) - plan.distinct_count <= max(256, plan.distinct_count / 32)
    assert len({len(plan.distinct) for plan in found}) <= 3
