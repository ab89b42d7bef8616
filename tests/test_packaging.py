"""The package runs from the root, as an editable install, from a wheel and from the sdist; it holds what runs."""

import os
import re
import shutil
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from locked import versions

ROOMS = ("eval", "models", "optim", "pipelines")

# Says where the package was found, and that its rooms were found inside it and nowhere else.
FIND = """
import importlib.util, pathlib, sys
import ctr
home = pathlib.Path(ctr.__file__).parent
for room in ("eval", "models", "optim", "pipelines"):
    assert importlib.util.find_spec(room) is None, f"a bare {room} can be imported"
    found = pathlib.Path(importlib.util.find_spec(f"ctr.{room}").origin)
    assert found == home / room / "__init__.py", found
print(home)
"""

LOADED = "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
NOT_LOADED = {"keras", "tensorflow", "tensorflow_recommenders", "tf_keras", "scipy", "sklearn"}


def package_files(tree: Path) -> set[str]:
    """The paths below `tree` of all files of the package, links followed, without compiled ones."""
    return {
        str(Path(folder, file).relative_to(tree))
        for folder, _, files in os.walk(tree / "ctr", followlinks=True)
        for file in files
        if not folder.endswith("__pycache__")
    }


def build(fresh_python, tree: Path, target: Path) -> Path:
    """Builds a wheel of `tree` with what is installed here, without the network."""
    fresh_python("-m", "build", "--no-isolation", "--wheel", "--outdir", target, tree, cwd=target)
    (wheel,) = target.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def checkout(copy_checkout, tmp_path_factory):
    return copy_checkout(tmp_path_factory.mktemp("packaging") / "checkout")


