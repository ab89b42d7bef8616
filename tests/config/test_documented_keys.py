"""Every key of a configuration file stands in the docs. UPDATE_DOCS=1 writes the blocks that are out of date."""

import os
import re

import pytest

from ctr.cli_parser import CONFIGS, SHELLS, config_model
from ctr.config import parse_model
from ctr.config.reference import as_yaml, describe, key_rows
from ctr.io.documents import parse_yaml
from ctr.training.config import TrainConfig

BLOCK = r"(<!-- ctr config --kind {kind} -->\n```yaml\n)(.*?)(```\n)"


@pytest.mark.parametrize("kind", ["train", "sampling", "simulator", "experiment", "search"])
def test_the_blocks_are_what_ctr_config_prints(root, kind):
    page = root / "docs" / "configuration.md"
    text = page.read_text()
    pattern = re.compile(BLOCK.format(kind=kind), re.DOTALL)
    found = pattern.search(text)
    assert found is not None
    printed = as_yaml(describe(config_model(kind)))
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(text[: found.start(2)] + printed + text[found.end(2) :])
        return
    assert found[2] == printed, "run this test with UPDATE_DOCS=1 in the environment"


@pytest.mark.parametrize(
    ("kind", "pages"),
    [("mapping", ("mapping.md",)), ("events", ("events.md", "mapping.md", "sampling.md"))],
)
def test_every_key_of_a_mapping_is_in_its_pages(root, kind, pages):
    marked = set()
    for page in pages:
        for code in re.findall(r"`([^`\n]+)`", (root / "docs" / page).read_text()):
            marked |= set(re.findall(r"[a-z_0-9]+", code))
    keys = {row["key"].rpartition(".")[2] for row in key_rows(describe(config_model(kind)))}
    assert keys - marked == set()


def test_every_kind_of_feature_has_its_keys_in_the_section_about_it(root):
    page = (root / "docs" / "mapping.md").read_text()
    sections = dict(re.findall(r"^#### `(\w+)`\n(.*?)(?=^##)", page, re.DOTALL | re.MULTILINE))
    common = page.partition("### `features`")[2].partition("####")[0]
    features = describe(config_model("mapping"))["properties"]["features"]["items"]["oneOf"]
    assert len(features) == len(sections)
    for feature in features:
        kind = feature["properties"]["kind"]["const"]
        for name in feature["properties"]:
            assert f"`{name}`" in sections[kind] or f"`{name}`" in common, (kind, name)


def test_every_environment_variable_is_documented(root):
    page = (root / "docs" / "configuration.md").read_text()
    names = set()
    for folder in ("ctr", "eval", "models", "optim", "pipelines"):
        for path in (root / folder).rglob("*.py"):
            text = path.read_text()
            names |= set(re.findall(r"environ(?:\.get\(|\.setdefault\(|\[)\s*\"([A-Z][A-Z0-9_]+)\"", text))
    device = (root / "ctr" / "training" / "device.py").read_text().partition("_VARIABLES = (")[2]
    names |= set(re.findall(r"\"([A-Z][A-Z0-9_]+)\"", device.partition(")")[0]))
    assert {"TF_CPP_MIN_LOG_LEVEL", "OMP_NUM_THREADS"} < names
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_the_page_names_what_the_commands_take(root):
    page = (root / "docs" / "configuration.md").read_text()
    assert f"[--kind {'|'.join(CONFIGS)}]" in page
    assert all(f"`ctr completion {shell}`" in page or f"ctr completion {shell} >" in page for shell in SHELLS)


def test_the_configurations_in_the_pages_about_shampoo_are_valid(root):
    found = []
    for name in ("shampoo-guide.md", "shampoo-options.md"):
        page = (root / "docs" / name).read_text()
        for block in re.findall(r"^```yaml\n(optimizer:\n.*?)^```", page, re.M | re.S):
            content = parse_yaml(block)
            parse_model(TrainConfig, content, name)
            found.append(content["optimizer"]["dense"]["shampoo"])
    assert len(found) == 2 and all("method" in one for one in found)
