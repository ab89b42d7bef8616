"""Chips of one process, which make each step together: those of a TPU's host, or logical devices of a CPU.

Each has a part of the rows of every batch (``ctr.training.division``), and of divided tables
(``ctr.workers.row_lines``); of all other state it has all, and makes the same update of it. Between two steps the
process reads the state of the first chip, and sets that of all.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from ctr.io.errors import InputError
from ctr.workers.collectives import Workers


class Chips(Workers):
    """Chips of a strategy, as the program that all of them run sees them."""

    is_here = True

    def __init__(self, strategy: tf.distribute.Strategy, device: str) -> None:
        super().__init__()
        self._strategy, self.device = strategy, device
        self.size = strategy.num_replicas_in_sync

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Lets each chip have its own of every variable made in the block; totals, in no step, stay on the host."""
        on_host: list[Callable[..., tf.Variable]] = []

        def keep(next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
            on_host.append(next_creator)
            return next_creator(**options)

        with tf.variable_creator_scope(keep):
            tf.Variable(0.0)

        def create(next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
            if (options.get("name") or "").endswith("/total"):
                return on_host[0](**options)
            # A chip sets its own without a word to the others, which set theirs to the same.
            options["synchronization"] = tf.VariableSynchronization.ON_READ
            options["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
            return next_creator(**options)

        with self._strategy.scope(), tf.variable_creator_scope(create):
            yield

    def running(
        self, function: Callable[..., Any], of_all: frozenset[str], signature: Sequence[Any]
    ) -> Callable[..., Any]:
        """Compiles a step that all chips make together; its arguments have a part for each chip, in a first dimension.

        All chips are given scalars, and arguments of a name ``of_all``, as they are; ``function`` returns the same on
        all.
        """

        def own(arguments: Any, number: tf.Tensor) -> Any:
            if isinstance(arguments, Mapping):
                return {
                    name: part if name in of_all or not part.shape.rank else part[number]
                    for name, part in arguments.items()
                }
            return [own(part, number) for part in arguments]

        def on_chip(*arguments: Any) -> Any:
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            return function(*(own(part, number) for part in arguments))

        def step(*arguments: Any) -> Any:
            results = self._strategy.run(on_chip, args=arguments)
            local = self._strategy.experimental_local_results
            return tf.nest.map_structure(lambda result: local(result)[0], results)

        def of_chips(arguments: Any) -> Any:
            if isinstance(arguments, Mapping):
                return {
                    name: spec
                    if name in of_all or not spec.shape.rank
                    else tf.TensorSpec([self.size, *spec.shape], spec.dtype)
                    for name, spec in arguments.items()
                }
            return [of_chips(part) for part in arguments]

        return tf.function(step, input_signature=[of_chips(part) for part in signature], autograph=False)

    @property
    def number(self) -> tf.Tensor:
        return tf.distribute.get_replica_context().replica_id_in_sync_group

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        if self.size == 1:
            return list(tensors)
        context = tf.distribute.get_replica_context()
        return [context.all_reduce(tf.distribute.ReduceOp.SUM, tensor) for tensor in tensors]

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        if self.size == 1:
            return tensor
        return tf.distribute.get_replica_context().all_gather(tensor, axis=0)


def open_chips(device: str) -> Chips:
    """Finds the chips of ``tpu`` or ``cpu:N``, before TensorFlow computes anything. Raises InputError."""
    kind, _, count = device.partition(":")
    if device == "tpu":
        return Chips(_tpu_strategy(), device)
    if kind != "cpu" or not count.isdecimal() or not 1 <= int(count) <= 64:
        raise InputError(f"--device {device}: allowed: tpu, or cpu:N with N logical devices, 1 to 64")
    (processor, *_) = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration()] * int(count)
    tf.config.set_logical_device_configuration(processor, parts)
    names = [part.name for part in tf.config.list_logical_devices("CPU")]
    return Chips(tf.distribute.MirroredStrategy(names), device)


def _tpu_strategy() -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        # An error in a graph says where it was made, then what happened, then at which node.
        said = re.search(r"(.+)\s+\[\[\{\{node", str(error))
        reason = (said[1] if said else str(error)).strip().partition(". ")[0].splitlines()
        raise InputError(
            f"--device tpu: no TPU can be used here: {reason[0] if reason else type(error).__name__}; it takes a TPU's "
            "host and a build of TensorFlow for it (tensorflow-tpu); allowed here: cpu:N"
        ) from None
    return tf.distribute.TPUStrategy(resolver)
