"""What strangers see first: the page on PyPI, the workflows, and one version and one address in all files."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from readme_renderer import markdown

from locked import ENVIRONMENTS, versions

# Repositories of others that our pages link to.
OTHERS = ("https://github.com/pre-commit/",)
# An action by its commit, with the version for people and for Dependabot.
ACTION = re.compile(r"uses: [\w-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


@pytest.fixture(scope="module")
def project(root):
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def workflows(root):
    files = (root / ".github/workflows").glob("*.yml")
    return {path.name: yaml.safe_load(path.read_text()) for path in files}


def published_files(root: Path) -> list[Path]:
    names = ("*.md", "docs/**/*.md", "CITATION.cff", "Dockerfile", ".github/**/*.yml", ".github/**/*.md")
    return sorted({path for name in names for path in root.glob(name)})


def shell_lines(workflow: dict) -> list[str]:
    steps = [step for job in workflow["jobs"].values() for step in job.get("steps", [])]
    return [line for step in steps for line in step.get("run", "").splitlines()]


def wrong_addresses(text: str, urls: list[str], name: str) -> list[str]:
    """URLs that are ours, or on a host of ours, but are not below one of ``urls``."""
    hosts = {urlsplit(url).netloc for url in urls}
    ours = (*urls, f"https://pypi.org/project/{name}/", *OTHERS)
    found = re.findall(r"https?://[^\s)\"'<>`\]]+", text)
    return [
        url for url in found if (urlsplit(url).netloc in hosts or name in url) and not url.startswith(ours)
    ]


def test_every_address_of_ours_begins_as_the_metadata_says(root, project):
    urls, name = list(project["urls"].values()), project["name"]
    assert wrong_addresses(f"[a](https://github.com/old/{name}/issues)", urls, name)
    assert not wrong_addresses(f"<{urls[0]}/issues> and https://arxiv.org/abs/1", urls, name)
    files = published_files(root)
    assert len(files) > 30
    wrong = {str(path.relative_to(root)): wrong_addresses(path.read_text(), urls, name) for path in files}
    assert {path: found for path, found in wrong.items() if found} == {}


def test_the_page_on_pypi_has_only_absolute_targets(root, project):
    """PyPI knows no repository: a relative link or image of README.md is dead there."""
    html = markdown.render((root / project["readme"]).read_text())
    assert html is not None
    targets = re.findall(r"""<(?:a|img)\b[^>]*?\b(?:href|src)="([^"]*)\"""", html)
    assert len(targets) > 5
    assert [target for target in targets if not re.match("https://|#", target)] == []


def test_workflows_name_only_what_is_there(root, workflows):
    makefile = (root / "Makefile").read_text()
    targets = set(re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[0].split())
    lines = [line for workflow in workflows.values() for line in shell_lines(workflow)]
    made = {word for line in lines for word in re.findall(r"\bmake ([a-z-]+)", line)}
    scripts = {word for line in lines for word in re.findall(r"\.ci/[\w.-]+", line)}
    scripts |= set(re.findall(r"\.ci/[\w.-]+", makefile))
    assert {"test", "dist"} <= made <= targets
    assert {".ci/run", ".ci/version.py", ".ci/try-wheel", ".ci/try-image"} <= scripts
    for script in scripts:
        assert (root / script).is_file(), script
        assert script.endswith(".py") or os.access(root / script, os.X_OK), script


def test_actions_and_base_images_are_pinned_and_kept_current(root):
    """A tag can be moved to other content; a commit and a digest cannot."""
    files = sorted((root / ".github").rglob("*.yml"))
    used = [line for path in files for line in re.findall(r"\buses:.*", path.read_text())]
    outside = [line for line in used if not line.startswith("uses: ./")]
    assert len(outside) > 20
    assert [line for line in outside if not ACTION.fullmatch(line)] == []
    # One commit of an action has one version everywhere.
    assert len({line.split("@")[0] for line in outside}) == len(set(outside))
    images = list(root.glob("Dockerfile*"))
    assert {path.name for path in images} == {"Dockerfile", "Dockerfile.beam"}
    for path in images:
        text = path.read_text()
        # A syntax line names an image, too.
        assert "syntax=" not in text, path
        stages = set(re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE))
        for image in re.findall(r"^FROM (\S+)", text, re.MULTILINE):
            # The image of ctr that was just built has no digest; that of Beam is given one by who builds.
            is_ours = image in stages or image == "${CTR}"
            assert is_ours or re.search(r"@(sha256:[0-9a-f]{64}|\$\{SDK_DIGEST\})$", image), (path, image)
        assert not re.search(r"^ARG SDK_DIGEST=", text, re.MULTILINE)
    updates = yaml.safe_load((root / ".github/dependabot.yml").read_text())["updates"]
    assert {one["package-ecosystem"] for one in updates} >= {"github-actions", "docker"}


def version_script(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, tree / ".ci/version.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_versions_of_this_checkout_agree(root):
    done = version_script(root, "--notes")
    assert done.returncode == 0, done.stderr
    assert 0 < len(done.stdout.splitlines()) < 200
    # The page of a release has no folder that a relative link could start from.
    assert not re.search(r"\]\((?!https://)", done.stdout)


@pytest.fixture
def tree(tmp_path, root):
    """A checkout whose version 1.2.0 is released."""
    for folder in (".ci", "ctr"):
        (tmp_path / folder).mkdir()
    shutil.copy(root / ".ci/version.py", tmp_path / ".ci")
    (tmp_path / "ctr/__init__.py").write_text('"""A package."""\n\n__version__ = "1.2.0"\n')
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 1.2.0\n")
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changes\n\n## [1.2.0] - 2026-12-31\n\n- New.\n\n## [1.1.0] - 2026-11-30\n\n- Old.\n"
    )
    return tmp_path


def test_a_dated_section_is_a_version_to_release_and_what_differs_ends_with_one_line(tree):
    assert version_script(tree, "--tag", "v1.2.0").stdout == version_script(tree).stdout == "1.2.0\n"
    assert version_script(tree, "--notes").stdout == "- New.\n"
    for file, old, new, message in (
        ("ctr/__init__.py", "1.2.0", "1.3.0", "ctr/__init__.py has 1.3.0"),
        ("CITATION.cff", "\nversion: 1.2.0", "", "needs one version, has 0"),
        ("CHANGELOG.md", "2026-12-31", "soon", "the first section needs a heading"),
        ("CHANGELOG.md", "2026-12-31", "unreleased", "says that 1.2.0 is unreleased"),
    ):
        text = (tree / file).read_text()
        (tree / file).write_text(text.replace(old, new, 1))
        done = version_script(tree, "--tag", "v1.2.0")
        assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1
        assert message in done.stderr
        if new == "unreleased":
            assert version_script(tree).stdout == ""
        (tree / file).write_text(text)


def test_the_image_has_the_locked_versions_and_no_tools_of_tests(root):
    text = (root / "Dockerfile").read_text().replace("\\\n", "")
    [options] = re.findall(r"uv export --project /lock --quiet --frozen --no-emit-project ([^>]*)>", text)
    assert tuple(options.split()) == ENVIRONMENTS["image"]
    image, locked = versions(root, "image"), versions(root, "everything")
    assert image.pop("tensorflow-cpu") == locked["tensorflow"]
    assert image.items() <= locked.items()
    assert {"apache-beam", "pyarrow", "tf-keras"} <= image.keys()
    assert not {"tensorflow", "pytest", "mypy", "twine", "uv"} & image.keys()
