"""A masked network against the smaller network that it stands for."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.models.architecture import Architecture, Factors
from ctr.models.click_model import TowerInput, forward
from ctr.models.initial_weights import init_weights, weight_shapes
from ctr.models.rows import FeatureRows, TableLayout
from ctr.search.architecture import Shape
from ctr.search.masks import MaskedPart, candidate_weights, masks_of, passed_over
from ctr.training.experts.forward import Experts
from sliced_models import sliced

ROWS = 6
# Two features of 3 columns and one of 2: e_0 has 8.
LAYOUTS = (
    TableLayout(
        "quality",
        3,
        (FeatureRows("a", 5, 3, "quality", 0), FeatureRows("b", 5, 3, "quality", 1)),
    ),
    TableLayout("ui", 2, (FeatureRows("c", 5, 2, "ui", 2),)),
)
UNITS = (5, 4, 3)
UI_UNITS, FACTORS = (4, 3), 3


ALONE, BESIDE = ("network",), ("linear", "network")


def architecture(linear=True, full=False, activation="smelu", dtype="float32") -> Architecture:
    # SmeLU of 0 is not 0: what masks leave of a unit must not be seen.
    return Architecture(
        cross_layers=2,
        cross_rank=0 if full else 3,
        deep_units=UNITS,
        deep_ranks=(0, 3, 0),
        activation=activation,
        prior=0.2,
        linear=linear,
        compute_dtype=dtype,
        sources={"quality": passed_over([(0, width) for width in UNITS])},
    )


def made(experts: Experts, width=8, seed=0) -> dict[str, tf.Tensor]:
    """Weights none of which is where it starts."""
    rng = np.random.default_rng(seed)
    shapes = weight_shapes(experts.network, {"quality": width})
    shapes |= {name: value.shape for name, value in experts.initial().items()}
    return {name: tf.constant(rng.normal(size=own) * 0.4, tf.float32) for name, own in shapes.items()}


def alone(shape: Architecture, candidate: Shape, width: int, weights) -> Architecture:
    """The candidate as a plain model, whose weights these are."""
    present = [place for place, units in enumerate(candidate.deep_units) if units]
    plain = Architecture(
        cross_layers=candidate.crosses,
        cross_rank=candidate.cross_rank if shape.cross_rank else 0,
        deep_units=tuple(candidate.deep_units[place] for place in present),
        deep_ranks=tuple(candidate.deep_ranks[place] if shape.deep_ranks[place] else 0 for place in present),
        activation=shape.activation,
        prior=0.2,
        linear=shape.linear,
    )
    shapes = {name: np.shape(one) for name, one in weights.items() if not name.startswith("experts/")}
    assert weight_shapes(plain, {"quality": width}) == shapes
    return plain


@st.composite
def candidates(draw) -> Shape:
    units = tuple(draw(st.integers(0, width)) for width in UNITS)
    return Shape(
        deep_units=units,
        deep_ranks=(0, draw(st.integers(1, 3)), 0),
        crosses=draw(st.integers(0 if any(units) else 1, 2)),
        cross_rank=draw(st.integers(1, 3)),
        widths={"a": draw(st.integers(0, 3)), "c": draw(st.integers(0, 2))},
        without=draw(st.sets(st.sampled_from("ac"))),
    )


def columns_of(candidate: Shape) -> np.ndarray:
    """Which columns of e_0 the candidate has, bool [8]."""
    parts = []
    for name, width in (("a", 3), ("b", 3), ("c", 2)):
        own = 0 if name in candidate.without else candidate.widths.get(name, width)
        parts.append(np.arange(width) < own)
    return np.concatenate(parts)


def candidate_of(shape: Architecture, weights, candidate: Shape) -> dict[str, tf.Tensor]:
    """The weights of a candidate, from one mask to the next."""
    everything = Shape(shape.deep_units, shape.deep_ranks, 2, 3, {}, (), UI_UNITS, FACTORS)
    masked_part = MaskedPart(masks_of(everything, shape, LAYOUTS))
    masked_part.set_to(masked_part.packed(masks_of(candidate, shape, LAYOUTS)))
    return dict(masked_part.weights(weights))


def inputs(kept: np.ndarray | None = None) -> np.ndarray:
    """e_0, [B, 8], where a table's masks leave zeros for columns that are not kept."""
    values = np.random.default_rng(1).normal(size=(ROWS, 8)).astype(np.float32)
    return values if kept is None else values * kept


def prediction(experts: Experts, weights, e0: np.ndarray) -> np.ndarray:
    linear = tf.constant(np.random.default_rng(2).normal(size=(1, ROWS)), tf.float32)
    given = {"quality": TowerInput(tf.constant(e0[np.newaxis], tf.float32), linear)}
    (logit,) = experts.predictions(weights, experts.scores(weights, given, tf.constant(0.7)))
    return logit.numpy()


