"""Moving averages: of gradients before they are preconditioned, and of directions (FF 4.2; PT 3.1)."""

from collections.abc import Collection, Mapping

import tensorflow as tf

from ctr.optim.first_order.directions import momentum_step
from ctr.optim.gradients import Present, keep
from ctr.optim.shampoo.division import Blocks
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.variables import Variables


def moving_gradient(
    beta1: float, average: tf.Variable, gradient: tf.Tensor, step: tf.Tensor, present: Present = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Adds a gradient to an average in place (PT 3.1.1); returns the new average, and the scalar sum of its weights."""
    new = beta1 * average + (1.0 - beta1) * gradient
    left = tf.pow(tf.constant(beta1, new.dtype), tf.cast(step, new.dtype))
    average.assign(keep(new, average, present))
    return new, 1.0 - left


class AveragedGradients:
    """Bias-corrected moving averages of the gradients of tensors; empty if beta1 is 0."""

    def __init__(self, beta1: float, blocks: Blocks, tensors: Collection[int], variables: Variables) -> None:
        self.beta1 = beta1
        self.averages = {
            index: variables.make(f"tensor{index}/gradient_average", blocks.shape(index))
            for index in (tensors if beta1 else ())
        }

    def update(self, gradients: Mapping[int, tf.Tensor], step: tf.Tensor) -> dict[int, tf.Tensor]:
        """Returns averages of gradients, by tensor; for a tensor without an average here, the gradient itself."""
        moving = dict(gradients)
        for index in gradients.keys() & self.averages.keys():
            average, weights = moving_gradient(self.beta1, self.averages[index], gradients[index], step)
            moving[index] = average / weights
        return moving


class Momentum:
    """Momentum of the directions of tensors (``momentum_step``); empty if ``options.momentum`` is 0."""

    def __init__(
        self,
        options: ShampooOptions,
        kind: str,
        blocks: Blocks,
        tensors: Collection[int],
        variables: Variables,
    ) -> None:
        self.options = options
        self.averages = {
            index: variables.make(f"tensor{index}/{kind}", blocks.shape(index))
            for index in (tensors if options.momentum else ())
        }

    def update(
        self, directions: Mapping[int, tf.Tensor], active: tf.Tensor | None = None
    ) -> dict[int, tf.Tensor]:
        """Returns the steps along averages, by tensor; for a tensor without an average, the direction.

        Averages of tensors that are not ``active``, bool [tensors], stay unchanged.
        """
        moved, options = dict(directions), self.options
        for index in directions.keys() & self.averages.keys():
            average, here = self.averages[index], None if active is None else active[index]
            new, moved[index] = momentum_step(
                average, directions[index], options.momentum, options.nesterov, here
            )
            average.assign(new)
        return moved
