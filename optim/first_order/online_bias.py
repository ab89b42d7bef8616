"""Online Newton steps for the bias of a logistic model whose base rate may drift, quickly, slowly or not at all.

Several biases learn side by side, each assuming that the true one moves by a random walk whose variance grows by v
while the log grows by a factor of e (``WALKS``). For each, with the sums G of the batch's gradient and H of its
curvature::

    A = (1 - k n / N) A        A = A / (1 + v n / N A) + H        b = b - G / (A + P)

n is the weight of the batch and N the weight of all batches up to it; P limits early steps, and k = ``FORGETTING``
discounts everything as the log grows. With v > 0 about the last sqrt(N / (v h)) rows count, where h is the curvature of
a row. The bias of the model is the mean of these biases, weighted by exp(-loss) over the log so far: in the long run
it is hardly worse than the best of them (Vovk, 1990, "Aggregating strategies"; Kalman's filter for each).
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf

from ctr.optim.first_order.online_newton import MAX_STEP, BatchSums, CalibrationStep, OnlineNewton

WALKS = (0.0, 0.3, 3.0)  # v of each bias
PRIOR = 0.3  # P
FORGETTING = 0.5  # k, for the information and the losses


class OnlineBias:
    """Online Newton steps for a bias, a float32 scalar, with the methods of ``OnlineNewton``."""

    def __init__(self, name: str, bias: tf.Variable) -> None:
        self.name, self.bias = name, bias
        zeros = tf.zeros([len(WALKS)])
        self._state = {
            # For each bias: its distance from the model's bias, its information, and its loss above the best one's.
            "distance": tf.Variable(zeros, trainable=False),
            "information": tf.Variable(zeros, trainable=False),
            "loss": tf.Variable(zeros, trainable=False),
            "seen": tf.Variable(0.0, trainable=False),
        }

    @property
    def variables(self) -> dict[str, tf.Variable]:
        return {f"newton/{self.name}/{part}": variable for part, variable in self._state.items()}

    def sums(
        self, inputs: Sequence[tf.Tensor], gradient: tf.Tensor, curvature: tf.Tensor, weight: tf.Tensor
    ) -> BatchSums:
        del inputs
        return BatchSums(tf.reduce_sum(gradient), tf.reduce_sum(curvature), weight)

    def step(self, sums: BatchSums) -> CalibrationStep:
        distance, information, loss, seen = (variable.read_value() for variable in self._state.values())
        slope, bend, weight = sums
        seen += weight
        share = tf.math.divide_no_nan(weight, seen)
        decay = tf.maximum(0.0, 1.0 - FORGETTING * share)
        # To second order around the bias of the model.
        loss = decay * loss + slope * distance + 0.5 * bend * tf.square(distance)
        loss -= tf.reduce_min(loss)
        information *= decay
        information = information / (1.0 + tf.constant(WALKS) * share * information) + bend
        change = -(slope + bend * distance) / (information + PRIOR)
        moved = distance + tf.clip_by_value(change, -MAX_STEP, MAX_STEP)
        move = tf.reduce_sum(tf.nn.softmax(-loss) * moved)
        return CalibrationStep(move[tf.newaxis], (moved - move, information, loss, seen))

    def apply(self, step: CalibrationStep) -> None:
        self.bias.assign_add(step.move[0])
        for variable, value in zip(self._state.values(), step.after, strict=True):
            variable.assign(value)


Calibrator: TypeAlias = OnlineBias | OnlineNewton


def all_variables(calibrators: Sequence[Calibrator]) -> Mapping[str, tf.Variable]:
    """Returns the state of all calibrators by name."""
    return {name: variable for calibrator in calibrators for name, variable in calibrator.variables.items()}
