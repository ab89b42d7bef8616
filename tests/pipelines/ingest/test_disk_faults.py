"""Commands that write logs, on a disk that fails: one line of what and where, and the same bytes when it is mended."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import fault_points
from ctr.cli import main

Watched = Callable[[list[str], Path], None]

TABLE = """\
input: {type: csv}
time: {column: t, unit: s}
label: {column: click}
partition: 1h
features:
  - {name: user, kind: category, source: user, buckets: 50}
"""
EVENTS = """\
impressions: {input: {type: jsonl}, time: {column: t, unit: s}, impression_id: i, query_id: q}
clicks: {input: {type: jsonl}, time: {column: t, unit: s}, impression_id: i}
partition: 10s
click_window: 5s
delay: 1s
features:
  - {name: user, kind: category, source: user, buckets: 50}
"""


@pytest.fixture
def commands(tmp_path: Path) -> dict[str, list[str]]:
    """Commands that write into a log each; the log's folder comes last."""
    rows = [f"{3600 * number // 9},{number % 5 == 0:d},u{number % 7}" for number in range(60)]
    (tmp_path / "rows.csv").write_text("\n".join(["t,click,user", *rows]) + "\n")
    (tmp_path / "table.yaml").write_text(TABLE)
    (tmp_path / "events.yaml").write_text(EVENTS)
    for kind, every in (("impressions", 1), ("clicks", 5)):
        folder = tmp_path / "events" / kind
        folder.mkdir(parents=True)
        seconds = range(0, 60, every)
        lines = [f'{{"t": {at}, "i": "i{at}", "q": "q{at}", "user": "u{at % 7}"}}' for at in seconds]
        (folder / "1.jsonl").write_text("\n".join(lines) + "\n")
    events = ["ingest", "events", str(tmp_path / "events"), "--mapping", str(tmp_path / "events.yaml")]
    return {
        "table": [
            "ingest",
            "table",
            str(tmp_path / "rows.csv"),
            "--mapping",
            str(tmp_path / "table.yaml"),
            "--out",
        ],
        "events": [*events, "--out"],
        "follow": [*events, "--follow", "--drain", "--poll", "0.01", "--out"],
        "simulate": ["simulate", "--examples", "300", "--out"],
    }


def content(log: Path) -> dict[str, bytes]:
    """What a log's readers see."""
    paths = (path for path in log.rglob("*") if path.is_file())
    visible = (path for path in paths if not path.relative_to(log).parts[0].startswith("."))
    return {str(path.relative_to(log)): path.read_bytes() for path in visible}


@pytest.mark.slow(first=3)
@pytest.mark.parametrize("name", ["table", "events", "follow", "simulate"])
@pytest.mark.parametrize(
    ("kind", "point"),
    [
        ("ENOSPC", "write.half"),
        ("EIO", "fsync.before"),
        ("EROFS", "rename.before"),
        ("EROFS", "link.before"),
        ("EROFS", "mkdir.before"),
    ],
)
def test_a_disk_that_fails(name, kind, point, commands, tmp_path, capsys):
    whole = tmp_path / "whole"
    assert main([*commands[name], str(whole)]) == 0
    failed = 0
    for after in (0, 2, 5):
        log = tmp_path / f"log{after}"
        number = getattr(errno, kind)
        capsys.readouterr()
        with fault_points.watching(fault_points.Broken((point,), number, after, str(log)), training=False):
            status = main([*commands[name], str(log)])
        if status:
            failed += 1
            (line,) = capsys.readouterr().err.strip().splitlines()
            assert line.startswith(f"error: {log}")
            assert line.endswith(os.strerror(number))
        assert main([*commands[name], str(log)]) == 0
        assert content(log) == content(whole)
    assert failed >= 1
