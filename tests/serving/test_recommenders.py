"""Networks of runs as models of tensorflow-recommenders: the trainer's and the exports' logits; what is refused."""

import os

import numpy as np
import pytest

if os.environ.get("TF_USE_LEGACY_KERAS") != "1":
    pytest.skip("requires Keras 2: tests/optim/contrib/test_tf_keras.py", allow_module_level=True)

import tensorflow as tf
import tensorflow_recommenders as tfrs

from ctr.data.reader import rows_of_table
from ctr.io.errors import InputError
from ctr.optim import Shampoo
from ctr.serving.recommenders import RecommendersModel, ids_of_rows
from ctr.serving.scorer import Scorer
from model_cases import SCHEMA, trainer_logit


def ids_of(case):
    schema = case.snapshot.schema
    return ids_of_rows(schema, rows_of_table(case.table, schema, 0))


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("kind", ["wide", "plain"])
def test_predictions_are_the_trainers_and_the_exports(case, exported, kind):
    made = case(kind)
    model = RecommendersModel(made.snapshot)
    logit = model(ids_of(made)).numpy()
    assert 0 < made.snapshot.alpha2 < 1 and np.ptp(made.logit) > 1
    np.testing.assert_allclose(logit, made.logit, rtol=1e-5, atol=1e-5)
    scorer = Scorer(exported(kind))
    np.testing.assert_allclose(logit, scorer.score(made.raw)["logit"], rtol=1e-5, atol=1e-5)
    probability = model.predict(tf.data.Dataset.from_tensors(ids_of(made)), verbose=0)
    np.testing.assert_allclose(tf.sigmoid(probability), scorer.predict(made.raw), rtol=1e-5, atol=1e-6)
    layers = [type(layer).__name__ for layer in model.crosses]
    assert layers == ["Cross"] * 2 and isinstance(model.crosses[0], tfrs.layers.dcn.Cross)


@pytest.mark.slow
def test_beside_other_experts_it_is_the_network(case):
    made = case("all experts")
    logit = RecommendersModel(made.snapshot)(ids_of(made)).numpy()
    assert np.abs(logit - made.logit).max() > 0.1
    # What the trainer predicts where the network has the whole say.
    names, weights = made.state.experts.experts.names, made.state.experts.weights
    combination = weights[made.state.experts.experts.combination]
    before = combination.numpy()
    combination.assign([0.0, *(float(name == "network") for name in names[1:])])
    try:
        expected = trainer_logit(made.state, made.snapshot.config, rows_of_table(made.table, SCHEMA, 0))
    finally:
        combination.assign(before)
    np.testing.assert_allclose(logit, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_ids_that_grow_have_their_rows_and_unknown_ones_the_shared_rows(case):
    made = case("growing network")
    logit = RecommendersModel(made.snapshot)(ids_of(made)).numpy()
    np.testing.assert_allclose(logit, made.logit, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_it_trains_by_rows_and_by_shampoo(case):
    made = case("all experts")
    model = RecommendersModel(made.snapshot)
    ids, clicks = ids_of(made), tf.cast(tf.range(90) % 4 == 0, tf.float32)
    logit = model(ids).numpy().astype(np.float64)
    expected = np.mean(np.logaddexp(0, logit) - clicks.numpy() * logit)
    assert float(model.compute_loss((ids, clicks))) == pytest.approx(expected, rel=1e-5)
    weights = clicks + 1.0
    assert float(model.compute_loss((ids, clicks, weights))) != float(model.compute_loss((ids, clicks)))
    shampoo = Shampoo(
        0.01, start_preconditioning_step=2, roots={"early_growth": 0.0}, statistics={"frequency": 1}
    )
    model.compile(
        tfrs.experimental.optimizers.CompositeOptimizer(
            [
                (tf.keras.optimizers.Adagrad(0.05), lambda: model.embedding_trainable_variables),
                (shampoo, lambda: model.dense_trainable_variables),
            ]
        )
    )
    losses = model.fit(tf.data.Dataset.from_tensors((ids, clicks)), epochs=20, verbose=0).history["loss"]
    assert losses[0] == pytest.approx(expected, rel=1e-5) and losses[-1] < 0.8 * losses[0]
    both = [*model.embedding_trainable_variables, *model.dense_trainable_variables]
    assert {id(one) for one in both} == {id(one) for one in model.trainable_variables}
    assert len(both) == len(model.trainable_variables)
    assert len(shampoo.core.weights) == len(model.dense_trainable_variables)
    assert shampoo.core.report()["layers_ready"] == shampoo.core.report()["layers"] > 3


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("factorized", "factorized"),
        pytest.param("ensemble", "an ensemble", marks=pytest.mark.slow),
        ("logistic", "of linear weights alone"),
    ],
)
def test_other_models_are_refused(case, tmp_path, kind, what):
    words = f"the model is {what}; allowed for tensorflow-recommenders: "
    with pytest.raises(InputError, match=words) as error:
        RecommendersModel(case(kind).snapshot)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="nowhere"):
        RecommendersModel.from_run(tmp_path / "nowhere")


WITHOUT = (
    "import os, sys; os.environ['TF_USE_LEGACY_KERAS'] = '1'; sys.modules['tensorflow_recommenders'] = None"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("", "requires Keras 2, as tensorflow-recommenders does: set TF_USE_LEGACY_KERAS=1 before"),
        (WITHOUT, 'requires tensorflow_recommenders: pip install "clicktrain[train,tfrs]"'),
    ],
)
def test_what_is_missing_is_said_in_one_line(fresh_python, root, before, message):
    code = "try:\n    import ctr.serving.recommenders\nexcept ImportError as error:\n    print(error)\n"
    done = fresh_python("-c", f"{before}\n{code}", cwd=root, path=root)
    assert message in done.stdout.splitlines()[-1]
