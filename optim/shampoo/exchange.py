"""Exchanges of statistics for roots, by the host or on the device, in a step or between two (PSO alg. II; FF fig. 3).

First the roots of the statistics that were sent at the last exchange come into use, then the window of statistics is
folded into the totals, then these are sent: between two exchanges the totals stay as they were sent, from which a
restart computes roots in flight again. Without ``asynchronous`` an exchange waits for its own roots, as the first and
the early ones always do, and matrices of tensors without a gradient in this step keep theirs, as in PyTorch's
Distributed Shampoo.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ctr.optim.gradients import Present, keep, of_owners
from ctr.optim.protocol import Spectrum
from ctr.optim.shampoo.coupled import inverse_roots
from ctr.optim.shampoo.division import Blocks
from ctr.optim.shampoo.host import COUNTERS, STATUS, HostPipeline, Round
from ctr.optim.shampoo.layout import ShampooLayout
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.roots import TOLERANCE
from ctr.optim.shampoo.schedule import exchange_due, is_early, when
from ctr.optim.shampoo.statistics import Statistics
from ctr.optim.shampoo.triangles import unpack, unpack_arrays
from ctr.optim.variables import Variables


class Given(NamedTuple):
    """What roots are computed from, and what comes of them; of all but steps and counters, those of the own matrices.

    Attributes:
        step, exchanged_at: int64, this step and that of the last exchange, or -1.
        totals, divisor, identity: packed, float64; what they are to be divided by; and how much of the identity is
            to be added before, scalar or [M].
        status, counters: [len(STATUS), M], and int64 [len(COUNTERS)].
        roots: for each factor [N, d, d].
    """

    step: tf.Tensor
    exchanged_at: tf.Tensor
    totals: Sequence[tf.Tensor]
    divisor: tf.Tensor
    identity: tf.Tensor
    status: tf.Tensor
    counters: tf.Tensor
    roots: Sequence[tf.Tensor]


class RootExchange:
    """Roots of all factors, and their exchange.

    Attributes:
        exchanged_at: int64, the step of the last exchange; -1: none yet.
        status, counters: [len(STATUS), M] and int64 [len(COUNTERS)], of the matrices of all owners.
        roots: for each factor [N, d, d], or its eigenbases.
    """

    def __init__(
        self, options: ShampooOptions, blocks: Blocks, variables: Variables, host: HostPipeline | None = None
    ) -> None:
        self.options, self.blocks = options, blocks
        make, layout = variables.make, blocks.own
        self.exchanged_at = make("exchanged_at", [], tf.int64, -1)
        self.status = make("status", [len(STATUS), blocks.whole.matrices])
        self.counters = make("counters", [len(COUNTERS)], tf.int64)
        self.roots = [
            make(f"{factor.name}/root", [factor.count, factor.size, factor.size]) for factor in layout.factors
        ]
        self.host = host or HostPipeline(layout.factors, options)

    @property
    def certified(self) -> tf.Tensor:
        """1 for each matrix of all owners with a root of its own, else 0, [M]."""
        return self.status[STATUS.index("certified")]

    def set_identity(self) -> None:
        """Makes roots that are not there yet identities, in place."""
        status = self.status.read_value()

        def fill() -> None:
            certified = self.blocks.take_status(status)[STATUS.index("certified")]
            for factor, root in zip(self.blocks.own.factors, self.roots, strict=True):
                is_there = certified[factor.matrices][:, tf.newaxis, tf.newaxis] > 0
                root.assign(tf.where(is_there, root, tf.eye(factor.size, dtype=root.dtype)))

        when(tf.reduce_any(tf.equal(status[STATUS.index("certified")], 0)), fill)

    def update(
        self,
        statistics: Statistics,
        step: tf.Tensor,
        present: Present = None,
        on_device: bool = False,
        replaced: Callable[[Sequence[tf.Tensor], Present], None] | None = None,
    ) -> None:
        """Exchanges if it is due; on the host unless ``on_device``, and then not in a function that XLA compiles.

        ``replaced`` is called with the roots that are about to come into use.

        Raises:
            ValueError: the options ask for eigenbases, which the device does not compute.
        """
        if not self.blocks.whole.factors:
            return
        options, layout = self.options, self.blocks.own
        if on_device and options.corrects:
            raise ValueError(
                "method eigenvalue_corrected requires eigenbases, which a step compiled by XLA cannot compute; train "
                "with callbacks=[ShampooCallback()], which has them computed on the host, or without jit_compile"
            )
        if options.roots.asynchronous:
            present = None

        def exchange() -> None:
            before = self.counters.read_value()
            # In flight is what was sent before the present window.
            until = statistics.collections - statistics.window_collections
            missed = statistics.missed
            given = Given(
                step,
                self.exchanged_at.read_value(),
                [total.read_value() for total in statistics.totals],
                statistics.divisor(until),
                statistics.identity_of_matrices(until, None if missed is None else missed[0] - missed[1]),
                self.blocks.take_status(self.status.read_value()),
                before,
                [root.read_value() for root in self.roots],
            )
            if not on_device:
                given = _call_host(
                    lambda _, sent_at, found: self.host.collect(sent_at, found), self.host, given
                )
            changes = statistics.fold(present)
            collections = statistics.collections.read_value()
            given = given._replace(
                totals=[total.read_value() for total in statistics.totals],
                divisor=statistics.divisor(collections),
                identity=statistics.identity_of_matrices(collections, None if missed is None else missed[0]),
                status=_drifted(given.status, changes),
            )
            if on_device:
                given = _solve_on_device(options, layout, given, present)
            else:
                given = _send_to_host(options, self.host, given, of_owners(present, layout.owners))
            if replaced is not None:
                replaced(given.roots, present)
            for variable, root in zip(self.roots, given.roots, strict=True):
                variable.assign(root)
            self.status.assign(self.blocks.gather_status(given.status))
            self.counters.assign(self.blocks.add_counts(before, given.counters))
            self.exchanged_at.assign(step)

        when(exchange_due(options, step, self.exchanged_at.read_value()), exchange)

    def report(self, step: int) -> dict[str, float | int]:
        """Returns layers, those that use Shampoo already, ``COUNTERS``, and staleness and residual of roots in use."""
        status = dict(zip(STATUS, self.status.numpy(), strict=True))
        in_use = status["certified"] > 0
        staleness = step - status["root_step"][in_use]
        _, (smallest, largest, condition, _) = self._spectra()
        owners = self.blocks.whole.owners
        preconditioned = set(owners.tolist())
        return {
            "layers": len(preconditioned),
            "layers_ready": len(preconditioned - set(owners[~in_use].tolist())),
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
        """Returns the spectra of statistics by the names of their tensors, which several may share (PSO fig. 6, 7)."""
        owners, numbers = self._spectra()
        found = {}
        for name in dict.fromkeys(names):
            own = [place for place, owner in enumerate(owners) if names[owner] == name]
            if own:
                smallest, *others = numbers[:, own]
                found[name] = Spectrum(float(smallest.min()), *(float(one.max()) for one in others))
        return found

    def _spectra(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tensors [K] of matrices with a root, and [4, K] what `Spectrum` has of each matrix, float64.

        Without those whose eigenvalues nobody computed, or are beyond the working precision.
        """
        status = dict(zip(STATUS, self.status.numpy().astype(np.float64), strict=True))
        known = (status["certified"] > 0) & (status["largest"] > 0) & (status["largest"] < np.inf)
        smallest, largest = status["smallest"][known], status["largest"][known]
        # A matrix whose smallest eigenvalue is only rounding is singular; its condition stays a number.
        condition = largest / np.maximum(smallest, np.finfo(np.float64).eps * largest)
        return self.blocks.whole.owners[known], np.stack(
            [smallest, largest, condition, status["condition"][known]]
        )


