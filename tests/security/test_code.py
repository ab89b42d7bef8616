"""What the code itself may do: nothing that runs what it reads, no shells, no dependency that is not pinned."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from locked import ENVIRONMENTS, exported

ROOMS = ("ctr", "eval", "models", "optim", "pipelines", "setup.py")
FORBIDDEN = {
    *("pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"),
    *("joblib", "jsonpickle", "runpy", "imp"),
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "tempfile.mktemp", "yaml.load"),
    *("yaml.full_load", "yaml.unsafe_load", "yaml.load_all", "np.fromfile", "pd.read_pickle", "pd.eval"),
    *("tf.py_function", "tf.numpy_function", "tf.load_op_library", "tf.keras.models.load_model"),
}
ALLOWED = {
    # A training step calls the solver of its own process; no export has it.
    ("optim/shampoo/exchange.py", "tf.numpy_function"),
    # A worker's step exchanges arrays with the other workers of the machine; no export has it either.
    ("ctr/workers/local.py", "tf.numpy_function"),
}


def sources(root: Path) -> Iterator[Path]:
    for room in ROOMS:
        path = root / room
        # Links to rooms are visited under their own names.
        found = [path] if path.is_file() else path.rglob("*.py")
        yield from (file for file in found if not file.parent.is_symlink())


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def forbidden_uses(text: str) -> set[str]:
    """Names of ``FORBIDDEN`` that some code imports or calls, and calls with dangerous arguments."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                found |= {name.name.partition(".")[0] for name in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {module.partition(".")[0], *(f"{module}.{name.name}" for name in names)}
            case ast.Call(func=function, keywords=keywords):
                found.add(dotted(function))
                given = {word.arg: word.value for word in keywords}
                if isinstance(shell := given.get("shell"), ast.Constant) and shell.value:
                    found.add("shell=True")
                pickles = given.get("allow_pickle")
                refused = isinstance(pickles, ast.Constant) and pickles.value is False
                if dotted(function).endswith(("np.load", "read_array")) and not refused:
                    found.add("allow_pickle")
    return found & (FORBIDDEN | {"shell=True", "allow_pickle"})


def test_nothing_that_is_read_is_run(root):
    code = "from os import system\neval(text)\nsubprocess.run(text, shell=True)\nnp.load(path, allow_pickle=True)"
    assert forbidden_uses(code) == {"os.system", "eval", "shell=True", "allow_pickle"}
    files = list(sources(root))
    assert len(files) > 150
    found = {str(path.relative_to(root)): forbidden_uses(path.read_text()) for path in files}
    assert {(path, name) for path, names in found.items() for name in names} == ALLOWED


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_each_locked_package_has_its_hashes(root, environment):
    text = exported(root, environment)
    entries = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(entries) > 50
    for entry in entries:
        first = entry.split()[0]
        assert re.fullmatch(r"[A-Za-z0-9_.\[\]-]+==[A-Za-z0-9_.!+-]+", first), first
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), first


def test_java_programs_are_pinned(root):
    poms = list((root / "examples").glob("*/pom.xml"))
    assert len(poms) == 2
    for pom in poms:
        text = pom.read_text()
        wanted = re.findall(r"<(dependency|plugin)>(.*?)</\1>", text, re.DOTALL)
        assert wanted
        for _, one in wanted:
            (version,) = re.findall(r"<version>(.*?)</version>", one)
            if name := re.fullmatch(r"\$\{(.*)\}", version):
                (version,) = re.findall(f"<{name[1]}>(.*?)</{name[1]}>", text)
            assert re.fullmatch(r"[0-9][A-Za-z0-9.-]*", version), (pom, version)
