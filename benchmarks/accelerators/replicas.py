"""One learning step for several chips: each has a part of the rows of every batch, and all of the state.

All chips run the same program, in which the sums over the batch are all-reduces. It is what several processes do with
mirrored tables (``ctr.workers``), with two differences: each chip returns the logits of its own rows, and each makes
all of Shampoo's update itself. Each finds by itself whether all is
finite: what it looks at are sums, the same for all.
"""

from collections.abc import Sequence

import tensorflow as tf

from ctr.workers.collectives import Workers

_GROUP = 1


class Replicas(Workers):
    """The chips that run one program; an exchange between them is part of it, none goes through the host."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self._number = 0

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [self._sum_of(tensor) for tensor in tensors]

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        return tensor

    def _sum_of(self, tensor: tf.Tensor) -> tf.Tensor:
        self._number += 1
        total = tf.raw_ops.CollectiveReduceV2(
            input=tensor,
            group_size=self.size,
            group_key=_GROUP,
            instance_key=self._number,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
        )
        return tf.ensure_shape(total, tensor.shape)
