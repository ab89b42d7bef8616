"""Muon: momentum whose matrices are made nearly orthogonal, as a ``ctr.optim.protocol.DenseOptimizer``.

For a matrix W of m x n with gradient G (Jordan et al., 2024, github.com/KellerJordan/Muon; the scale is that of Liu
et al., arXiv 2502.16982, section 2.2)::

    M = mu M + G,    D = G + mu M (Nesterov) or M
    W -= rate (rms sqrt(max(m, n)) O(D) + lambda W)

where O(D) is U V^T of D = U S V^T, but for singular values, which a polynomial iteration brings to about 0.7 to 1.2.
A stack of matrices is one of each. All else, also matrices of one row or column, learns by Adam. Unlike here, in
``keras.optimizers.Muon`` weights decay before the step, there are no stacks, and matrices of one row or column are
taken as any others.
"""

import math
from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr.optim.contrib.muon_options import MuonOptions
from ctr.optim.protocol import Cost, DenseOptimizer, Move, Saved, TakenOver, WithoutHost
from ctr.workers.collectives import ALONE, Workers

_POLYNOMIAL = (3.4445, -4.7750, 2.0315)
"""a, b, c of X <- a X + (b X X^T + c (X X^T)^2) X, whose slope at 0 is steep."""
_LEAST_NORM = 1e-7
_ADAM_OPERATIONS = 14
_MUON_OPERATIONS = 8


def is_matrix(shape: Sequence[float]) -> bool:
    """Tells whether a shape is that of a matrix, or a stack of matrices, of more than one row and column."""
    return len(shape) >= 2 and min(shape[-2:]) > 1


def orthogonalize(matrices: tf.Tensor, iterations: int) -> tf.Tensor:
    """Computes O(D) of each matrix of [..., m, n], in its dtype; 0 of 0."""
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    found = tf.linalg.matrix_transpose(matrices) if is_tall else matrices
    found /= tf.norm(found, axis=(-2, -1), keepdims=True) + _LEAST_NORM
    a, b, c = _POLYNOMIAL
    for _ in range(iterations):
        gram = tf.matmul(found, found, transpose_b=True)
        found = a * found + tf.matmul(b * gram + c * tf.matmul(gram, gram), found)
    return tf.linalg.matrix_transpose(found) if is_tall else found


class DenseMuon(WithoutHost):
    """Muon over dense weights; weight decay applies to matrices and heads, not to biases.

    Each worker has all state. That of weight i: ``tensor{i}/average``, and for Adam also ``/square`` and ``/steps``.
    """

    name = "muon"

    def __init__(self, options: MuonOptions, workers: Workers = ALONE) -> None:
        del workers
        self.options = options
        self._weights: list[tf.Variable] = []
        self._state: dict[str, tf.Variable] = {}

    def build(self, weights: Mapping[str, tf.Variable]) -> None:
        self._weights = list(weights.values())
        for index, weight in enumerate(self._weights):
            shapes = {"average": weight.shape}
            if not is_matrix(weight.shape):
                shapes |= {"square": weight.shape, "steps": tf.TensorShape([])}
            for kind, shape in shapes.items():
                name = f"muon/tensor{index}/{kind}"
                self._state[name] = tf.Variable(tf.zeros(shape, weight.dtype), trainable=False, name=name)

    @property
    def variables(self) -> dict[str, tf.Variable]:
        return dict(self._state)

    def update(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, compiled: bool) -> None:
        del compiled
        for index, (weight, gradient) in enumerate(zip(self._weights, gradients, strict=True)):
            rule = self._matrix_direction if is_matrix(weight.shape) else self._adam_direction
            direction = rule(index, gradient)
            if self.options.weight_decay and len(weight.shape) > 1:
                direction += self.options.weight_decay * weight
            weight.assign_sub(tf.cast(rate, weight.dtype) * direction)

    def _matrix_direction(self, index: int, gradient: tf.Tensor) -> tf.Tensor:
        options, average = self.options, self._state[f"muon/tensor{index}/average"]
        after = options.momentum * average + gradient
        average.assign(after)
        direction = gradient + options.momentum * after if options.nesterov else after
        scale = options.rms * math.sqrt(max(gradient.shape[-2:]))
        return scale * orthogonalize(direction, options.iterations)

    def _adam_direction(self, index: int, gradient: tf.Tensor) -> tf.Tensor:
        options = self.options
        average, square, steps = (
            self._state[f"muon/tensor{index}/{kind}"] for kind in ("average", "square", "steps")
        )
        step = steps.assign_add(1.0)
        mean = options.beta1 * average + (1.0 - options.beta1) * gradient
        second = options.beta2 * square + (1.0 - options.beta2) * tf.square(gradient)
        average.assign(mean)
        square.assign(second)
        correction = tf.sqrt(1.0 - options.beta2**step) / (1.0 - options.beta1**step)
        return correction * tf.math.divide_no_nan(mean, tf.sqrt(second) + options.epsilon)

    def cost(self, shapes: Sequence[Sequence[float]]) -> Cost:
        update = preconditioning = 0.0
        for shape in shapes:
            size = math.prod(shape)
            if is_matrix(shape):
                side = min(shape[-2:])
                update += _MUON_OPERATIONS * size
                # Three products: X X^T and that by X of 2 s size each, and the square of X X^T.
                products = 4 * side * size + 2 * side**2 * size / max(shape[-2:])
                preconditioning += self.options.iterations * products
            else:
                update += _ADAM_OPERATIONS * size
        return Cost(update=update, preconditioning=preconditioning)

    def take_over(
        self, new: Saved, before: DenseOptimizer, old: Saved, moves: Mapping[int, tuple[int, Move]]
    ) -> TakenOver:
        if not isinstance(before, DenseMuon):
            return TakenOver.nothing(moves, f"the optimizer was {before.name}, is {self.name}")
        taken = TakenOver.nothing(moves)
        for index, (old_index, move) in moves.items():
            of_new, of_old = f"muon/tensor{index}/", f"muon/tensor{old_index}/"
            by_adam, is_full = f"{of_new}steps" in new.arrays, move.fills(new.shapes[index])
            # Adam's averages have one number of steps: elements that begin anew would take steps that are far too long.
            if by_adam != (f"{of_old}steps" in old.arrays) or (by_adam and not is_full):
                continue
            for kind in ("average", "square") if by_adam else ("average",):
                move.move(new.arrays[of_new + kind], old.arrays[of_old + kind])
            if by_adam:
                new.arrays[f"{of_new}steps"][...] = old.arrays[f"{of_old}steps"]
            taken.statuses[index] = "taken" if is_full else "partly"
        return taken
