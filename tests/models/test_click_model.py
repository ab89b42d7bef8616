"""Heads, factorized models and ensembles against float64 NumPy and against each other."""

import math
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ctr.models.architecture import Architecture, Factors
from ctr.models.click_model import TowerInput, ensemble_logit, forward, rounded_weights, transfer
from ctr.models.initial_weights import init_weights

PLAIN = Architecture(cross_layers=1, cross_rank=2, deep_units=(5,), prior=0.2, activation="tanh")
FACTORIZED = replace(PLAIN, factors=Factors(width=4, ui_units=(6,), pieces=0, reach=6.0))
PIECES = replace(PLAIN, factors=Factors(width=4, ui_units=(), pieces=5, reach=1.0))
ROWS = 7


def widths(architecture):
    return {"quality": 3, "ui": 2} if architecture.factors else {"quality": 3}


def fresh(architecture) -> dict[str, tf.Tensor]:
    return init_weights(architecture, widths(architecture), seed=0)


def learned(architecture, seed=0) -> dict[str, tf.Tensor]:
    """Weights none of which is where it starts."""
    rng = np.random.default_rng(seed)
    return {
        name: weight + tf.cast(rng.normal(size=weight.shape) * 0.5, tf.float32)
        for name, weight in fresh(architecture).items()
    }


def inputs(architecture, copies=1, seed=1) -> dict[str, TowerInput]:
    rng = np.random.default_rng(seed)
    return {
        tower: TowerInput(
            tf.constant(rng.normal(size=(copies, ROWS, width)), tf.float32),
            tf.constant(rng.normal(size=(copies, ROWS)), tf.float32),
        )
        for tower, width in widths(architecture).items()
    }


def weights_of(weights: dict[str, tf.Tensor], component: int | None = None) -> dict[str, np.ndarray]:
    prefix = "" if component is None else f"component_{component}/"
    return {
        name.removeprefix(prefix): weight.numpy().astype(np.float64)
        for name, weight in weights.items()
        if name.startswith(prefix)
    }


def tower_by_hand(w: dict[str, np.ndarray], tower: str, e0: np.ndarray, alpha2: float) -> np.ndarray:
    hidden = e0
    if f"{tower}/cross_0/u" in w:
        inner = hidden @ w[f"{tower}/cross_0/u"] @ w[f"{tower}/cross_0/v"] + w[f"{tower}/cross_0/v_bias"]
        hidden = alpha2 * e0 * inner + hidden
    if f"{tower}/deep_0/w" in w:
        hidden = np.tanh(hidden @ w[f"{tower}/deep_0/w"] + w[f"{tower}/deep_0/w_bias"])
    return hidden


