"""Distributed Shampoo over a list of variables, for both Keras optimizers and the trainer.

A step composes, each from a module of its own:

    blocking         dimensions merged, split into blocks; blocks of one shape stacked      PSO 3.1, PT 4.2
    statistics       L += G G^T, R += G^T G, every tau2 steps                               PSO 2, alg. II
    factor_update    what statistics collect: Shampoo's products, or KL-Shampoo's
    directions       L^(-1/4) G R^(-1/4); diagonals for dimensions too long for a matrix    PSO 2, PT 4.2.3
    eigenbasis       second moments in the eigenbases of L and R in place of roots           PSO App. C
    grafting         Shampoo's direction, the first-order optimizer's norm, layer by layer  PSO App. G
    momentum         decay and momentum of the resulting direction                          FF 4.2, PT 3.1
    update_limit     no direction with a large root mean square, no step beyond the weights ADAFACTOR 6, FF 4.1.3
    gradients        tables by rows                                                         PSO App. D
    division         who has which blocks, where several workers train together             PT 4.1

and every tau1 steps an *exchange* brings the roots that were computed since the last one into use and sends new
statistics (exchange.py). As in PSO alg. II it comes between statistics and direction: a root that is computed at
once from the statistics of a step serves that step. Roots come from worker threads (host.py), or, where XLA
compiles the step and roots are not exchanged between the steps, from a coupled iteration on the device.
A layer uses the grafted direction alone until each of its blocks has a certified root from real statistics.
"""

import functools
from collections.abc import Callable, Sequence

import tensorflow as tf

from ctr.optim.first_order import momentum
from ctr.optim.gradients import GradientSteps, Present, RootSource, of_owners, present_among
from ctr.optim.rows.adagrad import row_direction
from ctr.optim.shampoo import directions, exchange, factor_update, grafting, statistics
from ctr.optim.shampoo.division import Division
from ctr.optim.shampoo.exchange import when
from ctr.optim.shampoo.host import HostPipeline
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.state import (
    COUNTERS,
    STATUS,
    Create,
    ShampooLayout,
    ShampooState,
    create_variable,
    describe,
    lay_out,
    report,
)
from ctr.optim.update_limit import clip_update, limit_update
from ctr.workers.parts import Part


