"""Rows in lines of 128: they are what arrays of rows are, bit by bit, whole and divided over devices."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from ctr.workers.row_lines import RowLines

SCRIPT = Path(__file__).parents[1] / "helpers" / "divided_rows.py"
# One number, several rows in a line, rows of half a line and of one, and those that need two.
COLUMNS = [1, 17, 64, 65, 128, 130]


def bits(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows, np.float32).view(np.int32)


def make(columns: int, rows: int = 40, grows: bool = False) -> tuple[RowLines, np.ndarray]:
    truth = np.random.default_rng(columns).normal(size=(rows, columns)).astype(np.float32)
    return RowLines(lambda _: truth, rows, columns, grows=grows), truth.copy()


@pytest.mark.parametrize(
    ("columns", "compiled"), [*((columns, False) for columns in COLUMNS), (3, True), (65, True)]
)
def test_a_step_replaces_rows_exactly_whatever_they_were(columns, compiled):
    lines, truth = make(columns)
    truth[5] = -0.0
    lines.set(np.array([5]), truth[5:6])
    # Neighbors, which share a line; last, padding, which is not to change.
    rows = np.array([5, 6, 39, 0, 12, 6], np.int32)
    new = truth[rows] * np.float32(1e-6) + np.float32(0.1)
    new[1] = np.inf
    new[-1] = truth[6]

    @tf.function(jit_compile=compiled, autograph=False)
    def step(rows, new):
        old = lines.gather(rows)
        lines.replace(rows, old, new)
        return old

    found = step(tf.constant(rows), tf.constant(new))
    np.testing.assert_array_equal(bits(found), bits(truth[rows]))
    truth[rows[:-1]] = new[:-1]
    np.testing.assert_array_equal(bits(lines.read_value()), bits(truth))


@pytest.mark.parametrize("columns", COLUMNS)
def test_between_steps_rows_are_set_read_and_added(columns):
    lines, truth = make(columns, grows=True)
    assert lines.shape.as_list() == [None, columns]
    lines.grow(300)
    truth = np.concatenate([truth, np.zeros((260, columns), np.float32)])
    rows = np.random.default_rng(0).permutation(300)[:90]
    values = np.random.default_rng(1).normal(size=(90, columns)).astype(np.float32)
    lines.set(rows, values)
    truth[rows] = values
    np.testing.assert_array_equal(lines.read_value(), truth)
    np.testing.assert_array_equal(lines.read(17, 211), truth[17:211])
    lines.assign(truth[::-1])
    np.testing.assert_array_equal(lines.read_value(), truth[::-1])
    np.testing.assert_array_equal(
        lines.like(np.array([2.5], np.float32)).read(250, 300), np.full((50, 1), 2.5)
    )


def test_seven_rows_of_seventeen_are_in_a_line_and_wide_ones_have_several():
    shapes = {17: [6, 128], 1: [1, 128], 64: [20, 128], 65: [40, 128], 130: [40, 256]}
    assert {columns: make(columns)[0].on_devices()[0].shape.as_list() for columns in shapes} == shapes
    lines, truth = make(17)
    with pytest.raises(ValueError, match="has the shape"):
        lines.assign(truth[:39])
    with pytest.raises(ValueError, match="has the shape"):
        lines.assign(truth[:, :16])


@pytest.mark.slow
def test_devices_have_a_part_of_the_rows_each():
    done = subprocess.run([sys.executable, SCRIPT, "3"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert len(found["bytes"]) == 3
    assert max(found["bytes"]) <= 1.1 * found["whole"] / 3
