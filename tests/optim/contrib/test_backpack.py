"""Statistics of a batch beside loops over rows, whole Gauss-Newton matrices and Hessians, in float64."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.optim import statistics_of
from ctr.optim.kfac.output_losses import LOSSES

keras = tf.keras
pytestmark = pytest.mark.usefixtures("float64")
ROWS = 7
LABELS = {
    "mse": lambda rng: rng.normal(size=(ROWS, 3)),
    "binary_crossentropy": lambda rng: rng.integers(0, 2, size=(ROWS, 3)).astype(np.float64),
    "categorical_crossentropy": lambda rng: rng.integers(0, 3, size=ROWS),
}


def smelu(z):
    """SmeLU, whose second derivative is not zero (FF eq. 1)."""
    return tf.where(z < -1, tf.zeros_like(z), tf.where(z < 1, (z + 1) ** 2 / 4, z))


def make(activation="tanh", outputs=3):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.layers.Flatten(dtype="float64"),
            keras.layers.Dense(4, activation=activation, dtype="float64", name="first"),
            keras.layers.Dropout(0.5, dtype="float64"),
            keras.layers.Dense(5, activation=activation, dtype="float64", name="second", use_bias=False),
            keras.layers.Dense(outputs, dtype="float64", name="last"),
        ]
    )
    model.build([None, 2, 3])
    return model


def convolutions(activation="tanh"):
    """Convolutions with strides, of both paddings, and pooling."""
    keras.utils.set_random_seed(4)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input([6, 5, 2]),
            layers.Conv2D(3, 3, padding="same", strides=2, activation=activation, name="first"),
            layers.MaxPooling2D(2, strides=1),
            layers.Conv2D(4, (2, 1), activation=activation, name="second", use_bias=False),
            layers.Flatten(),
            layers.Dense(3, name="last"),
        ]
    )


def residual(activation="tanh"):
    """A block of a ResNet, whose normalization is frozen."""
    keras.utils.set_random_seed(5)
    layers = keras.layers
    images = keras.Input([4, 4, 2])
    first = layers.Conv2D(3, 3, padding="same", name="first")(images)
    normal = layers.BatchNormalization(trainable=False)(first)
    second = layers.Conv2D(3, 2, padding="same", name="second")(layers.Activation(activation)(normal))
    pooled = layers.GlobalAveragePooling2D()(layers.Add()([first, second]))
    return keras.Model(images, layers.Dense(3, name="last")(pooled))


MODELS = {"dense": make, "convolutions": convolutions, "residual": residual}
# Each loss with one model, and each model with one loss: what a layer does follows from its outputs' gradients alone.
CASES = [*(("dense", loss) for loss in LABELS), ("convolutions", "binary_crossentropy"), ("residual", "mse")]


def batch(loss, shape=(2, 3)):
    rng = np.random.default_rng(1)
    return rng.normal(size=(ROWS, *shape)), LABELS[loss](rng)


def by_weight(found):
    """The quantities of weights and biases in the order of the model's."""
    return [one for layer in found.values() for one in (layer.weight, layer.bias) if one]


def row_gradients(model, loss, inputs, labels):
    """[weight][N, ...] of the losses of single rows, one at a time."""
    found = []
    for row in range(len(inputs)):
        with tf.GradientTape() as tape:
            outputs = model(inputs[row : row + 1])
            value = tf.reduce_sum(LOSSES[loss].values(tf.constant(labels[row : row + 1]), outputs))
        found.append(tape.gradient(value, model.trainable_weights))
    return [np.stack([tf.convert_to_tensor(one) for one in weight]) for weight in zip(*found, strict=True)]


def case(model_name, loss, *arguments):
    """A model, inputs and labels."""
    model = MODELS[model_name](*arguments)
    return model, *batch(loss, model.input_shape[1:])


