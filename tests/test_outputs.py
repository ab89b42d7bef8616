"""What --out may name, of every command that takes it: nothing is replaced but what such a command made."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from command_tree import all_commands
from ctr.cli import main
from ctr.io.files import write_atomic_bytes

# Each is refused before it looks at anything else than its configuration.
FILES = {
    "report": "report run --out",
    "score": "score model log --out",
    "history": "history log --out",
}
FOLDERS = {
    "demo": "demo --examples 10 --out",
    "quickstart": "quickstart rows.csv --out",
    "simulate": "simulate --examples 10 --out",
    "simulate the randomized traffic": "simulate --examples 10 --out free --randomized",
    "simulate events": "simulate --examples 10 --out free --events",
    "ingest a format": "ingest criteo train.txt --out",
    "ingest a table": "ingest table rows.csv --mapping table.yaml --out",
    "ingest events": "ingest events events --mapping events.yaml --out",
    "ingest events as they come": "ingest events events --mapping events.yaml --follow --out",
    "ingest events as a stream": "ingest events events --mapping events.yaml --stream --out",
    "sample": "sample log --name half --set non_click_rate=0.5 --out",
    "train": "train log --out",
    "train as the log grows": "train log --follow --out",
    "train from another run": "train log --init-from run --out",
    "export": "export run --out",
    "config": "config --schema --out",
    "replay": "replay experiment.yaml --log log --out",
    "search": "search search.yaml --log log --out",
}
MAPPING = """
input: {type: csv}
time: {column: t, unit: s}
label: y
partition: 1d
features: [{name: a, kind: category, source: a, buckets: 9}]
"""


@pytest.fixture
def place(tmp_path, monkeypatch, root):
    """A folder to work in, with what the commands are configured by."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.yaml").write_text(MAPPING)
    shutil.copy(root / "examples" / "events" / "simulated.yaml", tmp_path / "events.yaml")
    return tmp_path


def test_every_command_with_an_output_is_here():
    given = {command.split()[0] for command in (*FILES.values(), *FOLDERS.values())}
    with_out = {
        words[0]
        for words, command in all_commands()
        if any("--out" in parameter.opts for parameter in command.params)
    }
    assert with_out == given


def refusal(capfd, command: str, out: object) -> str:
    """The one line that a command prints that must not write to ``out``."""
    assert main([*command.split(), str(out)]) == 1
    printed, error = capfd.readouterr()
    assert printed == "" and error.startswith("error: ") and error.count("\n") == 1, error
    return error


def make_file(path: Path) -> None:
    path.write_text("seed: 1\n")


def make_link(path: Path) -> None:
    make_file(path.with_name("target"))
    path.symlink_to("target")


def make_socket(path: Path) -> None:
    socket.socket(socket.AF_UNIX).bind(path.name)


ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "a named pipe"),
    "dangling link": (lambda path: path.symlink_to("nowhere"), "a symbolic link to nowhere"),
    "socket": (make_socket, "a socket"),
}
NO_FILES = {
    **ODD,
    "link to a file": (make_link, "a symbolic link to target"),
    "directory": (Path.mkdir, "a directory"),
    "other file": (make_file, "already exists, and is not"),
}
NO_FOLDERS = {
    **ODD,
    "link to a file": (make_link, "a symbolic link to target"),
    "file": (make_file, "a file"),
}


def state(path: Path) -> tuple[object, ...]:
    status = path.lstat()
    return status.st_ino, status.st_mode, path.read_bytes() if path.is_file() else None


@pytest.mark.parametrize("what", NO_FILES)
def test_what_is_no_file_of_the_kind_stays(place, capfd, what):
    make, words = NO_FILES[what]
    make(place / "out")
    before = state(place / "out")
    for command in FILES.values():
        line = refusal(capfd, command, "out")
        assert words in line and "allowed: a new file, or " in line
    if what in (*ODD, "link to a file"):
        # As the last barrier, whoever writes.
        with pytest.raises(Exception, match=words):
            write_atomic_bytes(place / "out", b"new")
    assert state(place / "out") == before
    assert "a device" in refusal(capfd, FILES["report"], "/dev/null")


@pytest.mark.parametrize("number", range(len(FOLDERS)), ids=FOLDERS)
def test_what_is_no_directory_stays(place, capfd, number):
    # Each command with one thing that is there, each thing with some command.
    command, things = list(FOLDERS.values())[number], list(NO_FOLDERS.values())
    make, words = things[number % len(things)]
    make(place / "out")
    before = state(place / "out")
    line = refusal(capfd, command, "out")
    assert "out is neither empty nor " in line and words in line
    assert state(place / "out") == before and not (place / "free").exists()
    assert words in refusal(capfd, command, "out/below")
    # Neither does a directory of something else become one of the command's; a run has the schema of its log.
    (place / "mine").mkdir()
    names = {"notes.txt"} if command.startswith("train") else {"schema.json", "config.yaml"}
    for name in names:
        (place / "mine" / name).write_text("{}")
    assert "mine is neither empty nor " in refusal(capfd, command, "mine")
    assert {path.name for path in (place / "mine").iterdir()} == names


def test_predictions_replace_no_other_parquet_file(place, capfd):
    pq.write_table(pa.table({"query_time": [1], "logit": [0.5]}), "recorded.parquet")
    before = state(place / "recorded.parquet")
    assert "is not predictions of ctr score" in refusal(capfd, FILES["score"], "recorded.parquet")
    assert state(place / "recorded.parquet") == before
    # The rejects beside them are written too.
    (place / "new.parquet.rejects.jsonl").write_text("mine\n")
    assert "new.parquet.rejects.jsonl: already exists" in refusal(capfd, FILES["score"], "new.parquet")
