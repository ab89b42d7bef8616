"""Moving averages: of gradients before they are preconditioned, and of directions (FF 4.2; PT 3.1)."""

from collections.abc import Collection, Mapping

import tensorflow as tf

from ctr.optim.gradients import Present, keep
from ctr.optim.shampoo.layout import Blocks
from ctr.optim.shampoo.options import GradientAverage, ShampooOptions
from ctr.optim.variables import Variables


def moving_gradient(
    options: GradientAverage,
    average: tf.Variable,
    gradient: tf.Tensor,
    step: tf.Tensor,
    present: Present = None,
) -> tuple[tf.Tensor, tf.Tensor | float]:
    """Adds a gradient to an average in place (PT 3.1.1); returns what is preconditioned, and its divisor, a scalar."""
    beta1, beta3 = options.beta1, options.beta3
    new = beta1 * average + (1.0 - beta1) * gradient
    base = tf.constant(beta1, new.dtype)
    if beta3 is None:
        moving, left = new, tf.pow(base, tf.cast(step, new.dtype))
    else:
        moving = beta3 * average + (1.0 - beta3) * gradient
        left = beta3 * tf.pow(base, tf.cast(step - 1, new.dtype))
    average.assign(keep(new, average, present))
    return moving, 1.0 - left if options.bias_correction else 1.0


class AveragedGradients:
    """Averages of the gradients of tensors; nothing without beta1."""

    def __init__(
        self, options: GradientAverage, blocks: Blocks, tensors: Collection[int], variables: Variables
    ) -> None:
        self.options = options
        self.averages = {
            index: variables.make(f"tensor{index}/gradient_average", blocks.shape(index))
            for index in (tensors if options.beta1 else ())
        }

    def update(self, gradients: Mapping[int, tf.Tensor], step: tf.Tensor) -> dict[int, tf.Tensor]:
        """Returns averages of gradients, by tensor; where none is kept here, the gradient itself."""
        moving = dict(gradients)
        for index in gradients.keys() & self.averages.keys():
            found, weights = moving_gradient(self.options, self.averages[index], gradients[index], step)
            moving[index] = found / weights if self.options.bias_correction else found
        return moving


Decays = tuple[tf.Tensor | float, tf.Tensor | float]
"""What an average of directions decays by, and what a Nesterov step takes of it: both mu, unless this changes."""


class Momentum:
    """Averages M = mu M + (1 - mu) P of directions, normalized as in PSO alg. II, so that tuned rates stay right.

    Where mu changes, (1 - mu) is that of the options, and a Nesterov step is mu_t M_t + (1 - mu) P with
    M_t = mu_t-1 M_t-1 + (1 - mu) P (PT eq. 33-34).
    """

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
        self, directions: Mapping[int, tf.Tensor], decays: Decays, active: tf.Tensor | None = None
    ) -> dict[int, tf.Tensor]:
        """Returns the steps along averages, by tensor; where none is kept, the directions.

        Averages of tensors that are not ``active``, bool [tensors], stay as they are.
        """
        moved, options = dict(directions), self.options
        decay, mu = decays
        for index in directions.keys() & self.averages.keys():
            direction, average = directions[index], self.averages[index]
            added = (1.0 - options.momentum) * direction
            new = decay * average + added
            if active is not None:
                new = tf.where(active[index], new, average)
            average.assign(new)
            moved[index] = mu * new + added if options.nesterov else new
        return moved
