"""Exchanges between workers in a step: sums, gathered tensors, and messages to each, by TensorFlow's collectives.

All workers make the same calls in the same order. The order of a sum depends only on the number of workers: all
get the same bits, in every run. For a single process nothing is added to the graph.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from ctr.io.errors import INPUT, InputError, exit_status
from ctr.workers.cluster import Cluster, WorkerLostError
from ctr.workers.parts import Deal
from ctr.workers.watch import TimeLimit, find_lost

log = logging.getLogger(__name__)

T = TypeVar("T")

_GROUP = 1
_PATIENCE_SECONDS = 3600.0
# A key is the number of a call followed by the dynamic size, since it serves tensors of only one shape.
_SIZES = 1 << 22
_MAX_CALLS = (2**31 - 1) // _SIZES
# Errors of exchanges when a worker is gone, or does not take part in time.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.CancelledError,
)


class Workers:
    """Workers that train together, as seen by one of them; a single process has no ``names``.

    ``timeout_seconds``: a step fails after waiting this long for a worker; 0: never. Between two steps, and
    in the first ones, which are compiled, others may take longer (``patience``).
    """

    lost_errors: tuple[type[Exception], ...] = _LOST

    def __init__(self, cluster: Cluster | None = None, timeout: float = 0.0) -> None:
        self.rank = 0 if cluster is None else cluster.rank
        self.size = 1 if cluster is None else cluster.size
        addresses = () if cluster is None else cluster.addresses
        self.names = tuple(f"worker {rank} ({address})" for rank, address in enumerate(addresses))
        self.timeout_seconds = timeout
        self._device = f"/job:worker/replica:0/task:{self.rank}/device:CPU:0"
        self._calls = 0
        self._limit = TimeLimit()

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    @property
    def deal(self) -> Deal:
        return Deal(self.rank, self.size)

    @property
    def patience(self) -> float:
        """Seconds that others may take outside of steps: to compile, to check rows, to write; 0: unlimited."""
        return max(self.timeout_seconds, _PATIENCE_SECONDS) if self.timeout_seconds else 0.0

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums floating-point tensors of one dtype over all workers; their shapes may differ from call to call."""
        if self.size == 1 or not tensors:
            return list(tensors)
        # One message instead of many: each has its latency.
        flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
        if flat.shape.is_fully_defined():
            shapes = [tensor.shape.as_list() for tensor in tensors]
            counts = [tensor.shape.num_elements() for tensor in tensors]
            parts = tf.split(self._summed(flat, self._key(flat)), counts)
        else:
            shapes = [tf.shape(tensor) for tensor in tensors]
            sizes = tf.stack([tf.size(tensor) for tensor in tensors])
            padding, number = _up_to_few(tf.size(flat))
            total = self._summed(tf.pad(flat, [[0, padding]]), self._next_key() + number)
            parts = tf.split(total[: tf.size(flat)], sizes, num=len(tensors))
        results = zip(parts, shapes, tensors, strict=True)
        return [tf.ensure_shape(tf.reshape(part, shape), of.shape) for part, shape, of in results]

    def total(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums like ``all_reduce``, with a gradient that is correct if all workers compute the same from the sum."""
        if self.size == 1:
            return list(tensors)

        @tf.custom_gradient
        def summed(*parts: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., tuple[tf.Tensor, ...]]]:
            return self.all_reduce(parts), lambda *upstream: upstream

        sums = summed(*tensors)
        return list(sums) if isinstance(sums, list | tuple) else [sums]

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Concatenates the workers' tensors, all of the same shape [N, ...], to [W * N, ...]."""
        if self.size == 1:
            return tensor
        gathered = self._gathered(tensor, self._key(tensor))
        first = None if tensor.shape[0] is None else self.size * tensor.shape[0]
        return tf.ensure_shape(gathered, [first, *tensor.shape[1:]])

    def exchange(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sends each worker its part of tensors [W, N, C] of one dtype, C static; returns the parts received."""
        if self.size == 1 or not tensors:
            return list(tensors)
        flat = tf.concat([tf.reshape(tensor, [self.size, -1]) for tensor in tensors], axis=1)
        padding, number = _up_to_few(tf.shape(flat)[1])
        exchanged = self._swapped(tf.pad(flat, [[0, 0], [0, padding]]), self._next_key() + number)
        sizes = tf.stack([tf.size(tensor) // self.size for tensor in tensors])
        parts = tf.split(exchanged[:, : tf.shape(flat)[1]], sizes, axis=1, num=len(tensors))
        results = zip(parts, tensors, strict=True)
        return [tf.ensure_shape(tf.reshape(part, tf.shape(of)), of.shape) for part, of in results]

    def gather_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """Gathers int64 or float32 [N, ...] from each worker into [W, N, ...]. Call only between two steps."""
        if self.size == 1 or not numbers.size:
            return np.repeat(numbers[np.newaxis], self.size, axis=0)
        kind = np.float32 if numbers.dtype == np.float32 else np.int64
        with self.timeout(is_patient=True):
            gathered = self._gather_now(numbers.astype(kind, copy=False).reshape(-1))
        return gathered.reshape(self.size, *numbers.shape)

    def sum_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """Sums int32 [N] over all workers; all sums must fit into int32. Call only between two steps."""
        if self.size == 1 or not len(numbers):
            return numbers
        with self.timeout(is_patient=True):
            return self._sum_now(numbers.astype(np.int32, copy=False))

    def gather_uneven(self, numbers: np.ndarray) -> list[np.ndarray]:
        """Gathers int64 [N], where N may differ, from each worker. Call only between two steps."""
        lengths = self.gather_numbers(np.array([len(numbers)]))[:, 0]
        rows = self.gather_numbers(np.pad(numbers, (0, int(lengths.max()) - len(numbers))))
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]

    def gather_texts(self, text: str) -> list[str]:
        rows = self.gather_uneven(np.frombuffer(text.encode(), np.uint8).astype(np.int64))
        return [row.astype(np.uint8).tobytes().decode() for row in rows]

    def broadcast(self, content: Any) -> Any:
        """Returns the first worker's ``content``, of JSON types, in all workers. Call only between two steps."""
        if self.size == 1:
            return content
        return json.loads(self.gather_texts(json.dumps(content) if self.is_chief else "")[0])

    def once(self, function: Callable[[], T]) -> T:
        """Calls a function in the first worker alone; returns its result, of JSON types, in all workers."""
        if self.size == 1:
            return function()
        with self.raise_if_any_failed():
            content = function() if self.is_chief else None
        result: T = self.broadcast(content)
        return result

    @contextmanager
    def raise_if_any_failed(self) -> Iterator[None]:
        """Raises InputError in all workers if the block raised one in any; the block must not communicate."""
        if self.size == 1:
            yield
            return
        failure: InputError | None = None
        try:
            yield
        except InputError as error:
            failure = error
        # With its exit status: a fault that may pass in one worker may pass in all.
        status = INPUT if failure is None else exit_status(failure)
        texts = self.gather_texts("" if failure is None else f"{status} {failure}")
        if any(texts):
            self.leave()
        if failure is not None:
            raise failure
        for name, text in zip(self.names, texts, strict=True):
            if text:
                code, _, text = text.partition(" ")
                raise InputError(f"{name}: {text or 'failed'}").ending_with(int(code))

    def timeout(self, is_patient: bool) -> AbstractContextManager[None]:
        """Limits how long an exchange in the block waits for others: ``timeout_seconds``, or ``patience``.

        A shorter limit of an enclosing block still holds.
        """
        if self.size == 1:
            return nullcontext()
        return self._limit.of(self.patience if is_patient else self.timeout_seconds)

    @contextmanager
    def noticing_losses(self) -> Iterator[None]:
        """Makes a failing exchange in the block raise WorkerLostError."""
        if self.size == 1:
            yield
            return
        try:
            yield
        except _LOST as error:
            log.info("%s", error)
            lost = find_lost(str(error), self.rank, self.size)
            raise WorkerLostError(self._loss(lost, "which died, hangs or cannot be reached")) from None

    def _loss(self, lost: Sequence[int], how: str) -> str:
        who = ", ".join(self.names[rank] for rank in lost) or "another worker"
        return f"{self.names[self.rank]} has lost {who}, {how}"

    def wait_for_all(self) -> None:
        self.gather_numbers(np.zeros(1, np.int64))

    def leave(self) -> None:
        """Waits until all workers received earlier messages; a worker that exits sooner loses them."""
        try:
            with self.timeout(is_patient=False):
                self.wait_for_all()
        except self.lost_errors as error:
            log.info("left: %s", error)

    def agree(self, texts: Mapping[str, str]) -> None:
        """Raises InputError in all workers, naming the workers with a text that differs from the first worker's."""
        for what, text in texts.items():
            digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), "<i8")
            digests = self.gather_numbers(digest)
            other = [self.names[rank] for rank in range(self.size) if (digests[rank] != digests[0]).any()]
            if other:
                self.leave()
                raise InputError(
                    f"{', '.join(other)}: another {what} than the first worker; all workers must have the same"
                )

    # Between two steps.

    def _gather_now(self, numbers: np.ndarray) -> np.ndarray:
        gathered = np.asarray(self._eager[f"gather {numbers.dtype}"](tf.constant(_padded(numbers))))
        return gathered.reshape(self.size, -1)[:, : len(numbers)]

    def _sum_now(self, numbers: np.ndarray) -> np.ndarray:
        return np.asarray(self._eager["sum int32"](tf.constant(_padded(numbers))))[: len(numbers)]

    @cached_property
    def _eager(self) -> dict[str, Callable[[tf.Tensor], tf.Tensor]]:
        """Functions for use between steps, as collectives run only in graphs; each is traced at its first call."""

        def add(flat: tf.Tensor) -> tf.Tensor:
            return self._summed(flat, self._key(flat))

        def graph(function: Callable[[tf.Tensor], tf.Tensor], dtype: tf.DType) -> Any:
            return tf.function(function, input_signature=[tf.TensorSpec([None], dtype)], autograph=False)

        gathers = {f"gather {dtype.name}": graph(self.all_gather, dtype) for dtype in (tf.int64, tf.float32)}
        return {**gathers, "sum int32": graph(add, tf.int32)}

    # In a step.

    def _summed(self, flat: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        with tf.device(self._device):
            total = tf.raw_ops.CollectiveReduceV2(
                input=flat, instance_key=key, merge_op="Add", final_op="Id", **self._group()
            )
        return tf.ensure_shape(total, flat.shape)

    def _gathered(self, tensor: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        with tf.device(self._device):
            return tf.raw_ops.CollectiveGatherV2(input=tensor, instance_key=key, **self._group())

    def _swapped(self, tensor: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        with tf.device(self._device):
            return tf.raw_ops.CollectiveAllToAllV2(input=tensor, instance_key=key, **self._group())

    def _group(self) -> dict[str, object]:
        return {
            "group_size": self.size,
            "group_key": _GROUP,
            "ordering_token": [],
            "communication_hint": "ring",
            # See TimeLimit.
            "timeout_seconds": 0.0,
        }

    def _key(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the key of a call: by the order of calls, the same in all workers, and the size of the tensor."""
        static = [size for size in tensor.shape if size]
        dynamic = tf.size(tensor) // int(np.prod(static, dtype=np.int64))
        return self._next_key() + tf.math.floormod(dynamic, _SIZES)

    def _next_key(self) -> int:
        self._calls += 1
        if self._calls >= _MAX_CALLS:
            raise RuntimeError("too many different exchanges between workers in one process")
        return self._calls * _SIZES


def _up_to_few(size: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the padding to one of a few sizes, as TensorFlow keeps state for each, and that size's index."""
    bits = tf.reduce_sum(tf.cast(size >= tf.constant([1 << bit for bit in range(31)]), tf.int32))
    step = tf.maximum(256, tf.bitwise.left_shift(1, tf.maximum(bits - 5, 0)))
    count = (size + step - 1) // step
    return count * step - size, 64 * bits + count


def _padded(numbers: np.ndarray) -> np.ndarray:
    """Pads numbers [N] with zeros so that N is one of a few sizes (see ``_up_to_few``)."""
    count = len(numbers)
    step = max(256, 1 << max(count.bit_length() - 5, 0))
    return np.pad(numbers, (0, -count % step))


ALONE = Workers()


# Numbers of all workers, for the state outside the steps.


def gather_dealt(
    group: Workers, read: Callable[[slice], np.ndarray], length: int, piece: int = 1 << 16
) -> np.ndarray:
    """Gathers, in the first worker, an array whose entries are dealt to W workers by rank; empty in the others.

    ``read`` returns a slice of this worker's entries, integers or float32 [N, ...]; ``length`` is the
    whole array's; each message has ``piece`` entries of each worker.
    """
    held, most = group.deal.count(length), -(-length // group.size)
    if group.size == 1:
        return read(slice(held))
    none = read(slice(0, 0))
    whole = np.zeros((length if group.rank == 0 else 0, *none.shape[1:]), none.dtype)
    for begin in range(0, most, piece):
        # Not all workers have a last entry.
        part = np.zeros((min(piece, most - begin), *none.shape[1:]), none.dtype)
        end = min(begin + piece, held)
        part[: end - begin] = read(slice(begin, end))
        together = group.gather_numbers(part)
        if group.rank == 0:
            at = whole[begin * group.size : (begin + len(part)) * group.size]
            at[:] = together.swapaxes(0, 1).reshape(-1, *none.shape[1:])[: len(at)]
    return whole
