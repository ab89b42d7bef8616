"""Commands that write logs, on a disk that fails: one line of what and where, and the same bytes when it is mended."""

import errno
import json
import os
from pathlib import Path

import pytest

import event_files
import fault_points
import raw_logs
from ctr.cli import main


def write_inputs(folder: Path) -> dict[str, list[str]]:
    """Writes rows and events; returns commands that write into a log each, whose folder comes last."""
    rows = raw_logs.write_rows(folder, raw_logs.make_rows(60))
    mappings = {"table": raw_logs.base_content(query="none"), "events": event_files.content()}
    for name, content in mappings.items():
        (folder / f"{name}.yaml").write_text(json.dumps(content))
    event_files.write_events(folder / "events", event_files.draw_events(60), files=1)
    events = ["ingest", "events", str(folder / "events"), "--mapping", str(folder / "events.yaml")]
    events += ["--max-reject-share", "1"]
    return {
        "table": ["ingest", "table", str(rows), "--mapping", str(folder / "table.yaml"), "--out"],
        "events": [*events, "--out"],
        "follow": [*events, "--follow", "--drain", "--poll", "0.01", "--out"],
        "simulate": ["simulate", "--examples", "100", "--set", "ads=50", "--set", "users=50", "--out"],
    }


@pytest.mark.parametrize(
    ("name", "kind", "point"),
    [
        # Every command and every point once.
        ("table", "ENOSPC", "write.half"),
        ("events", "EIO", "fsync.before"),
        ("follow", "EROFS", "rename.before"),
        ("simulate", "EROFS", "link.before"),
        ("table", "EROFS", "mkdir.before"),
    ],
)
def test_a_disk_that_fails(name, kind, point, tmp_path, capsys):
    command, whole = write_inputs(tmp_path)[name], tmp_path / "whole"
    assert main([*command, str(whole)]) == 0
    failed = 0
    for after in (0, 4):
        log = tmp_path / f"log{after}"
        number = getattr(errno, kind)
        capsys.readouterr()
        with fault_points.watching(fault_points.Broken((point,), number, after, str(log)), training=False):
            status = main([*command, str(log)])
        if status:
            failed += 1
            assert status == (1 if kind == "EROFS" else 75)
            (line,) = capsys.readouterr().err.strip().splitlines()
            assert line.startswith(f"error: {log}")
            assert line.endswith(os.strerror(number))
            assert not list(log.glob(".spill-*"))
        assert main([*command, str(log)]) == 0
        assert raw_logs.log_bytes(log) == raw_logs.log_bytes(whole)
    assert failed >= 1
