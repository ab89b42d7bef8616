"""Distributed Shampoo over a list of variables, for both Keras optimizers and the trainer.

A step is a chain of stages, each with separate state and options:

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

from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr.optim.gradients import Gradient, GradientSteps, Present, in_xla, present_among, split_gradients
from ctr.optim.protocol import Spectrum
from ctr.optim.rows.adagrad import graft_rows, row_direction
from ctr.optim.shampoo.blocks import gram
from ctr.optim.shampoo.describe import describe
from ctr.optim.shampoo.directions import Eigenbases, InverseRoots
from ctr.optim.shampoo.division import Group, divide
from ctr.optim.shampoo.exchange import RootExchange
from ctr.optim.shampoo.grafting import Grafting
from ctr.optim.shampoo.host import COUNTERS
from ctr.optim.shampoo.layout import ShampooLayout, lay_out
from ctr.optim.shampoo.momentum import AveragedGradients, Momentum
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.statistics import Statistics
from ctr.optim.update_limit import limit_update
from ctr.optim.variables import Create, Variables, create_variable
from ctr.workers.collectives import ALONE

Tensors = dict[int, tf.Tensor]


class Tables:
    """Trains tables on the rows that a batch touches: AdaGrad, or one-sided Shampoo at its step sizes (PSO App. D).

    Attributes:
        accumulators: AdaGrad's sums of squares by the index of the table, [R, C], or of each row, [R, 1].
    """

    def __init__(
        self,
        options: ShampooOptions,
        layout: ShampooLayout,
        weights: Sequence[tf.Variable],
        variables: Variables,
    ) -> None:
        self.layout, self.weights = layout, weights
        initial = getattr(options.grafting, "initial_accumulator", 1e-6)
        self.accumulators = {}
        for index in layout.tables:
            rows, columns = layout.tensors[index].shape
            sums = [rows, 1 if options.rows == "adagrad_row" else columns]
            self.accumulators[index] = variables.make(f"tensor{index}/accumulator", sums, value=initial)

    def update(
        self,
        gradients: Mapping[int, tf.IndexedSlices],
        rate: tf.Tensor,
        roots: Sequence[tf.Variable],
        share: tf.Tensor | None,
    ) -> None:
        """Updates distinct touched rows in place by one step; repetitions with zero gradient do no harm."""
        for index, slices in gradients.items():
            table, accumulator = self.weights[index], self.accumulators[index]
            rows, values = slices.indices, slices.values
            step, squared = row_direction(tf.gather(accumulator, rows), values)
            # Adding, unlike replacing, leaves a repetition of a row without a gradient harmless.
            accumulator.scatter_add(tf.IndexedSlices(squared, rows))
            if index in self.layout.table_factors and share is not None:
                factor, at = self.layout.table_factors[index]
                step = graft_rows(tf.matmul(values, roots[factor][at]), step, share[index])
            table.scatter_sub(tf.IndexedSlices(tf.cast(rate * step, table.dtype), rows))


class ShampooCore(GradientSteps):
    """Shampoo over variables of any floating dtype; works in float32, or in float64 if one of them is float64.

    The members of a ``group`` divide the blocks among them. With ``starts_late``, steps of the
    first-order optimizer alone (``graft``) precede its own, and are counted separately.
    """

    def __init__(
        self,
        options: ShampooOptions,
        weights: Sequence[tf.Variable],
        tables: Sequence[int] = (),
        create: Create = create_variable,
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
        self.statistics = Statistics(options, blocks.local, variables)
        self.exchanged = RootExchange(options, blocks, variables)
        roots = self.exchanged.roots
        self.preconditioner = (
            Eigenbases(options, blocks, roots, variables)
            if options.corrects
            else InverseRoots(options, blocks, self.statistics, roots)
        )
        averaged = preconditioned if options.averages_in_bases else []
        others = [index for index in dense if index not in averaged]
        self.average = AveragedGradients(options.beta1, blocks, others, variables)
        self.grafting = Grafting(options, blocks, dense, self.weights, self.exchanged.counters, variables)
        is_before = options.grafting.momentum == "before"

        def momentum(kind: str, tensors: Sequence[int]) -> Momentum:
            return Momentum(options, kind, blocks, tensors, variables)

        self.momentum_before = momentum("momentum", preconditioned if is_before else [])
        self.momentum = momentum("momentum", [] if is_before else dense)
        self.rows = Tables(options, self.layout, self.weights, variables)
        self.graft_momentum = momentum("graft_momentum", dense if is_before else [])
        self._between_steps = blocks.between_steps(lambda: self._exchange(None, on_device=False))

    def graft(
        self,
        gradients: Sequence[Gradient],
        learning_rate: tf.Tensor | float,
        decayed: Sequence[bool] | None = None,
    ) -> None:
        """Updates dense weights, and only the first-order optimizer's state, in place by one first-order step."""
        assert self.grafted is not None
        dense, _ = split_gradients(gradients, self.weights, self.tables, self.dtype)
        count, rate = self.grafted.assign_add(1, read_value=True), self._rate(learning_rate)
        local = self.blocks.take(dense)
        self.grafting.collect(local)
        self._move(self._with_decay(self.grafting.directions(local, count), decayed), rate)

    def _update(
        self,
        dense: Tensors,
        rows: dict[int, tf.IndexedSlices],
        rate: tf.Tensor,
        decayed: Sequence[bool] | None,
        on_device: bool,
    ) -> None:
        step = self.step.assign_add(1, read_value=True)
        present = present_among(dense.keys() | rows.keys(), len(self.weights))
        gradients = self.blocks.take(dense)
        stacked = self.blocks.stack(gradients, self.dtype)
        with tf.name_scope("statistics"):
            last = self.exchanged.exchanged_at.read_value()
            self.statistics.update(stacked, lambda index: self._product(index, rows), step, last, present)
        if on_device or not in_xla():
            self._exchange(present, on_device)
        share = self.grafting.share(self.exchanged.certified, step)
        self.rows.update(rows, rate, self.exchanged.roots, share)
        self.grafting.collect(gradients)
        averages = self.average.update(gradients, step)
        directions = self._directions(stacked, averages, share, step, present)
        self._move(self.momentum.update(self._with_decay(directions, decayed)), rate)

    def _product(self, index: int, rows: Mapping[int, tf.IndexedSlices]) -> tf.Tensor:
        """Computes G^T G of the distinct touched rows of a table, [1, C, C]."""
        width = self.layout.tensors[index].shape[1]
        values = rows[index].values if index in rows else tf.zeros([1, width], self.dtype)
        return gram(values[tf.newaxis], 1)

    def _directions(
        self,
        stacked: Sequence[tf.Tensor],
        averages: Tensors,
        share: tf.Tensor | None,
        step: tf.Tensor,
        present: Present,
    ) -> Tensors:
        """Computes directions from gradients or their averages: Shampoo's, with the norms of the first-order ones."""
        count = step if self.grafted is None else step + self.grafted
        at_once = averages if share is None else self.grafting.needed_at_once(averages)
        grafts = self.graft_momentum.update(self.grafting.directions(at_once, count))
        if share is None or not self.layout.stacks:
            return grafts
        with tf.name_scope("precondition"):
            blocks, averages_of = self.preconditioner.update(stacked, averages, step, present)
        unstacked = self.blocks.unstack(self.grafting.scale_blocks(blocks, grafts))
        shampoos = {index: direction for index, direction in unstacked.items() if index in averages}
        shampoos = self.momentum_before.update(shampoos, active=share > 0)
        return self.grafting.graft(shampoos, grafts, share, averages_of, count)

    def _with_decay(self, directions: Tensors, decayed: Sequence[bool] | None) -> Tensors:
        """Adds ``weight_decay`` times the local elements of the ``decayed`` weights (PT 3.1.2)."""
        decay = self.options.weight_decay
        weights = {
            index: tf.cast(self.weights[index], self.dtype)
            for index in directions
            if decay and (decayed is None or decayed[index])
        }
        local = self.blocks.take(weights)
        return directions | {index: directions[index] + decay * weight for index, weight in local.items()}

    def _move(self, directions: Tensors, rate: tf.Tensor) -> None:
        """Moves the weights along their directions, within the limits."""
        limits = self.options.limits
        for index, direction in self.blocks.gather(directions).items():
            weight, update = self.weights[index], rate * direction
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
        increment = tf.one_hot(COUNTERS.index("nonfinite_steps"), len(COUNTERS), dtype=tf.int64)
        self.exchanged.counters.assign_add(increment)

    def report(self) -> dict[str, float | int]:
        """Returns counts of layers and roots, and properties of the roots in use (``RootExchange.report``)."""
        return self.exchanged.report(int(self.step.numpy()))

    def spectra(self, names: Sequence[str] | None = None) -> dict[str, Spectrum]:
        """Returns the spectra of the statistics of each variable whose roots the host has computed (PSO fig. 7)."""
        return self.exchanged.spectra(names or self._names())

    def timing(self) -> dict[str, float]:
        """Returns the seconds that steps waited for roots, and that threads spent on computing them."""
        host = self.exchanged.host
        return {"seconds_waited": host.seconds_waited, "seconds_computing": host.seconds_computing}

    def describe(self, names: Sequence[str] | None = None) -> str:
        """Returns a table of the treatment of each variable, and its cost (describe.py)."""
        return describe(self.options, self.blocks.local, self.variables, names or self._names())
