"""Pooling by attention and its gradient, against loops in float64."""

import math

import numpy as np
import pytest
import tensorflow as tf

from ctr.models.architecture import Architecture
from ctr.models.embeddings import look_up
from ctr.models.initial_weights import init_weights
from ctr.models.pooling import pool
from ctr.models.rows import FeatureRows, Pooled, lay_out_tables
from ctr.training.tables.plan import pad_plan, plan_table

MOST, WIDTH, TARGET, SCALE = 4, 3, 2, 1.5
IDS = np.array([[0, 1], [2, 0], [1, 2], [3, 3], [3, 1]], np.int32)
LISTS = {
    "m": [[5], [], [0, 1], [2], [4, 4, 4]],
    "h": [[1, 2, 3, 3], [], [4], [0, 5, 1], [2, 2]],
}
PADDED_ROWS = 7


def make(averages=True):
    pooled = Pooled("h", "a", MOST, WIDTH, TARGET, SCALE)
    features = (
        FeatureRows("a", 4, TARGET, "quality", 0),
        FeatureRows("b", 4, WIDTH, "quality", 1),
        *([FeatureRows("m", 6, WIDTH, "quality", None)] if averages else []),
        FeatureRows("h", 6, WIDTH, "quality", None, pooled=pooled),
    )
    layouts = lay_out_tables(features)
    architecture = Architecture(cross_layers=1, cross_rank=2, deep_units=(), pooled=(pooled,))
    weights = init_weights(architecture, {"quality": TARGET + (3 + averages) * WIDTH}, seed=1)
    rng = np.random.default_rng(3)
    own = {
        name: tf.constant(rng.normal(size=weight.shape), tf.float32)
        for name, weight in weights.items()
        if name.startswith("pooling/")
    }
    columns = {
        name: (np.concatenate(lists).astype(np.int32), np.array([len(one) for one in lists], np.int32))
        for name, lists in LISTS.items()
    }
    plans = [pad_plan(layout, plan_table(layout, IDS, columns), PADDED_ROWS) for layout in layouts]
    tables = [rng.normal(size=(one.rows, one.columns)).astype(np.float32) for one in layouts]
    rows = [tf.constant(table[plan.distinct]) for table, plan in zip(tables, plans, strict=True)]
    return layouts, tables, rows, plans, own


def tensors(plan):
    return {name: tf.constant(getattr(plan, name)) for name in ("single", "values", "segments")}


def pooled_of(layouts, rows, plans, own, dtype="float32", by_products=False):
    given = [tensors(plan) for plan in plans]
    looked_up = [look_up(*one, dtype, by_products) for one in zip(layouts, rows, given, strict=True)]
    found, all_layouts = pool(own, layouts, looked_up, rows, given, by_products)
    assert [layout.features[0].name for layout in all_layouts[len(layouts) :]] == ["h*a"]
    return found


def expected(layouts, tables, own):
    """The pooled embedding of each row and its product with the target's, one value after the other."""
    weights = {name.rpartition("/")[2]: np.array(value, np.float64) for name, value in own.items()}
    by_feature = {}
    for layout, table in zip(layouts, tables, strict=True):
        for name, offset in layout.offsets().items():
            by_feature[name] = table[offset:, : layout.width].astype(np.float64)
    found = []
    for row, ids in enumerate(LISTS["h"]):
        places = range(MOST - len(ids), MOST)
        lists = [by_feature["h"][one] for one in ids]
        query = by_feature["a"][IDS[row, 0]] @ weights["query"]
        scores = [
            math.exp(x @ query / math.sqrt(WIDTH) + weights["recency"][place])
            for x, place in zip(lists, places, strict=True)
        ]
        total = sum((score * x for score, x in zip(scores, lists, strict=True)), np.zeros(WIDTH))
        pooled = total / (1 + sum(scores))
        found.append(np.concatenate([pooled, SCALE * pooled * query]))
    return np.array(found)


def test_pooled_embeddings_are_those_of_loops():
    layouts, tables, rows, plans, own = make()
    before = [look_up(*one) for one in zip(layouts, rows, map(tensors, plans), strict=True)]
    found = pooled_of(layouts, rows, plans, own)
    place = [feature.name for feature in layouts[1].features].index("h")
    pooled = np.concatenate([found[1].embeddings[0][:, place], found[-1].embeddings[0][:, 0]], axis=1)
    np.testing.assert_allclose(pooled[: len(IDS)], expected(layouts, tables, own), rtol=2e-5, atol=1e-6)
    np.testing.assert_array_equal(pooled[[1, *range(len(IDS), PADDED_ROWS)]], 0)
    # Nothing else changes: neither other features, nor linear weights.
    for old, new in zip(before, found[:-1], strict=True):
        for one, other in zip(old.embeddings + old.linear, new.embeddings + new.linear, strict=True):
            kept = [number for number in range(one.shape[1]) if one.shape[2] == 1 or number != place]
            np.testing.assert_array_equal(one.numpy()[:, kept], other.numpy()[:, kept])


@pytest.mark.parametrize(("averages", "by_products"), [(True, False), (True, True), (False, True)])
def test_gradients_are_those_of_differences(averages, by_products):
    layouts, tables, rows, plans, own = make(averages)
    place = [feature.name for feature in layouts[1].features].index("h")
    share = np.random.default_rng(1).normal(size=(len(IDS), 2 * WIDTH))
    with tf.GradientTape() as tape:
        tape.watch([rows, own])
        _, pooled, *_, product = pooled_of(layouts, rows, plans, own, by_products=by_products)
        found = tf.concat([pooled.embeddings[0][:, place], product.embeddings[0][:, 0]], axis=1)[: len(IDS)]
        total = tf.reduce_sum(found * tf.constant(share, tf.float32))
    of_rows, of_own = tape.gradient(total, (rows, own))

    weights, rng = {name: value.numpy() for name, value in own.items()}, np.random.default_rng(2)
    of_weights = [(weights[name], gradient, slice(None)) for name, gradient in of_own.items()]
    of_tables = [
        (table, gradient, plan.distinct[: plan.distinct_count])
        for table, gradient, plan in zip(tables, of_rows, plans, strict=True)
    ]
    for array, gradient, named in of_weights + of_tables:
        direction, start, sides = rng.normal(size=array.shape).astype(np.float32), array.copy(), []
        for sign in (1, -1):
            array[:] = start + np.float32(sign * 1e-3) * direction
            sides.append((expected(layouts, tables, weights) * share).sum())
        array[:] = start
        dense, along = tf.convert_to_tensor(gradient).numpy(), direction[named]
        found = float((dense[: len(along)] * along).sum())
        assert found == pytest.approx((sides[0] - sides[1]) / 2e-3, rel=2e-2, abs=1e-3)


def test_a_batch_without_any_value_pools_nothing():
    layouts, _, rows, plans, own = make()
    empty = {
        "single": tf.constant(plans[1].single),
        "values": tf.zeros([0], tf.int32),
        "segments": tf.zeros([0], tf.int32),
    }
    given = [tensors(plans[0]), empty]
    looked_up = [look_up(*one) for one in zip(layouts, rows, given, strict=True)]
    _, pooled, product = pool(own, layouts, looked_up, rows, given)[0]
    np.testing.assert_array_equal(pooled.embeddings[0][:, 1:].numpy(), 0)
    np.testing.assert_array_equal(product.embeddings[0].numpy(), 0)
