"""K-FAC beside dense Fisher matrices, and a NumPy replay of a whole training."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.optim.kfac import factors as kfac
from ctr.optim.kfac.core import KfacCore, KfacOptions, Layer
from ctr.optim.kfac.trainer import KfacTrainer

keras = tf.keras
pytestmark = pytest.mark.usefixtures("float64")


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
                pairs = zip(old, new, strict=True)
                sums[i] = tuple(options.decay * o + (1 - options.decay) * n for o, n in pairs)
        if t in (1, 5) or t % options.inverse_frequency == 0:
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


def test_every_step_is_that_of_the_formulas():
    # Factors are of every third row.
    options = {"fisher": "empirical", "statistics_frequency": 2, "inverse_frequency": 6, "statistics_rows": 5}
    options |= {"momentum": 0.8, "weight_decay": 0.1, "damping": 0.3}
    model, history = make(), batches(13)
    expected = replay(model, KfacOptions(**options), 0.05, history)
    trainer = KfacTrainer(model, "binary_crossentropy", 0.05, **options)
    for one in history:
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


def test_frozen_layers_stay_and_the_learning_rate_can_be_changed_between_steps():
    model = make()
    model.layers[0].trainable = False
    trainer = KfacTrainer(model, "mse", 0.1)
    inputs, labels = batches(1)[0]
    weights = [[weight.numpy() for weight in model.weights]]
    for rate in (0.1, 0.0):
        trainer.learning_rate = rate
        trainer.step(inputs, labels)
        weights.append([weight.numpy() for weight in model.weights])
    start, after, still = weights
    stayed = [np.array_equal(one, other) for one, other in zip(after, start, strict=True)]
    assert stayed == [True, True, False, False, False] and trainer.core.report()["layers"] == 2
    assert trainer.learning_rate == 0.0
    assert all(map(np.array_equal, after, still))
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
    inputs, labels = batches(1)[0]
    expected = np.mean((make()(inputs).numpy()[:, 0] - labels) ** 2)
    np.testing.assert_allclose(KfacTrainer(model, "mse", 0.1).step(inputs, labels), expected, rtol=1e-6)


def resnet_block():
    """The thesis' small block: convolutions with batch normalizations and a skip; then a normalization by rows."""
    keras.utils.set_random_seed(3)
    layers = keras.layers
    images = keras.Input([4, 4, 2])
    stem = layers.Conv2D(3, 3, padding="same", use_bias=False, name="stem")(images)
    normal = layers.Activation("tanh")(layers.BatchNormalization(name="batch")(stem))
    branch = layers.Conv2D(3, 3, padding="same", name="branch")(normal)
    summed = layers.LayerNormalization(name="rows", center=False)(layers.Add()([branch, stem]))
    outputs = layers.Dense(2, name="last")(layers.GlobalAveragePooling2D()(summed))
    model = keras.Model(images, outputs)
    for weight in model.trainable_weights:
        weight.assign(weight + 0.1 * keras.random.normal(weight.shape, seed=7))
    return model


def by_hand(model, images, scale, shift, row_scale, noise):
    """The block's outputs, with scales and shifts of each row and noise on the outputs of products."""
    kernels = {name: model.get_layer(name).kernel for name in ("stem", "branch", "last")}
    stem = tf.nn.conv2d(images, kernels["stem"], 1, "SAME") + noise["stem"]
    mean, variance = tf.reduce_mean(stem, (0, 1, 2)), tf.math.reduce_variance(stem, (0, 1, 2))
    normal = (stem - mean) / tf.sqrt(variance + model.get_layer("batch").epsilon)
    normal = tf.tanh(normal * scale[:, None, None] + shift[:, None, None])
    branch = tf.nn.conv2d(normal, kernels["branch"], 1, "SAME") + model.get_layer("branch").bias
    summed = stem + branch + noise["branch"]
    centered = summed - tf.reduce_mean(summed, -1, keepdims=True)
    variance = tf.reduce_mean(centered**2, -1, keepdims=True)
    summed = centered / tf.sqrt(variance + model.get_layer("rows").epsilon) * row_scale[:, None, None]
    pooled = tf.reduce_mean(summed, (1, 2))
    return pooled @ tf.convert_to_tensor(kernels["last"]) + model.get_layer("last").bias, normal


