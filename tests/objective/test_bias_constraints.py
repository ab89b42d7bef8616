"""Slices against loops; the term and the dual step against NumPy; the saddle against independent solvers."""

import math

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from ctr.config import parse_model
from ctr.data.ids.arrow import string_ids
from ctr.data.schema import Schema
from ctr.io.errors import InputError
from ctr.objective.bias_constraints import (
    SliceRows,
    constraint_term,
    dual_step,
    feature_slices,
    resolve_families,
    slice_index,
)
from ctr.objective.config import BiasConstraintsConfig
from ctr.objective.losses import logistic_loss, weighted_sum

DEVICES = ["phone", "tablet", "desk"]
SCHEMA = parse_model(
    Schema,
    {
        "features": [
            {"name": "words", "kind": "text", "source": "title", "buckets": 50},
            {"name": "position", "kind": "number", "source": "position", "boundaries": [2, 3, 4]},
            {"name": "device", "kind": "category", "source": "device", "vocabulary": DEVICES},
            {"name": "site", "kind": "category", "source": "site", "buckets": 2000},
            {"name": "tags", "kind": "category", "source": "tags", "multivalent": True, "buckets": 9},
            {"name": "both", "kind": "cross", "of": ["position", "device"], "buckets": 700},
        ]
    },
    "test",
)
# The same features, and some whose ids grow.
MIXED = parse_model(
    Schema,
    {
        "features": [
            *SCHEMA.model_dump(mode="json")["features"],
            {"name": "user", "kind": "category", "source": "user"},
            {"name": "pair", "kind": "cross", "of": ["user", "device"]},
        ]
    },
    "test",
)


def config(*families, **rest):
    named = [{"name": f"family{i}", **family} for i, family in enumerate(families)]
    return parse_model(BiasConstraintsConfig, {"families": named, **rest}, "test")


# Families.


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (
            {"nothing": "all"},
            r"nothing: nothing is not a feature of the log; allowed: position, device, site",
        ),
        ({"tags": "all"}, r"features\.tags: tags is multivalent; allowed: position, device"),
        ({"device": ["phone", "fridge"]}, r"device: .*'fridge' is not in its vocabulary; allowed: phone, "),
        ({"both": [1]}, r"features\.both: feature both is a cross"),
        ({"site": "all", "both": "all"}, r"the family family1 has 1400000 slices; allowed: up to 1000000"),
        (
            {"user": "all", "device": "all"},
            'user: the ids of user grow, so that "all" has no end; name its val',
        ),
    ],
)
def test_what_a_log_does_not_have_is_refused_with_the_keys_path(features, message):
    with pytest.raises(InputError, match=r"^config: objective\.bias_constraints\.families\.1.*" + message):
        resolve_families(config({}, {"features": features}), MIXED)


def test_rows_are_in_the_slice_of_their_values_and_log():
    """Named values of a vocabulary, of numbers, and of ids that grow; beside loops."""
    users = ["ann", 7, None, "bob"]
    given = config(
        {"features": {"device": ["desk", "phone"], "position": "all"}, "log": "random"},
        {"features": {"position": [3, None, 1]}},
        {"features": {"user": users}},
        {"features": {"user": users[:2], "position": "all"}},
        {},
        logs=[{"name": "random", "path": "logs/random", "own_loss": True}],
    )
    families = resolve_families(given, MIXED)
    # A vocabulary of 3 has 5 ids, a number with 3 boundaries as many.
    assert [family.slices for family in families] == [2 * 5, 3, 4, 5 * 2, 1]
    rng, count = np.random.default_rng(2), 400
    ann, seven, bob, other = string_ids(pa.array(["ann", "7", "bob", "other"])).tolist()
    columns = {name: i for i, name in enumerate(MIXED.single_valued)}
    ids = np.zeros((count, len(columns)), np.int64)
    # Also what has the same low bits as an id that is named.
    ids[:, columns["user"]] = rng.choice([ann, seven, 0, bob, other, ann ^ 2**62, 2**32], count)
    ids[:, columns["position"]] = rng.integers(0, 5, count)
    ids[:, columns["device"]] = rng.integers(0, 5, count)
    ids[:, columns["pair"]] = rng.integers(-(2**63), 2**63 - 1, count)
    source = rng.integers(0, 2, count).astype(np.int8)
    expected = []
    for row, log in zip(ids, source, strict=True):
        user, position, device = (int(row[columns[name]]) for name in ("user", "position", "device"))
        # Of the vocabulary desk is 3 and phone 1; of boundaries 2, 3, 4 the number 3 has id 3, 1 has 1; missing is 0.
        first = {3: 0, 1: 1}.get(device, -1)
        second = {3: 0, 0: 1, 1: 2}.get(position, -1)
        third = {ann: 0, seven: 1, 0: 2, bob: 3}.get(user, -1)
        pair = position * 2 + third if third in (0, 1) else -1
        own = first * 5 + position if first >= 0 else -1
        expected.append((own, -1, -1, -1, -1) if log else (-1, second, third, pair, 0))
    found = [feature_slices(family, ids, source) for family in families]
    assert all(part.dtype == np.int32 for part in found)
    np.testing.assert_array_equal(np.stack(found, axis=1), expected)


