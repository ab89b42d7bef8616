"""Which module may import which, that the check of it can fail, and how long a function may be."""

import ast
import os
import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import grimp
import pytest

ROOMS = ("eval", "models", "optim", "pipelines")

LINT = """
import os, sys
os.environ["COLUMNS"] = "1000"
os.environ.pop("FORCE_COLOR", None)
from importlinter.cli import lint_imports
sys.exit(lint_imports(no_cache=True, no_logo=True))
"""

FLOORS = "Each floor imports only those below it"
PIPELINES = "Pipelines reach models and optimizers only through the floors of ctr"
EVAL = "Evaluation runs without TensorFlow"
CONTRIB = "The core of the optimizers does without contrib"
CONTRACTS = {FLOORS, PIPELINES, EVAL, CONTRIB}

# Modules that a room must not have: (room, source, contract, what the linter reports of it).
FORBIDDEN = [
    ("eval", "import ctr.config\n", FLOORS, "ctr.config (l.1)"),
    ("eval", "def late():\n    import tensorflow\n", EVAL, "tensorflow (l.2)"),
    ("ctr/experiments/report", "import tensorflow\n", EVAL, "tensorflow (l.1)"),
    ("optim", "from ctr import config\n", FLOORS, "ctr.config (l.1)"),
    ("optim/rows", "from ctr.optim.contrib import muon\n", CONTRIB, "ctr.optim.contrib.muon (l.1)"),
    ("pipelines", "import ctr.models\n", PIPELINES, "ctr.models (l.1)"),
    ("ctr/objective", "def late():\n    from ctr import training\n", FLOORS, "ctr.training (l.2)"),
    ("ctr/serving", "import ctr.pipelines\n", FLOORS, "ctr.pipelines (l.1)"),
    ("ctr", "", FLOORS, ""),
]

LONGEST_FUNCTION = 80
"""Lines, without its decorators."""

MOST_IMPORTS = 20
"""Modules of ``ctr`` that a module may import."""

# They have some lines for every command.
MANY_IMPORTS = {"ctr.cli_trained"}


def broken_contracts(done: subprocess.CompletedProcess[str]) -> set[str]:
    """The contracts that the linter's summary calls broken; every contract must be in it."""
    lines = done.stdout.splitlines()
    broken = {name for name in CONTRACTS if f"{name} BROKEN" in lines}
    kept = {name for name in CONTRACTS if f"{name} KEPT" in lines}
    assert broken | kept == CONTRACTS, done.stdout + done.stderr
    assert bool(broken) == (done.returncode != 0)
    return broken


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, set[str]]:
    """What the linter's report says of each broken contract: its items, one for each import."""
    found: dict[str, set[str]] = {}
    contract = ""
    for line in done.stdout.splitlines():
        if line in CONTRACTS:
            contract = line
        elif line.startswith("- "):
            found.setdefault(contract, set()).add(line[2:].strip())
    return found


def test_every_module_keeps_to_its_floor(root, fresh_python):
    done = fresh_python("-c", LINT, cwd=root, check=False)
    assert broken_contracts(done) == set(), done.stdout


def test_the_linter_reports_every_forbidden_import(copy_checkout, tmp_path, fresh_python):
    tree = copy_checkout(tmp_path / "checkout")
    expected: dict[str, set[str]] = {name: set() for name in CONTRACTS}
    for number, (room, source, contract, imported) in enumerate(FORBIDDEN):
        path = tree / room / f"zz_probe_{number:02d}.py"
        path.write_text(source)
        name = ".".join(("ctr", *Path(room).parts, path.stem)).replace("ctr.ctr.", "ctr.")
        expected[contract].add(f"{name} -> {imported}" if imported else name)
    done = fresh_python("-c", LINT, cwd=tree, check=False)
    assert broken_contracts(done) == CONTRACTS
    found = findings(done)
    for contract in CONTRACTS:
        assert found[contract] == expected[contract], done.stdout


@pytest.fixture(scope="module")
def imports():
    """The modules of ``ctr`` that each module of it imports, inside functions too."""
    graph = grimp.build_graph("ctr", cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def cycles(imports: Mapping[str, set[str]]) -> set[str]:
    """The modules on the way from some module back to itself, and those between two such ways."""
    left = set(imports)
    while True:
        imported = {name for module in left for name in imports[module]}
        inside = {module for module in left & imported if imports[module] & left}
        if inside == left:
            return left
        left = inside


def test_no_module_imports_itself_by_way_of_others(imports):
    assert cycles({"a": {"b"}, "b": {"c", "d"}, "c": {"b"}, "d": set()}) == {"b", "c"}
    assert cycles(imports) == set()


def test_few_modules_import_many(imports):
    many = {module for module, imported in imports.items() if len(imported) > MOST_IMPORTS}
    assert many == MANY_IMPORTS


def test_no_function_is_too_long(root):
    files = {path.resolve() for room in ("ctr", *ROOMS) for path in (root / room).rglob("*.py")}
    assert len(files) > 200
    too_long = {
        f"{path.relative_to(root)}: {node.name}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno >= LONGEST_FUNCTION
    }
    assert too_long == set()


def test_rooms_are_relative_links(root):
    for room in ROOMS:
        link = root / "ctr" / room
        assert link.is_symlink()
        assert os.readlink(link) == f"../{room}"


def test_ruff_visits_every_file_once(root, fresh_python):
    done = fresh_python("-m", "ruff", "check", "--show-files", ".", cwd=root)
    visits = Counter(Path(line).resolve() for line in done.stdout.splitlines())
    folders = ("ctr", *ROOMS, "tests", "benchmarks", "examples")
    files = {path for folder in folders for path in (root / folder).rglob("*.py")}
    assert files <= visits.keys()
    assert set(visits.values()) == {1}


def test_the_page_names_what_there_is(root):
    """Every path of docs/architecture.md is there, and every ``NAME of path`` is defined in that file."""
    page = (root / "docs" / "architecture.md").read_text()
    paths = {span for span in re.findall(r"`([a-z_]+/[\w/.-]+)`", page) if not span.startswith("ctr.")}
    assert len(paths) > 25
    assert {path for path in paths if not (root / path).exists()} == set()
    named = re.findall(r"`([A-Za-z_]+(?:\.[a-z_]+)?)` (?:of|in) `([\w/]+\.py)`", page)
    assert len(named) >= 7
    for name, path in named:
        for part in name.split("."):
            pattern = rf"^\s*(class|def) {part}\b|^{part}\b"
            assert re.search(pattern, (root / path).read_text(), re.MULTILINE), (name, path)
