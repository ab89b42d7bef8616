"""How an inference is written, as the text of a mapping file, and shown, as a table of what each column becomes."""

import textwrap
from collections.abc import Sequence
from typing import Any

import yaml

from ctr.config import Dumper
from ctr.io.errors import printable
from ctr.pipelines.inference.infer import Guess, Inference

_WIDTH = 108


def mapping_text(inferred: Inference, source: str) -> str:
    """Writes an inference that has a mapping as the text of a mapping file; ``source`` stands in its first line."""
    content, guesses = inferred.content, {guess.column: guess for guess in inferred.guesses}
    lines = _comment(f"How {source} becomes examples: inferred by ctr quickstart, to be edited. docs/howto/tables.md "
                     "describes the keys.")  # fmt: skip
    for note in inferred.notes:
        lines += _comment(f"- {note}")
    lines.append(f"input: {_flow(content['input'])}")
    time = content["time"].get("column")
    if time is None:
        lines += _comment("No column is the time: the order of the rows is, a row every millisecond.")
    lines += _explained(guesses.get(time), f"time: {_flow(content['time'])}")
    if "query" in content:
        query = content["query"].get("column") or content["query"]["session"]["by"]
        lines += _explained(guesses.get(query), f"query: {_flow(content['query'])}")
    else:
        lines += [*_comment(inferred.reasons["query"]), "query: none"]
    for key in ("example_id", "label", "weight"):
        if key in content:
            name = content[key]["column"] if isinstance(content[key], dict) else content[key]
            lines += _explained(guesses.get(name), f"{key}: {_flow(content[key])}")
    if "derive" in content:
        lines.append("derive:")
        lines += [f"  {_flow(name)}: {_flow(rule)}" for name, rule in content["derive"].items()]
    lines += ["# A partition must fit in memory.", f"partition: {content['partition']}", "features:"]
    for feature in content["features"]:
        reason = inferred.reasons[feature["name"]]
        lines += [*_comment(reason, "  "), f"  - {_flow(feature)}"]
    if kept := content["keep_values"]:
        text = (
            "The values behind ids are kept beside the log where they are few, so that the report shows them."
        )
        lines += [*_comment(text), f"keep_values: {_flow(kept)}"]
    unused = [guess for guess in inferred.guesses if guess.becomes == "not used"]
    if unused:
        lines += _comment("Not used:")
        for guess in unused:
            lines += _comment(f"- {guess.column or '(no name)'}: {guess.because}")
    return "\n".join(lines) + "\n"


def _explained(guess: Guess | None, line: str) -> list[str]:
    return [line] if guess is None else [*_comment(guess.because), line]


def _comment(text: str, indent: str = "") -> list[str]:
    # Values of the table may stand in comments: what ends a line of YAML is escaped.
    safe = printable(" ".join(text.split()))
    return textwrap.wrap(safe, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}#   ",
                         break_on_hyphens=False)  # fmt: skip


def _flow(value: Any) -> str:
    text = ""
    for allow_unicode in (True, False):
        text = yaml.dump(value, Dumper=Dumper, default_flow_style=True, sort_keys=False, width=10**9,
                         allow_unicode=allow_unicode)  # fmt: skip
        text = text.removesuffix("\n").removesuffix("\n...")
        # PyYAML reads some line ends that it has written as spaces.
        if text.isprintable():
            break
    return text


def guess_table(guesses: Sequence[Guess], width: int) -> str:
    """Formats the guesses as a table of one line each, cut at ``width`` characters."""

    def plain(text: str) -> str:
        return printable(" ".join(text.split()))

    rows = [("column", "becomes", "because")]
    rows += [(plain(one.column) or "(no name)", plain(one.becomes), plain(one.because)) for one in guesses]
    wide = [min(32, max(len(row[place]) for row in rows)) for place in (0, 1)]
    lines = []
    for row in rows:
        line = f"{row[0][: wide[0]]:<{wide[0]}}  {row[1][: wide[1]]:<{wide[1]}}  {row[2]}"
        lines.append(line if len(line) <= width else f"{line[: width - 3]}...")
    return "\n".join(lines)
