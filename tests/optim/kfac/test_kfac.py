"""K-FAC beside dense Fisher matrices, and a NumPy replay of a whole training."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.optim.kfac import factors as kfac
from ctr.optim.kfac.core import KfacCore, KfacOptions, Layer
from ctr.optim.kfac.trainer import KfacTrainer

keras = tf.keras
pytestmark = pytest.mark.usefixtures("float64")


def random_factors(seed=0, rows=6, columns=4):
    rng = np.random.default_rng(seed)
    a, g = rng.normal(size=(50, rows)), rng.normal(size=(50, columns)) * 0.1
    return kfac.Factors(tf.constant(a.T @ a / 50), tf.constant(g.T @ g / 50)), rng.normal(
        size=(rows, columns)
    )


def test_the_step_is_that_of_the_product_of_two_damped_inverses():
    found, gradient = random_factors()
    inverses = kfac.damped_inverses(found, tf.constant(0.3, tf.float64))
    pi = np.sqrt((np.trace(found.inputs) / 6) / (np.trace(found.outputs) / 4))
    assert float(kfac.pi(found)) == pytest.approx(pi, rel=1e-14)
    left = found.inputs + pi * np.sqrt(0.3) * np.eye(6)
    right = found.outputs + np.sqrt(0.3) / pi * np.eye(4)
    step = kfac.precondition(inverses, tf.constant(gradient))
    expected = np.linalg.solve(np.kron(left, right), gradient.ravel())
    np.testing.assert_allclose(step.numpy().ravel(), expected, rtol=1e-10)
    relative = kfac.whole_damping(found, 0.1)
    assert float(relative) == pytest.approx(0.1 * np.trace(found.inputs) * np.trace(found.outputs) / 24)


def test_factors_are_sums_over_rows():
    rng = np.random.default_rng(2)
    a, g = rng.normal(size=(9, 5)), rng.normal(size=(9, 3))
    found = kfac.factors(tf.constant(a), tf.constant(g), True)
    extended = np.hstack([a, np.ones((9, 1))])
    np.testing.assert_allclose(found.inputs, extended.T @ extended, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.outputs, g.T @ g, rtol=1e-12, atol=1e-12)


def make():
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.layers.Dense(5, activation="tanh", dtype="float64"),
            keras.layers.Dense(4, activation="relu", dtype="float64", use_bias=False),
            keras.layers.Dense(1, dtype="float64"),
        ]
    )
    model.build([None, 3])
    return model


def batches(steps):
    rng = np.random.default_rng(0)
    found = []
    for _ in range(steps):
        inputs = rng.normal(size=(16, 3))
        found.append((inputs, (inputs.sum(1) + rng.normal(size=16) > 0).astype(np.float64)))
    return found


def replay(model, options, rate, history):
    """Empirical K-FAC in NumPy, on the same network."""
    weights = [weight.numpy().astype(np.float64) for weight in model.trainable_weights]
    sums, sides = [None] * 3, [None] * 3
    squares = [np.full(w.shape, options.initial_accumulator) for w in weights]
    averages = [np.zeros(w.shape) for w in weights]
    collections = 0
    for t, (inputs, labels) in enumerate(history, 1):
        first = np.tanh(inputs @ weights[0] + weights[1])
        second = np.maximum(first @ weights[2], 0)
        logits = (second @ weights[3] + weights[4])[:, 0]
        delta3 = (1 / (1 + np.exp(-logits)) - labels)[:, None]
        delta2 = (delta3 @ weights[3].T) * (second > 0)
        delta1 = (delta2 @ weights[2].T) * (1 - first**2)
        ones = np.ones((16, 1))
        layers = [(np.hstack([inputs, ones]), delta1), (first, delta2), (np.hstack([second, ones]), delta3)]
        if t % options.statistics_frequency == 0 or t <= options.inverse_frequency:
            collections += 1
            for i, (a, g) in enumerate(layers):
                taken = slice(None, None, max(16 // options.statistics_rows, 1))
                count = len(a[taken])
                new = a[taken].T @ a[taken] / count, g[taken].T @ g[taken] / count
                old = sums[i] or (0.0, 0.0)
                sums[i] = tuple(
                    options.decay * o + (1 - options.decay) * n for o, n in zip(old, new, strict=True)
                )
        if t in (1, 5, 20) or t % options.inverse_frequency == 0:
            sides = [tuple(s / (1 - options.decay**collections) for s in pair) for pair in sums]
        for i, (a, g) in enumerate(layers):
            which = [[0, 1], [2], [3, 4]][i]
            gradient = a.T @ g / 16
            parts = np.split(gradient, [weights[which[0]].shape[0]]) if len(which) > 1 else [gradient]
            grafts = []
            for index, part in zip(which, parts, strict=True):
                squares[index] = squares[index] + part.reshape(weights[index].shape) ** 2
                grafts.append(part / np.sqrt(squares[index]).reshape(part.shape))
            graft, (left, right) = np.vstack(grafts), sides[i]
            mean = np.trace(left) / len(left), np.trace(right) / len(right)
            damping, pi = options.damping * mean[0] * mean[1], np.sqrt(mean[0] / mean[1])
            found = np.linalg.solve(left + pi * np.sqrt(damping) * np.eye(len(left)), gradient)
            found = np.linalg.solve(right + np.sqrt(damping) / pi * np.eye(len(right)), found.T).T
            found = found * (np.linalg.norm(graft) / np.linalg.norm(found))
            pieces = np.split(found, [weights[which[0]].shape[0]]) if len(which) > 1 else [found]
            for index, piece in zip(which, pieces, strict=True):
                direction = piece.reshape(weights[index].shape)
                if weights[index].ndim > 1:
                    direction = direction + options.weight_decay * weights[index]
                if options.momentum:
                    mu = options.momentum
                    averages[index] = mu * averages[index] + (1 - mu) * direction
                    direction = averages[index]
                weights[index] = weights[index] - rate * direction
    return weights


CASES = {
    "plain": {},
    "of every third row": {"statistics_rows": 5},
    "averages, decay": {"momentum": 0.8, "weight_decay": 0.1, "damping": 0.3},
}


@pytest.mark.slow
@pytest.mark.parametrize(("case", "jit"), [("plain", True), *((case, False) for case in list(CASES)[::-1])])
def test_every_step_is_that_of_the_formulas(case, jit):
    options = {"fisher": "empirical", "statistics_frequency": 2, "inverse_frequency": 6} | CASES[case]
    model = make()
    expected = replay(model, KfacOptions(**options), 0.05, batches(25))
    trainer = KfacTrainer(model, "binary_crossentropy", 0.05, jit_compile=jit, **options)
    for one in batches(25):
        assert np.isfinite(float(trainer.step(*one)))
    for weight, other in zip(model.trainable_weights, expected, strict=True):
        np.testing.assert_allclose(weight.numpy(), other, rtol=1e-7, atol=1e-9)
    report = trainer.core.report()
    assert (report["layers"], report["layers_ready"], report["failed"]) == (3, 3, 0)


def test_sampled_labels_have_the_models_own_fisher_matrix():
    """Of one layer whose weights stay: the mean of G over many draws is E[p (1 - p)]."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(1, dtype="float64")])
    model.build([None, 3])
    trainer = KfacTrainer(model, "binary_crossentropy", 0.0, decay=0.0, inverse_frequency=1000)
    inputs = np.random.default_rng(0).normal(size=(400, 3))
    drawn = []
    for _ in range(40):
        trainer.step(inputs, np.zeros(400))
        drawn.append(float(trainer.core.variables["layer0/outputs"][0, 0]))
    probability = 1 / (1 + np.exp(-model(inputs).numpy()))
    exact = np.mean(probability * (1 - probability))
    assert abs(np.mean(drawn) - exact) < 6 * np.std(drawn) / np.sqrt(len(drawn))
    assert np.std(drawn) > 0


