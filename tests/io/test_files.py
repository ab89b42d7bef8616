"""Files that appear whole or not at all; addresses such as hdfs://host/log are no paths.

Every command, key and function refuses addresses before it writes.
"""

import importlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, get_args

import click
import pytest
from pydantic import BaseModel

from command_tree import all_commands
from ctr.cli import main
from ctr.cli_parser import LocalPath
from ctr.config import AnyPath, StrictModel, parse_model
from ctr.config.kinds import CONFIGS
from ctr.data.log import read_schema
from ctr.data.mapping import load_format
from ctr.io.errors import InputError
from ctr.io.files import (
    address_fault,
    check_local,
    create_exclusively,
    is_temporary,
    version_number,
    versions,
    write_atomic,
    write_atomic_bytes,
)
from ctr.serving.metadata import find_model


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


def test_versions_come_in_the_order_of_their_numbers(tmp_path):
    for name in ("10", "9", "7.5", "11.partial", "100", "notes", "-7"):
        (tmp_path / name).mkdir()
    (tmp_path / "8").write_text("a file is no version")
    found = versions(tmp_path)
    assert [path.name for path in found] == ["9", "10", "100"]
    assert [version_number(path) for path in found] == [9, 10, 100]
    assert versions(tmp_path / "nothing") == []


ADDRESSES = (
    "gs://b/x",
    "s3://b/x",
    "az://b/x",
    "hdfs:///x",
    "file:///x",
    "https://b/x",
    "S3A://b/x",
    "dbfs:/x",
)
PLACES = {"FILE", "DIR", "LOG", "RUN", "RUN_A", "RUN_B", "MODEL"}
PLACES |= {"INPUT", "PREDICTIONS", "EXPERIMENT", "SEARCH"}
STREAMED = [(["ingest", "events"], name) for name in ("INPUT", "--out")]


def path_arguments() -> Iterator[tuple[list[str], str, bool]]:
    """Of every command the words and options that are paths by their type or by what the help calls them.

    Each with the words of the command, its name in messages, and whether it is an option.
    """
    for words, command in all_commands():
        for parameter in command.params:
            name = str(parameter.metavar).strip("[].")
            if isinstance(parameter.type, LocalPath) or name in PLACES:
                is_option = isinstance(parameter, click.Option)
                yield [*words], parameter.opts[0] if is_option else name, is_option


def test_no_path_of_a_command_is_an_address(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # A stream's events and log may lie elsewhere, see tests/pipelines/events/test_addresses.py.
    arguments = [argument for argument in path_arguments() if argument[:2] not in STREAMED]
    assert len(arguments) > 40
    schemes = cycle(("s3", "hdfs", "gs", "az", "file"))
    for (words, name, is_option), scheme in zip(arguments, schemes, strict=False):
        before = ["here"] if name == "RUN_B" or (words == ["score"] and name == "LOG") else []
        assert main([*words, *([name] if is_option else before), f"{scheme}://bucket/x"]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {name} {scheme}://bucket/x: is an address ({scheme}://)"), words
        assert line.endswith("; allowed: a local path, to which ctr sync copies s3://, gs:// or az://")
    assert [*tmp_path.iterdir()] == []


def paths_below(annotation: Any) -> Iterator[tuple[str, Any]]:
    """The keys of the models in an annotation, with the name of their model, whose type is a path of any kind."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            kinds = {field.annotation, *get_args(field.annotation)}
            if Path in kinds or AnyPath in kinds:
                yield f"{annotation.__name__}.{name}", (annotation, name)
            yield from paths_below(field.annotation)
    for part in get_args(annotation):
        yield from paths_below(part)


def config_paths() -> dict[str, tuple[type[StrictModel], str]]:
    models = [getattr(importlib.import_module(module), name) for module, name in CONFIGS.values()]
    return dict(found for model in models for found in paths_below(model))


def test_no_path_of_a_configuration_is_an_address():
    for model, name in config_paths().values():
        for address in ("hdfs://bucket/x", "file:///x", "s3://bucket/x"):
            message = rf"^here: .*{name}: '{address}' is not allowed: .*is an address .*ctr sync"
            with pytest.raises(InputError, match=message):
                parse_model(model, {name: address}, "here")


def test_no_text_that_names_files_is_an_address():
    mapping = load_format("movielens")
    content = mapping.model_dump(mode="json")
    content["joins"][0]["file"] = "s3://b/x"
    content["input"]["pattern"] = "s3://b/*.csv"
    with pytest.raises(InputError, match=r"pattern: .* is an address .*joins.0.file: .* is an address"):
        parse_model(type(mapping), content, "here")


@pytest.mark.parametrize("address", ADDRESSES)
def test_functions_refuse_addresses_too(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for refuse in (read_schema, find_model, lambda path: write_atomic_bytes(path / "file", b"")):
        with pytest.raises(InputError, match=r"is an address \(\w+://\).*allowed: a local path"):
            refuse(Path(address))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("path", ["a", "/a/b", "a:b", "C:/a", "day=1/a:", "./gs:/x", "a b://c", "-", ""])
def test_other_paths_are_paths(path):
    assert not address_fault(path)
    check_local(path)
