"""Numbers of a batch that the network reads as they are: from the place of ids to the step. NumPy."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ctr.data.number_bits import numbers_of_ids
from ctr.data.reader import Rows
from ctr.models.rows import STATISTICS, TableLayout, all_numbers, number_count
from ctr.objective.targets import Targets


def number_targets(layouts: Sequence[TableLayout], rows: Rows, capacity: int) -> Targets:
    """Makes what the step takes of N rows, beside their targets: float32 [capacity, K], NaN where missing."""
    if not number_count(layouts):
        return {}
    values = np.full((capacity, number_count(layouts)), np.nan, np.float32)
    for one in all_numbers(layouts):
        own = values[: len(rows), one.first : one.first + one.size]
        if one.single is not None:
            own[:, 0] = numbers_of_ids(rows.ids[:, one.single])
        else:
            ids, offsets = rows.multivalent[one.name]
            sizes = np.diff(offsets)
            own[sizes == one.size] = numbers_of_ids(ids)[np.repeat(sizes == one.size, sizes)].reshape(
                -1, one.size
            )
    return {STATISTICS: values}


def number_signature(layouts: Sequence[TableLayout]) -> dict[str, tf.TensorSpec]:
    """Returns the name and type of what ``number_targets`` returns."""
    count = number_count(layouts)
    return {STATISTICS: tf.TensorSpec([None, count], tf.float32)} if count else {}
