"""The commands of the docs' examples run, and warn of nothing."""

import re
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest

from ctr.cli import main

pytestmark = pytest.mark.slow

SAMPLING = (
    "ctr simulate --examples 100000 --out runs/log",
    "ctr train runs/log --config teacher.yaml --out runs/teacher --record teacher",
    "ctr sample runs/log --name quarter --config sample.yaml",
    "ctr sample runs/log --name half --set non_click_rate=0.5",
    "ctr sample runs/log --name quarter --config sample.yaml --out runs/small",
)
EVENTS = (
    "ctr simulate --examples 300000 --out logs/simulated --events events/simulated",
    "ctr ingest events events/simulated --mapping examples/events/simulated.yaml --out logs/joined",
)


def run(command: str, page: str, capfd: pytest.CaptureFixture[str]) -> str:
    """Runs a command of a page, of fewer examples, and returns what it prints."""
    assert command in page
    words = shlex.split(re.sub(r"--examples \d+", "--examples 4000", command))
    assert main(words[1:]) == 0
    out, err = capfd.readouterr()
    # Of so few examples hardly anything can be learned.
    lines = [line for line in (out + err).splitlines() if "nothing was learned that can be told" not in line]
    assert "warning" not in "\n".join(lines)
    return out


def test_the_sampling_of_the_page_finds_what_it_names(root, tmp_path, monkeypatch, capfd):
    page = (root / "docs" / "howto" / "sampling.md").read_text()
    monkeypatch.chdir(tmp_path)
    for name, indented in re.findall(r"`(\w+\.yaml)`\n\n((?:    .+\n)+)", page):
        Path(name).write_text(indented)
    printed = [run(command, page, capfd) for command in SAMPLING]
    counted = {line.split()[0]: int(line.split()[1]) for line in printed[2].splitlines()[2:]}
    assert counted["low_visibility"] > 0


def test_simulated_events_are_joined_without_a_warning(root, tmp_path, monkeypatch, capfd):
    page = (root / "docs" / "howto" / "events.md").read_text()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(root / "examples")
    printed = [run(command, page, capfd) for command in EVENTS]
    assert "examples" in printed[-1]


def test_the_full_mapping_of_the_page_reads_a_table(root, tmp_path, monkeypatch, capfd):
    page = (root / "docs" / "howto" / "tables.md").read_text()
    monkeypatch.chdir(tmp_path)
    mapping = re.search(r"```yaml\n(input:\n.*?)```", page, re.DOTALL)
    assert mapping is not None
    Path("shop.yaml").write_text(mapping[1])
    rows = range(600)
    clicks = {
        "shown_at": [f"2024-05-01T{row // 60:02d}:{row % 60:02d}:00Z" for row in rows],
        "request_id": [f"q{row // 3}" for row in rows],
        "impression_id": list(rows),
        "dwell_seconds": [(row * 7) % 40 for row in rows],
        "importance": [1.0 + row % 2 for row in rows],
        "zip_code": [f"{10_000 + row * 37 % 90_000}" for row in rows],
        "user_id": [f"u{row % 50}" for row in rows],
        "item_id": [row % 20 for row in rows],
        "position": [row % 3 + 1 for row in rows],
    }
    # All rows of a query have one time.
    clicks["shown_at"] = [clicks["shown_at"][row - row % 3] for row in rows]
    items = {
        "item_id": list(range(20)),
        "price": [5.0 * item + 1 for item in range(20)],
        "title": [f"blue chair {item}" for item in range(20)],
        "tags": [f"home|new|s{item % 4}" for item in range(20)],
    }
    Path("clicks").mkdir()
    with pa.CompressedOutputStream("clicks/day.csv.gz", "gzip") as file:
        pa_csv.write_csv(pa.table(clicks), file)
    pa_csv.write_csv(pa.table(items), "clicks/items.csv")
    printed = run("ctr ingest table clicks/ --mapping shop.yaml --out LOG", page, capfd)
    assert "600 examples" in printed
