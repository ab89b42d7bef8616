"""Commands that write logs, on a disk that fails: one line of what and where, and the same bytes when it is mended."""

import errno
import os
from pathlib import Path

import pytest

import fault_points
from ctr.cli import main

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


def write_inputs(folder: Path) -> dict[str, list[str]]:
    """Writes rows and events; returns commands that write into a log each, whose folder comes last."""
    rows = [f"{3600 * number // 9},{number % 5 == 0:d},u{number % 7}" for number in range(60)]
    (folder / "rows.csv").write_text("\n".join(["t,click,user", *rows]) + "\n")
    for name, text in {"table": TABLE, "events": EVENTS}.items():
        (folder / f"{name}.yaml").write_text(text)
    for kind, every in (("impressions", 1), ("clicks", 5)):
        (folder / "events" / kind).mkdir(parents=True)
        lines = [f'{{"t": {n}, "i": "i{n}", "q": "q{n}", "user": "u{n % 7}"}}\n' for n in range(0, 60, every)]
        (folder / "events" / kind / "1.jsonl").write_text("".join(lines))
    events = ["ingest", "events", str(folder / "events"), "--mapping", str(folder / "events.yaml")]
    table = ["ingest", "table", str(folder / "rows.csv"), "--mapping", str(folder / "table.yaml")]
    return {
        "table": [*table, "--out"],
        "events": [*events, "--out"],
        "follow": [*events, "--follow", "--drain", "--poll", "0.01", "--out"],
        "simulate": ["simulate", "--examples", "300", "--out"],
    }


def content(log: Path) -> dict[str, bytes]:
    """What a log's readers see."""
    paths = (path for path in log.rglob("*") if path.is_file())
    visible = (path for path in paths if not path.relative_to(log).parts[0].startswith("."))
    return {str(path.relative_to(log)): path.read_bytes() for path in visible}


@pytest.mark.slow(first=4)
@pytest.mark.parametrize(
    ("name", "kind", "point"),
    [
        # Every command and every point once; then the points that the first ones of a command leave out.
        ("table", "ENOSPC", "write.half"),
        ("events", "EIO", "fsync.before"),
        ("follow", "EROFS", "rename.before"),
        ("simulate", "EROFS", "link.before"),
        ("table", "EROFS", "mkdir.before"),
        ("table", "EIO", "fsync.before"),
        ("events", "EROFS", "link.before"),
        ("follow", "ENOSPC", "write.half"),
        ("simulate", "EROFS", "mkdir.before"),
    ],
)
def test_a_disk_that_fails(name, kind, point, tmp_path, capsys):
    command, whole = write_inputs(tmp_path)[name], tmp_path / "whole"
    assert main([*command, str(whole)]) == 0
    failed = 0
    for after in (0, 2, 5):
        log = tmp_path / f"log{after}"
        number = getattr(errno, kind)
        capsys.readouterr()
        with fault_points.watching(fault_points.Broken((point,), number, after, str(log)), training=False):
            status = main([*command, str(log)])
        if status:
            failed += 1
            (line,) = capsys.readouterr().err.strip().splitlines()
            assert line.startswith(f"error: {log}")
            assert line.endswith(os.strerror(number))
        assert main([*command, str(log)]) == 0
        assert content(log) == content(whole)
    assert failed >= 1