@pytest.fixture(scope="module")
def wheel(checkout, fresh_python, tmp_path_factory):
    return build(fresh_python, checkout, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(checkout, fresh_python, tmp_path_factory):
    """The sdist as `--setup_file ./setup.py` of Beam builds it."""
    target = tmp_path_factory.mktemp("sdist")
    fresh_python("setup.py", "--quiet", "sdist", "--dist-dir", target, cwd=checkout)
    (archive,) = target.glob("*.tar.gz")
    return archive


def test_eval_loads_no_tensorflow_and_sets_nothing_and_the_command_names_its_extra(
    fresh_python, tmp_path, root
):
    code = (
        "import importlib, os, pkgutil, sys\n"
        "before = dict(os.environ)\n"
        "import ctr, ctr.eval\n"
        "for module in pkgutil.walk_packages(ctr.eval.__path__, 'ctr.eval.'):\n"
        "    importlib.import_module(module.name)\n"
        "assert dict(os.environ) == before, set(os.environ.items()) ^ set(before.items())\n" + LOADED
    )
    done = fresh_python("-c", code, cwd=tmp_path, path=root)
    assert not set(done.stdout.split()) & NOT_LOADED
    code = (
        "import sys\n"
        "sys.modules['pydantic'] = None\n"
        "from ctr.cli import main\n"
        "sys.exit(main(['train', 'log', '--out', 'run']))"
    )
    done = fresh_python("-c", code, cwd=tmp_path, path=root, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    words = (
        "the package pydantic is not installed: the command line requires clicktrain with the extra train "
    )
    assert done.stderr.startswith(f"error: {words}")


# Without Keras 2 there is all of ctr but the optimizer for it and the models of tensorflow-recommenders.
EVERYTHING_IN_KERAS_3 = """
import importlib, os, pkgutil, sys
sys.modules["tf_keras"] = sys.modules["tensorflow_recommenders"] = None
import ctr
for module in pkgutil.walk_packages(ctr.__path__, "ctr."):
    if module.name not in ("ctr.__main__", "ctr.optim.contrib.tf_keras", "ctr.serving.recommenders"):
        importlib.import_module(module.name)
assert "TF_USE_LEGACY_KERAS" not in os.environ
import tensorflow as tf
assert tf.keras.Model.__module__.startswith("keras.")
assert len([name for name in sys.modules if name.startswith("ctr.")]) > 150
"""


@pytest.mark.slow
def test_everything_can_be_imported_beside_keras_3(fresh_python, tmp_path, root):
    fresh_python("-c", EVERYTHING_IN_KERAS_3, cwd=tmp_path, path=root)


# Keras 2 is an extra: what runs without it is the optimizer of Keras 3.
OPTIMIZER_ALONE = """
import re, sys, tomllib
extra = tomllib.load(open(sys.argv[1], "rb"))["project"]["optional-dependencies"]["train"]
modules = {"apache-beam": "apache_beam", "pyyaml": "yaml", "tensorflow-serving-api": "tensorflow_serving"}
names = [re.match("[a-z0-9-]+", line)[0] for line in extra]
# TensorFlow itself brings TensorBoard.
for name in set(names) - {"tensorboard"}:
    sys.modules[modules.get(name, name.replace("-", "_"))] = None
import numpy as np, keras
from ctr.optim import Shampoo
model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(4), keras.layers.Dense(1)])
model.compile(optimizer=Shampoo(learning_rate=0.02), loss="mse")
x = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)
losses = model.fit(x, x.sum(1, keepdims=True), epochs=3, batch_size=16, verbose=0).history["loss"]
assert losses[-1] < losses[0], losses
"""


@pytest.mark.slow
def test_the_optimizer_runs_without_the_extra(fresh_python, tmp_path, root):
    fresh_python("-c", OPTIMIZER_ALONE, root / "pyproject.toml", cwd=tmp_path, path=root)


@pytest.mark.slow
def test_wheel_carries_the_package_and_nothing_else(checkout, wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        licenses = [name for name in archive.namelist() if name.endswith("/licenses/LICENSE")]
    assert names == package_files(checkout)
    assert {f"ctr/{room}/__init__.py" for room in ROOMS} <= names
    assert "ctr/py.typed" in names
    assert len(licenses) == 1


@pytest.mark.slow
def test_wheel_runs(wheel, fresh_python, tmp_path):
    target = tmp_path / "target"
    options = ("--no-deps", "--no-index", "--disable-pip-version-check")
    fresh_python("-m", "pip", "install", *options, "--target", target, wheel, cwd=tmp_path)
    done = fresh_python("-c", FIND, cwd=tmp_path, path=target)
    assert done.stdout.strip() == str(target / "ctr")
    assert "Usage: ctr" in fresh_python("-m", "ctr", "--help", cwd=tmp_path, path=target).stdout
    code = (
        "import ctr, importlib.metadata as m\n"
        "assert m.version('clicktrain') == ctr.__version__\n"
        "print(m.distribution('clicktrain').read_text('METADATA'))"
    )
    metadata = fresh_python("-c", code, cwd=tmp_path, path=target).stdout
    assert "License-Expression: Apache-2.0" in metadata
    assert "Description-Content-Type: text/markdown" in metadata
    shown = set(re.findall(r"^Project-URL: (\w+), https://", metadata, re.MULTILINE))
    assert shown == {"Homepage", "Documentation", "Repository", "Issues", "Changelog"}
    assert "Requires-Dist: tensorflow>=2.20" in metadata.splitlines()
    base = re.findall(r"^Requires-Dist: ([a-z]+)(?!.*extra)", metadata, re.MULTILINE)
    assert sorted(base) == ["numpy", "pydantic", "tensorflow", "threadpoolctl"]


@pytest.mark.soak
def test_sdist_builds_the_same_wheel(checkout, sdist, wheel, fresh_python, tmp_path):
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
        assert all(member.isfile() or member.isdir() for member in members)
    shutil.unpack_archive(sdist, tmp_path)
    (tree,) = tmp_path.iterdir()
    inside = {path.name for path in tree.iterdir()}
    assert not inside & {*ROOMS, "tests", "benchmarks", "examples", "docs"}
    assert package_files(tree) == package_files(checkout)

    rebuilt = build(fresh_python, tree, tmp_path)
    with zipfile.ZipFile(rebuilt) as ours, zipfile.ZipFile(wheel) as direct:
        assert sorted(ours.namelist()) == sorted(direct.namelist())


@pytest.mark.soak
def test_editable_install_runs(copy_checkout, fresh_python, tmp_path):
    tree = copy_checkout(tmp_path / "checkout")
    home = tmp_path / "environment"
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    packages = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    # The new environment sees all that is installed here, except what another editable install adds by its .pth.
    (packages / "installed.pth").write_text(sysconfig.get_path("purelib") + "\n")

    options = ("--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    fresh_python("-m", "pip", "install", *options, "--editable", tree, cwd=tmp_path, python=python)
    done = fresh_python("-c", FIND, cwd=tmp_path, python=python)
    assert done.stdout.strip() == str(tree / "ctr")
    assert "Usage: ctr" in fresh_python("--help", cwd=tmp_path, python=home / "bin" / "ctr").stdout

    (tree / "eval" / "added_later.py").write_text("SEEN = True\n")
    code = "from ctr.eval import added_later; assert added_later.SEEN"
    fresh_python("-c", code, cwd=tmp_path, python=python)


def test_the_oldest_environment_is_that_of_the_lowest_tensorflow_allowed(root):
    """It has the version that the metadata begins with, and all else as in the newest."""
    oldest, newest = versions(root, "oldest"), versions(root, "everything")
    (bound,) = re.findall(r'"tensorflow>=([0-9.]+)"', (root / "pyproject.toml").read_text())
    assert oldest["tensorflow"].startswith(f"{bound}.")
    differing = {name for name in oldest.keys() | newest.keys() if oldest.get(name) != newest.get(name)}
    assert differing <= {"keras", "tensorboard", "tensorflow", "tensorflow-serving-api", "tf-keras"}
