"""Files that appear whole or not at all."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ctr.io.errors import InputError
from ctr.io.files import (
    create_exclusively,
    file_sha256,
    is_temporary,
    make_folder,
    remove_temporaries,
    require_file,
    write_atomic,
    write_atomic_bytes,
)

PUBLISHER = """
import sys, time
from pathlib import Path
from ctr.io.files import create_exclusively
folder, name = Path(sys.argv[1]), sys.argv[2]
(folder / f"ready-{name}").touch()
while not (folder / "go").exists():
    pass
for number in range(200):
    # Long enough that half a file could be seen.
    won = create_exclusively(folder / "out" / f"{number:03d}", name.encode() * 50_000)
    print(int(won), end="")
"""

DIES_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from ctr.io.files import write_atomic
def write(file):
    file.write(b"half of ")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
write_atomic(Path(sys.argv[1]), write)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_creates_and_replaces(tmp_path):
    path = tmp_path / "new" / "folder" / "file"
    write_atomic_bytes(path, b"first")
    assert path.read_bytes() == b"first"
    write_atomic(path, lambda file: file.write(b"second"))
    assert path.read_bytes() == b"second"
    assert names(path.parent) == ["file"]


def test_a_failing_write_leaves_the_old_content(tmp_path):
    path = tmp_path / "file"
    write_atomic_bytes(path, b"old")

    def fail(file):
        file.write(b"half of the new")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        write_atomic(path, fail)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_content_is_durable_before_its_name_and_the_name_afterwards(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, Path.replace

    def recording_fsync(descriptor):
        events.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "content")
        fsync(descriptor)

    def recording_replace(self, target):
        events.append("name")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(Path, "replace", recording_replace)
    write_atomic_bytes(tmp_path / "file", b"content")
    assert events == ["content", "name", "folder"]


def test_new_folders_are_durable_too(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync

    def recording_fsync(descriptor):
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    make_folder(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"]
    make_folder(tmp_path / "a" / "b")
    assert len(synced) == 2


def test_a_process_that_dies_leaves_the_old_content_and_a_temporary(tmp_path, root):
    path = tmp_path / "file"
    write_atomic_bytes(path, b"old")
    done = subprocess.run([sys.executable, "-c", DIES_WHILE_WRITING, str(path)], cwd=root)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    assert len(names(tmp_path)) == 2
    assert [is_temporary(tmp_path / name) for name in names(tmp_path)] == [False, True]
    remove_temporaries(tmp_path)
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("write", [write_atomic_bytes, create_exclusively])
def test_a_write_removes_what_killed_processes_left_beside_it(tmp_path, root, write):
    subprocess.run([sys.executable, "-c", DIES_WHILE_WRITING, str(tmp_path / "file")], cwd=root)
    others = ["theirs.partial-download", "theirs.partial-0123456789abcde"]
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / "file.partial-0123456789abcdef").symlink_to("elsewhere")
    assert len(names(tmp_path)) == 4
    write(tmp_path / "other", b"content")
    assert names(tmp_path) == ["file.partial-0123456789abcdef", "other", *sorted(others)]


def test_what_another_process_is_writing_stays(tmp_path, root):
    script = DIES_WHILE_WRITING.replace("os.kill(os.getpid(), signal.SIGKILL)", "print(flush=True); input()")
    writer = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "file")],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert writer.stdout is not None
    writer.stdout.readline()
    write_atomic_bytes(tmp_path / "other", b"content")
    remove_temporaries(tmp_path)
    assert len(names(tmp_path)) == 2
    writer.communicate(b"\n")
    assert writer.returncode == 0
    assert names(tmp_path) == ["file", "other"]


def test_exclusive_creation_keeps_what_is_there(tmp_path):
    path = tmp_path / "folder" / "file"
    assert create_exclusively(path, b"first")
    assert not create_exclusively(path, b"second")
    assert path.read_bytes() == b"first"
    assert names(path.parent) == ["file"]


def test_of_two_publishers_exactly_one_wins(tmp_path, root):
    publishers = [
        subprocess.Popen(
            [sys.executable, "-c", PUBLISHER, str(tmp_path), name],
            cwd=root,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    deadline = time.monotonic() + 60
    while not all((tmp_path / f"ready-{name}").exists() for name in "ab"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (tmp_path / "go").touch()
    contents = {}
    while any(publisher.poll() is None for publisher in publishers) or len(contents) < 200:
        # What a reader sees is whole as soon as it has its name.
        for path in (tmp_path / "out").glob("???"):
            content = contents.setdefault(path.name, path.read_bytes())
            assert content in (b"a" * 50_000, b"b" * 50_000)
        assert time.monotonic() < deadline
    won = [publisher.communicate()[0] for publisher in publishers]
    assert [len(part) for part in won] == [200, 200]
    assert all(int(a) + int(b) == 1 for a, b in zip(*won, strict=True))
    for number in range(200):
        winner = "a" if won[0][number] == "1" else "b"
        content = winner.encode() * 50_000
        assert contents[f"{number:03d}"] == content
        assert (tmp_path / "out" / f"{number:03d}").read_bytes() == content
    assert len(names(tmp_path / "out")) == 200


def test_sha256_is_that_of_the_bytes(tmp_path):
    content = bytes(range(256)) * 5000
    (tmp_path / "file").write_bytes(content)
    assert file_sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"config .*nothing\.yaml: no such file"):
        require_file(tmp_path / "nothing.yaml", "config")
    assert require_file(Path(__file__), "test") == Path(__file__)


def test_a_folder_that_another_thread_makes_meanwhile_is_no_fault(tmp_path, monkeypatch):
    """Of threads that make one folder, each may find it absent and then there."""
    folder = tmp_path / "a"
    folder.mkdir()
    answers = iter([False])
    is_dir = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: next(answers, True) if path == folder else is_dir(path))
    make_folder(folder)