def test_a_layer_without_gradients_waits_and_what_is_in_no_product_takes_adagrads_step():
    weights = [tf.Variable(tf.ones([3, 2])), tf.Variable([1.0, 2.0])]
    core = KfacCore(KfacOptions(initial_accumulator=0.0), weights, [Layer(0, None)])
    nothing = [kfac.Factors(tf.eye(3), tf.zeros([2, 2]))]
    core.update([tf.zeros([3, 2]), tf.constant([4.0, -9.0])], tf.constant(0.5), lambda: nothing)
    np.testing.assert_array_equal(weights[0].numpy(), np.ones((3, 2)))
    np.testing.assert_allclose(weights[1].numpy(), [0.5, 2.5])
    assert core.report() == {"layers": 1, "layers_ready": 0, "refreshed": 0, "failed": 0}


def test_factors_that_are_not_finite_leave_the_previous_ones_and_are_counted():
    weights = [tf.Variable(tf.ones([3, 2]))]
    core = KfacCore(KfacOptions(inverse_frequency=1, statistics_frequency=1), weights, [Layer(0, None)])
    bad = [kfac.Factors(np.nan * tf.eye(3), tf.eye(2))]
    for found, failed in ((bad, 1), ([kfac.Factors(tf.eye(3), tf.eye(2))], 1), (bad, 2)):
        core.update([tf.ones([3, 2])], tf.constant(0.1), lambda found=found: found)
        assert core.report()["failed"] == failed
        assert np.isfinite(weights[0].numpy()).all()
    assert core.report()["layers_ready"] == 1
    np.testing.assert_allclose(core.variables["layer0/inputs"].numpy(), 0.05 * np.eye(3), rtol=1e-6)
    # Sums that were damaged elsewhere are not decomposed, either.
    core.variables["layer0/inputs"].assign(np.nan * np.eye(3))
    before = core.variables["layer0/left"].numpy()
    core.update([tf.ones([3, 2])], tf.constant(0.1), lambda: bad)
    assert core.report()["failed"] == 4
    np.testing.assert_array_equal(core.variables["layer0/left"].numpy(), before)


