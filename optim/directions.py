"""The direction of each stack of blocks from its gradients, by roots, eigenbases or diagonals."""

from collections.abc import Sequence

import tensorflow as tf

from ctr.optim import diagonal, eigenbasis, statistics
from ctr.optim.options import ShampooOptions
from ctr.optim.preconditioning import precondition
from ctr.optim.state import ShampooLayout, ShampooState


def needs_identity(options: ShampooOptions) -> bool:
    """Whether roots that are not there yet have to be identities."""
    return options.eigenvalue_correction or options.is_kl


def set_identity(state: ShampooState) -> None:
    """Makes all roots identities, in place."""
    for root in state.roots:
        root.assign(tf.eye(root.shape[1], batch_shape=[root.shape[0]], dtype=root.dtype))


def rotate(layout: ShampooLayout, state: ShampooState, stacked: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The gradients of each stack in their bases."""
    return [
        eigenbasis.to_bases(blocks, stack.axes, [state.roots[factor] for factor in factors])
        for stack, factors, blocks in zip(layout.stacks, layout.stack_factors, stacked, strict=True)
    ]


def collect_moments(options: ShampooOptions, state: ShampooState, rotated: Sequence[tf.Tensor]) -> None:
    """The second moments after gradients in their bases, in place."""
    for moments, blocks in zip(state.moments, rotated, strict=True):
        moments.assign(eigenbasis.update_moments(options, moments, blocks))


def correct(
    options: ShampooOptions, layout: ShampooLayout, state: ShampooState, rotated: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """The directions from gradients, or their averages, in their bases."""
    # Second moments are collected at every step.
    correction = tf.cast(statistics.corrected_by(options, state.step.read_value()), state.dtype)
    return [
        eigenbasis.from_bases(
            eigenbasis.correct(options, moments, blocks, correction),
            stack.axes,
            [state.roots[factor] for factor in factors],
        )
        for stack, factors, moments, blocks in zip(
            layout.stacks, layout.stack_factors, state.moments, rotated, strict=True
        )
    ]


def by_roots(
    options: ShampooOptions, layout: ShampooLayout, state: ShampooState, stacked: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """The directions from gradients, or their averages, by roots and diagonals."""
    found = []
    collections = state.collections.read_value()
    for stack, factors, diagonals, blocks in zip(
        layout.stacks, layout.stack_factors, state.diagonals, stacked, strict=True
    ):
        blocks = precondition(blocks, stack.axes, [state.roots[factor] for factor in factors])
        if diagonals:
            preconditioned, order = len(stack.axes) + len(stack.diagonal), len(stack.block)
            blocks = diagonal.precondition(
                options,
                blocks,
                diagonals,
                {axis: options.side_exponent(axis, preconditioned, order) for axis in diagonals},
                statistics.corrected_by(options, collections),
                statistics.initial(options, collections),
            )
        found.append(blocks)
    return found


def replace_roots(
    options: ShampooOptions, layout: ShampooLayout, state: ShampooState, roots: Sequence[tf.Tensor]
) -> None:
    """Brings new roots or bases into use, in place; second moments go into new bases as ``basis_change`` says."""
    if options.eigenvalue_correction and options.basis_change == "project":
        for stack, factors, moments in zip(layout.stacks, layout.stack_factors, state.moments, strict=True):
            old, new = [state.roots[factor] for factor in factors], [roots[factor] for factor in factors]
            moments.assign(eigenbasis.project(moments, stack.axes, old, new))
    for variable, root in zip(state.roots, roots, strict=True):
        variable.assign(root)
