"""Statistics beyond the gradient of a batch: by rows, and of its curvature (BACKPACK, tables 1 and 5; appendix A).

With l_n the loss of row n, N rows, L = 1/N sum l_n, and for the weights W of a product with inputs a_n and
dz_n = d l_n / d z_n::

    gradient             1/N sum a_n (x) dz_n
    individual           1/N a_n (x) dz_n                                     BACKPACK table 1
    norms                |1/N a_n (x) dz_n|^2 = 1/N^2 |a_n|^2 |dz_n|^2
    second_moment        1/N sum (a_n (x) dz_n)^2
    variance             second_moment - gradient^2
    ggn                  1/N sum_n sum_k (a_n (x) J_n^T s_nk)^2               s_nk: columns of the root of l_n's Hessian
    ggn_mc               the same with M drawn gradients in the place of the columns, and 1/M
    hessian              1/N sum a_n^2 (x) diag(d2 l_n / d z_n^2)             exact, with all residual terms
    kfac, kflr           A = 1/N sum a_n a_n^T; B = 1/N sum_n sum_k of the drawn, or all, J_n^T s_nk (J_n^T s_nk)^T
    kfra                 A as above; B by averages from layer to layer, E[phi' phi'^T] * (W B W^T)

The bias of a product has a_n = 1. The loss of each row is a function of that row alone.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ctr.optim.kfac.output_losses import LOSSES, LossName, check_labels, gradient_by_outputs
from ctr.optim.kfac.record import Product, Recording, Sent, is_sequential, record, refuse_probabilities

FIRST_ORDER = ("gradient", "individual", "norms", "second_moment", "variance")
SECOND_ORDER = ("ggn", "ggn_mc", "hessian", "kfac", "kflr", "kfra")


class Kronecker(NamedTuple):
    """Factors of A (x) B: ``inputs`` [in, in] and ``outputs`` [units, units]; that of the bias is ``outputs`` alone."""

    inputs: np.ndarray
    outputs: np.ndarray


class LayerStatistics(NamedTuple):
    """Quantities of a product by name: [in, units], ``individual`` [N, in, units], ``norms`` [N]; bias without in."""

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
    """Computes quantities of a model's linear layers on a batch, by the name of the layer.

    Args:
        model: a built Keras Sequential of dense layers and layers without weights.
        loss: its name; cross-entropies are those of logits, so that the model's last layer has no sigmoid or softmax.
        batch: inputs and labels.
        quantities: of ``FIRST_ORDER`` and ``SECOND_ORDER``.
        samples: M of ``ggn_mc`` and ``kfac``.
        seed: of the draws.

    Raises:
        ValueError: a quantity, loss or layer that is not known, or not defined here.

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
    if loss not in LOSSES:
        raise ValueError(f"loss is {loss!r}; allowed: {', '.join(LOSSES)}")
    for quantity in quantities:
        if quantity not in (*FIRST_ORDER, *SECOND_ORDER):
            allowed = ", ".join((*FIRST_ORDER, *SECOND_ORDER))
            raise ValueError(f"{quantity!r} is no quantity; allowed: {allowed}")
    if not is_sequential(model):
        raise ValueError(f"{type(model).__name__} is not a Sequential model; allowed: only that")
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
    first = [quantity for quantity in FIRST_ORDER if quantity in quantities]
    found = {back.name: LayerStatistics(*_first_order(back, first), {}) for back in sent}
    _by_loss(found, run, loss, quantities, samples, seed)
    if second is not None:
        _hessian(found, second, run.products, sent)
    return found


