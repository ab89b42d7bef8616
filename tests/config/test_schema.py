"""The JSON Schema of each configuration: it takes what is taken, refuses what is refused, and says where."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic_core import to_jsonable_python

from ctr.cli import main
from ctr.config import dump_yaml, parse_model
from ctr.config.kinds import CONFIGS, config_model
from ctr.config.reference import key_rows
from ctr.config.schema import json_schema
from ctr.io.documents import parse_yaml
from ctr.io.errors import InputError


@cache
def schema_of(kind: str) -> Draft202012Validator:
    return Draft202012Validator(json_schema(config_model(kind)))


def refused_by_schema(kind: str, content: object) -> list[str]:
    """Where a file is refused; dates of YAML are texts in JSON."""
    return [error.json_path for error in schema_of(kind).iter_errors(to_jsonable_python(content))]


def is_taken(kind: str, content: object) -> bool:
    try:
        parse_model(config_model(kind), content, "here")
    except InputError:
        return False
    return True


def test_all_schemas_are_written_for_editors_and_pages(tmp_path, root, capfd):
    out = tmp_path / "schemas"
    for _ in range(2):
        # A second time they replace themselves.
        assert main(["config", "--schema", "--out", str(out)]) == 0
    assert capfd.readouterr().out.split() == 2 * [str(out / f"{kind}.schema.json") for kind in CONFIGS]
    schemas = {kind: json.loads((out / f"{kind}.schema.json").read_text()) for kind in CONFIGS}
    for kind, schema in schemas.items():
        assert main(["config", "--kind", kind, "--schema"]) == 0
        assert json.loads(capfd.readouterr().out) == schema
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        assert (schema["$id"], schema["title"]) == (f"urn:clicktrain:config:{kind}", f"clicktrain {kind}")
        Draft202012Validator.check_schema(schema)
        assert {**schema_of(kind).schema, "$id": schema["$id"], "title": schema["title"]} == schema
    # Each shipped file is one of them, with the dates of YAML as texts.
    checked = [Draft202012Validator(schema) for schema in schemas.values()]
    files = {name: content for name, content in documents(root).items() if "/docs/" not in name}
    for name, content in files.items():
        assert any(one.is_valid(to_jsonable_python(content)) for one in checked), name
    assert len(files) > 20
    (out / "notes.txt").touch()
    assert main(["config", "--schema", "--out", str(out)]) == 1
    assert "is neither empty nor a directory of schemas" in capfd.readouterr().err
    assert main(["config", "--out", str(out)]) == 1
    assert "--out goes with --schema" in capfd.readouterr().err


def documents(root: Path) -> dict[str, Any]:
    """The YAML files of the package and its examples, the blocks of the pages, and the files that these write."""
    files = [*root.glob("examples/**/*.yaml"), *root.glob("ctr/data/formats/*.yaml")]
    found = {str(path): path.read_text() for path in files if "kubernetes" not in str(path)}
    for path in root.glob("docs/**/*.md"):
        written = r"^```yaml\n(.*?)^```|^cat > \S+\.yaml <<'END'\n(.*?)^END$"
        blocks = [block or file for block, file in re.findall(written, path.read_text(), re.M | re.S)]
        found |= {f"{path}:{number}": block for number, block in enumerate(blocks)}
    return {name: parse_yaml(text) for name, text in found.items()}


def test_the_schemas_take_every_example_and_what_a_run_writes_of_it(root):
    taken = []
    for name, content in {**documents(root), "nothing": {}, "a size": {"examples": 100}}.items():
        kinds = [kind for kind in CONFIGS if is_taken(kind, content)]
        taken += kinds
        for kind in kinds:
            written = yaml.safe_load(dump_yaml(parse_model(config_model(kind), content, kind)))
            assert refused_by_schema(kind, content) == refused_by_schema(kind, written) == [], (name, kind)
    assert len(taken) > 30 and {*taken} == {*CONFIGS}


VALUES = (
    *(None, True, 0, 5, -1, 2**63, 5.0, 0.5, 1e30),
    *("5", "", "auto", "2026-01-31", [], [1], ["a"], {}, {"a": 1}),
)


def file_with(path: str, value: Any) -> Any:
    """A file that has nothing but the key of a path."""
    for name in reversed(path.split(".")):
        for _ in range(name.count("[]")):
            value = [value]
        value = {name.replace("[]", ""): value}
    return value


@pytest.mark.parametrize("kind", ["train", "sampling", "simulator", "search"])
def test_the_schema_takes_every_value_that_is_taken(kind):
    """Of each key every third value, another third in turn."""
    # What pydantic makes of a text, a truth value or a number in a choice of types.
    loose = {"batch.growth", "batch.least", "metrics.window_examples", "model.query_size", "jit", "start"}
    agreed = compared = 0
    for number, row in enumerate(key_rows(config_model(kind))):
        for value in VALUES[number % 3 :: 3]:
            content = file_with(row["key"], value)
            taken, valid = is_taken(kind, content), schema_of(kind).is_valid(content)
            agreed, compared = agreed + (taken == valid), compared + 1
            assert valid or row["key"] in loose or not taken, (row["key"], value)
    assert agreed > 0.8 * compared


@pytest.mark.parametrize(
    ("kind", "content", "path"),
    [
        ("train", {"sed": 1}, "$"),
        ("train", {"seed": "5"}, "$.seed"),
        ("train", {"batch": {"rows": 0}}, "$.batch.rows"),
        ("train", {"model": {"deep": {"activation": "sine"}}}, "$.model.deep.activation"),
        ("train", {"optimizer": {"embeddings": {"tower_rates": {"left": 1}}}}, "$.optimizer.embeddings.tower_rates"),
        ("train", {"optimizer": {"dense": {"shampoo": {"preset": "x"}}}}, "$.optimizer.dense.shampoo.preset"),
        ("simulator", {"days": 3, "start": "Monday"}, "$.start"),
        ("search", {"space": {}}, "$.space"),
        ("experiment", {"arms": {"a b": {}}}, "$.arms"),
        ("mapping", {"features": [{"name": "a", "source": "a"}]}, "$.features[0]"),
        ("mapping", {"input": {"type": "csv", "headr": True}}, "$.input"),
        ("mapping", {"partition": "1 day"}, "$.partition"),
    ],
)  # fmt: skip
def test_a_fault_is_refused_where_it_is(kind, content, path):
    assert not is_taken(kind, content)
    checked = schema_of(kind)
    formats = Draft202012Validator(checked.schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    assert path in [error.json_path for error in formats.iter_errors(content)]


def test_names_of_all_scripts_are_taken():
    for name in ("रंग", "Größe", "_a.b-c", "x9", "a b", "9a", "a/b", "", "-a", "a:b"):
        contents = ({"model": {"without": [name]}}, {"ids": {"capacities": {name: 5}}})
        fits = name in ("रंग", "Größe", "_a.b-c", "x9")
        for content in contents:
            assert is_taken("train", content) == fits, content
            assert (not refused_by_schema("train", content)) == fits, content
