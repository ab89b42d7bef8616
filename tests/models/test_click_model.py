"""Heads, factorized models and ensembles against float64 NumPy and against each other."""

import math
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ctr.models.click_model import Architecture, ClickModel, Factors, TowerInput, ensemble_logit

PLAIN = Architecture(cross_layers=1, cross_rank=2, deep_units=(5,), prior=0.2, activation="tanh")
FACTORIZED = replace(PLAIN, factors=Factors(width=4, ui_units=(6,), pieces=0, reach=6.0))
PIECES = replace(PLAIN, factors=Factors(width=4, ui_units=(), pieces=5, reach=1.0))
ROWS = 7


def widths(architecture):
    return {"quality": 3, "ui": 2} if architecture.factors else {"quality": 3}


def model(architecture, seed=0) -> ClickModel:
    """With weights none of which is where it starts."""
    made = ClickModel(architecture, widths(architecture), seed=0)
    rng = np.random.default_rng(seed)
    for weight in made.weights().values():
        weight.assign_add(rng.normal(size=weight.shape) * 0.5)
    return made


def inputs(architecture, copies=1, seed=1) -> dict[str, TowerInput]:
    rng = np.random.default_rng(seed)
    return {
        tower: TowerInput(
            tf.constant(rng.normal(size=(copies, ROWS, width)), tf.float32),
            tf.constant(rng.normal(size=(copies, ROWS)), tf.float32),
        )
        for tower, width in widths(architecture).items()
    }


