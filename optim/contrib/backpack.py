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

The bias of a product has a_n = 1. The loss of each row must be a function of that row alone. Losses that couple
rows, as RankNet does, have quantities of first order for each query instead (``groups``).
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ctr.optim.kfac.output_losses import LOSSES, LossName, check_labels, gradient_by_outputs
from ctr.optim.kfac.record import (
    Product,
    Recording,
    Sent,
    is_sequential,
    record,
    refuse_probabilities,
    sequential_products,
)

FIRST_ORDER = ("gradient", "individual", "norms", "second_moment", "variance")
SECOND_ORDER = ("ggn", "ggn_mc", "hessian", "kfac", "kflr", "kfra")
_QUANTITIES, _LOSSES = ", ".join((*FIRST_ORDER, *SECOND_ORDER)), ", ".join(LOSSES)

RowLosses = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


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
    loss: LossName | RowLosses,
    batch: tuple[Any, Any],
    quantities: Sequence[str] = ("gradient", "norms", "second_moment", "variance"),
    *,
    groups: Any = None,
    samples: int = 1,
    seed: int = 0,
) -> dict[str, LayerStatistics]:
    """Computes quantities of a model's linear layers on a batch, by the name of the layer, or of the weight.

    Args:
        model: a Keras Sequential of dense layers and layers without weights, or an object with ``record``, which
            takes inputs and returns the outputs, [B, C], and each ``ctr.optim.kfac.record.Product`` in their order.
        loss: a name, where cross-entropies are those of logits, so that the model's last layer has no sigmoid or
            softmax; or, for quantities of first order, a function of labels and outputs [B, C] that returns the loss
            of each row, [B].
        batch: inputs and labels.
        quantities: of ``FIRST_ORDER`` and ``SECOND_ORDER``.
        groups: int [B]; rows of one number, from 0 up, are one unit in the place of a row: N is the number of units,
            and the loss of a unit the sum over its rows, or what ``loss`` returns for it: then [N].
        samples: M of ``ggn_mc`` and ``kfac``.
        seed: of the draws.

    Raises:
        ValueError: a quantity, loss or layer that is not known, or not defined here.
    """
    _check(loss, quantities, groups, samples)
    if isinstance(loss, str):
        refuse_probabilities(model, loss)
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise ValueError("batch is not a pair; allowed: inputs and labels")
    inputs, labels = batch
    if labels is None:
        raise ValueError("batch has no labels; allowed: inputs and labels")
    labels = tf.convert_to_tensor(labels)
    name = loss if isinstance(loss, str) else None
    losses: RowLosses = LOSSES[loss].values if isinstance(loss, str) else loss
    second = tf.GradientTape(persistent=True) if "hessian" in quantities else None
    with second or contextlib.nullcontext():
        run = record(partial(_products, model, inputs))
        rows = int(tf.shape(run.outputs)[0])
        if not rows:
            raise ValueError("the batch has no rows; allowed: at least one")
        if name is not None:
            check_labels(name, labels, run.outputs.shape)
        units = None if groups is None else _units(groups, rows)
        values, by_outputs = gradient_by_outputs(partial(losses, labels), run.outputs)
        _check_values(values, rows, units)
        if by_outputs is None:
            raise ValueError(
                "the loss does not depend on the outputs; allowed: a function of TensorFlow operations"
            )
        sent = run.send(by_outputs)
    first = [quantity for quantity in FIRST_ORDER if quantity in quantities]
    found = {one.name: LayerStatistics(*_first_order(one, first, units), {}) for one in sent}
    if name is not None:
        _by_loss(found, run, name, quantities, samples, seed)
    if second is not None:
        _hessian(found, second, run.products, sent)
    return found


def _check(loss: Any, quantities: Sequence[str], groups: Any, samples: int) -> None:
    if isinstance(quantities, str) or not isinstance(quantities, Sequence):
        raise ValueError(f"quantities is {quantities!r}; allowed: a list of names")
    if not isinstance(samples, int | np.integer) or samples < 1:
        raise ValueError(f"samples is {samples!r}; allowed: a whole number from 1 up")
    if loss not in LOSSES if isinstance(loss, str) else not callable(loss):
        raise ValueError(f"loss is {loss!r}; allowed: {_LOSSES}, or a function")
    for quantity in quantities:
        if quantity not in (*FIRST_ORDER, *SECOND_ORDER):
            raise ValueError(f"{quantity!r} is no quantity; allowed: {_QUANTITIES}")
        if quantity in SECOND_ORDER and groups is not None:
            raise ValueError(
                f"{quantity} is not defined for groups of rows; allowed: {', '.join(FIRST_ORDER)}"
            )
        if quantity in SECOND_ORDER and not isinstance(loss, str):
            raise ValueError(f"{quantity} requires a loss by name; allowed: {_LOSSES}")


