"""Distributed Shampoo over a list of variables: what both Keras optimizers and the trainer are made of.

A step composes, each from a module of its own:

    blocking         dimensions merged, split into blocks; blocks of one shape stacked      PSO 3.1, PT 4.2
    statistics       L += G G^T, R += G^T G, every tau2 steps                               PSO 2, alg. II
    preconditioning  L^(-1/4) G R^(-1/4)                                                    PSO 2
    grafting         Shampoo's direction, the first-order optimizer's norm, layer by layer  PSO App. G
    momentum         decay and momentum of the resulting direction                          FF 4.2, PT 3.1
    update_limit     no step far beyond the size of the weights                             FF 4.1.3
    sparse           tables by rows                                                         PSO App. D
    division         who has which blocks, where several workers train together             PT 4.1

and every tau1 steps an *exchange* brings the roots that were computed since the last one into use and sends new
statistics (exchange.py). As in PSO alg. II it comes between statistics and direction: a root that is computed at
once from the statistics of a step serves that step. Roots come from worker threads (host.py), or, where XLA
compiles the step and roots are not exchanged between the steps, from a coupled iteration on the device
(graph_roots.py).
A layer uses the grafted direction alone until each of its blocks has a certified root from real statistics.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import tensorflow as tf

from ctr.optim import exchange, grafting, momentum, schedule, statistics
from ctr.optim.division import Division, assign
from ctr.optim.exchange import when
from ctr.optim.host import HostPipeline
from ctr.optim.options import ShampooOptions
from ctr.optim.preconditioning import precondition
from ctr.optim.report import describe, report
from ctr.optim.sparse import row_statistics, sum_duplicates, update_table
from ctr.optim.state import COUNTERS, STATUS, Create, ShampooState, create_variable, lay_out
from ctr.optim.update_limit import limit_update
from ctr.workers.collectives import ALONE, Workers
from ctr.workers.parts import Part

Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices | None"
RootSource = Literal["host", "device", "between_steps"]


def all_finite(gradients: Sequence[Gradient]) -> tf.Tensor:
    """Whether all gradients are finite, bool scalar.

    A sum of squares is finite only when all its terms are, and is one pass. That of a gradient may not
    overflow either: sums of squares would become infinite, and the weight never move again.
    """
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients if g is not None]
    # In float16 squares would overflow at 256.
    values = [tf.cast(value, tf.float32) if value.dtype.size < 4 else value for value in values]
    return tf.reduce_all(tf.stack([tf.math.is_finite(tf.nn.l2_loss(value)) for value in values] or [True]))


class ShampooCore:
    """Shampoo over some variables.

    Args:
        options: everything but the learning rate.
        weights: the variables to train. They may be of any floating dtype; work is done in float32, or in
            float64 if one of them is.
        tables: indices of variables whose rows learn by themselves (``options.sparse``).
        create: makes the state's variables; the Keras optimizers pass their own.
        host: the pipeline for roots; by default one over all processors.
        workers: which all take the same steps, on the same gradients, and divide the blocks among them. With several,
            there are no tables, and steps are taken in a ``tf.function``.
        leader: another one over equal variables that takes each step before this one, as the first replica of a
            tf.distribute strategy does; its roots are copied instead of computed.

    Attributes:
        layout: what is preconditioned how.
        division: what this worker has of it.
        state: all variables besides the weights.
        host: the pipeline.
    """

    def __init__(
        self,
        options: ShampooOptions,
        weights: Sequence[tf.Variable],
        tables: Sequence[int] = (),
        create: Create = create_variable,
        host: HostPipeline | None = None,
        workers: Workers = ALONE,
        leader: "ShampooCore | None" = None,
    ) -> None:
        self.options = options
        self.weights = list(weights)
        self.layout = lay_out(options, [weight.shape for weight in weights], tables)
        owners = assign(options, self.layout, workers.size) if workers.size > 1 else ()
        self.division = Division(self.layout, owners, workers)
        self.state = ShampooState(
            options,
            self.division.own,
            [weight.dtype for weight in weights],
            create,
            [self.division.shape(index) for index in range(len(weights))],
            self.layout.matrices,
        )
        self.host = host or HostPipeline(self.division.own.factors, options)
        self._leader = leader

    # The step.

    def update(
        self,
        gradients: Sequence[Gradient],
        learning_rate: tf.Tensor | float,
        decayed: Sequence[bool] | None = None,
        roots: RootSource = "host",
    ) -> None:
        """One step on all weights, in place.

        Args:
            gradients: for each weight a tensor of its shape, an IndexedSlices, or None, which leaves the
                weight as it is.
            learning_rate: scalar.
            decayed: which weights decay; by default all that are no tables.
            roots: who computes the roots that are due: ``host`` (in eager mode, or a ``tf.function`` without
                ``jit_compile``), ``device`` (anywhere), or the caller by ``exchange``, ``between_steps``, which
                makes every root serve one step later.

        Raises:
            ValueError: the options ask for roots that the device does not compute.
        """
        state, options = self.state, self.options
        step = state.step.assign_add(1, read_value=True)
        # A number would otherwise be rounded to float32 on its way to float64.
        rate = (
            tf.constant(learning_rate, state.dtype)
            if isinstance(learning_rate, int | float)
            else tf.cast(learning_rate, state.dtype)
        )
        dense, rows = self._split(gradients)
        dense = self.division.take(dense)
        stacked = self.division.stack(dense, state.dtype)
        with tf.name_scope("statistics"):
            self._collect_statistics(stacked, rows, step)
        if roots == "host":
            self.exchange()
        elif roots == "device":
            exchange.on_device(self.options, self.division, self.state)
        share = self._shampoo_share(step)
        for index, slices in rows.items():
            self._update_table(index, slices, rate, share)
        moving = dense
        if options.beta1:
            moving = {
                index: self._moving_gradient(index, gradient, step) for index, gradient in dense.items()
            }
            stacked = self.division.stack(moving, state.dtype)
        grafts = {
            index: self._grafted_direction(index, gradient, moving[index], step)
            for index, gradient in dense.items()
        }
        directions = {
            index: self._averaged(index, direction, decayed is None or decayed[index])
            for index, direction in self._graft(stacked, grafts, share).items()
        }
        for index, direction in self.division.gather(directions).items():
            self._step_along(index, direction, rate)

    def update_if_finite(
        self,
        gradients: Sequence[Gradient],
        learning_rate: tf.Tensor | float,
        decayed: Sequence[bool] | None = None,
        roots: RootSource = "host",
    ) -> tf.Tensor:
        """``update``, unless a gradient is not finite: then that is counted and nothing else happens.

        Returns:
            bool scalar, whether it did.
        """
        applied = all_finite(gradients)

        def update() -> tf.Tensor:
            self.update(gradients, learning_rate, decayed, roots)
            return tf.constant(True)

        def count() -> tf.Tensor:
            place = tf.one_hot(COUNTERS.index("nonfinite_steps"), len(COUNTERS), dtype=tf.int64)
            self.state.counters.assign_add(place)
            return tf.constant(False)

        return tf.cond(applied, update, count)

    def _split(
        self, gradients: Sequence[Gradient]
    ) -> tuple[dict[int, tf.Tensor], dict[int, tf.IndexedSlices]]:
        """The gradients of dense weights, and those of tables by distinct rows, in the working precision, by index."""
        dense: dict[int, tf.Tensor] = {}
        rows: dict[int, tf.IndexedSlices] = {}
        for index, gradient in enumerate(gradients):
            if gradient is None:
                continue
            if index in self.layout.tables:
                rows[index] = self._row_gradient(index, gradient)
            else:
                dense[index] = tf.cast(tf.convert_to_tensor(gradient), self.state.dtype)
        return dense, rows

    def _row_gradient(self, index: int, gradient: Gradient) -> tf.IndexedSlices:
        """A table's gradient by distinct rows, in the working precision."""
        if isinstance(gradient, tf.IndexedSlices):
            slices = sum_duplicates(gradient)
        else:
            slices = tf.IndexedSlices(tf.convert_to_tensor(gradient), tf.range(self.weights[index].shape[0]))
        return tf.IndexedSlices(tf.cast(slices.values, self.state.dtype), slices.indices)

    def _moving_gradient(self, index: int, gradient: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """The bias-corrected moving average (PT 3.1.1)."""
        beta1 = self.options.beta1
        variable = self.state.gradient_averages[index]
        average = beta1 * variable + (1.0 - beta1) * gradient
        variable.assign(average)
        return average / (1.0 - tf.pow(tf.constant(beta1, average.dtype), tf.cast(step, average.dtype)))

    def _collect_statistics(
        self, stacked: Sequence[tf.Tensor], rows: dict[int, tf.IndexedSlices], step: tf.Tensor
    ) -> None:
        state, layout, beta2 = self.state, self.division.own, self.options.beta2
        if not layout.factors:
            return

        weight = schedule.collection_weight(self.options, step, self.state.dtype)

        def collect() -> None:
            for stack, factors, blocks in zip(layout.stacks, layout.stack_factors, stacked, strict=True):
                for axis, factor in zip(stack.axes, factors, strict=True):
                    products = statistics.gram(blocks, axis)
                    statistics.collect(state.windows[factor], products, beta2, weight)
            by_factor: dict[int, dict[int, tf.Tensor]] = {}
            for index, (factor, place) in layout.table_factors.items():
                values = (
                    rows[index].values if index in rows else tf.zeros([1, layout.tensors[index].shape[1]])
                )
                by_factor.setdefault(factor, {})[place] = row_statistics(tf.cast(values, state.dtype))
            for factor, products in by_factor.items():
                ordered = [products[place] for place in range(len(products))]
                statistics.collect(state.windows[factor], tf.concat(ordered, axis=0), beta2, weight)
            state.collections.assign_add(1)
            state.window_collections.assign_add(1)

        when(schedule.collection_due(self.options, step), collect)

    def _shampoo_share(self, step: tf.Tensor) -> tf.Tensor | None:
        """For each tensor Shampoo's share of the direction in 0..1; None when nothing is preconditioned."""
        if not self.layout.factors:
            return None
        certified = self.state.status[STATUS.index("certified")]
        ready = tf.math.unsorted_segment_min(
            certified, tf.constant(self.layout.owners), len(self.layout.tensors)
        )
        return ready * grafting.blend_weight(self.options, step, self.state.dtype)

    def _graft(
        self, stacked: Sequence[tf.Tensor], grafts: dict[int, tf.Tensor], share: tf.Tensor | None
    ) -> dict[int, tf.Tensor]:
        """Shampoo's direction with the graft's norm, layer by layer; the graft where there is no Shampoo."""
        layout, state = self.division.own, self.state
        if share is None or not layout.stacks:
            return grafts
        with tf.name_scope("precondition"):
            blocks = [
                precondition(block, stack.axes, [state.roots[factor] for factor in factors])
                for stack, factors, block in zip(layout.stacks, layout.stack_factors, stacked, strict=True)
            ]
        shampoos = {
            index: shampoo for index, shampoo in self.division.unstack(blocks).items() if index in grafts
        }
        sizes = self._norms([*shampoos.values()], [grafts[index] for index in shampoos])
        norms, graft_norms = (dict(zip(shampoos, found, strict=True)) for found in sizes)
        # A direction of zero has no norm to give it, and one beyond the working precision no direction.
        usable = {index: (norm > 0) & tf.math.is_finite(norm) for index, norm in norms.items()}
        norms = {index: tf.where(usable[index], norm, tf.ones_like(norm)) for index, norm in norms.items()}
        shares = {
            index: tf.where(usable[index], share[index], tf.zeros_like(norm)) for index, norm in norms.items()
        }
        scaled = {
            index: tf.math.multiply_no_nan(shampoo, shares[index] * graft_norms[index] / norms[index])
            for index, shampoo in shampoos.items()
        }

        def blend() -> list[tf.Tensor]:
            return [direction + (1.0 - shares[index]) * grafts[index] for index, direction in scaled.items()]

        # Mostly nothing is left to blend.
        whole = tf.reduce_all(tf.stack(list(shares.values())) == 1.0)
        blended = tf.cond(whole, lambda: list(scaled.values()), blend)
        return {**grafts, **dict(zip(scaled, blended, strict=True))}

    def _grafted_direction(
        self, index: int, gradient: tf.Tensor, moving: tf.Tensor, step: tf.Tensor
    ) -> tf.Tensor:
        """The direction of the grafted optimizer, whose second moments take the gradient itself."""
        accumulator = self.state.accumulators[index]
        if accumulator is not None:
            accumulator.assign(grafting.update_accumulator(self.options, accumulator, gradient))
        return grafting.direction(self.options, accumulator, moving, step)

    def _averaged(self, index: int, direction: tf.Tensor, decayed: bool) -> tf.Tensor:
        """The direction after decay and momentum."""
        options = self.options
        if options.weight_decay and decayed:
            weight = tf.cast(self.weights[index], self.state.dtype)
            own = self.division.take({index: weight})[index]
            direction = momentum.add_weight_decay(direction, own, options.weight_decay)
        if options.momentum:
            average = momentum.update_momentum(self.state.momenta[index], direction, options.momentum)
            self.state.momenta[index].assign(average)
            direction = momentum.momentum_step(average, direction, options.momentum, options.nesterov)
        return direction

    def _step_along(self, index: int, direction: tf.Tensor, rate: tf.Tensor) -> None:
        """Moves a dense weight, within its limit."""
        options, weight = self.options, self.weights[index]
        update = rate * direction
        if options.update_limit_absolute:
            update = limit_update(
                tf.cast(weight, self.state.dtype),
                update,
                options.update_limit_relative,
                options.update_limit_absolute,
            )
        weight.assign_sub(tf.cast(update, weight.dtype))

    def _norms(
        self, shampoos: Sequence[tf.Tensor], grafts: Sequence[tf.Tensor]
    ) -> tuple[Sequence[tf.Tensor], Sequence[tf.Tensor]]:
        """The norms of directions, of Shampoo's also where their squares leave the working precision."""
        division = self.division
        squares = division.sum([_squared_norm(direction) for direction in [*shampoos, *grafts]])
        norms = [tf.sqrt(square) for square in squares]
        plain, graft_norms = norms[: len(shampoos)], norms[len(shampoos) :]

        def scaled_first() -> list[tf.Tensor]:
            largest = division.max([tf.reduce_max(tf.abs(direction)) for direction in shampoos])
            scaled = [
                _squared_norm(tf.math.divide_no_nan(direction, size))
                for direction, size in zip(shampoos, largest, strict=True)
            ]
            norms = [
                size * tf.sqrt(square) for size, square in zip(largest, division.sum(scaled), strict=True)
            ]
            overflowed = tf.math.count_nonzero(~tf.math.is_finite(tf.stack(norms)))
            place = tf.one_hot(COUNTERS.index("overflowed"), len(COUNTERS), dtype=tf.int64)
            self.state.counters.assign_add(overflowed * place)
            return norms

        stacked = tf.stack(plain)
        usual = tf.reduce_all(tf.math.is_finite(stacked) & (stacked > 0))
        return tf.cond(usual, lambda: plain, scaled_first), graft_norms

    def _update_table(
        self, index: int, slices: tf.IndexedSlices, rate: tf.Tensor, share: tf.Tensor | None
    ) -> None:
        root = ready = None
        if index in self.layout.table_factors and share is not None:
            factor, place = self.layout.table_factors[index]
            root, ready = self.state.roots[factor][place], share[index]
        accumulator = self.state.accumulators[index]
        assert accumulator is not None
        update_table(self.weights[index], accumulator, slices, rate, root, ready)

    def exchange(self) -> None:
        """Exchanges roots with the host if it is due, on all workers; not inside a function that XLA compiles."""
        if self._leader is not None:
            exchange.copy(self.options, self.layout, self.state, self._leader.state)
            return
        if self.division.workers.size > 1 and tf.executing_eagerly():
            # What workers exchange, they exchange in graphs.
            self._exchange_in_graph()
            return
        exchange.with_host(self.options, self.division, self.state, self.host)

    @functools.cached_property
    def _exchange_in_graph(self) -> Callable[[], None]:
        return tf.function(self.exchange, autograph=False)

    def parts(self) -> dict[str, Part]:
        """Which of the state's variables hold a part of what one process would have, by their names."""
        parts, variables = self.division.parts(), self.state.variables
        return {name: part for name, part in parts.items() if name in variables}

    def report(self) -> dict[str, float | int]:
        """How the roots of all workers are doing: see ``ctr.optim.report.report``."""
        return report(self.layout, self.state)

    def timing(self) -> dict[str, float]:
        """Seconds, since this process began, of waiting for its roots, and of its threads' computing them."""
        return {
            "seconds_waited": self.host.seconds_waited,
            "seconds_computing": self.host.seconds_computing,
        }

    def describe(self, names: Sequence[str] | None = None) -> str:
        """A table of treatment, memory and cost by weight: see ``ctr.optim.report.describe``."""
        names = names or [weight.name.partition(":")[0] for weight in self.weights]
        return describe(self.options, self.layout, self.state, names)


def _squared_norm(tensor: tf.Tensor) -> tf.Tensor:
    """The square of the Frobenius norm, in one pass."""
    return 2.0 * tf.nn.l2_loss(tensor)
