"""A masked network against the smaller network that it stands for."""

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
# Two features of 3 columns and one of 2: e_0 has 8, or 6 in one tower and 2 in the other.
LAYOUTS = (
    TableLayout("quality", 3, (FeatureRows("a", 5, 3, "quality", 0), FeatureRows("b", 5, 3, "quality", 1))),
    TableLayout("ui", 2, (FeatureRows("c", 5, 2, "ui", 2),)),
)
UNITS, RANKS, UI_UNITS, FACTORS = (5, 4, 3), (0, 3, 0), (4, 3), 3
LARGEST = Shape(UNITS, RANKS, 2, 3, {}, (), UI_UNITS, FACTORS)
# Which experts there are, whether crosses are full, and the pieces of the transfer function of two towers.
KINDS = {
    "network": (("network",), False, None),
    "linear and network": (("linear", "network"), False, None),
    "full crosses": (("linear", "network"), True, None),
    "factorized": (("network",), False, 0),
    "factorized by pieces": (("network",), False, 5),
}


def architecture(kind: str, candidate: Shape | None = None) -> Architecture:
    """Of the network that holds all, or of a candidate as a plain model."""
    names, full, pieces = KINDS[kind]
    own = candidate or LARGEST
    present = [place for place, units in enumerate(own.deep_units) if units]
    towers = {"quality": UNITS} if pieces is None else {"quality": UNITS, "ui": UI_UNITS}
    # SmeLU of 0 is not 0: what masks leave of a unit must not be seen.
    return Architecture(
        cross_layers=own.crosses,
        cross_rank=0 if full else own.cross_rank,
        deep_units=tuple(own.deep_units[place] for place in present),
        deep_ranks=tuple(own.deep_ranks[place] if RANKS[place] else 0 for place in present),
        activation="smelu",
        prior=0.2,
        linear="linear" not in names,
        factors=None if pieces is None else Factors(own.factor_width, tuple(filter(None, own.ui_units)), pieces, 4.0),
        sources={} if candidate else {
            name: passed_over([(0, width) for width in units]) for name, units in towers.items()
        },
    )  # fmt: skip


def made(experts: Experts, widths: dict[str, int]) -> dict[str, tf.Tensor]:
    """Weights none of which is where it starts."""
    rng = np.random.default_rng(0)
    weights = init_weights(experts.network, widths, seed=0) | experts.initial()
    return {
        name: tf.constant(weight + rng.normal(size=np.shape(weight)) * 0.4, tf.float32)
        for name, weight in weights.items()
    }


@st.composite
def candidates(draw, factorized: bool) -> Shape:
    units = tuple(draw(st.integers(0, width)) for width in UNITS)
    # A tower has a column at least: U that of c, its only feature, and Q those of b, which no candidate lacks.
    without = draw(st.sets(st.sampled_from("a" if factorized else "ac")))
    return Shape(
        deep_units=units,
        deep_ranks=(0, draw(st.integers(1, 3)), 0),
        crosses=draw(st.integers(0 if any(units) else 1, 2)),
        cross_rank=draw(st.integers(1, 3)),
        widths={"a": draw(st.integers(0, 3)), "c": draw(st.integers(1 if factorized else 0, 2))},
        without=without,
        ui_units=tuple(draw(st.integers(0, width)) for width in UI_UNITS) if factorized else (),
        factor_width=draw(st.integers(1, FACTORS)) if factorized else 0,
    )


def columns_of(candidate: Shape) -> np.ndarray:
    """Which columns of e_0 the candidate has, bool [8]."""
    parts = []
    for name, width in (("a", 3), ("b", 3), ("c", 2)):
        own = 0 if name in candidate.without else candidate.widths.get(name, width)
        parts.append(np.arange(width) < own)
    return np.concatenate(parts)


def inputs() -> np.ndarray:
    """e_0, [B, 8]."""
    return np.random.default_rng(1).normal(size=(ROWS, 8)).astype(np.float32)


def prediction(experts: Experts, weights, columns: dict[str, np.ndarray]) -> np.ndarray:
    rng = np.random.default_rng(2)
    given = {
        tower: TowerInput(tf.constant(e0[np.newaxis]), tf.constant(rng.normal(size=(1, ROWS)), tf.float32))
        for tower, e0 in columns.items()
    }
    (logit,) = experts.predictions(weights, experts.scores(weights, given, tf.constant(0.7)))
    return logit.numpy()


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_a_masked_network_is_the_smaller_one(kind, data):
    """With crosses of a rank, or with full ones, that are left out as a whole; with one tower or two."""
    names, _, pieces = KINDS[kind]
    candidate, shape = data.draw(candidates(pieces is not None)), architecture(kind)
    parts = {"quality": slice(8)} if pieces is None else {"quality": slice(6), "ui": slice(6, 8)}
    of_features, kept = masks_of(candidate, shape, LAYOUTS), columns_of(candidate)
    of_columns = [of_features[f"features/{layout.name}"][:, :-1].ravel() for layout in LAYOUTS]
    np.testing.assert_array_equal(np.concatenate(of_columns), kept)
    largest = made(
        Experts(names, shape), {tower: part.stop - (part.start or 0) for tower, part in parts.items()}
    )
    own = [kept[part] for part in parts.values()]
    weights = sliced({name: one.numpy() for name, one in largest.items()}, candidate, *own)
    plain = architecture(kind, candidate)
    shapes = {name: np.shape(one) for name, one in weights.items() if not name.startswith("experts/")}
    assert (
        weight_shapes(plain, {tower: int(one.sum()) for tower, one in zip(parts, own, strict=True)}) == shapes
    )
    # From one mask to the next; a table's masks leave zeros for columns that are not kept.
    masked_part = MaskedPart(masks_of(LARGEST, shape, LAYOUTS))
    masked_part.set_to(masked_part.packed(of_features))
    e0 = inputs()
    found = prediction(
        Experts(names, shape),
        dict(masked_part.weights(largest)),
        {tower: (e0 * kept)[:, part] for tower, part in parts.items()},
    )
    columns = {tower: e0[:, part][:, kept[part]] for tower, part in parts.items()}
    expected = prediction(Experts(names, plain), weights, columns)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=4e-6)


def test_masks_of_ones_change_no_bit():
    for dtype in ("float32", "bfloat16"):
        shape = Architecture(2, 3, UNITS, RANKS, activation="smelu", compute_dtype=dtype)
        weights = made(Experts(("network",), shape), {"quality": 8})
        everything = masks_of(Shape(UNITS, RANKS, 2, 3, {}, ()), shape, LAYOUTS)
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
