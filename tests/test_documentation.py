"""The examples of README.md and of the documentation run, and warn of nothing; its links lead somewhere.

A block of code runs unless ``<!-- not run: REASON -->`` stands above it. Blocks of shell commands in turn, with few
examples, in a folder of the page's own; neighboring blocks of Python are one program.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if not {"_build", "generated"} & {*page.parts}]
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```", re.M | re.S
)
LINK = re.compile(r"\]\(([^()\s]+)\)")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
REPOSITORY = re.compile(r"https://github.com/clicktrain/clicktrain/(?:blob|tree|raw)/main/(.*)")
SITE = re.compile(r"https://clicktrain.github.io/clicktrain/(.*)\.html(#.*)?")
# Of so few examples hardly anything can be learned; the last is TensorFlow's, in every process that imports it.
EXPECTED = (
    *("nothing was learned", "has one value only", "an id of its own", "clicks are early, which matches"),
    "All log messages before absl::InitializeLog()",
)


class Block(NamedTuple):
    language: str
    text: str


def blocks_to_run(page: Path) -> list[Block]:
    found: list[Block] = []
    for match in BLOCK.finditer(page.read_text()):
        language = match["language"]
        if language not in ("sh", "python") or match["reason"]:
            continue
        if found and found[-1].language == language == "python":
            found[-1] = Block(language, found[-1].text + match["text"])
        else:
            found.append(Block(language, match["text"]))
    return found


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.soak
@pytest.mark.parametrize("page", [page for page in PAGES if blocks_to_run(page)], ids=name)
def test_the_examples_of_a_page_run_without_a_warning(page, tmp_path):
    for folder in ("examples", "benchmarks"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONWARNINGS": "error::DeprecationWarning:__main__"}
    for number, block in enumerate(blocks_to_run(page)):
        text = re.sub(r"--examples (\d+)", lambda found: f"--examples {min(int(found[1]), 4000)}", block.text)
        program = ["bash", "-euo", "pipefail"] if block.language == "sh" else [sys.executable]
        script = tmp_path / f".block_{number}"
        script.write_text(text)
        environment = {**os.environ, **quiet, "PATH": path, "PYTHONPATH": str(ROOT)}
        environment.pop("TF_USE_LEGACY_KERAS", None)  # a reader has Keras 3
        command = [*program, str(script)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{name(page)}:\n{text}\n{done.stdout}{done.stderr}"
        lines = f"{done.stdout}{done.stderr}".splitlines()
        said = [line for line in lines if not any(map(line.__contains__, EXPECTED))]
        assert [line for line in said if "warning" in line.lower()] == [], f"{name(page)}:\n{text}"


def test_most_pages_have_an_example_that_runs():
    without = [name(page) for page in PAGES if not blocks_to_run(page)]
    assert len(without) <= 14, without


def anchor(heading: str) -> str:
    """What GitHub, and the site, call a heading."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def test_every_link_leads_somewhere():
    pages = {path: CODE.sub("", path.read_text()) for path in (*ROOT.glob("*.md"), *PAGES[1:])}
    headings = {path: re.findall(r"^#+ (.*)$", text, re.M) for path, text in pages.items()}
    anchors = {path: set(map(anchor, own)) for path, own in headings.items()}
    checked, dead = 0, []
    for path, text in pages.items():
        for link in LINK.findall(text):
            place = SITE.sub(r"docs/\1.md\2", REPOSITORY.sub(r"\1", link))
            if re.match(r"[a-z]+:", place):
                continue
            checked += 1
            target, _, part = place.partition("#")
            file = ((path.parent if place == link else ROOT) / target).resolve() if target else path
            if "generated" in file.parts:
                continue
            if not file.exists() or (part and part not in anchors[file]):
                dead.append(f"{name(path)}: {link}")
    assert checked > 150
    assert dead == []


def test_the_documentation_stays_short():
    lines = {name(page): len(page.read_text().splitlines()) for page in PAGES[1:]}
    assert sum(lines.values()) <= 3600, lines
