"""What the objective's configuration holds, and what it refuses with the key's path."""

import pytest
import yaml
from pydantic import ValidationError

from ctr.config import dump_yaml, parse_model
from ctr.io.errors import InputError
from ctr.objective.config import ObjectiveConfig, RankingConfig
from ctr.objective.schedules import Ramp


def parse(**content):
    return parse_model(ObjectiveConfig, content, "config")


def family(**rest):
    return {"name": "all", **rest}


def own_loss(name):
    return {"name": name, "path": "x", "own_loss": True}


def constraints(*families, **rest):
    return {"bias_constraints": {"families": list(families), **rest}}


def test_what_is_dumped_is_read_again_with_the_values_as_they_were():
    values = [1, "1", 2.5, True, None, ""]
    given = parse(
        ranking={"weight": 0.3, "setup": "multi_task", "max_pairs": 10, "ramp": [5, 12]},
        distillation={"teacher": "t", "log": "runs/log", "weight": 0.25, "missing": "train_without"},
        **constraints(
            family(features={"position": values, "site": "all"}, estimated_ctr=[0.01, 0.5], log="random"),
            logs=[own_loss("random")],
        ),
    )
    again = parse(**yaml.safe_load(dump_yaml(given)))
    assert again == given
    found = again.bias_constraints.families[0].features
    assert list(map(repr, found["position"])) == list(map(repr, values))
    assert found["site"] == "all"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"rank": {}}, "rank: unknown key"),
        ({"ranking": {"weight": 1}}, "ranking.weight: 1 is not allowed.*less than 1"),
        ({"distillation": {}}, "distillation.teacher: missing"),
        ({"distillation": {"teacher": "../x"}}, r"distillation.teacher: '../x' is not allowed"),
        (constraints(), "bias_constraints: .*families is empty"),
        (constraints(family(), learning_rate=4, regularization=0.5), "4.0 times regularization 0.5 is"),
        (constraints(family(), family()), "families: all is named twice"),
        (constraints(family(estimated_ctr=[0.2, 0.2])), r"estimated_ctr \[0.2, 0.2\] does not rise"),
        (constraints(family(estimated_ctr=[1.0])), "families.0.estimated_ctr.0: 1.0 is not allowed"),
        (constraints(family(features={"f": "some"})), "features.f: 'some' is not .*the word \"all\""),
        (constraints(family(log="r")), "families.0.log is 'r', which is not a constraint log; allowed: null"),
        (constraints(family(), logs=[{"name": "r", "path": "a"}]), "logs.0: no family uses the log r"),
        (constraints(family(), logs=[own_loss(f"r{i}") for i in range(128)]), "logs: 128 are too many"),
    ],
)
def test_an_objective_that_cannot_be_is_refused_in_one_line(content, message):
    with pytest.raises(InputError, match=message) as caught:
        parse(**content)
    assert "\n" not in str(caught.value)


# Ramps.


def test_a_ramp_rises_linearly_from_its_start_over_its_length():
    for start, length, examples, weight in (
        (0, 0, 0, 1.0),
        (0, 200, 0, 0.0),
        (100, 200, 100, 0.0),
        (100, 200, 250, 0.75),
        (100, 200, 300, 1.0),
        (100, 200, 10**12, 1.0),
    ):
        assert Ramp(start, start + length).at(examples) == pytest.approx(weight)


@pytest.mark.parametrize(("given", "ramp"), [(7, (0, 7)), ([5, 7], (5, 7)), ([5, 5], (5, 5)), (0, (0, 0))])
def test_a_number_is_the_end_of_a_ramp_that_starts_at_once(given, ramp):
    config = RankingConfig(ramp=given)
    assert config.ramp == Ramp(*ramp) and config.model_dump(mode="json")["ramp"] == list(ramp)
    assert RankingConfig(**config.model_dump(mode="json")) == config


@pytest.mark.parametrize("fault", [-1, [3, 2], [1, 2, 3], True, {"length": 3}])
def test_impossible_ramps_are_refused(fault):
    with pytest.raises(ValidationError, match="the number of examples over which"):
        RankingConfig(ramp=fault)
