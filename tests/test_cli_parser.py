"""What the command line takes, and what its help says."""

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctr.cli import make_parser
from ctr.cli_logs import FORMATS
from ctr.cli_parser import parse
from ctr.data.mapping import format_names


def commands(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command, the program itself among them as none."""
    yield words
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from commands(below, (*words, name))


def help_text(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        parse(make_parser(), [*words, "--help"])
    assert end.value.code == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("words", [*commands(make_parser())], ids=" ".join)
def test_every_help_is_well_formed(capsys, words):
    text = help_text(capsys, *words)
    assert text.startswith(f"usage: {' '.join(('ctr', *words))} ")
    assert "%%" not in text and "%(" not in text
    assert not any(f" {word} " in f" {text} " for word in ("None", "likewise", "needed", "told", "folder"))


def test_every_argument_has_words_of_its_own():
    def arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for below in action.choices.values():
                    yield from arguments(below)
            else:
                yield action

    assert [action.dest for action in arguments(make_parser()) if not action.help] == []


def test_a_percent_sign_is_one(capsys):
    assert "with paired 95% intervals" in help_text(capsys, "compare")
    assert "with paired 95% intervals" in help_text(capsys)


def test_the_shipped_formats_are_those_that_are_offered():
    assert set(FORMATS) == set(format_names())


def test_the_help_of_a_format_lists_its_own_options(capsys):
    only_events = ("--kafka", "--stream", "--follow", "--poll", "--idle-timeout", "--beam-options", "--drain")
    for name in (*FORMATS, "table"):
        text = help_text(capsys, "ingest", name)
        assert not any(option in text for option in only_events)
        assert ("--mapping" in text) == (name == "table")
        assert "--out" in text and "--max-reject-share" in text
    text = help_text(capsys, "ingest", "events")
    assert all(option in text for option in (*only_events, "--mapping"))
    assert all(name in help_text(capsys, "ingest") for name in (*FORMATS, "table", "events"))


@pytest.mark.parametrize(
    "order",
    [*itertools.permutations((("events",), ("--out", "log"), ("--mapping=m.yaml", "--foll"), ("--json",)))],
    ids=lambda order: " ".join(word for part in order for word in part),
)
def test_options_may_stand_before_the_format(order):
    given = parse(make_parser(), ["ingest", *(word for part in order for word in part), "in"])
    assert (given.command, given.format, given.out, given.json) == ("ingest", "events", Path("log"), True)
    assert (given.input, given.mapping, given.follow) == ([Path("in")], Path("m.yaml"), True)


@pytest.mark.parametrize(
    "given",
    ["--mapping m.yaml a b --out log", "a --mapping m.yaml --out log b", "--out log --mapping m.yaml a b"],
)
def test_inputs_may_stand_before_and_behind_options(given):
    parsed = parse(make_parser(), ["ingest", "table", *given.split()])
    assert (parsed.input, parsed.out) == ([Path("a"), Path("b")], Path("log"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("ingest", "--out", "mind", "files"), "invalid choice: 'files'"),
        (("ingest", "mind", "files"), "the following arguments are required: --out"),
        (
            ("ingest", "mind", "files", "--out", "log", "--kafka", "h:1"),
            "unrecognized arguments: --kafka h:1",
        ),
        (("ingest", "table", "files", "--out", "log"), "the following arguments are required: --mapping"),
        (("ingest", "--out", "log"), "the following arguments are required: FORMAT"),
        (("ingest", "--", "mind", "files", "--out", "log"), "required: FORMAT"),
    ],
)
def test_wrong_usage_says_what_is_wrong(capsys, given, words):
    with pytest.raises(SystemExit) as end:
        parse(make_parser(), given)
    assert end.value.code == 2
    assert words in capsys.readouterr().err
