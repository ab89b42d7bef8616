"""The exchange of statistics for roots between two steps, where the steps run on an accelerator.

It does what ``ctr.optim.exchange.with_host`` does, and moves as little as it can: of each window, float32, the triangle
that says it all, from the device; of each new root the same, to the device. Totals, in float64, which a TPU only
emulates, stay on the host.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ctr.optim import statistics
from ctr.optim.exchange import due
from ctr.optim.host import Exchange, HostPipeline
from ctr.optim.options import ShampooOptions
from ctr.optim.row_variables import set_rows
from ctr.optim.schedule import is_early
from ctr.optim.state import STATUS, ShampooLayout, ShampooState, create_variable
from ctr.optim.triangles import pack_arrays, unpack, unpack_arrays

_DRIFT, _ROOT_STEP = STATUS.index("drift"), STATUS.index("root_step")


def create_on_host(name: str, shape: Sequence[int], dtype: tf.DType, value: float) -> tf.Variable:
    """Creates a variable of the state: totals in the host's memory, everything else where the step runs."""
    if not name.endswith("/total"):
        return create_variable(name, shape, dtype, value)
    with tf.device("CPU:0"):
        return create_variable(name, shape, dtype, value)


def between_steps(
    options: ShampooOptions, layout: ShampooLayout, state: ShampooState, host: HostPipeline
) -> int:
    """Exchanges if it is due; returns the bytes of statistics and roots that went between device and host."""
    if not bool(due(options, layout, state)):
        return 0
    step, exchanged_at = int(state.step.numpy()), int(state.exchanged_at.numpy())
    sent = int(state.collections.numpy()) - int(state.window_collections.numpy())
    exchange = Exchange(
        totals=[
            unpack_arrays(total.numpy(), factor.size)
            for total, factor in zip(state.totals, layout.factors, strict=True)
        ],
        roots=[np.array(root.numpy()) for root in state.roots]
        if options.solver == "coupled"
        else _blank(state),
        status=np.array(state.status.numpy()),
        counters=np.array(state.counters.numpy()),
        correction=_correction(options, sent),
        identity=_identity(options, sent),
    )
    before = exchange.status[_ROOT_STEP].copy()
    host.collect(exchanged_at, exchange)
    moved = _fold(options, layout, state, exchange)
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


def _blank(state: ShampooState) -> list[np.ndarray]:
    return [np.zeros(root.shape, root.dtype.as_numpy_dtype) for root in state.roots]


def _correction(options: ShampooOptions, collections: int) -> float:
    return float(statistics.corrected_by(options, tf.constant(collections)))


def _identity(options: ShampooOptions, collections: int) -> float:
    return float(statistics.initial(options, tf.constant(collections)))


def _fold(options: ShampooOptions, layout: ShampooLayout, state: ShampooState, exchange: Exchange) -> int:
    """Adds the windows to the totals and what that changed to the drift; returns the bytes that came."""
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
    exchange.correction = _correction(options, collections)
    exchange.identity = _identity(options, collections)
    return moved


def _put_roots(layout: ShampooLayout, state: ShampooState, exchange: Exchange, is_new: np.ndarray) -> int:
    """Brings the roots that are new to the device; returns the bytes that went."""
    moved = 0
    for factor, variable, roots in zip(layout.factors, state.roots, exchange.roots, strict=True):
        numbers = np.flatnonzero(is_new[factor.matrices]).astype(np.int32)
        if not len(numbers):
            continue
        packed = pack_arrays(roots[numbers])
        moved += packed.nbytes
        set_rows(variable, numbers, unpack(tf.constant(packed), factor.size))
    return moved