def _first_order(sent: Sent, wanted: Sequence[str]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Computes the quantities of a weight [in, units] and of its bias, of rows with inputs a and gradients dz."""
    _, inputs, gradients, has_bias = sent
    dtype, count = gradients.dtype, int(gradients.shape[0])
    if "variance" in wanted:
        # A difference of squares: of float32 nothing would be left where the gradients of rows are nearly the same.
        inputs, gradients = tf.cast(inputs, tf.float64), tf.cast(gradients, tf.float64)
    squares = tf.square(inputs), tf.square(gradients)
    weight = {
        "gradient": lambda: tf.matmul(inputs, gradients, transpose_a=True) / count,
        "individual": lambda: tf.einsum("ni,nj->nij", inputs, gradients) / count,
        "norms": lambda: tf.reduce_sum(squares[0], 1) * tf.reduce_sum(squares[1], 1) / count**2,
        "second_moment": lambda: tf.matmul(*squares, transpose_a=True) / count,
    }
    bias = {
        "gradient": lambda: tf.reduce_mean(gradients, 0),
        "individual": lambda: gradients / count,
        "norms": lambda: tf.reduce_sum(squares[1], 1) / count**2,
        "second_moment": lambda: tf.reduce_mean(squares[1], 0),
    }
    return _finish(weight, wanted, dtype), _finish(bias, wanted, dtype) if has_bias else {}


def _finish(
    rules: Mapping[str, Callable[[], tf.Tensor]], wanted: Sequence[str], dtype: tf.DType
) -> dict[str, np.ndarray]:
    needed = {*wanted, *(("gradient", "second_moment") if "variance" in wanted else ())}
    values = {name: np.asarray(rule()) for name, rule in rules.items() if name in needed}
    if "variance" in wanted:
        # Rounding may leave less than nothing.
        values["variance"] = np.maximum(values["second_moment"] - np.square(values["gradient"]), 0.0)
    return {name: values[name].astype(dtype.as_numpy_dtype) for name in wanted}


def _by_loss(
    found: dict[str, LayerStatistics],
    run: Recording,
    loss: str,
    quantities: Sequence[str],
    samples: int,
    seed: int,
) -> None:
    rules, outputs = LOSSES[loss], run.outputs
    root = rules.hessian_root(outputs) if {"ggn", "kflr", "kfra"} & set(quantities) else None
    if {"ggn", "kflr"} & set(quantities):
        _curvature(found, run, tf.unstack(root, axis=2), 1.0, ("ggn", "kflr"), quantities)
    if {"ggn_mc", "kfac"} & set(quantities):
        drawn = [rules.draw(outputs, tf.constant([seed, m])) for m in range(samples)]
        _curvature(found, run, drawn, 1.0 / samples, ("ggn_mc", "kfac"), quantities)
    if "kfra" in quantities:
        _kfra(found, run, root)


def _curvature(
    found: dict[str, LayerStatistics],
    run: Recording,
    columns: Sequence[tf.Tensor],
    factor: float,
    names: tuple[str, str],
    quantities: Sequence[str],
) -> None:
    """The diagonal and the Kronecker factors of the Gauss-Newton matrix of columns s_nk, each [B, C]."""
    diagonal, kronecker = names
    scale = factor / int(tf.shape(run.outputs)[0])
    for each in zip(*map(run.send, columns), strict=True):
        (name, inputs, _, has_bias), *_ = each
        weight, bias, outer = 0.0, 0.0, 0.0
        for _, _, own, _ in each:
            squares = tf.square(own)
            weight += tf.matmul(tf.square(inputs), squares, transpose_a=True)
            bias += tf.reduce_sum(squares, 0)
            outer += tf.matmul(own, own, transpose_a=True)
        if diagonal in quantities:
            found[name].weight[diagonal] = np.asarray(weight * scale)
            if has_bias:
                found[name].bias[diagonal] = np.asarray(bias * scale)
        if kronecker in quantities:
            found[name].factors[kronecker] = Kronecker(_input_factor(inputs), np.asarray(outer * scale))


def _input_factor(inputs: tf.Tensor) -> np.ndarray:
    return np.asarray(tf.matmul(inputs, inputs, transpose_a=True) / int(inputs.shape[0]))


def _hessian(
    found: dict[str, LayerStatistics],
    tape: tf.GradientTape,
    products: Sequence[Product],
    sent: Sequence[Sent],
) -> None:
    """Diagonals of the Hessian: z is linear in W and b, so that only its own second derivatives count."""
    for product, (name, inputs, gradient, has_bias) in zip(products, sent, strict=True):
        columns = []
        for unit in range(gradient.shape[1]):
            one = tf.one_hot(tf.fill(tf.shape(gradient)[:1], unit), gradient.shape[1], dtype=gradient.dtype)
            back = tape.gradient(
                gradient, product.outputs, one, unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
            columns.append(back[:, unit])
        second = tf.stack(columns, axis=1)
        found[name].weight["hessian"] = np.asarray(
            tf.matmul(tf.square(inputs), second, transpose_a=True) / int(inputs.shape[0])
        )
        if has_bias:
            found[name].bias["hessian"] = np.asarray(tf.reduce_mean(second, 0))


def _kfra(found: dict[str, LayerStatistics], run: Recording, root: tf.Tensor) -> None:
    """Factors by averages from layer to layer, from the last one backward."""
    rows = int(root.shape[0])
    averaged = tf.einsum("nck,ndk->cd", root, root) / rows
    following = run.outputs
    for product in reversed(run.products):
        slope = _slope(run.tape, product.outputs, following)
        if slope is None:
            raise ValueError(
                f"kfra is not defined for {product.name}; allowed: nothing but element-wise functions behind it"
            )
        averaged *= tf.matmul(slope, slope, transpose_a=True) / rows
        factors = Kronecker(_input_factor(product.inputs), np.asarray(averaged))
        found[product.name].factors["kfra"] = factors
        averaged = tf.matmul(product.matrix, tf.matmul(averaged, product.matrix, transpose_b=True))
        following = product.inputs


def _slope(tape: tf.GradientTape, outputs: tf.Tensor, following: tf.Tensor) -> tf.Tensor | None:
    """The derivative of what follows a product, of its shape; None where not each number depends on its own alone.

    Where it does, the derivative of a sum with any weights is these weights times that of the plain sum.
    """
    if following.shape != outputs.shape:
        return None
    weights = tf.random.stateless_normal(tf.shape(outputs), (1, 2), dtype=outputs.dtype)
    found = [
        tape.gradient(following, outputs, sent, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        for sent in (tf.ones_like(outputs), weights)
    ]
    gap = tf.reduce_max(tf.abs(found[1] - weights * found[0]))
    # Numbers that are not finite say nothing of it, and stay what they are.
    return None if gap > 1e-4 * tf.reduce_max(tf.abs(found[1])) else found[0]
