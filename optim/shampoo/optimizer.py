"""Distributed Shampoo over a list of variables, for both Keras optimizers and the trainer.

A step is a chain of stages, each with its own state and options:

    blocks          dimensions merged, split into blocks; blocks of one shape stacked       PSO 3.1, PT 4.2
    statistics      L += G G^T, R += G^T G, every tau2 steps                                PSO 2, alg. II
    exchange        every tau1 steps roots, or eigenbases, of statistics come into use      PSO 4, FF fig. 3
    directions      L^(-1/4) G R^(-1/4), or second moments in the eigenbases                PSO 2, App. C
    grafting        Shampoo's direction, the first-order optimizer's norm, layer by layer   PSO App. G
    momentum        decay and momentum of the resulting direction                           FF 4.2, PT 3.1
    update_limit    no step beyond the weights                                              FF 4.1.3
    tables          embeddings by rows                                                      PSO App. D

As in PSO alg. II the exchange comes between statistics and direction: a root that is computed at once from the
statistics of a step serves that step. A layer takes the first-order direction until each of its blocks has a certified
root from real statistics.
"""

from collections.abc import Sequence

import tensorflow as tf

from ctr.optim.first_order.directions import add_weight_decay
from ctr.optim.first_order.options import AdaGrad
from ctr.optim.gradients import (
    Gradient,
    GradientSteps,
    Present,
    RootSource,
    present_among,
    split_gradients,
)
from ctr.optim.protocol import Spectrum
from ctr.optim.rows.adagrad import graft_rows, row_direction
from ctr.optim.shampoo.describe import describe
from ctr.optim.shampoo.directions import Eigenbases, InverseRoots
from ctr.optim.shampoo.division import Group, divide
from ctr.optim.shampoo.exchange import RootExchange
from ctr.optim.shampoo.grafting import Grafting
from ctr.optim.shampoo.host import COUNTERS, HostPipeline
from ctr.optim.shampoo.layout import ShampooLayout, lay_out
from ctr.optim.shampoo.momentum import AveragedGradients, Momentum
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.statistics import Statistics
from ctr.optim.update_limit import limit_update
from ctr.optim.variables import Create, Variables, create_variable
from ctr.workers.collectives import ALONE

Tensors = dict[int, tf.Tensor]


class Tables:
    """Tables that learn by the rows that a batch touches: AdaGrad, or one-sided Shampoo at its step sizes (PSO App. D).

    AdaGrad's sums are of each element or of each row.
    """

    def __init__(
        self,
        options: ShampooOptions,
        layout: ShampooLayout,
        weights: Sequence[tf.Variable],
        variables: Variables,
    ) -> None:
        self.options, self.layout, self.weights = options, layout, weights
        grafting = options.grafting
        initial = grafting.initial_accumulator if isinstance(grafting, AdaGrad) else 1e-6
        self.accumulators = {}
        for index in layout.tables:
            rows, columns = layout.tensors[index].shape
            sums = [rows, 1 if options.rows == "adagrad_row" else columns]
            self.accumulators[index] = variables.make(f"tensor{index}/accumulator", sums, value=initial)

    def update(
        self,
        index: int,
        slices: tf.IndexedSlices,
        rate: tf.Tensor,
        roots: Sequence[tf.Variable],
        share: tf.Tensor | None,
    ) -> None:
        """Takes a step on distinct touched rows, in place; repetitions with zero gradient do no harm."""
        table, accumulator = self.weights[index], self.accumulators[index]
        rows, values = slices.indices, slices.values
        step, squared = row_direction(tf.gather(accumulator, rows), values)
        # Adding, unlike replacing, leaves a repetition of a row without a gradient harmless.
        accumulator.scatter_add(tf.IndexedSlices(squared, rows))
        if index in self.layout.table_factors and share is not None:
            factor, place = self.layout.table_factors[index]
            direction = tf.matmul(values, roots[factor][place])
            step = graft_rows(direction, step, share[index])
        table.scatter_sub(tf.IndexedSlices(tf.cast(rate * step, table.dtype), rows))


