"""Targets and losses of further labels."""

from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from ctr.config import parse_model
from ctr.objective.config import ObjectiveConfig
from ctr.objective.losses import BatchObjective, label_losses
from ctr.objective.targets import label_outcomes, label_targets

Z = np.linspace(-4, 3, 4)
OUTCOMES = np.array([1, 0, np.nan, 1, 0, np.nan], np.float32)
ROWS = SimpleNamespace(
    label=np.array([1, 1, 1, 0, 0, 0], np.float32),
    train_weight=np.array([2, 3, 1, 1, 0.5, 1], np.float32),
    joined={"label:sale": OUTCOMES},
)


def objective(**changes):
    return parse_model(ObjectiveConfig, {"labels": {"sale": changes}}, "test")


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def gradient(config, positive, negative, z):
    """The gradient by the logits of a loss whose sum over rows is divided by 1."""
    logit = tf.constant(z[np.newaxis])
    targets = {"positive:sale": tf.constant(positive), "negative:sale": tf.constant(negative)}
    targets["batch_weight"] = one = tf.constant(1.0, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(logit)
        (loss,) = label_losses(BatchObjective(config, targets, {"label_sale": one}), {"sale": logit})
    return tape.gradient(loss, logit)[0].numpy()


def test_the_loss_is_the_plain_one_by_weight_and_ramp():
    config = objective(weight=0.5)
    positive, negative = np.array([2.0, 0, 0, 1]), np.array([0.0, 3, 0, 0])
    expected = 0.5 * (negative * sigmoid(Z) - positive * (1 - sigmoid(Z)))
    np.testing.assert_allclose(gradient(config, positive, negative, Z), expected, rtol=1e-12)
    # A row without the label counts nothing, whatever its logit is.
    assert gradient(config, np.zeros(1), np.zeros(1), np.array([np.inf])) == 0


def test_rows_have_a_label_where_it_is_known_and_asked_for():
    clicked, every = objective(), objective(given="all")
    unknown = np.nan
    np.testing.assert_array_equal(
        label_outcomes(clicked.labels["sale"], "sale", ROWS), [1, 0, unknown, unknown, unknown, unknown]
    )
    np.testing.assert_array_equal(label_outcomes(every.labels["sale"], "sale", ROWS), OUTCOMES)
    found = label_targets(clicked, ROWS)
    assert found["positive:sale"].tolist() == [2, 0, 0, 0, 0, 0]
    assert found["negative:sale"].tolist() == [0, 3, 0, 0, 0, 0]
    found = label_targets(every, ROWS)
    assert found["positive:sale"].tolist() == [2, 0, 0, 1, 0, 0]
    assert found["negative:sale"].tolist() == [0, 3, 0, 0, 0.5, 0]
