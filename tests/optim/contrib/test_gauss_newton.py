"""Steps of BACKPACK's update rule beside a replay in NumPy, with curvature by brute force."""

import numpy as np
import pytest
import tensorflow as tf

from ctr.optim import GaussNewtonTrainer

keras = tf.keras
pytestmark = pytest.mark.usefixtures("float64")
RATE, DAMPING, L2, ROWS = 0.3, 0.05, 0.01, 6
LOSS = "categorical_crossentropy"


def make():
    keras.utils.set_random_seed(3)
    layers = keras.layers
    hidden = layers.Dense(4, activation="tanh", name="hidden")
    model = keras.Sequential([keras.Input([5]), hidden, layers.Dense(3, name="last", use_bias=False)])
    model.get_layer("hidden").bias.assign(np.linspace(-1, 1, 4))
    return model


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def replay(curvature, weights, history, draws):
    """Steps of eq. 27 to 29 on tanh(x W + b) V, of whole Gauss-Newton blocks where they are exact."""
    w, b, v = weights
    for (inputs, classes), drawn in zip(history, draws, strict=True):
        hidden = np.tanh(inputs @ w + b)
        chance = softmax(hidden @ v)
        # Of each row: columns [C, K] whose outer product is the Hessian of its loss, or estimates it.
        hessian = [np.diag(p) - np.outer(p, p) for p in chance]
        if curvature in ("ggn_mc", "kfac"):
            classes_drawn = np.eye(3)[drawn(hidden @ v)]
            roots = list((chance - classes_drawn)[:, :, np.newaxis])
        else:
            decomposed = map(np.linalg.eigh, hessian)
            roots = [vectors * np.sqrt(np.maximum(values, 0)) for values, vectors in decomposed]
        slopes = 1 - hidden**2
        sent = [(v @ root) * slope[:, np.newaxis] for root, slope in zip(roots, slopes, strict=True)]
        factors = {
            "w": inputs.T @ inputs / ROWS,
            "v": hidden.T @ hidden / ROWS,
            "b_last": sum(root @ root.T for root in roots) / ROWS,
            "b_hidden": sum(each @ each.T for each in sent) / ROWS,
        }
        if curvature == "kfra":
            factors["b_hidden"] = (v @ factors["b_last"] @ v.T) * (slopes.T @ slopes / ROWS)
        delta = (chance - np.eye(3)[classes]) / ROWS
        back = (delta @ v.T) * slopes
        gradients = inputs.T @ back + L2 * w, back.sum(0) + L2 * b, hidden.T @ delta + L2 * v
        if curvature in ("ggn", "ggn_mc"):
            of_w, of_v = (
                np.sum(np.einsum("ni,njk->nijk", values, np.stack(columns)) ** 2, axis=(0, 3)) / ROWS
                for values, columns in ((inputs, sent), (hidden, roots))
            )
            of_b = np.diag(factors["b_hidden"])
            pairs = zip(gradients, (of_w, of_b, of_v), strict=True)
            steps = [gradient / (diagonal + DAMPING + L2) for gradient, diagonal in pairs]
        else:
            steps = [
                kronecker(gradients[0], factors["w"], factors["b_hidden"]),
                np.linalg.solve(factors["b_hidden"] + (DAMPING + L2) * np.eye(4), gradients[1]),
                kronecker(gradients[2], factors["v"], factors["b_last"]),
            ]
        w, b, v = (weight - RATE * step for weight, step in zip((w, b, v), steps, strict=True))
    return w, b, v


def kronecker(gradient, a, b):
    """Eq. 28 and 29, by the whole Kronecker product of the two damped factors."""
    pi = np.sqrt(np.trace(a) * len(b) / (len(a) * np.trace(b)))
    left = a + pi * np.sqrt(DAMPING + L2) * np.eye(len(a))
    right = b + np.sqrt(DAMPING + L2) / pi * np.eye(len(b))
    return np.linalg.solve(np.kron(left, right), gradient.ravel()).reshape(gradient.shape)


@pytest.mark.parametrize("curvature", ["ggn", "ggn_mc", "kfac", "kflr", "kfra"])
def test_steps_are_those_of_the_papers_rule(curvature):
    model, rng = make(), np.random.default_rng(0)
    history = [(rng.normal(size=(ROWS, 5)), rng.integers(0, 3, ROWS)) for _ in range(3)]
    start = [weight.numpy() for weight in model.trainable_weights]

    def drawing(step):
        # Labels by Gumbel's noise of the step's seed.
        noise = tf.random.stateless_uniform([ROWS, 3], [7 + step, 0], minval=1e-30, dtype=tf.float64).numpy()
        return lambda logits: np.argmax(logits - np.log(-np.log(noise)), axis=1)

    expected = replay(curvature, start, history, [drawing(step) for step in range(3)])
    trainer = GaussNewtonTrainer(model, LOSS, curvature, RATE, DAMPING, L2, seed=7)
    chance = softmax(model(history[0][0]).numpy())
    loss = trainer.step(*history[0])
    assert loss == pytest.approx(-np.mean(np.log(chance[np.arange(ROWS), history[0][1]])), rel=1e-12)
    for data in history[1:]:
        trainer.step(*data)
    for weight, other in zip(model.trainable_weights, expected, strict=True):
        np.testing.assert_allclose(weight.numpy(), other, rtol=1e-10, atol=1e-12)
    assert (trainer.steps, trainer.nonfinite_steps) == (3, 0)


def test_frozen_layers_and_a_step_that_is_not_finite_change_nothing():
    model = make()
    model.get_layer("hidden").trainable = False
    trainer = GaussNewtonTrainer(model, LOSS, "kfac")
    weights = [[weight.numpy() for weight in model.weights]]
    for inputs in (np.ones((2, 5)), np.full((2, 5), np.nan)):
        loss = trainer.step(inputs, np.zeros(2, np.int64))
        weights.append([weight.numpy() for weight in model.weights])
    start, after, still = weights
    assert [np.array_equal(*pair) for pair in zip(start, after, strict=True)] == [True, True, False]
    assert np.isnan(loss) and all(map(np.array_equal, after, still))
    assert (trainer.steps, trainer.nonfinite_steps) == (2, 1)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("curvature is 'hessian'; allowed: ggn, ", {"curvature": "hessian"}),
        ("damping is 0; allowed: a number from 1e-12 up", {"damping": 0}),
        ("learning_rate is nan", {"learning_rate": float("nan")}),
        ("list is not a Sequential model", {"model": []}),
        ("loss is 'hinge'", {"loss": "hinge"}),
    ],
)
def test_what_is_refused(words, options):
    with pytest.raises(ValueError, match=words):
        GaussNewtonTrainer(**{"model": make(), "loss": LOSS} | options)
