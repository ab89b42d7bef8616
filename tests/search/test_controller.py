"""The controller against finite differences, enumerated expectations and small searches whose optimum is known."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.search import controller

SIZES = (3, 2, 4)
EVERY = np.array(list(itertools.product(*map(range, SIZES))))


def random_logits(seed: int, sizes=SIZES) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=size) for size in sizes]


def by_hand(logits, one) -> float:
    """P of a candidate."""
    return float(np.prod([np.exp(own)[at] / np.exp(own).sum() for own, at in zip(logits, one, strict=True)]))


def differences(function, logits) -> list[np.ndarray]:
    """The gradient of a function of logits, by central differences."""
    gradients = [np.zeros_like(one) for one in logits]
    for decision, one in enumerate(logits):
        for place in range(len(one)):
            around = []
            for change in (1e-6, -1e-6):
                moved = [own.copy() for own in logits]
                moved[decision][place] += change
                around.append(function(moved))
            gradients[decision][place] = (around[0] - around[1]) / 2e-6
    return gradients


def assert_same(found, expected, tolerance=1e-8) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


@settings(max_examples=30)
@given(st.integers(0, 1000), st.integers(0, len(EVERY) - 1))
def test_gradients_are_those_of_the_probability_and_of_that_given_the_limit(seed, which):
    logits, one = random_logits(seed), EVERY[which]
    found = controller.policy_gradient(one[np.newaxis], np.ones(1), controller.probabilities(logits))
    assert_same(found, differences(lambda moved: np.log(by_hand(moved, one)), logits))
    kept = EVERY[(np.random.default_rng(seed).random(len(EVERY)) < 0.4) | (np.arange(len(EVERY)) == which)]
    weights = np.exp(controller.log_probability(logits, kept))

    def given_limit(moved):
        return np.log(by_hand(moved, one) / sum(by_hand(moved, other) for other in kept))

    expected = controller.marginals_of(kept, weights, SIZES)
    found = controller.policy_gradient(one[np.newaxis], np.ones(1), expected)
    assert_same(found, differences(given_limit, logits))


def test_the_estimated_correction_is_the_gradient_of_the_papers_estimate():
    logits = random_logits(0)
    samples = controller.draw(logits, "samples", np.arange(500))
    kept = samples[samples.sum(axis=1) <= 3]
    proposal = np.exp(controller.log_probability(logits, kept))

    def estimate(moved):
        # P(V) = 1/N sum 1[z in V] p(z) / r(z), with r what the samples were drawn from.
        return np.log(np.sum(np.exp(controller.log_probability(moved, kept)) / proposal) / len(samples))

    shares = controller.marginals_of(kept, np.ones(len(kept)), SIZES)
    of_log_p = [q - p for q, p in zip(shares, controller.probabilities(logits), strict=True)]
    assert_same(of_log_p, differences(estimate, logits))


@pytest.mark.parametrize("limit", [2, 99])
def test_draws_under_a_limit_have_the_probabilities_given_it_and_depend_on_their_number_alone(limit):
    logits = random_logits(5)
    drawn = controller.draw_allowed(logits, "kept", np.arange(50_000), lambda one: one.sum(axis=1) <= limit)
    kept = EVERY[EVERY.sum(axis=1) <= limit]
    weights = np.array([by_hand(logits, one) for one in kept])
    keys = np.ravel_multi_index(tuple(drawn.T), SIZES)
    shares = np.bincount(keys, minlength=len(EVERY)) / len(drawn)
    at = np.ravel_multi_index(tuple(kept.T), SIZES)
    np.testing.assert_allclose(shares[at], weights / weights.sum(), atol=0.01)
    assert shares[at].sum() == pytest.approx(1)
    if limit == 99:
        found = -np.sum(weights * np.log(weights))
        assert controller.entropy(logits) == pytest.approx(found, rel=1e-12)
        np.testing.assert_array_equal(controller.draw(logits, "kept", np.array([17, 3])), drawn[[17, 3]])
        assert not np.array_equal(controller.draw(logits, "two", np.arange(100)), drawn[:100])


def test_rewards_are_paired_and_leave_out_what_is_not_finite():
    losses, costs = np.array([0.3, np.nan, 0.1, np.inf]), np.array([1.0, 1.0, 0.7, 0.5])
    found = controller.rewards_of(losses, costs, target=0.5, gamma=-0.1)
    np.testing.assert_allclose(found[[0, 2]], [1 - 0.3 / 0.2 - 0.1, 1 - 0.1 / 0.2 - 0.04])
    assert not np.isfinite(found[[1, 3]]).any()
    start, chosen = controller.new_controller([2]), np.array([[0], [1], [1], [0]])
    half = controller.probabilities(start.logits)
    after = controller.learn(start, chosen, found, half, rate=0.1, baseline_decay=0.95)
    alone = controller.learn(start, chosen[[0, 2]], found[[0, 2]], half, rate=0.1, baseline_decay=0.95)
    np.testing.assert_array_equal(after.to_array(), alone.to_array())
    unchanged = controller.learn(start, chosen, np.full(4, np.nan), half, rate=0.1, baseline_decay=0.95)
    assert unchanged is start


def test_a_step_is_adams_on_the_gradient_of_the_advantages():
    start, chosen, rewards = controller.new_controller([2]), np.array([[0], [1]]), np.array([1.0, 0.0])
    half = controller.probabilities(start.logits)
    first = controller.learn(start, chosen, rewards, half, rate=0.1, baseline_decay=0.9)
    # With beta1 = 0 Adam's first step is the rate times the sign of the gradient.
    np.testing.assert_allclose(first.logits[0], [0.1, -0.1], rtol=1e-6)
    assert first.baseline == pytest.approx(0.5)
    second = controller.learn(first, chosen, rewards + 1, half, rate=0.1, baseline_decay=0.9)
    assert second.baseline == pytest.approx(0.9 * 0.5 + 0.1 * 1.5)
    gradient = 0.5 * (np.array([1.5, 0.5]) - 2.0 * 0.5)
    moment = 0.999 * 0.001 * 0.25**2 + 0.001 * gradient**2
    step = 0.1 * gradient / np.sqrt(moment / (1 - 0.999**2))
    np.testing.assert_allclose(second.logits[0], first.logits[0] + step, rtol=1e-6)
    again = controller.from_array(second.to_array(), [2])
    np.testing.assert_array_equal(again.to_array(), second.to_array())


def search(qualities, costs, seed, limit) -> tuple[int, ...]:
    """The most likely candidate after a search among those of a table of qualities that cost at most the limit."""
    sizes = qualities.shape
    every = np.array(list(itertools.product(*map(range, sizes))))
    allowed = costs.ravel() <= limit
    own, numbers = controller.new_controller(sizes), np.arange(4)
    for step in range(300):
        purpose = f"{seed} {step}"
        keeps = lambda found: allowed[np.ravel_multi_index(tuple(found.T), sizes)]  # noqa: E731
        chosen = controller.draw_allowed(own.logits, purpose, numbers, keeps)
        weights = np.exp(controller.log_probability(own.logits, every[allowed]))
        expected = controller.marginals_of(every[allowed], weights, sizes)
        at = tuple(chosen.T)
        noises = np.random.default_rng([seed, step]).normal(size=5) * 0.02
        losses = 1.0 - qualities[at] + noises[0] + 0.2 * noises[1:]
        rewards = controller.rewards_of(losses, costs[at], limit, 0.0)
        own = controller.learn(own, chosen, rewards, expected, rate=0.05, baseline_decay=0.95)
    best = np.argmax(np.where(allowed, controller.log_probability(own.logits, every), -np.inf))
    return tuple(int(at) for at in every[best])


# Two layers of 2, 3 or 4 between two inputs and an output, with biases: 25 weights allow all but 3-4, 4-3 and 4-4.
WIDTHS = np.arange(2, 5)
WEIGHTS = 3 * WIDTHS[:, None] + (WIDTHS[:, None] + 1) * WIDTHS + (WIDTHS + 1)
# Wider is better, and the first layer counts most: the best under the limit has a bottleneck, 4-2.
QUALITIES = np.array([0.0, 0.04, 0.06])[:, None] + np.array([0.0, 0.008, 0.012])


def test_rejection_finds_the_optimum_of_tabnas_toy():
    assert (WEIGHTS <= 25).sum() == 6 and WEIGHTS[2, 0] == 25
    found = [search(QUALITIES, WEIGHTS.astype(float), seed, limit=25.0) for seed in range(5)]
    assert found.count((2, 0)) >= 4
