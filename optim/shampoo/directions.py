"""Directions of stacked blocks, computed from gradients with roots, eigenbases or diagonals.

With roots every preconditioned dimension is multiplied by its root, L^(-e) G R^(-e) (PSO 2). Dimensions too long for a
matrix may be preconditioned by the diagonal of their statistics alone (PT 4.2.3; THESIS 4.1.3, algorithm 3): sums of
squares over all other dimensions, whose roots are powers of scalars, which need no host. A
matrix with one long side has a full factor on the other one, with exponents as if both were full.
"""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from ctr.optim.gradients import Present, keep, of_tensors
from ctr.optim.shampoo.blocks import multiply_axes, precondition
from ctr.optim.shampoo.division import Blocks
from ctr.optim.shampoo.eigenbasis import changes_of_bases, correct
from ctr.optim.shampoo.momentum import moving_gradient
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.statistics import Statistics
from ctr.optim.variables import Variables

Averages = Callable[[], dict[int, tf.Tensor]]
"""Returns averages of gradients by tensor, in the tensor's coordinates."""


class InverseRoots:
    """Computes directions with inverse roots and diagonals; has the methods of ``Eigenbases``."""

    def __init__(
        self, options: ShampooOptions, blocks: Blocks, statistics: Statistics, roots: Sequence[tf.Variable]
    ) -> None:
        self.options, self.blocks, self.statistics, self.roots = options, blocks, statistics, roots

    def update(
        self, stacked: Sequence[tf.Tensor], moving: Mapping[int, tf.Tensor], step: tf.Tensor, present: Present
    ) -> tuple[list[tf.Tensor], Averages]:
        layout, statistics = self.blocks.local, self.statistics
        if self.options.beta1:
            stacked = self.blocks.stack(moving, statistics.dtype)
        directions = []
        for number, (stack, factors) in enumerate(zip(layout.stacks, layout.stack_factors, strict=True)):
            blocks = precondition(stacked[number], stack.axes, [self.roots[factor] for factor in factors])
            if stack.diagonal:
                blocks = self._by_diagonals(number, blocks)
            directions.append(blocks)
        return directions, lambda: dict(moving)

    def _by_diagonals(self, number: int, blocks: tf.Tensor) -> tf.Tensor:
        """Multiplies blocks by D^(-e) along each dimension with a diagonal; a block of zeros stays."""
        options, statistics, stack = self.options, self.statistics, self.blocks.local.stacks[number]
        dtype = statistics.dtype
        collections = statistics.collections.read_value()
        # In the working precision, since this is part of the step, which may run on a TPU.
        divisor = statistics.divisor(collections, dtype)
        missed = statistics.missed if options.statistics.initial else None
        identity = statistics.identity(collections, None if missed is None else missed[0], dtype)
        if missed is not None:
            identity = tf.gather(identity, tf.constant(stack.tensors, tf.int64))[:, tf.newaxis]
        exponent = 1.0 / options.root_order(len(stack.axes) + len(stack.diagonal))
        for axis, sums in statistics.diagonals[number].items():
            values = (sums + identity) / divisor
            largest = tf.reduce_max(values, axis=1, keepdims=True)
            scale = largest if options.roots.damping == "relative" else tf.ones_like(largest)
            damping = options.epsilon * scale
            damped = tf.where(largest > 0, values + damping, tf.ones_like(values))
            powers = tf.cast(tf.pow(damped, tf.constant(-exponent, dtype)), blocks.dtype)
            shape = [size if dimension == axis else 1 for dimension, size in enumerate(stack.block)]
            blocks *= tf.reshape(powers, [stack.count, *shape])
        return blocks

    def replace_roots(self, roots: Sequence[tf.Tensor], present: Present) -> None:
        pass


