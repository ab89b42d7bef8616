"""Which module may import which, that the check of it can fail, and how many lines a room or a function may have."""

import ast
import os
import re
import subprocess
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

# Modules that a room must not have, at least one for each contract.
FORBIDDEN = {
    "ctr/objective": "def late():\n    from ctr import training\n",
    "eval": "def late():\n    import tensorflow\n",
    "optim/rows": "from ctr.optim.contrib import presets\n",
    "pipelines": "import ctr.models\n",
}

LONGEST_FUNCTION = 120
"""Lines, without its decorators."""

LINES = {
    "benchmarks": 3747,
    "benchmarks/studies": 4815,
    "ctr": 1765,
    "ctr/api": 410,
    "ctr/config": 755,
    "ctr/data": 6574,
    "ctr/experiments": 2636,
    "ctr/io": 1836,
    "ctr/objective": 1279,
    "ctr/search": 1823,
    "ctr/serving": 1522,
    "ctr/simulator": 1406,
    "ctr/training": 11388,
    "ctr/workers": 1359,
    "eval": 4364,
    "models": 2035,
    "optim": 7081,
    "pipelines": 8181,
    "tests": 45485,
}
"""Budget of each folder with its subfolders, but for those that have a budget of their own: lowered when a folder
shrinks, never raised."""

LOOP_MODULES, LOOP_LINES = 130, 22089
"""Budget of what ``ctr.training.loop`` reaches by imports, those inside functions included."""

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


# That nothing is forbidden in this checkout is what `make lint` checks.
@pytest.mark.slow
def test_the_linter_reports_forbidden_imports(copy_checkout, tmp_path, fresh_python):
    tree = copy_checkout(tmp_path / "checkout")
    for room, source in FORBIDDEN.items():
        (tree / room / "zz_probe.py").write_text(source)
    done = fresh_python("-c", LINT, cwd=tree, check=False)
    assert broken_contracts(done) == CONTRACTS
    for text in ("ctr.objective.zz_probe -> ctr.training (l.2)", "ctr.eval.zz_probe -> tensorflow (l.2)"):
        assert text in done.stdout


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


def count_lines(path: Path) -> int:
    return path.read_text().count("\n")


def test_no_folder_is_above_its_budget(root):
    lines = dict.fromkeys(LINES, 0)
    for top in ("benchmarks", "ctr", "tests", *ROOMS):
        # Does not follow the links of ctr/.
        for folder, _, files in os.walk(root / top):
            parts = Path(folder).relative_to(root).parts
            room = next(name for end in range(len(parts), 0, -1) if (name := "/".join(parts[:end])) in LINES)
            lines[room] += sum(count_lines(Path(folder, file)) for file in files if file.endswith(".py"))
    product = {room: count for room, count in lines.items() if not room.startswith(("tests", "benchmarks"))}
    print(f"product: {sum(product.values())} lines; by folder: {lines}")
    assert {room: count for room, count in lines.items() if count > LINES[room]} == {}
    assert {room: count for room, count in lines.items() if count < 0.98 * LINES[room]} == {}, (
        "lower the budget"
    )


def test_the_loop_reaches_few_modules(root, imports):
    reached, new = set(), {"ctr.training.loop"}
    while new:
        reached |= new
        new = {name for module in new for name in imports[module]} - reached
    paths = [root / module.replace(".", "/") for module in reached]
    lines = sum(
        count_lines(path / "__init__.py" if path.is_dir() else path.with_suffix(".py")) for path in paths
    )
    print(f"ctr.training.loop reaches {len(reached)} modules with {lines} lines")
    assert len(reached) <= LOOP_MODULES
    assert lines <= LOOP_LINES


def test_rooms_are_relative_links(root):
    for room in ROOMS:
        link = root / "ctr" / room
        assert link.is_symlink()
        assert os.readlink(link) == f"../{room}"


def test_the_page_names_what_there_is(root):
    """Every path of docs/reference/architecture.md is there, and every ``NAME of path`` is defined in that file."""
    page = (root / "docs" / "reference" / "architecture.md").read_text()
    paths = {span for span in re.findall(r"`([a-z_]+/[\w/.-]+)`", page) if not span.startswith("ctr.")}
    assert len(paths) > 25
    assert {path for path in paths if not (root / path).exists()} == set()
    named = re.findall(r"`([A-Za-z_]+(?:\.[a-z_]+)?)` (?:of|in) `([\w/]+\.py)`", page)
    assert len(named) >= 7
    for name, path in named:
        for part in name.split("."):
            pattern = rf"^\s*(class|def) {part}\b|^{part}\b"
            assert re.search(pattern, (root / path).read_text(), re.MULTILINE), (name, path)