def weights_of(made: ClickModel, component: int | None = None) -> dict[str, np.ndarray]:
    prefix = "" if component is None else f"component_{component}/"
    return {
        name.removeprefix(prefix): weight.numpy().astype(np.float64)
        for name, weight in made.weights().items()
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


def by_hand(w: dict[str, np.ndarray], given, copy: int, alpha2: float) -> tuple[np.ndarray, np.ndarray]:
    """Logit and rank score of one component, by the formulas."""
    e0, linear = (value.numpy()[copy].astype(np.float64) for value in given["quality"])
    hidden = tower_by_hand(w, "quality", e0, alpha2)
    if "ui" not in given:
        logit = (hidden @ w["quality_head"])[:, 0] + linear + w["output_bias"]
        return logit, (hidden @ w["rank_head"])[:, 0] if "rank_head" in w else logit
    ui_e0, ui_linear = (value.numpy()[copy].astype(np.float64) for value in given["ui"])
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


@pytest.mark.parametrize("rank_head", [False, True])
@pytest.mark.parametrize("architecture", [PLAIN, FACTORIZED, PIECES], ids=["plain", "sigmoid", "pieces"])
def test_every_kind_follows_its_formula(architecture, rank_head):
    made = model(replace(architecture, rank_head=rank_head))
    scores = made(inputs(architecture), tf.constant(0.7))
    logit, ranked = by_hand(weights_of(made), inputs(architecture), 0, 0.7)
    np.testing.assert_allclose(scores.logits, [logit], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scores.rank_scores, [ranked], rtol=1e-4, atol=1e-5)
    assert rank_head == (np.abs(scores.logits - scores.rank_scores).max() > 0.01)


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("rank_head", [False, True])
@pytest.mark.parametrize("architecture", [PLAIN, FACTORIZED, PIECES], ids=["plain", "sigmoid", "pieces"])
def test_an_ensemble_is_its_components_run_one_by_one(architecture, rank_head, copies):
    architecture = replace(architecture, rank_head=rank_head)
    together = model(replace(architecture, components=3))
    given = inputs(architecture, copies)
    scores = together(given, tf.constant(0.7))
    assert np.abs(np.diff(scores.logits, axis=0)).min(axis=0).max() > 0.01
    for index in range(3):
        alone = ClickModel(architecture, widths(architecture), seed=0)
        for name, weight in alone.weights().items():
            weight.assign(together.weights()[f"component_{index}/{name}"])
        own = {
            tower: TowerInput(*(value[index : index + 1] if copies > 1 else value for value in both))
            for tower, both in given.items()
        }
        single = alone(own, tf.constant(0.7))
        np.testing.assert_allclose(scores.logits[index], single.logits[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(scores.rank_scores[index], single.rank_scores[0], rtol=1e-5, atol=1e-6)
        logit, _ = by_hand(weights_of(together, index), given, index if copies > 1 else 0, 0.7)
        np.testing.assert_allclose(single.logits[0], logit, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("components", [1, 3])
@pytest.mark.parametrize("architecture", [FACTORIZED, PIECES], ids=["sigmoid", "pieces"])
def test_combining_quality_and_ui_is_the_direct_evaluation(architecture, components):
    made = model(replace(architecture, components=components))
    given = inputs(architecture)
    quality = made.quality(given["quality"], tf.constant(0.7))
    ui = made.ui(given["ui"])
    assert quality.shape == ui.shape == (ROWS, components, 4 + 2)
    direct = made(given, tf.constant(0.7)).logits
    np.testing.assert_allclose(made.combine(quality, ui), direct, rtol=1e-6, atol=1e-6)
    # One ad under every treatment: Q needs to be known once.
    every = made.combine(tf.repeat(quality[:1], ROWS, axis=0), ui).numpy()
    assert np.abs(every[:, 0] - direct[:, 0]).max() < 1e-6
    assert np.ptp(every, axis=1).min() > 0.01


def test_towers_are_apart():
    made = model(FACTORIZED)
    given = inputs(FACTORIZED)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(given)
        quality = made.quality(given["quality"], tf.constant(1.0))
        ui = made.ui(given["ui"])
    assert all(gradient is None for gradient in tape.gradient(quality, given["ui"]))
    assert all(gradient is None for gradient in tape.gradient(ui, given["quality"]))


def test_a_fresh_factorized_model_learns_in_both_towers():
    made = ClickModel(FACTORIZED, widths(FACTORIZED), seed=0)
    given = inputs(FACTORIZED)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(made(given, tf.constant(1.0)).logits ** 2)
    for name, gradient in tape.gradient(total, made.weights()).items():
        assert bool(tf.reduce_any(gradient != 0)), name


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


def test_without_layers_it_is_a_logistic_regression_that_starts_at_the_prior():
    made = ClickModel(Architecture(0, 0, (), prior=0.05), {"quality": 0}, seed=0)
    assert list(made.weights()) == ["output_bias"]
    given = {"quality": TowerInput(tf.zeros([1, 2, 0]), tf.constant([[0.0, 1.5]]))}
    logit = made(given, tf.constant(1.0)).logits[0]
    np.testing.assert_allclose(1 / (1 + np.exp(-logit[0])), 0.05, rtol=1e-6)
    assert float(logit[1]) == pytest.approx(float(logit[0]) + 1.5)


def test_components_start_differently_and_predict_the_prior_together():
    made = ClickModel(replace(PLAIN, components=3), widths(PLAIN), seed=0)
    starts = [weights_of(made, index)["quality/deep_0/w"] for index in range(3)]
    assert all(np.abs(a - b).max() > 0.01 for a, b in ((starts[0], starts[1]), (starts[1], starts[2])))
    zero = {"quality": TowerInput(tf.zeros([1, 1, 3]), tf.zeros([1, 1]))}
    logit = ensemble_logit(made(zero, tf.constant(1.0)).logits)
    assert float(logit[0]) == pytest.approx(math.log(0.2 / 0.8), rel=1e-5)


def test_heads_compute_in_float32_under_bfloat16():
    made = ClickModel(replace(FACTORIZED, components=2, compute_dtype="bfloat16"), widths(FACTORIZED), seed=0)
    scores = made(inputs(FACTORIZED), tf.constant(1.0))
    assert scores.logits.dtype == tf.float32
    assert {weight.dtype for weight in made.weights().values()} == {tf.float32}


def test_architectures_that_are_impossible_are_refused():
    with pytest.raises(ValueError, match="rank head needs crosses or deep layers"):
        ClickModel(Architecture(0, 0, (), rank_head=True), {"quality": 3}, seed=0)
    with pytest.raises(ValueError, match="factorized model needs crosses or deep layers"):
        ClickModel(Architecture(0, 0, (), factors=FACTORIZED.factors), {"quality": 3, "ui": 2}, seed=0)


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
    model = ClickModel(Architecture(**{**settings, **changes}), {"quality": 3, "ui": 3}, seed=0)
    assert (model.input_dtype("quality"), model.input_dtype("ui")) == dtypes
