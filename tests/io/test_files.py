"""Files that appear whole or not at all."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ctr.io.files import (
    create_exclusively,
    is_partial,
    is_temporary,
    make_folder,
    remove_temporaries,
    version_number,
    versions,
    write_atomic,
    write_atomic_bytes,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_created_replaced_and_kept_where_a_write_fails(tmp_path):
    path = tmp_path / "new" / "folder" / "file"
    write_atomic_bytes(path, b"first")
    assert path.read_bytes() == b"first"
    write_atomic(path, lambda file: file.write(b"second"))

    def fail(file):
        file.write(b"half of the new")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        write_atomic(path, fail)
    assert path.read_bytes() == b"second"
    assert names(path.parent) == ["file"]
    # What is there is kept where a new file is asked for.
    assert not create_exclusively(path, b"third")
    assert path.read_bytes() == b"second"
    assert create_exclusively(path.with_name("other"), b"fourth")
    assert names(path.parent) == ["file", "other"]


@pytest.fixture
def events(monkeypatch):
    """What becomes durable, and when names appear."""
    events = []

    def recorded(owner, name, describe):
        original = getattr(owner, name)

        def call(*arguments, **options):
            events.append(describe(*arguments))
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    def synced(descriptor):
        place = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        return f"folder {place.name}" if place.is_dir() else "content"

    recorded(os, "fsync", synced)
    recorded(os, "link", lambda source, target: f"name {target.name}")
    recorded(Path, "replace", lambda source, target: f"name {target.name}")
    return events


@pytest.mark.parametrize("write", [write_atomic_bytes, create_exclusively])
def test_content_is_durable_before_its_name_and_the_name_afterwards(tmp_path, events, write):
    write(tmp_path / "file", b"content")
    assert events == ["content", "name file", f"folder {tmp_path.name}"]


def test_new_folders_are_durable_too(tmp_path, events):
    for _ in range(2):
        make_folder(tmp_path / "a" / "b")
        assert events == [f"folder {tmp_path.name}", "folder a"]


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


def test_what_a_killed_process_left_is_removed_by_the_next_write_and_nothing_else_is(tmp_path, root):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", DIES_WHILE_WRITING, str(path)], cwd=root)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    assert [is_temporary(tmp_path / name) for name in names(tmp_path)] == [False, True]
    others = ["theirs.partial-0123456789abcde", "theirs.partial-download"]
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / "file.partial-0123456789abcdef").symlink_to("elsewhere")
    write_atomic_bytes(tmp_path / "other", b"content")
    assert names(tmp_path) == ["file", "file.partial-0123456789abcdef", "other", *others]


def test_what_is_being_written_stays(tmp_path):
    """A lock belongs to an open file: it keeps out this process as it does others."""

    def write(file):
        file.write(b"content")
        remove_temporaries(tmp_path)
        assert len(names(tmp_path)) == 1

    write_atomic(tmp_path / "file", write)
    assert names(tmp_path) == ["file"]


def test_a_folder_that_another_thread_makes_meanwhile_is_no_fault(tmp_path, monkeypatch):
    """Of threads that make one folder, each may find it absent and then there."""
    folder = tmp_path / "a"
    folder.mkdir()
    answers = iter([False])
    is_dir = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: next(answers, True) if path == folder else is_dir(path))
    make_folder(folder)


def test_what_the_name_of_an_incomplete_version_is():
    partial = ("7.partial", "0012.partial")
    others = ("7", "7.5.partial", "-7.partial", "7.partial.partial", ".partial", "", "model.partial")
    assert {name for name in (*partial, *others) if is_partial(name)} == set(partial)


def test_versions_come_in_the_order_of_their_numbers(tmp_path):
    for name in ("10", "9", "7.5", "11.partial", "100", "notes", "-7"):
        (tmp_path / name).mkdir()
    (tmp_path / "8").write_text("a file is no version")
    found = versions(tmp_path)
    assert [path.name for path in found] == ["9", "10", "100"]
    assert [version_number(path) for path in found] == [9, 10, 100]
    assert versions(tmp_path / "nothing") == []
