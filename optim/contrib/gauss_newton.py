"""Gradient descent preconditioned by a damped Gauss-Newton matrix of the batch (BACKPACK 4, appendix C.3).

For the weights theta of a layer's matrix or bias, whose block of the matrix is G, a learning rate alpha, a damping
lambda and an l2 regularization of strength eta::

    theta <- theta - alpha (G + (lambda + eta) I)^-1 (grad L + eta theta)                       eq. 7 and 27

``ggn`` and ``ggn_mc`` use G's diagonal. For a matrix, ``kfac``, ``kflr`` and ``kfra`` approximate G by A (x) B, and
its damped inverse by a product of two inverses (eq. 28), with pi computed from traces (eq. 29)::

    (A + pi sqrt(lambda + eta) I)^-1 (x) (B + 1/pi sqrt(lambda + eta) I)^-1

The G of a bias is B itself. Curvature comes from the current batch alone, without averages: the paper uses this rule to
demonstrate the quantities, not as a complete optimizer.
"""

from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf

from ctr.optim.contrib.backpack import LayerStatistics, statistics_of
from ctr.optim.kfac import factors as kfac
from ctr.optim.kfac.output_losses import LOSSES, LossName, check_loss
from ctr.optim.kfac.record import check_model, has_matrix, leaves

Curvature = Literal["ggn", "ggn_mc", "kfac", "kflr", "kfra"]


class GaussNewtonTrainer:
    """Trains a model of dense layers and convolutions; frozen layers stay unchanged.

        >>> model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(1)])
        >>> trainer = GaussNewtonTrainer(model, "binary_crossentropy", "kflr")
        >>> losses = [trainer.step(tf.eye(3), tf.constant([1.0, 0.0, 1.0])) for _ in range(5)]
        >>> bool(losses[-1] < losses[0])
        True

    Args:
        model: a model that ``statistics_of`` takes.
        loss: name of the loss; cross-entropies take logits.
        curvature: the approximation of the Gauss-Newton matrix: its diagonal, exact (``ggn``) or of drawn labels
            (``ggn_mc``), or Kronecker factors.
        learning_rate: alpha, the same for every step.
        damping: lambda, which is absolute: it has the scale of the loss's curvature.
        l2: eta, the strength of the l2 regularization.
        samples: number of labels drawn for each row by ``ggn_mc`` and ``kfac``.
        seed: random seed of the drawn labels.

    Attributes:
        steps: number of batches processed.
        nonfinite_steps: number of batches with a gradient or direction that was not finite; they changed nothing.

    Raises:
        ValueError: an argument or a layer is not allowed.
    """

    def __init__(
        self,
        model: Any,
        loss: LossName,
        curvature: Curvature = "kfac",
        learning_rate: float = 0.1,
        damping: float = 0.1,
        l2: float = 0.0,
        samples: int = 1,
        seed: int = 0,
    ) -> None:
        check_loss(loss)
        if curvature not in get_args(Curvature):
            raise ValueError(f"curvature is {curvature!r}; allowed: {', '.join(get_args(Curvature))}")
        for name, value, least in (
            ("learning_rate", learning_rate, 0),
            ("l2", l2, 0),
            ("damping", damping, 1e-12),
        ):
            if not (np.isreal(value) and least <= value < np.inf):
                raise ValueError(f"{name} is {value!r}; allowed: a number from {least:g} up")
        check_model(model)
        self.model, self.loss, self.curvature = model, loss, curvature
        self.learning_rate, self.damping, self.l2 = learning_rate, damping, l2
        self.samples, self.seed = samples, seed
        self.steps = self.nonfinite_steps = 0

    def step(self, inputs: Any, labels: Any) -> float:
        """Trains on a batch; returns its mean loss before the step, without the l2 regularization."""
        inputs, labels = tf.convert_to_tensor(inputs), tf.convert_to_tensor(labels)
        quantities, seed = ("gradient", self.curvature), self.seed + self.steps
        statistics = statistics_of(
            self.model, self.loss, (inputs, labels), quantities, samples=self.samples, seed=seed
        )
        mean = float(tf.reduce_mean(LOSSES[self.loss].values(labels, self.model(inputs, training=False))))
        moved: list[tuple[Any, np.ndarray]] = []
        for layer in leaves(self.model):
            if has_matrix(layer) and layer.trainable:
                weights = [layer.kernel, layer.bias] if layer.use_bias else [layer.kernel]
                moved += zip(weights, self._directions(weights, statistics[layer.name]), strict=True)
        self.steps += 1
        if all(np.isfinite(direction).all() for _, direction in moved):
            for weight, direction in moved:
                weight.assign_sub(self.learning_rate * direction)
        else:
            self.nonfinite_steps += 1
        return mean

    def _directions(self, weights: list[Any], statistics: LayerStatistics) -> list[np.ndarray]:
        """Returns the preconditioned gradients of a layer's matrix, and bias if it has one, in their shapes."""
        damping, directions = self.damping + self.l2, []
        for weight, quantities in zip(weights, (statistics.weight, statistics.bias), strict=False):
            gradient = quantities["gradient"] + self.l2 * np.asarray(weight)
            if self.curvature in ("ggn", "ggn_mc"):
                directions.append(gradient / (quantities[self.curvature] + damping))
                continue
            a, b = statistics.factors[self.curvature]
            # Not finite: the decomposition would raise an error.
            if not all(np.isfinite(matrix).all() for matrix in (gradient, a, b)):
                directions.append(np.full_like(gradient, np.nan))
                continue
            sums = kfac.Factors(tf.constant(a, tf.float64), tf.constant(b, tf.float64))
            flat = tf.constant(gradient.reshape(-1, gradient.shape[-1]), tf.float64)
            if quantities is statistics.bias:
                direction = tf.matmul(flat, kfac.inverse(sums.outputs, tf.constant(damping, tf.float64)))
            else:
                inverses = kfac.damped_inverses(sums, tf.constant(damping, tf.float64))
                direction = kfac.precondition(inverses, flat)
            directions.append(direction.numpy().reshape(gradient.shape).astype(gradient.dtype))
        return directions
