"""One learning step for several chips: each has a part of the rows of every batch, and a part of large tables.

All chips run the same program, in which the sums over the batch are all-reduces, and so are the rows of tables that are
divided. It is what the chips of a process do (``ctr.workers.chips``), with two differences: each chip returns the
logits of its own rows, and each finds by itself whether all is finite: what it looks at are sums, the same for all.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ctr.workers.collectives import Workers

_GROUP = 1


class Replicas(Workers):
    """The chips that run one program; an exchange between them is part of it, none goes through the host.

    Attributes:
        chip: int32 [1], of each chip its number: a parameter of the program.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.chip = tf.Variable([0], trainable=False, dtype=tf.int32)
        self._number = 0

    @property
    def number(self) -> tf.Tensor:
        return self.chip.read_value()[0]

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [self._sum_of(tensor) for tensor in tensors]

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        return tensor

    def sum_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the numbers: between two steps there is one process, which has all."""
        return numbers

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
