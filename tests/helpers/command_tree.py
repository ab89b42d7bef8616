"""The commands of ``ctr``, for tests of what all of them have."""

from collections.abc import Iterator

import click

from ctr.cli import make_commands
from ctr.cli_parser import Command


def all_commands(
    command: click.Command | None = None, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Each command with its words, groups among them and ``ctr`` itself, which has none; their usage is read."""
    command = command or make_commands()
    if isinstance(command, Command):
        command.load()
    yield words, command
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from all_commands(below, (*words, name))
