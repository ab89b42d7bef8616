"""Shampoo and its family in either Keras: ``fit``, loops of one's own, XLA, mixed precision, saving, the callback."""

import contextlib
import functools

import numpy as np
import pytest
import tensorflow as tf

from ctr.optim import register
from ctr.optim.shampoo.host import STATUS
from keras_models import (
    IS_KERAS_3,
    advance,
    assert_same,
    compiled,
    differ,
    example,
    fit,
    make_model,
    quick,
    values,
)

pytestmark = pytest.mark.soak


def in_flight(core):
    """Whether roots are on their way."""
    return bool((core.exchanged.status.numpy()[STATUS.index("sent")] > 0).any())


@functools.cache
def by_fit(api):
    """The weights, and the report, after eight batches."""
    model = compiled(api, api.optim.Shampoo(0.02, **quick()))
    fit(model, 8)
    return values(model), model.optimizer.core.report()


# Keras 2 has no `apply`.
OF_KERAS_3 = [("graph", "apply"), ("eager", "apply without variables")]
LOOPS = [("graph", "apply_gradients"), *(OF_KERAS_3 if IS_KERAS_3 else [("eager", "apply_gradients")])]


@pytest.mark.parametrize(("wrap", "way"), LOOPS, ids=lambda part: str(part).replace(" ", "_"))
def test_loops_of_ones_own_give_what_fit_gives(api, wrap, way):
    model = make_model(api)
    optimizer, variables = api.optim.Shampoo(0.02, **quick()), model.trainable_variables
    optimizer.build(variables)

    def step(ids, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(ids, training=True) - labels) ** 2)
        found = tape.gradient(loss, variables)
        if way == "apply_gradients":
            optimizer.apply_gradients(zip(found, variables, strict=True))
        else:
            optimizer.apply(found, *([variables] if way == "apply" else []))

    run = tf.function(step) if wrap == "graph" else step
    for number in range(8):
        run(*map(tf.constant, example(number)))
    (weights, expected), reported = by_fit(api), optimizer.core.report()
    assert reported["layers_ready"] == 1 and reported.keys() == expected.keys()
    for name, value in expected.items():
        # Graphs and eager mode round otherwise.
        if not name.endswith(("_max", "_min", "_median")) or name == "staleness_max":
            assert reported[name] == value, name
    for one, other in zip(values(model), weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=5e-4)


def test_several_steps_in_one_execution_exchange_as_single_ones_do(api):
    model = compiled(api, api.optim.Shampoo(0.02, **quick()), steps_per_execution=5)
    fit(model, 10)
    core = model.optimizer.core
    assert int(core.step) == 10 and int(core.exchanged.exchanged_at) == 10
    # Of steps 2 (waited for) and 6; what was sent at 10 is on its way.
    assert core.report()["refreshed"] == 4 and core.report()["staleness_max"] == 4 and in_flight(core)


# Compiled by XLA.


def test_with_jit_compile_roots_come_from_the_callback_or_from_the_device(api):
    class Stop(api.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                raise KeyboardInterrupt

    model = compiled(api, api.optim.Shampoo(0.02, **quick()), jit_compile=True)
    core, callback = (lambda: model.optimizer.core), api.optim.ShampooCallback
    fit(model, 7, [callback()])
    hosted = core().report()
    assert hosted["layers_ready"] == hosted["layers"] == 1
    assert hosted["refreshed"] == 2 and hosted["device"] == 0
    fit(model, 8, start=7)
    alone = core().report()
    assert alone["device"] >= 4 and alone["layers_ready"] == 1 and alone["failed"] == 0
    assert alone["residual_max"] <= 2e-2 and alone["staleness_max"] <= 4
    # A fit that broke off leaves no training without roots.
    with contextlib.suppress(KeyboardInterrupt):
        fit(model, 8, [callback(), Stop()], start=15)
    broken = core().report()
    fit(model, 8, start=17)
    again = core().report()
    assert int(core().step) == 25
    assert again["refreshed"] >= broken["refreshed"] + 2
    # Roots of step 18 came into use at step 22.
    by_host = [report["refreshed"] - report["device"] for report in (alone, again)]
    assert by_host[1] > by_host[0] and again["staleness_max"] == 7 and again["failed"] == 0


# Mixed precision.


@contextlib.contextmanager
def policy(api, name):
    keras = api.keras
    before = keras.config.dtype_policy() if api.is_keras3 else keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy(name)
    try:
        yield
    finally:
        keras.mixed_precision.set_global_policy(before)


def test_mixed_precision_skips_overflows_and_leaves_weights_and_state_in_float32(api):
    def scale():
        return float(model.optimizer.dynamic_scale if api.is_keras3 else model.optimizer.loss_scale)

    with policy(api, "mixed_float16"):
        model = compiled(api, api.optim.Shampoo(0.02, **quick()))
        assert isinstance(model.optimizer, api.keras.mixed_precision.LossScaleOptimizer)
        # Whatever was imported first, ``register`` lets Keras know the names.
        register()
        assert type(compiled(api, "shampoo").optimizer.inner_optimizer) is api.optim.Shampoo
        core = model.optimizer.inner_optimizer
        assert fit(model, 5, [api.optim.ShampooCallback()])["shampoo/layers_ready"] == [1]
        core = core.core
        before, step, was, (ids, labels) = values(model), int(core.step), scale(), example(5)
        model.train_on_batch(ids, labels * 1e9)
        assert_same(values(model), before)
        assert scale() == was / 2 and int(core.step) == step
        model.train_on_batch(ids, labels)
        assert all(differ(values(model), before)) and int(core.step) == step + 1
        assert all(np.isfinite(value).all() and value.dtype == np.float32 for value in values(model))
    with policy(api, "mixed_bfloat16"):
        model = compiled(api, api.optim.Shampoo(0.05, **quick()))
        fit(model, 5)
    core = model.optimizer.core
    assert core.report()["layers_ready"] == 1 and all(value.dtype == np.float32 for value in values(model))
    assert core.dtype == tf.float32 and core.statistics.totals[0].dtype == tf.float64


# Saving.


def whole(api, model, fresh, path):
    model.save(f"{path}.keras")
    return api.keras.models.load_model(f"{path}.keras")


def weights_alone(api, model, fresh, path):
    model.save_weights(f"{path}.weights.h5")
    loaded = fresh()
    loaded.optimizer.build(loaded.trainable_variables)
    loaded.load_weights(f"{path}.weights.h5")
    return loaded


def checkpoint(api, model, fresh, path, build_first=False):
    written = tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(path))
    loaded = fresh()
    if build_first:
        loaded.optimizer.build(loaded.trainable_variables)
    status = tf.train.Checkpoint(model=loaded, optimizer=loaded.optimizer).read(written)
    status.assert_existing_objects_matched()
    return loaded