class Eigenbases:
    """Computes directions with second moments in the eigenbases (eigenbasis.py).

    Attributes:
        moments: for each stack the second moments [N, *block].
        averages: with ``options.averages_in_bases``, for each stack the averages in the bases, [N, *block].
    """

    def __init__(
        self,
        options: ShampooOptions,
        blocks: Blocks,
        bases: Sequence[tf.Variable],
        variables: Variables,
    ) -> None:
        self.options, self.blocks, self.bases = options, blocks, bases
        self.dtype = variables.dtype
        self.moments: list[tf.Variable] = []
        self.averages: list[tf.Variable] = []
        for number, stack in enumerate(blocks.local.stacks):
            whole = [stack.count, *stack.block]
            self.moments.append(variables.make(f"stack{number}/moment", whole))
            if options.averages_in_bases:
                self.averages.append(variables.make(f"stack{number}/average", whole))

    def update(
        self, stacked: Sequence[tf.Tensor], moving: Mapping[int, tf.Tensor], step: tf.Tensor, present: Present
    ) -> tuple[list[tf.Tensor], Averages]:
        """Returns each stack's direction [N, *block], and a function that returns the averages it was computed from.

        ``stacked`` has the gradients by stack, ``moving`` the gradients or their averages by tensor index.
        """
        options, stacks = self.options, self.blocks.local.stacks
        rotated = self._turn(stacked, into=True)
        for stack, moments, blocks in zip(stacks, self.moments, rotated, strict=True):
            squared, beta2 = tf.square(blocks), options.beta2
            updated = moments + squared if beta2 == 1.0 else beta2 * moments + (1.0 - beta2) * squared
            moments.assign(keep(updated, moments, of_tensors(present, stack.tensors)))
        weights: tf.Tensor | float = 1.0
        if options.averages_in_bases:
            gradients, rotated = rotated, []
            for stack, average, blocks in zip(stacks, self.averages, gradients, strict=True):
                here = of_tensors(present, stack.tensors)
                new, weights = moving_gradient(options.beta1, average, blocks, step, here)
                rotated.append(new)
        elif options.beta1:
            rotated = self._turn(self.blocks.stack(moving, self.dtype), into=True)
        divisor = tf.ones([], self.dtype)
        if options.beta2 < 1.0:
            # Second moments are collected at every step.
            divisor = 1.0 - tf.pow(tf.constant(options.beta2, self.dtype), tf.cast(step, self.dtype))
        corrected = [
            correct(options, moments, blocks, divisor, weights)
            for moments, blocks in zip(self.moments, rotated, strict=True)
        ]

        def averages() -> dict[int, tf.Tensor]:
            if not options.averages_in_bases:
                return dict(moving)
            turned = self.blocks.unstack(self._turn(rotated, into=False))
            return {**moving, **{index: new / weights for index, new in turned.items() if index in moving}}

        return self._turn(corrected, into=False), averages

    def _turn(self, stacked: Sequence[tf.Tensor], into: bool) -> list[tf.Tensor]:
        """Rotates blocks into the bases, as in U^T G V, or back, as in U G V^T."""
        layout = self.blocks.local
        return [
            multiply_axes(blocks, stack.axes, [self.bases[factor] for factor in factors], transposed=into)
            for stack, factors, blocks in zip(layout.stacks, layout.stack_factors, stacked, strict=True)
        ]

    def replace_roots(self, roots: Sequence[tf.Tensor], present: Present) -> None:
        """Moves the state of the present tensors to new eigenbases ``roots``, which come into use next."""
        layout, before = self.blocks.local, [basis.read_value() for basis in self.bases]
        for number, (stack, factors) in enumerate(zip(layout.stacks, layout.stack_factors, strict=True)):
            turns = changes_of_bases(
                [before[factor] for factor in factors], [roots[factor] for factor in factors]
            )
            changed = [(self.moments[number], [tf.square(turn) for turn in turns])]
            if self.averages:
                changed.append((self.averages[number], turns))
            for variable, matrices in changed:
                turned = multiply_axes(variable, stack.axes, matrices)
                variable.assign(keep(turned, variable, of_tensors(present, stack.tensors)))
