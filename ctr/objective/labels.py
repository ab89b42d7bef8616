"""Further labels of a row, such as a conversion after a click: when rows come for them, their targets, their losses.

A row comes for a label as a negative, as a positive, or as both, with two numbers that are its train weight or 0. To
``wait`` means that it comes once, when its window has passed, with what is known by then.

To ``correct`` means that every row comes at first sight as a negative, and again as a positive once the label was
seen. Of the rows that come so, a share p / (1 + p) is positive, where p is the probability of the label, for each
positive came as a negative before. So importance weights make of this stream the loss of labels that are known at
once ("fake negative weighted": Ktena et al., 2019, arXiv 1907.06558, eq. 5-7; after Chapelle, 2014, "Modeling
delayed feedback in display advertising")::

    L = positive (1 + p) softplus(-z) + negative (1 - p) (1 + p) softplus(z)
    E[dL/dz] = p / (1 + p) (1 + p) (sigmoid(z) - 1) + 1 / (1 + p) (1 - p) (1 + p) sigmoid(z) = sigmoid(z) - p

Here p is sigmoid(z), the model's own prediction, through which no gradient goes. Then the gradients that an impression
of true probability q brings add up to (1 - p^2) (p - q): 0 where p is q, of the sign of those of known labels, and
nearly as large where labels are rare. Weights that are scaled to bring p - q, 1 / (1 - p) and 1, make the loss of
positives linear, which nothing limits: where many come and few negatives do, logits run away (tried).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from ctr.data.labels import label_columns
from ctr.objective.config import CorrectLabel, LabelConfig, ObjectiveConfig

KINDS = ("positive", "negative")


def target_column(name: str, kind: str) -> str:
    """Returns the name of the weights of rows as a label's positives, or negatives, among columns and targets."""
    return f"{kind}:{name}"


def target_columns(config: ObjectiveConfig) -> list[str]:
    """Returns the names of all columns that the labels' losses need of rows."""
    return [target_column(name, kind) for name in config.labels for kind in KINDS]


def label_outcomes(
    label: LabelConfig, name: str, joined: Mapping[str, np.ndarray], clicked: np.ndarray
) -> np.ndarray:
    """Returns whether N rows have a label: float64 [N], 1 or 0; NaN where it is not known, or not asked for.

    ``joined`` has the columns of ``ctr.data.labels``; ``clicked`` is bool [N].
    """
    after, known = (joined[column] for column in label_columns(name))
    asked = known >= label.delay.window
    if label.given == "click":
        asked &= clicked
    return np.where(asked, after <= label.delay.window, np.nan)


def label_targets(
    label: LabelConfig,
    name: str,
    joined: Mapping[str, np.ndarray],
    clicked: np.ndarray,
    at: float,
    since: float | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns which of N rows come as positives and as negatives ``at`` some seconds after the query's time: bool [N].

    ``joined`` and ``clicked``: see ``label_outcomes``; ``since``: when they came before, None: they come first now.
    """
    asked, delay = ~np.isnan(label_outcomes(label, name, joined, clicked)), joined[label_columns(name)[0]]
    if isinstance(label.delay, CorrectLabel):
        come = asked & (delay <= at)
        return (come, asked) if since is None else (come & (delay > since), np.zeros_like(asked))
    asked &= at == label.delay.window
    return asked & (delay <= at), asked & ~(delay <= at)


def label_losses(
    config: ObjectiveConfig,
    targets: Mapping[str, tf.Tensor],
    logits: Mapping[str, tf.Tensor],
    ramps: Mapping[str, tf.Tensor],
    total_weight: tf.Tensor,
) -> list[tf.Tensor]:
    """Computes what each label adds to the loss, scalars; its sum over rows is divided by ``total_weight``.

    ``logits`` are float32 [n, B] by label, of n components, each of which learns by itself.
    """
    terms = []
    for (term, label), (name, logit) in zip(config.label_terms.items(), logits.items(), strict=True):
        positive, negative = target_weights(label, name, targets, logit)
        loss = positive * tf.nn.softplus(-logit) + negative * tf.nn.softplus(logit)
        # Rows that do not come count nothing, not even with a loss that is not finite.
        loss = tf.reduce_sum(tf.where(positive + negative > 0, loss, tf.zeros_like(loss)))
        share = label.weight * ramps[term] / logit.shape[0]
        terms.append(share * tf.math.divide_no_nan(loss, total_weight))
    return terms


def target_weights(
    label: LabelConfig, name: str, targets: Mapping[str, tf.Tensor], logit: tf.Tensor
) -> Sequence[tf.Tensor]:
    """Computes the weights of rows as positives and as negatives, of the shape of their logits, [..., B]."""
    positive, negative = (targets[target_column(name, kind)] * tf.ones_like(logit) for kind in KINDS)
    if isinstance(label.delay, CorrectLabel):
        p = tf.sigmoid(tf.stop_gradient(logit))
        return positive * (1.0 + p), negative * (1.0 - p) * (1.0 + p)
    return positive, negative
