"""Second-order statistics of stacked blocks (PSO 2, 3.1).

    L += G G^T,  R += G^T G           summed     (beta2 = 1)
    L = beta2 L + (1 - beta2) G G^T   decayed

and for a tensor of order k, along each axis, the product of the axis' unfolding with its transpose. ``window``, in
the working precision, sums the collections; at an exchange it is added to ``total``, in float64: float32 alone would
stop growing after some 2^24 equal increments; a window has at most 100,000. Both are stored as triangles
(triangles.py). A dimension with a diagonal has the sums of squares alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from ctr.optim.gradients import Present, keep, of_tensors, powers
from ctr.optim.shampoo.blocks import gram
from ctr.optim.shampoo.layout import ShampooLayout
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.schedule import collection_due, collection_weight, when
from ctr.optim.shampoo.triangles import multiplicities, pack, packed_size
from ctr.optim.variables import Variables


class Sums(NamedTuple):
    """Statistics to compute roots from: packed totals, to be divided by ``divisor`` after ``identity`` was added.

    Attributes:
        totals: for each factor float64 [N, d (d + 1) / 2].
        divisor: float64 scalar.
        identity: the multiple of the identity to add to each matrix, float64 [M].
    """

    totals: Sequence[tf.Tensor]
    divisor: tf.Tensor
    identity: tf.Tensor


class Statistics:
    """Statistics of the matrices of a layout.

    Attributes:
        collections, window_collections: int64, how often statistics were collected, and how often since the last
            exchange.
        missed: int64 [2, tensors], the number of these collections in which each tensor had no gradient (below 0: its
            windows were not folded when others were). None with summed statistics, which do not decay.
        windows, totals: for each factor [N, d (d + 1) / 2], packed; totals in float64.
        diagonals: for each stack by axis the sums of squares [N, d], where dimensions have diagonals.
    """

    def __init__(self, options: ShampooOptions, layout: ShampooLayout, variables: Variables) -> None:
        self.options, self.layout, self.dtype, make = options, layout, variables.dtype, variables.make
        self.collections = make("collections", [], tf.int64)
        self.window_collections = make("window_collections", [], tf.int64)
        decays = options.beta2 < 1.0
        self.missed = make("missed", [2, len(layout.tensors)], tf.int64) if decays else None
        self.windows: list[tf.Variable] = []
        self.totals: list[tf.Variable] = []
        for factor in layout.factors:
            packed = [factor.count, packed_size(factor.size)]
            self.windows.append(make(f"{factor.name}/window", packed))
            self.totals.append(make(f"{factor.name}/total", packed, tf.float64))
        self.diagonals = [
            {
                axis: make(f"stack{number}/diagonal{axis}", [stack.count, stack.block[axis]])
                for axis in stack.diagonal
            }
            for number, stack in enumerate(layout.stacks)
        ]

    def update(
        self,
        stacked: Sequence[tf.Tensor],
        product: Callable[[int], tf.Tensor],
        step: tf.Tensor,
        last: tf.Tensor,
        present: Present = None,
    ) -> None:
        """Collects the products of gradients of stacks [N, *block] and of tables, if due.

        ``product`` returns G^T G of a table, [1, C, C], by its index; ``last`` is the step of the last exchange.
        Tensors that are not ``present`` have no gradient.
        """
        layout = self.layout
        if not layout.factors and not layout.stacks:
            return
        weight = collection_weight(self.options, step, self.dtype)

        def collect() -> None:
            by_factor: dict[int, tf.Tensor] = {}
            for number, (stack, factors) in enumerate(zip(layout.stacks, layout.stack_factors, strict=True)):
                products = [gram(stacked[number], axis) for axis in stack.axes]
                by_factor |= dict(zip(factors, products, strict=True))
                here = of_tensors(present, stack.tensors)
                for axis, sums in self.diagonals[number].items():
                    _collect(sums, _squares(stacked[number], axis), self.options.beta2, weight, here)
            of_tables: dict[int, list[tf.Tensor]] = {}
            for index, (factor, _) in layout.table_factors.items():
                of_tables.setdefault(factor, []).append(product(index))
            by_factor |= {factor: tf.concat(parts, axis=0) for factor, parts in of_tables.items()}
            self.add(by_factor, weight, present)

        when(collection_due(self.options, step, last), collect)

    def add(
        self, products: Mapping[int, tf.Tensor], weight: tf.Tensor | float, present: Present = None
    ) -> None:
        """Adds products [N, d, d] to the windows of their factors, in place, as one collection."""
        for number, product in products.items():
            window, factor = self.windows[number], self.layout.factors[number]
            # Products of several replicas have no static shape.
            packed = pack(tf.ensure_shape(product, [factor.count, factor.size, factor.size]))
            here = of_tensors(present, factor.tensors)
            _collect(window, packed, self.options.beta2, weight, here)
        if self.missed is not None and present is not None:
            self.missed.assign_add(tf.cast(tf.stack([~present, ~present]), tf.int64))
        self.collections.assign_add(1)
        self.window_collections.assign_add(1)

    def fold(self, present: Present = None) -> tf.Tensor:
        """Adds windows to totals and empties them, in place; returns Frobenius norms of the changes, float64 [M]."""
        layout, collections = self.layout, self.window_collections.read_value()
        missed = None if self.missed is None else self.missed[1]
        decays = powers(self.options.beta2, collections, missed, tf.float64)
        changes = []
        for factor, total, window in zip(layout.factors, self.totals, self.windows, strict=True):
            here = of_tensors(present, factor.tensors)
            decay = decays
            if missed is not None:
                decay = tf.gather(decays, tf.constant(factor.tensors, tf.int64))[:, tf.newaxis]
            change = tf.cast(window, tf.float64) + (decay - 1.0) * total
            change = keep(change, tf.zeros_like(change), here)
            total.assign_add(change)
            window.assign(keep(tf.zeros_like(window), window, here))
            squares = multiplicities(factor.size) * tf.square(change)
            changes.append(tf.sqrt(tf.reduce_sum(squares, axis=1)))
        if self.missed is not None and missed is not None:
            left = keep(tf.zeros_like(missed), missed - collections, present)
            self.missed.assign(tf.stack([self.missed[0], left]))
        self.window_collections.assign(0)
        return tf.concat(changes, axis=0)

    def divisor(self, collections: tf.Tensor, dtype: tf.DType = tf.float64) -> tf.Tensor:
        """Computes the divisor of decayed statistics, 1 - beta2^n (PT 3.1.1), scalar; 1 without bias correction."""
        if self.options.beta2 == 1.0 or not self.options.statistics.bias_correction:
            return tf.ones([], dtype)
        return 1.0 - powers(self.options.beta2, collections, None, dtype)

    def identity(self, collections: tf.Tensor, missed: tf.Tensor | None, dtype: tf.DType) -> tf.Tensor:
        """Computes the remaining multiple of the initial identity, scalar; [tensors] with ``missed``."""
        return self.options.statistics.initial * powers(self.options.beta2, collections, missed, dtype)

    def sums(self, sent: bool = False) -> Sums:
        """Returns the totals, divisor and identity; with ``sent``, as sent at the last exchange, without the window."""
        collections = self.collections.read_value()
        missed = None if self.missed is None else self.missed[0]
        if sent:
            collections -= self.window_collections
        if self.missed is not None and sent:
            missed -= self.missed[1]
        identity = self.identity(collections, missed, tf.float64)
        tensors = tf.constant(self.layout.matrix_tensors, tf.int64)
        identity = tf.fill(tensors.shape, identity) if missed is None else tf.gather(identity, tensors)
        return Sums([total.read_value() for total in self.totals], self.divisor(collections), identity)


def _collect(
    sums: tf.Variable, added: tf.Tensor, beta2: float, weight: tf.Tensor | float, present: Present
) -> None:
    """Adds to the present rows of ``sums`` [N, ...] in place: ``weight`` times if beta2 is 1, else with decay beta2."""
    if beta2 == 1.0:
        added = tf.cast(weight, added.dtype) * added if isinstance(weight, tf.Tensor) else added
        sums.assign_add(keep(added, tf.zeros_like(added), present))
    else:
        sums.assign(keep(beta2 * sums + (1.0 - beta2) * added, sums, present))


def _squares(blocks: tf.Tensor, axis: int) -> tf.Tensor:
    """Computes the diagonal of ``gram``, [N, d_axis]."""
    others = [dimension + 1 for dimension in range(len(blocks.shape) - 1) if dimension != axis]
    return tf.reduce_sum(tf.square(blocks), axis=others)
