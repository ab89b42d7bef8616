"""The factors of a model's linear products, from which K-FAC learns (THESIS eq. 3.5)."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr.models.click_model import Scores
from ctr.models.linear import Products
from ctr.optim.kfac import Factors, factors
from ctr.optim.kfac_core import Layer
from ctr.optim.protocol import ProductOptimizer
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
    optimizer: ProductOptimizer,
    tape: tf.GradientTape,
    likelihood: tf.Tensor,
    products: Products,
    layers: Sequence[Layer],
    targets: Mapping[str, tf.Tensor],
    workers: Workers,
) -> tuple[list[Factors], tf.Tensor]:
    """The means over the batch's rows of each layer's factors, and whether they were collected; zeros if not.

    Args:
        optimizer: decides whether.
        tape: persistent, of ``likelihood``.
        likelihood: what ``click_likelihood`` returned.
        products: in the order of the work; each is one of as many layers as there are components.
        layers: in the same order.
        targets: of the batch; rows of padding have no weight.
        workers: those who each have a part of the batch's rows; the means are of all.
    """
    present = tf.cast(targets["own_weight"] > 0, tf.float32)
    count = tf.reduce_sum(present)
    outputs = [output for _, output in products]

    def collect() -> list[tf.Tensor]:
        gradients = tape.gradient(likelihood, outputs, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        found: list[tf.Tensor] = []
        remaining = iter(layers)
        for (inputs, _), gradient in zip(products, gradients, strict=True):
            for component in range(gradient.shape[0]):
                own = tf.cast(inputs[min(component, inputs.shape[0] - 1)], tf.float32)
                by_row = tf.cast(gradient[component], tf.float32)
                has_bias = next(remaining).bias is not None
                found += factors(own, by_row, present, has_bias)
        *sums, total = workers.all_reduce([*found, count])
        return [tf.math.divide_no_nan(one, total) for one in sums]

    def nothing() -> list[tf.Tensor]:
        found: list[tf.Tensor] = []
        remaining = iter(layers)
        for inputs, output in products:
            for _ in range(output.shape[0]):
                rows = int(inputs.shape[2]) + (next(remaining).bias is not None)
                columns = int(output.shape[2])
                found += [tf.zeros([rows, rows]), tf.zeros([columns, columns])]
        return found

    collected = optimizer.collects()
    flat = tf.cond(collected, collect, nothing)
    return [Factors(*pair) for pair in zip(flat[::2], flat[1::2], strict=True)], collected
