"""The exchange between the steps of an accelerator, against that of a step on the host."""

import numpy as np
import pytest
import tensorflow as tf

import shampoo_reference as reference
from ctr.optim.shampoo.dense import DenseShampoo
from ctr.optim.shampoo.exchange import between_steps, create_on_host
from ctr.optim.shampoo.state import STATUS

SHAPES = [(7, 5), (4, 6), (3,)]
RATE = 0.1


def make(**changed):
    options = reference.options(block_size=4, momentum=0.5, **changed)
    return reference.make_core(options, reference.initial(SHAPES), tf.float32)


@pytest.mark.slow(first=2)
@pytest.mark.parametrize(
    "changed",
    [
        {"precondition_frequency": 3},
        {"precondition_frequency": 3, "asynchronous": False},
        {"precondition_frequency": 4, "early_growth": 0.5, "statistics_frequency": 2},
        {"precondition_frequency": 2, "beta2": 0.9, "drift_bound": 0.3},
        {"precondition_frequency": 3, "solver": "coupled"},
        {"precondition_frequency": 3, "beta2": 0.9, "initial_statistics": 100.0},
        {"precondition_frequency": 3, "beta2": 0.9, "bias_correction": False, "damping": "absolute"},
        {"precondition_frequency": 3, "factor_update": "kl", "exponent_override": 2},
    ],
)
def test_steps_and_state_are_those_of_the_exchange_of_everything(changed):
    one, other = make(**changed), make(**changed)
    for gradients in reference.drifting(SHAPES, 17, condition=30):
        values = [tf.constant(g, tf.float32) for g in gradients]
        for core in (one, other):
            core.update(values, RATE, roots="between_steps")
        one.exchange()
        between_steps(other.options, other.layout, other.state, other.host)
        # The statistics' other triangle may differ in the last bit.
        for name, variable in one.state.variables.items():
            theirs, scale = other.state.variables[name].numpy(), np.abs(variable.numpy()).max()
            if name != "status":
                np.testing.assert_allclose(theirs, variable, rtol=1e-4, atol=1e-4 * scale, err_msg=name)
        rows = [STATUS.index(row) for row in ("certified", "sent", "root_step")]
        np.testing.assert_array_equal(other.state.status.numpy()[rows], one.state.status.numpy()[rows])
        for mine, theirs in zip(one.weights, other.weights, strict=True):
            np.testing.assert_allclose(theirs, mine, rtol=1e-4, atol=1e-5)
    assert one.report()["refreshed"] == other.report()["refreshed"] > 0


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("changed", [{"beta2": 0.9}, {"basis_change": "keep", "beta2": 0.9}, {}])
def test_eigenbases_are_those_of_a_step_on_the_host(changed):
    options = reference.options(block_size=4, eigenvalue_correction=True, precondition_frequency=3, **changed)
    weights = [[tf.Variable(w, dtype=tf.float32) for w in reference.initial(SHAPES)] for _ in range(2)]
    one, other = (DenseShampoo(options) for _ in range(2))
    for optimizer, own in zip((one, other), weights, strict=True):
        optimizer.build({str(number): weight for number, weight in enumerate(own)})
    for gradients in reference.drifting(SHAPES, 17, condition=30):
        values = [tf.constant(g, tf.float32) for g in gradients]
        one.update(values, tf.constant(RATE), compiled=False)
        other.update(values, tf.constant(RATE), compiled=True)
        # Between steps: bases come into use one step later.
        other.exchange()
    assert one.report()["layers_ready"] == other.report()["layers_ready"] == 2
    for variable, root in zip(other.core.state.roots, one.core.state.roots, strict=True):
        unit = np.einsum("nij,nik->njk", variable.numpy(), variable.numpy())
        np.testing.assert_allclose(unit, np.broadcast_to(np.eye(unit.shape[1]), unit.shape), atol=1e-5)
        assert root.shape == variable.shape


def test_roots_that_are_not_there_count_as_identities_at_any_step():
    """As after a warm start that took the step, but no statistics."""
    core = make(precondition_frequency=2, factor_update="kl", exponent_override=2, asynchronous=False)
    core.state.step.assign(500)
    for gradients in reference.drifting(SHAPES, 6):
        core.update([tf.constant(g, tf.float32) for g in gradients], RATE)
    report = core.report()
    assert report["layers_ready"] == report["layers"] and not report["failed"]


def test_triangles_of_what_is_due_move_and_nothing_else():
    core = make(precondition_frequency=5, drift_bound=0.0, asynchronous=False)
    elements = sum(f.count * f.size * (f.size + 1) // 2 for f in core.layout.factors)
    moved = []
    for gradients in reference.drifting(SHAPES, 14):
        core.update([tf.constant(g, tf.float32) for g in gradients], RATE, roots="between_steps")
        moved.append(between_steps(core.options, core.layout, core.state, core.host))
    exchanged = {number for number, size in enumerate(moved, 1) if size}
    assert exchanged == {3, 8, 13}
    assert {moved[number - 1] for number in exchanged} == {2 * 4 * elements}
    steady = make(precondition_frequency=1, drift_bound=1.0, asynchronous=False)
    gradients = [tf.constant(g, tf.float32) for g in reference.drifting(SHAPES, 1)[0]]
    for _ in range(8):
        steady.update(gradients, RATE, roots="between_steps")
        last = between_steps(steady.options, steady.layout, steady.state, steady.host)
    # Roots that stay as they are do not move.
    assert last == 4 * elements


def test_totals_are_in_the_memory_of_the_host():
    device = create_on_host("stack0/axis0/total", [2, 3, 3], tf.float64, 0.0).device
    assert device.endswith("CPU:0")
    assert create_on_host("status", [2], tf.float32, 0.0).shape == [2]
