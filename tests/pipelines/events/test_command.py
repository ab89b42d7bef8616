"""``ctr ingest events`` on the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import event_files
from ctr.cli import main
from ctr.config import dump_yaml
from ctr.data.kept_values import read_values
from ctr.data.log import read_manifests
from log_files import ids_of_rows


@pytest.fixture
def call(tmp_path: Path) -> Callable[..., int]:
    """Runs the command over ``events`` to ``log``; returns its exit status."""
    (tmp_path / "mapping.yaml").write_text(dump_yaml(event_files.mapping()))
    event_files.write_events(tmp_path / "events", event_files.draw_events(40), files=1)

    def run(*options: str) -> int:
        files = ["--mapping", str(tmp_path / "mapping.yaml"), "--out", str(tmp_path / "log")]
        try:
            return main(["ingest", "events", str(tmp_path / "events"), *files, *options]) or 0
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 1

    return run


@pytest.mark.slow
def test_the_batch_tells_what_became_of_the_events(
    call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call() == 0
    reported = capsys.readouterr().out
    rows = sum(manifest.rows for manifest in read_manifests(tmp_path / "log"))
    assert f"{rows} examples, " in reported
    assert f"{len(event_files.draw_events(40)['impressions'])} impressions read" in reported
    assert call("--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["examples"] == rows
    assert result["counts"]["clicks"]["read"] == len(event_files.draw_events(40)["clicks"])


def test_a_drain_tells_it_too(
    call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--follow", "--drain", "--json", "--poll", "0.1", "--idle-timeout", "5") == 0
    result = json.loads(capsys.readouterr().out)
    manifests = read_manifests(tmp_path / "log")
    assert (result["published"], result["pending"]) == (len(manifests), 0)
    assert result["rows"] == sum(manifest.rows for manifest in manifests) > 0


def test_the_command_keeps_values_for_any_mapping(
    call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--keep-values", "price") == 1
    assert "--keep-values: keep_values names price" in capsys.readouterr().err
    assert call("--keep-values", "tags") == 0
    ids = {one for found in ids_of_rows(tmp_path / "log").values() for one in found["tags"]}
    values = " | ".join(read_values(tmp_path / "log", "tags", ids).values())
    assert set(values.split(" | ")) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--drain",), "--drain requires --follow"),
        (("--poll", "1"), "--poll requires --follow"),
        (("--idle-timeout", "1"), "--idle-timeout requires --follow"),
        (("--max-reject-share", "1.5"), "--max-reject-share 1.5 is not allowed"),
        (("--beam-options=--runner=Nothing",), "--beam-options"),
        (("--mapping", "nowhere.yaml"), "nowhere.yaml: no such file"),
    ],
)
def test_what_does_not_go_is_one_line(
    options: tuple[str, ...],
    complaint: str,
    call: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(*options) != 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert complaint in line
    assert not (tmp_path / "log" / "manifests").exists()
