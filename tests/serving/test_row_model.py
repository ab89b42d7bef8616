"""A few rows without TensorFlow: the predictions are the graph's, for every kind of model and feature."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from ctr.data.reader import rows_of_table
from ctr.io.tensor_bundle import read_bundle
from ctr.models.activations import make_activation
from ctr.serving import scorer
from ctr.serving.export import publish
from ctr.serving.metadata import read_metadata
from ctr.serving.row_model import _make_activation
from ctr.serving.saved_model import write_metadata
from ctr.serving.scorer import Scorer
from ctr.serving.weights import stored_weights, write_weights
from growing_cases import draw_rows, make_run
from model_cases import MODELS, SCHEMA, draw_raw

# What a product of bfloat16 is rounded to depends on the order of its sum: in the graph, too, single rows differ, and
# most where the processor has no such products. One rounding of a logit of 1 is 0.004, of its probability 0.001.
TOLERANCE = {"float32": 1e-6, "bfloat16": 0.006}


def rows_of(columns, rows):
    return {name: [values[row] for row in rows] for name, values in columns.items()}


def ascii_rows(count, seed=7):
    """Raw rows whose texts are cut into words without TensorFlow."""
    raw = draw_raw(count, seed)
    raw["title"] = [text and text.encode("ascii", "ignore").decode() for text in raw["title"]]
    return raw


def both(folder, **arguments):
    """A scorer that has no TensorFlow, and one that has nothing else."""
    few, graph = Scorer(folder, lazy=True, **arguments), Scorer(folder, **arguments)
    graph._few = 0
    return few, graph


def check_equal(few, graph, raw, dtype):
    """All functions of a model, row by row and for a few rows together."""
    count, atol = len(raw["price"]), TOLERANCE[dtype]
    for size in (1, 3, 8, count):
        for begin in range(0, count, size):
            part = rows_of(raw, range(begin, min(begin + size, count)))
            made, expected = few.score(part), graph.score(part)
            assert made["p"].dtype == made["logit"].dtype == np.float32
            np.testing.assert_allclose(made["p"], expected["p"], rtol=0, atol=atol)
            np.testing.assert_allclose(made["logit"], expected["logit"], rtol=2e-6, atol=10 * atol)
            if few.factorized:
                np.testing.assert_allclose(few.quality(part), graph.quality(part), rtol=1e-5, atol=10 * atol)
                np.testing.assert_allclose(few.ui(part), graph.ui(part), rtol=1e-5, atol=10 * atol)
                pairs = few.combine_pairs(few.quality(part), few.ui(part))
                expected_pairs = graph.combine_pairs(graph.quality(part), graph.ui(part))
                np.testing.assert_allclose(pairs, expected_pairs, rtol=0, atol=atol)
    assert few._loaded is None
    assert np.ptp(graph.predict(raw)) > 0.1


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *(
            pytest.param(kind, "float32", marks=[] if kind == "factorized" else pytest.mark.slow)
            for kind in MODELS
        ),
        *(pytest.param(kind, "bfloat16", marks=pytest.mark.soak) for kind in list(MODELS)[1:]),
        pytest.param(next(iter(MODELS)), "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_predictions_are_the_graphs(exported, kind, dtype):
    check_equal(*both(exported(kind, dtype), cached_rows=0), ascii_rows(24), dtype)


ACTIVATIONS = ["smelu", "relu", "gelu", "swish", "mish", "softplus", "tanh", "elu"]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_the_models(name):
    values = np.concatenate([np.linspace(-30, 30, 4001), [0, -0.5, 0.5, -100, 100]]).astype(np.float32)
    with np.errstate(all="raise", under="ignore"):
        made = _make_activation(name, 0.5)(values)
    expected = make_activation(name, 0.5)(tf.constant(values)).numpy()
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, expected, rtol=2e-6, atol=1e-6)
    assert np.isnan(_make_activation(name, 0.5)(np.array([np.nan], np.float32))).all()


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("model", ["plain", "factorized ensemble"])
def test_ids_that_grow_are_found_and_others_share_rows(tmp_path, model):
    run = make_run(tmp_path / "run", model, "float32")
    run.learn(draw_rows(40, seed=0))
    run.move(seed=1)
    few, graph = both(publish(run.snapshot(100), tmp_path / "models").path, cached_rows=0)
    raw = draw_rows(24, seed=2, unknown=True)
    raw["title"] = ascii_rows(24)["title"]
    check_equal(few, graph, raw, "float32")


def packed(rows):
    made = {"ids": rows.ids}
    for name, (values, offsets) in rows.multivalent.items():
        made |= {f"{name}.values": values, f"{name}.lengths": np.diff(offsets).astype(np.int32)}
    return made


def test_ids_of_a_log(case, exported):
    few, graph = both(exported("plain"))
    rows = rows_of_table(case("plain").table, SCHEMA, 0).slice(0, 8)
    np.testing.assert_allclose(
        few.score_ids(packed(rows))["p"], graph.score_ids(packed(rows))["p"], atol=1e-6
    )
    np.testing.assert_allclose(few.score_ids(packed(rows))["logit"], case("plain").logit[:8], atol=1e-5)
    assert few._loaded is None
    wrong = packed(rows)
    wrong["ids"] = wrong["ids"] + 1000
    with pytest.raises(ValueError, match="an id is none of its feature's"):
        few.score_ids(wrong)


def test_the_weights_are_the_saved_models_own(exported, tmp_path):
    """Other weights in the files are other predictions: there is no second copy."""
    full, raw = exported("plain"), ascii_rows(5)
    folder = shutil.copytree(full, tmp_path / "model", ignore=shutil.ignore_patterns("variables.*"))
    metadata = read_metadata(full)
    names = metadata["network"]["variables"]
    weights = dict(stored_weights(full, names))
    write_weights(folder, full, names, {**weights, "output_bias": weights["output_bias"] + np.float32(1)})
    write_metadata(folder, {key: value for key, value in metadata.items() if key != "files"})
    before = Scorer(full, lazy=True).predict(raw)
    few, graph = both(folder)
    np.testing.assert_allclose(few.predict(raw), graph.predict(raw), rtol=0, atol=1e-6)
    assert (few.predict(raw) > before + 0.01).all()


def test_what_only_tensorflow_does_alike_is_left_to_it(exported):
    loads = []
    few = Scorer(exported("plain"), lazy=True, on_load=lambda: loads.append(0))
    raw = {**ascii_rows(3), "title": ["Grün", "", "x"]}
    expected = Scorer(exported("plain")).predict(raw)
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(few.predict, [raw] * 4):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert len(loads) == 1


def test_many_small_calls_are_left_to_tensorflow_as_a_large_one_is(case, exported, monkeypatch):
    monkeypatch.setattr(scorer, "_SOME_ROWS", 50)
    some = packed(rows_of_table(case("plain").table, SCHEMA, 0).slice(0, 8))
    more = packed(rows_of_table(case("plain").table, SCHEMA, 0).slice(0, 20))
    few = Scorer(exported("plain"), lazy=True)
    for _ in range(10):
        few.score_ids(some)
    few.score_ids(more)
    few.score_ids(more)
    assert few._loaded is None
    np.testing.assert_allclose(few.score_ids(more)["logit"], case("plain").logit[:20], rtol=0, atol=1e-5)
    assert few._loaded is not None


def test_the_variables_are_those_that_tensorflow_reads(exported):
    for kind, dtype in (("plain", "float32"), ("factorized", "bfloat16")):
        prefix = exported(kind, dtype) / "variables/variables"
        theirs = tf.train.load_checkpoint(str(prefix))
        own = read_bundle(prefix)
        assert set(own) == set(theirs.get_variable_to_shape_map()) - {"_CHECKPOINTABLE_OBJECT_GRAPH"}
        for name, values in own.items():
            assert values.dtype == theirs.get_tensor(name).dtype
            np.testing.assert_array_equal(values, theirs.get_tensor(name))