def _units(groups: Any, rows: int) -> tf.Tensor:
    try:
        found = np.asarray(groups)
    except ValueError:
        raise ValueError("groups is a list of lists of several lengths; allowed: a list of numbers") from None
    if found.shape != (rows,) or found.dtype.kind not in "iu" or found.min() < 0:
        raise ValueError(
            f"groups is of shape {list(found.shape)} and {found.dtype}; allowed: for each of the {rows} rows a whole "
            "number from 0 up"
        )
    if len(np.unique(found)) != int(found.max()) + 1:
        raise ValueError(
            "groups leaves out numbers below its largest one; allowed: 0, 1, ..., each at least once"
        )
    return tf.constant(found, tf.int32)


def _check_values(values: Any, rows: int, units: tf.Tensor | None) -> None:
    sizes = {rows} if units is None else {rows, int(tf.reduce_max(units)) + 1}
    shape = tuple(np.shape(values))
    if len(shape) != 1 or shape[0] not in sizes:
        raise ValueError(
            f"the loss returned the shape {list(shape)}; allowed: the loss of each row, [{rows}], without reduction"
        )


def _products(model: Any, inputs: Any) -> tuple[tf.Tensor, Sequence[Product]]:
    if is_sequential(model):
        return sequential_products(model, tf.convert_to_tensor(inputs))
    if not hasattr(model, "record"):
        raise ValueError(
            f"{type(model).__name__} reports no products; allowed: Sequential, or a model with record()"
        )
    return model.record(inputs)


def _first_order(
    sent: Sent, wanted: Sequence[str], units: tf.Tensor | None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    _, inputs, gradients, has_bias = sent
    dtype = gradients.dtype
    if "variance" in wanted:
        # A difference of squares: of float32 nothing would be left where the gradients of rows are nearly the same.
        inputs, gradients = tf.cast(inputs, tf.float64), tf.cast(gradients, tf.float64)
    if units is None:
        count = int(gradients.shape[0])
        squares = tf.square(inputs), tf.square(gradients)
        found = {"norms": tf.reduce_sum(squares[0], 1) * tf.reduce_sum(squares[1], 1) / count**2}
        needed = _needed(wanted)
        if "gradient" in needed:
            found["gradient"] = tf.matmul(inputs, gradients, transpose_a=True) / count
        if "individual" in needed:
            found["individual"] = tf.einsum("ni,nj->nij", inputs, gradients) / count
        if "second_moment" in needed:
            found["second_moment"] = tf.matmul(*squares, transpose_a=True) / count
        weight = _finish(found, wanted, dtype)
    else:
        count = int(tf.reduce_max(units)) + 1
        each = tf.math.unsorted_segment_sum(tf.einsum("ni,nj->nij", inputs, gradients), units, count)
        gradients = tf.math.unsorted_segment_sum(gradients, units, count)
        weight = _of_units(each, wanted, dtype)
    return weight, _of_units(gradients, wanted, dtype) if has_bias else {}


def _of_units(gradients: tf.Tensor, wanted: Sequence[str], dtype: tf.DType) -> dict[str, np.ndarray]:
    count, squares = int(gradients.shape[0]), tf.square(gradients)
    found = {
        "gradient": tf.reduce_mean(gradients, 0),
        "individual": gradients / count,
        "norms": tf.reduce_sum(squares, list(range(1, len(squares.shape)))) / count**2,
        "second_moment": tf.reduce_mean(squares, 0),
    }
    return _finish(found, wanted, dtype)


def _needed(wanted: Sequence[str]) -> set[str]:
    return {*wanted, *(("gradient", "second_moment") if "variance" in wanted else ())}


def _finish(found: dict[str, tf.Tensor], wanted: Sequence[str], dtype: tf.DType) -> dict[str, np.ndarray]:
    values = {name: np.asarray(value) for name, value in found.items() if name in _needed(wanted)}
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
    if any(len(product.outputs.shape) != 2 for product in products):
        raise ValueError("hessian is not given for products of several components at once")
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
        slope = None if product.matrix is None else _slope(run.tape, product.outputs, following)
        if slope is None:
            raise ValueError(
                f"kfra requires that nothing but element-wise functions follows {product.names[0]}, in a "
                "Sequential model"
            )
        averaged *= tf.matmul(slope, slope, transpose_a=True) / rows
        factors = Kronecker(_input_factor(product.inputs), np.asarray(averaged))
        found[product.names[0]].factors["kfra"] = factors
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
