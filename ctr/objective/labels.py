"""Further labels of a row, such as a conversion after a click: which rows have them, and their losses."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from ctr.data.reader import Rows
from ctr.data.schema import label_column
from ctr.objective.config import LabelConfig, ObjectiveConfig


def target_columns(name: str) -> tuple[str, str]:
    """Names the weights of rows as a label's positives, and as its negatives, among targets."""
    return f"positive:{name}", f"negative:{name}"


def label_outcomes(label: LabelConfig, name: str, rows: Rows) -> np.ndarray:
    """Returns whether N rows have a label: float32 [N], 1 or 0; NaN where it is not known, or not asked for."""
    outcomes = rows.joined[label_column(name)]
    return outcomes if label.given == "all" else np.where(rows.label > 0, outcomes, np.float32(np.nan))


def label_targets(config: ObjectiveConfig, rows: Rows) -> dict[str, np.ndarray]:
    """Returns the train weights of N rows as positives and as negatives of each label, float32 [N]."""
    targets = {}
    for name, label in config.labels.items():
        outcomes = label_outcomes(label, name, rows)
        for column, value in zip(target_columns(name), (1, 0), strict=True):
            targets[column] = np.where(outcomes == value, rows.train_weight, np.float32(0))
    return targets


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
        positive, negative = (targets[column] for column in target_columns(name))
        loss = positive * tf.nn.softplus(-logit) + negative * tf.nn.softplus(logit)
        # Rows without the label count nothing, not even with a loss that is not finite.
        loss = tf.reduce_sum(tf.where(positive + negative > 0, loss, tf.zeros_like(loss)))
        share = label.weight * ramps[term] / logit.shape[0]
        terms.append(share * tf.math.divide_no_nan(loss, total_weight))
    return terms
