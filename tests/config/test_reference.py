"""What `ctr config` says of the keys: all of them, from the models alone; what the pages say of configurations."""

import dataclasses
import json
import re
from dataclasses import replace
from typing import get_args

import pytest
from pydantic import BaseModel

from ctr.cli import main
from ctr.config import apply_settings, parse_model
from ctr.config.kinds import CONFIGS, config_model
from ctr.config.reference import key_rows, key_table
from ctr.config.schema import field_meanings, settable_keys
from ctr.io.documents import parse_yaml
from ctr.io.errors import InputError
from ctr.optim.contrib.presets import PRESETS
from ctr.optim.shampoo.options import ShampooOptions
from ctr.training.config import TrainConfig


def models_in(annotation: object) -> set[type]:
    """The models that an annotation holds, and those in their fields."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        inner = [models_in(field.annotation) for field in annotation.model_fields.values()]
        return {annotation}.union(*inner)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return {annotation}
    return set().union(*(models_in(part) for part in get_args(annotation)))


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_key_has_a_meaning_and_no_meaning_is_of_a_key_that_is_gone(kind):
    rows = key_rows(config_model(kind))
    untold = ("", "any value")
    assert [row["key"] for row in rows if not row["meaning"] or row["allowed"] in untold] == []
    for model in models_in(config_model(kind)):
        fields = model.model_fields if issubclass(model, BaseModel) else model.__dataclass_fields__
        assert set(field_meanings(model)) <= set(fields), model


def test_the_defaults_are_those_of_the_model():
    rows = {row["key"]: row["default"] for row in key_rows(TrainConfig)}

    def check(content: dict[str, object], above: str) -> int:
        checked = 0
        for name, value in content.items():
            if isinstance(value, dict) and f"{above}{name}.{next(iter(value), '')}" in rows:
                checked += check(value, f"{above}{name}.")
            else:
                assert rows[f"{above}{name}"] == value, (above, name)
                checked += 1
        return checked

    assert check(TrainConfig().model_dump(mode="json", by_alias=True), "") > 80


def test_the_options_of_shampoo_that_a_file_can_give_are_there_with_the_default():
    rows = {row["key"]: row for row in key_rows(TrainConfig)}
    path = "optimizer.dense.shampoo."
    names = {key.removeprefix(path).partition(".")[0] for key in rows if key.startswith(path)}
    assert names == {field.name for field in dataclasses.fields(ShampooOptions)} - {"rows"} | {"preset"}
    with pytest.raises(InputError, match=r"unknown key rows: embeddings learn by optimizer.embeddings.rule"):
        parse_model(TrainConfig, {"optimizer": {"dense": {"shampoo": {"rows": {}}}}}, "x")
    with pytest.raises(InputError, match=r"roots.phases: unknown key; allowed: asynchronous, damping"):
        parse_model(TrainConfig, {"optimizer": {"dense": {"shampoo": {"roots": {"phases": 1}}}}}, "x")
    momentum = rows["optimizer.dense.shampoo.momentum"]
    assert momentum["default"] == TrainConfig().optimizer.dense.shampoo.momentum == 0.9
    assert momentum["allowed"] == "number, at least 0, below 1"


def test_a_configuration_begins_with_a_preset_and_keeps_all_of_it():
    given = {"optimizer": {"dense": {"shampoo": {"preset": "pso", "momentum": 0.8}}}}
    config = parse_model(TrainConfig, given, "x")
    assert config.optimizer.dense.shampoo == replace(PRESETS["pso"], momentum=0.8)
    assert parse_model(TrainConfig, config.model_dump(), "x") == config
    slower = {"optimizer": {"dense": {"shampoo": {"preset": "pso", "precondition_frequency": 400}}}}
    options = parse_model(TrainConfig, slower, "x").optimizer.dense.shampoo
    assert (options.roots.first, options.start_preconditioning_step) == (400, 401)
    without = apply_settings(given, ["optimizer.dense.shampoo.preset=null"])
    assert parse_model(TrainConfig, without, "x").optimizer.dense.shampoo.roots == PRESETS["ff"].roots
    with pytest.raises(InputError, match="preset is 'x'; allowed: ff, pso, pt"):
        parse_model(TrainConfig, {"optimizer": {"dense": {"shampoo": {"preset": "x"}}}}, "x")


ALLOWED = {
    "batch.rows": "whole number, at least 1, at most 1048576",
    "batch.growth": "number, above 0, at most 1 or auto or null",
    "model.query_size": "auto or true or false",
    "model.widths": "by name: whole number",
    "model.factorized": "group or null",
    "objective.labels": "by name: group",
    "objective.labels.NAME.given": "click or all",
    "objective.bias_constraints.families": "list of group",
    "objective.bias_constraints.families[].name": "name of letters, digits, _ . -",
}


def test_how_keys_are_shown_found_and_refused():
    rows = {row["key"]: row["allowed"] for row in key_rows(TrainConfig)}
    assert {key: rows[key] for key in ALLOWED} == ALLOWED
    table = key_table(key_rows(TrainConfig, "model.crosses"))
    shown = [" ".join(line.split()) for line in table.splitlines()]
    assert shown[0] == "model.crosses The crosses of DCNv2 (FF 4.3). [group]"
    assert shown[1].startswith("model.crosses.layers: 2 The number of crosses; 0: none. [whole number, at ")
    family = "objective.bias_constraints.families"
    assert family in settable_keys(TrainConfig) and f"{family}[].name" not in settable_keys(TrainConfig)
    for path in (f"{family}.name", f"{family}.0.name", f"{family}[].name"):
        assert [row["key"] for row in key_rows(TrainConfig, path)] == [f"{family}[].name"]
    for path, line in (
        ("layers", "no key layers; did you mean model.crosses.layers?"),
        ("qqq", "no key qqq; allowed: seed, time_range, sampling, "),
    ):
        with pytest.raises(InputError, match=f"^x: {re.escape(line)}"):
            key_rows(TrainConfig, path, "x")


def test_ctr_config_prints_a_table_and_json(capsys):
    assert main(["config", "model.crosses"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0].rpartition(".")[2] for line in lines[1:]] == ["layers:", "rank:", "ramp:"]
    assert main(["config", "joins", "--kind", "mapping", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["kind"] == "mapping"
    key = {"key": "joins[].file", "required": True, "allowed": "text, at least 1 characters"}
    assert printed["keys"][1].items() >= key.items()
    assert main(["config", "modle.crosses"]) == 1
    assert "no key modle.crosses; did you mean model.crosses" in capsys.readouterr().err


def test_every_environment_variable_is_documented(root):
    page = (root / "docs" / "reference" / "configuration.md").read_text()
    names = set()
    for folder in ("ctr", "eval", "models", "optim", "pipelines"):
        for path in (root / folder).rglob("*.py"):
            text = path.read_text()
            names |= set(re.findall(r"environ(?:\.get\(|\.setdefault\(|\[)\s*\"([A-Z][A-Z0-9_]+)\"", text))
    device = (root / "ctr" / "training" / "device.py").read_text().partition("_VARIABLES = (")[2]
    names |= set(re.findall(r"\"([A-Z][A-Z0-9_]+)\"", device.partition(")")[0]))
    assert {"TF_CPP_MIN_LOG_LEVEL", "OMP_NUM_THREADS"} < names
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_the_configurations_in_the_pages_about_shampoo_are_valid(root):
    page = (root / "docs/reference/shampoo-options.md").read_text()
    (block,) = re.findall(r"^```yaml\n(optimizer:\n.*?)^```", page, re.M | re.S)
    content = parse_yaml(block)
    parse_model(TrainConfig, content, "the page")
    assert "method" in content["optimizer"]["dense"]["shampoo"]
