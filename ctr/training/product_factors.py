"""The factors of a model's linear products, from which K-FAC learns (THESIS eq. 3.5)."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from ctr.models.click_model import Scores
from ctr.models.crosses import Multiply
from ctr.models.dcn import Products, recorded
from ctr.optim.kfac.core import Layer
from ctr.optim.kfac.factors import Factors, chosen_rows, factors, row_stride
from ctr.optim.protocol import ProductOptimizer
from ctr.workers.collectives import Workers


def click_likelihood(
    seed: tuple[int, tf.Tensor] | None,
    scores: Scores,
    targets: Mapping[str, tf.Tensor],
    chosen: tf.Tensor | None = None,
) -> tf.Tensor:
    """The negative log-likelihood of labels under the network's own click probability, summed over rows and components.

    Args:
        seed: of labels that are sampled from that probability (``ProductOptimizer.seed``); None: those of the rows.
        scores: of the batch, or of some rows; where the network is an expert, its logit counts.
        targets: of the batch.
        chosen: int32, the numbers of these rows; None: all.
    """
    logits = scores.experts.get("network", scores.logits)
    if seed is None:
        labels = targets["label"] if chosen is None else tf.gather(targets["label"], chosen)
        labels = tf.broadcast_to(labels, tf.shape(logits))
    else:
        number = tf.stack([tf.constant(seed[0], tf.int64), tf.cast(seed[1], tf.int64)])
        if "number" in targets:
            # Of the whole batch, as one process draws them.
            whole = tf.random.stateless_uniform([tf.shape(logits)[0], targets["batch_capacity"]], number)
            drawn = tf.gather(whole, targets["number"], axis=1)
        else:
            shape = [tf.shape(logits)[0], tf.shape(targets["label"])[0]]
            drawn = tf.random.stateless_uniform(shape, number)
        if chosen is not None:
            drawn = tf.gather(drawn, chosen, axis=1)
        labels = tf.cast(drawn < tf.sigmoid(logits), tf.float32)
    return tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(tf.stop_gradient(labels), logits))


def product_factors(
    optimizer: ProductOptimizer,
    forward: Callable[[tf.Tensor | None, Multiply], Scores],
    watched: Sequence[tf.Tensor],
    layers: Sequence[Layer],
    targets: Mapping[str, tf.Tensor],
    workers: Workers,
) -> list[Factors]:
    """Computes the means over rows of the batch of each layer's factors, in passes of its own over the network.

    Those of training show no products: they are fused. The rows are every n-th one
    (``ProductOptimizer.statistics_rows``), the same ones for any number of workers; several compute all of their own
    rows, as one may have any number of those that count.

    Args:
        optimizer: whom the factors are for.
        forward: scores the rows of the batch with these numbers, of None all, by a function that multiplies.
        watched: what all products depend on.
        layers: in the order of the work; each product is one of as many layers as there are components.
        targets: of the batch; rows of padding have no weight.
        workers: those who each have a part of the batch's rows; the means are of all.
    """
    present = tf.cast(targets["own_weight"] > 0, tf.float32)
    chosen = None
    if workers.size == 1:
        chosen = chosen_rows(present.shape[0] or tf.shape(present)[0], optimizer.statistics_rows)
        present = tf.gather(present, chosen)
    else:
        stride = row_stride(targets["batch_capacity"], optimizer.statistics_rows)
        present = tf.where(targets["number"] % stride == 0, present, 0.0)
    products: Products = []
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(watched)
        scores = forward(chosen, recorded(products))
        likelihood = click_likelihood(optimizer.seed, scores, targets, chosen)
    outputs = [output for _, output in products]
    gradients = tape.gradient(likelihood, outputs, unconnected_gradients=tf.UnconnectedGradients.ZERO)
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
