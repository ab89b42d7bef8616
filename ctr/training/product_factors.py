"""The factors of a model's linear products, from which K-FAC learns (THESIS eq. 3.5)."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from ctr.models.click_model import Scores
from ctr.models.linear import recording
from ctr.optim.kfac import Factors, factors
from ctr.optim.kfac_core import Layer
from ctr.workers.collectives import Workers


def click_likelihood(
    seed: tuple[int, tf.Tensor] | None, scores: Scores, targets: Mapping[str, tf.Tensor]
) -> tf.Tensor:
    """The negative log-likelihood of labels under the network's own click probability, summed over rows and components.

    Args:
        seed: of labels that are sampled from that probability (``ProductOptimizer.seed``); None: those of the rows.
        scores: of the batch; where linear weights and network are two models, the network's logit counts.
        targets: of the batch.
    """
    logits = scores.logits if scores.network is None else scores.network
    if seed is None:
        labels = tf.broadcast_to(targets["label"], tf.shape(logits))
    else:
        number = tf.stack([tf.constant(seed[0], tf.int64), tf.cast(seed[1], tf.int64)])
        if "number" in targets:
            # Of the whole batch, as one process draws them.
            whole = tf.random.stateless_uniform([logits.shape[0], targets["batch_capacity"]], number)
            drawn = tf.gather(whole, targets["number"], axis=1)
        else:
            drawn = tf.random.stateless_uniform(tf.shape(logits), number)
        labels = tf.cast(drawn < tf.sigmoid(logits), tf.float32)
    return tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(tf.stop_gradient(labels), logits))


def product_factors(
    seed: tuple[int, tf.Tensor] | None,
    forward: Callable[[], Scores],
    watched: Sequence[tf.Tensor],
    layers: Sequence[Layer],
    targets: Mapping[str, tf.Tensor],
    workers: Workers,
) -> list[Factors]:
    """Computes the means over the batch's rows of each layer's factors, in passes of its own over the network.

    Those of training show no products: they are fused (``ctr.models.linear.is_recording``).

    Args:
        seed: see ``click_likelihood``.
        forward: scores the batch.
        watched: what all products depend on.
        layers: in the order of the work; each product is one of as many layers as there are components.
        targets: of the batch; rows of padding have no weight.
        workers: those who each have a part of the batch's rows; the means are of all.
    """
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(watched)
        with recording() as products:
            scores = forward()
        likelihood = click_likelihood(seed, scores, targets)
    outputs = [output for _, output in products]
    gradients = tape.gradient(likelihood, outputs, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    present = tf.cast(targets["own_weight"] > 0, tf.float32)
    found: list[tf.Tensor] = []
    remaining = iter(layers)
    for (inputs, _), gradient in zip(products, gradients, strict=True):
        for component in range(gradient.shape[0]):
            own = tf.cast(inputs[min(component, inputs.shape[0] - 1)], tf.float32)
            by_row = tf.cast(gradient[component], tf.float32)
            found += factors(own, by_row, present, next(remaining).bias is not None)
    *sums, count = workers.all_reduce([*found, tf.reduce_sum(present)])
    means = [tf.math.divide_no_nan(one, count) for one in sums]
    return [Factors(*pair) for pair in zip(means[::2], means[1::2], strict=True)]