def jacobians(model, inputs):
    """[weight][N, C, elements] of the outputs."""
    with tf.GradientTape(persistent=True) as tape:
        outputs = model(inputs)
    return [
        np.reshape(tape.jacobian(outputs, weight), [len(inputs), outputs.shape[1], -1])
        for weight in model.trainable_weights
    ]


def output_hessians(loss, outputs, labels):
    """[N, C, C] of each row's loss, by automatic differentiation."""
    with tf.GradientTape() as second:
        second.watch(outputs)
        with tf.GradientTape() as first:
            first.watch(outputs)
            value = tf.reduce_sum(LOSSES[loss].values(labels, outputs))
        gradient = first.gradient(value, outputs)
    return second.batch_jacobian(gradient, outputs).numpy()


@pytest.mark.parametrize(("model_name", "loss"), CASES)
def test_first_order_and_the_diagonal_of_the_gauss_newton_matrix(model_name, loss):
    model, inputs, labels = case(model_name, loss)
    quantities = ("gradient", "individual", "norms", "second_moment", "variance", "ggn")
    gradients = row_gradients(model, loss, inputs, labels)
    outer = output_hessians(loss, model(inputs), tf.constant(labels))
    root = LOSSES[loss].hessian_root(model(inputs)).numpy()
    np.testing.assert_allclose(np.einsum("nck,ndk->ncd", root, root), outer, rtol=1e-12, atol=1e-14)
    by_outputs = jacobians(model, inputs)
    # Frozen layers have statistics, too.
    next(layer for layer in model.layers if layer.name == "first").trainable = loss != "mse"
    found = by_weight(statistics_of(model, loss, (inputs, labels), quantities))
    assert len(found) == len(gradients) >= 5
    for one, rows, jacobian in zip(found, gradients, by_outputs, strict=True):
        # Nothing is computed that was not asked for.
        assert set(one) == set(quantities)
        assert one["gradient"].shape == rows.shape[1:]
        np.testing.assert_allclose(one["individual"], rows / ROWS, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(one["gradient"], rows.mean(0), rtol=1e-12, atol=1e-15)
        norms = np.sum((rows / ROWS) ** 2, axis=tuple(range(1, rows.ndim)))
        np.testing.assert_allclose(one["norms"], norms, rtol=1e-12)
        np.testing.assert_allclose(one["second_moment"], (rows**2).mean(0), rtol=1e-12, atol=1e-18)
        np.testing.assert_allclose(one["variance"], rows.var(0), rtol=1e-9, atol=1e-15)
        expected = np.einsum("nce,ncd,nde->e", jacobian, outer, jacobian) / ROWS
        np.testing.assert_allclose(one["ggn"].ravel(), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("loss", LABELS)
def test_drawn_gradients_have_the_hessian_as_the_mean_of_their_squares(loss):
    outputs = tf.repeat(tf.constant(np.random.default_rng(2).normal(size=(1, 3))), 40_000, axis=0)
    drawn = LOSSES[loss].draw(outputs, tf.constant([3, 0])).numpy()
    squares = drawn[:, :, np.newaxis] * drawn[:, np.newaxis]
    exact = output_hessians(loss, outputs[:1], tf.constant(LABELS[loss](np.random.default_rng(1))[:1]))[0]
    error = squares.std(axis=0) / np.sqrt(len(squares))
    assert (np.abs(squares.mean(axis=0) - exact) < 6 * error + 1e-12).all()


@pytest.mark.parametrize(("model_name", "activation"), [("convolutions", smelu), ("dense", "relu")])
def test_the_diagonal_of_the_hessian_has_its_residual_terms(model_name, activation):
    loss = "categorical_crossentropy"
    model, inputs, labels = case(model_name, loss, activation)
    found = by_weight(statistics_of(model, loss, (inputs, labels), ("hessian", "ggn")))
    for one, weight in zip(found, model.trainable_weights, strict=True):
        with tf.GradientTape() as second:
            with tf.GradientTape() as first:
                value = tf.reduce_mean(LOSSES[loss].values(tf.constant(labels), model(inputs)))
            gradient = first.gradient(value, weight)
        hessian = np.reshape(second.jacobian(gradient, weight), [one["hessian"].size] * 2)
        np.testing.assert_allclose(one["hessian"].ravel(), np.diag(hessian), rtol=1e-10, atol=1e-14)
    # Piecewise linear networks have no residual terms.
    assert (np.abs(found[0]["hessian"] - found[0]["ggn"]).max() < 1e-12) == (activation == "relu")


def test_kronecker_factors_are_the_averages_of_their_definitions():
    loss = "categorical_crossentropy"
    model, (inputs, labels) = make(), batch(loss)
    found = statistics_of(model, loss, (inputs, labels), ("kflr", "kfra", "kfac"), samples=2)
    outer = output_hessians(loss, model(inputs), tf.constant(labels))
    assert [set(layer.factors) for layer in found.values()] == [{"kflr", "kfra", "kfac"}] * 3
    # Of the last layer B is the mean Hessian by the outputs, whichever the rule.
    for rule in ("kflr", "kfra"):
        np.testing.assert_allclose(found["last"].factors[rule].outputs, outer.mean(0), rtol=1e-12)
    kernel, last = (layer.kernel.numpy() for layer in model.layers if layer.name in ("second", "last"))
    flat = inputs.reshape(ROWS, -1)
    first = np.tanh(flat @ model.layers[1].kernel.numpy() + model.layers[1].bias.numpy())
    second = np.tanh(first @ kernel)
    slopes = 1 - second**2
    sent = (last @ outer @ last.T) * np.einsum("ni,nj->nij", slopes, slopes)
    np.testing.assert_allclose(found["second"].factors["kflr"].outputs, sent.mean(0), rtol=1e-11)
    np.testing.assert_allclose(found["second"].factors["kflr"].inputs, first.T @ first / ROWS, rtol=1e-12)
    averaged = (last @ outer.mean(0) @ last.T) * (slopes.T @ slopes / ROWS)
    np.testing.assert_allclose(found["second"].factors["kfra"].outputs, averaged, rtol=1e-11)


def patches(images, layer):
    """[N, T, in] of the inputs of a convolution, by loops."""
    (high, wide), (down, right) = layer.kernel_size, layer.strides
    if layer.padding == "same":
        gaps = [
            max((-(-size // step) - 1) * step + side - size, 0)
            for size, side, step in zip(images.shape[1:3], layer.kernel_size, layer.strides, strict=True)
        ]
        images = np.pad(images, [(0, 0), *((gap // 2, gap - gap // 2) for gap in gaps), (0, 0)])
    rows = range(0, images.shape[1] - high + 1, down)
    columns = range(0, images.shape[2] - wide + 1, right)
    found = [images[:, i : i + high, j : j + wide].reshape(len(images), -1) for i in rows for j in columns]
    return np.stack(found, axis=1)


@pytest.mark.slow
def test_kronecker_factors_of_convolutions():
    """BACKPACK's convention: A sums over positions, and B is the Gauss-Newton matrix of the bias."""
    loss = "categorical_crossentropy"
    model, inputs, labels = case("convolutions", loss)
    rules = ("kflr", "kfra", "kfac", "ggn_mc")
    found = statistics_of(model, loss, (inputs, labels), rules, samples=2, seed=3)
    outer = output_hessians(loss, model(inputs), tf.constant(labels))
    first, pool, second, flatten, last = model.layers
    middle = pool(first(inputs)).numpy()
    for layer, values in ((first, inputs), (second, middle)):
        unfolded = patches(values, layer)
        expected = sum(row.T @ row for row in unfolded) / ROWS
        for rule in ("kflr", "kfra", "kfac"):
            np.testing.assert_allclose(found[layer.name].factors[rule].inputs, expected, rtol=1e-12)
    jacobian = jacobians(model, inputs)[1]
    expected = np.einsum("nce,ncd,ndf->ef", jacobian, outer, jacobian) / ROWS
    np.testing.assert_allclose(found["first"].factors["kflr"].outputs, expected, rtol=1e-12, atol=1e-16)
    # The gradients of two draws in the place of the Hessians.
    drawn = [LOSSES[loss].draw(model(inputs), tf.constant([3, m])).numpy() for m in range(2)]
    outer_of_drawn = np.mean([np.einsum("nc,nd->ncd", sent, sent) for sent in drawn], axis=0)
    expected = np.einsum("nce,ncd,ndf->ef", jacobian, outer_of_drawn, jacobian) / ROWS
    np.testing.assert_allclose(found["first"].factors["kfac"].outputs, expected, rtol=1e-12, atol=1e-16)
    np.testing.assert_allclose(found["first"].bias["ggn_mc"], np.diag(expected), rtol=1e-12, atol=1e-16)
    # KFRA: from module to module, of Jacobians of single rows (eq. 24).
    linear = [lambda z: tf.nn.conv2d(z, second.kernel, second.strides, "VALID")]
    modules = [last, flatten, tf.tanh, *linear, pool, tf.tanh]
    before = [tf.constant(inputs)]
    before.append(tf.nn.conv2d(inputs, first.kernel, first.strides, "SAME") + first.bias)
    for module in reversed(modules):
        before.append(module(before[-1]))
    averaged = outer.mean(0)
    for number, module in enumerate(modules):
        values = before[-2 - number]
        with tf.GradientTape() as tape:
            tape.watch(values)
            after = module(values)
        whole = np.reshape(tape.batch_jacobian(after, values), [ROWS, len(averaged), -1])
        averaged = np.einsum("nfo,fg,ngp->op", whole, averaged, whole) / ROWS
        for layer, index in ((second, 2), (first, 5)):
            if number == index:
                units = layer.filters
                by_position = averaged.reshape(-1, units, len(averaged) // units, units)
                found_outputs = found[layer.name].factors["kfra"].outputs
                np.testing.assert_allclose(found_outputs, by_position.sum((0, 2)), rtol=1e-12, atol=1e-16)


def test_an_activation_may_be_a_layer_of_its_own():
    found, (inputs, labels) = [], batch("mse")
    for own, others in (("tanh", ()), (None, (keras.layers.Activation("tanh", dtype="float64"),))):
        keras.utils.set_random_seed(3)
        first = keras.layers.Dense(4, activation=own, dtype="float64", name="first")
        model = keras.Sequential([first, *others, keras.layers.Dense(3, dtype="float64", name="last")])
        model.build([None, 6])
        data = inputs.reshape(ROWS, -1), labels
        found.append(statistics_of(model, "mse", data, ("kfra",))["first"].factors["kfra"].outputs)
    np.testing.assert_allclose(*found, rtol=1e-13)


def test_the_variance_of_rows_that_are_nearly_the_same():
    """In float32 a difference of squares would leave rounding alone, and less than nothing."""
    model = keras.Sequential([keras.layers.Dense(2, dtype="float32")])
    model.build([None, 3])
    rng = np.random.default_rng(5)
    inputs = (100 + 1e-3 * rng.normal(size=(50, 3))).astype(np.float32)
    labels = np.zeros((50, 2), np.float32)
    (layer,) = statistics_of(model, "mse", (inputs, labels), ["variance"]).values()
    found = layer.weight["variance"]
    kernel, bias = (weight.numpy().astype(np.float64) for weight in model.trainable_weights)
    outputs = inputs.astype(np.float64) @ kernel + bias
    each = np.einsum("ni,nj->nij", inputs.astype(np.float64), outputs)
    np.testing.assert_allclose(found, each.var(axis=0), rtol=1e-2)
    assert found.dtype == np.float32


# What is refused.

BINARY, CATEGORICAL = "binary_crossentropy", "categorical_crossentropy"


def sequence(*layers, inputs=(3,)):
    model = keras.Sequential(list(layers))
    model.build([None, *inputs])
    return model


def images():
    return sequence(keras.layers.Conv2D(2, 3), inputs=(4, 4, 2))


def twice():
    inputs, layer = keras.Input([3]), keras.layers.Dense(3)
    return keras.Model(inputs, layer(layer(inputs)))


def two_inputs():
    inputs = [keras.Input([3]), keras.Input([3])]
    return keras.Model(inputs, keras.layers.Add()(inputs))


class SquaredDense(keras.layers.Dense):
    """Called Dense as well, and none of Keras' own."""

    def call(self, inputs):
        return super().call(inputs) ** 2


SquaredDense.__name__ = "Dense"


def probabilities():
    return sequence(keras.layers.Dense(3), keras.layers.Activation("sigmoid"), inputs=(6,))


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("loss is 'hinge'; allowed: mse, ", {"loss": "hinge"}),
        ("'trace' is no quantity; allowed: gradient, ", {"quantities": ("trace",)}),
        ("allowed: a list of names", {"quantities": "gradient"}),
        # Labels of another shape or class.
        (r"labels are of shape \(3, 7\).*of shape \[7, 3\]", {"labels": np.zeros((3, 7))}),
        (r"labels are in 0..6; allowed for \w+: 0..2", {"loss": CATEGORICAL, "labels": np.arange(7)}),
        ("of row 0 add up to 0.5; allowed", {"loss": CATEGORICAL, "labels": np.eye(3)[[0] * 7] / 2}),
        (r"allowed for \w+: .*\[7\] or \[7, 1\]", {"loss": CATEGORICAL, "labels": np.zeros(6, np.int64)}),
        # Other arguments.
        ("samples is 0", {"samples": 0}),
        ("the batch has no rows", {"inputs": np.zeros((0, 2, 3)), "labels": np.zeros((0, 3))}),
        (r"has inputs of shape \(7, 5\).*\['rows', 2, 3\]", {"inputs": np.zeros((7, 5))}),
        # Models.
        ("object is not a Sequential model", {"model": object}),
        ("BatchNormalization", {"model": lambda: sequence(keras.layers.BatchNormalization(), inputs=(2, 3))}),
        ("has trainable weights whose gradients", {"model": lambda: sequence(SquaredDense(3), inputs=(6,))}),
        ("is not Sequential; allowed for kfra", {"model": residual, "quantities": ("kfra",)}),
        ("has outputs of shape", {"model": images, "inputs": np.zeros((7, 4, 4, 2))}),
        (r"inputs of shape \(7, 2, 3\)", {"model": lambda: sequence(keras.layers.Dense(3), inputs=(2, 3))}),
        ("is called twice", {"model": twice, "inputs": np.zeros((7, 3))}),
        ("has several inputs or outputs", {"model": two_inputs}),
        # Probabilities are not read as logits, wherever the activation is.
        (
            f"has the activation .*, and {BINARY} takes logits",
            {"loss": BINARY, "model": probabilities, "inputs": np.ones((7, 6)), "labels": np.ones((7, 3))},
        ),
    ],
)
def test_what_is_not_defined_is_refused(words, given):
    given = dict(zip(("inputs", "labels"), batch("mse"), strict=True)) | given
    model, loss = given.pop("model", make)(), given.pop("loss", "mse")
    data = given.pop("inputs"), given.pop("labels")
    with pytest.raises(ValueError, match=words):
        statistics_of(model, loss, data, given.pop("quantities", ["gradient"]), **given)
    with pytest.raises(ValueError, match="allowed: inputs and labels"):
        statistics_of(make(), "mse", np.zeros((7, 2, 3)), ["gradient"])
