"""The factors of a model's linear products, from which K-FAC learns (THESIS eq. 3.5)."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import tensorflow as tf

from ctr.models.click_model import Scores
from ctr.models.crosses import Multiply
from ctr.models.dcn import Products, recorded
from ctr.optim.kfac.core import Layer
from ctr.optim.kfac.dense import DenseKfac
from ctr.optim.kfac.factors import Factors, chosen_rows, factors, row_stride
from ctr.optim.kfac.output_losses import gradient_by_outputs
from ctr.optim.kfac.record import Product, Recording, record
from ctr.workers.collectives import Workers


def click_likelihood(
    seed: tuple[int, tf.Tensor] | None,
    targets: Mapping[str, tf.Tensor],
    chosen: tf.Tensor | None,
    logits: tf.Tensor,
) -> tf.Tensor:
    """The negative log-likelihood of labels under the network's own click probability, summed over rows and components.

    Args:
        seed: of labels that are sampled from that probability (``DenseKfac.seed``); None: those of the rows.
        targets: of the batch.
        chosen: int32, the numbers of these rows; None: all.
        logits: of the network, [components, rows].
    """
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


Forward = Callable[[tf.Tensor | None, Multiply], Scores]
"""Scores the rows of the batch with these numbers, of None all, by a function that multiplies."""


def record_network(forward: Forward, chosen: tf.Tensor | None = None) -> Recording:
    """Records a pass over the network: its logits, [components, rows], where it is an expert its own, and its products.

    Passes of training show no products: they are fused.
    """

    def run() -> tuple[tf.Tensor, list[Product]]:
        pairs: Products = []
        scores = forward(chosen, recorded(pairs))
        products = [Product(("",) * outputs.shape[0], inputs, outputs, False) for inputs, outputs in pairs]
        return scores.experts.get("network", scores.logits), products

    return record(run)


def product_factors(
    optimizer: DenseKfac,
    forward: Forward,
    layers: Sequence[Layer],
    targets: Mapping[str, tf.Tensor],
    workers: Workers,
) -> list[Factors]:
    """Computes the means over rows of the batch of each layer's factors, in a pass of its own over the network.

    The rows are every n-th one (``KfacOptions.statistics_rows``), the same ones for any number of workers; several
    compute all of their own rows, as one may have any number of those that count.

    Args:
        optimizer: whom the factors are for.
        forward: see ``Forward``.
        layers: in the order of the work; each product is one of as many layers as there are components.
        targets: of the batch; rows of padding have no weight.
        workers: those who each have a part of the batch's rows; the means are of all.
    """
    present = tf.cast(targets["own_weight"] > 0, tf.float32)
    chosen = None
    if workers.size == 1:
        chosen = chosen_rows(present.shape[0] or tf.shape(present)[0], optimizer.options.statistics_rows)
        present = tf.gather(present, chosen)
    else:
        stride = row_stride(targets["batch_capacity"], optimizer.options.statistics_rows)
        present = tf.where(targets["number"] % stride == 0, present, 0.0)
    run = record_network(forward, chosen)
    likelihood = partial(click_likelihood, optimizer.seed, targets, chosen)
    _, by_logits = gradient_by_outputs(likelihood, run.outputs)
    found: list[tf.Tensor] = []
    for one, layer in zip(run.send(by_logits), layers, strict=True):
        inputs, gradients = tf.cast(one.inputs, tf.float32), tf.cast(one.gradients, tf.float32)
        found += factors(inputs, gradients, present, layer.bias is not None)
    *sums, count = workers.all_reduce([*found, tf.reduce_sum(present)])
    means = [tf.math.divide_no_nan(one, count) for one in sums]
    return [Factors(*pair) for pair in zip(means[::2], means[1::2], strict=True)]
