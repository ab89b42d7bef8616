"""Replicas of a tf.distribute strategy that divide Shampoo's blocks (PT 4.1): their steps, and their state as a whole.

Each block has one owner in each group of replicas (PT 4.1.2), which alone keeps its statistics, roots and element-wise
state; the directions are gathered at each step. The state is in plain variables on the devices of its owners. Keras
and tf.train.Checkpoint see it as a ``WholeVariable`` for each array that one replica would have: a checkpoint does
not depend on the number of replicas.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.checkpoint import tensor_callable
from tensorflow.python.ops import resource_variable_ops

from ctr.optim.gradients import Gradient
from ctr.optim.shampoo.optimizer import ShampooCore
from ctr.optim.variables import Create, Value, filled
from ctr.workers.parts import Part, reshard, shard

_KEYS = itertools.count(1 << 30)
"""Keys of groups, apart from the keys of TensorFlow and ``ctr.workers``, which count from 1 up."""


class ReplicaGroup:
    """Replicas that divide blocks, as seen by one of them: a ``ctr.optim.shampoo.division.Group``.

    Uses TensorFlow's ring collectives, which require no NCCL, on the device of each replica. They run only in
    graphs. ``calls`` numbers them, in the same order on all replicas.
    """

    def __init__(self, key: int, rank: int, size: int, device: str) -> None:
        self.rank, self.size, self.calls = rank, size, 0
        self._key, self._device = key, device

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Concatenates the tensors of all replicas, of one static shape [N, ...]: [size * N, ...]."""
        if self.size == 1:
            return tensor
        self.calls += 1
        with tf.device(self._device):
            gathered = tf.raw_ops.CollectiveGatherV2(
                input=tensor,
                group_size=self.size,
                group_key=self._key,
                instance_key=self.calls,
                ordering_token=[],
                communication_hint="ring",
                timeout_seconds=0.0,
            )
        return tf.ensure_shape(gathered, [self.size * tensor.shape[0], *tensor.shape[1:]])


class WholeVariable(tf.__internal__.tracking.Trackable):
    """A variable as a single replica would have it, divided among the replicas; for Keras to save and load."""

    def __init__(
        self,
        name: str,
        local: Sequence[tf.Variable],
        groups: Sequence[ReplicaGroup],
        part: Callable[[int], Part | None],
    ) -> None:
        """Takes the variables of this process' replicas; ``part`` returns a member's part by its rank in its group."""
        first = part(0)
        shape = local[0].shape if first is None else first.shape or [first.total, *local[0].shape[1:]]
        self.name, self.shape, self.dtype = name, tf.TensorShape(shape), local[0].dtype
        self._local, self._groups, self._part = list(local), groups, part

    def numpy(self) -> np.ndarray:
        """Returns the whole array. Where it is divided among processes, all of them must call this."""
        parts = self._parts()
        if not parts:
            return np.asarray(self._local[0].numpy())
        gathered = np.split(np.asarray(self._gather()[0]), len(parts))
        return reshard([(part, rows[: len(part.rows)]) for part, rows in zip(parts, gathered, strict=True)])

    def assign(self, value: Any) -> None:
        """Assigns to each replica its part of a whole array. Raises ValueError if the array has another shape."""
        array = np.asarray(value)
        if array.shape != tuple(self.shape):
            raise ValueError(
                f"{self.name} cannot be set to an array {list(array.shape)}; allowed: {list(self.shape)}"
            )
        for variable, group in zip(self._local, self._groups, strict=True):
            part = self._part(group.rank)
            variable.assign(array if part is None else shard(array, part))

    def _parts(self) -> list[Part]:
        """Returns the parts of all members of a group; empty where each has the whole variable."""
        parts = (self._part(rank) for rank in range(self._groups[0].size))
        return [part for part in parts if part is not None]

    @functools.cached_property
    def _gather(self) -> Callable[[], list[tf.Tensor]]:
        most = max(len(part.rows) for part in self._parts())

        def gather(variable: tf.Variable, group: ReplicaGroup) -> tf.Tensor:
            rows = [[0, most - variable.shape[0]], *[[0, 0]] * (len(variable.shape) - 1)]
            return group.all_gather(tf.pad(variable.read_value(), rows))

        # Each in a separate graph: in one, TensorFlow runs one collective after the other.
        single = [
            tf.function(functools.partial(gather, variable, group), autograph=False)
            for variable, group in zip(self._local, self._groups, strict=True)
        ]
        return tf.function(lambda: [call() for call in single], autograph=False)

    # Called by tf.train.Checkpoint; the key is a plain variable's.

    def _serialize_to_tensors(self) -> dict[str, Any]:
        device = tf.DeviceSpec.from_string(self._local[0].device).replace(device_type="CPU", device_index=0)

        def read() -> tf.Tensor:
            return tf.constant(self.numpy())

        return {"VARIABLE_VALUE": tensor_callable.Callable(read, self.dtype, device.to_string())}

    def _restore_from_tensors(self, restored: dict[str, tf.Tensor]) -> None:
        self.assign(restored["VARIABLE_VALUE"].numpy())


