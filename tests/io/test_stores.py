"""Logs, files and working copies in object stores, as several machines write and read them over a bad network."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import stores
from ctr.config import parse_model
from ctr.data.log import PublishedPartitions, create_log, read_manifests
from ctr.data.reader import join_rows, read_rows
from ctr.data.schema import Schema
from ctr.data.shards import publish_partition
from ctr.io.errors import InputError
from ctr.io.files import create_exclusively, names_in, write_atomic_bytes
from ctr.io.paths import read_path, with_content
from ctr.io.stores import address_of, make_room, pull, pulls_anew, remove
from ctr.io.stores import fetch as fetch_file
from ctr.io.working_copies import (
    expect,
    fetch,
    hand_over,
    leave_unsaved,
    open_working_copy,
    save,
    save_outputs,
    wait_for,
)
from hashed_rows import hashed_rows
from http_proxy import Fault

each_store = pytest.mark.parametrize("kind", stores.KINDS)

SCHEMA = parse_model(
    Schema, {"features": [{"kind": "category", "name": "a", "source": "a", "buckets": 100}]}, "test"
)
WRITTEN_MEANWHILE = "another process has written it meanwhile; what it wrote is kept; run the command again"


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Goes on at a machine, which has a cache of its own: gives the path of an address there, with its content."""

    def machine(name: str, address: str) -> Path:
        monkeypatch.setenv("CTR_CACHE", str(tmp_path / name))
        with pulls_anew():
            return with_content(read_path(address))

    return machine


