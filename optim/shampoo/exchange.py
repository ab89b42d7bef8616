"""Exchanges of statistics for roots, by the host or on the device, in a step or between two (PSO alg. II; FF fig. 3).

First the roots of the statistics that were sent at the last exchange come into use, then the window of statistics is
folded into the totals, then these are sent. Until the next exchange the totals stay as sent, so that a restart can
recompute the roots in flight. Without ``asynchronous`` an exchange waits for the new roots, as the first and the
early ones always do, and matrices of tensors without a gradient in this step keep their roots, as in PyTorch's
Distributed Shampoo. The device computes roots from the totals at once.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ctr.optim.gradients import Present, keep, of_tensors
from ctr.optim.protocol import Spectrum
from ctr.optim.shampoo.coupled import inverse_roots
from ctr.optim.shampoo.division import Blocks
from ctr.optim.shampoo.host import COUNTERS, STATUS, HostPipeline, Round
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.roots import TOLERANCE
from ctr.optim.shampoo.schedule import exchange_due, is_early, when
from ctr.optim.shampoo.statistics import Statistics, Sums
from ctr.optim.shampoo.triangles import unpack, unpack_arrays
from ctr.optim.variables import Variables


class Results(NamedTuple):
    """Roots of the local matrices, [N, d, d] for each factor, their status, [len(STATUS), M], and the counters."""

    status: tf.Tensor
    counters: tf.Tensor
    roots: Sequence[tf.Tensor]


class RootExchange:
    """Roots of all factors, and their exchange.

    Attributes:
        exchanged_at: int64, the step of the last exchange; -1: none yet.
        status, counters: [len(STATUS), M] and int64 [len(COUNTERS)], of all matrices.
        roots: for each factor [N, d, d], or its eigenbases, which begin as the identity.
    """

    def __init__(self, options: ShampooOptions, blocks: Blocks, variables: Variables) -> None:
        self.options, self.blocks = options, blocks
        make, layout = variables.make, blocks.local
        self.exchanged_at = make("exchanged_at", [], tf.int64, -1)
        self.status = make("status", [len(STATUS), blocks.whole.matrices])
        self.counters = make("counters", [len(COUNTERS)], tf.int64)
        self.roots = []
        for factor in layout.factors:
            shape = [factor.count, factor.size, factor.size]
            begin = np.broadcast_to(np.eye(factor.size), shape) if factor.basis else 0
            self.roots.append(make(f"{factor.name}/root", shape, value=begin))
        self.host = HostPipeline(layout.factors, options)

    @property
    def certified(self) -> tf.Tensor:
        """Returns for all matrices, [M], 1 where a certified root is in use, else 0."""
        return self.status[STATUS.index("certified")]

    def update(
        self,
        statistics: Statistics,
        step: tf.Tensor,
        present: Present = None,
        on_device: bool = False,
        replaced: Callable[[Sequence[tf.Tensor], Present], None] | None = None,
    ) -> None:
        """Exchanges statistics for roots if due: on the host, which XLA-compiled code cannot call, or ``on_device``.

        ``step`` is an int64 scalar. ``replaced`` is called with the roots [N, d, d] that are about to come into use.

        Raises:
            ValueError: the options require eigenbases, which the device does not compute.
        """
        if not self.blocks.whole.factors:
            return
        if on_device and self.options.corrects:
            raise ValueError(
                "method eigenvalue_corrected requires eigenbases, which a step compiled by XLA cannot compute; train "
                "with callbacks=[ShampooCallback()], which has them computed on the host, or without jit_compile"
            )
        if self.options.roots.asynchronous:
            present = None

        def exchange() -> None:
            counters = self.counters.read_value()
            status = self.blocks.take_status(self.status.read_value())
            before = Results(status, counters, [root.read_value() for root in self.roots])
            sent = statistics.sums(sent=True)
            changes = statistics.fold(present)
            now = statistics.sums()
            if on_device:
                after = self._by_device(step, now, changes, before, present)
            else:
                after = self._by_host(step, sent, now, changes, before, present)
            if replaced is not None:
                replaced(after.roots, present)
            for variable, root in zip(self.roots, after.roots, strict=True):
                variable.assign(root)
            self.status.assign(self.blocks.gather_status(after.status))
            (increments,) = self.blocks.reduce(tf.reduce_sum, [after.counters - counters])
            self.counters.assign_add(increments)
            self.exchanged_at.assign(step)

        when(exchange_due(self.options, step, self.exchanged_at.read_value()), exchange)

    def _by_host(
        self, step: tf.Tensor, sent: Sums, now: Sums, changes: tf.Tensor, before: Results, present: Present
    ) -> Results:
        """Brings the roots of the ``sent`` sums into use, and sends the sums of ``now``, in one call of the host.

        ``changes`` are the norms of the changes between the two, float64 [M].
        """
        host, roots, count = self.host, self.options.roots, len(self.host.factors)
        of_present = of_tensors(present, self.blocks.local.matrix_tensors)

        def unpacked(totals: Sequence[np.ndarray]) -> list[np.ndarray]:
            pairs = zip(totals, host.factors, strict=True)
            return [unpack_arrays(packed, factor.size) for packed, factor in pairs]

        def call(
            step: int, last: int, is_early: bool, changes: np.ndarray, *arrays: np.ndarray
        ) -> list[np.ndarray]:
            old_divisor, old_identity, divisor, identity, *rest = arrays
            old_totals, totals = unpacked(rest[:count]), unpacked(rest[count : 2 * count])
            # Copies, which the function changes in place.
            status, counters, *matrices = map(np.array, rest[2 * count :])
            state = Round(old_totals, matrices, status, counters, float(old_divisor), old_identity)
            host.collect(int(last), state)
            state.status[STATUS.index("drift")] += changes.astype(status.dtype)
            state.totals, state.divisor, state.identity = totals, float(divisor), identity
            host.send(int(step), state, of_present)
            if not roots.asynchronous or is_early or (last < 0 and not roots.identity):
                host.collect(int(step), state)
            return [state.status, state.counters, *state.roots]

        first = [step, self.exchanged_at.read_value(), is_early(self.options, step), changes]
        sums = [sent.divisor, sent.identity, now.divisor, now.identity, *sent.totals, *now.totals]
        inputs = [before.status, before.counters, *before.roots]
        output = tf.numpy_function(call, [*first, *sums, *inputs], [tensor.dtype for tensor in inputs])
        status, counters, *new = [tf.reshape(new, old.shape) for new, old in zip(output, inputs, strict=True)]
        return Results(status, counters, new)

    def _by_device(
        self, step: tf.Tensor, now: Sums, changes: tf.Tensor, before: Results, present: Present
    ) -> Results:
        """Computes roots with graph operations, and brings them into use at once (PSO App. E)."""
        options, layout, dtype = self.options, self.blocks.local, before.status.dtype
        rows = dict(zip(STATUS, tf.unstack(before.status, num=len(STATUS)), strict=True))
        rows["drift"] += tf.cast(changes, dtype)
        absolute = options.roots.damping == "absolute"
        residuals, nonzero, roots = [], [], []
        for factor, total, root in zip(layout.factors, now.totals, before.roots, strict=True):
            identity = now.identity[factor.matrices, tf.newaxis, tf.newaxis]
            whole = unpack(total, factor.size) + identity * tf.eye(factor.size, dtype=tf.float64)
            begun = whole / now.divisor
            computed, residual = inverse_roots(begun, factor.order, options.epsilon, absolute=absolute)
            computed = tf.cast(computed, root.dtype)
            residual = tf.where(tf.reduce_all(tf.math.is_finite(computed), axis=[1, 2]), residual, np.inf)
            is_good = (residual <= TOLERANCE)[:, tf.newaxis, tf.newaxis]
            here, previous = of_tensors(present, factor.tensors), root
            if options.roots.identity and here is not None:
                has_root = rows["certified"][factor.matrices, tf.newaxis, tf.newaxis] > 0
                previous = tf.where(has_root, previous, tf.eye(factor.size, dtype=previous.dtype))
            roots.append(keep(tf.where(is_good, computed, root), previous, here))
            residuals.append(residual)
            nonzero.append(tf.reduce_any(begun != 0, axis=[1, 2]) | options.damps_zero)
        here = of_tensors(present, layout.matrix_tensors)
        residual, sent = tf.concat(residuals, axis=0), tf.concat(nonzero, axis=0)
        sent = keep(sent, tf.zeros_like(sent), here)
        good = sent & (residual <= TOLERANCE)
        # The iteration computes no eigenvalues, and an earlier root's do not belong to these statistics.
        new = {"certified": 1, "residual": residual, "root_step": step}
        new |= dict.fromkeys(("drift", "smallest", "largest"), 0)
        rows |= {name: tf.where(good, tf.cast(value, dtype), rows[name]) for name, value in new.items()}
        if options.roots.identity:
            rows["certified"] = keep(rows["certified"], tf.ones_like(rows["certified"]), here)
        done = tf.math.count_nonzero(good)
        counted = {"refreshed": done, "device": done, "failed": tf.math.count_nonzero(sent) - done}
        counts = tf.stack([counted.get(name, tf.zeros([], tf.int64)) for name in COUNTERS])
        return Results(tf.stack([rows[name] for name in STATUS]), before.counters + counts, roots)

    def report(self, step: int) -> dict[str, float | int]:
        """Returns counts of layers and of layers with roots, ``COUNTERS``, and ages and spectra of the roots in use."""
        status = dict(zip(STATUS, self.status.numpy(), strict=True))
        in_use = status["certified"] > 0
        staleness = step - status["root_step"][in_use]
        _, (smallest, largest, condition, _) = self._spectra()
        tensors = self.blocks.whole.matrix_tensors
        preconditioned = set(tensors.tolist())
        return {
            "layers": len(preconditioned),
            "layers_ready": len(preconditioned - set(tensors[~in_use].tolist())),
            **{name: int(count) for name, count in zip(COUNTERS, self.counters.numpy(), strict=True)},
            "staleness_max": int(staleness.max(initial=0)),
            "staleness_mean": float(staleness.mean()) if len(staleness) else 0.0,
            "residual_max": float(status["residual"][in_use].max(initial=0)),
            "condition_max": float(condition.max(initial=0)),
            "condition_median": float(np.median(condition)) if len(condition) else 0.0,
            "singular_value_max": float(largest.max(initial=0)),
            "singular_value_min": float(smallest.min()) if len(smallest) else 0.0,
        }

    def spectra(self, names: Sequence[str]) -> dict[str, Spectrum]:
        """Returns the spectra of statistics by tensor name, combined over tensors of one name (PSO fig. 6, 7)."""
        tensors, numbers = self._spectra()
        matrices: dict[str, list[int]] = {}
        for matrix, index in enumerate(tensors):
            matrices.setdefault(names[index], []).append(matrix)
        return {
            name: Spectrum(float(numbers[0, at].min()), *map(float, numbers[1:, at].max(axis=1)))
            for name, at in matrices.items()
        }

    def _spectra(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tensor of each of K matrices with a root, [K], and the fields of its `Spectrum`, float64 [4, K].

        Leaves out matrices whose eigenvalues were not computed, or are beyond the working precision.
        """
        status = dict(zip(STATUS, self.status.numpy().astype(np.float64), strict=True))
        valid = (status["certified"] > 0) & (status["largest"] > 0) & (status["largest"] < np.inf)
        smallest, largest = status["smallest"][valid], status["largest"][valid]
        # A matrix whose smallest eigenvalue is only rounding is singular; its condition stays a number.
        condition = largest / np.maximum(smallest, np.finfo(np.float64).eps * largest)
        return self.blocks.whole.matrix_tensors[valid], np.stack(
            [smallest, largest, condition, status["condition"][valid]]
        )
