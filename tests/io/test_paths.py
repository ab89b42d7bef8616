"""Addresses such as hdfs://host/log are no paths: every command, key and function refuses them before it writes."""

import argparse
import importlib
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from ctr.cli import main, make_parser
from ctr.cli_parser import CONFIGS
from ctr.config import AnyPath, StrictModel, parse_model
from ctr.data.log import read_schema
from ctr.data.mapping import load_format
from ctr.io.errors import InputError
from ctr.io.files import address_fault, check_local, write_atomic_bytes
from ctr.serving.metadata import find_model

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


def path_arguments(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.Action]]:
    """The arguments of every command that are paths by their type or by what the help calls them.

    Each with the words of the command and what has to be given before the argument.
    """
    before = words
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from path_arguments(below, (*words, name))
        elif action.type is Path or action.metavar in PLACES:
            yield before, action
            if action.required:
                before = (*before, *action.option_strings[-1:], "here")


def test_no_path_of_a_command_is_an_address(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = list(path_arguments(make_parser()))
    assert len(arguments) > 40
    for (words, action), scheme in zip(arguments, cycle(("s3", "hdfs", "gs", "az", "file")), strict=False):
        given = [*action.option_strings[-1:], f"{scheme}://bucket/x"]
        if words[0] == "ingest" and not action.option_strings:
            # Words among options are looked at when no option is missing.
            given += ["--out", "log"] + ["--mapping", "m.yaml"] * (words[1] in ("table", "events"))
        assert main([*words, *given]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        name = action.option_strings[-1] if action.option_strings else action.metavar
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
