"""Statistics of each row's gradient, and of a batch's curvature (BACKPACK, tables 1 and 5; appendix A).

With l_n the loss of row n, N rows, L = 1/N sum l_n, and for the weights W of a product with inputs a_nt at T positions
and dz_nt = d l_n / d z_nt (a dense layer has one position; the a_nt of a convolution are its patches)::

    gradient             1/N sum_n sum_t a_nt (x) dz_nt
    individual           1/N sum_t a_nt (x) dz_nt                             BACKPACK table 1
    norms                |1/N sum_t a_nt (x) dz_nt|^2
    second_moment        1/N sum_n (sum_t a_nt (x) dz_nt)^2
    variance             second_moment - gradient^2
    ggn                  1/N sum_n sum_k (sum_t a_nt (x) J_nt^T s_nk)^2       s_nk: columns of the root of l_n's Hessian
    ggn_mc               the same with M drawn gradients instead of the columns, divided by M
    hessian              1/N sum_n sum_tu a_nt a_nu diag(d2 l_n / d z_nt d z_nu)        exact, with all residual terms
    kfac, kflr           A = 1/N sum_n sum_t a_nt a_nt^T
                         B = 1/N sum_n sum_k b_nk b_nk^T with drawn, or all, b_nk = sum_t J_nt^T s_nk
    kfra                 A as above; B = sum_tu C_tu with C averaged over rows from module to module, E[J_n^T C J_n]

The bias of a product has a_nt = 1: its Gauss-Newton matrix is B. The loss of each row is a function of that row alone.
"""

import contextlib
import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ctr.optim.kfac.output_losses import LOSSES, LossName, check_labels, check_loss, gradient_by_outputs
from ctr.optim.kfac.record import (
    Product,
    Recording,
    check_model,
    is_chain,
    record,
    refuse_layers,
    refuse_probabilities,
)

FIRST_ORDER = ("gradient", "individual", "norms", "second_moment", "variance")
SECOND_ORDER = ("ggn", "ggn_mc", "hessian", "kfac", "kflr", "kfra")


class Kronecker(NamedTuple):
    """Factors of A (x) B: ``inputs`` [in, in] and ``outputs`` [units, units]; the bias has ``outputs`` alone."""

    inputs: np.ndarray
    outputs: np.ndarray


class LayerStatistics(NamedTuple):
    """Quantities by name, of the parameter's shape except ``individual`` [N, *shape], ``norms`` [N] and ``factors``."""

    weight: dict[str, np.ndarray]
    bias: dict[str, np.ndarray]
    factors: dict[str, Kronecker]


def statistics_of(
    model: Any,
    loss: LossName,
    batch: tuple[Any, Any],
    quantities: Sequence[str] = ("gradient", "norms", "second_moment", "variance"),
    *,
    samples: int = 1,
    seed: int = 0,
) -> dict[str, LayerStatistics]:
    """Computes quantities of a model's dense layers and convolutions on a batch, keyed by the name of the layer.

    Args:
        model: a built Keras model, Sequential or Functional, of dense layers, convolutions and layers without trainable
            weights, which run in inference mode; ``kfra`` is defined for Sequential models alone.
        loss: name of the loss; cross-entropies take logits, so the model's last layer has no sigmoid or softmax.
        batch: inputs and labels.
        quantities: names from ``FIRST_ORDER`` and ``SECOND_ORDER``.
        samples: M of ``ggn_mc`` and ``kfac``.
        seed: seed of the draws.

    Raises:
        ValueError: an argument is invalid, or a layer is not supported.

    Example:
        >>> model = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(1, name="click")])
        >>> quantities = statistics_of(model, "mse", (tf.eye(4), tf.ones([4, 1])), ["gradient", "variance"])
        >>> quantities["click"].weight["variance"].shape
        (4, 1)
    """
    if isinstance(quantities, str) or not isinstance(quantities, Sequence):
        raise ValueError(f"quantities is {quantities!r}; allowed: a list of names")
    if not isinstance(samples, int | np.integer) or samples < 1:
        raise ValueError(f"samples is {samples!r}; allowed: a whole number from 1 up")
    check_loss(loss)
    for quantity in quantities:
        if quantity not in (*FIRST_ORDER, *SECOND_ORDER):
            allowed = ", ".join((*FIRST_ORDER, *SECOND_ORDER))
            raise ValueError(f"{quantity!r} is no quantity; allowed: {allowed}")
    check_model(model)
    refuse_layers(model, takes_normalizations=False)
    if "kfra" in quantities and not is_chain(model):
        raise ValueError(f"{model.name} is not Sequential; allowed for kfra: only that")
    refuse_probabilities(model, loss)
    if not isinstance(batch, tuple | list) or len(batch) != 2 or batch[1] is None:
        raise ValueError("batch is not a pair; allowed: inputs and labels")
    inputs, labels = map(tf.convert_to_tensor, batch)
    second = tf.GradientTape(persistent=True) if "hessian" in quantities else None
    with second or contextlib.nullcontext():
        run = record(model, inputs)
        if not int(tf.shape(run.outputs)[0]):
            raise ValueError("the batch has no rows; allowed: at least one")
        check_labels(loss, labels, run.outputs.shape)
        sent = run.send(gradient_by_outputs(partial(LOSSES[loss].values, labels), run.outputs))
    statistics = {product.name: LayerStatistics({}, {}, {}) for product in run.products}
    for product, gradients in zip(run.products, sent, strict=True):
        _first_order(statistics[product.name], product, gradients, quantities)
    rules, outputs = LOSSES[loss], run.outputs
    root = rules.hessian_root(outputs) if {"ggn", "kflr", "kfra"} & set(quantities) else None
    if {"ggn", "kflr"} & set(quantities):
        _curvature(statistics, run, tf.unstack(root, axis=2), 1.0, ("ggn", "kflr"), quantities)
    if {"ggn_mc", "kfac"} & set(quantities):
        drawn = [rules.draw(outputs, tf.constant([seed, m])) for m in range(samples)]
        _curvature(statistics, run, drawn, 1.0 / samples, ("ggn_mc", "kfac"), quantities)
    if "kfra" in quantities:
        _kfra(statistics, run, root)
    if second is not None:
        _hessian(statistics, second, run.products, sent)
    return statistics


