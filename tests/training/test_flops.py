"""Counts of operations against the shapes of real models, TensorFlow's own count of a graph, and known answers."""

import math

import pytest
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from ctr.config import parse_model
from ctr.models.click_model import TowerInput, ensemble_logit, forward
from ctr.models.embeddings import tower_widths
from ctr.models.initial_weights import init_weights, weight_shapes
from ctr.models.rows import FeatureRows, TableLayout, lay_out_tables
from ctr.training.config import TrainConfig
from ctr.training.experts.forward import make_experts
from ctr.training.flops import Touched, count_flops, dense_forward, dense_parameters

DEEP = {"crosses": {"layers": 0}, "deep": {"units": [40, 24]}}
ARCHITECTURES = {
    "deep": DEEP,
    "bottlenecks": {**DEEP, "deep": {"units": [40, 24], "ranks": [6, 0]}},
    "low-rank crosses": {"crosses": {"layers": 3, "rank": 5}, "deep": {"units": [16]}},
    "ensemble": {**DEEP, "ensemble": {"components": 3}},
    "factorized": {**DEEP, "factorized": {"width": 7, "ui_units": [9]}},
    "piecewise": {
        "crosses": {"layers": 1, "rank": 4},
        "deep": {"units": [12]},
        "factorized": {"width": 5, "ui_units": [], "transfer": "piecewise_linear", "pieces": 6},
        "ensemble": {"components": 2, "embeddings": "separate"},
    },
    "full crosses": {"crosses": {"layers": 2, "rank": 0}, "deep": {"units": []}},
}
MULTI_TASK = {"objective": {"ranking": {"setup": "multi_task"}}}
CASES = {
    **{name: {"model": model} for name, model in ARCHITECTURES.items()},
    # A rank head beside one network, beside several, and beside factors.
    **{
        f"{name} multi-task": {"model": ARCHITECTURES[name], **MULTI_TASK}
        for name in ("deep", "ensemble", "piecewise")
    },
}
ROWS = 64


def config_of(content: dict) -> TrainConfig:
    joint = {"experts": ["network"], **content.get("model", {})}
    return parse_model(TrainConfig, {"compute_dtype": "float32", **content, "model": joint}, "test")


def layouts_of(config: TrainConfig) -> tuple[TableLayout, ...]:
    features = [
        FeatureRows("user", 100, 8, "quality", 0),
        FeatureRows("item", 50, 8, "quality", 1),
        FeatureRows("words", 70, 8, "quality", None),
        FeatureRows("place", 9, 4, "ui", 2),
    ]
    ensemble = config.model.ensemble
    return lay_out_tables(features, ensemble.components if ensemble.embeddings == "separate" else 1)


def widths_of(config: TrainConfig) -> dict[str, int]:
    return tower_widths(layouts_of(config), config.model.factorized is not None)


def test_parameters_are_those_of_the_model():
    for case, content in CASES.items():
        config = config_of(content)
        network = make_experts(config.model, config.objective, "float32", ()).network
        weights = init_weights(network, widths_of(config), seed=1)
        expected = sum(math.prod(weight.shape) for weight in weights.values())
        assert dense_parameters(config, layouts_of(config)) == expected, case


def profiled(config: TrainConfig, copies: int) -> dict[str, int]:
    """TensorFlow's count for a row of the forward graph, by kind of operation."""
    model, widths = make_experts(config.model, config.objective, "float32", ()).network, widths_of(config)
    weights = {name: tf.Variable(one) for name, one in init_weights(model, widths, seed=1).items()}

    def scored(*inputs):
        given = dict(zip(widths, zip(inputs[::2], inputs[1::2], strict=True), strict=True))
        named = {name: TowerInput(*pair) for name, pair in given.items()}
        scores = forward(model, weights, named, tf.constant(1.0))
        return ensemble_logit(scores.logits), scores.rank_scores

    specs = [tf.TensorSpec(shape) for m in widths.values() for shape in ([copies, ROWS, m], [copies, ROWS])]
    frozen = convert_variables_to_constants_v2(tf.function(scored).get_concrete_function(*specs))
    builder = tf.compat.v1.profiler.ProfileOptionBuilder
    options = builder(builder.float_operation()).with_empty_output().build()
    counted: dict[str, int] = {}
    stack = [tf.compat.v1.profiler.profile(frozen.graph, cmd="op", options=options)]
    while stack:
        node = stack.pop()
        stack += node.children
        counted[node.name] = node.float_ops
    return counted


