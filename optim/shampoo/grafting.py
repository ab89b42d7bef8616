"""First-order optimizers whose step sizes Shampoo takes (PSO App. G; PT 2.4): directions P of steps W -= rate * P.

    adagrad   D += G^2                     P = G / (sqrt(D) + eps)         eps of its own, 0 by default
    rmsprop   D = b D + (1 - b) G^2        P = G / (sqrt(D) + eps)
    adam      as rmsprop, D bias-corrected
    sgd                                    P = G
    sign                                   P = sign(G)
    lars                                   P = |W| / |G| G                 layer by layer
    lamb      as adam, P'                  P = |W| / |P'| P'               layer by layer

The second moment always takes the gradient itself; with a moving average of gradients (PT 3.1.1) the direction
takes that. The factor of LARS and LAMB is 1 where one of the norms is 0, so that weights that begin at 0 move.
"""

import tensorflow as tf

from ctr.optim.shampoo.options import ShampooOptions

_WITHOUT_MOMENTS = ("sgd", "sign", "lars")


def has_accumulator(options: ShampooOptions) -> bool:
    """Tells whether the grafted optimizer keeps second moments."""
    return options.grafting not in _WITHOUT_MOMENTS


def layer_factor(weight_norm: tf.Tensor, norm: tf.Tensor) -> tf.Tensor:
    """Computes |W| / |P|, scalar; 1 where one of the norms is 0."""
    return tf.where(
        (weight_norm > 0) & (norm > 0), tf.math.divide_no_nan(weight_norm, norm), tf.ones_like(norm)
    )


def initial_accumulator(options: ShampooOptions) -> float:
    """Returns the value at which second moments start."""
    return options.initial_accumulator if options.grafting == "adagrad" else 0.0


def update_accumulator(options: ShampooOptions, accumulator: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """Returns the second moments after a gradient of their shape."""
    squared = tf.square(gradient)
    if options.grafting == "adagrad":
        return accumulator + squared
    return options.grafting_beta2 * accumulator + (1.0 - options.grafting_beta2) * squared


def direction(
    options: ShampooOptions, accumulator: tf.Tensor | None, gradient: tf.Tensor, step: tf.Tensor
) -> tf.Tensor:
    """Computes the direction, before any layer-wise factor; the accumulator has the present gradient in it."""
    if accumulator is None:
        return tf.sign(gradient) if options.grafting == "sign" else gradient
    if options.grafting == "adagrad":
        root = tf.sqrt(accumulator)
        # A weight whose gradient and sum are both zero stays where it is.
        return tf.math.divide_no_nan(
            gradient, root + options.adagrad_epsilon if options.adagrad_epsilon else root
        )
    if options.grafting in ("adam", "lamb"):
        base = tf.constant(options.grafting_beta2, gradient.dtype)
        accumulator = accumulator / (1.0 - tf.pow(base, tf.cast(step, gradient.dtype)))
    return tf.math.divide_no_nan(gradient, tf.sqrt(accumulator) + options.grafting_epsilon)


def blend_weight(options: ShampooOptions, step: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Computes Shampoo's share of the direction at a step, scalar: 0 before the start, 1 after the blend."""
    if options.start_preconditioning_step is None:
        return tf.zeros([], dtype)
    passed = tf.cast(step - options.start_preconditioning_step + 1, dtype)
    return tf.clip_by_value(passed / (options.blend_steps + 1.0), 0.0, 1.0)


def scale_blocks(blocks: tf.Tensor, grafts: tf.Tensor) -> tf.Tensor:
    """Gives each block [N, ...] the norm of its graft; takes the graft where a block is zero or has no finite norm."""
    axes = list(range(1, len(blocks.shape)))
    norms, wanted = (
        tf.sqrt(tf.reduce_sum(tf.square(one), axis=axes, keepdims=True)) for one in (blocks, grafts)
    )
    usable = (norms > 0) & tf.math.is_finite(norms)
    scale = wanted / tf.where(usable, norms, tf.ones_like(norms))
    return tf.where(usable, tf.math.multiply_no_nan(blocks, scale), grafts)
