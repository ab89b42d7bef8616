"""The page about configurations names what there is; the keys themselves are pages made of the code."""

import re

from ctr.config import parse_model
from ctr.io.documents import parse_yaml
from ctr.training.config import TrainConfig


def test_every_environment_variable_is_documented(root):
    page = (root / "docs" / "reference" / "configuration.md").read_text()
    names = set()
    for folder in ("ctr", "eval", "models", "optim", "pipelines"):
        for path in (root / folder).rglob("*.py"):
            text = path.read_text()
            names |= set(re.findall(r"environ(?:\.get\(|\.setdefault\(|\[)\s*\"([A-Z][A-Z0-9_]+)\"", text))
    device = (root / "ctr" / "training" / "device.py").read_text().partition("_VARIABLES = (")[2]
    names |= set(re.findall(r"\"([A-Z][A-Z0-9_]+)\"", device.partition(")")[0]))
    assert {"TF_CPP_MIN_LOG_LEVEL", "OMP_NUM_THREADS"} < names
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_the_configurations_in_the_pages_about_shampoo_are_valid(root):
    found = []
    name = "reference/shampoo-options.md"
    page = (root / "docs" / name).read_text()
    for block in re.findall(r"^```yaml\n(optimizer:\n.*?)^```", page, re.M | re.S):
        content = parse_yaml(block)
        parse_model(TrainConfig, content, name)
        found.append(content["optimizer"]["dense"]["shampoo"])
    assert len(found) == 1 and all("method" in one for one in found)
