"""Directions of stacks of blocks from their gradients, by roots, eigenbases or diagonals.

By roots every preconditioned dimension is multiplied by its root, L^(-e) G R^(-e) (PSO 2). Dimensions too long for a
matrix may be preconditioned by the diagonal of their statistics alone (PT 4.2.3; THESIS 4.1.3, algorithm 3): sums of
squares over all other dimensions, whose roots are powers of single numbers, so that nothing is left to the host. A
matrix with one long side has a full factor on the other one, with exponents as if both were full.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr.optim.gradients import Present, keep, of_owners, powers
from ctr.optim.shampoo import eigenbasis
from ctr.optim.shampoo.blocks import Stack
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.state import STATUS, ShampooLayout, ShampooState


def precondition(blocks: tf.Tensor, axes: Sequence[int], roots: Sequence[tf.Tensor]) -> tf.Tensor:
    """Computes L^(-e) G R^(-e), and its like for blocks [N, d_0, ..., d_k-1], by roots [N, d, d] of ``axes``."""
    for axis, root in zip(axes, roots, strict=True):
        blocks = _multiply(blocks, axis, root)
    return blocks


def _multiply(blocks: tf.Tensor, axis: int, root: tf.Tensor) -> tf.Tensor:
    if len(blocks.shape) == 3:
        return tf.matmul(root, blocks) if axis == 0 else tf.matmul(blocks, root)
    order = len(blocks.shape) - 1
    if axis == order - 1:
        count, size = blocks.shape[0], blocks.shape[-1]
        return tf.reshape(tf.matmul(tf.reshape(blocks, [count, -1, size]), root), blocks.shape)
    if axis == 0:
        count, size = blocks.shape[0], blocks.shape[1]
        return tf.reshape(tf.matmul(root, tf.reshape(blocks, [count, size, -1])), blocks.shape)
    swap = list(range(order + 1))
    swap[axis + 1], swap[1] = swap[1], swap[axis + 1]
    return tf.transpose(_multiply(tf.transpose(blocks, swap), 0, root), swap)


def collect_squares(
    sums: tf.Variable,
    blocks: tf.Tensor,
    axis: int,
    beta2: float,
    weight: tf.Tensor | float,
    present: Present = None,
) -> None:
    """Adds the diagonal of ``statistics.gram`` to sums [N, d_axis], in place; times ``weight`` where beta2 = 1."""
    others = [dimension + 1 for dimension in range(len(blocks.shape) - 1) if dimension != axis]
    squares = tf.reduce_sum(tf.square(blocks), axis=others)
    if beta2 == 1.0:
        added = tf.cast(weight, squares.dtype) * squares
        sums.assign_add(keep(added, tf.zeros_like(added), present))
    else:
        sums.assign(keep(beta2 * sums + (1.0 - beta2) * squares, sums, present))


def _by_diagonals(
    options: ShampooOptions,
    blocks: tf.Tensor,
    sums: Mapping[int, tf.Tensor],
    exponents: Mapping[int, float],
    correction: tf.Tensor,
    identity: tf.Tensor | float = 0.0,
) -> tf.Tensor:
    """Multiplies blocks by D^(-e) along each dimension of ``sums``, [N, d_axis]; a block of zeros stays."""
    for axis, values in sums.items():
        statistics = (values + tf.cast(identity, values.dtype)) / tf.cast(correction, values.dtype)
        largest = tf.reduce_max(statistics, axis=1, keepdims=True)
        damping = options.epsilon * (largest if options.damping == "relative" else tf.ones_like(largest))
        damped = tf.where(largest > 0, statistics + damping, tf.ones_like(statistics))
        powers = tf.cast(tf.pow(damped, tf.constant(-exponents[axis], values.dtype)), blocks.dtype)
        shape = [blocks.shape[0]] + [
            size if dimension == axis else 1 for dimension, size in enumerate(blocks.shape[1:])
        ]
        blocks *= tf.reshape(powers, shape)
    return blocks


def set_identity(layout: ShampooLayout, state: ShampooState, status: tf.Tensor) -> None:
    """Makes roots that are not there yet identities, in place; ``status`` [S, M] is of the matrices of ``layout``."""
    certified = status[STATUS.index("certified")]
    for factor, root in zip(layout.factors, state.roots, strict=True):
        is_there = certified[factor.matrices][:, tf.newaxis, tf.newaxis] > 0
        root.assign(tf.where(is_there, root, tf.eye(factor.size, dtype=root.dtype)))


def rotate(layout: ShampooLayout, state: ShampooState, stacked: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Turns the gradients of each stack into their bases."""
    return [
        eigenbasis.to_bases(blocks, stack.axes, [state.roots[factor] for factor in factors])
        for stack, factors, blocks in zip(layout.stacks, layout.stack_factors, stacked, strict=True)
    ]