def _first_order(
    statistics: LayerStatistics, product: Product, gradients: tf.Tensor, wanted: Sequence[str]
) -> None:
    """Adds the first-order quantities of a product's weight and bias, from gradients dz [N, T, units]."""
    dtype, inputs = gradients.dtype.as_numpy_dtype, product.inputs
    if "variance" in wanted:
        # A difference of squares: float32 would lose all digits if the gradients of rows are nearly equal.
        inputs, gradients = tf.cast(inputs, tf.float64), tf.cast(gradients, tf.float64)
    # The bias is the weight of one input that is 1.
    parts = {"weight": inputs, "bias": tf.ones_like(inputs[..., :1])}
    for part, values in parts.items():
        if part == "weight" or product.has_bias:
            shape = product.shape if part == "weight" else product.shape[-1:]
            for name, value in _of_rows(values, gradients, wanted).items():
                leading = value.shape[:1] if name in ("individual", "norms") else ()
                value = np.reshape(value, leading if name == "norms" else (*leading, *shape))
                getattr(statistics, part)[name] = value.astype(dtype)


def _of_rows(inputs: tf.Tensor, gradients: tf.Tensor, wanted: Sequence[str]) -> dict[str, np.ndarray]:
    count, values = int(gradients.shape[0]), {}
    if {"gradient", "variance"} & set(wanted):
        values["gradient"] = _joint(inputs, gradients) / count
    if {"second_moment", "variance"} & set(wanted):
        values["second_moment"] = _sum_of_squares(inputs, gradients) / count
    if "variance" in wanted:
        # Rounding may make it negative.
        values["variance"] = np.maximum(values["second_moment"] - np.square(values["gradient"]), 0.0)
    if "individual" in wanted:
        values["individual"] = tf.matmul(inputs, gradients, transpose_a=True) / count
    if "norms" in wanted:
        # For one position |a (x) dz|^2 = |a|^2 |dz|^2; for several, products of all pairs of positions.
        pairs = (tf.matmul(tensor, tensor, transpose_b=True) for tensor in (inputs, gradients))
        values["norms"] = tf.reduce_sum(math.prod(pairs), (1, 2)) / count**2
    return {name: np.asarray(values[name]) for name in FIRST_ORDER if name in wanted}


def _joint(inputs: tf.Tensor, gradients: tf.Tensor) -> tf.Tensor:
    """Sums a (x) dz over rows and positions, [in, units]."""
    flat = (tf.reshape(tensor, [-1, tensor.shape[-1]]) for tensor in (inputs, gradients))
    return tf.matmul(*flat, transpose_a=True)