@pytest.mark.slow(first=4)
@pytest.mark.parametrize("case", CASES)
def test_as_many_as_tensorflow_counts(case):
    config = config_of(CASES[case])
    model, widths = make_experts(config.model, config.objective, "float32", ()).network, widths_of(config)
    copies = config.model.ensemble.components if config.model.ensemble.embeddings == "separate" else 1
    counted = profiled(config, copies)
    factors = model.factors
    products = 2 * sum(math.prod(shape) for shape in weight_shapes(model, widths).values() if len(shape) == 2)
    if factors is not None:
        # The slopes of a piecewise linear function are multiplied as a matrix too.
        products += model.components * 2 * factors.pieces
    assert counted.get("MatMul", 0) + counted.get("BatchMatMulV2", 0) == ROWS * products
    own = dense_forward(model, widths, training=True)
    assert own == pytest.approx(sum(counted.values()) / ROWS, abs=7 * model.components)


def test_a_rank_head_counts_for_learning_alone():
    plain, ranked = config_of(CASES["deep"]), config_of(CASES["deep multi-task"])
    widths = widths_of(plain)
    model, with_head = (
        make_experts(one.model, one.objective, "float32", ()).network for one in (plain, ranked)
    )
    assert dense_forward(with_head, widths, False) == dense_forward(model, widths, False)
    assert dense_forward(with_head, widths, True) - dense_forward(model, widths, True) == 2 * 24


def test_a_second_pass_backward_counts_once_more_what_the_inputs_of_layers_cost():
    layouts = lay_out_tables([FeatureRows("user", 100, 8, "quality", 0)])
    touched = {layouts[0].name: Touched(single=1, values=0, multivalent=0, distinct=0.25)}
    once, twice = (
        count_flops(config_of({"objective": {"ranking": {"trains": trains}}}), layouts, touched, 64)
        for trains in ("all", "outside_embeddings")
    )
    assert twice.backward - once.backward == twice.forward == once.forward
    assert twice.inference == once.inference


def counted_for(changes: dict | None = None, batch_rows: float = 64.0):
    """A model of one matrix: 8 inputs, no hidden layer but one cross of rank 0, whose matrix is [8, 8]."""
    content = {
        "model": {"crosses": {"layers": 1, "rank": 0}, "deep": {"units": []}},
        "optimizer": changes or {},
    }
    layouts = lay_out_tables([FeatureRows("user", 100, 8, "quality", 0)])
    touched = {layouts[0].name: Touched(single=1, values=0, multivalent=0, distinct=0.25)}
    return count_flops(config_of(content), layouts, touched, batch_rows)


ADAGRAD = {
    "embeddings": {"linear_rule": "adagrad"},
    "dense": {"shampoo": {"start_preconditioning_step": None, "momentum": 0}},
}


def test_a_model_counted_by_hand():
    flops = counted_for(ADAGRAD)
    look_up = 9 + 1
    # alpha2 e_0;  product, bias, e_0 *, + e_0;  head, its addition, bias.
    dense = 8 + (128 + 24) + 16 + 1 + 1
    assert flops.inference == look_up + dense
    assert flops.forward == look_up + dense
    assert flops.backward == look_up + 2 * dense
    assert flops.rows == 7 * 0.25 * 9
    # The cross and its bias, the head, the output's bias.
    assert flops.dense == 6 * (64 + 8 + 8 + 1) / 64
    assert (flops.statistics, flops.preconditioning, flops.roots) == (0, 0, 0)
    assert flops.train == flops.forward + flops.backward + flops.rows + flops.dense


def test_shampoo_counted_by_hand():
    shampoo = {"block_size": 4, "statistics": {"frequency": 10}, "precondition_frequency": 50}
    flops = counted_for({"dense": {"shampoo": shampoo}})
    # Four blocks of [4, 4], two sides each; the [8, 1] head is a vector.
    products = 4 * 2 * (2 * 16 * 4)
    assert flops.preconditioning == products / 64
    assert flops.statistics == products / 10 / 64
    assert flops.roots == pytest.approx(8 * 14 * 4**3 / 50 / 64)
    # Beside AdaGrad: momentum and Nesterov of all weights, norms and scale of the one matrix.
    assert flops.dense == (12 * 81 + 5 * 64) / 64
    # Twice the batch halves what a step takes.
    twice = counted_for({"dense": {"shampoo": shampoo}}, batch_rows=128)
    for part in ("dense", "statistics", "preconditioning", "roots"):
        assert getattr(twice, part) == getattr(flops, part) / 2 > 0
    assert twice.forward == flops.forward


def test_separate_embeddings_cost_once_a_component():
    features = [FeatureRows("user", 100, 8, "quality", 0), FeatureRows("words", 70, 8, "quality", None)]
    found = []
    for copies in (1, 3):
        layouts = lay_out_tables(features, copies)
        touched = {layouts[0].name: Touched(single=1, values=2.5, multivalent=1, distinct=0.5)}
        embeddings = "separate" if copies > 1 else "shared"
        content = {"model": {**DEEP, "ensemble": {"components": 3, "embeddings": embeddings}}}
        found.append(count_flops(config_of(content), layouts, touched, 64))
    shared, separate = found
    assert separate.rows == 3 * shared.rows
    assert separate.inference - shared.inference == 2 * ((1 + 5 + 1) * 9 + 2)
    assert separate.dense == shared.dense
