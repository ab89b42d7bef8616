"""What the command line takes, and what its help says."""

import click
import pytest

from command_tree import all_commands
from ctr.cli import FORMATS, main
from ctr.data.mapping import format_names

COMMANDS = dict(all_commands())


def help_text(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words, "--help"]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_help_is_well_formed(capsys, words):
    text = help_text(capsys, *words)
    assert text.startswith(f"Usage: {' '.join(('ctr', *words))} ")
    assert "%%" not in text and "%(" not in text
    assert not any(f" {word} " in f" {text} " for word in ("None", "likewise", "needed", "told", "folder"))
    command = COMMANDS[words]
    assert command.help and command.help[0].isupper()
    for parameter in command.params:
        assert parameter.help and parameter.name
        if isinstance(parameter, click.Argument):
            assert parameter.metavar and parameter.metavar in text


def test_the_help_groups_the_commands(capsys):
    text = help_text(capsys)
    titles = ("Make a log:", "Train:", "Evaluate:", "Serve:", "Look:")
    places = [text.index(title) for title in titles]
    assert places == sorted(places)
    names = (
        "demo quickstart simulate ingest sample sync train export score replay search compare evaluate report"
    )
    names += " inspect history config completion"
    assert {words[0] for words in COMMANDS if words} == set(names.split())
    assert text.index("Evaluate:") < text.index(" compare ") < text.index("Serve:") < text.index(" score ")


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
