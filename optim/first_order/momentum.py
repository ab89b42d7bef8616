"""Decay and momentum of directions."""

import tensorflow as tf


def add_weight_decay(direction: tf.Tensor, weights: tf.Tensor, weight_decay: float) -> tf.Tensor:
    """Adds lambda W: decoupled decay, and before momentum, which averages all that moves W (PT 3.1.2-3)."""
    return direction + weight_decay * weights


def update_momentum(average: tf.Tensor, direction: tf.Tensor, momentum: float) -> tf.Tensor:
    """Computes M = mu M + (1 - mu) P, normalized as in PSO alg. II, unlike PT's: tuned rates stay right (FF 4.2)."""
    return momentum * average + (1.0 - momentum) * direction


def momentum_step(average: tf.Tensor, direction: tf.Tensor, momentum: float, nesterov: bool) -> tf.Tensor:
    """Returns the step along M (heavy ball), or along mu M + (1 - mu) P (Nesterov, PT eq. 33-34)."""
    if nesterov:
        return momentum * average + (1.0 - momentum) * direction
    return average
