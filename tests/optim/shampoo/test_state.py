"""All state is in variables: a copy of them goes on to the last bit, with roots in flight, kept, failed or lost."""

import numpy as np
import pytest
import tensorflow as tf

import shampoo_reference as reference
from ctr.optim.shampoo.host import COUNTERS, STATUS, HostPipeline
from ctr.optim.shampoo.layout import lay_out
from ctr.optim.shampoo.roots import RootError, inverse_root
from ctr.optim.shampoo.triangles import packed_size

RATE = 0.125
SHAPES = [(5, 3), (3,)]
STEPS = 22


def moody(matrix, *arguments, **keywords):
    """Fails for some statistics, for the same ones in every process."""
    if int(1e6 * np.trace(matrix)) % 3 == 0:
        raise RootError("this one not")
    return inverse_root(matrix, *arguments, **keywords)


SETTINGS = {
    "in flight": {"momentum": 0.5, "beta1": 0.5, "beta2": 0.9, "statistics_frequency": 2},
    "some kept": {"drift_bound": 0.5},
    "some failed": {"grafting": "adam"},
    "warm starts": {"solver": "coupled"},
    "early exchanges": {"early_growth": 0.3},
    "in float32, synchronous": {"asynchronous": False},
}


def make(case, dtype=tf.float64):
    options = reference.options(**{"precondition_frequency": 4} | SETTINGS[case])
    dtype = tf.float32 if "float32" in case else dtype
    core = reference.make_core(options, reference.initial(SHAPES), dtype)
    core.exchanged.host = HostPipeline(
        core.layout.factors, options, 2, solve=moody if case == "some failed" else inverse_root
    )
    return core


@pytest.fixture(scope="module")
def history():
    return reference.drifting(SHAPES, STEPS, condition=30)


@pytest.mark.slow(first=2)
@pytest.mark.parametrize("case", SETTINGS)
def test_a_copy_taken_after_any_step_goes_on_to_the_last_bit(case, history):
    core, saved = make(case), []
    if case == "warm starts":
        # They need statistics with nearly the same eigenvectors.
        history = history[:1] * STEPS
    for gradients in history:
        reference.train(core, [gradients], RATE)
        saved.append(reference.state_of(core))
    reported = core.report()
    assert (reported["skipped"] > 0) == (case == "some kept")
    assert (reported["failed"] > 0) == (case == "some failed")
    assert (reported["coupled_warm"] > 0) == (case == "warm starts")
    # From before the first exchange to all places between two others.
    for step in (1, 2, 3, 4, 6, 7, 8, 9, 10, 11):
        resumed = make(case)
        reference.restore(resumed, saved[step - 1])
        reference.assert_same_bits(reference.state_of(resumed), saved[step - 1])
        reference.train(resumed, history[step : step + 9], RATE)
        reference.assert_same_bits(reference.state_of(resumed), saved[step + 8])


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_a_core_with_another_round_in_flight_takes_up_what_is_restored(compiled, history):
    core = make("in flight")
    other = reference.drifting(SHAPES, STEPS, seed=5, condition=30)
    step = tf.function(core.update) if compiled else core.update

    def train(gradients):
        for tensors in gradients:
            step([tf.constant(g) for g in tensors], tf.constant(RATE, tf.float64))

    start = reference.state_of(core)
    train(history[:9])
    middle = reference.state_of(core)
    train(history[9:17])
    end = reference.state_of(core)
    # Of the same step from other statistics; of another step; and none at all.
    reference.restore(core, start)
    train(other[:9])
    reference.restore(core, middle)
    train(history[9:17])
    reference.assert_same_bits(reference.state_of(core), end)
    reference.restore(core, middle)
    train(history[9:17])
    reference.assert_same_bits(reference.state_of(core), end)
    reference.restore(core, start)
    train(history[:17])
    reference.assert_same_bits(reference.state_of(core), end)