def _drifted(status: tf.Tensor, changes: tf.Tensor) -> tf.Tensor:
    """Adds the norms of changes [M] to the drift."""
    # Chosen, not multiplied: a change that is not finite would spoil the other rows.
    added = [changes if name == "drift" else tf.zeros_like(changes) for name in STATUS]
    return status + tf.cast(tf.stack(added), status.dtype)


def _send_to_host(options: ShampooOptions, host: HostPipeline, given: Given, present: Present) -> Given:
    """Sends statistics of the matrices present; where their roots are waited for, brings these into use."""
    waits = not options.roots.asynchronous
    patient = waits or not options.roots.identity

    def send(step: int, exchanged_at: int, found: Round, early: bool) -> None:
        host.send(step, found, present)
        if waits or early or (exchanged_at < 0 and patient):
            host.collect(step, found)

    return _call_host(send, host, given, is_early(options, given.step))


def _call_host(function: Callable[..., None], host: HostPipeline, given: Given, *more: tf.Tensor) -> Given:
    """Calls a function of step, last exchange and a ``Round`` from the graph; returns what it changed."""
    count = len(host.factors)

    def call(*given: np.ndarray) -> list[np.ndarray]:
        step, exchanged_at, divisor, identity, status, counters, *arrays = given
        found = Round(
            totals=[
                unpack_arrays(packed, factor.size)
                for packed, factor in zip(arrays[:count], host.factors, strict=True)
            ],
            roots=[np.array(root) for root in arrays[count : 2 * count]],
            status=np.array(status),
            counters=np.array(counters),
            divisor=float(divisor),
            identity=np.array(identity),
        )
        function(int(step), int(exchanged_at), found, *arrays[2 * count :])
        return [found.status, found.counters, *found.roots]

    step, exchanged_at, totals, divisor, identity, status, counters, roots = given
    written = [status.dtype, tf.int64, *(root.dtype for root in roots)]
    arrays = [step, exchanged_at, divisor, identity, status, counters, *totals, *roots, *more]
    found = tf.numpy_function(call, arrays, written)
    return given._replace(
        status=tf.reshape(found[0], status.shape),
        counters=tf.reshape(found[1], counters.shape),
        roots=[tf.reshape(new, root.shape) for new, root in zip(found[2:], roots, strict=True)],
    )


