"""Exchanges of statistics for roots: at the start step, then ever less often, at last every tau1 steps.

First the roots of the statistics that were sent at the last exchange come into use, then the window of statistics is
folded into the totals, then these are sent: between two exchanges the totals stay as they were sent, from which a
restart computes roots in flight again. Without ``asynchronous`` an exchange is a part of its step: it waits for its
own roots, as the first and the early ones always do, and matrices of tensors without a gradient in this step keep
theirs, as in PyTorch's Distributed Shampoo.

Young statistics change fast, and the first steps are the largest. While ``early_growth`` of the steps so far is less
than tau1, exchanges are that far apart; until then statistics are collected at every step, each collection weighing
1 / tau2 of a later one, which stands for tau2 steps.
"""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from ctr.optim.gradients import Present, keep, of_owners, powers
from ctr.optim.rows.variables import set_rows
from ctr.optim.shampoo import statistics
from ctr.optim.shampoo.directions import replace_roots
from ctr.optim.shampoo.division import Division
from ctr.optim.shampoo.graph_roots import inverse_roots
from ctr.optim.shampoo.host import Exchange, HostPipeline
from ctr.optim.shampoo.options import ShampooOptions
from ctr.optim.shampoo.roots import TOLERANCE, whole_order
from ctr.optim.shampoo.state import COUNTERS, STATUS, ShampooLayout, ShampooState, create_variable
from ctr.optim.shampoo.triangles import pack_arrays, unpack, unpack_arrays

_DRIFT, _ROOT_STEP = STATUS.index("drift"), STATUS.index("root_step")


def when(condition: tf.Tensor | bool, action: Callable[[], None]) -> None:
    """Runs an action for its effects if a condition holds, in a graph or outside."""
    if condition is True:
        action()
    elif condition is not False:

        def act() -> tf.Tensor:
            action()
            return tf.constant(True)

        tf.cond(condition, act, lambda: tf.constant(False))


def first_exchange(options: ShampooOptions) -> int:
    """Returns the step of the first exchange."""
    first = options.start_preconditioning_step if options.first_exchange is None else options.first_exchange
    assert first is not None
    return first


def steps_to_next_exchange(options: ShampooOptions, step: tf.Tensor) -> tf.Tensor:
    """Counts the steps from an exchange after ``step`` to the next one; both int64 scalars."""
    frequency = tf.constant(options.precondition_frequency, tf.int64)
    if not options.early_growth:
        return frequency
    early = tf.cast(tf.floor(options.early_growth * tf.cast(step, tf.float64)), tf.int64)
    return tf.clip_by_value(early, 1, frequency)


def is_early(options: ShampooOptions, step: tf.Tensor) -> tf.Tensor:
    """Tells whether exchanges after ``step`` are not yet tau1 apart, bool scalar."""
    return step < _early_steps(options.early_growth, options.precondition_frequency)


@functools.cache
def _early_steps(growth: float, frequency: int) -> int:
    """The first step after which exchanges are tau1 apart: a number, as a TPU has no float64 to find it in."""
    if not growth or frequency == 1:
        return 0
    step = max(0, math.floor(frequency / growth) - 1)
    while math.floor(growth * step) < frequency:
        step += 1
    return step