def checkpoint_of_built(*given):
    return checkpoint(*given, build_first=True)


def test_training_that_is_saved_in_any_way_goes_on_to_the_same_bits(api, tmp_path):
    """Past a save with a root on its way."""

    def fresh():
        options = quick(momentum=0.9, beta1=0.5, beta2=0.99, rows="one_sided")
        made = compiled(api, api.optim.Shampoo(0.02, **options))
        for variable in made.trainable_variables:
            variable.assign(tf.zeros(variable.shape))
        return made

    model = fresh()
    for variable, value in zip(model.trainable_variables, values(make_model(api)), strict=True):
        variable.assign(value)
    advance(model, model.optimizer, 8)
    core = model.optimizer.core
    assert in_flight(core) and int(core.exchanged.exchanged_at) == 6
    ways = (whole, weights_alone, checkpoint, checkpoint_of_built)
    loaded = {way.__name__: way(api, model, fresh, tmp_path / way.__name__) for way in ways}
    advance(model, model.optimizer, 6, start=8)
    for name, other in loaded.items():
        advance(other, other.optimizer, 6, start=8)
        assert_same(values(other), values(model))
        assert other.optimizer.core.report() == core.report(), name
        assert int(other.optimizer.iterations) == 14 and other.optimizer.core is not core


# The family.

DIAGONALS = quick(method="diagonal", blocking={"max_dimension": 4, "vectors": True})
FAMILY = {
    "SOAP": ("Soap", quick()),
    "diagonals and vectors": ("Shampoo", DIAGONALS | {"limits": {"absolute": 0.5}, "rows": "one_sided"}),
    "Adafactor": ("Adafactor", {"beta1": 0.5}),
}


@pytest.mark.parametrize("name", FAMILY)
def test_all_of_the_family_compile_learn_and_resume_to_the_bit(api, name, tmp_path):
    kind, options = FAMILY[name]
    # One Keras with XLA, the other one without.
    optimizer = getattr(api.optim, kind)(0.02, **options)
    model = compiled(api, optimizer, jit_compile=api.is_keras3)
    callbacks = [] if name == "Adafactor" else [api.optim.ShampooCallback()]
    assert np.isfinite(fit(model, 12, callbacks)["loss"]).all()
    report = model.optimizer.core.report()
    assert int(model.optimizer.core.step) == 12
    assert report.get("layers_ready", 0) == report.get("layers", 0)
    loaded = whole(api, model, None, tmp_path / "model")
    assert type(loaded.optimizer) is type(model.optimizer)
    assert loaded.optimizer.options == model.optimizer.options
    for each in (model, loaded):
        advance(each, each.optimizer, 5, start=12)
    assert_same(values(model), values(loaded))


# What the callback shows.


def test_the_callback_shows_its_values_in_history_and_tensorboard(api, tmp_path):
    model = compiled(api, api.optim.Shampoo(0.02, **quick()))
    tensorboard = api.keras.callbacks.TensorBoard(str(tmp_path / "keras"), write_graph=False)
    callbacks = [api.optim.ShampooCallback(), tensorboard]
    history = fit(model, 8, callbacks)
    report, timing = model.optimizer.core.report(), model.optimizer.core.timing()
    assert {name: history[f"shampoo/{name}"] for name in report} == {n: [v] for n, v in report.items()}
    assert history["shampoo/seconds_waited"] == [timing["seconds_waited"]]
    assert timing["seconds_waited"] > 0 and timing["seconds_computing"] > 0
    spectra = model.optimizer.spectra()
    assert ["kernel" in name and "hidden" in name for name in spectra] == [True]
    assert all(0 <= one.smallest < one.largest == report["singular_value_max"] for one in spectra.values())
    assert "epoch_shampoo/layers_ready" in tags(tmp_path / "keras")


def tags(folder):
    records = [record for path in folder.rglob("events*") for record in tf.data.TFRecordDataset(str(path))]
    events = [tf.compat.v1.Event.FromString(record.numpy()) for record in records]
    return {value.tag for event in events for value in event.summary.value}