def test_a_step_that_is_not_finite_is_skipped_and_frozen_layers_stay():
    model = make()
    model.layers[0].trainable = False
    trainer = KfacTrainer(model, "binary_crossentropy", 0.05)
    (inputs, labels), *_ = batches(1)
    start = [weight.numpy() for weight in model.weights]
    trainer.step(inputs, labels)
    before = [weight.numpy() for weight in model.weights]
    stayed = [np.array_equal(one, other) for one, other in zip(before, start, strict=True)]
    assert stayed == [True, True, False, False, False] and trainer.core.report()["layers"] == 2
    assert np.isnan(trainer.step(np.where(inputs > 1, np.nan, inputs), labels))
    for weight, expected in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), expected)
    assert (int(trainer.nonfinite_steps), int(trainer.core.step)) == (1, 1)
    trainer.step(inputs, labels)
    assert int(trainer.core.step) == 2


def test_the_learning_rate_can_be_changed_between_steps():
    model = make()
    trainer = KfacTrainer(model, "mse", 0.1)
    inputs, labels = batches(1)[0]
    trainer.step(inputs, labels)
    before = [weight.numpy() for weight in model.trainable_weights]
    trainer.learning_rate = 0.0
    trainer.step(inputs, labels)
    assert trainer.learning_rate == 0.0
    assert all(np.array_equal(a, b.numpy()) for a, b in zip(before, model.trainable_weights, strict=True))
    for rate in (-1.0, float("nan"), 1e300, "0.1", None):
        with pytest.raises(ValueError, match="allowed: a number from 0 up"):
            trainer.learning_rate = rate
    with pytest.raises(ValueError, match="the batch has no rows"):
        trainer.step(inputs[:0], labels[:0])
    with pytest.raises(ValueError, match="labels are of shape"):
        trainer.step(inputs, labels[:-1])
    assert int(trainer.core.step) == 2


def test_layers_that_always_do_the_same_are_taken():
    inner = keras.Sequential([keras.layers.Lambda(lambda x: x / 2)])
    model = keras.Sequential([keras.layers.Rescaling(2.0), inner, *make().layers])
    model.build([None, 3])
    trainer, plain = KfacTrainer(model, "mse", 0.1), KfacTrainer(make(), "mse", 0.1)
    inputs, labels = batches(1)[0]
    np.testing.assert_allclose(trainer.step(inputs, labels), plain.step(inputs, labels), rtol=1e-6)


def before_dense(layer):
    model = keras.Sequential([layer, keras.layers.Dense(1)])
    model.build([None, 3])
    return model


def not_sequential():
    inputs = keras.Input([3])
    return keras.Model(inputs, keras.layers.Dense(1)(inputs))


def test_models_and_options_that_are_refused():
    layers = keras.layers
    noise = keras.Sequential([layers.GaussianNoise(0.5)])
    for model, message in (
        (before_dense(layers.Dropout(0.5)), r"\(Dropout\) behaves differently in training"),
        (before_dense(noise), r"\(GaussianNoise\) behaves differently in training"),
        (before_dense(layers.Dense(2, kernel_regularizer="l2")), "has a kernel_regularizer"),
        (before_dense(layers.Dense(2, bias_constraint="non_neg")), "has a bias_constraint"),
        (not_sequential(), "is not a built Sequential model"),
    ):
        with pytest.raises(ValueError, match=message):
            KfacTrainer(model, "mse", 0.1)
    for given, message in (
        ({"fisher": "true"}, "fisher is 'true'; allowed: 'sampled' or 'empirical'"),
        ({"damping": 0}, "damping is 0"),
        ({"loss": "hinge"}, "loss is 'hinge'"),
    ):
        with pytest.raises(ValueError, match=message):
            KfacTrainer(make(), **{"loss": "mse"} | given)
    with pytest.raises(TypeError, match=r"KfacOptions has no option 'dampning'; did you mean damping"):
        KfacTrainer(make(), "mse", 0.1, dampning=1)