def test_rows_of_tables_resume_to_the_last_bit():
    rng = np.random.default_rng(0)
    options = reference.options(sparse="one_sided", precondition_frequency=4)
    steps = [
        [tf.IndexedSlices(tf.constant(rng.normal(size=(3, 2))), tf.constant(rng.integers(0, 6, 3)))]
        for _ in range(14)
    ]
    core = reference.make_core(options, [np.ones((6, 2))], tables=[0])
    reference.train(core, steps[:8], RATE)
    resumed = reference.make_core(options, [np.ones((6, 2))], tables=[0])
    reference.restore(resumed, reference.state_of(core))
    reference.train(core, steps[8:], RATE)
    reference.train(resumed, steps[8:], RATE)
    reference.assert_same_bits(reference.state_of(core), reference.state_of(resumed))
    assert core.report()["refreshed"] >= 2


def test_every_variable_by_name_shape_and_precision():
    options = reference.options(
        momentum=0.9, beta1=0.5, sparse="one_sided", max_dimension=6, block_size=3, merge_dimensions=None
    )
    weights = [np.zeros(shape) for shape in ((5, 3), (7, 2), (9, 4), ())]
    core = reference.make_core(options, weights, tf.float32, tables=[2])
    found = {name: (tuple(v.shape), v.dtype.name) for name, v in core.variables.items()}
    cubes = {
        "stack0/axis0": (1, 3, 3),
        "stack0/axis1": (1, 3, 3),
        "stack1/axis0": (1, 2, 2),
        "stack1/axis1": (1, 3, 3),
        "stack2/axis1": (1, 2, 2),
        "tables4": (1, 4, 4),
    }
    expected = {
        "step": ((), "int64"),
        "exchanged_at": ((), "int64"),
        "collections": ((), "int64"),
        "window_collections": ((), "int64"),
        "status": ((len(STATUS), 6), "float32"),
        "counters": ((len(COUNTERS),), "int64"),
    }
    for name, cube in cubes.items():
        packed = cube[0], packed_size(cube[1])
        expected |= {f"{name}/window": (packed, "float32"), f"{name}/total": (packed, "float64")}
        expected[f"{name}/root"] = (cube, "float32")
    for index, shape in enumerate(((5, 3), (7, 2), (9, 4), ())):
        expected[f"tensor{index}/accumulator"] = (shape, "float32")
        if index != 2:
            expected[f"tensor{index}/gradient_average"] = (shape, "float32")
            expected[f"tensor{index}/momentum"] = (shape, "float32")
    assert found == expected
    values = {name: v.numpy() for name, v in core.variables.items()}
    assert values["exchanged_at"] == -1
    np.testing.assert_allclose(values["tensor0/accumulator"], options.grafting.initial_accumulator)


def test_precision_is_float64_where_one_weight_has_it():
    options = reference.options(grafting="sgd")
    core = reference.make_core(options, [np.zeros((2, 2))], tf.float32)
    assert core.dtype == tf.float32 and core.grafting.accumulators == {}
    weights = [tf.Variable(tf.zeros([2, 2])), tf.Variable(tf.zeros([2], tf.float64))]
    assert type(core)(options, weights).dtype == tf.float64


def test_matrices_are_numbered_through_all_factors_and_know_their_tensors():
    options = reference.options(block_size=3, sparse="one_sided")
    layout = lay_out(options, [(6, 3), (3, 3), (2,), (8, 2), (5, 2)], tables=[3, 4])
    assert [(f.name, f.offset, f.owners) for f in layout.factors] == [
        ("stack0/axis0", 0, (0, 0, 1)),
        ("stack0/axis1", 3, (0, 0, 1)),
        ("tables2", 6, (3, 4)),
    ]
    assert layout.matrices == 8 and layout.owners.tolist() == [0, 0, 1, 0, 0, 1, 3, 4]
    assert layout.table_factors == {3: (2, 0), 4: (2, 1)}