def by_hand(
    w: dict[str, np.ndarray], given, copy: int, alpha2: float, has_linear: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Logit and rank score of one component, by the formulas."""
    e0, linear = (value.numpy()[copy].astype(np.float64) for value in given["quality"])
    linear *= has_linear
    hidden = tower_by_hand(w, "quality", e0, alpha2)
    if "ui" not in given:
        logit = (hidden @ w["quality_head"])[:, 0] + linear + w["output_bias"]
        return logit, (hidden @ w["rank_head"])[:, 0] if "rank_head" in w else logit
    ui_e0, ui_linear = (value.numpy()[copy].astype(np.float64) for value in given["ui"])
    ui_linear *= has_linear
    u = tower_by_hand(w, "ui", ui_e0, 0.0) @ w["ui_head"] + w["ui_head_bias"]
    s = np.sum(hidden @ w["quality_head"] * u, axis=1) + linear + ui_linear
    if "transfer_scale" in w:
        logit = w["transfer_scale"] * s + w["transfer_bias"]
    else:
        edges = np.concatenate([[-np.inf], np.linspace(-1, 1, len(w["transfer_slopes"]) - 1), [np.inf]])
        slopes = np.logaddexp(0, w["transfer_slopes"])
        logit = w["transfer_bias"] + sum(
            slope * (np.clip(s, left, right) - np.clip(0, left, right))
            for slope, left, right in zip(slopes, edges, edges[1:], strict=False)
        )
    return logit, np.sum(hidden @ w["rank_head"] * u, axis=1) if "rank_head" in w else logit


KINDS = pytest.mark.parametrize(
    "architecture",
    [
        PLAIN,
        *(replace(kind, rank_head=True) for kind in (PLAIN, FACTORIZED, PIECES)),
        *(replace(kind, linear=False) for kind in (PLAIN, FACTORIZED)),
    ],
    ids=["without a rank head", "plain", "sigmoid", "pieces", "network alone", "towers alone"],
)


@pytest.mark.parametrize(("components", "copies"), [(1, 1), (3, 1), (3, 3)])
@KINDS
def test_every_kind_and_each_component_of_an_ensemble_follows_its_formula(architecture, components, copies):
    whole, given = replace(architecture, components=components), inputs(architecture, copies)
    weights = learned(whole)
    scores = forward(whole, weights, given, tf.constant(0.7))
    for index in range(components):
        own = weights_of(weights, index if components > 1 else None)
        logit, ranked = by_hand(own, given, index if copies > 1 else 0, 0.7, architecture.linear)
        np.testing.assert_allclose(scores.logits[index], logit, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(scores.rank_scores[index], ranked, rtol=1e-4, atol=1e-5)
    assert architecture.rank_head == (np.abs(scores.logits - scores.rank_scores).max() > 0.01)
    if components > 1:
        assert np.abs(np.diff(scores.logits, axis=0)).min(axis=0).max() > 0.01


@given(st.lists(st.lists(st.floats(-700, 700), min_size=3, max_size=3), min_size=1, max_size=5))
def test_the_mean_of_probabilities_as_a_logit(logits):
    logits = np.array(logits)
    p, q = (np.mean(1 / (1 + np.exp(-sign * logits)), axis=0) for sign in (1, -1))
    found = ensemble_logit(tf.constant(logits, tf.float64))
    np.testing.assert_allclose(found, np.log(p) - np.log(q), rtol=1e-9, atol=1e-12)


def test_gradients_of_the_mean_are_finite_for_huge_logits():
    logits = tf.constant([[1e4, -1e4], [-1e4, -2e4]])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        total = tf.reduce_sum(ensemble_logit(logits))
    assert np.isfinite(tape.gradient(total, logits)).all()


def test_components_start_differently_and_predict_the_prior_together():
    architecture = replace(PLAIN, components=3)
    weights = fresh(architecture)
    starts = [weights_of(weights, index)["quality/deep_0/w"] for index in range(3)]
    assert all(np.abs(a - b).max() > 0.01 for a, b in ((starts[0], starts[1]), (starts[1], starts[2])))
    zero = {"quality": TowerInput(tf.zeros([1, 1, 3]), tf.zeros([1, 1]))}
    logit = ensemble_logit(forward(architecture, weights, zero, tf.constant(1.0)).logits)
    assert float(logit[0]) == pytest.approx(math.log(0.2 / 0.8), rel=1e-5)


def test_weights_that_are_rounded_before_give_the_same_scores():
    architecture = replace(FACTORIZED, components=2, compute_dtype="bfloat16")
    weights, given = learned(architecture), inputs(architecture)
    rounded = rounded_weights(architecture, weights)
    for index in range(2):
        for name in ("quality/cross_0/u", "ui/deep_0/w_bias"):
            assert rounded[f"component_{index}/{name}"].dtype == tf.bfloat16
        for name in ("quality_head", "transfer_scale"):
            assert rounded[f"component_{index}/{name}"].dtype == tf.float32
    found = [forward(architecture, own, given, tf.constant(0.7)).logits for own in (weights, rounded)]
    np.testing.assert_array_equal(*found)
    assert found[0].dtype == tf.float32 and {weight.dtype for weight in weights.values()} == {tf.float32}


def test_architectures_that_are_impossible_are_refused():
    with pytest.raises(ValueError, match="rank head needs crosses or deep layers"):
        Architecture(0, 0, (), rank_head=True)
    with pytest.raises(ValueError, match="factorized model needs crosses or deep layers"):
        Architecture(0, 0, (), factors=FACTORIZED.factors)


@pytest.mark.parametrize(
    ("changes", "dtypes"),
    [
        ({}, ("bfloat16", "bfloat16")),
        ({"cross_layers": 0}, ("bfloat16", "bfloat16")),
        ({"cross_layers": 0, "deep_units": ()}, ("float32", "float32")),
        ({"factors": Factors(4, (8,), 0, 1.0)}, ("bfloat16", "bfloat16")),
        ({"factors": Factors(4, (), 0, 1.0)}, ("bfloat16", "float32")),
    ],
)
def test_embeddings_are_rounded_where_a_layer_computes_with_them(changes, dtypes):
    settings = {"cross_layers": 1, "cross_rank": 2, "deep_units": (4,), "compute_dtype": "bfloat16"}
    architecture = Architecture(**{**settings, **changes})
    assert (architecture.input_dtype("quality"), architecture.input_dtype("ui")) == dtypes


def factorization(pieces, reach, prior=0.5):
    """A factorization, and the weights of its transfer function."""
    factors = Factors(2, (), pieces, reach)
    shape = Architecture(0, 0, (2,), prior=prior, factors=factors)
    return factors, init_weights(shape, {"quality": 3, "ui": 3}, seed=0)


@pytest.mark.parametrize("pieces", [0, 6])
def test_at_the_start_it_adds_the_prior(pieces):
    s = np.array([-50.0, -1.3, 0.0, 0.4, 2.0, 50.0], np.float32)
    found = transfer(*factorization(pieces, 2.0, prior=0.1), tf.constant(s))
    np.testing.assert_allclose(found, s + np.log(0.1 / 0.9), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("s", [-1.0, 0.0, 0.3, 1.0])
def test_at_a_joint_too_one_piece_tells_the_slope(s):
    product = tf.constant([s])
    with tf.GradientTape() as tape:
        tape.watch(product)
        logit = transfer(*factorization(4, 1.0), product)
    assert float(tape.gradient(logit, product)[0]) == pytest.approx(1)