Make = Callable[[Sequence[tf.Variable], Create, ReplicaGroup], Any]
"""Makes the optimizer of a replica: from its components of the weights, ``create``, and its group."""


class Replicas:
    """The optimizers of this process' replicas: ``cores``, and the ``variables`` of their state as a whole."""

    def __init__(self, make: Make, weights: Sequence[Any], per_group: int | None) -> None:
        """Builds the optimizers in the strategy's scope; ``per_group`` replicas divide the blocks, by default all.

        Raises:
            ValueError: the number of replicas is not a multiple of ``per_group``.
        """
        strategy = tf.distribute.get_strategy()
        self.count = strategy.num_replicas_in_sync
        size = per_group or self.count
        if self.count % size:
            raise ValueError(
                f"num_replicas_per_group is {size} under a tf.distribute strategy of {self.count} replicas; allowed: "
                "a number that divides that of the replicas, or None"
            )
        local = strategy.experimental_local_results
        numbers = local(
            strategy.experimental_distribute_values_from_function(lambda ctx: ctx.replica_id_in_sync_group)
        )
        keys = [next(_KEYS) for _ in range(self.count // size)]
        self.groups: list[ReplicaGroup] = []
        self.cores: list[Any] = []
        for index, number in enumerate(numbers):
            components = [local(weight)[index] for weight in weights]
            device = components[0].device
            group = ReplicaGroup(keys[number // size], number % size, size, device)
            self.groups.append(group)
            self.cores.append(make(components, functools.partial(_create_on, device), group))
        first = self.cores[0]
        self.variables = [
            WholeVariable(
                name,
                [core.variables[name] for core in self.cores],
                self.groups,
                functools.partial(first.blocks.part, name)
                if isinstance(first, ShampooCore)
                else lambda rank: None,
            )
            for name in first.variables
        ]

    def step(
        self,
        gradients: dict[int, Gradient],
        learning_rate: tf.Tensor | float,
        decayed: Sequence[bool],
        after: Callable[[Callable[[Any], Any]], None],
    ) -> None:
        """Takes a step on all replicas; called in each replica's context, with equal gradients, by weight index.

        ``after`` is called for each local replica with a function that returns its component of a mirrored variable.
        """

        def update(
            strategy: tf.distribute.Strategy, gradients: dict[int, Gradient], learning_rate: tf.Tensor | float
        ) -> None:
            def component(replica: int, value: Any) -> Any:
                values = strategy.experimental_local_results(value)
                return values[replica] if len(values) > 1 else values[0]

            components = [functools.partial(component, replica) for replica in range(len(self.cores))]
            by_replica = [
                {index: pick(gradient) for index, gradient in gradients.items()} for pick in components
            ]
            rates = [
                rate if isinstance(rate, float) else tf.convert_to_tensor(rate)
                for rate in (pick(learning_rate) for pick in components)
            ]
            take = self._take_in_graph if tf.executing_eagerly() else self._take
            take(list(zip(by_replica, rates, strict=True)), tuple(decayed))
            for core, pick in zip(self.cores, components, strict=True):
                with tf.device(core.step.device):
                    after(pick)

        # Where all replicas wait for each other, one of them can move the components of all.
        update = tf.autograph.experimental.do_not_convert(update)
        tf.distribute.get_replica_context().merge_call(update, args=(gradients, learning_rate))

    def _take(
        self, arguments: Sequence[tuple[dict[int, Gradient], tf.Tensor | float]], decayed: Sequence[bool]
    ) -> None:
        calls = max(group.calls for group in self.groups)
        for core, group, (gradients, rate) in zip(self.cores, self.groups, arguments, strict=True):
            group.calls = calls
            with tf.device(core.step.device):
                ordered = [gradients.get(index) for index in range(len(core.weights))]
                # The collectives are in a condition: at the top level of one graph, TensorFlow would run one replica's
                # after another's, which wait for each other.
                core.update_if_finite(ordered, rate, decayed)

    @functools.cached_property
    def _take_in_graph(self) -> Callable[..., None]:
        # Collectives run in graphs alone.
        return tf.function(self._take, autograph=False)


def sum_over_replicas(gradients: Sequence[Gradient]) -> list[Gradient]:
    """Sums gradients over all replicas, called in each replica's context; returns them unchanged if there is one."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return list(gradients)
    present = [gradient for gradient in gradients if gradient is not None]
    summed = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, present) if present else ())
    return [None if gradient is None else next(summed) for gradient in gradients]


def _create_on(device: str, name: str, shape: Sequence[int], dtype: tf.DType, value: Value) -> tf.Variable:
    """Creates a plain variable, which the strategy does not mirror."""
    with tf.device(device):
        initial = filled(shape, dtype, value)
        return resource_variable_ops.ResourceVariable(initial, trainable=False, name=name)