def exchange_due(options: ShampooOptions, step: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
    """Tells whether an exchange is due at ``step``, or was since ``last``, the step of the last one, or -1."""
    first = tf.constant(first_exchange(options), tf.int64)
    if options.exchange_phase is not None:
        phase, frequency = (
            tf.constant(value, tf.int64) for value in (options.exchange_phase, options.precondition_frequency)
        )
        # The numbers of exchanges up to either step: the one that was due may lie between them.
        regular = (step - phase) // frequency > (last - phase) // frequency
        return (step >= first) & ((last < 0) | regular)
    return step >= tf.where(last < 0, first, last + steps_to_next_exchange(options, last))


def collection_due(options: ShampooOptions, step: tf.Tensor, last: tf.Tensor) -> tf.Tensor | bool:
    """Tells whether statistics are collected at ``step``; ``last`` as of ``exchange_due``."""
    if options.statistics_frequency == 1:
        return True
    # The first exchange has roots only if it has statistics.
    begins = (last < 0) & (step >= tf.constant(first_exchange(options), tf.int64))
    return tf.equal(step % options.statistics_frequency, 0) | begins | is_early(options, step)


def collection_weight(options: ShampooOptions, step: tf.Tensor, dtype: tf.DType) -> tf.Tensor | float:
    """Returns the weight of a collection at ``step`` in summed statistics, scalar; 1 when statistics are decayed."""
    if options.statistics_frequency == 1 or not options.early_growth or options.beta2 < 1.0:
        return 1.0
    weight = tf.constant(1.0 / options.statistics_frequency, dtype)
    return tf.where(is_early(options, step), weight, tf.ones_like(weight))


def create_on_host(name: str, shape: Sequence[int], dtype: tf.DType, value: float) -> tf.Variable:
    """Creates a variable of the state: totals in the host's memory, everything else where the step runs."""
    if not name.endswith("/total"):
        return create_variable(name, shape, dtype, value)
    with tf.device("CPU:0"):
        return create_variable(name, shape, dtype, value)


def due(options: ShampooOptions, layout: ShampooLayout, state: ShampooState) -> tf.Tensor | bool:
    """Tells whether an exchange is due, bool scalar."""
    if not layout.factors:
        return False
    return exchange_due(options, state.step.read_value(), state.exchanged_at.read_value())


def with_host(
    options: ShampooOptions,
    division: Division,
    state: ShampooState,
    host: HostPipeline,
    present: Present = None,
) -> None:
    """Exchanges if it is due, with worker threads; not inside a function that XLA compiles."""
    layout = division.own
    present = None if options.asynchronous else present
    written = [state.dtype, tf.int64, *(state.dtype for _ in layout.factors)]

    def collect(correction: np.ndarray, identity: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
        _, exchanged_at, exchange = _unpack(layout, correction, identity, arrays)
        host.collect(exchanged_at, exchange)
        return [exchange.status, exchange.counters, *exchange.roots]

    def send(
        early: np.ndarray, correction: np.ndarray, identity: np.ndarray, *arrays: np.ndarray
    ) -> list[np.ndarray]:
        step, exchanged_at, exchange = _unpack(layout, correction, identity, arrays)
        host.send(step, exchange, of_owners(present, layout.owners))
        if exchanged_at < 0 or early or not options.asynchronous:
            host.collect(step, exchange)
        return [exchange.status, exchange.counters, *exchange.roots]

    def call(
        function: Callable[..., list[np.ndarray]],
        first: list[tf.Tensor],
        status: tf.Tensor,
        counters: tf.Tensor,
        roots: Sequence[tf.Tensor],
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        read = [state.step, state.exchanged_at, *state.totals]
        step, exchanged_at, *totals = [variable.read_value() for variable in read]
        arrays = [*first, step, exchanged_at, status, counters, *totals, *roots]
        found = tf.numpy_function(function, arrays, written)
        return (
            tf.reshape(found[0], status.shape),
            tf.reshape(found[1], counters.shape),
            [tf.reshape(new, root.shape) for new, root in zip(found[2:], roots, strict=True)],
        )

    def act() -> None:
        before = state.counters.read_value()
        # In flight is what was sent before the present window.
        until = state.collections - state.window_collections
        sent = [
            statistics.corrected_by(options, until),
            _identity(
                options, layout, until, None if state.missed is None else state.missed[0] - state.missed[1]
            ),
        ]
        status = division.take_status(state.status.read_value())
        roots = [root.read_value() for root in state.roots]
        status, counters, roots = call(collect, sent, status, before, roots)
        correction, status = _fold(options, layout, state, status, present)
        early = is_early(options, state.step.read_value())
        identity = _identity(options, layout, state.collections.read_value(), _missed(state, 0))
        status, counters, roots = call(send, [early, correction, identity], status, counters, roots)
        replace_roots(options, layout, state, roots, present)
        _publish(division, state, status, before, counters)

    when(due(options, division.whole, state), act)


def between_steps(
    options: ShampooOptions, layout: ShampooLayout, state: ShampooState, host: HostPipeline
) -> int:
    """Exchanges if it is due, between two steps of an accelerator; returns the bytes between device and host.

    As little as possible moves: the float32 triangle of each window and of each new root. Totals, in float64, which a
    TPU only emulates, stay on the host.
    """
    if not bool(due(options, layout, state)):
        return 0
    step, exchanged_at = int(state.step.numpy()), int(state.exchanged_at.numpy())
    sent = int(state.collections.numpy()) - int(state.window_collections.numpy())
    exchange = Exchange(
        totals=[
            unpack_arrays(total.numpy(), factor.size)
            for total, factor in zip(state.totals, layout.factors, strict=True)
        ],
        # A solver that starts from nothing does not need the roots that are in use.
        roots=[np.array(root.numpy()) for root in state.roots]
        if options.solver == "coupled"
        else [np.zeros(root.shape, root.dtype.as_numpy_dtype) for root in state.roots],
        status=np.array(state.status.numpy()),
        counters=np.array(state.counters.numpy()),
        correction=float(statistics.corrected_by(options, sent)),
        identity=float(statistics.initial(options, sent)),
    )
    before = exchange.status[_ROOT_STEP].copy()
    host.collect(exchanged_at, exchange)
    moved = _fold_on_host(options, layout, state, exchange)
    host.send(step, exchange)
    early = bool(is_early(options, tf.constant(step, tf.int64)))
    if exchanged_at < 0 or early or not options.asynchronous:
        host.collect(step, exchange)
    moved += _put_roots(layout, state, exchange, exchange.status[_ROOT_STEP] != before)
    for variable, total in zip(state.totals, exchange.totals, strict=True):
        variable.assign(pack_arrays(total))
    state.status.assign(exchange.status)
    state.counters.assign(exchange.counters)
    state.exchanged_at.assign(step)
    return moved


def on_device(
    options: ShampooOptions, division: Division, state: ShampooState, present: Present = None
) -> None:
    """Computes roots if it is due, by operations of the graph, and at once (PSO App. E).

    Raises:
        ValueError: the options ask for roots that the coupled iteration does not give.
    """
    for factor in division.whole.factors:
        if factor.basis:
            raise ValueError(
                "eigenvalue_correction requires eigenbases, which a step compiled by XLA cannot compute; train with "
                "callbacks=[ShampooCallback()], which has them computed on the host, or without jit_compile"
            )
        if whole_order(factor.exponent) is None:
            whole = {
                "left_share": options.left_share in (0.0, 0.5, 1.0),
                "exponent_multiplier": options.exponent_multiplier == 1.0,
            }
            causes = [f"{name} {getattr(options, name)}" for name, is_whole in whole.items() if not is_whole]
            raise ValueError(
                f"{' with '.join(causes)} requires roots of order {1.0 / factor.exponent:g}, which a step compiled by "
                "XLA cannot compute; train with callbacks=[ShampooCallback()], which has them computed on the host, "
                "or without jit_compile"
            )
    present = None if options.asynchronous else present
    when(due(options, division.whole, state), lambda: _compute_on_device(options, division, state, present))


def _missed(state: ShampooState, row: int) -> tf.Tensor | None:
    return None if state.missed is None else state.missed[row]


def _identity(
    options: ShampooOptions, layout: ShampooLayout, collections: tf.Tensor, missed: tf.Tensor | None
) -> tf.Tensor:
    """``statistics.initial`` of each matrix, float64 [M], or of all of them, scalar."""
    found = statistics.initial(options, collections, missed)
    return found if missed is None else tf.gather(found, tf.constant(layout.owners, tf.int64))


def _publish(
    division: Division, state: ShampooState, status: tf.Tensor, before: tf.Tensor, counters: tf.Tensor
) -> None:
    state.status.assign(division.gather_status(status))
    state.counters.assign(division.add_counts(before, counters))
    state.exchanged_at.assign(state.step)


def _unpack(
    layout: ShampooLayout, correction: np.ndarray, identity: np.ndarray, arrays: Sequence[np.ndarray]
) -> tuple[int, int, Exchange]:
    step, exchanged_at, status, counters, *matrices = arrays
    count = len(layout.factors)
    exchange = Exchange(
        totals=[
            unpack_arrays(packed, factor.size)
            for packed, factor in zip(matrices[:count], layout.factors, strict=True)
        ],
        roots=[np.array(root) for root in matrices[count:]],
        status=np.array(status),
        counters=np.array(counters),
        correction=float(correction),
        identity=np.array(identity),
    )
    return int(step), int(exchanged_at), exchange


def _fold(
    options: ShampooOptions, layout: ShampooLayout, state: ShampooState, status: tf.Tensor, present: Present
) -> tuple[tf.Tensor, tf.Tensor]:
    """Adds windows to totals, and the change to the drift; returns what totals are to be divided by, and the status."""
    missed, collections = _missed(state, 1), state.window_collections.read_value()
    decays = powers(options.beta2, collections, missed, tf.float64)
    changes = [
        statistics.fold(
            total,
            window,
            factor.size,
            decays
            if missed is None
            else tf.gather(decays, tf.constant(factor.owners, tf.int64))[:, tf.newaxis],
            of_owners(present, factor.owners),
        )
        for factor, total, window in zip(layout.factors, state.totals, state.windows, strict=True)
    ]
    if state.missed is not None and missed is not None:
        left = keep(tf.zeros_like(missed), missed - collections, present)
        state.missed.assign(tf.stack([state.missed[0], left]))
    row = tf.one_hot(STATUS.index("drift"), len(STATUS), on_value=True, off_value=False)[:, tf.newaxis]
    # Chosen, not multiplied: a change that is not finite would spoil the other rows.
    change = tf.concat(changes, axis=0)[tf.newaxis]
    status = status + tf.cast(tf.where(row, change, tf.zeros_like(change)), status.dtype)
    state.window_collections.assign(0)
    return statistics.corrected_by(options, state.collections.read_value()), status


def _fold_on_host(
    options: ShampooOptions, layout: ShampooLayout, state: ShampooState, exchange: Exchange
) -> int:
    decay = options.beta2 ** int(state.window_collections.numpy())
    moved = 0
    for factor, window, total in zip(layout.factors, state.windows, exchange.totals, strict=True):
        packed = window.numpy()
        moved += packed.nbytes
        change = unpack_arrays(packed.astype(np.float64), factor.size)
        change += (decay - 1.0) * total
        total += change
        exchange.status[_DRIFT, factor.matrices] += np.linalg.norm(change, axis=(1, 2))
        window.assign(tf.zeros_like(window))
    state.window_collections.assign(0)
    collections = int(state.collections.numpy())
    exchange.correction = float(statistics.corrected_by(options, collections))
    exchange.identity = float(statistics.initial(options, collections))
    return moved


def _put_roots(layout: ShampooLayout, state: ShampooState, exchange: Exchange, is_new: np.ndarray) -> int:
    moved = 0
    for factor, variable, roots in zip(layout.factors, state.roots, exchange.roots, strict=True):
        numbers = np.flatnonzero(is_new[factor.matrices]).astype(np.int32)
        if not len(numbers):
            continue
        packed = pack_arrays(roots[numbers])
        moved += packed.nbytes
        set_rows(variable, numbers, unpack(tf.constant(packed), factor.size))
    return moved


def _compute_on_device(
    options: ShampooOptions, division: Division, state: ShampooState, present: Present
) -> None:
    layout = division.own
    status = division.take_status(state.status.read_value())
    correction, status = _fold(options, layout, state, status, present)
    identity = _identity(options, layout, state.collections.read_value(), _missed(state, 0))
    residuals, nonzero = [], []
    for factor, total, root in zip(layout.factors, state.totals, state.roots, strict=True):
        whole = unpack(total.read_value(), factor.size)
        own = identity if not identity.shape.rank else identity[factor.matrices, tf.newaxis, tf.newaxis]
        begun = (whole + own * tf.eye(factor.size, dtype=tf.float64)) / correction
        computed, residual = inverse_roots(
            begun, round(1.0 / factor.exponent), options.epsilon, absolute=options.damping == "absolute"
        )
        computed = tf.cast(computed, state.dtype)
        residual = tf.where(tf.reduce_all(tf.math.is_finite(computed), axis=[1, 2]), residual, np.inf)
        certified = (residual <= TOLERANCE)[:, tf.newaxis, tf.newaxis]
        here, kept = of_owners(present, factor.owners), root.read_value()
        if options.has_identities and here is not None:
            has_root = status[STATUS.index("certified")][factor.matrices, tf.newaxis, tf.newaxis] > 0
            kept = tf.where(has_root, kept, tf.eye(factor.size, dtype=kept.dtype))
        root.assign(keep(tf.where(certified, computed, root), kept, here))
        residuals.append(residual)
        nonzero.append(tf.reduce_any(begun != 0, axis=[1, 2]) | options.damps_zero)
    residual, sent = tf.concat(residuals, axis=0), tf.concat(nonzero, axis=0)
    here = of_owners(present, layout.owners)
    sent = keep(sent, tf.zeros_like(sent), here)
    good = sent & (residual <= TOLERANCE)
    now = dict(zip(STATUS, tf.unstack(status, num=len(STATUS)), strict=True))
    new = {
        "certified": tf.ones_like(residual),
        "drift": tf.zeros_like(residual),
        "residual": residual,
        "root_step": tf.fill(tf.shape(residual), tf.cast(state.step, tf.float64)),
    }
    now |= {name: tf.where(good, tf.cast(value, state.dtype), now[name]) for name, value in new.items()}
    if options.has_identities:
        now["certified"] = keep(now["certified"], tf.ones_like(now["certified"]), here)
    done = tf.math.count_nonzero(good)
    counted = {"refreshed": done, "device": done, "failed": tf.math.count_nonzero(sent) - done}
    before = state.counters.read_value()
    counters = before + tf.stack([counted.get(name, tf.zeros([], tf.int64)) for name in COUNTERS])
    _publish(division, state, tf.stack([now[name] for name in STATUS]), before, counters)
