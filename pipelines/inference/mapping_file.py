"""The mapping file of an inference: YAML to be edited, with the reason of each guess as a comment."""

import textwrap
from collections.abc import Sequence
from typing import Any

import yaml

from ctr.config import Dumper
from ctr.io.errors import printable
from ctr.pipelines.inference.infer import KEPT_ROWS, Guess, Inference

_WIDTH = 108


def mapping_text(found: Inference, source: str) -> str:
    """Writes an inference that has a mapping as the text of a mapping file; ``source`` stands in its first line."""
    content, guesses = found.content, {guess.column: guess for guess in found.guesses}
    lines = _comment(f"How {source} becomes examples: inferred by ctr quickstart, to be edited. docs/mapping.md "
                     "describes every key.")  # fmt: skip
    for note in found.notes:
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
        lines += [*_comment(found.reasons["query"]), "query: none"]
    for key in ("example_id", "label", "weight"):
        if key in content:
            name = content[key]["column"] if isinstance(content[key], dict) else content[key]
            lines += _explained(guesses.get(name), f"{key}: {_flow(content[key])}")
    if "derive" in content:
        lines.append("derive:")
        lines += [f"  {_flow(name)}: {_flow(rule)}" for name, rule in content["derive"].items()]
    lines += ["# A partition must fit in memory.", f"partition: {content['partition']}", "features:"]
    for feature in content["features"]:
        reason = found.reasons[feature["name"]]
        lines += [*_comment(reason, "  "), f"  - {_flow(feature)}"]
    lines += _kept_values(content["keep_values"])
    unused = [guess for guess in found.guesses if guess.becomes == "not used"]
    if unused:
        lines += _comment("Not used:")
        for guess in unused:
            lines += _comment(f"- {guess.column or '(no name)'}: {guess.because}")
    return "\n".join(lines) + "\n"


def _kept_values(kept: Any) -> list[str]:
    if kept:
        return [*_comment("The raw values behind ids are kept beside the log, so that the report shows them."),
                f"keep_values: {_flow(kept)}"]  # fmt: skip
    return _comment(
        f"keep_values: all would keep the raw values behind ids beside the log, so that the report shows them. Of more "
        f"than {KEPT_ROWS:,} rows they take space on the disk."
    )


def _explained(guess: Guess | None, line: str) -> list[str]:
    return [line] if guess is None else [*_comment(guess.because), line]


def _comment(text: str, indent: str = "") -> list[str]:
    # Values of the table may stand in comments: what ends a line of YAML is escaped.
    safe = printable(" ".join(text.split()))
    return textwrap.wrap(safe, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}#   ",
                         break_on_hyphens=False)  # fmt: skip


def _flow(value: Any) -> str:
    text = _dump(value, allow_unicode=True)
    if not text.isprintable():
        # PyYAML reads some line ends that it has written as spaces.
        text = _dump(value, allow_unicode=False)
    return text


def _dump(value: Any, allow_unicode: bool) -> str:
    text: str = yaml.dump(
        value,
        Dumper=Dumper,
        default_flow_style=True,
        sort_keys=False,
        width=10**9,
        allow_unicode=allow_unicode,
    )
    return text.removesuffix("\n").removesuffix("\n...")


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
