"""One-sided Shampoo of the trainer's tables takes the steps of that of ``ShampooCore`` on each copy's embeddings."""

import numpy as np
import tensorflow as tf

import shampoo_reference as reference
from ctr.optim.protocol import RowGradient
from ctr.optim.rows import one_sided
from ctr.optim.rows.one_sided import RowOneSided
from ctr.optim.rows.rule import RowSetup
from ctr.optim.shampoo.optimizer import ShampooCore

ROWS, WIDTH, COPIES, STEPS = 11, 4, 2, 25
COLUMNS = COPIES * (WIDTH + 1)
OPTIONS = reference.options().changed(
    {"grafting": {"initial_accumulator": 0.1}, "roots": {"asynchronous": False}, "rows": "one_sided"}
)
"""Of tables."""


def history(seed=0):
    rng = np.random.default_rng(seed)
    mixing = np.linalg.qr(rng.normal(size=(COLUMNS, COLUMNS)))[0] * np.geomspace(1, 0.1, COLUMNS)
    found = []
    for _ in range(STEPS):
        rows = rng.permutation(ROWS)[: rng.integers(1, 7)]
        gradient = rng.normal(size=(len(rows), COLUMNS)) @ mixing
        found.append((rows.astype(np.int32), gradient.astype(np.float32)))
    return found


def make(limit=None, **changed):
    rates = np.tile(np.float32([0.1] * WIDTH + [0.3]), COPIES)
    setup = RowSetup([rates], [np.full(COLUMNS, 0.1, np.float32)], COPIES, limit)
    optimizer = RowOneSided(setup, OPTIONS.changed(changed))
    start = np.random.default_rng(5).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    table = tf.Variable(start, shape=[None, COLUMNS])
    optimizer.build({"user": table})
    return optimizer, table


def train(optimizer, table, steps, exchange=lambda: None):
    for rows, gradient in steps:
        # Padding: a row without a gradient.
        rest = next(row for row in range(ROWS) if row not in rows)
        padded = tf.constant(np.append(rows, np.int32(rest)))
        values = tf.gather(table, padded)
        given = np.append(gradient, np.zeros((1, COLUMNS), np.float32), axis=0)
        one = RowGradient(padded, values, optimizer.read([padded])[0], tf.constant(given))
        optimizer.update([one], tf.constant(1.0))
        exchange()


def test_each_copy_takes_the_steps_of_the_core():
    optimizer, table = make()
    start = table.numpy()
    train(optimizer, table, history())
    for copy in range(COPIES):
        part = slice(copy * (WIDTH + 1), copy * (WIDTH + 1) + WIDTH)
        expected = by_the_core(start[:, part], part)
        np.testing.assert_allclose(table.numpy()[:, part], expected, rtol=1e-4, atol=1e-5)
        linear, sums = start[:, part.stop].astype(np.float64), np.full(ROWS, 0.1)
        for rows, gradient in history():
            sums[rows] += gradient[:, part.stop] ** 2
            linear[rows] -= 0.3 * gradient[:, part.stop] / np.sqrt(sums[rows])
        np.testing.assert_allclose(table.numpy()[:, part.stop], linear, rtol=1e-4, atol=1e-5)
    report = optimizer.report()
    assert report["tables_layers_ready"] == report["tables_layers"] == COPIES
    assert report["tables_refreshed"] > 0 == report["tables_failed"]
    # The last exchange was at step 23; both copies together are the table.
    statistics = np.zeros((COPIES, WIDTH, WIDTH))
    for _, gradient in history()[:23]:
        parts = gradient.astype(np.float64).reshape(-1, COPIES, WIDTH + 1)[:, :, :WIDTH]
        statistics += np.einsum("rci,rcj->cij", parts, parts)
    values = np.linalg.eigvalsh(statistics)
    expected = (values.min(), values.max(), (values[:, -1] / values[:, 0]).max())
    assert optimizer.spectra().keys() == {"user"}
    *found, damped = optimizer.spectra()["user"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert 1 < damped < found[-1]
    assert optimizer.cost([(3.0, COLUMNS)]).preconditioning > 0


def by_the_core(start, part):
    """What Shampoo makes of a copy's embeddings as a table of its own."""
    core = ShampooCore(OPTIONS, [tf.Variable(start)], [0])
    for rows, gradient in history():
        core.update([tf.IndexedSlices(tf.constant(gradient[:, part]), tf.constant(rows))], 0.1)
    return core.weights[0].numpy()


def test_state_that_is_saved_goes_on_with_the_same_bits_and_a_limit_holds():
    in_flight = {"roots": {"asynchronous": True}}
    whole, table = make((0.1, 0.01), **in_flight)
    train(whole, table, history())
    first, before = make((0.1, 0.01), **in_flight)
    train(first, before, history()[:9])
    second, other = make((0.1, 0.01), **in_flight)
    other.assign(before)
    for name, variable in first.variables.items():
        second.variables[name].assign(variable)
    train(second, other, history()[9:])
    np.testing.assert_array_equal(other.numpy(), table.numpy())
    assert "one_sided/tables4/root" in whole.variables
    kept = before.numpy()
    train(first, before, history()[9:10])
    assert (np.abs(before.numpy() - kept) <= 0.1 * np.abs(kept) + 0.01 + 1e-6).all()


def test_between_the_steps_roots_come_one_step_later_and_new_rows_begin_anew(monkeypatch):
    optimizer, table = make()
    monkeypatch.setattr(one_sided, "in_xla", lambda: True)
    train(optimizer, table, history(), optimizer.exchange)
    assert optimizer.report()["tables_layers_ready"] == COPIES
    optimizer.grow(0, ROWS + 2)
    optimizer.reset_rows(0, np.array([1], np.int32))
    sums = optimizer.variables["rows_accumulator/user"].numpy()
    assert sums.shape[0] == ROWS + 2
    np.testing.assert_allclose(sums[1], 0.1)