def collect_moments(
    options: ShampooOptions,
    layout: ShampooLayout,
    state: ShampooState,
    rotated: Sequence[tf.Tensor],
    present: Present = None,
) -> None:
    """Updates second moments, in place, by gradients in their bases; of the tensors that are ``present``."""
    for stack, moments, blocks in zip(layout.stacks, state.moments, rotated, strict=True):
        found = eigenbasis.update_moments(options, moments, blocks)
        moments.assign(keep(found, moments, of_owners(present, stack.owners)))


def moving_gradient(
    options: ShampooOptions,
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


def moving_gradients(
    options: ShampooOptions,
    layout: ShampooLayout,
    state: ShampooState,
    rotated: Sequence[tf.Tensor],
    step: tf.Tensor,
    present: Present = None,
) -> tuple[list[tf.Tensor], tf.Tensor | float]:
    """Applies ``moving_gradient`` to each stack in its bases; to the tensors that are ``present``."""
    found: list[tf.Tensor] = []
    weights: tf.Tensor | float = 1.0
    for stack, average, blocks in zip(layout.stacks, state.averages, rotated, strict=True):
        moving, weights = moving_gradient(options, average, blocks, step, of_owners(present, stack.owners))
        found.append(moving)
    return found, weights


def _correction(options: ShampooOptions, count: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """What averages of so many collections are to be divided by, scalar.

    In the working precision: this is part of the step, which a TPU may take.
    """
    if options.beta2 == 1.0 or not options.bias_correction:
        return tf.ones([], dtype)
    return 1.0 - powers(options.beta2, count, None, dtype)


def correct(
    options: ShampooOptions, state: ShampooState, rotated: Sequence[tf.Tensor], weights: tf.Tensor | float
) -> list[tf.Tensor]:
    """Computes directions from gradients, or averages that are to be divided by ``weights``; all in their bases."""
    # Second moments are collected at every step.
    correction = _correction(options, state.step.read_value(), state.dtype)
    return [
        eigenbasis.correct(options, moments, blocks, correction, weights)
        for moments, blocks in zip(state.moments, rotated, strict=True)
    ]


def turn_back(layout: ShampooLayout, state: ShampooState, rotated: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Turns stacks from their bases into their own coordinates; the opposite of ``rotate``."""
    return [
        eigenbasis.from_bases(blocks, stack.axes, [state.roots[factor] for factor in factors])
        for stack, factors, blocks in zip(layout.stacks, layout.stack_factors, rotated, strict=True)
    ]


def by_roots(
    options: ShampooOptions, layout: ShampooLayout, state: ShampooState, stacked: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Computes directions from gradients, or their averages, by roots and diagonals."""
    found = []
    collections = state.collections.read_value()
    for stack, factors, diagonals, blocks in zip(
        layout.stacks, layout.stack_factors, state.diagonals, stacked, strict=True
    ):
        blocks = precondition(blocks, stack.axes, [state.roots[factor] for factor in factors])
        if diagonals:
            preconditioned, order = len(stack.axes) + len(stack.diagonal), len(stack.block)
            blocks = _by_diagonals(
                options,
                blocks,
                diagonals,
                {axis: options.side_exponent(axis, preconditioned, order) for axis in diagonals},
                _correction(options, collections, state.dtype),
                _identity(options, stack, state, collections),
            )
        found.append(blocks)
    return found


def _identity(
    options: ShampooOptions, stack: Stack, state: ShampooState, collections: tf.Tensor
) -> tf.Tensor:
    """What diagonals still have from their start, scalar, or of each block [N, 1]."""
    missed = None if state.missed is None or not options.initial_statistics else state.missed[0]
    left = options.initial_statistics * powers(options.beta2, collections, missed, state.dtype)
    return left if missed is None else tf.gather(left, tf.constant(stack.owners, tf.int64))[:, tf.newaxis]


def replace_roots(
    options: ShampooOptions,
    layout: ShampooLayout,
    state: ShampooState,
    roots: Sequence[tf.Tensor],
    present: Present = None,
) -> None:
    """Brings new roots or bases of ``present`` tensors into use, in place; moments follow as ``basis_change`` says."""
    if options.eigenvalue_correction:
        _turn(options, layout, state, roots, present)
    for variable, root in zip(state.roots, roots, strict=True):
        variable.assign(root)


def _turn(
    options: ShampooOptions,
    layout: ShampooLayout,
    state: ShampooState,
    bases: Sequence[tf.Tensor],
    present: Present,
) -> None:
    before = [root.read_value() for root in state.roots]
    for number, (stack, factors) in enumerate(zip(layout.stacks, layout.stack_factors, strict=True)):
        old, new = [before[factor] for factor in factors], [bases[factor] for factor in factors]
        here = of_owners(present, stack.owners)
        if options.averages_in_bases:
            average = state.averages[number]
            average.assign(keep(eigenbasis.change_bases(average, stack.axes, old, new), average, here))
        if options.basis_change == "project":
            moments = state.moments[number]
            moments.assign(keep(eigenbasis.project(moments, stack.axes, old, new), moments, here))
