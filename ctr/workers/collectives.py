"""What workers exchange in a step: sums, gathered parts, and parts for each other, by TensorFlow's collectives.

All workers run the same program, so that they make the same calls in the same order. Sums go in an order that depends
on the number of workers alone: all of them have the same bits, in every run.

For a process alone each function returns what it was given, and nothing is added to the graph.
"""

import hashlib
import logging
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ctr.io.errors import InputError
from ctr.workers.cluster import Cluster

log = logging.getLogger(__name__)

_GROUP = 1
# The number of a call, and behind it the size that is not static: a key serves tensors of one shape alone.
_SIZES = 1 << 22
_MAX_CALLS = (2**31 - 1) // _SIZES


class Workers:
    """The workers that train together, as one of them sees them.

    Attributes:
        rank: the number of this one.
        size: how many there are.
        addresses: HOST:PORT of each; none for a process alone.
    """

    def __init__(self, cluster: Cluster | None = None, timeout: float = 0.0) -> None:
        """Describes a group; ``join`` makes one of processes.

        Args:
            timeout: seconds after which an exchange that a worker does not take part in fails; 0: never.
        """
        self.rank = 0 if cluster is None else cluster.rank
        self.size = 1 if cluster is None else cluster.size
        self.addresses = () if cluster is None else cluster.addresses
        self._timeout = timeout
        self._device = f"/job:worker/replica:0/task:{self.rank}/device:CPU:0"
        self._calls = 0

    @property
    def is_chief(self) -> bool:
        """Whether this one writes what all have in common."""
        return self.rank == 0

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The sums over the workers, element by element, of floating-point tensors of static shapes and one dtype."""
        if self.size == 1 or not tensors:
            return list(tensors)
        shapes = [tensor.shape for tensor in tensors]
        # One message instead of many: each has its latency.
        flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
        with tf.device(self._device):
            total = tf.raw_ops.CollectiveReduceV2(
                input=flat,
                instance_key=self._key(flat),
                merge_op="Add",
                final_op="Id",
                **self._group(),
            )
        total = tf.ensure_shape(total, flat.shape)
        parts = tf.split(total, [shape.num_elements() for shape in shapes])
        return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensors of all workers, which have one shape [N, ...], behind each other: [W * N, ...]."""
        if self.size == 1:
            return tensor
        with tf.device(self._device):
            gathered = tf.raw_ops.CollectiveGatherV2(
                input=tensor, instance_key=self._key(tensor), **self._group()
            )
        first = None if tensor.shape[0] is None else self.size * tensor.shape[0]
        return tf.ensure_shape(gathered, [first, *tensor.shape[1:]])

    def all_to_all(self, tensor: tf.Tensor) -> tf.Tensor:
        """Gives each worker its part of this one's tensor.

        Args:
            tensor: [W, ...], for each worker what it is to have; of one shape in all workers.

        Returns:
            [W, ...], from each worker what this one is to have.
        """
        if self.size == 1:
            return tensor
        with tf.device(self._device):
            exchanged = tf.raw_ops.CollectiveAllToAllV2(
                input=tensor, instance_key=self._key(tensor), **self._group()
            )
        return tf.ensure_shape(exchanged, tensor.shape)

    def gather_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """The numbers of all workers, each having given as many, int64 [N]: int64 [W, N]; between two steps."""
        if self.size == 1:
            return numbers[np.newaxis]
        # Collectives run on graphs alone; TensorFlow traces this one once for each N.
        gathered = self._gather_eagerly(tf.constant(numbers, tf.int64))
        return np.asarray(gathered).reshape(self.size, len(numbers))

    def wait_for_all(self) -> None:
        """Returns when all workers have called it; between two steps."""
        self.gather_numbers(np.zeros(1, np.int64))

    def agree(self, what: str, text: str) -> None:
        """Checks that all workers have the same text; between two steps.

        Raises:
            InputError: some have another one than the first; in all workers, with the addresses of those.
        """
        digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), "<i8")
        found = self.gather_numbers(digest)
        other = [self.addresses[rank] for rank in range(self.size) if (found[rank] != found[0]).any()]
        if other:
            raise InputError(
                f"workers: {', '.join(other)}: another {what} than the first worker, {self.addresses[0]}; "
                "all workers must have the same"
            )

    def _gather_eagerly(self, numbers: tf.Tensor) -> tf.Tensor:
        if not hasattr(self, "_gather_function"):
            self._gather_function = tf.function(
                self.all_gather, input_signature=[tf.TensorSpec([None], tf.int64)], autograph=False
            )
        return self._gather_function(numbers)

    def _group(self) -> dict[str, object]:
        return {
            "group_size": self.size,
            "group_key": _GROUP,
            "ordering_token": [],
            "communication_hint": "ring",
            "timeout_seconds": self._timeout,
        }

    def _key(self, tensor: tf.Tensor) -> tf.Tensor:
        """The key of a call: it depends on the order of calls, the same in all workers, and on what is exchanged."""
        self._calls += 1
        if self._calls >= _MAX_CALLS:
            raise RuntimeError("too many different exchanges between workers in one process")
        known = [size for size in tensor.shape if size]
        unknown = tf.size(tensor) // int(np.prod(known, dtype=np.int64))
        return self._calls * _SIZES + tf.math.floormod(unknown, _SIZES)


ALONE = Workers()
"""A process that trains alone."""


def join(cluster: Cluster, timeout: float) -> Workers:
    """Joins the other workers of a cluster; must be called before TensorFlow computes anything.

    Args:
        timeout: seconds for others to come, and later for each exchange; then it fails.
    """
    if cluster.size == 1:
        return ALONE
    log.info("worker %d of %d: joining %s", cluster.rank, cluster.size, ", ".join(cluster.addresses))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
        task_type="worker",
        task_id=cluster.rank,
        rpc_layer="grpc",
    )
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    # It starts this worker's server, and watches the others: where one is gone, exchanges fail.
    tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
    workers = Workers(cluster, timeout)
    workers.wait_for_all()
    return workers