def _solve_on_device(options: ShampooOptions, layout: ShampooLayout, given: Given, present: Present) -> Given:
    """Computes roots by operations of the graph, and brings them into use at once (PSO App. E)."""
    certified = given.status[STATUS.index("certified")]
    absolute = options.roots.damping == "absolute"
    residuals, nonzero, roots = [], [], []
    for factor, total, root in zip(layout.factors, given.totals, given.roots, strict=True):
        whole = unpack(total, factor.size)
        identity = given.identity
        if identity.shape.rank:
            identity = identity[factor.matrices, tf.newaxis, tf.newaxis]
        begun = (whole + identity * tf.eye(factor.size, dtype=tf.float64)) / given.divisor
        computed, residual = inverse_roots(begun, factor.order, options.epsilon, absolute=absolute)
        computed = tf.cast(computed, root.dtype)
        residual = tf.where(tf.reduce_all(tf.math.is_finite(computed), axis=[1, 2]), residual, np.inf)
        is_good = (residual <= TOLERANCE)[:, tf.newaxis, tf.newaxis]
        here, kept = of_owners(present, factor.owners), root
        if options.roots.identity and here is not None:
            has_root = certified[factor.matrices, tf.newaxis, tf.newaxis] > 0
            kept = tf.where(has_root, kept, tf.eye(factor.size, dtype=kept.dtype))
        roots.append(keep(tf.where(is_good, computed, root), kept, here))
        residuals.append(residual)
        nonzero.append(tf.reduce_any(begun != 0, axis=[1, 2]) | options.damps_zero)
    here = of_owners(present, layout.owners)
    residual, sent = tf.concat(residuals, axis=0), tf.concat(nonzero, axis=0)
    sent = keep(sent, tf.zeros_like(sent), here)
    good = sent & (residual <= TOLERANCE)
    now = dict(zip(STATUS, tf.unstack(given.status, num=len(STATUS)), strict=True))
    # The iteration computes no eigenvalues, and those of an earlier root are not of these statistics.
    new = {
        "certified": 1,
        "drift": 0,
        "residual": residual,
        "root_step": given.step,
        "smallest": 0,
        "largest": 0,
    }
    dtype = given.status.dtype
    now |= {name: tf.where(good, tf.cast(value, dtype), now[name]) for name, value in new.items()}
    if options.roots.identity:
        now["certified"] = keep(now["certified"], tf.ones_like(now["certified"]), here)
    done = tf.math.count_nonzero(good)
    counted = {"refreshed": done, "device": done, "failed": tf.math.count_nonzero(sent) - done}
    counts = tf.stack([counted.get(name, tf.zeros([], tf.int64)) for name in COUNTERS])
    status = tf.stack([now[name] for name in STATUS])
    return given._replace(status=status, counters=given.counters + counts, roots=roots)
