"""The lookup of embeddings and its gradient, against loops in float64, and the initial values of rows.

These are near-normal, and the same wherever and whenever they are drawn.
"""

import hashlib

import numpy as np
import pytest
import tensorflow as tf

from ctr.models.embeddings import create_table, initial_rows, look_up, tower_inputs, tower_widths
from ctr.models.rows import FeatureRows, lay_out_tables
from ctr.training.tables.plan import pad_plan, plan_table
from slow_id_map import MASK, splitmix64

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


def table_values(layout, seed=0):
    return np.random.default_rng(seed).normal(size=(layout.rows, layout.columns)).astype(np.float32)


def uses(layout):
    """Each use of a row of a table: the row of the batch, the feature's place, the row, and its share."""
    offsets = layout.offsets()
    for row in range(len(IDS)):
        for place, feature in enumerate(layout.features):
            own = [IDS[row, feature.single]] if feature.single is not None else LISTS[feature.name][row]
            for one in own:
                yield row, place, offsets[feature.name] + one, 1 / len(own)


def brute_force(layout, table):
    """float64 [4, features, columns], by one loop over rows and features."""
    out = np.zeros((len(IDS), len(layout.features), table.shape[1]))
    for row, place, one, share in uses(layout):
        out[row, place] += share * table[one].astype(np.float64)
    return out


both_ways = pytest.mark.parametrize("way", WAYS, ids=["plain", "by products"])


@both_ways
@pytest.mark.parametrize("index", range(len(LAYOUTS)), ids=[layout.name for layout in LAYOUTS])
def test_a_row_is_looked_up_in_means_and_gets_the_gradients_of_all_its_uses(index, way):
    layout, plan = LAYOUTS[index], plans()[index]
    table = table_values(layout)
    # Padded rows have no upstream.
    upstream = np.random.default_rng(1).normal(size=(PADDED_ROWS, len(layout.features), layout.width + 1))
    upstream[len(IDS) :] = 0
    rows = tf.gather(table, plan.distinct)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        (embeddings,), (linear,) = look_up(layout, rows, tensors(plan), **way)
        found = tf.concat([embeddings, linear], axis=2)
        total = tf.reduce_sum(found * upstream.astype(np.float32))
    np.testing.assert_allclose(found[: len(IDS)], brute_force(layout, table), rtol=1e-6, atol=1e-7)
    assert np.isfinite(found).all()
    gradient = tf.convert_to_tensor(tape.gradient(total, rows)).numpy()
    expected = np.zeros(table.shape)
    for row, place, one, share in uses(layout):
        expected[one] += upstream[row, place] * share
    count = plan.distinct_count
    np.testing.assert_allclose(gradient[:count], expected[plan.distinct[:count]], rtol=1e-5, atol=1e-6)
    # Rows that the batch does not name have no gradient to lose.
    assert not gradient[count:].any()
    assert not np.delete(expected, plan.distinct[:count], axis=0).any()


@both_ways
@pytest.mark.parametrize(("copies", "factorized"), [(1, False), (2, True)])
def test_towers_have_the_columns_of_their_tables_and_copies(copies, factorized, way):
    layouts = lay_out_tables(FEATURES, copies=copies)
    tables = [table_values(layout) for layout in layouts]
    looked_up = [
        look_up(layout, tf.gather(table, plan.distinct), tensors(plan), **way)
        for layout, table, plan in zip(layouts, tables, plans(), strict=True)
    ]
    widths = {"quality": 8, "ui": 3} if factorized else {"quality": 11}
    assert tower_widths(layouts, factorized) == widths
    inputs = tower_inputs(looked_up, layouts, factorized)
    assert {tower: e0.shape[2] for tower, (e0, _) in inputs.items()} == widths
    for tower, (e0, linear) in inputs.items():
        for copy in range(copies):
            embeddings, weights = [], np.zeros(len(IDS))
            for layout, single, table in zip(layouts, LAYOUTS, tables, strict=True):
                if layout.tower == tower or not factorized:
                    begin = copy * (layout.width + 1)
                    exact = brute_force(single, table[:, begin : begin + layout.width + 1])
                    embeddings.append(exact[:, :, :-1].reshape(len(IDS), -1))
                    weights += exact[:, :, -1].sum(axis=1)
            expected = np.concatenate(embeddings, axis=1)
            np.testing.assert_allclose(e0[copy][: len(IDS)], expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(linear[copy][: len(IDS)], weights, rtol=1e-5, atol=1e-6)


def test_a_fresh_table_depends_on_seed_name_and_copy_and_starts_without_linear_weights():
    def fresh(tower="ui", scale=0.05, seed=3, copies=1):
        (layout,) = lay_out_tables([FeatureRows("a", 4000, 8, tower, 0)], copies)
        np.testing.assert_array_equal(layout.by_column(2, 3), ([2] * 8 + [3]) * copies)
        return create_table(layout, scale, seed=seed).numpy()

    table, double = fresh(), fresh(copies=2)
    assert (double.shape, double[:, [8, 17]].any()) == ((4000, 18), False)
    np.testing.assert_array_equal(double[:, :9], table)
    assert abs(table[:, :8].mean()) < 0.002
    assert table[:, :8].std() == pytest.approx(0.05, rel=0.03)
    for other in (fresh(seed=4), fresh(tower="quality"), double[:, 9:]):
        assert abs(np.corrcoef(table[:, :8].ravel(), other[:, :8].ravel())[0, 1]) < 0.03
    np.testing.assert_allclose(fresh(scale=0.1), 2 * table, rtol=1e-6)


def test_an_initial_value_by_hand():
    digest = hashlib.sha256(b"3/1/user").digest()
    first, second = (int.from_bytes(digest[at : at + 8], "little") for at in (0, 8))
    fingerprints = [1, -1, -(2**63), 2**63 - 1]
    expected = []
    for value in fingerprints:
        key = splitmix64(splitmix64((value & MASK) ^ first) ^ second)
        row = []
        for column in range(5):
            bits = splitmix64((key + column * 0x9E3779B97F4A7C15) & MASK)
            total = sum((bits >> shift) & 0xFFFF for shift in (0, 16, 32, 48)) - 131070
            row.append(np.float32(total) * np.float32(0.1 / ((65536**2 - 1) / 3) ** 0.5))
        expected.append(row)
    found = initial_rows(np.array(fingerprints), "user", 5, 0.1, seed=3, copy=1)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array(expected, np.float32))
