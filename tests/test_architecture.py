"""Which module may import which, and that the check of it can fail."""

import os
import subprocess
from collections import Counter
from pathlib import Path

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
CONTRACTS = {FLOORS, PIPELINES, EVAL}

PROBE = "zz_probe.py"


@pytest.fixture(scope="module")
def tree(copy_checkout, tmp_path_factory) -> Path:
    return copy_checkout(tmp_path_factory.mktemp("architecture") / "checkout")


def broken_contracts(done: subprocess.CompletedProcess[str]) -> set[str]:
    """The contracts that the linter's summary calls broken; every contract must be in it."""
    lines = done.stdout.splitlines()
    broken = {name for name in CONTRACTS if f"{name} BROKEN" in lines}
    kept = {name for name in CONTRACTS if f"{name} KEPT" in lines}
    assert broken | kept == CONTRACTS, done.stdout + done.stderr
    assert bool(broken) == (done.returncode != 0)
    return broken


def test_every_module_keeps_to_its_floor(root, fresh_python):
    done = fresh_python("-c", LINT, cwd=root, check=False)
    assert broken_contracts(done) == set(), done.stdout


@pytest.mark.parametrize(
    ("module", "source", "broken"),
    [
        ("eval/zz_probe.py", "import ctr.config\n", FLOORS),
        ("ctr/io/zz_probe.py", "import ctr.eval\n", FLOORS),
        ("eval/zz_probe.py", "def late():\n    import tensorflow\n", EVAL),
        ("eval/zz_probe.py", "from tf_keras import layers\n", EVAL),
        ("models/zz_probe.py", "import ctr.optim\n", FLOORS),
        ("optim/zz_probe.py", "from ctr import config\n", FLOORS),
        ("pipelines/zz_probe.py", "import ctr.models\n", PIPELINES),
        ("ctr/data/zz_probe.py", "import ctr.training\n", FLOORS),
        ("ctr/data/zz_probe.py", "import ctr.objective\n", FLOORS),
        ("ctr/objective/zz_probe.py", "def late():\n    from ctr import training\n", FLOORS),
        ("ctr/training/zz_probe.py", "import ctr.simulator\n", FLOORS),
        ("ctr/training/zz_probe.py", "def late():\n    from ctr import serving\n", FLOORS),
        ("ctr/serving/zz_probe.py", "import ctr.pipelines\n", FLOORS),
        ("ctr/simulator/zz_probe.py", "import ctr.pipelines\n", FLOORS),
        ("pipelines/zz_probe.py", "import ctr.cli\n", FLOORS),
        ("ctr/zz_probe.py", "", FLOORS),
    ],
)
def test_the_linter_sees(tree, fresh_python, module, source, broken):
    path = tree / module
    path.write_text(source)
    try:
        done = fresh_python("-c", LINT, cwd=tree, check=False)
    finally:
        path.unlink()
    assert broken in broken_contracts(done), done.stdout
    assert "zz_probe" in done.stdout


def test_allowed_imports_pass(tree, fresh_python):
    probes = {
        "ctr/training/zz_probe.py": "import ctr.config, ctr.data, ctr.eval, ctr.models, ctr.objective, ctr.optim\n",
        "pipelines/zz_probe.py": "import ctr.data, ctr.io.errors, ctr.eval\n",
        "ctr/simulator/zz_probe.py": "import ctr.data, ctr.io.files\n",
    }
    for module, source in probes.items():
        (tree / module).write_text(source)
    try:
        done = fresh_python("-c", LINT, cwd=tree, check=False)
    finally:
        for module in probes:
            (tree / module).unlink()
    broken_contracts(done)
    assert "zz_probe" not in done.stdout


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


@pytest.mark.slow
def test_mypy_visits_the_rooms(tree, fresh_python, tmp_path):
    for room in ROOMS:
        (tree / room / PROBE).write_text("wrong: int = 'a string'\n")
    try:
        done = fresh_python(
            *("-m", "mypy", "--cache-dir", tmp_path, "--follow-imports", "skip", "--no-error-summary"),
            cwd=tree,
            check=False,
        )
    finally:
        for room in ROOMS:
            (tree / room / PROBE).unlink()
    faults = [line for line in done.stdout.splitlines() if PROBE in line]
    assert [line.split(":")[0] for line in sorted(faults)] == [
        f"ctr/{room}/{PROBE}" for room in sorted(ROOMS)
    ]