@pytest.mark.slow
def test_a_block_of_a_resnet_beside_gradients_of_each_row():
    """THESIS eq. 3.6-3.7 for convolutions, 3.10-3.12 for scales and shifts, by variables of single rows."""
    model = resnet_block()
    rng = np.random.default_rng(1)
    images, labels = rng.normal(size=(6, 4, 4, 2)), rng.integers(0, 2, size=(6, 2)).astype(np.float64)
    batch, of_rows = model.get_layer("batch"), model.get_layer("rows")
    parts = (batch.gamma, batch.beta, of_rows.gamma)
    repeated = [tf.Variable(np.repeat(part.numpy()[np.newaxis], 6, axis=0)) for part in parts]
    noise = {name: tf.Variable(np.zeros((6, 4, 4, 3))) for name in ("stem", "branch")}
    with tf.GradientTape() as tape:
        outputs, normal = by_hand(model, images, *repeated, noise)
        losses = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, outputs), 1)
        total = tf.reduce_sum(losses)
    gradients = tape.gradient(total, [*repeated, *noise.values()])
    scale, shift, row_scale, at_stem, at_branch = (gradient.numpy() for gradient in gradients)
    before = {weight.path: weight.numpy() for weight in model.weights}
    mean_before = batch.moving_mean.numpy()
    trainer = KfacTrainer(model, "binary_crossentropy", 0.1, fisher="empirical", decay=0.0, damping=0.3)
    loss = trainer.step(images, labels)
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-12)
    state = trainer.core.variables
    of = {name: f"layer{number}" for number, name in enumerate(("stem", "batch", "branch", "rows", "last"))}
    pairs = np.stack([scale, shift], axis=2)
    fisher = np.einsum("nui,nuj->uij", pairs, pairs) / 6
    np.testing.assert_allclose(state[f"{of['batch']}/fisher"], fisher, rtol=1e-10, atol=1e-16)
    np.testing.assert_allclose(state[f"{of['rows']}/fisher"][:, 0, 0], (row_scale**2).mean(0), rtol=1e-10)
    for name, values, sent in (("stem", images, at_stem), ("branch", normal.numpy(), at_branch)):
        padded = np.pad(values, [(0, 0), (1, 1), (1, 1), (0, 0)])
        windows = [padded[:, i : i + 3, j : j + 3].reshape(6, -1) for i in range(4) for j in range(4)]
        extended = np.concatenate(windows)
        if name == "branch":
            extended = np.hstack([extended, np.ones((96, 1))])
        inputs = extended.T @ extended / 96
        np.testing.assert_allclose(state[f"{of[name]}/inputs"], inputs, rtol=1e-10, atol=1e-14)
        outer = np.einsum("nijc,nijd->cd", sent, sent) / 6
        np.testing.assert_allclose(state[f"{of[name]}/outputs"], outer, rtol=1e-10, atol=1e-16)
    # The first step of a scale and a shift, by the inverse of a 2 x 2 matrix (eq. 3.12).
    damping = 0.3 * np.trace(fisher, axis1=1, axis2=2).mean() / 2
    (a, b), (_, d) = np.moveaxis(fisher, 0, -1) + damping * np.eye(2)[:, :, np.newaxis]
    mean = pairs.sum(0) / 6
    step = np.stack([d * mean[:, 0] - b * mean[:, 1], a * mean[:, 1] - b * mean[:, 0]], 1)
    step /= (a * d - b**2)[:, None]
    graft = mean / np.sqrt(mean**2 + trainer.core.options.initial_accumulator)
    step *= np.linalg.norm(graft) / np.linalg.norm(step)
    for index, part in enumerate((batch.gamma, batch.beta)):
        np.testing.assert_allclose(before[part.path] - part, 0.1 * step[:, index], rtol=1e-9, atol=1e-13)
    assert not np.allclose(batch.moving_mean, mean_before)


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_block_of_a_resnet_learns_and_a_skipped_step_moves_no_average(jit):
    model = resnet_block()
    rng = np.random.default_rng(2)
    images = rng.normal(size=(64, 4, 4, 2))
    labels = (images[:, 1:3, 1:3].mean((1, 2)) > 0).astype(np.float64)
    trainer = KfacTrainer(model, "binary_crossentropy", 0.05, jit_compile=jit)
    losses = [float(trainer.step(images, labels)) for _ in range(25)]
    assert losses[-1] < 0.75 * losses[0]
    assert trainer.core.report()["layers_ready"] == 5
    before = [weight.numpy() for weight in model.weights]
    assert np.isnan(trainer.step(images * np.nan, labels))
    for weight, expected in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), expected)
    assert (int(trainer.nonfinite_steps), int(trainer.core.step)) == (1, 25)


def before_dense(layer):
    model = keras.Sequential([layer, keras.layers.Dense(1)])
    model.build([None, 3])
    return model


class Subclass(keras.Model):
    def call(self, inputs):
        return inputs


def test_a_normalization_of_another_axis_is_refused():
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input([3, 3]), layers.LayerNormalization(axis=1), layers.Flatten(), layers.Dense(1)]
    )
    trainer = KfacTrainer(model, "mse", 0.1)
    with pytest.raises(ValueError, match=r"normalizes axis \[?1\]?; allowed: the last one"):
        trainer.step(np.ones((2, 3, 3)), np.ones(2))
    with pytest.raises(ValueError, match=r"inputs of shape \(2, 4, 3\).*\['rows', 3, 3\]"):
        trainer.step(np.ones((2, 4, 3)), np.ones(2))


def test_models_and_options_that_are_refused():
    layers = keras.layers
    noise = keras.Sequential([layers.GaussianNoise(0.5)])
    for model, message in (
        (before_dense(noise), r"\(GaussianNoise\) behaves differently in training"),
        (before_dense(layers.Dense(2, kernel_regularizer="l2")), "has a kernel_regularizer"),
        (Subclass(), "Subclass is not a Sequential model; allowed: that or a Functional one"),
        (keras.Sequential([layers.Dense(1)]), "is not built"),
    ):
        with pytest.raises(ValueError, match=message):
            KfacTrainer(model, "mse", 0.1)
    for given, message in (
        ({"fisher": "true"}, "fisher is 'true'; allowed: 'sampled' or 'empirical'"),
        ({"loss": "hinge"}, "loss is 'hinge'"),
    ):
        with pytest.raises(ValueError, match=message):
            KfacTrainer(make(), **{"loss": "mse"} | given)
    with pytest.raises(TypeError, match=r"KfacOptions has no option 'dampning'; did you mean damping"):
        KfacTrainer(make(), "mse", 0.1, dampning=1)
