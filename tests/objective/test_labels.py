"""Which rows come for a label when, and the importance weights of labels that come late."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.config import parse_model
from ctr.objective.config import ObjectiveConfig
from ctr.objective.labels import label_losses, label_outcomes, label_targets, target_weights

WAIT, CORRECT = {"kind": "wait", "window": 60}, {"kind": "correct", "window": 60, "at": [10]}
Q = np.array([0.001, 0.05, 0.3, 0.9])
Z = np.linspace(-4, 3, 4)


def objective(delay, **changes):
    return parse_model(ObjectiveConfig, {"labels": {"sale": {"delay": delay, **changes}}}, "test")


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def gradient(config, positive, negative, z):
    """The gradient by the logits of a loss whose sum over rows is divided by 1."""
    logit = tf.constant(z[np.newaxis])
    targets = {"positive:sale": tf.constant(positive), "negative:sale": tf.constant(negative)}
    one = tf.constant(1.0, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(logit)
        (loss,) = label_losses(config, targets, {"sale": logit}, {"label_sale": one}, one)
    return tape.gradient(loss, logit)[0].numpy()


def test_by_the_true_probability_the_weighted_stream_has_the_gradient_of_known_labels():
    """Of the rows that come a share q / (1 + q) is positive: each brings on average what one of known label does."""
    label, logit = objective(CORRECT).labels["sale"], tf.constant(np.log(Q / (1 - Q)))
    targets = {f"{kind}:sale": tf.ones(4, tf.float64) for kind in ("positive", "negative")}
    positive, negative = (weight.numpy() for weight in target_weights(label, "sale", targets, logit))
    of_positives, of_negatives = Q / (1 + Q) * positive, 1 / (1 + Q) * negative
    expected = -of_positives * (1 - sigmoid(Z)) + of_negatives * sigmoid(Z)
    np.testing.assert_allclose(expected, sigmoid(Z) - Q, rtol=1e-12)


def test_by_the_prediction_each_impression_brings_the_gradient_of_a_known_label_times_one_minus_p_squared():
    found = gradient(objective(CORRECT), Q, np.ones(4), Z)
    np.testing.assert_allclose(found, (1 - sigmoid(Z) ** 2) * (sigmoid(Z) - Q), rtol=1e-12)
    # Nothing goes through the weights, and the point of rest is the truth.
    np.testing.assert_allclose(
        gradient(objective(CORRECT), Q, np.ones(4), np.log(Q / (1 - Q))), 0, atol=1e-15
    )
    # And not that of labels that are seen at once alone.
    assert (gradient(objective(CORRECT), 0.5 * Q, np.ones(4), np.log(Q / (1 - Q))) > 1e-4).all()


def test_streams_that_are_drawn_settle_where_the_labels_are():
    """Stochastic descent of many, on negatives at once and on positives 40 steps later, float64."""
    rng, config, z, late = np.random.default_rng(1), objective(CORRECT), np.zeros(300), []
    for step in range(300):
        late.append(rng.binomial(50, 0.2, 300).astype(float))
        come = late[step - 40] if step >= 40 else np.zeros(300)
        z = z - 0.01 * gradient(config, come, np.full(300, 50.0), z)
        if step == 39:
            assert sigmoid(z).max() < 0.06
    assert sigmoid(z).mean() == pytest.approx(0.2, abs=0.003)


def test_waiting_learns_the_plain_loss_by_weight_and_ramp():
    config = objective(WAIT, weight=0.5)
    positive, negative = np.array([2.0, 0, 0, 1]), np.array([0.0, 3, 0, 0])
    expected = 0.5 * (negative * sigmoid(Z) - positive * (1 - sigmoid(Z)))
    np.testing.assert_allclose(gradient(config, positive, negative, Z), expected, rtol=1e-12)
    # A row that does not come counts nothing, whatever its logit is.
    assert gradient(config, np.zeros(1), np.zeros(1), np.array([np.inf])) == 0


AFTER = np.array([0, 5, 10, 11, 60, 61, np.nan, np.nan, 5, 5])
KNOWN = np.array([np.inf] * 7 + [60, 59, np.nan])
CLICKED = np.array([1, 1, 1, 1, 1, 1, 1, 0, 1, 1], bool)
JOINED = {"after:sale": AFTER, "known:sale": KNOWN}


def come(config, at, since):
    return [
        part.astype(int).tolist()
        for part in label_targets(config.labels["sale"], "sale", JOINED, CLICKED, at, since)
    ]


def test_rows_come_once_or_as_negatives_at_once_and_as_positives_once_they_are_seen():
    nothing = [0] * 10
    assert come(objective(WAIT), 0, None) == [nothing, nothing]
    assert come(objective(WAIT), 60, 0) == [[1, 1, 1, 1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 0, 0, 0]]
    assert come(objective(WAIT, given="all"), 60, 0)[1] == [0, 0, 0, 0, 0, 1, 1, 1, 0, 0]
    correct = objective(CORRECT)
    # Seen with the click already: as both.
    assert come(correct, 0, None) == [[1, *[0] * 9], [1, 1, 1, 1, 1, 1, 1, 0, 0, 0]]
    assert come(correct, 10, 0) == [[0, 1, 1, 0, 0, 0, 0, 0, 0, 0], nothing]
    assert come(correct, 60, 10) == [[0, 0, 0, 1, 1, 0, 0, 0, 0, 0], nothing]
    outcomes = label_outcomes(correct.labels["sale"], "sale", JOINED, CLICKED)
    np.testing.assert_array_equal(outcomes, [1, 1, 1, 1, 1, 0, 0, np.nan, np.nan, np.nan])
