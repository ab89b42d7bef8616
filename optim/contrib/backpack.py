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

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
import tensorflow as tf

from ctr.optim.kfac.output_losses import LOSSES, LossName, check_labels
from ctr.optim.kfac.record import (
    Product,
    Recorded,
    is_sequential,
    record_sequential,
    refuse_probabilities,
    singly,
)

FIRST_ORDER = ("gradient", "individual", "norms", "second_moment", "variance")
SECOND_ORDER = ("ggn", "ggn_mc", "hessian", "kfac", "kflr", "kfra")

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
        model: a Keras Sequential of dense layers and layers without weights, or an object with
            ``record`` (``ctr.optim.kfac.record.Recorded``).
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
    second_tape = tf.GradientTape(persistent=True) if "hessian" in quantities else None
    losses: RowLosses = LOSSES[loss].values if isinstance(loss, str) else loss
    with tf.GradientTape(persistent=True) as tape:
        if second_tape is not None:
            second_tape.__enter__()
        outputs, products = _record(model, inputs, "kfra" in quantities)
        rows = int(tf.shape(outputs)[0])
        if not rows:
            raise ValueError("the batch has no rows; allowed: at least one")
        if isinstance(loss, str):
            check_labels(loss, labels, outputs.shape)
        units = None if groups is None else _units(groups, rows)
        values = losses(labels, outputs)
        _check_values(values, rows, units)
        total = tf.reduce_sum(values)
    run = _Run(tape, outputs, products)
    gradients = tape.gradient(total, run.tensors, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    if second_tape is not None:
        second_tape.__exit__(None, None, None)
    if products and tape.gradient(total, outputs) is None:
        raise ValueError(
            "the loss does not depend on the outputs; allowed: a function of TensorFlow operations"
        )
    found: dict[str, LayerStatistics] = {}
    for product, gradient in zip(products, gradients, strict=True):
        for name, own_inputs, own in singly(product, gradient):
            first = [q for q in FIRST_ORDER if q in quantities]
            found[name] = LayerStatistics(*_first_order(own_inputs, own, product.has_bias, first, units), {})
    if isinstance(loss, str):
        _by_loss(found, run, loss, quantities, samples, seed)
    if second_tape is not None:
        _hessian(found, second_tape, products, gradients, rows)
    return found


def _check(loss: Any, quantities: Sequence[str], groups: Any, samples: int) -> None:
    if isinstance(quantities, str) or not isinstance(quantities, Sequence):
        raise ValueError(f"quantities is {quantities!r}; allowed: a list of names")
    if not isinstance(samples, int | np.integer) or samples < 1:
        raise ValueError(f"samples is {samples!r}; allowed: a whole number from 1 up")
    if loss not in LOSSES if isinstance(loss, str) else not callable(loss):
        raise ValueError(f"loss is {loss!r}; allowed: {', '.join(get_args(LossName))}, or a function")
    for quantity in quantities:
        if quantity not in (*FIRST_ORDER, *SECOND_ORDER):
            raise ValueError(
                f"{quantity!r} is no quantity; allowed: {', '.join((*FIRST_ORDER, *SECOND_ORDER))}"
            )
        if quantity in SECOND_ORDER and groups is not None:
            raise ValueError(
                f"{quantity} is not defined for groups of rows; allowed: {', '.join(FIRST_ORDER)}"
            )
        if quantity in SECOND_ORDER and not isinstance(loss, str):
            raise ValueError(f"{quantity} requires a loss by name; allowed: {', '.join(get_args(LossName))}")


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


def _record(model: Any, inputs: Any, slopes: bool) -> tuple[tf.Tensor, Sequence[Product]]:
    if is_sequential(model):
        return record_sequential(model, tf.convert_to_tensor(inputs), slopes)
    if not hasattr(model, "record"):
        raise ValueError(
            f"{type(model).__name__} reports no products; allowed: Sequential, or a model with record()"
        )
    recorded: Recorded = model
    return recorded.record(inputs)


def _first_order(
    inputs: tf.Tensor, gradients: tf.Tensor, has_bias: bool, wanted: Sequence[str], units: tf.Tensor | None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
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
        return _finish(found, wanted, dtype), _of_units(gradients, wanted, dtype) if has_bias else {}
    count = int(tf.reduce_max(units)) + 1
    each = tf.math.unsorted_segment_sum(tf.einsum("ni,nj->nij", inputs, gradients), units, count)
    bias = tf.math.unsorted_segment_sum(gradients, units, count)
    return _of_units(each, wanted, dtype), _of_units(bias, wanted, dtype) if has_bias else {}


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


class _Run(NamedTuple):
    tape: tf.GradientTape
    outputs: tf.Tensor
    products: Sequence[Product]

    @property
    def tensors(self) -> list[tf.Tensor]:
        return [product.outputs for product in self.products]

    @property
    def rows(self) -> int:
        return int(tf.shape(self.outputs)[0])


def _by_loss(
    found: dict[str, LayerStatistics],
    run: _Run,
    loss: LossName,
    quantities: Sequence[str],
    samples: int,
    seed: int,
) -> None:
    rules, outputs = LOSSES[loss], run.outputs
    if {"ggn", "kflr"} & set(quantities):
        root = rules.hessian_root(outputs)
        columns = [root[:, :, k] for k in range(root.shape[2])]
        _curvature(found, run, columns, 1.0, "ggn", "kflr", quantities)
    if {"ggn_mc", "kfac"} & set(quantities):
        drawn = [rules.draw(outputs, tf.constant([seed, m])) for m in range(samples)]
        _curvature(found, run, drawn, 1.0 / samples, "ggn_mc", "kfac", quantities)
    if "kfra" in quantities:
        _kfra(found, run.products, rules.hessian_root(outputs), run.rows)


def _curvature(
    found: dict[str, LayerStatistics],
    run: _Run,
    columns: Sequence[tf.Tensor],
    factor: float,
    diagonal: str,
    kronecker: str,
    quantities: Sequence[str],
) -> None:
    """Diagonals and Kronecker factors of the Gauss-Newton matrix of columns s_nk, each [B, C], that are sent back."""
    products, rows = run.products, run.rows
    diagonals: dict[str, Any] = {}
    for column in columns:
        sent = run.tape.gradient(
            run.outputs, run.tensors, column, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        for product, gradient in zip(products, sent, strict=True):
            for name, inputs, own in singly(product, gradient):
                squares = tf.square(own)
                parts = (
                    tf.matmul(tf.square(inputs), squares, transpose_a=True),
                    tf.reduce_sum(squares, 0),
                    tf.matmul(own, own, transpose_a=True),
                )
                before = diagonals.get(name, (inputs, 0.0, 0.0, 0.0))
                diagonals[name] = (inputs, *(old + new for old, new in zip(before[1:], parts, strict=True)))
    for name, (inputs, weight, bias, outer) in diagonals.items():
        scale = factor / rows
        if diagonal in quantities:
            found[name].weight[diagonal] = np.asarray(weight * scale)
            if _has_bias(products, name):
                found[name].bias[diagonal] = np.asarray(bias * scale)
        if kronecker in quantities:
            factors = _input_factor(inputs, rows), np.asarray(outer * scale)
            found[name].factors[kronecker] = Kronecker(*factors)


def _has_bias(products: Sequence[Product], name: str) -> bool:
    return any(name in product.names and product.has_bias for product in products)


def _input_factor(inputs: tf.Tensor, rows: int) -> np.ndarray:
    return np.asarray(tf.matmul(inputs, inputs, transpose_a=True) / rows)


def _hessian(
    found: dict[str, LayerStatistics],
    tape: tf.GradientTape,
    products: Sequence[Product],
    gradients: Sequence[tf.Tensor],
    rows: int,
) -> None:
    """Diagonals of the Hessian: z is linear in W and b, so that only its own second derivatives count."""
    for product, gradient in zip(products, gradients, strict=True):
        if len(gradient.shape) != 2:
            raise ValueError("hessian is not given for products of several components at once")
        size = gradient.shape[1]
        columns = []
        for unit in range(size):
            one = tf.one_hot(tf.fill(tf.shape(gradient)[:1], unit), size, dtype=gradient.dtype)
            sent = tape.gradient(
                gradient, product.outputs, one, unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
            columns.append(sent[:, unit])
        second = tf.stack(columns, axis=1)
        layer = found[product.names[0]]
        layer.weight["hessian"] = np.asarray(
            tf.matmul(tf.square(product.inputs), second, transpose_a=True) / rows
        )
        if product.has_bias:
            layer.bias["hessian"] = np.asarray(tf.reduce_mean(second, 0))


def _kfra(found: dict[str, LayerStatistics], products: Sequence[Product], root: tf.Tensor, rows: int) -> None:
    """Factors by averages from layer to layer, from the last one backward."""
    averaged = tf.einsum("nck,ndk->cd", root, root) / rows
    for product in reversed(products):
        if product.slope is None or product.matrix is None:
            raise ValueError(
                f"kfra requires that nothing but element-wise functions follows {product.names[0]}, in a "
                "Sequential model"
            )
        averaged *= tf.matmul(product.slope, product.slope, transpose_a=True) / rows
        factors = _input_factor(product.inputs, rows), np.asarray(averaged)
        found[product.names[0]].factors["kfra"] = Kronecker(*factors)
        averaged = tf.matmul(product.matrix, tf.matmul(averaged, product.matrix, transpose_b=True))