@pytest.fixture
def back_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Goes on at a machine with what it has in its cache."""
    return lambda name: monkeypatch.setenv("CTR_CACHE", str(tmp_path / name))


def publish(log: Path, part: int, seed: int = 0) -> None:
    rows = hashed_rows(SCHEMA, 20, first=20 * part, seed=seed)
    publish_partition(log, SCHEMA, 10_000 * part, 10_000 * (part + 1), rows, shard_rows=8)


def ids(log: Path) -> list[list[int]]:
    return join_rows(list(read_rows(log, SCHEMA, read_manifests(log)))).ids.tolist()


@each_store
def test_a_log_is_published_once_and_read_anywhere(kind, object_store, on):
    address = f"{object_store(kind)}/logs/one"
    log = on("a", address)
    create_log(log, SCHEMA)
    publish(log, 0)
    first = ids(log)
    log = on("b", address)
    # Shards come when they are read, and the manifests say which they are.
    assert not (log / "shards").exists()
    assert ids(log) == first
    seen = PublishedPartitions(log)
    assert len(seen.read()) == 1
    publish(log, 0)
    with pytest.raises(InputError, match="published before with other content; the first version is kept"):
        publish(log, 0, seed=1)
    # A machine that has not seen the partition comes second, too.
    log = on("a", address)
    publish(log, 1)
    second = ids(log)
    log = on("b", address)
    log.joinpath("manifests").joinpath("x.tmp").touch()
    assert len(seen.read()) == 2
    assert ids(log) == second and len(second) == 40
    assert ids(on("a", address)) == second


@each_store
def test_nothing_that_another_machine_has_written_is_overwritten(kind, object_store, on, back_on):
    address = f"{object_store(kind)}/state"
    write_atomic_bytes(on("a", address) / "x.json", b"1")
    later = on("b", address) / "x.json"
    write_atomic_bytes(on("a", address) / "x.json", b"2")
    back_on("b")
    for content in (b"3", b""):
        with pytest.raises(InputError, match=WRITTEN_MEANWHILE):
            write_atomic_bytes(later, content)
        assert later.read_bytes() == b"1"
    # Unless it is the same.
    write_atomic_bytes(later, b"2")
    write_atomic_bytes(later, b"3")
    assert not create_exclusively(later, b"4") and later.read_bytes() == b"3"
    assert create_exclusively(later.with_name("y.json"), b"5")
    found = on("c", address)
    assert {name: (found / name).read_bytes() for name in names_in(found, "")} == {
        "x.json": b"3",
        "y.json": b"5",
    }


def test_a_copy_becomes_what_the_store_holds(object_store, on):
    address = f"{object_store('s3')}/files"
    here = on("a", address)
    for name in ("same", "other", "gone", "edited", "below/this"):
        write_atomic_bytes(here / name, name.encode())
    there = on("b", address)
    write_atomic_bytes(there / "other", b"changed")
    remove(there / "gone")
    write_atomic_bytes(there / "new", b"new")
    here = on("a", address)
    (here / "edited").write_bytes(b"by hand")
    (here / ".lock").touch()
    before = (here / "same").stat().st_ino
    pull(here)
    found = {path.name: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    expected = {
        "same": b"same",
        "other": b"changed",
        "edited": b"edited",
        "this": b"below/this",
        "new": b"new",
    }
    assert found == expected | {".lock": b""}
    assert (here / "same").stat().st_ino == before
    # An address of one object is a file, and one of nothing is nothing.
    assert on("c", f"{address}/below/this").read_bytes() == b"below/this"
    assert not on("c", f"{address}/nothing").exists()


@pytest.mark.parametrize("action", ["lose", "drop", "status", "truncate"])
def test_requests_that_fail_for_a_time_change_nothing(action, faulty_store, on):
    bucket, proxy = faulty_store("s3")
    log = on("a", f"{bucket}/log")
    create_log(log, SCHEMA)
    method = "GET" if action == "truncate" else ""
    proxy.faults = [Fault(action, method, pattern) for pattern in ("manifests", "shards", "list-type")]
    publish(log, 0)
    assert proxy.faults == [] or action == "truncate"
    first = ids(log)
    proxy.faults = [Fault(action, method, pattern) for pattern in ("manifests/", "shards/", "list-type")]
    assert ids(on("b", f"{bucket}/log")) == first
    assert proxy.faults == []


def test_a_stale_listing_hides_a_partition_and_loses_none(faulty_store, on):
    bucket, proxy = faulty_store("s3")
    log = on("a", f"{bucket}/log")
    create_log(log, SCHEMA)
    for part in range(4):
        publish(log, part)
    # The listing from before the last one was published.
    proxy.faults = [Fault("stale", "GET", "prefix=log/manifests/")]
    seen = read_manifests(log)
    assert proxy.faults == []
    assert read_manifests(log)[:3] == seen and len(read_manifests(log)) == 4


def test_faults_are_one_line_without_secrets(faulty_store, object_store, on, monkeypatch):
    bucket, proxy = faulty_store("s3")
    with pytest.raises(InputError, match=r"^s3://no-such-b/log: no such bucket$"):
        on("a", "s3://no-such-b/log")
    proxy.faults = [Fault("status", "", "", 100, 403)]
    with pytest.raises(InputError, match=f"^{bucket}/x: .*403") as refused:
        on("a", f"{bucket}/x")
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"):
        assert os.environ[name] not in str(refused.value).replace(bucket, "")
    assert "\n" not in str(refused.value) and "Signature" not in str(refused.value)


def test_copies_of_shards_make_room_for_others(object_store, on):
    log = on("a", f"{object_store('s3')}/log")
    create_log(log, SCHEMA)
    publish(log, 0)
    shards = sorted((log / "shards").iterdir())
    for age, path in enumerate(shards):
        os.utime(path, ns=(10**9 * (100 - age), path.stat().st_mtime_ns))
    assert fetch_file(shards[-1])
    size = sum(path.stat().st_size for path in shards)
    make_room(size)
    assert all(path.exists() for path in shards)
    make_room(size - 1)
    # The one that was read last, an hour ago or now, stays.
    assert [path.exists() for path in shards] == [True] * (len(shards) - 2) + [False, True]
    assert len(ids(log)) == 20


def files_of(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def checkpoint(run: Path, number: int) -> None:
    folder = run / "checkpoints" / f"{number:020d}"
    folder.mkdir(parents=True)
    for name in ("arrays.npz", "state.json"):
        (folder / name).write_text(f"{name} {number}")


def test_a_working_copy_is_saved_with_marks_last(faulty_store, tmp_path, monkeypatch):
    bucket, proxy = faulty_store("s3")

    def opened(machine: str) -> Path:
        monkeypatch.setenv("CTR_CACHE", str(tmp_path / machine))
        with pulls_anew():
            run = open_working_copy(f"{bucket}/run")
        save_outputs(None)
        return run

    run = opened("a")
    checkpoint(run, 1)
    checkpoint(run, 2)
    for name in ("summary.json", "metrics.jsonl", ".lock", f"x.partial-{'0' * 16}"):
        (run / name).write_text(name)
    (run / "checkpoints" / "3.partial").mkdir()
    (run / "checkpoints" / "3.partial" / "arrays.npz").touch()
    save(run)
    written = [request.target.rpartition("/")[2] for request in proxy.requests if request.method == "PUT"]
    marks = [name for name in written if name in ("state.json", "summary.json")]
    assert written[-3:] == marks == ["state.json", "state.json", "summary.json"] and len(written) == 6
    # Only what has changed is written again, and the state of a checkpoint is deleted before its arrays.
    proxy.requests.clear()
    save(run)
    assert [request for request in proxy.requests if request.method != "GET"] == []
    for path in sorted((run / "checkpoints" / f"{1:020d}").iterdir()):
        path.unlink()
    with (run / "metrics.jsonl").open("a") as file:
        file.write("more")
    os.utime(run / "metrics.jsonl", ns=(0, 10**18))
    save(run)
    changes = [
        f"{one.method} {one.target.rpartition('/')[2]}" for one in proxy.requests if one.method != "GET"
    ]
    assert changes[0] == "PUT metrics.jsonl" and len(changes) == 3
    # Another machine goes on from there, whatever it had done before without saving it.
    saved = {
        name: text for name, text in files_of(run).items() if "lock" not in name and "partial" not in name
    }
    other = opened("b")
    assert files_of(other) == saved
    checkpoint(other, 9)
    (other / "metrics.jsonl").write_text("other")
    assert files_of(opened("b")) == saved
    # Of two at once, the second one is refused before it marks anything as complete.
    checkpoint(other, 3)
    (other / "metrics.jsonl").write_text("of b")
    save(other)
    monkeypatch.setenv("CTR_CACHE", str(tmp_path / "a"))
    checkpoint(run, 4)
    (run / "metrics.jsonl").write_text("of a")
    with pytest.raises(InputError, match=WRITTEN_MEANWHILE):
        save(run)
    assert "checkpoints/00000000000000000004/state.json" not in files_of(opened("c"))


def test_large_files_are_written_in_parts(object_store, on, monkeypatch):
    folder = on("a", f"{object_store('s3')}/large")
    monkeypatch.setattr("ctr.io.stores._LARGE", 1)
    content = os.urandom(12 << 20)
    for given in (content[:1000], content):
        write_atomic_bytes(folder / "shard", given)
    assert on("b", address_of(folder)).joinpath("shard").read_bytes() == content


def test_what_a_parent_has_opened_is_not_emptied(object_store, tmp_path, monkeypatch):
    monkeypatch.setenv("CTR_CACHE", str(tmp_path))
    address = f"{object_store('s3')}/run"
    with pulls_anew():
        run = open_working_copy(address)
        (run / "new").parent.mkdir(parents=True, exist_ok=True)
        (run / "new").touch()
        assert open_working_copy(address) == run and (run / "new").exists()
    assert address_of(run) == "" and address_of(run, "working") == address
    # What no process has opened may not be above or below what one has.
    for other in (address, address.rpartition("/")[0], f"{address}/below"):
        with (
            pulls_anew(),
            pytest.raises(InputError, match=f"{other}: another process works there, or in a folder"),
        ):
            open_working_copy(other)
    assert (run / "new").exists()
    save_outputs(None)
    with pulls_anew():
        open_working_copy(address)
        save_outputs(None)
    assert (run / "new").exists()
    (run / "unsaved").touch()
    with pulls_anew():
        open_working_copy(address)
        assert not (run / "unsaved").exists()
    save_outputs(None)


def test_another_machine_hands_over_what_it_makes_of_a_folder_that_one_saves(
    faulty_store, tmp_path, monkeypatch
):
    bucket, proxy = faulty_store("s3")
    runs = {}

    def at(machine: str) -> Path:
        monkeypatch.setenv("CTR_CACHE", str(tmp_path / machine))
        with pulls_anew():
            return runs.setdefault(machine, None) or open_working_copy(f"{bucket}/run")

    def position(machine: str, number: int, ending: str = "") -> Path:
        return at(machine) / "checkpoints" / f"{number:020d}{ending}"

    def deleted() -> list[str]:
        bodies = [one.body.decode() for one in proxy.requests if one.target.endswith("?delete")]
        return [name for body in bodies for name in re.findall("<Key>run/checkpoints/(.*?)<", body)]

    def write(number: int, text: str, is_complete: bool = True) -> None:
        """Both parts of a checkpoint, and its state."""
        place, name = position("b", number, ".partial"), position("b", number)
        place.mkdir(parents=True, exist_ok=True)
        for file in ("arrays-1.npz", "part-1.json"):
            (place / file).write_text(text)
            hand_over(place / file, name / file)
        assert [*place.iterdir()] == []
        place, name = position("a", number, ".partial"), position("a", number)
        place.mkdir(parents=True, exist_ok=True)
        assert wait_for(place / "part-1.json", name / "part-1.json", lambda: True)
        assert (place / "part-1.json").read_text() == text
        (place / "part-1.json").unlink()
        assert not wait_for(place / "part-1.json", name / "part-1.json", lambda: True)
        expect(name / "arrays-1.npz")
        if is_complete:
            (place / "state.json").write_text(text)
        place.rename(name)

    for machine in ("a", "b"):
        runs[machine] = at(machine)
    leave_unsaved(runs["b"])
    write(1, "first")
    (at("a") / "metrics.jsonl").touch()
    save(at("a"))
    # Of the other machine nothing but what it handed over is ever saved, or deleted.
    (at("b") / "metrics.jsonl").write_text("of b")
    save(at("b"))
    write(2, "second")
    save(at("a"))
    # Who needs what another one wrote fetches it.
    fetch(position("a", 1))
    assert sorted(path.name for path in position("a", 1).iterdir()) == ["arrays-1.npz", "state.json"]
    fetch(position("b", 2))
    assert {path.read_text() for path in position("b", 2).iterdir()} == {"second"}
    # With the checkpoint goes all that belongs to it, the state first.
    proxy.requests.clear()
    shutil.rmtree(position("a", 1))
    shutil.rmtree(position("a", 2))
    save(at("a"))
    assert sorted(deleted()[:2]) == [f"{1:020d}/state.json", f"{2:020d}/state.json"]
    assert sorted(deleted()[2:]) == [f"{1:020d}/arrays-1.npz", f"{2:020d}/arrays-1.npz"]
    # A checkpoint that was not completed is none elsewhere; it makes room when the next one is begun and saved.
    write(3, "third", is_complete=False)
    save_outputs(None)
    runs.clear()
    runs["a"] = at("a")
    assert [path.name for path in (at("a") / "checkpoints").iterdir()] == [f"{3:020d}.partial"]
    save(at("a"))
    assert f"{3:020d}/arrays-1.npz" not in deleted()
    position("a", 3, ".partial").rmdir()
    save(at("a"))
    assert deleted()[-1] == f"{3:020d}/arrays-1.npz"
    save_outputs(None)
