"""When roots are sent for and come into use, on the host and on the device; and that no fault ends a run."""

import numpy as np
import pytest
import tensorflow as tf

import shampoo_reference as reference
from ctr.optim.shampoo import optimizer
from ctr.optim.shampoo.host import STATUS, HostPipeline
from ctr.optim.shampoo.roots import inverse_root
from ctr.optim.shampoo.schedule import exchange_due

RATE = 0.125
SHAPES = [(5, 4), (4, 4)]
SYNCHRONOUS = {"asynchronous": False}


def make(solve=inverse_root, patience=60.0, workers=2, dtype=tf.float64, shapes=SHAPES, **changed):
    """A core of one block a tensor with a solver of its own."""
    options = reference.options(block_size=8, **changed)
    core = reference.make_core(options, reference.initial(shapes), dtype)
    core.exchanged.host = HostPipeline(core.layout.factors, options, workers, patience, solve)
    return core


def status(core, name):
    return core.exchanged.status.numpy()[STATUS.index(name)]


@pytest.mark.parametrize("every", [1, 7, 25])
def test_an_exchange_at_a_phase_comes_however_seldom_it_is_asked_for(every):
    for phase in (0, 1, 9):
        changed = {"precondition_frequency": 10, "start_preconditioning_step": 4}
        options = reference.options(**changed, roots={"phase": phase})
        last, found = -1, []
        for step in range(every, 100, every):
            if bool(exchange_due(options, tf.constant(step, tf.int64), tf.constant(last, tf.int64))):
                found.append(step)
                last = step
        asked = [step for step in range(every, 100, every) if step >= 4]
        marks = [mark for mark in range(phase, 100, 10) if mark > asked[0]]
        # The first at the start, and then as soon after each regular step as one is asked for.
        expected = [asked[0], *(next((step for step in asked if step >= mark), None) for mark in marks)]
        assert found == list(dict.fromkeys(step for step in expected if step is not None))


def test_roots_that_are_not_there_count_as_identities_at_any_step(monkeypatch):
    """As after a warm start that took the step, but no statistics."""
    core = make(precondition_frequency=2, method="eigenvalue_corrected", roots=SYNCHRONOUS)
    core.step.assign(500)
    first = reference.drifting(SHAPES, 1)[0]
    with monkeypatch.context() as patched:
        patched.setattr(optimizer, "in_xla", lambda: True)
        core.update([tf.constant(g) for g in first], RATE)
    for moments, gradient in zip(core.preconditioner.moments, first, strict=True):
        np.testing.assert_array_equal(moments[0], gradient**2)
    core.exchange()
    reference.train(core, reference.drifting(SHAPES, 6), RATE)
    report = core.report()
    assert report["layers_ready"] == report["layers"] == 2 and not report["failed"]


# On the device.


@pytest.mark.slow
def test_roots_of_the_device_are_those_of_the_host():
    history = reference.drifting(SHAPES, 8, condition=30)
    changed = {"precondition_frequency": 3, "beta2": 0.9, "epsilon": 1e-2, "dtype": tf.float32}
    absolute = {"damping": "absolute"}
    device, host = make(roots=absolute, **changed), make(roots=SYNCHRONOUS | absolute, **changed)

    @tf.function(jit_compile=True)
    def step(gradients):
        device.update(gradients, tf.constant(RATE), on_device=True)

    for gradients in history:
        step([tf.constant(g, tf.float32) for g in gradients])
    reference.train(host, history, RATE)
    for root, expected in zip(device.exchanged.roots, host.exchanged.roots, strict=True):
        np.testing.assert_allclose(root, expected, atol=1e-5 * np.abs(expected).max())
    for weight, expected in zip(device.weights, host.weights, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-4, atol=1e-5)
    reported = device.report()
    assert reported["device"] == reported["refreshed"] == 8 and not reported["failed"]
    assert reported["layers_ready"] == 2 and 0 < reported["residual_max"] < 1e-6
    assert status(device, "root_step").tolist() == [6] * 4


def test_the_device_refuses_what_it_cannot_compute_and_says_what_to_do():
    gradients = [tf.zeros(shape, tf.float64) for shape in SHAPES]
    with pytest.raises(ValueError, match=r"^method eigenvalue_corrected requires .*ShampooCallback"):
        make(method="eigenvalue_corrected").update(gradients, RATE, on_device=True)
    make(exponent_override=49).update(gradients, RATE, on_device=True)


def test_an_uncertified_root_of_the_device_leaves_the_previous_one():
    core = make(precondition_frequency=2, start_preconditioning_step=2)
    history = reference.drifting(SHAPES, 4)
    nothing = [np.zeros(SHAPES[0]), None]

    def step(gradients):
        values = zip(gradients, (w.dtype for w in core.weights), strict=True)
        core.update([g if g is None else tf.constant(g, d) for g, d in values], RATE, on_device=True)

    # No statistics yet is no fault.
    step([nothing[0], history[0][1]])
    step([nothing[0], history[1][1]])
    assert core.report()["failed"] == 0 and core.report()["layers_ready"] == 1
    step(history[2])
    step(history[3])
    assert core.report()["layers_ready"] == 2
    before = core.exchanged.roots[0].numpy()
    # Negative: not what a sum of squares can be, and nothing that damping lifts.
    core.statistics.totals[0].assign(-3 * core.statistics.totals[0])
    step(history[2])
    step(history[3])
    reported = core.report()
    assert reported["failed"] == 1 and reported["layers_ready"] == 2
    assert status(core, "root_step").tolist() == [4, 6, 6, 6]
    np.testing.assert_array_equal(core.exchanged.roots[0], before)
