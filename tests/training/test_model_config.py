"""What of a model's configuration is refused, and the tables that follow from it."""

import pytest

from ctr.io.errors import InputError


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"deep": {"ranks": [2, 2]}}}, ["model.deep", "2 ranks for 1 units"]),
        (
            {"model": {"deep": {"ranks": [8]}}},
            ["model.deep", "rank 8 of a layer of 8", "allowed: 1..7, 0: none"],
        ),
        ({"model": {"deep": {"ranks": [-1]}}}, ["model.deep", "rank -1"]),
        ({"model": {"deep": {"activation": "relu6"}}}, ["model.deep.activation", "'smelu'"]),
        ({"model": {"deep": {"smelu_beta": 0}}}, ["model.deep.smelu_beta", "greater than 0"]),
        (
            {"model": {"ensemble": {"components": 0}}},
            ["model.ensemble.components", "greater than or equal to 1"],
        ),
        (
            {"model": {"ensemble": {"embeddings": "own"}}},
            ["model.ensemble.embeddings", "'shared' or 'separate'"],
        ),
        (
            {"model": {"factorized": {"transfer": "tanh"}}},
            ["model.factorized.transfer", "'piecewise_linear'"],
        ),
        ({"model": {"factorized": {"pieces": 1}}}, ["model.factorized.pieces", "greater than or equal to 2"]),
        ({"model": {"factorized": {"ui_units": [0]}}}, ["model.factorized", "1..65536"]),
        ({"objective": {"anti_distillation": {}}}, ["model.ensemble.components of at least 2"]),
    ],
)
def test_what_is_refused(make_config, changes, words):
    with pytest.raises(InputError) as caught:
        make_config(changes)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("changes", [{"factorized": {}}, {"ensemble": {"components": 2}}])
def test_a_logistic_regression_has_no_towers_and_no_components(make_config, changes):
    with pytest.raises(InputError, match="crosses or deep layers"):
        make_config({"model": changes}, logistic=True)


def towers(layouts) -> dict[str, set[str]]:
    return {layout.name: {feature.name for feature in layout.features} for layout in layouts}


def test_features_move_to_the_ui_tower_when_told(schema, make_config):
    usual = towers(make_config({"model": {"factorized": {}}}).table_layouts(schema))
    assert usual["ui-2"] == {"position"}
    changes = {"model": {"factorized": {"ui_features": ["tags", "position"]}}}
    moved = towers(make_config(changes).table_layouts(schema))
    assert {name for table, names in moved.items() if table.startswith("ui") for name in names} == {
        "tags",
        "position",
    }


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            {"factorized": {"ui_features": ["positon"]}},
            "ui_features names positon, which is not a feature of the log",
        ),
        ({"factorized": {"ui_features": []}}, "no feature with a width above 0 is in the tower ui"),
        ({"factorized": {}, "widths": {"position": 0}}, "no feature with a width above 0 is in the tower ui"),
        ({"widths": {"positon": 1}}, "model.widths names positon"),
    ],
)
def test_features_that_do_not_fit_are_refused(schema, make_config, model, words):
    with pytest.raises(InputError, match=words):
        make_config({"model": model}).table_layouts(schema)


def test_components_with_embeddings_of_their_own_have_wider_tables(schema, make_config):
    ensemble = {"components": 3, "embeddings": "separate"}
    one = make_config().table_layouts(schema)
    three = make_config({"model": {"ensemble": ensemble}}).table_layouts(schema)
    shared = make_config({"model": {"ensemble": {"components": 3}}}).table_layouts(schema)
    assert [layout.columns for layout in three] == [3 * layout.columns for layout in one]
    assert [layout.columns for layout in shared] == [layout.columns for layout in one]
