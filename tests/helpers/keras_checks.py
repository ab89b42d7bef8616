"""What Shampoo must do in either Keras: checks over ``tf.keras``, whichever that is in this process.

test_keras2.py runs them in the tests' process; test_keras3.py runs this file in one of its own, which prints a
JSON object: for each check the traceback of its failure, or nothing.
"""

import contextlib
import json
import sys
import tempfile
import traceback
import unittest.mock
from pathlib import Path

import numpy as np
import tensorflow as tf

if __name__ == "__main__":
    # Two replicas without a second device; must come before TensorFlow looks at its devices.
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )

from ctr.optim import Adafactor, Shampoo, ShampooCallback, ShampooOptions, Soap, presets
from ctr.optim.shampoo.host import STATUS
from ctr.optim.shampoo.optimizer import ShampooCore
from shampoo_options import tree

keras = tf.keras
KERAS_3 = keras.Model.__module__.startswith("keras.")
ROWS, WIDTH = 7, 3

# Roots of step 2 are waited for; later ones are sent at 6, 10, ... and taken in four steps on.
QUICK = {
    "start_preconditioning_step": 2,
    "precondition_frequency": 4,
    "statistics_frequency": 1,
    "early_growth": 0.0,
    "drift_bound": 0.0,
}

CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


# Models and what they are trained on.


def make_model():
    """Variables: embeddings [7, 3], kernel [6, 4], bias [4], kernel [4, 1] (a vector to Shampoo), bias [1]."""
    keras.utils.set_random_seed(1)
    ids = keras.Input((2,), dtype="int32")
    hidden = keras.layers.Embedding(ROWS, WIDTH, name="words")(ids)
    hidden = keras.layers.Dense(4, activation="tanh", name="hidden")(keras.layers.Flatten()(hidden))
    return keras.Model(ids, keras.layers.Dense(1, dtype="float32", name="output")(hidden))


def compiled(optimizer, **options):
    model = make_model()
    model.compile(optimizer=optimizer, loss="mse", **options)
    return model


def dataset(batches, start=0):
    examples = [example(step) for step in range(start, start + batches)]
    ids, labels = (np.concatenate(parts) for parts in zip(*examples, strict=True))
    return tf.data.Dataset.from_tensor_slices((ids, labels)).batch(16, drop_remainder=True)


def example(step):
    random = np.random.default_rng(step)
    ids = random.integers(0, ROWS, (16, 2)).astype(np.int32)
    return ids, (np.sin(ids.sum(axis=1, keepdims=True)) + 0.5).astype(np.float32)


def fit(model, batches, callbacks=(), start=0):
    return model.fit(dataset(batches, start), verbose=0, shuffle=False, callbacks=list(callbacks))


def sparse_gradient(step):
    """Of the embeddings, with a repeated row."""
    random = np.random.default_rng([step, 1])
    values = random.standard_normal((4, WIDTH)).astype(np.float32)
    return tf.IndexedSlices(
        tf.constant(values), tf.constant([1, step % ROWS, 1, 5]), tf.constant([ROWS, WIDTH])
    )


def gradients(variables, step, sparse=True):
    random = np.random.default_rng([step, 2])
    found = [tf.constant(random.standard_normal(tuple(v.shape)).astype(np.float32)) for v in variables]
    found[0] = sparse_gradient(step)
    if not sparse:
        found[0] = tf.convert_to_tensor(found[0])
    return found


def advance(model, optimizer, steps, start=0, **options):
    """Steps with made-up gradients, eagerly."""
    variables = model.trainable_variables
    for step in range(start, start + steps):
        optimizer.apply_gradients(list(zip(gradients(variables, step, **options), variables, strict=True)))


def trained(optimizer, steps, **options):
    model = make_model()
    advance(model, optimizer, steps, **options)
    return model


def values(model):
    return [tf.convert_to_tensor(variable).numpy() for variable in model.trainable_variables]


def same(first, second):
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def differ(first, second):
    return [not np.array_equal(one, other) for one, other in zip(first, second, strict=True)]


def in_flight(core):
    return bool((core.exchanged.status.numpy()[STATUS.index("sent")] > 0).any())


@contextlib.contextmanager
def policy(name):
    before = keras.mixed_precision.global_policy() if not KERAS_3 else keras.config.dtype_policy()
    keras.mixed_precision.set_global_policy(name)
    try:
        yield
    finally:
        keras.mixed_precision.set_global_policy(before)


@contextlib.contextmanager
def refused(error, *parts):
    message = None
    try:
        yield
    except error as refusal:
        message = str(refusal)
    assert message is not None, f"no {error.__name__}"
    for part in parts:
        assert part in message, message


