"""Rows on N logical devices, in a process of its own: checks them, and prints the bytes that each device has.

    python divided_rows.py N

Rows [1100, 3] that are divided over the devices and grow are, before and after a step that replaces some of them,
what an array of them would be, bit by bit. Prints of a state the bytes that each device has of tables and of what is
kept with their rows, and those of all of it.
"""

import json
import sys

import numpy as np
import tensorflow as tf

from ctr.models.rows import FeatureRows, lay_out_tables
from ctr.training.config import TrainConfig
from ctr.training.state import TrainState
from ctr.workers.chips import open_chips
from ctr.workers.row_lines import RowLines

if __name__ == "__main__":
    size = int(sys.argv[1])
    chips = open_chips(f"cpu:{size}")
    rng = np.random.default_rng(1)
    truth = rng.normal(size=(1100, 3)).astype(np.float32)
    truth[5] = -0.0, np.inf, 1e-42
    with chips.holding():
        lines = RowLines(lambda number: truth[number :: chips.size], len(truth), 3, chips, grows=True)
        other = lines.like(np.array([2.5], np.float32))
    assert np.array_equal(lines.read_value().view(np.int32), truth.view(np.int32))
    assert np.array_equal(other.read_value(), np.full((1100, 1), 2.5))
    other.grow(1200)
    assert not other.read(1100, 1200).any()

    # Chip by chip, each with its first row as padding, which does not change, though it may be among the others too.
    rows = np.concatenate(
        [
            np.append(rng.choice(len(truth) // size, 4, replace=False) * size + chip, [chip, chip])
            for chip in range(size)
        ]
    ).astype(np.int32)
    changes = np.arange(len(rows)) % 6 < 4
    new = rng.normal(size=(len(rows), 3)).astype(np.float32)
    new[1] = -0.0

    def step(rows: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        old = lines.gather(rows)
        lines.replace(rows, old, tf.where(changes[:, np.newaxis], new, old))
        return old

    run = tf.function(lambda *arguments: chips._strategy.run(step, args=arguments))
    found = chips._strategy.experimental_local_results(run(tf.constant(rows), tf.constant(new)))
    for own in found:
        assert np.array_equal(own.numpy().view(np.int32), truth[rows].view(np.int32))
    truth[rows[changes]] = new[changes]
    assert np.array_equal(lines.read_value().view(np.int32), truth.view(np.int32))

    lines.grow(2000)
    truth = np.concatenate([truth, np.zeros((900, 3), np.float32)])
    picked = rng.permutation(2000)[:700]
    values = rng.normal(size=(700, 3)).astype(np.float32)
    lines.set(picked, values)
    truth[picked] = values
    assert np.array_equal(lines.read_value().view(np.int32), truth.view(np.int32))
    assert np.array_equal(lines.read(313, 1777), truth[313:1777])
    lines.assign(truth[::-1][:1500])
    assert np.array_equal(lines.read_value(), truth[::-1][:1500])

    layouts = lay_out_tables([FeatureRows("id", 20_000, 16, "quality", 0)])
    config = TrainConfig(workers={"divided_from_mb": 1})
    state, alone = TrainState(layouts, config, "float32", chips=chips), TrainState(layouts, config, "float32")
    for own, other in zip(state.tables.whole(), alone.tables.weights, strict=True):
        assert np.array_equal(own, other)
    rows = [one for one in state.variables().values() if isinstance(one, RowLines)]
    assert len(rows) == 5
    each = [sum(int(np.prod(one.on_devices()[chip].shape)) * 4 for one in rows) for chip in range(chips.size)]
    print(json.dumps({"bytes": each, "whole": sum(one.read_value().nbytes for one in rows)}))
