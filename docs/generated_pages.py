"""Pages of the reference that are made of the code: configuration keys, commands, Shampoo's options, known faults."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from ctr.cli import make_commands
from ctr.config.kinds import CONFIGS, config_model
from ctr.config.reference import key_rows
from ctr.optim.shampoo.options import ShampooOptions

ROOT = Path(__file__).parent.parent
_FILES = {
    "train": ("Training configuration", "`ctr train --config FILE`", "howto/training.md"),
    "mapping": ("Mapping of a table", "`ctr ingest table --mapping FILE`", "howto/tables.md"),
    "events": ("Mapping of events", "`ctr ingest events --mapping FILE`", "howto/events.md"),
    "sampling": ("Sampling", "`ctr sample --config FILE`", "howto/sampling.md"),
    "simulator": ("Simulated world", "`ctr simulate --config FILE`", "howto/simulator.md"),
    "experiment": ("Experiment", "`ctr replay EXPERIMENT`", "howto/experiments.md"),
    "search": ("Search", "`ctr search SEARCH`", "howto/search.md"),
}


def write_pages(folder: Path) -> None:
    """Writes the pages into a folder, each only where it has changed."""
    pages = {f"{kind}.md": _keys_page(kind) for kind in CONFIGS}
    pages["commands.md"] = _commands_page()
    pages["shampoo-options.md"] = _page(
        "All options of Shampoo",
        "Every option of `ctr.optim.Shampoo`, with its default and what is allowed; see "
        "[how to give them](../shampoo-options.md).",
        _table(ShampooOptions),
    )
    pages["faults.md"] = _faults_page()
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def _page(title: str, lead: str, body: str) -> str:
    return f"# {title}\n\n{lead}\n\n{body}\n"


def _keys_page(kind: str) -> str:
    title, command, howto = _FILES[kind]
    lead = (
        f"Every key of the file that {command} reads, with its default, what is allowed and its meaning, as "
        f"`ctr config --kind {kind}` prints it. How to use it: [{title.lower()}](../../{howto})."
    )
    return _page(f"Keys: {title.lower()}", lead, _table(config_model(kind)))


def _table(model: type[Any]) -> str:
    lines = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    for row in key_rows(model):
        default = "required" if row["required"] else f"`{json.dumps(row['default'])}`"
        cells = f"`{row['key']}`", default, row["allowed"], row["meaning"]
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(lines)


def _commands_page() -> str:
    parts = []
    for context in _contexts(make_commands(), "ctr"):
        parts.append(f"## {context.command_path}\n\n```text\n{context.get_help().rstrip()}\n```")
    return _page("Commands", "What `ctr COMMAND --help` prints.", "\n\n".join(parts))


def _contexts(command: click.Command, name: str, above: click.Context | None = None) -> list[click.Context]:
    context = click.Context(command, above, name, terminal_width=100)
    if not isinstance(command, click.Group):
        return [context]
    return [found for name, below in command.commands.items() for found in _contexts(below, name, context)]


def _faults_page() -> str:
    sys.path.insert(0, str(ROOT / "tests" / "mutations"))
    from mutations import markdown, read_faults

    lead = "Faults that are put into the code one by one, and the tests that must fail then."
    return _page("Faults that the tests must find", lead, markdown(read_faults()))
