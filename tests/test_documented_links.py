"""Links between the pages lead to files and headings that are there."""

import re
import tomllib

import pytest

LINK = re.compile(r"\]\(([^()\s]+)\)")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def anchor(heading: str) -> str:
    """What GitHub calls a heading."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@pytest.fixture(scope="module")
def pages(root):
    paths = [*root.glob("*.md"), *(root / "docs").glob("*.md")]
    return {path: CODE.sub("", path.read_text()) for path in paths}


def test_every_link_leads_somewhere(root, pages):
    anchors = {
        path: {anchor(one) for one in re.findall(r"^#+ (.*)$", text, re.M)} for path, text in pages.items()
    }
    # README.md, which PyPI shows too, names files by their addresses in the repository.
    urls = tomllib.loads((root / "pyproject.toml").read_text())["project"]["urls"]
    repository = f"{urls['Repository']}/blob/main/"
    checked, dead = 0, []
    for path, text in pages.items():
        for link in LINK.findall(text):
            if re.match(r"[a-z]+:", link) and not link.startswith(repository):
                continue
            checked += 1
            name, _, part = link.removeprefix(repository).partition("#")
            folder = root if link.startswith(repository) else path.parent
            target = (folder / name).resolve() if name else path
            if not target.exists() or (part and part not in anchors[target]):
                dead.append(f"{path.name}: {link}")
    assert checked > 150
    assert dead == []
