"""The space of a search: what each candidate is, and which spaces are refused."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.config import parse_model
from ctr.data.features import Category
from ctr.data.schema import Schema
from ctr.io.errors import InputError
from ctr.search.config import SearchConfig
from ctr.search.space import Decision, Space, make_space
from ctr.training.config import TrainConfig

SCHEMA = Schema(
    features=(
        Category(name="user", source="user", buckets=30, width=8),
        Category(name="item", source="item", buckets=50, width=8),
        Category(name="position", source="position", buckets=8, width=4, tower="ui"),
    )
)
BASE: dict[str, Any] = {
    "model": {
        "crosses": {"layers": 2, "rank": 4},
        "deep": {"units": [16, 8], "ranks": [4, 0]},
        "widths": {"user": 8},
    }
}
WHOLE = {
    "model.deep.layers": (1, 2, 3),
    "model.deep.units.0": (8, 16),
    "model.deep.units.1": (0, 8),
    "model.deep.units.2": (0, 4),
    "model.deep.ranks.0": (2, 4),
    "model.crosses.layers": (0, 1, 2),
    "model.crosses.rank": (2, 4),
    "model.widths.user": (2, 4, 8),
    "features.item,position": (True, False),
}


def space_of(choices: dict[str, Any], base: dict[str, Any] = BASE, **keys: Any) -> Space:
    content = {"space": {name: list(values) for name, values in choices.items()}, **keys}
    search = parse_model(SearchConfig, content, "search")
    return make_space(search, base, SCHEMA, "search s.yaml")


def expected_model(values: dict[str, Any]) -> dict[str, Any]:
    """What the words of the documentation say of a candidate, layer by layer."""
    units, ranks = [], []
    for layer in range(values["model.deep.layers"]):
        if values[f"model.deep.units.{layer}"]:
            units.append(values[f"model.deep.units.{layer}"])
            ranks.append({0: values["model.deep.ranks.0"]}.get(layer, 0))
    return {
        "units": tuple(units),
        "ranks": tuple(ranks),
        "crosses": values["model.crosses.layers"],
        "rank": values["model.crosses.rank"],
        "user": values["model.widths.user"],
        "without": () if values["features.item,position"] else ("item", "position"),
    }


@settings(deadline=None, max_examples=20)
@given(st.data())
def test_every_candidate_is_the_configuration_that_its_choices_say(data):
    names = data.draw(st.permutations(sorted(WHOLE)))
    space = space_of({name: WHOLE[name] for name in names})
    choice = data.draw(st.sampled_from([*space.candidates()]))
    values = space.values(choice)
    config = space.apply(BASE, choice)
    model = config.model
    assert {
        "units": model.deep.units,
        "ranks": model.deep.ranks,
        "crosses": model.crosses.layers,
        "rank": model.crosses.rank,
        "user": model.widths["user"],
        "without": model.without,
    } == expected_model(values)
    config.table_layouts(SCHEMA)
    largest, shape = (
        space.shape(parse_model(TrainConfig, BASE, "test"), one) for one in (space.largest, choice)
    )
    assert all(own <= most for own, most in zip(shape.deep_units, largest.deep_units, strict=True))
    assert shape.crosses <= largest.crosses and shape.without >= largest.without == set()
    assert [*space.candidates()].index(choice) == space.index(choice)
    # A checked base is changed as its keys are, and what is not decided on stays.
    assert space.apply(parse_model(TrainConfig, BASE, "test"), choice) == config
    # Of absent layers several choices say the same.
    assert space.apply(BASE, space.baseline(config) or choice) == config


def test_the_base_is_a_candidate_where_the_space_has_it():
    space = space_of(WHOLE)
    assert space.baseline(BASE) == (1, 1, 1, 0, 1, 2, 1, 2, 0)
    assert space.apply(BASE, space.baseline(BASE)) == parse_model(TrainConfig, BASE, "test")
    assert space_of({"model.crosses.layers": (0, 1)}).baseline(BASE) is None


def test_absent_layers_keep_their_places_in_the_shape():
    space = space_of(WHOLE)
    values = {**{name: choices[0] for name, choices in WHOLE.items()}, "model.deep.layers": 3}
    choice = tuple(d.choices.index(values[d.name]) for d in space.decisions)
    shape = space.shape(parse_model(TrainConfig, BASE, "test"), choice)
    assert shape.deep_units == (8, 0, 0)
    assert space.apply(BASE, choice).model.deep.units == (8,)
    # Layers that no candidate has are not in the largest network, either.
    space = space_of({"model.deep.units.1": (0,), "model.deep.units.2": (4, 0)})
    largest, smallest = (
        space.shape(parse_model(TrainConfig, BASE, "test"), one) for one in (space.largest, space.smallest)
    )
    assert smallest.deep_units == (16, 0, 0)
    assert (smallest.within(largest).deep_units, smallest.within(largest).deep_ranks) == ((16, 0), (4, 0))


REFUSED = [
    ({"model.deep.units.0": ()}, "space.model.deep.units.0: has no choice; at least one is required"),
    ({"model.deep.units.0": (8, 8)}, "space.model.deep.units.0: 8 appears twice"),
    ({"model.deep.units.0": (8, True)}, "True is not allowed: whole numbers of at least 0"),
    ({"model.deep.units.0": (8, 70_000)}, "widths of layers must be in 1..65536"),
    ({"model.deep.units.3": (8, 16)}, "space.model.deep.units.3: a layer before it is neither in"),
    ({"model.deep.ranks.0": (4, 16)}, "16 is not a bottleneck of a layer of 16; allowed: below"),
    ({"model.deep.ranks.0": (0, 4)}, "space.model.deep.ranks.0: has rank 0 beside others"),
    ({"model.factorized.width": (4, 8)}, "the configuration has no model.factorized"),
    ({"model.widths.users": (4, 8)}, "users is not a feature of the log; allowed: user, item, position"),
    ({"features.user,item,position": (True, False)}, "model.without names all features"),
    ({"model.widths.user,item": (4,), "model.widths.item": (8,)}, "about widths of the feature item"),
    ({"batch.rows": (512, 1024)}, "space.batch.rows: is no part of the architecture; allowed: model.deep.la"),
    ({"model.crosses.layers": (0, 1), "model.deep.layers": (0, 1)}, "space: a candidate has no network"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_a_wrong_space_is_refused_in_one_line(given, message):
    with pytest.raises(InputError) as refused:
        space_of(given)
    assert message in str(refused.value)
    assert str(refused.value).startswith("search s.yaml: space")
    assert "\n" not in str(refused.value)


def test_an_impossible_candidate_is_named():
    space = Space((Decision("model.deep.units.0", (8, 70_000)),))
    space.apply(BASE, (0,))
    with pytest.raises(InputError, match=r"candidate model.deep.units.0 70000: "):
        space.apply(BASE, (1,))
