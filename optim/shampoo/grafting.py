"""Grafting: Shampoo's direction at the step size of a first-order optimizer, layer by layer (PSO App. G; PT 2.4)."""

from collections.abc import Callable, Collection, Mapping, Sequence

import tensorflow as tf

from ctr.optim.first_order import directions as first_order
from ctr.optim.first_order.options import LAMB, LARS, AdaGrad, SecondMoments
from ctr.optim.shampoo.division import Blocks
from ctr.optim.shampoo.host import COUNTERS
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.schedule import shampoo_share
from ctr.optim.variables import Variables

Tensors = Mapping[int, tf.Tensor]


def squared_norm(tensor: tf.Tensor) -> tf.Tensor:
    """Computes the sum of squares of a tensor, a scalar."""
    return 2.0 * tf.nn.l2_loss(tensor)


class Grafting:
    """The first-order optimizer of dense tensors, and the grafting of its step sizes onto Shampoo's directions.

    Attributes:
        accumulators: the first-order optimizer's second moments by tensor; empty if it has none.
    """

    def __init__(
        self,
        options: ShampooOptions,
        blocks: Blocks,
        tensors: Collection[int],
        weights: Sequence[tf.Variable],
        counters: tf.Variable,
        variables: Variables,
    ) -> None:
        self.options, self.blocks, self.weights, self.counters = options, blocks, weights, counters
        self.dtype = variables.dtype
        initial = getattr(options.grafting, "initial_accumulator", 0.0)
        self.accumulators = {
            index: variables.make(f"tensor{index}/accumulator", blocks.shape(index), value=initial)
            for index in (tensors if isinstance(options.grafting, AdaGrad | SecondMoments) else ())
        }

    # The first-order optimizer.

    def collect(self, gradients: Tensors) -> None:
        """Updates second moments in place with the local elements of gradients."""
        for index in gradients.keys() & self.accumulators.keys():
            grafting, accumulator = self.options.grafting, self.accumulators[index]
            accumulator.assign(first_order.update_accumulator(grafting, accumulator, gradients[index]))

    def needed_at_once(self, moving: Tensors) -> Tensors:
        """Returns the gradients whose first-order directions each step needs.

        Without grafting (``norm="none"``), leaves out preconditioned tensors: they need one only until there are roots.
        """
        if self.options.grafting.norm != "none":
            return moving
        tensors = self.blocks.whole.tensors
        return {index: gradient for index, gradient in moving.items() if not tensors[index].is_preconditioned}

    def directions(self, moving: Tensors, step: tf.Tensor) -> dict[int, tf.Tensor]:
        """Computes first-order directions, by tensor, from local elements of gradients or their averages."""
        grafting = self.options.grafting
        directions = {
            index: first_order.direction(grafting, self.accumulators.get(index), gradient, step)
            for index, gradient in moving.items()
        }
        if isinstance(grafting, LARS | LAMB):
            norms = self.norms(directions)
            for index, direction in directions.items():
                weight_norm = tf.norm(tf.cast(self.weights[index], self.dtype))
                directions[index] = direction * first_order.layer_factor(weight_norm, norms[index])
        return directions

    def norms(self, local: Tensors) -> dict[int, tf.Tensor]:
        """Computes the Frobenius norms, scalars, of whole tensors from their local elements on all workers."""
        squares = {index: squared_norm(part) for index, part in local.items()}
        tensors = self.blocks.whole.tensors
        blocked = [index for index in local if tensors[index].is_preconditioned]
        if blocked:
            summed = self.blocks.reduce(tf.reduce_sum, [squares[index] for index in blocked])
            squares |= dict(zip(blocked, summed, strict=True))
        return {index: tf.sqrt(square) for index, square in squares.items()}

    # Grafting.

    def share(self, certified: tf.Tensor, step: tf.Tensor) -> tf.Tensor | None:
        """Computes Shampoo's share of the direction of each tensor, 0 or 1; None if nothing is preconditioned.

        ``certified`` is 1 for matrices that have a root, [M].
        """
        layout = self.blocks.whole
        if not layout.factors and not layout.stacks:
            return None
        ready = tf.math.unsorted_segment_min(
            tf.cast(certified, self.dtype), tf.constant(layout.matrix_tensors, tf.int64), len(layout.tensors)
        )
        # For a tensor without a matrix the minimum is the largest number of the dtype.
        return tf.minimum(ready, 1.0) * shampoo_share(self.options, step, self.dtype)

    def scale_blocks(self, blocks: Sequence[tf.Tensor], grafts: Tensors) -> list[tf.Tensor]:
        """Scales each block of stacks [N, ...] to the norm of its graft, if norms are grafted block by block."""
        if self.options.grafting.norm != "block":
            return list(blocks)
        stacked = self.blocks.stack(grafts, self.dtype)
        return [_scaled(block, graft) for block, graft in zip(blocks, stacked, strict=True)]

    def graft(
        self,
        shampoos: Tensors,
        grafts: Tensors,
        share: tf.Tensor,
        averages: Callable[[], Tensors],
        step: tf.Tensor,
    ) -> dict[int, tf.Tensor]:
        """Returns Shampoo's directions with the norms of grafts, by tensor; the graft if there is no Shampoo direction.

        ``share`` [tensors] is 0 or 1. Missing grafts are computed from ``averages()``, the gradients or their averages,
        only in a step that uses them.
        """
        takes_norm = self.options.grafting.norm == "tensor"
        scaled_to = list(shampoos) if takes_norm else []
        sizes, graft_norms = self._both_norms([*shampoos.values()], [grafts[index] for index in scaled_to])
        norms = dict(zip(shampoos, sizes, strict=True))
        # A zero direction cannot be scaled to a norm, and one beyond the working precision has no direction.
        usable = {index: (norm > 0) & tf.math.is_finite(norm) for index, norm in norms.items()}
        shares = {
            index: tf.where(usable[index], share[index], tf.zeros_like(norm)) for index, norm in norms.items()
        }
        factors = dict(shares)
        for index, wanted in zip(scaled_to, graft_norms, strict=True):
            norm = norms[index]
            factors[index] = shares[index] * wanted / tf.where(usable[index], norm, tf.ones_like(norm))

        def scaled() -> list[tf.Tensor]:
            return [tf.math.multiply_no_nan(shampoo, factors[index]) for index, shampoo in shampoos.items()]

        def blend() -> list[tf.Tensor]:
            moving = averages()
            late = {index: moving[index] for index in shampoos if index not in grafts}
            all_grafts = {**self.directions(late, step), **grafts}
            return [
                direction + (1.0 - shares[index]) * all_grafts[index]
                for index, direction in zip(shampoos, scaled(), strict=True)
            ]

        # Mostly nothing is left to blend.
        whole = tf.reduce_all(tf.stack(list(shares.values())) == 1.0)
        blended = tf.cond(whole, scaled if takes_norm else lambda: list(shampoos.values()), blend)
        return {**grafts, **dict(zip(shampoos, blended, strict=True))}

    def _both_norms(
        self, shampoos: Sequence[tf.Tensor], grafts: Sequence[tf.Tensor]
    ) -> tuple[Sequence[tf.Tensor], Sequence[tf.Tensor]]:
        """Returns the norms of directions; Shampoo's even where their squares overflow or underflow."""
        blocks = self.blocks
        squares = [squared_norm(direction) for direction in [*shampoos, *grafts]]
        norms = [tf.sqrt(square) for square in blocks.reduce(tf.reduce_sum, squares)]
        plain, graft_norms = norms[: len(shampoos)], norms[len(shampoos) :]

        def scaled_first() -> list[tf.Tensor]:
            sizes = [tf.reduce_max(tf.abs(direction)) for direction in shampoos]
            largest = blocks.reduce(tf.reduce_max, sizes)
            scaled = map(tf.math.divide_no_nan, shampoos, largest)
            squares = blocks.reduce(tf.reduce_sum, list(map(squared_norm, scaled)))
            norms = [size * tf.sqrt(square) for size, square in zip(largest, squares, strict=True)]
            overflowed = tf.math.count_nonzero(~tf.math.is_finite(tf.stack(norms)))
            increment = tf.one_hot(COUNTERS.index("overflowed"), len(COUNTERS), dtype=tf.int64)
            self.counters.assign_add(overflowed * increment)
            return norms

        stacked = tf.stack(plain)
        usual = tf.reduce_all(tf.math.is_finite(stacked) & (stacked > 0))
        return tf.cond(usual, lambda: plain, scaled_first), graft_norms


def _block_norms(blocks: tf.Tensor) -> tf.Tensor:
    axes = list(range(1, len(blocks.shape)))
    return tf.sqrt(tf.reduce_sum(tf.square(blocks), axis=axes, keepdims=True))


def _scaled(blocks: tf.Tensor, grafts: tf.Tensor) -> tf.Tensor:
    """Returns blocks with the norm of their grafts; the graft where a block is zero or has no finite norm."""
    norms, wanted = _block_norms(blocks), _block_norms(grafts)
    usable = (norms > 0) & tf.math.is_finite(norms)
    scale = wanted / tf.where(usable, norms, tf.ones_like(norms))
    return tf.where(usable, tf.math.multiply_no_nan(blocks, scale), grafts)