class ShampooCore(GradientSteps):
    """Shampoo over variables of any floating dtype; works in float32, or in float64 if one of them has it.

    Where ``divide`` gives it a part of the blocks of a layout, other members of the group have the others, and take
    the same steps on the same gradients, in a ``tf.function``.
    """

    def __init__(
        self,
        options: ShampooOptions,
        weights: Sequence[tf.Variable],
        tables: Sequence[int] = (),
        create: Create = create_variable,
        host: HostPipeline | None = None,
        divide: Callable[[ShampooLayout], Division] = Division,
    ) -> None:
        self.options = options
        self.weights, self.tables = list(weights), tuple(tables)
        self.layout = lay_out(options, [weight.shape for weight in weights], tables)
        self.division = divide(self.layout)
        self.state = ShampooState(
            options,
            self.division.own,
            [weight.dtype for weight in weights],
            create,
            [self.division.shape(index) for index in range(len(weights))],
            self.layout.matrices,
        )
        self.host = host or HostPipeline(self.division.own.factors, options)

    # The step.

    def _update(
        self,
        dense: dict[int, tf.Tensor],
        rows: dict[int, tf.IndexedSlices],
        learning_rate: tf.Tensor | float,
        decayed: Sequence[bool] | None,
        roots: RootSource,
    ) -> None:
        state, options = self.state, self.options
        step = state.step.assign_add(1, read_value=True)
        rate = self._rate(learning_rate)
        if options.eigenvalue_correction or options.is_kl:
            status = state.status.read_value()
            is_missing = tf.reduce_any(tf.equal(status[STATUS.index("certified")], 0))
            own = self.division.take_status(status)
            when(is_missing, lambda: directions.set_identity(self.division.own, state, own))
        dense = self.division.take(self._regularized(dense, decayed))
        stacked = self.division.stack(dense, state.dtype)
        present = present_among(dense.keys() | rows.keys(), len(self.weights))
        with tf.name_scope("statistics"):
            self._collect_statistics(stacked, rows, step, present)
        if roots == "host":
            self.exchange(present)
        elif roots == "device":
            exchange.on_device(self.options, self.division, self.state, present)
        share = self._shampoo_share(step)
        for index, slices in rows.items():
            self._update_table(index, slices, rate, share)
        self._collect_grafts_moments(dense)
        moving = self._moving_gradients(dense, step)
        at_once = moving
        if not (options.grafted_norm or options.separate_momenta) and share is not None:
            tensors = self.layout.tensors
            at_once = {i: gradient for i, gradient in moving.items() if not tensors[i].is_preconditioned}
        grafts = self._grafted_directions(at_once, step)
        found = self._directions(moving, stacked, grafts, share, step, present)
        if options.separate_momenta:
            # They have a momentum of their own.
            grafts = self._clipped(grafts)
        averaged = {
            index: self._averaged(
                index, direction, grafts.get(index), decayed is None or decayed[index], step
            )
            for index, direction in self._clipped(found).items()
        }
        for index, direction in self.division.gather(averaged).items():
            self._step_along(index, direction, rate)

    def _count_nonfinite(self) -> None:
        place = tf.one_hot(COUNTERS.index("nonfinite_steps"), len(COUNTERS), dtype=tf.int64)
        self.state.counters.assign_add(place)

    def _moving_gradients(self, dense: dict[int, tf.Tensor], step: tf.Tensor) -> dict[int, tf.Tensor]:
        """The gradients, or their averages; those that are kept in the bases are gradients here."""
        averages, moving = self.state.gradient_averages, dict(dense)
        for index, gradient in dense.items():
            if index in averages:
                found, weights = directions.moving_gradient(self.options, averages[index], gradient, step)
                moving[index] = found / weights if self.options.bias_correction else found
        return moving

    def _regularized(
        self, dense: dict[int, tf.Tensor], decayed: Sequence[bool] | None
    ) -> dict[int, tf.Tensor]:
        """Gradients with the coupled weight decay in them, G + lambda W (PT eq. 27)."""
        options = self.options
        if options.weight_decay_kind == "decoupled" or not options.weight_decay:
            return dense
        return {
            index: gradient + options.weight_decay * tf.cast(self.weights[index], self.state.dtype)
            if decayed is None or decayed[index]
            else gradient
            for index, gradient in dense.items()
        }

    def _collect_statistics(
        self,
        stacked: Sequence[tf.Tensor],
        rows: dict[int, tf.IndexedSlices],
        step: tf.Tensor,
        present: Present,
    ) -> None:
        state, layout, beta2 = self.state, self.division.own, self.options.beta2
        if not layout.factors and not layout.stacks:
            return

        weight = exchange.collection_weight(self.options, step, self.state.dtype)

        def collect() -> None:
            for number, (stack, factors) in enumerate(zip(layout.stacks, layout.stack_factors, strict=True)):
                blocks, by_axis = stacked[number], dict(zip(stack.axes, factors, strict=True))
                here = of_owners(present, stack.owners)
                roots = {axis: state.roots[factor] for axis, factor in by_axis.items()}
                found = factor_update.products(self.options, blocks, stack.axes, roots)
                for factor, products in zip(factors, found, strict=True):
                    statistics.collect(state.windows[factor], products, beta2, weight, here)
                for axis, sums in state.diagonals[number].items():
                    directions.collect_squares(sums, blocks, axis, beta2, weight, here)
            by_factor: dict[int, dict[int, tf.Tensor]] = {}
            for index, (factor, place) in layout.table_factors.items():
                values = (
                    rows[index].values if index in rows else tf.zeros([1, layout.tensors[index].shape[1]])
                )
                by_factor.setdefault(factor, {})[place] = statistics.row_statistics(
                    tf.cast(values, state.dtype)
                )
            for factor, products in by_factor.items():
                ordered = [products[place] for place in range(len(products))]
                here = of_owners(present, layout.factors[factor].owners)
                statistics.collect(state.windows[factor], tf.concat(ordered, axis=0), beta2, weight, here)
            if state.missed is not None and present is not None:
                state.missed.assign_add(tf.cast(tf.stack([~present, ~present]), tf.int64))
            state.collections.assign_add(1)
            state.window_collections.assign_add(1)

        when(exchange.collection_due(self.options, step, state.exchanged_at.read_value()), collect)

    def _shampoo_share(self, step: tf.Tensor) -> tf.Tensor | None:
        """For each tensor Shampoo's share of the direction in 0..1; None when nothing is preconditioned."""
        if not self.layout.factors and not self.layout.stacks:
            return None
        certified = tf.cast(self.state.status[STATUS.index("certified")], self.state.dtype)
        ready = tf.math.unsorted_segment_min(
            certified, tf.constant(self.layout.owners, tf.int64), len(self.layout.tensors)
        )
        # Of a tensor without a matrix it is the largest number that there is.
        ready = tf.minimum(ready, 1.0)
        if not self.options.separate_momenta:
            ready *= grafting.blend_weight(self.options, step, self.state.dtype)
        return ready

    def _directions(
        self,
        moving: dict[int, tf.Tensor],
        stacked: Sequence[tf.Tensor],
        grafts: dict[int, tf.Tensor],
        share: tf.Tensor | None,
        step: tf.Tensor,
        present: Present,
    ) -> dict[int, tf.Tensor]:
        """The direction of each dense weight; of ``grafts`` those are missing that are seldom needed."""
        options, layout, state = self.options, self.division.own, self.state
        if share is None or not layout.stacks:
            return grafts
        averaged = stacked
        if options.beta1 and not options.averages_in_bases:
            averaged = self.division.stack(moving, state.dtype)
        weights: tf.Tensor | float = 1.0
        with tf.name_scope("precondition"):
            if options.eigenvalue_correction:
                rotated = directions.rotate(layout, state, stacked)
                directions.collect_moments(options, layout, state, rotated, present)
                if options.averages_in_bases:
                    rotated, weights = directions.moving_gradients(
                        options, layout, state, rotated, step, present
                    )
                elif options.beta1:
                    rotated = directions.rotate(layout, state, averaged)
                corrected = directions.correct(options, state, rotated, weights)
                blocks = directions.turn_back(layout, state, corrected)
            else:
                blocks = directions.by_roots(options, layout, state, averaged)
        if options.grafting_scope == "block":
            own = self.division.stack(grafts, state.dtype)
            blocks = [grafting.scale_blocks(block, graft) for block, graft in zip(blocks, own, strict=True)]
        shampoos = {
            index: shampoo for index, shampoo in self.division.unstack(blocks).items() if index in moving
        }

        def missing() -> dict[int, tf.Tensor]:
            found = moving
            if options.averages_in_bases:
                turned = self.division.unstack(directions.turn_back(layout, state, rotated))
                found = {index: one / weights for index, one in turned.items()}
            needed = {index: found[index] for index in shampoos if index not in grafts}
            return self._grafted_directions(needed, step)

        return self._graft(shampoos, grafts, share, missing)

    def _graft(
        self,
        shampoos: dict[int, tf.Tensor],
        grafts: dict[int, tf.Tensor],
        share: tf.Tensor,
        missing: Callable[[], dict[int, tf.Tensor]],
    ) -> dict[int, tf.Tensor]:
        """Shampoo's direction with the graft's norm, layer by layer; the graft where there is no Shampoo.

        ``missing`` computes the grafts that are not given, which only a step that takes them does.
        """
        takes_norm = self.options.grafted_norm and self.options.grafting_scope == "tensor"
        scaled_to = [grafts[index] for index in shampoos] if takes_norm else []
        found, graft_norms = self._norms([*shampoos.values()], scaled_to)
        norms = dict(zip(shampoos, found, strict=True))
        # A direction of zero has no norm to give it, and one beyond the working precision no direction.
        usable = {index: (norm > 0) & tf.math.is_finite(norm) for index, norm in norms.items()}
        norms = {index: tf.where(usable[index], norm, tf.ones_like(norm)) for index, norm in norms.items()}
        shares = {
            index: tf.where(usable[index], share[index], tf.zeros_like(norm)) for index, norm in norms.items()
        }
        factors = shares
        if takes_norm:
            factors = {
                index: shares[index] * wanted / norms[index]
                for index, wanted in zip(shampoos, graft_norms, strict=True)
            }

        def scaled() -> list[tf.Tensor]:
            return [tf.math.multiply_no_nan(shampoo, factors[index]) for index, shampoo in shampoos.items()]

        def blend() -> list[tf.Tensor]:
            all_grafts = {**missing(), **grafts}
            return [
                direction + (1.0 - shares[index]) * all_grafts[index]
                for index, direction in zip(shampoos, scaled(), strict=True)
            ]

        # Mostly nothing is left to blend.
        whole = tf.reduce_all(tf.stack(list(shares.values())) == 1.0)
        blended = tf.cond(whole, scaled if takes_norm else lambda: list(shampoos.values()), blend)
        return {**grafts, **dict(zip(shampoos, blended, strict=True))}

    def _collect_grafts_moments(self, dense: dict[int, tf.Tensor]) -> None:
        for index, gradient in dense.items():
            accumulator = self.state.accumulators[index]
            if accumulator is not None:
                accumulator.assign(grafting.update_accumulator(self.options, accumulator, gradient))

    def _grafted_directions(self, moving: dict[int, tf.Tensor], step: tf.Tensor) -> dict[int, tf.Tensor]:
        grafts = {
            index: grafting.direction(self.options, self.state.accumulators[index], gradient, step)
            for index, gradient in moving.items()
        }
        if self.options.grafting not in ("lars", "lamb"):
            return grafts
        norms = self._whole_norms(grafts)
        weights = {index: tf.norm(tf.cast(self.weights[index], self.state.dtype)) for index in grafts}
        return {
            index: graft * grafting.layer_factor(weights[index], norms[index])
            for index, graft in grafts.items()
        }

    def _whole_norms(self, own: dict[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        """The norms of tensors of which some elements may be elsewhere."""
        squares = {index: _squared_norm(part) for index, part in own.items()}
        divided = [index for index in own if self.layout.tensors[index].is_preconditioned]
        summed = self.division.sum([squares[index] for index in divided]) if divided else []
        squares |= dict(zip(divided, summed, strict=True))
        return {index: tf.sqrt(square) for index, square in squares.items()}

    def _clipped(self, found: dict[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        if not self.options.update_clipping:
            return found
        norms = self._whole_norms(found)
        return {
            index: clip_update(
                direction, norms[index], self.layout.tensors[index].shape, self.options.update_clipping
            )
            for index, direction in found.items()
        }

    def _averaged(
        self, index: int, direction: tf.Tensor, graft: tf.Tensor | None, decayed: bool, step: tf.Tensor
    ) -> tf.Tensor:
        options = self.options
        both = [direction]
        if graft is not None and index in self.state.graft_momenta:
            both.append(graft)
        if options.decay and decayed:
            weight = tf.cast(self.weights[index], self.state.dtype)
            own = self.division.take({index: weight})[index]
            both = [momentum.add_weight_decay(one, own, options.decay) for one in both]
        if not options.momentum:
            return both[0]
        moved = []
        for one, variables in zip(both, (self.state.momenta, self.state.graft_momenta), strict=False):
            average = momentum.update_momentum(variables[index], one, options.momentum)
            variables[index].assign(average)
            moved.append(momentum.momentum_step(average, one, options.momentum, options.nesterov))
        if len(moved) == 1:
            return moved[0]
        share = grafting.blend_weight(options, step, direction.dtype)
        return share * moved[0] + (1.0 - share) * moved[1]

    def _step_along(self, index: int, direction: tf.Tensor, rate: tf.Tensor) -> None:
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
        """A step on distinct touched rows, in place; repetitions with zero gradient do no harm."""
        table, accumulator = self.weights[index], self.state.accumulators[index]
        rows, values = slices.indices, slices.values
        assert accumulator is not None
        root = ready = None
        if index in self.layout.table_factors and share is not None:
            factor, place = self.layout.table_factors[index]
            root, ready = self.state.roots[factor][place], share[index]
        step, squared = row_direction(tf.gather(accumulator, rows), values)
        # Adding, unlike replacing, leaves a repetition of a row without a gradient harmless.
        accumulator.scatter_add(tf.IndexedSlices(squared, rows))
        if root is not None:
            # The direction of one-sided Shampoo takes the norm of AdaGrad's step on these rows.
            shampoo = tf.matmul(values, root)
            norm = tf.norm(shampoo)
            usable = (norm > 0) & tf.math.is_finite(norm)
            ready = tf.where(usable, ready, tf.zeros_like(ready))
            scale = ready * tf.norm(step) / tf.where(usable, norm, tf.ones_like(norm))
            step = tf.math.multiply_no_nan(shampoo, scale) + (1.0 - ready) * step
        table.scatter_sub(tf.IndexedSlices(tf.cast(rate * step, table.dtype), rows))

    def exchange(self, present: Present = None) -> None:
        """Exchanges roots with the host if it is due, in the whole group; not inside a function that XLA compiles.

        Without ``asynchronous`` tensors that are not ``present`` keep their roots.
        """
        if self.division.workers.size > 1 and tf.executing_eagerly():
            # What members exchange, they exchange in graphs.
            self._exchange_in_graph()
            return
        exchange.with_host(self.options, self.division, self.state, self.host, present)

    @functools.cached_property
    def _exchange_in_graph(self) -> Callable[[], None]:
        return tf.function(self.exchange, autograph=False)

    def parts(self) -> dict[str, Part]:
        found = {name: self.division.part(name) for name in self.state.variables}
        return {name: part for name, part in found.items() if part is not None}

    def report(self) -> dict[str, float | int]:
        return report(self.layout, self.state)

    def timing(self) -> dict[str, float]:
        return {"seconds_waited": self.host.seconds_waited, "seconds_computing": self.host.seconds_computing}

    def describe(self, names: Sequence[str] | None = None) -> str:
        names = names or self._names()
        return describe(self.options, self.layout, self.state, names)


def _squared_norm(tensor: tf.Tensor) -> tf.Tensor:
    return 2.0 * tf.nn.l2_loss(tensor)