def _sum_of_squares(inputs: tf.Tensor, gradients: tf.Tensor) -> tf.Tensor:
    """Sums the squares of each row's a (x) dz, [in, units]; dense layers are summed without a matrix for each row."""
    if inputs.shape[1] == 1:
        return _joint(tf.square(inputs), tf.square(gradients))
    return tf.reduce_sum(tf.square(tf.matmul(inputs, gradients, transpose_a=True)), 0)


def _curvature(
    statistics: dict[str, LayerStatistics],
    run: Recording,
    columns: Sequence[tf.Tensor],
    factor: float,
    names: tuple[str, str],
    quantities: Sequence[str],
) -> None:
    """Computes the diagonal and the Kronecker factors of the Gauss-Newton matrix of columns s_nk, each [B, C]."""
    diagonal, kronecker = names
    scale = factor / int(tf.shape(run.outputs)[0])
    for product, *sent in zip(run.products, *map(run.send, columns), strict=True):
        layer, weight, outer = statistics[product.name], 0.0, 0.0
        for gradients in sent:
            if diagonal in quantities:
                weight += _sum_of_squares(product.inputs, gradients)
            summed = tf.reduce_sum(gradients, 1)
            outer += tf.matmul(summed, summed, transpose_a=True)
        if diagonal in quantities:
            layer.weight[diagonal] = np.reshape(weight * scale, product.shape)
            if product.has_bias:
                layer.bias[diagonal] = np.asarray(tf.linalg.diag_part(outer) * scale)
        if kronecker in quantities:
            layer.factors[kronecker] = Kronecker(_input_factor(product), np.asarray(outer * scale))


def _input_factor(product: Product) -> np.ndarray:
    return np.asarray(_joint(product.inputs, product.inputs) / int(product.inputs.shape[0]))


def _hessian(
    statistics: dict[str, LayerStatistics],
    tape: tf.GradientTape,
    products: Sequence[Product],
    sent: Sequence[tf.Tensor],
) -> None:
    """Computes diagonals of the Hessian: z is linear in W and b, so that only the loss is curved."""
    zero = tf.UnconnectedGradients.ZERO
    for product, gradient in zip(products, sent, strict=True):
        rows, positions, units = gradient.shape
        inputs, columns = product.inputs, []
        for unit in range(units):
            second = []
            for position in range(positions):
                where = tf.one_hot(position * units + unit, positions * units, dtype=gradient.dtype)
                where = tf.broadcast_to(tf.reshape(where, [1, positions, units]), gradient.shape)
                back = tape.gradient(gradient, product.outputs, where, unconnected_gradients=zero)
                second.append(back[:, :, unit])
            blocks = tf.stack(second, axis=1)  # [N, T, T]
            columns.append((tf.reduce_sum(inputs * tf.matmul(blocks, inputs), (0, 1)), tf.reduce_sum(blocks)))
        weight, bias = (tf.stack(column, axis=-1) / rows for column in zip(*columns, strict=True))
        statistics[product.name].weight["hessian"] = np.reshape(weight, product.shape)
        if product.has_bias:
            statistics[product.name].bias["hessian"] = np.asarray(bias)


def _kfra(statistics: dict[str, LayerStatistics], run: Recording, root: tf.Tensor) -> None:
    """Computes factors from C [h, h], averaged over rows behind each module, from the last one backward (eq. 24)."""
    rows = int(root.shape[0])
    averaged = tf.einsum("nck,ndk->cd", root, root) / rows
    products = {id(product.outputs): product for product in run.products}
    for after, before in pairwise([*reversed(run.values), None]):
        if product := products.get(id(after)):
            units = product.shape[-1]
            by_position = tf.reshape(averaged, [averaged.shape[0] // units, units] * 2)
            outputs = np.asarray(tf.reduce_sum(by_position, (0, 2)))
            statistics[product.name].factors["kfra"] = Kronecker(_input_factor(product), outputs)
            if product is run.products[0]:
                return
        # Columns of a root of C are sent backward one at a time.
        eigenvalues, vectors = tf.linalg.eigh(averaged)
        averaged = 0.0
        for eigenvalue, column in zip(eigenvalues, tf.unstack(vectors, axis=1), strict=True):
            if eigenvalue > 0:
                column = tf.reshape(tf.sqrt(eigenvalue) * column, [1, *after.shape[1:]])
                sent = run.tape.gradient(after, before, tf.broadcast_to(column, after.shape))
                sent = tf.reshape(sent, [rows, -1])
                averaged += tf.matmul(sent, sent, transpose_a=True) / rows
