"""Schedule-free averaging of dense weights (Defazio et al., 2024, arXiv 2405.15682, equations 3-5 and section 4.1).

An optimizer moves z, by gradients at y, the weights of the model, between z and the average x of all z so far::

    y = (1 - beta) z + beta x
    z' = z - rate direction(gradient at y)
    x' = (1 - c) x + c z',    c = rate^2 / sum of rate^2 so far

So x, which is served, needs neither a horizon nor a decaying rate. Only d = z - y is kept beside y, as
x = y - d (1 - beta) / beta.
"""

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

SQUARED_RATES = "averaging/squared_rates"  # the name of the sum of squared rates
DISTANCE = "averaging/distance/"  # what the names of the distances begin with; that of the weight follows


class ScheduleFree:
    """Averages of some weights; ``beta`` in (0, 1) takes the place of momentum.

    State is ``averaging/squared_rates``, float32 scalar, and by weight ``averaging/distance/NAME``, of its shape.
    """

    def __init__(self, beta: float, weights: Mapping[str, tf.Variable]) -> None:
        self._beta = beta
        self._weights = list(weights.values())
        self._squared_rates = tf.Variable(0.0, trainable=False, name=SQUARED_RATES)
        distances = {
            f"{DISTANCE}{name}": tf.Variable(tf.zeros_like(weight), trainable=False, name=f"{DISTANCE}{name}")
            for name, weight in weights.items()
        }
        self._distances = list(distances.values())
        self.variables = {SQUARED_RATES: self._squared_rates, **distances}

    def step(self, rate: tf.Tensor, update: Callable[[], None]) -> None:
        """Takes one step in place, in the graph of the step; ``update`` moves the weights as if they were z."""
        total = self._squared_rates.assign_add(tf.square(rate), read_value=True)
        share, beta = tf.math.divide_no_nan(tf.square(rate), total), self._beta
        before = [tf.identity(weight) for weight in self._weights]
        distances = [tf.identity(distance) for distance in self._distances]
        for weight, distance in zip(self._weights, distances, strict=True):
            weight.assign_add(distance)
        update()
        for weight, kept, y, distance in zip(self._weights, self._distances, before, distances, strict=True):
            x, z = y - distance * ((1.0 - beta) / beta), tf.identity(weight)
            x += tf.cast(share, x.dtype) * (z - x)
            y = (1.0 - beta) * z + beta * x
            weight.assign(y)
            kept.assign(z - y)


def served_weights(arrays: Mapping[str, np.ndarray], beta: float) -> dict[str, np.ndarray]:
    """Returns the averages x of the weights that have one, by name, from the arrays of a checkpoint."""
    return {
        name.removeprefix(DISTANCE): arrays[name.removeprefix(DISTANCE)]
        - distance * np.asarray((1.0 - beta) / beta, distance.dtype)
        for name, distance in arrays.items()
        if name.startswith(DISTANCE)
    }
