"""The exchange of statistics for roots: at the start step, then ever less often, at last every tau1 steps.

First the roots of the statistics that were sent at the last exchange come into use, then the window of statistics
is folded into the totals, then these are sent: between two exchanges the totals stay as they were sent, from
which a restart computes roots in flight again. The first exchange, the early ones, and every one without
``asynchronous`` wait for their own roots.
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from ctr.optim import statistics
from ctr.optim.graph_roots import inverse_roots
from ctr.optim.host import Exchange, HostPipeline
from ctr.optim.options import ShampooOptions
from ctr.optim.roots import TOLERANCE, whole_order
from ctr.optim.schedule import exchange_due, is_early
from ctr.optim.state import COUNTERS, STATUS, ShampooLayout, ShampooState


def when(condition: tf.Tensor | bool, action: Callable[[], None]) -> None:
    """Runs an action for its effects if a condition holds, in a graph or outside."""
    if condition is True:
        action()
    elif condition is not False:

        def act() -> tf.Tensor:
            action()
            return tf.constant(True)

        tf.cond(condition, act, lambda: tf.constant(False))


def due(options: ShampooOptions, layout: ShampooLayout, state: ShampooState) -> tf.Tensor | bool:
    """Whether an exchange is due, bool scalar."""
    if not layout.factors:
        return False
    return exchange_due(options, state.step.read_value(), state.exchanged_at.read_value())


def with_host(
    options: ShampooOptions, layout: ShampooLayout, state: ShampooState, host: HostPipeline
) -> None:
    """Exchanges if it is due, with worker threads; not inside a function that XLA compiles."""
    written = [tf.float64, tf.int64, *(state.dtype for _ in layout.factors)]

    def collect(correction: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
        _, exchanged_at, exchange = _unpack(layout, correction, arrays)
        host.collect(exchanged_at, exchange)
        return [exchange.status, exchange.counters, *exchange.roots]

    def send(early: np.ndarray, correction: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
        step, exchanged_at, exchange = _unpack(layout, correction, arrays)
        host.send(step, exchange)
        if exchanged_at < 0 or early or not options.asynchronous:
            host.collect(step, exchange)
        return [exchange.status, exchange.counters, *exchange.roots]

    def act() -> None:
        # In flight is what was sent before the present window.
        sent = statistics.bias_correction(options.beta2, state.collections - state.window_collections)
        _write(state, tf.numpy_function(collect, [sent, *_read(state)], written))
        correction = _fold(options, state)
        early = is_early(options, state.step.read_value())
        _write(state, tf.numpy_function(send, [early, correction, *_read(state)], written))
        state.exchanged_at.assign(state.step)

    when(due(options, layout, state), act)


def on_device(options: ShampooOptions, layout: ShampooLayout, state: ShampooState) -> None:
    """Computes roots if it is due, by operations of the graph, and at once (PSO App. E).

    Raises:
        ValueError: the options ask for roots that the coupled iteration does not give.
    """
    for factor in layout.factors:
        if whole_order(factor.exponent) is None:
            raise ValueError(
                f"exponent_multiplier {options.exponent_multiplier} requires roots of order "
                f"{1.0 / factor.exponent:g}, which a step compiled by XLA cannot compute; train with "
                "callbacks=[ShampooCallback()], which has them computed on the host, or without jit_compile"
            )
    when(due(options, layout, state), lambda: _compute_on_device(options, layout, state))


def _read(state: ShampooState) -> list[tf.Tensor]:
    variables = [state.step, state.exchanged_at, state.status, state.counters, *state.totals, *state.roots]
    return [variable.read_value() for variable in variables]


def _write(state: ShampooState, values: Sequence[tf.Tensor]) -> None:
    for variable, value in zip([state.status, state.counters, *state.roots], values, strict=True):
        variable.assign(tf.reshape(value, variable.shape))


def _unpack(
    layout: ShampooLayout, correction: np.ndarray, arrays: Sequence[np.ndarray]
) -> tuple[int, int, Exchange]:
    step, exchanged_at, status, counters, *matrices = arrays
    count = len(layout.factors)
    exchange = Exchange(
        totals=list(matrices[:count]),
        roots=[np.array(root) for root in matrices[count:]],
        status=np.array(status),
        counters=np.array(counters),
        correction=float(correction),
    )
    return int(step), int(exchanged_at), exchange


def _fold(options: ShampooOptions, state: ShampooState) -> tf.Tensor:
    """Windows into totals, what that changed into the drift; returns what totals are to be divided by."""
    beta2 = options.beta2
    decay = tf.pow(tf.constant(beta2, tf.float64), tf.cast(state.window_collections, tf.float64))
    changes = [
        statistics.fold(total, window, decay)
        for total, window in zip(state.totals, state.windows, strict=True)
    ]
    row = tf.one_hot(STATUS.index("drift"), len(STATUS), on_value=True, off_value=False)[:, tf.newaxis]
    # Chosen, not multiplied: a change that is not finite would spoil the other rows.
    change = tf.concat(changes, axis=0)[tf.newaxis]
    state.status.assign_add(tf.where(row, change, tf.zeros_like(change)))
    state.window_collections.assign(0)
    return statistics.bias_correction(beta2, state.collections)


def _compute_on_device(options: ShampooOptions, layout: ShampooLayout, state: ShampooState) -> None:
    correction = _fold(options, state)
    residuals, nonzero = [], []
    for factor, total, root in zip(layout.factors, state.totals, state.roots, strict=True):
        computed, residual = inverse_roots(total / correction, round(1.0 / factor.exponent), options.epsilon)
        computed = tf.cast(computed, state.dtype)
        residual = tf.where(tf.reduce_all(tf.math.is_finite(computed), axis=[1, 2]), residual, np.inf)
        certified = (residual <= TOLERANCE)[:, tf.newaxis, tf.newaxis]
        root.assign(tf.where(certified, computed, root))
        residuals.append(residual)
        nonzero.append(tf.reduce_any(total != 0, axis=[1, 2]))
    residual, sent = tf.concat(residuals, axis=0), tf.concat(nonzero, axis=0)
    good = sent & (residual <= TOLERANCE)
    now = dict(zip(STATUS, tf.unstack(state.status, num=len(STATUS)), strict=True))
    new = {
        "certified": tf.ones_like(residual),
        "drift": tf.zeros_like(residual),
        "residual": residual,
        "root_step": tf.fill(tf.shape(residual), tf.cast(state.step, tf.float64)),
    }
    now |= {name: tf.where(good, value, now[name]) for name, value in new.items()}
    state.status.assign(tf.stack([now[name] for name in STATUS]))
    done = tf.math.count_nonzero(good)
    counted = {"refreshed": done, "device": done, "failed": tf.math.count_nonzero(sent) - done}
    state.counters.assign_add(tf.stack([counted.get(name, tf.zeros([], tf.int64)) for name in COUNTERS]))
    state.exchanged_at.assign(state.step)
