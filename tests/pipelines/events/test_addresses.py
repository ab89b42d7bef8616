"""Streams whose events and log are at addresses of Beam's file systems: their files, and what is refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from apache_beam.io.filesystem import FileMetadata
from apache_beam.io.localfilesystem import LocalFileSystem

import event_files
from ctr.cli import main
from ctr.data.log import list_partitions
from ctr.pipelines.events.publish import stage_events
from log_files import digests
from raw_logs import read_rejects

EVENTS, LOG = "store://day/events", "store://day/log"


class Store(LocalFileSystem):
    """Files of a local folder under ``store://``; ``named`` has their addresses in the order in which they appeared."""

    root = Path()
    named: list[str] = []

    @classmethod
    def scheme(cls) -> str:
        return "store"

    def _path(self, address: str) -> str:
        return address.replace("store://", f"{self.root}/", 1)

    def _list(self, dir_or_prefix: str) -> Iterator[FileMetadata]:
        for file in super()._list(self._path(dir_or_prefix)):
            yield self.metadata(file.path.replace(f"{self.root}/", "store://", 1))

    def metadata(self, path: str) -> FileMetadata:
        file = super().metadata(self._path(path))
        return FileMetadata(path, file.size_in_bytes, file.last_updated_in_seconds)

    def create(self, path: str, *how: str) -> Any:
        return super().create(self._path(path), *how)

    def open(self, path: str, *how: str) -> Any:
        return super().open(self._path(path), *how)

    def exists(self, path: str) -> bool:
        return super().exists(self._path(path))

    def rename(self, sources: list[str], targets: list[str]) -> None:
        super().rename(list(map(self._path, sources)), list(map(self._path, targets)))
        self.named.extend(targets)

    def delete(self, paths: list[str]) -> None:
        super().delete(list(map(self._path, paths)))


@pytest.fixture(autouse=True)
def day(tmp_path, monkeypatch):
    """The folder of ``store://day``, with events of which some are bad."""
    day = tmp_path / "store" / "day"
    event_files.write_events(day / "events", event_files.draw_events(30, seconds=40), 2, "jsonl.gz")
    bad = {"impressions/2.jsonl": b"no JSON\n", "impressions/3.jsonl.gz": b"no gzip", "clicks/.3.jsonl": b"{"}
    event_files.write_files(day / "events", [*bad.items()])
    (tmp_path / "mapping.yaml").write_text(yaml.safe_dump(event_files.content()))
    monkeypatch.setattr(Store, "root", tmp_path / "store")
    monkeypatch.setattr(Store, "named", [])
    monkeypatch.chdir(tmp_path)
    return day


def run(events: object = EVENTS, log: object = LOG, *options: str) -> int:
    """Runs the command of a drained stream; returns its status."""
    fixed = ["--mapping", "mapping.yaml", "--out", str(log), "--max-reject-share", "1"]
    return main(["ingest", "events", str(events), *fixed, "--stream", "--drain", *options])


def test_the_log_at_an_address_has_the_files_of_a_local_one_its_manifests_last(day, capsys):
    results = []
    for arguments in ((day / "events", "log"), (EVENTS, LOG)):
        assert run(*arguments, "--json") == 0
        results.append(json.loads(capsys.readouterr().out))
    assert results[1] == {**results[0], "warnings": []}
    log = digests(day / "log")
    assert log == digests(Path("log"))
    assert {reject["reason"] for reject in read_rejects(day / "log")} == {"malformed JSON", "damaged"}
    parts = {"schema.json", "events.yaml", "shards", "manifests", "unmatched", "conflicting", "late"}
    assert parts <= {name.partition("/")[0] for name in log}
    for start, end in list_partitions(Path("log")):
        of_partition = [name for name in Store.named if f"{start:019d}-{end:019d}" in name]
        assert len(of_partition) > 1
        assert of_partition[-1] == f"{LOG}/manifests/{start:019d}-{end:019d}.json"


@pytest.mark.slow
def test_a_job_run_again_publishes_what_is_missing_and_replaces_nothing(day, capsys, monkeypatch):
    assert run() == 0
    before = digests(day)
    Store.named.clear()
    assert run() == 0
    assert (digests(day), Store.named) == (before, [])
    last = max((day / "log" / "manifests").iterdir())
    content = last.read_bytes()
    # As left by a worker that was killed while it wrote.
    last.rename(last.with_name(f"{last.name}.partial-{'0' * 16}"))
    assert run() == 0
    assert Store.named == [f"{LOG}/manifests/{last.name}"]
    assert before.items() <= digests(day).items()
    # Another job publishes a partition after this one has begun.
    last.unlink()
    other = content.replace(b'"rows"', b'"Rows"')

    def stage(*arguments: Any) -> bytes:
        manifest = stage_events(*arguments)
        last.write_bytes(other)
        return manifest

    capsys.readouterr()
    with monkeypatch.context() as patched:
        patched.setattr("ctr.pipelines.events.stream.stage_events", stage)
        assert run() == 1
    complaint = "this partition was published before with other content; the first version is kept"
    assert capsys.readouterr().err == f"error: {LOG}/manifests/{last.name}: {complaint}\n"
    assert last.read_bytes() == other
    # Other events: nothing beside a published manifest is replaced either.
    more = event_files.encode([event_files.impression(9_000, 99)], "jsonl")
    event_files.write_files(day / "events", [("impressions/4.jsonl", more)])
    before = digests(day)
    monkeypatch.setattr("ctr.pipelines.events.stream.last_published", lambda log: -1)
    assert run() == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {LOG}: the partition [")
    assert "was published before with other content" in line
    assert before.items() <= digests(day).items()


def test_what_an_address_cannot_be_is_one_line(day, capsys):
    history = {"by": "user", "of": "user", "after": "30m", "last": 5}
    user, seen = {"name": "user", "source": "color"}, {"name": "seen", "history": history}
    features = [{"kind": "category", **feature} for feature in (user, seen)]
    Path("histories.yaml").write_text(yaml.safe_dump(event_files.content(features=features)))
    before = digests(day)
    streamed, followed = ["--stream", "--drain"], ["--follow"]
    no_local_path = "is an address (store://); allowed: a local path"
    for folder, log, options, mapping, complaint in (
        (EVENTS, EVENTS, streamed, "mapping", f"{EVENTS} is neither empty nor an example log (it holds "),
        (EVENTS, f"{LOG}*", streamed, "mapping", f"{LOG}*: an address with *, ? or [ would be read as a"),
        (EVENTS, "else://b/log", streamed, "mapping", "else://b/log: Unable to get filesystem from"),
        ("file:/events", "log", streamed, "mapping", "INPUT file://events: is an address (file://); allowed"),
        (EVENTS, LOG, streamed, "histories", f"{LOG}: histories are made of earlier partitions, which must"),
        (EVENTS, "log", [], "mapping", f"INPUT {EVENTS}: {no_local_path}"),
        (day, LOG, followed, "mapping", f"--out {LOG}: {no_local_path}"),
    ):
        words = [str(folder), "--mapping", f"{mapping}.yaml", "--out", log, *options]
        assert main(["ingest", "events", *words]) == 1
        assert capsys.readouterr().err.startswith(f"error: {complaint}")
    assert digests(day) == before and not Path("log").exists()