def test_a_prediction_on_a_boundary_is_in_the_bucket_above():
    below, above = np.nextafter(np.float32(0.1), np.float32([0, 1]))
    p = tf.constant([0.0, below, 0.1, above, 0.25, 0.5, 1.0, 0.3])
    features = tf.constant([0, 0, 0, 0, 0, 0, 0, -1])
    for jit in (False, True):
        found = tf.function(lambda f, p: slice_index(f, p, (0.1, 0.5)), jit_compile=jit)(features, p)
        assert found.dtype == tf.int32
        assert found.numpy().tolist() == [0, 0, 1, 1, 1, 2, 2, -1]
    # Without boundaries the features decide alone.
    assert slice_index(tf.constant([3, -1]), tf.constant([0.5, math.nan]), ()).numpy().tolist() == [3, -1]


# The term and the step.


def random_rows(count=64, slices=5, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "duals": rng.normal(size=slices),
        # The last slice is empty.
        "index": rng.integers(-1, slices - 1, count).astype(np.int32),
        "label": rng.integers(0, 2, count).astype(float),
        "probability": rng.uniform(0.01, 0.99, count),
        "weight": rng.choice([0.0, 1.0, 0.5, 20.0], count),
    }


def first_step(duals, rows, learning_rate, regularization):
    """The next duals where every batch weighs as much of a slice as the first one."""
    seen = tf.zeros([2, duals.shape[0]], duals.dtype)
    return dual_step(duals, seen, rows, learning_rate, regularization)[0]


def split(given):
    return given["duals"], SliceRows(**{name: value for name, value in given.items() if name != "duals"})


def tensors(rows, dtype=tf.float64):
    return {name: tf.constant(v) if name == "index" else tf.constant(v, dtype) for name, v in rows.items()}


@pytest.mark.parametrize(("bad", "jit"), [(math.inf, False), (math.nan, True)])
def test_rows_that_do_not_count_spoil_nothing(bad, jit):
    rows = random_rows()
    clean = tensors(rows, tf.float32)
    spoilt = {**rows, "probability": rows["probability"].copy()}
    spoilt["probability"][(rows["weight"] == 0) | (rows["index"] < 0)] = bad
    assert not np.isfinite(spoilt["probability"]).all()
    spoilt = tensors(spoilt, tf.float32)

    def both(given):
        with tf.GradientTape() as tape:
            tape.watch(given["probability"])
            term = constraint_term(*split(given))
        gradient = tape.gradient(term, given["probability"])
        return term, gradient, first_step(*split(given), learning_rate=0.1, regularization=0.1)

    function = tf.function(both, jit_compile=jit)
    for one, other in zip(function(clean), function(spoilt), strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()


def test_the_usual_weight_of_a_slice_is_the_mean_of_all_batches_at_first_and_later_of_the_last_hundred():
    rng, rate = np.random.default_rng(0), 0.1
    duals, seen = tf.zeros([1], tf.float64), tf.zeros([2, 1], tf.float64)
    usual, expected = 0.0, 0.0
    for batch in range(1, 161):
        # From the hundredth batch on the slice is three times as heavy.
        weight, label = rng.uniform(1, 2) * (3 if batch > 100 else 1), rng.integers(0, 2)
        usual += max(1 / batch, 1 / 100) * (weight - usual)
        expected += rate * weight / usual * (label - 0.4)
        given = [tf.constant([float(value)], tf.float64) for value in (label, 0.4, weight)]
        rows = SliceRows(tf.zeros([1], tf.int32), *given)
        duals, seen = dual_step(duals, seen, rows, rate, 0.0)
    assert float(duals[0]) == pytest.approx(expected, rel=1e-9)
    assert seen.numpy().ravel() == pytest.approx([usual, 160])


@pytest.mark.parametrize("alpha3", [0.0, 0.05])
def test_training_ends_at_the_constrained_optimum_with_a_bias_of_alpha3_times_lambda(alpha3):
    """Four cells, two weights: a model too small to be right in each; the first cell and the last are slices."""
    x = np.repeat([[1.0, -1.0], [1.0, -0.3], [1.0, 0.4], [1.0, 1.6]], 2, axis=0)
    label, weight = np.tile([1.0, 0.0], 4), np.array([30, 70, 12, 188, 80, 220, 35, 165.0])
    index = np.repeat([0, -1, -1, 1], 2).astype(np.int32)

    @tf.function
    def train():
        w, duals = tf.zeros([2], tf.float64), tf.zeros([2], tf.float64)
        for _ in tf.range(10_000):
            with tf.GradientTape() as tape:
                tape.watch(w)
                logit = tf.linalg.matvec(tf.constant(x), w)
                rows = SliceRows(
                    tf.constant(index), tf.constant(label), tf.sigmoid(logit), tf.constant(weight)
                )
                loss = weighted_sum(logistic_loss(tf.constant(label), logit), tf.constant(weight))
                loss += constraint_term(duals, rows)
            w -= 0.4 * tape.gradient(loss, w) / weight.sum()
            duals = first_step(duals, rows, 0.3, alpha3)
        return w, duals

    w, duals = (one.numpy() for one in train())
    p = 1 / (1 + np.exp(-x @ w))
    inside = np.equal(index, [[0], [1]])
    np.testing.assert_allclose((inside * weight) @ (label - p) / (inside @ weight), alpha3 * duals, atol=1e-7)
    # The gradient by w of the loss + lambda * (sums over the slices of weight * (y - p)) is 0.
    slopes = x.T @ (weight * (p - label) - weight * p * (1 - p) * (duals @ inside))
    np.testing.assert_allclose(slopes, 0, atol=1e-4)
    assert (np.abs(duals) > 0.01).all()
