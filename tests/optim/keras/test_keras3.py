"""Shampoo in Keras 3: the same checks, and those of what only Keras 3 has, in one process of their own."""

import ast
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "helpers" / "keras_checks.py"
REPLICAS = "several_replicas_are_not_compiled_by_xla"
NAMES = [
    node.name
    for node in ast.walk(ast.parse(SCRIPT.read_text()))
    if isinstance(node, ast.FunctionDef)
    and (node.name == REPLICAS or [ast.unparse(used) for used in node.decorator_list] == ["check"])
]


@pytest.fixture(scope="module")
def outcome(fresh_python, root):
    done = fresh_python(SCRIPT, cwd=root, path=root)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["keras"] == "keras"
    return found["outcome"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_keras_3(outcome, name):
    assert outcome[name] == ""


@pytest.mark.slow
def test_all_checks_ran(outcome):
    assert set(outcome) == set(NAMES)
    assert len(NAMES) > 30