class Core:
    """The core driven by hand over copies of a model's variables; the first is a table."""

    def __init__(self, tables=(0,), **options):
        self.weights = [tf.Variable(value) for value in values(make_model())]
        self.core = ShampooCore(ShampooOptions(**tree(**options)), self.weights, tables)

    def step(self, found, rate, decayed=None):
        self.core.update_if_finite(found, rate, decayed)

    def steps(self, count, rate=0.02, change=lambda found: found, **options):
        for step in range(count):
            self.step(change(gradients(self.weights, step)), rate, **options)
        return [weight.numpy() for weight in self.weights]


# Agreement with the core.


@check
def steps_are_those_of_the_core_to_the_bit():
    for options in (
        {**QUICK, "beta1": 0.9, "beta2": 0.99, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        {**QUICK, "sparse": "one_sided", "grafting": "adam", "asynchronous": False, "block_size": 3},
    ):
        optimizer = Shampoo(0.02, **tree(**options))
        model = trained(optimizer, 11)
        by_hand = Core(**options)
        same(values(model), by_hand.steps(11))
        assert optimizer.core.report() == by_hand.core.report()
        assert optimizer.core.report()["layers_ready"] == optimizer.core.report()["layers"] > 0
        assert int(optimizer.iterations) == 11


@check
def clipping_comes_before_the_step():
    unclipped = Core(**QUICK).steps(3)
    for option, clip in (
        ("clipnorm", lambda found: [tf.clip_by_norm(g, 0.5) for g in found]),
        ("global_clipnorm", lambda found: tf.clip_by_global_norm(found, 0.5)[0]),
        ("clipvalue", lambda found: [tf.clip_by_value(g, -0.5, 0.5) for g in found]),
    ):
        model = trained(Shampoo(0.02, **tree(**QUICK, **{option: 0.5})), 3)
        for one, other in zip(values(model), Core(**QUICK).steps(3, change=clip), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
        assert any(differ(values(model), unclipped))


@check
def variables_without_a_gradient_stay_as_they_are():
    optimizer = Shampoo(0.02, **tree(**QUICK))
    model = make_model()
    variables, before = model.trainable_variables, values(model)
    optimizer.build(variables)
    by_hand = Core(**QUICK)
    for step in range(8):
        found = gradients(variables, step)
        found[1] = None
        pairs = list(zip(found, variables, strict=True))
        # Given without a gradient, or not given at all.
        optimizer.apply_gradients(pairs if step % 2 else [pair for pair in pairs if pair[0] is not None])
        by_hand.step(found, 0.02)
    same(values(model), [weight.numpy() for weight in by_hand.weights])
    assert differ(values(model), before) == [True, False, True, True, True]


@check
def variables_it_was_not_built_for_are_refused():
    optimizer = Shampoo()
    model = make_model()
    optimizer.build(model.trainable_variables[:2])
    other = model.trainable_variables[2]
    with refused(ValueError, "nknown variable"):
        optimizer.apply_gradients([(tf.zeros(other.shape), other)])


@check
def learning_rates_may_be_schedules_and_may_be_set():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([4], [0.05, 0.01])
    model = trained(Shampoo(schedule, **tree(**QUICK)), 7)
    by_hand = Core(**QUICK)
    for step in range(7):
        by_hand.step(gradients(by_hand.weights, step), 0.05 if step <= 4 else 0.01)
    same(values(model), [weight.numpy() for weight in by_hand.weights])
    optimizer = Shampoo(0.05, **tree(**QUICK))
    model = trained(optimizer, 2)
    before = values(model)
    optimizer.learning_rate = 0.0
    advance(model, optimizer, 1, start=2)
    same(values(model), before)


@check
def learning_rates_that_no_step_can_be_taken_with_are_refused():
    allowed = "allowed: a finite number from 0 up, or a schedule"
    for make in (Shampoo, Adafactor):
        for rate in (np.nan, np.inf, -0.1, 1e300, "0.1", None, True, [0.1], tf.constant(-1.0)):
            with refused(ValueError, "learning_rate is ", allowed):
                make(rate)
        optimizer = make(0.5)
        for rate in (np.nan, -1):
            with refused(ValueError, f"learning_rate is {rate!r}; {allowed}"):
                optimizer.learning_rate = rate
        assert float(optimizer.learning_rate) == 0.5
        for rate in (0, 1, np.float32(0.25), tf.constant(0.25), tf.Variable(0.25)):
            assert float(make(rate).learning_rate) == float(rate)


@check
def variables_of_other_numbers_are_refused():
    for make in (Shampoo, Adafactor):
        for dtype in ("int32", "uint8"):
            given = {"dtype": dtype, "trainable": True, "name": "counts"}
            variable = (keras if KERAS_3 else tf).Variable([1, 0], **given)
            with refused(ValueError, "variable counts", f"is of dtype {dtype}; allowed: "):
                make().build([variable])


@check
def tables_that_are_no_regular_expression_are_refused():
    for make in (Shampoo, Adafactor):
        for tables in ("(", "*", 3):
            with refused(ValueError, f"tables is {tables!r}: ", "; allowed: a regular expression"):
                make(tables=tables)


@check
def weights_decay_unless_excluded():
    optimizer = Shampoo(0.1, **tree(weight_decay=0.5, initial_accumulator=0.0))
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    model = make_model()
    for layer in ("hidden", "output"):
        model.get_layer(layer).bias.assign(tf.ones_like(model.get_layer(layer).bias))
    before, variables = values(model), model.trainable_variables
    optimizer.apply_gradients([(tf.zeros(v.shape), v) for v in variables])
    decayed = [1.0, 0.95, 1.0, 0.95, 1.0]
    for factor, value, was in zip(decayed, values(model), before, strict=True):
        np.testing.assert_allclose(value, factor * was, rtol=1e-6)


@check
def averaged_weights_are_kept_and_put_in_place():
    plain = make_model()
    optimizer, history = Shampoo(0.05, **tree(**QUICK)), [values(plain)]
    for step in range(3):
        advance(plain, optimizer, 1, start=step)
        history.append(values(plain))
    # Keras 2 starts the average at the weights before the first step, Keras 3 at those after it.
    average = history[1] if KERAS_3 else [(a + b) / 2 for a, b in zip(*history[:2], strict=True)]
    for weights in history[2:]:
        average = [(a + b) / 2 for a, b in zip(average, weights, strict=True)]
    for overwrite in (None, 3):
        averaged = Shampoo(
            0.05, **tree(**QUICK, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=overwrite)
        )
        model = trained(averaged, 3)
        if not overwrite:
            same(values(model), history[-1])
            averaged.finalize_variable_values(model.trainable_variables)
        for one, other in zip(values(model), average, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


# Tables and sparse gradients.


@check
def tables_are_found_by_name():
    model = make_model()
    for tables, expected in (("embeddings", True), ("words", True), ("nowhere", False), (None, False)):
        optimizer = Shampoo(tables=tables)
        optimizer.build(model.trainable_variables)
        row = optimizer.describe().splitlines()[1]
        assert "words/embeddings" in row and ("rows: AdaGrad" in row) == expected, row
        assert ("Shampoo" in row) != expected, row
    optimizer = Shampoo(tables="")
    optimizer.build(model.trainable_variables)
    treatments = optimizer.describe()
    # A pattern that fits everything chooses the matrices.
    assert treatments.count("rows: AdaGrad") == 3 and treatments.count(" adagrad ") == 2, treatments


@check
def tables_learn_by_adagrad_from_summed_repetitions():
    model = make_model()
    before = values(model)[0]
    advance(model, Shampoo(0.1, **tree(initial_accumulator=0.25)), 1)
    gradient = tf.convert_to_tensor(sparse_gradient(0)).numpy()
    expected = before - 0.1 * gradient / np.sqrt(0.25 + gradient**2)
    np.testing.assert_allclose(values(model)[0], expected, rtol=1e-5, atol=1e-7)
    assert (values(model)[0] != before).any(axis=1).tolist() == [i in (0, 1, 5) for i in range(ROWS)]


@check
def sparse_gradients_of_other_variables_count_as_dense_ones():
    sparse = trained(Shampoo(0.02, **tree(tables=None, **QUICK)), 8)
    dense = trained(Shampoo(0.02, **tree(tables=None, **QUICK)), 8, sparse=False)
    same(values(sparse), values(dense))
    assert any(differ(values(sparse), values(trained(Shampoo(0.02, **tree(**QUICK)), 8)))[:1])


@check
def sparse_gradients_are_never_dropped():
    options = [
        {"sparse": "adagrad_row"},
        {"sparse": "one_sided", "momentum": 0.5},
        {"clipnorm": 0.1},
        {"global_clipnorm": 0.1},
        {"use_ema": True},
    ]
    if KERAS_3:
        options += [{"gradient_accumulation_steps": 2}]
    before = values(make_model())
    for given in options:
        for tables in ("embeddings", None):
            steps = given.get("gradient_accumulation_steps", 1)
            model = trained(Shampoo(0.1, **tree(tables=tables, **given)), steps)
            moved = (values(model)[0] != before[0]).any(axis=1)
            assert moved[[0, 1, 5]].all(), (given, tables, moved)


# In ``fit`` and in loops of one's own.


@check
def fit_uses_roots_from_the_host_without_a_callback():
    model = compiled(Shampoo(0.05, **tree(**QUICK)))
    history = [fit(model, 10).history["loss"][0] for _ in range(2)]
    report = model.optimizer.core.report()
    assert history[1] < history[0]
    assert report["layers"] == report["layers_ready"] == 1
    assert report["eigh"] == report["refreshed"] > 0 and report["device"] == report["failed"] == 0
    assert int(model.optimizer.core.step) == int(model.optimizer.iterations) == 20


@check
def loops_of_ones_own_give_what_fit_gives():
    reference = compiled(Shampoo(0.02, **tree(**QUICK)))
    fit(reference, 8)

    def loop(wrap, apply):
        model, optimizer = make_model(), Shampoo(0.02, **tree(**QUICK))
        optimizer.build(model.trainable_variables)

        @wrap
        def step(ids, labels):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(ids, training=True) - labels) ** 2)
            apply(optimizer, tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            return loss

        for ids, labels in dataset(8):
            step(ids, labels)
        assert optimizer.core.report()["layers_ready"] == 1
        # Graphs and eager mode round otherwise, of which these are made.
        rounded = (
            "residual_max",
            "condition_max",
            "condition_median",
            "singular_value_max",
            "singular_value_min",
        )
        reported, expected = optimizer.core.report(), reference.optimizer.core.report()
        assert {**reported, **dict.fromkeys(rounded)} == {**expected, **dict.fromkeys(rounded)}
        for one, other in zip(values(model), values(reference), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=5e-4)

    def apply_gradients(optimizer, found, variables):
        optimizer.apply_gradients(zip(found, variables, strict=True))

    loop(lambda function: function, apply_gradients)
    loop(tf.function, apply_gradients)
    if KERAS_3:
        loop(tf.function, lambda optimizer, found, variables: optimizer.apply(found, variables))
        loop(lambda function: function, lambda optimizer, found, _: optimizer.apply(found))


@check
def batches_that_are_not_finite_are_skipped_and_counted():
    model = compiled(Shampoo(0.02, **tree(**QUICK)), run_eagerly=True)
    fit(model, 3)
    before, ids, labels = values(model), *example(3)
    model.train_on_batch(ids, labels * np.nan)
    same(values(model), before)
    report = model.optimizer.core.report()
    assert report["nonfinite_steps"] == 1 and int(model.optimizer.core.step) == 3
    model.train_on_batch(ids, labels)
    assert all(differ(values(model), before)) and np.isfinite(np.concatenate(values(model), None)).all()


@check
def several_steps_in_one_execution_exchange_as_single_ones_do():
    model = compiled(Shampoo(0.02, **tree(**QUICK)), steps_per_execution=5)
    fit(model, 10)
    core = model.optimizer.core
    assert int(core.step) == 10 and int(core.exchanged.exchanged_at) == 10
    # Of steps 2 (waited for) and 6; what was sent at 10 is on its way.
    assert core.report()["refreshed"] == 4 and core.report()["staleness_max"] == 4 and in_flight(core)


# Compiled by XLA.


@check
def with_jit_compile_roots_come_from_the_callback_or_from_the_device():
    model = compiled(Shampoo(0.02, **tree(**QUICK)), jit_compile=True)
    core = lambda: model.optimizer.core  # noqa: E731
    fit(model, 7, [ShampooCallback()])
    hosted = core().report()
    assert hosted["layers_ready"] == hosted["layers"] == 1
    assert hosted["eigh"] == hosted["refreshed"] == 2 and hosted["device"] == 0
    fit(model, 8, start=7)
    alone = core().report()
    assert int(core().step) == 15
    assert alone["device"] >= 4 and alone["layers_ready"] == 1 and alone["failed"] == 0
    assert alone["residual_max"] <= 2e-2 and alone["staleness_max"] <= 4
    fit(model, 8, [ShampooCallback()], start=15)
    again = core().report()
    assert again["device"] == alone["device"] and again["eigh"] > alone["eigh"]


@check
def with_jit_compile_a_fit_that_broke_off_leaves_no_training_without_roots():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                raise KeyboardInterrupt

    model = compiled(Shampoo(0.02, **tree(**QUICK)), jit_compile=True, steps_per_execution=2)
    with contextlib.suppress(KeyboardInterrupt):
        fit(model, 8, [ShampooCallback(), Stop()])
    # Two steps: the roots of the second are there.
    assert int(model.optimizer.core.step) == 2
    assert model.optimizer.core.report()["refreshed"] == 2
    fit(model, 8, start=2)
    report = model.optimizer.core.report()
    assert int(model.optimizer.core.step) == 10
    assert report["refreshed"] == 4 and report["staleness_max"] <= 4 and report["failed"] == 0


@check
def with_jit_compile_roots_of_other_orders_need_the_callback():
    model = compiled(Shampoo(0.02, **tree(**QUICK, exponent_multiplier=1.5)), jit_compile=True)
    with refused(Exception, "exponent_multiplier=1.5", "ShampooCallback", "without jit_compile"):
        fit(model, 4)
    model = compiled(Shampoo(0.02, **tree(**QUICK, exponent_multiplier=1.5)), jit_compile=True)
    fit(model, 4, [ShampooCallback()])
    assert model.optimizer.core.report()["layers_ready"] == 1


# A distribution strategy.


@check
def a_strategy_of_one_replica_changes_nothing_but_the_kind_of_the_variables():
    for jit in (False, True):
        plain = compiled(Shampoo(0.02, **tree(**QUICK)), jit_compile=jit)
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            mirrored = compiled(Shampoo(0.02, **tree(**QUICK)), jit_compile=jit)
        histories = []
        with tempfile.TemporaryDirectory() as folder:
            for model in (plain, mirrored):
                histories.append(fit(model, 8, [ShampooCallback(log_dir=folder, every=3)]).history)
        assert isinstance(mirrored.optimizer.core.step, tf.distribute.DistributedValues)
        report = mirrored.optimizer.core.report()
        assert report["layers_ready"] == 1 and report["refreshed"] == 2 and report["staleness_max"] == 6
        assert report == plain.optimizer.core.report()
        assert {name: values[-1] for name, values in histories[1].items() if "seconds" not in name} == {
            name: values[-1] for name, values in histories[0].items() if "seconds" not in name
        }
        assert mirrored.optimizer.describe() == plain.optimizer.describe()
        assert mirrored.optimizer.core.describe().count("Shampoo") == 1
        mirrored.optimizer.core.exchange()
        same(values(mirrored), values(plain))


# Mixed precision.


def loss_scale(model):
    return float(model.optimizer.dynamic_scale if KERAS_3 else model.optimizer.loss_scale)


@check
def float16_with_loss_scaling_skips_overflows_and_goes_on():
    with policy("mixed_float16"):
        model = compiled(Shampoo(0.02, **tree(**QUICK)))
        assert isinstance(model.optimizer, keras.mixed_precision.LossScaleOptimizer)
        inner = model.optimizer.inner_optimizer
        history = fit(model, 5, [ShampooCallback()]).history
        assert history["shampoo/layers_ready"] == [1]
        before, step, (ids, labels) = values(model), int(inner.core.step), example(5)
        scale = loss_scale(model)
        model.train_on_batch(ids, labels * 1e9)
        same(values(model), before)
        assert loss_scale(model) == scale / 2 and int(inner.core.step) == step
        model.train_on_batch(ids, labels)
        assert all(differ(values(model), before)) and int(inner.core.step) == step + 1
        assert all(np.isfinite(value).all() and value.dtype == np.float32 for value in values(model))


@check
def bfloat16_activations_leave_weights_and_state_in_float32():
    with policy("mixed_bfloat16"):
        model = compiled(Shampoo(0.05, **tree(**QUICK)))
        history = [fit(model, 5).history["loss"][0] for _ in range(2)]
    core = model.optimizer.core
    assert history[1] < history[0] and core.report()["layers_ready"] == 1
    assert all(value.dtype == np.float32 for value in values(model))
    assert core.dtype == tf.float32 and core.statistics.totals[0].dtype == tf.float64


# Saving.


def resumes(save_and_load):
    """Trains past a save with a root on its way; what is loaded must go on to the same bits."""
    options = {"momentum": 0.9, "beta1": 0.5, "beta2": 0.99, "sparse": "one_sided"}
    model = compiled(Shampoo(0.02, **tree(**QUICK, **options)))
    advance(model, model.optimizer, 8)
    assert in_flight(model.optimizer.core) and int(model.optimizer.core.exchanged.exchanged_at) == 6

    def fresh():
        made = compiled(Shampoo(0.02, **tree(**QUICK, **options)))
        for variable in made.trainable_variables:
            variable.assign(tf.zeros(variable.shape))
        return made

    with tempfile.TemporaryDirectory() as folder:
        loaded = save_and_load(model, Path(folder), fresh)
        advance(model, model.optimizer, 6, start=8)
        advance(loaded, loaded.optimizer, 6, start=8)
    same(values(loaded), values(model))
    assert loaded.optimizer.core.report() == model.optimizer.core.report()
    assert int(loaded.optimizer.iterations) == 14
    assert loaded.optimizer.core is not model.optimizer.core


@check
def saved_models_resume_to_the_bit():
    def save_and_load(model, folder, _):
        model.save(folder / "model.keras")
        return keras.models.load_model(folder / "model.keras")

    resumes(save_and_load)


@check
def saved_weights_resume_to_the_bit():
    def save_and_load(model, folder, fresh):
        model.save_weights(str(folder / "model.weights.h5"))
        loaded = fresh()
        loaded.optimizer.build(loaded.trainable_variables)
        loaded.load_weights(str(folder / "model.weights.h5"))
        return loaded

    resumes(save_and_load)


@check
def checkpoints_resume_to_the_bit():
    def resume(build_first):
        def save_and_load(model, folder, fresh):
            checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
            path = checkpoint.write(str(folder / "checkpoint"))
            loaded = fresh()
            if build_first:
                loaded.optimizer.build(loaded.trainable_variables)
            status = tf.train.Checkpoint(model=loaded, optimizer=loaded.optimizer).read(path)
            status.assert_existing_objects_matched()
            return loaded

        resumes(save_and_load)

    resume(build_first=True)
    resume(build_first=False)


# The family.

FAMILY = {
    "eigenbases": lambda: Shampoo(
        0.02, **tree(**QUICK, eigenvalue_correction=True, beta1=0.5, beta2=0.9, grafted_norm=False)
    ),
    "SOAP": lambda: Soap(0.02, **tree(**QUICK)),
    "KL-Shampoo": lambda: Shampoo(0.02, **tree(**QUICK, factor_update="kl", beta2=0.9, exponent_override=2)),
    "diagonals and vectors": lambda: Shampoo(
        0.02,
        **tree(
            **QUICK,
            large_dimensions="diagonal",
            max_dimension=4,
            precondition_vectors=True,
            update_clipping=0.5,
        ),
    ),
    "Adafactor": lambda: Adafactor(0.02, beta1=0.5),
}


@check
def all_of_the_family_learn_and_resume_to_the_bit():
    for name, make in FAMILY.items():
        model = compiled(make())
        losses = fit(model, 24).history["loss"]
        assert np.isfinite(losses).all(), name
        core = model.optimizer.core
        assert core.report().get("layers_ready", 0) == core.report().get("layers", 0), name
        with tempfile.TemporaryDirectory() as folder:
            model.save(Path(folder, "model.keras"))
            loaded = keras.models.load_model(Path(folder, "model.keras"))
        assert type(loaded.optimizer) is type(model.optimizer)
        assert loaded.optimizer.options == model.optimizer.options
        for each in (model, loaded):
            advance(each, each.optimizer, 6, start=24)
        same(values(model), values(loaded))


@check
def all_of_the_family_compile():
    for name, make in FAMILY.items():
        model = compiled(make(), jit_compile=True)
        callbacks = [] if name == "Adafactor" else [ShampooCallback()]
        assert np.isfinite(fit(model, 12, callbacks).history["loss"]).all(), name
        assert int(model.optimizer.core.step) == 12


@check
def soap_takes_the_steps_of_its_preset():
    for given in (
        {},
        {
            "learning_rate": 0.02,
            "beta1": 0.5,
            "beta2": 0.9,
            "epsilon": 1e-4,
            "block_size": 3,
            **tree(**QUICK),
        },
    ):
        preset = presets.soap(**given)
        soap, shampoo = Soap(**given), Shampoo(**preset.arguments)
        assert soap.options == preset.options and float(soap.learning_rate) == np.float32(
            preset.learning_rate
        )
        same(values(trained(soap, 7)), values(trained(shampoo, 7)))
        assert soap.core.report() == shampoo.core.report()
    config = Soap(0.02, beta2=0.9, tables="words", clipnorm=1.0, name="mine").get_config()
    assert Soap.from_config(config).get_config() == config
    assert (config["grafting"]["beta2"], config["tables"], config["clipnorm"], config["name"]) == (
        0.9,
        "words",
        1.0,
        "mine",
    )
    with refused(TypeError, "Soap has no option 'beta_2'", "precondition_frequency"):
        Soap(beta_2=0.9)


@check
def adafactor_moves_touched_rows_alone_and_has_its_own_options():
    model = compiled(Adafactor(0.02))
    before = values(model)[0]
    advance(model, model.optimizer, 1)
    moved = (values(model)[0] != before).any(axis=1)
    np.testing.assert_array_equal(np.flatnonzero(moved), [0, 1, 5])
    assert "Adafactor by rows" in model.optimizer.describe()
    config = model.optimizer.get_config()
    assert type(model.optimizer).from_config(config).get_config() == config
    message = ""
    try:
        Adafactor(block_size=4)
    except TypeError as error:
        message = str(error)
    assert "Adafactor has no option 'block_size'; allowed: beta1, " in message


# Configuration.


@check
def configurations_make_the_same_optimizer():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.5)
    options = {"momentum": 0.9, "nesterov": True, "merge_dimensions": 64, "exponent_override": 2}
    for rate in (0.05, schedule):
        given = {**QUICK, **options, "weight_decay": 0.1, "tables": "words", "clipnorm": 1.0, "name": "mine"}
        first = Shampoo(rate, **tree(**given))
        second = Shampoo.from_config(first.get_config())
        config = second.get_config()
        assert config == first.get_config()
        assert second.options == first.options == ShampooOptions(**tree(**QUICK, **options, weight_decay=0.1))
        assert (config["tables"], config["clipnorm"], config["name"]) == ("words", 1.0, "mine")
        assert config.keys() >= set(ShampooOptions.names())
        same(values(trained(first, 7)), values(trained(second, 7)))


@check
def it_is_registered_under_the_name_of_the_package():
    for kind, name in ((Shampoo, "ctr>Shampoo"), (Soap, "ctr>Soap")):
        saved = keras.optimizers.serialize(kind(0.125, block_size=7))
        assert saved["registered_name"] == name
        for made in (
            keras.optimizers.deserialize(saved),
            keras.optimizers.get(saved),
            keras.optimizers.get({"class_name": name, "config": {"block_size": 7}}),
        ):
            assert type(made) is kind and made.options.block_size == 7
        assert float(keras.optimizers.deserialize(saved).learning_rate) == 0.125


@check
def it_is_known_by_name_and_saved_under_it():
    for name, kind in (("shampoo", Shampoo), ("Shampoo", Shampoo), ("soap", Soap), ("Soap", Soap)):
        model = compiled(name)
        assert type(model.optimizer) is kind and model.optimizer.get_config() == kind().get_config()
        assert type(keras.optimizers.get({"class_name": name, "config": {"block_size": 7}})) is kind
        fit(model, 3)
        with tempfile.TemporaryDirectory() as folder:
            model.save(Path(folder, "model.keras"))
            loaded = keras.models.load_model(Path(folder, "model.keras"))
        assert type(loaded.optimizer) is kind and int(loaded.optimizer.core.step) == 3
        assert type(keras.models.clone_model(loaded)) is type(model)
    with policy("mixed_float16"):
        assert type(compiled("shampoo").optimizer.inner_optimizer) is Shampoo


@check
def options_that_do_not_exist_are_refused_with_those_that_do():
    with refused(TypeError, "no option 'blocksize'", "block_size", "clipnorm", "precondition_frequency"):
        Shampoo(blocksize=3)
    with refused(TypeError, "gradient_accumulation_steps" if not KERAS_3 else "jit_compile"):
        Shampoo(**tree(**{"gradient_accumulation_steps" if not KERAS_3 else "jit_compile": 2}))


@check
def values_that_are_not_allowed_are_refused_with_those_that_are():
    for name, value, allowed in (
        ("block_size", 0, "1..65536"),
        ("beta2", 0.0, "(0.0, 1.0]"),
        ("momentum", 1.0, "[0.0, 1.0)"),
        ("grafting", "lion", "adagrad, sgd, rmsprop, adam"),
        ("asynchronous", 1, "True, False"),
        ("solver", "qr", "eigh, coupled"),
    ):
        with refused(ValueError, name, repr(value), allowed):
            Shampoo(**tree(**{name: value}))
    with refused(ValueError, "nesterov requires a momentum"):
        Shampoo(nesterov=True)
    with refused(ValueError, "every is 0"):
        ShampooCallback(every=0)
    with refused(ValueError, "requires one optimizer Shampoo, not SGD"):
        fit(compiled("sgd"), 1, [ShampooCallback()])
    with refused(ValueError, "no variables yet"):
        Shampoo().describe()


# What it shows.


@check
def the_callback_shows_its_values_in_history_and_tensorboard():
    with tempfile.TemporaryDirectory() as folder:
        own, of_keras = Path(folder, "own"), Path(folder, "keras")
        model = compiled(Shampoo(0.02, **tree(**QUICK)))
        callbacks = [
            ShampooCallback(log_dir=str(own), every=3),
            keras.callbacks.TensorBoard(str(of_keras), write_graph=False),
        ]
        history = fit(model, 8, callbacks).history
        events = {path: read_events(path) for path in (own, of_keras)}
    report, timing = model.optimizer.core.report(), model.optimizer.core.timing()
    assert {name: history[f"shampoo/{name}"] for name in report} == {n: [v] for n, v in report.items()}
    assert history["shampoo/seconds_waited"] == [timing["seconds_waited"]]
    assert timing["seconds_waited"] > 0 and timing["seconds_computing"] > 0
    spectra = model.optimizer.spectra()
    assert ["kernel" in name and "hidden" in name for name in spectra] == [True]
    assert all(0 <= one.smallest < one.largest == report["singular_value_max"] for one in spectra.values())
    kinds = ("singular_value_min", "singular_value_max", "condition")
    names = {*report, *timing, *(f"{kind}/{name}" for kind in kinds for name in spectra)}
    assert {name for name, _ in events[own]} == {f"shampoo/{name}" for name in names}
    assert {step for _, step in events[own]} == {3, 6}
    assert "epoch_shampoo/layers_ready" in {name for name, _ in events[of_keras]}


def read_events(folder):
    found = set()
    for path in folder.rglob("events*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            found |= {(value.tag, event.step) for value in event.summary.value}
    return found


@check
def describe_says_how_each_variable_is_treated():
    optimizer = Shampoo(block_size=3, momentum=0.9)
    optimizer.build(make_model().trainable_variables)
    head, words, kernel, bias, *_, total = optimizer.describe().splitlines()
    assert head.split() == [
        "tensor",
        "shape",
        "treatment",
        "statistics",
        "roots",
        "first-order",
        "Mflop/step",
    ]
    assert "words/embeddings" in words and "7x3" in words and "rows: AdaGrad, one sum per element" in words
    assert "hidden/kernel" in kernel and "Shampoo, 4 blocks of 3x2, exponent -0.25" in kernel
    assert "hidden/bias" in bias and " adagrad " in bias and bias.rstrip().endswith("-")
    # 4 blocks of 3x3 and 2x2: of their triangles 4 bytes for the window, 8 for the total; roots 4 bytes.
    assert f"{4 * (6 + 3) * 12} B" in total and f"{4 * (9 + 4) * 4} B" in total


if KERAS_3:

    @check
    def accumulated_gradients_are_one_step():
        optimizer = Shampoo(0.02, **tree(**QUICK, gradient_accumulation_steps=2))
        model = trained(optimizer, 8, sparse=False)
        by_hand = Core(**QUICK)
        for step in range(0, 8, 2):
            pair = [gradients(by_hand.weights, step + i, sparse=False) for i in (0, 1)]
            by_hand.step([(a + b) / 2 for a, b in zip(*pair, strict=True)], 0.02)
        for one, other in zip(values(model), [w.numpy() for w in by_hand.weights], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
        assert int(optimizer.core.step) == 4 and int(optimizer.iterations) == 4
        assert optimizer.core.report()["layers_ready"] == 1

    @check
    def a_scaled_loss_is_scaled_back():
        optimizer = Shampoo(0.02, **tree(**QUICK, loss_scale_factor=8.0))
        assert float(optimizer.scale_loss(tf.constant(2.0))) == 16.0
        model, by_hand = make_model(), Core(**QUICK)
        variables = model.trainable_variables
        for step in range(4):
            found = gradients(variables, step, sparse=False)
            optimizer.apply([8.0 * g for g in found], variables)
            by_hand.step(found, 0.02)
        same(values(model), [weight.numpy() for weight in by_hand.weights])

    @check
    def other_backends_are_refused():
        jax = unittest.mock.patch("keras.backend.backend", return_value="jax")
        with jax, refused(RuntimeError, "requires Keras' backend tensorflow, not jax"):
            Shampoo()


def several_replicas_are_not_compiled_by_xla():
    """Needs two logical devices, which the tests' own process does not have."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert strategy.num_replicas_in_sync == 2
    with strategy.scope():
        model = compiled(Shampoo(0.02, **tree(**QUICK)), jit_compile=True)
    with refused(Exception, "Shampoo on 2 replicas cannot be compiled by XLA", "without jit_compile=True"):
        fit(model, 2)


if __name__ == "__main__":
    wanted = sys.argv[1:]
    CHECKS["several_replicas_are_not_compiled_by_xla"] = several_replicas_are_not_compiled_by_xla
    outcome = {}
    for name, function in CHECKS.items():
        if wanted and name not in wanted:
            continue
        try:
            function()
        except Exception:
            outcome[name] = traceback.format_exc()
        else:
            outcome[name] = ""
    print(json.dumps({"keras": keras.Model.__module__.partition(".")[0], "outcome": outcome}))