class ShampooCore(GradientSteps):
    """Shampoo over variables of any floating dtype; works in float32, or in float64 if one of them has it.

    The members of a ``group`` divide the blocks among them. Where it ``starts_late``, there are
    steps of the first-order optimizer before the first one (``graft``), which only that counts.
    """

    def __init__(
        self,
        options: ShampooOptions,
        weights: Sequence[tf.Variable],
        tables: Sequence[int] = (),
        create: Create = create_variable,
        host: HostPipeline | None = None,
        group: Group = ALONE,
        starts_late: bool = False,
    ) -> None:
        self.options, self.weights, self.tables = options, list(weights), tuple(tables)
        self.layout = lay_out(options, [weight.shape for weight in weights], tables)
        self.blocks = blocks = divide(options, self.layout, group)
        dtypes = [weight.dtype for weight in weights]
        self.variables = variables = Variables(create, tf.float64 if tf.float64 in dtypes else tf.float32)
        self.dtype = variables.dtype
        dense = [index for index in range(len(self.weights)) if index not in self.tables]
        preconditioned = [index for index in dense if self.layout.tensors[index].is_preconditioned]
        self.step = variables.make("step", [], tf.int64)
        self.grafted = variables.make("grafted_steps", [], tf.int64) if starts_late else None
        self.statistics = Statistics(options, blocks.own, variables)
        self.exchanged = RootExchange(options, blocks, variables, host)
        roots = self.exchanged.roots
        self.preconditioner = (
            Eigenbases(options, blocks, roots, variables)
            if options.corrects
            else InverseRoots(options, blocks, self.statistics, roots)
        )
        averaged = preconditioned if options.averages_in_bases else []
        kept = [index for index in dense if index not in averaged]
        self.average = AveragedGradients(options.beta1, blocks, kept, variables)
        self.grafting = Grafting(options, blocks, dense, self.weights, self.exchanged.counters, variables)
        is_before = options.grafting.momentum == "before"
        self.momentum = Momentum(
            options, "momentum", blocks, preconditioned if is_before else dense, variables
        )
        self.rows = Tables(options, self.layout, self.weights, variables)
        self.graft_momentum = Momentum(
            options, "graft_momentum", blocks, dense if is_before else [], variables
        )
        self._between_steps = blocks.between_steps(lambda: self._exchange(None, on_device=False))

    def graft(
        self,
        gradients: Sequence[Gradient],
        learning_rate: tf.Tensor | float,
        decayed: Sequence[bool] | None = None,
    ) -> None:
        """Takes one step of the first-order optimizer on dense weights, in place; nothing else moves."""
        assert self.grafted is not None
        dense, _ = split_gradients(gradients, self.weights, self.tables, self.dtype)
        count, rate = self.grafted.assign_add(1, read_value=True), self._rate(learning_rate)
        own = self.blocks.take(dense)
        self.grafting.collect(own)
        found = self._with_decay(self.grafting.directions(own, count), decayed)
        for index, direction in self.blocks.gather(found).items():
            self._step_along(index, direction, rate)

    def _update(
        self,
        dense: Tensors,
        rows: dict[int, tf.IndexedSlices],
        learning_rate: tf.Tensor | float,
        decayed: Sequence[bool] | None,
        roots: RootSource,
    ) -> None:
        blocks, grafting = self.blocks, self.grafting
        step, rate = self.step.assign_add(1, read_value=True), self._rate(learning_rate)
        present = present_among(dense.keys() | rows.keys(), len(self.weights))
        if self.options.corrects:
            self.exchanged.set_identity()
        gradients = blocks.take(dense)
        stacked = blocks.stack(gradients, self.dtype)
        with tf.name_scope("statistics"):
            values = {index: slices.values for index, slices in rows.items()}
            last = self.exchanged.exchanged_at.read_value()
            self.statistics.update(stacked, values, step, last, present)
        if roots != "between_steps":
            self._exchange(present, roots == "device")
        share = grafting.share(self.exchanged.certified, step)
        for index, slices in rows.items():
            self.rows.update(index, slices, rate, self.exchanged.roots, share)
        grafting.collect(gradients)
        moving = self.average.update(gradients, step)
        found = self._directions(stacked, moving, share, step, present, decayed)
        for index, direction in blocks.gather(found).items():
            self._step_along(index, direction, rate)

    def _directions(
        self,
        stacked: Sequence[tf.Tensor],
        moving: Tensors,
        share: tf.Tensor | None,
        step: tf.Tensor,
        present: Present,
        decayed: Sequence[bool] | None,
    ) -> Tensors:
        """Turns gradients, or their averages, into what the weights move along."""
        grafting, is_before = self.grafting, self.options.grafting.momentum == "before"
        count = step if self.grafted is None else step + self.grafted
        at_once = moving if share is None else grafting.needed_at_once(moving)
        found = grafts = grafting.directions(at_once, count)
        if is_before:
            found = grafts = self.graft_momentum.update(grafts)
        if share is not None and self.layout.stacks:
            with tf.name_scope("precondition"):
                blocks, averages = self.preconditioner.update(stacked, moving, step, present)
            unstacked = self.blocks.unstack(grafting.scale_blocks(blocks, grafts))
            shampoos = {index: one for index, one in unstacked.items() if index in moving}
            if is_before:
                shampoos = self.momentum.update(shampoos, active=share > 0)
            found = grafting.graft(shampoos, grafts, share, averages, count)
        found = self._with_decay(found, decayed)
        return found if is_before else self.momentum.update(found)

    def _with_decay(self, found: Tensors, decayed: Sequence[bool] | None) -> Tensors:
        """Adds ``weight_decay`` times own elements of the weights that are ``decayed``."""
        decay = self.options.weight_decay
        weights = {
            index: tf.cast(self.weights[index], self.dtype)
            for index in found
            if decay and (decayed is None or decayed[index])
        }
        taken = self.blocks.take(weights)
        return {**found, **{i: add_weight_decay(found[i], one, decay) for i, one in taken.items()}}

    def _step_along(self, index: int, direction: tf.Tensor, rate: tf.Tensor) -> None:
        limits, weight = self.options.limits, self.weights[index]
        update = rate * direction
        if limits.absolute:
            update = limit_update(tf.cast(weight, self.dtype), update, limits.relative, limits.absolute)
        weight.assign_sub(tf.cast(update, weight.dtype))

    def _exchange(self, present: Present, on_device: bool) -> None:
        self.exchanged.update(
            self.statistics, self.step.read_value(), present, on_device, self.preconditioner.replace_roots
        )

    def exchange(self) -> None:
        """Exchanges roots with the host if it is due, between two steps."""
        self._between_steps()

    def _count_nonfinite(self) -> None:
        place = tf.one_hot(COUNTERS.index("nonfinite_steps"), len(COUNTERS), dtype=tf.int64)
        self.exchanged.counters.assign_add(place)

    def report(self) -> dict[str, float | int]:
        """Returns the numbers of ``RootExchange.report``."""
        return self.exchanged.report(int(self.step.numpy()))

    def spectra(self, names: Sequence[str] | None = None) -> dict[str, Spectrum]:
        """Returns the spectra of statistics by variable, of those whose roots the host has computed (PSO fig. 7)."""
        return self.exchanged.spectra(names or self._names())

    def timing(self) -> dict[str, float]:
        """Returns seconds that steps waited for roots, and that threads computed them."""
        host = self.exchanged.host
        return {"seconds_waited": host.seconds_waited, "seconds_computing": host.seconds_computing}

    def describe(self, names: Sequence[str] | None = None) -> str:
        """Returns a table of the treatment of each variable, and its cost (describe.py)."""
        return describe(self.options, self.layout, self.dtype, names or self._names())
