"""Directions P of first-order optimizers, whose steps are W -= rate * P.

    adagrad   D += G^2                     P = G / (sqrt(D) + eps)         eps of its own, 0 by default
    rmsprop   D = b D + (1 - b) G^2        P = G / (sqrt(D) + eps)
    adam      as rmsprop, D bias-corrected
    sgd                                    P = G
    lars                                   P = |W| / |G| G                 layer by layer
    lamb      as adam, P'                  P = |W| / |P'| P'               layer by layer

The second moment always takes the gradient itself; with a moving average of gradients (PT 3.1.1) the direction
takes that. The factor of LARS and LAMB is 1 where one of the norms is 0, so that weights that begin at 0 move.
"""

import tensorflow as tf

from ctr.optim.first_order.options import LAMB, LARS, AdaGrad, Adam, Graft, SecondMoments


def has_accumulator(options: Graft) -> bool:
    """Tells whether an optimizer keeps second moments."""
    return isinstance(options, AdaGrad | SecondMoments)


def is_layerwise(options: Graft) -> bool:
    """Tells whether directions get a factor for each layer, ``layer_factor``."""
    return isinstance(options, LARS | LAMB)


def initial_accumulator(options: Graft) -> float:
    """Returns the value at which second moments start."""
    return options.initial_accumulator if isinstance(options, AdaGrad) else 0.0


def update_accumulator(options: Graft, accumulator: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """Returns the second moments after a gradient of their shape."""
    squared = tf.square(gradient)
    if not isinstance(options, SecondMoments):
        return accumulator + squared
    return options.beta2 * accumulator + (1.0 - options.beta2) * squared


def direction(
    options: Graft, accumulator: tf.Tensor | None, gradient: tf.Tensor, step: tf.Tensor
) -> tf.Tensor:
    """Computes the direction, before any layer-wise factor; the accumulator has the present gradient in it."""
    if isinstance(options, AdaGrad) and accumulator is not None:
        root = tf.sqrt(accumulator)
        # A weight whose gradient and sum are both zero stays where it is.
        return tf.math.divide_no_nan(gradient, root + options.epsilon if options.epsilon else root)
    if isinstance(options, SecondMoments) and accumulator is not None:
        if isinstance(options, Adam | LAMB):
            base = tf.constant(options.beta2, gradient.dtype)
            accumulator = accumulator / (1.0 - tf.pow(base, tf.cast(step, gradient.dtype)))
        return tf.math.divide_no_nan(gradient, tf.sqrt(accumulator) + options.epsilon)
    return gradient


def layer_factor(weight_norm: tf.Tensor, norm: tf.Tensor) -> tf.Tensor:
    """Computes |W| / |P|, scalar; 1 where one of the norms is 0."""
    return tf.where(
        (weight_norm > 0) & (norm > 0), tf.math.divide_no_nan(weight_norm, norm), tf.ones_like(norm)
    )


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
