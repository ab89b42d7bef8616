"""The lookup of embeddings and its gradient, against loops in float64."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.models.embeddings import create_table, look_up, tower_inputs, tower_widths
from ctr.models.rows import FeatureRows, lay_out_tables
from ctr.training.tables.plan import pad_plan, plan_table

FEATURES = (
    FeatureRows("a", 5, 2, "quality", 0),
    FeatureRows("b", 4, 2, "quality", 1),
    FeatureRows("m", 6, 2, "quality", None),
    FeatureRows("n", 3, 2, "quality", None),
    FeatureRows("c", 4, 3, "ui", 2),
    FeatureRows("l", 5, 0, "ui", None),
    FeatureRows("s", 5, 0, "quality", 0),
)
LAYOUTS = lay_out_tables(FEATURES)
IDS = np.array([[0, 3, 1], [4, 3, 1], [0, 0, 2], [0, 1, 3]], np.int32)
LISTS = {
    "m": [[5, 5, 0], [], [1], [2, 3]],
    "n": [[2], [0, 2], [], [2, 2, 2]],
    "l": [[], [4], [4, 0, 4], []],
}
PADDED_ROWS = 6
WAYS = [{}, {"gradient_by_products": True}]


def plans():
    columns = {
        name: (
            np.array([value for row in rows for value in row], np.int32),
            np.array([len(row) for row in rows], np.int32),
        )
        for name, rows in LISTS.items()
    }
    return [pad_plan(layout, plan_table(layout, IDS, columns), PADDED_ROWS) for layout in LAYOUTS]


def tensors(plan):
    return {name: tf.constant(getattr(plan, name)) for name in ("single", "values", "segments")}


def sides(looked_up):
    """Embeddings and linear weights of a table without copies, [B, features, width] and [B, features]."""
    (embeddings,), (linear,) = looked_up
    return embeddings.numpy(), linear.numpy()[:, :, 0]


def table_values(layout, seed=0):
    return np.random.default_rng(seed).normal(size=(layout.rows, layout.width + 1)).astype(np.float32)


def brute_force(layout, table):
    """float64 [4, features, width + 1], by one loop over rows and features."""
    offsets = layout.offsets()
    out = np.zeros((len(IDS), len(layout.features), layout.width + 1))
    for row in range(len(IDS)):
        for place, feature in enumerate(layout.features):
            own = [IDS[row, feature.single]] if feature.single is not None else LISTS[feature.name][row]
            if len(own):
                out[row, place] = np.mean(
                    [table[offsets[feature.name] + i].astype(np.float64) for i in own], axis=0
                )
    return out


@pytest.mark.parametrize("way", WAYS, ids=["plain", "by products"])
@pytest.mark.parametrize("index", range(len(LAYOUTS)), ids=[layout.name for layout in LAYOUTS])
def test_lookup_is_the_mean_of_the_rows_that_the_ids_name(index, way):
    layout, plan = LAYOUTS[index], plans()[index]
    table = table_values(layout)
    embeddings, linear = sides(look_up(layout, tf.gather(table, plan.distinct), tensors(plan), **way))
    assert embeddings.shape == (PADDED_ROWS, len(layout.features), layout.width)
    exact = brute_force(layout, table)
    np.testing.assert_allclose(embeddings[: len(IDS)], exact[:, :, :-1], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(linear[: len(IDS)], exact[:, :, -1], rtol=1e-6, atol=1e-7)
    assert np.isfinite(embeddings).all() and np.isfinite(linear).all()


@pytest.mark.parametrize("way", WAYS, ids=["plain", "by products"])
@pytest.mark.parametrize("index", range(len(LAYOUTS)), ids=[layout.name for layout in LAYOUTS])
def test_a_row_gets_the_sum_of_the_gradients_of_all_its_uses(index, way):
    layout, plan = LAYOUTS[index], plans()[index]
    table = table_values(layout)
    # The gradient of sum(upstream * lookup) by each table row, where padded rows have no upstream.
    upstream = np.random.default_rng(1).normal(size=(PADDED_ROWS, len(layout.features), layout.width + 1))
    upstream[len(IDS) :] = 0
    rows = tf.gather(table, plan.distinct)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        looked_up = look_up(layout, rows, tensors(plan), **way)
        both = upstream.astype(np.float32)
        total = tf.reduce_sum(looked_up.embeddings[0] * both[:, :, :-1])
        total += tf.reduce_sum(looked_up.linear[0] * both[:, :, -1:])
    gradient = tf.convert_to_tensor(tape.gradient(total, rows)).numpy()

    offsets = layout.offsets()
    expected = np.zeros((layout.rows, layout.width + 1))
    for row in range(len(IDS)):
        for place, feature in enumerate(layout.features):
            own = [IDS[row, feature.single]] if feature.single is not None else LISTS[feature.name][row]
            for i in own:
                expected[offsets[feature.name] + i] += upstream[row, place] / len(own)
    np.testing.assert_allclose(
        gradient[: plan.distinct_count], expected[plan.distinct[: plan.distinct_count]], rtol=1e-5, atol=1e-6
    )
    assert (gradient[plan.distinct_count :] == 0).all()
    # Rows that the batch does not name have no gradient to lose.
    unnamed = np.setdiff1d(np.arange(layout.rows), plan.distinct[: plan.distinct_count])
    assert (expected[unnamed] == 0).all()


def test_columns_are_split_over_all_tables():
    looked_up = [
        look_up(layout, tf.gather(table_values(layout), p.distinct), tensors(p))
        for layout, p in zip(LAYOUTS, plans(), strict=True)
    ]
    inputs = tower_inputs(looked_up, LAYOUTS, factorized=False)
    assert list(inputs) == ["quality"]
    e0, linear = (value[0] for value in inputs["quality"])
    exact = [brute_force(layout, table_values(layout)) for layout in LAYOUTS]
    embeddings = [
        value[:, place, : layout.width]
        for layout, value in zip(LAYOUTS, exact, strict=True)
        for place in range(len(layout.features))
    ]
    np.testing.assert_allclose(
        e0.numpy()[: len(IDS)], np.concatenate(embeddings, axis=1), rtol=1e-5, atol=1e-6
    )
    assert e0.shape[1] == 2 * 4 + 3
    weights = sum(value[:, :, -1].sum(axis=1) for value in exact)
    np.testing.assert_allclose(linear.numpy()[: len(IDS)], weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", WAYS, ids=["plain", "by products"])
def test_tables_of_width_0_give_linear_weights_only(way):
    layouts = [layout for layout in LAYOUTS if layout.width == 0]
    own = [plan for layout, plan in zip(LAYOUTS, plans(), strict=True) if layout.width == 0]
    looked_up = [
        look_up(layout, tf.gather(table_values(layout), plan.distinct), tensors(plan), **way)
        for layout, plan in zip(layouts, own, strict=True)
    ]
    e0, linear = (value[0] for value in tower_inputs(looked_up, layouts, factorized=False)["quality"])
    assert (e0.shape, linear.shape) == ((PADDED_ROWS, 0), (PADDED_ROWS,))
    assert linear.numpy()[: len(IDS)].any()


@pytest.mark.parametrize("way", WAYS, ids=["plain", "by products"])
def test_towers_and_copies_are_kept_apart(way):
    layouts = lay_out_tables(FEATURES, copies=2)
    tables = [
        np.random.default_rng(0).normal(size=(layout.rows, layout.columns)).astype(np.float32)
        for layout in layouts
    ]
    looked_up = [
        look_up(layout, tf.gather(table, plan.distinct), tensors(plan), **way)
        for layout, table, plan in zip(layouts, tables, plans(), strict=True)
    ]
    inputs = tower_inputs(looked_up, layouts, factorized=True)
    assert tower_widths(layouts, factorized=True) == {"quality": 8, "ui": 3}
    assert tower_widths(layouts, factorized=False) == {"quality": 11}
    for tower, (e0, linear) in inputs.items():
        for copy in range(2):
            embeddings, weights = [], np.zeros(len(IDS))
            for layout, single, table in zip(layouts, LAYOUTS, tables, strict=True):
                if layout.tower == tower:
                    begin = copy * (layout.width + 1)
                    exact = brute_force(single, table[:, begin : begin + layout.width + 1])
                    embeddings.append(exact[:, :, :-1].reshape(len(IDS), -1))
                    weights += exact[:, :, -1].sum(axis=1)
            expected = np.concatenate(embeddings, axis=1)
            np.testing.assert_allclose(e0[copy][: len(IDS)], expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(linear[copy][: len(IDS)], weights, rtol=1e-5, atol=1e-6)


def test_copies_of_a_fresh_table_differ_and_the_first_is_the_table_without_copies():
    (single,), (double,) = (lay_out_tables([FeatureRows("a", 400, 8, "ui", 0)], copies) for copies in (1, 2))
    table = create_table(double, 0.05, seed=3).numpy()
    assert table.shape == (400, 18)
    np.testing.assert_array_equal(table[:, :9], create_table(single, 0.05, seed=3))
    assert np.abs(np.corrcoef(table[:, :8].ravel(), table[:, 9:17].ravel())[0, 1]) < 0.1
    assert (table[:, [8, 17]] == 0).all()
    np.testing.assert_array_equal(double.by_column(2, 3), [2] * 8 + [3] + [2] * 8 + [3])


def test_a_fresh_table_depends_on_seed_and_name_and_starts_without_linear_weights():
    layout = lay_out_tables([FeatureRows("a", 4000, 8, "ui", 0)])[0]
    other = lay_out_tables([FeatureRows("a", 4000, 8, "quality", 0)])[0]
    table = create_table(layout, 0.05, seed=3).numpy()
    assert (table[:, 8] == 0).all()
    assert abs(table[:, :8].mean()) < 0.002
    assert table[:, :8].std() == pytest.approx(0.05, rel=0.03)
    np.testing.assert_array_equal(table, create_table(layout, 0.05, seed=3).numpy())
    assert (table[:, :8] != create_table(layout, 0.05, seed=4).numpy()[:, :8]).mean() > 0.99
    assert (table[:, :8] != create_table(other, 0.05, seed=3).numpy()[:, :8]).mean() > 0.99
    np.testing.assert_allclose(create_table(layout, 0.1, seed=3).numpy(), 2 * table, rtol=1e-6)
