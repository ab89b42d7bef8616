"""Dependencies are pinned by their hashes, and Java programs by their versions."""

import re

import pytest

from locked import ENVIRONMENTS, exported


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


def test_installing_asks_for_the_hashes(root):
    lines = (root / "Makefile").read_text().splitlines()
    installing = [line for line in lines if re.match(r"\t.*pip install", line)]
    assert len(installing) == 3
    for line in installing:
        assert "--require-hashes" in line or "--no-deps --no-build-isolation --editable ." in line, line
    # uv checks the hashes of its lock always.
    assert all("uv sync --quiet --frozen" in line for line in lines if "uv sync" in line)