@pytest.mark.parametrize(("names", "full"), [(ALONE, False), (BESIDE, False), (BESIDE, True)])
@settings(deadline=None, max_examples=15)
@given(candidate=candidates())
def test_a_masked_network_is_the_smaller_one(names, full, candidate):
    """With crosses of a rank, or with full ones, that are left out as a whole."""
    shape = architecture(names == ALONE, full)
    of_features = masks_of(candidate, shape, LAYOUTS)
    of_columns = [of_features[f"features/{layout.name}"][:, :-1].ravel() for layout in LAYOUTS]
    np.testing.assert_array_equal(np.concatenate(of_columns), columns_of(candidate))
    largest, kept = made(Experts(names, shape)), columns_of(candidate)
    weights = sliced({name: one.numpy() for name, one in largest.items()}, candidate, kept)
    found = prediction(Experts(names, shape), candidate_of(shape, largest, candidate), inputs(kept))
    plain = Experts(names, alone(shape, candidate, int(kept.sum()), weights))
    np.testing.assert_allclose(found, prediction(plain, weights, inputs()[:, kept]), rtol=0, atol=2e-6)


def factorized(candidate: Shape | None = None, pieces: int = 0) -> Architecture:
    """Of the largest model with Q of a and b and U of c, or of a candidate alone."""
    if candidate is None:
        units, ui_units, width, crosses, rank = UNITS, UI_UNITS, FACTORS, 2, 3
    else:
        units, ui_units = (
            tuple(one for one in own if one) for own in (candidate.deep_units, candidate.ui_units)
        )
        width, crosses, rank = candidate.factor_width, candidate.crosses, candidate.cross_rank
    both = {"quality": UNITS, "ui": UI_UNITS}
    return Architecture(
        cross_layers=crosses,
        cross_rank=rank,
        deep_units=units,
        activation="smelu",
        prior=0.2,
        factors=Factors(width, ui_units, pieces, 4.0),
        sources={
            tower: passed_over([(0, one) for one in own]) for tower, own in both.items() if not candidate
        },
    )


@st.composite
def factorized_candidates(draw) -> Shape:
    # A tower has a column at least: U that of c, its only feature, and Q those of b, which no candidate lacks.
    plain, widths = draw(candidates()), {"a": draw(st.integers(0, 3)), "c": draw(st.integers(1, 2))}
    return replace(
        plain,
        widths=widths,
        without=plain.without - {"c"},
        ui_units=tuple(draw(st.integers(0, width)) for width in UI_UNITS),
        factor_width=draw(st.integers(1, FACTORS)),
    )


@pytest.mark.parametrize("pieces", [0, 5])
@settings(deadline=None, max_examples=15)
@given(candidate=factorized_candidates())
def test_a_masked_factorized_model_is_the_smaller_one(pieces, candidate):
    shape, rng = factorized(pieces=pieces), np.random.default_rng(3)
    largest = {
        name: weight + tf.cast(rng.normal(size=weight.shape) * 0.4, tf.float32)
        for name, weight in init_weights(shape, {"quality": 6, "ui": 2}, seed=0).items()
    }
    kept = columns_of(candidate)
    own, own_ui = kept[:6], kept[6:]
    plain = factorized(candidate, pieces)
    weights = sliced({name: one.numpy() for name, one in largest.items()}, candidate, own, own_ui)
    widths = {"quality": int(own.sum()), "ui": int(own_ui.sum())}
    assert weight_shapes(plain, widths) == {name: np.shape(one) for name, one in weights.items()}
    linear = {tower: tf.constant(rng.normal(size=(1, ROWS)), tf.float32) for tower in ("quality", "ui")}
    e0 = inputs()

    def logits(of: Architecture, weights, **columns: np.ndarray) -> np.ndarray:
        given_inputs = {
            tower: TowerInput(tf.constant(values[np.newaxis], tf.float32), linear[tower])
            for tower, values in columns.items()
        }
        return forward(of, weights, given_inputs, tf.constant(0.7)).logits.numpy()[0]

    masked_e0 = inputs(kept)
    found = logits(
        shape, candidate_of(shape, largest, candidate), quality=masked_e0[:, :6], ui=masked_e0[:, 6:]
    )
    expected = logits(plain, weights, quality=e0[:, :6][:, own], ui=e0[:, 6:][:, own_ui])
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=4e-6)


def test_masks_of_ones_change_no_bit():
    for dtype in ("float32", "bfloat16"):
        shape = Architecture(2, 3, UNITS, (0, 3, 0), activation="smelu", compute_dtype=dtype)
        weights = made(Experts(ALONE, shape))
        everything = masks_of(Shape(UNITS, (0, 3, 0), 2, 3, {}, ()), shape, LAYOUTS)
        assert all((mask == 1).all() for mask in everything.values())
        e0 = tf.constant(inputs()[np.newaxis], dtype)
        found = []
        for masks in ({}, everything):
            with tf.GradientTape() as tape:
                tape.watch([e0, weights])
                given_inputs = {"quality": TowerInput(e0, tf.zeros([1, ROWS]))}
                own = candidate_weights(weights, masks)
                logits = forward(shape, own, given_inputs, tf.constant(0.7), compiled=True).logits
                total = tf.reduce_sum(tf.square(logits))
            gradients = tape.gradient(total, [e0, *weights.values()], unconnected_gradients="zero")
            found.append([logits, *gradients])
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
