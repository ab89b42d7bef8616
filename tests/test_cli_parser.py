"""What the command line takes, and what its help says."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctr.cli import make_parser
from ctr.cli_logs import FORMATS
from ctr.cli_parser import parse
from ctr.data.mapping import format_names


def commands(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command, the program itself among them as none; every argument must have a help."""
    yield words
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from commands(below, (*words, name))
        else:
            assert action.help, action.dest


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


def test_options_may_stand_before_the_format_and_inputs_on_both_sides():
    for given in (
        "events --out log --mapping=m.yaml --foll --json in",  # the format first
        "--out log --mapping=m.yaml --foll --json events in",  # and last
        "--json --mapping=m.yaml --foll events --out log in",  # and between
    ):
        parsed = parse(make_parser(), ["ingest", *given.split()])
        assert (parsed.command, parsed.format, parsed.out) == ("ingest", "events", Path("log"))
        assert (parsed.input, parsed.mapping) == ([Path("in")], Path("m.yaml"))
        assert parsed.follow and parsed.json
    parsed = parse(make_parser(), ["ingest", "table", "a", "--mapping", "m.yaml", "--out", "log", "b"])
    assert (parsed.input, parsed.out) == ([Path("a"), Path("b")], Path("log"))


def test_the_help_of_a_format_lists_its_own_options(capsys):
    assert set(FORMATS) == set(format_names())
    only_events = ("--kafka", "--stream", "--follow", "--poll", "--idle-timeout", "--beam-options", "--drain")
    for name in (*FORMATS, "table"):
        text = help_text(capsys, "ingest", name)
        assert not any(option in text for option in only_events)
        assert ("--mapping" in text) == (name == "table")
        assert "--out" in text and "--max-reject-share" in text
    text = help_text(capsys, "ingest", "events")
    assert all(option in text for option in (*only_events, "--mapping"))
    assert all(name in help_text(capsys, "ingest") for name in (*FORMATS, "table", "events"))
