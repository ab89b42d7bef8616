"""Arguments of the command line, as data: what a command takes, and how words are read. Loads no TensorFlow."""

import argparse
import functools
import importlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from ctr import __version__
from ctr.io.errors import InputError, did_you_mean
from ctr.io.files import check_local
from ctr.io.log_lines import FORMATS, TEXT, say

# The files that ``ctr config`` describes, with the module and the name of each one's model.
CONFIGS = {
    "train": ("ctr.training.config", "TrainConfig"),
    "mapping": ("ctr.data.mapping", "Mapping"),
    "events": ("ctr.data.event_mapping", "EventMapping"),
    "sampling": ("ctr.data.sampling", "SamplingConfig"),
    "simulator": ("ctr.simulator.config", "SimulatorConfig"),
    "experiment": ("ctr.experiments.config", "ExperimentConfig"),
    "search": ("ctr.search.config", "SearchConfig"),
}
SHELLS = ("bash", "zsh", "fish")

_PLACES = {
    *("LOG", "RUN", "RUN_A", "RUN_B", "DIR", "FILE", "MODEL", "INPUT", "PREDICTIONS"),
    *("EXPERIMENT", "SEARCH"),
}
_NUMBERS: dict[str, type] = {"N": int, "P": int, "PORT": int, "SECONDS": float, "SHARE": float}

Takes: TypeAlias = Mapping[str, Any]
"""What a command takes, in the notation of usages, with the help of each.

``LOG``, ``[KEY]``, ``INPUT ...``, ``shell {bash,zsh}``: words. ``--out RUN``, ``[--config FILE]``, ``[--json]``,
``[--set KEY=VALUE]...``: options; the last may be given several times. A value's name says whether it is a place in the
file system, a number or a text. Under a title stand those of a group, under ``(|)`` those of which one is required,
under ``[|]`` those of which one is allowed.
"""


@dataclass(frozen=True)
class Command:
    """A command: its words, such as ``ingest table``, what it does, what it takes, and the function that runs it."""

    words: str
    does: str
    takes: Takes
    run: Callable[[argparse.Namespace], None]
    defaults: Mapping[str, Any]


def command(
    words: str, does: str, takes: Takes, **defaults: Any
) -> Callable[[Callable[[argparse.Namespace], None]], Command]:
    """Makes a command of the function that runs it; ``defaults`` are those of arguments, which else are None."""
    return lambda run: Command(words, does, takes, run, defaults)


def settings(example: str) -> Takes:
    """``--set``, with an example."""
    return {"[--set KEY=VALUE]...": f"change a setting, e.g. {example}; may be given several times"}


def _add_all(parser: "argparse._ActionsContainer", takes: Takes) -> None:
    for usage, text in takes.items():
        if isinstance(text, str):
            _add(parser, usage, text)
        elif usage in ("(|)", "[|]"):
            _add_all(parser.add_mutually_exclusive_group(required=usage == "(|)"), text)
        else:
            own = dict(text)
            _add_all(parser.add_argument_group(usage, own.pop("", None)), own)


def _add(parser: "argparse._ActionsContainer", usage: str, text: str) -> None:
    more: dict[str, Any] = {"help": text}
    if usage.endswith("]..."):
        usage = usage.removesuffix("...")
        more |= {"action": "append", "default": []}
    is_optional = usage.startswith("[")
    usage = usage[1:-1] if is_optional else usage
    is_long = usage.endswith(" ...")
    name, _, value = usage.removesuffix(" ...").partition(" ")
    if not name.startswith("--"):
        name, value = name.lower(), value or name
        if is_long or is_optional:
            more["nargs"] = {(True, True): "*", (True, False): "+", (False, True): "?"}[is_long, is_optional]
    else:
        more["required"] = not is_optional
        more |= {"nargs": "+"} if is_long else {} if value else {"action": "store_true"}
    if value.startswith("{"):
        more["choices"] = value[1:-1].split(",")
        more["type"] = functools.partial(_read_choice, more["choices"])
    elif value:
        more["metavar"] = value
    if value in _PLACES:
        what = name if name.startswith("--") else value
        more["type"] = functools.partial(_read_place, what)
    elif value in _NUMBERS:
        more["type"] = _NUMBERS[value]
    parser.add_argument(name, **more)


def _read_place(name: str, text: str) -> Path:
    try:
        check_local(text)
    except InputError as error:
        raise InputError(f"{name} {error}") from None
    return Path(text)


def _read_choice(choices: Sequence[str], text: str) -> str:
    if text not in choices:
        raise argparse.ArgumentTypeError(_wrong_choice(text, choices))
    return text


def _wrong_choice(text: str, choices: Iterable[str]) -> str:
    known = list(choices)
    return f"invalid choice: {text!r} (choose from {', '.join(known)}){did_you_mean(text, known)}"


class _Parser(argparse.ArgumentParser):
    """Parser whose usage errors have the form of all that goes to standard error."""

    def error(self, message: str) -> NoReturn:
        usage, line = self.format_usage(), f"{self.prog}: error: {message}"
        say(f"{usage}{line}", f"{message}; {' '.join(usage.split())}", logging.ERROR, exit_status=2)
        self.exit(2)


def build_parser(commands: Iterable[Command]) -> argparse.ArgumentParser:
    """Makes the parser of ``ctr``, with the commands in the order of its help."""
    parser = _Parser(
        prog="ctr", description="Train click-through-rate models in a single pass over time-ordered logs."
    )
    parser.add_argument("--version", action="version", version=f"ctr {__version__}")
    _add_common(parser)
    top = parser.add_subparsers(title="commands", metavar="COMMAND")
    formats: Any = None
    for one in commands:
        first, _, second = one.words.partition(" ")
        if second and formats is None:
            ingest = _add_parser(top, first, "turn raw logs into an ordered example log")
            ingest.epilog = "ctr ingest FORMAT --help lists the options of a format."
            formats = ingest.add_subparsers(title="formats", required=True, dest="format", metavar="FORMAT")
        added = _add_parser(formats if second else top, second or first, one.does)
        added.set_defaults(
            command=first, call=one.run, **one.defaults, **({"format": second} if second else {})
        )
        _add(added, "[--json]", "print the result as JSON")
        _add_common(added)
        _add_all(added, one.takes)
    return parser


def _add_parser(commands: Any, name: str, does: str) -> argparse.ArgumentParser:
    # argparse formats `help` with %, but not `description`.
    added: argparse.ArgumentParser = commands.add_parser(
        name, help=does.replace("%", "%%"), description=f"{does[0].upper()}{does[1:]}."
    )
    return added


def _add_common(parser: argparse.ArgumentParser) -> None:
    choice = parser.add_mutually_exclusive_group()
    for flags, value, text in (
        (("-v", "--verbose"), 1, "report files, devices, compilations and times on standard error"),
        (("-q", "--quiet"), -1, "print the result and errors only: no progress, no warnings"),
    ):
        choice.add_argument(*flags, dest="verbosity", action="store_const", const=value, default=0, help=text)
    _add(
        parser,
        f"[--log-format {{{','.join(FORMATS)}}}]",
        "form of what goes to standard error: text, or one JSON object a line (text)",
    )
    parser.set_defaults(log_format=TEXT)


def given_log_format(given: Sequence[str]) -> str:
    """Reads ``--log-format`` alone, whatever else there is and however wrong."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--log-format", default=TEXT)
    try:
        return str(parser.parse_known_args(given)[0].log_format)
    except argparse.ArgumentError:
        # Without a value.
        return TEXT


def parse(parser: argparse.ArgumentParser, given: Sequence[str]) -> argparse.Namespace:
    """Reads words. Options may stand before commands and among other words; wrong usage exits with status 2."""
    first = _first_word(given, {"": parser})
    place = len(given) if first is None else first
    found, before = parser.parse_known_args(given[:place])
    if place == len(given):
        parser.error("the following arguments are required: COMMAND")
    parser = _chosen(parser, "COMMAND", given[place])
    words = [*before, *given[place + 1 :]]
    if formats := _commands(parser):
        second = _first_word(words, formats)
        if second is None:
            # Ends: with the help, or because there is none.
            parser.parse_args([word for word in words if word in ("-h", "--help")])
        else:
            parser = _chosen(parser, "FORMAT", words.pop(second))
    return _parse_rest(parser, words, found)


def _chosen(parser: argparse.ArgumentParser, kind: str, name: str) -> argparse.ArgumentParser:
    below = _commands(parser)
    if name not in below:
        parser.error(f"argument {kind}: {_wrong_choice(name, below)}")
    return below[name]


def _commands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    found = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return found[0] if found else {}


def _first_word(words: Sequence[str], below: Mapping[str, argparse.ArgumentParser]) -> int | None:
    """Returns the place of the first word that is neither an option nor the value of one."""
    options = [action for parser in below.values() for action in parser._actions]
    with_value = [name for action in options if action.nargs != 0 for name in action.option_strings]
    is_value = False
    for place, word in enumerate(words):
        if word == "--":
            return None
        if not is_value and not word.startswith("-"):
            return place
        # argparse takes the beginning of an option's name for the option.
        is_value = not is_value and any(name.startswith(word) for name in with_value)
    return None


def _parse_rest(
    parser: argparse.ArgumentParser, words: Sequence[str], found: argparse.Namespace
) -> argparse.Namespace:
    options = [name for action in parser._actions for name in action.option_strings]
    before = words[: words.index("--")] if "--" in words else words
    names = [word.partition("=")[0] for word in before if word.startswith("--") and " " not in word]
    misspelled = [name for name in names if not any(option.startswith(name) for option in options)]
    either: list[Any] = [*parser._actions, *parser._mutually_exclusive_groups]
    required = [one for one in either if one.required]
    # As it is: an error's usage says which options are required.
    parser.usage = parser.format_usage().removeprefix("usage: ").rstrip().replace("%", "%%")
    for one in required:
        # A misspelled option is the likely cause of one that is missing.
        one.required = not misspelled
    # argparse gives an argument that may be absent nothing at all when an option stands before its words.
    if any(action.nargs == "*" for action in parser._actions):
        found, unknown = parser.parse_known_intermixed_args(words, found)
    else:
        found, unknown = parser.parse_known_args(words, found)
    for one in required:
        one.required = True
    if unknown:
        if misspelled and any(
            getattr(found, action.dest) is None for action in parser._actions if action.required
        ):
            unknown = misspelled
        name, known = unknown[0].partition("=")[0], [name for name in options if name.startswith("--")]
        # A single dash in place of two is forgiven only here.
        meant = did_you_mean(f"--{name.lstrip('-')}", known) if name.startswith("-") else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
    return found


# ---------------------------------------------------------------- completion by shells


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Makes what a shell reads to complete ``ctr``: commands, flags, files, choices and the keys after ``--set``."""
    import shtab

    _complete_arguments(parser, shtab.FILE)
    script: str = shtab.complete(parser, shell)
    return script + _NO_SPACE_BEHIND_KEYS if shell == "bash" else script


# The function of shtab calls others in processes of their own, which cannot change how words are completed.
_NO_SPACE_BEHIND_KEYS = """
_ctr() {
  _shtab_ctr
  if [[ ${COMPREPLY[0]-} == *= ]]; then compopt -o nospace 2>/dev/null || :; fi
}
complete -o bashdefault -F _ctr ctr
"""

_SET_KINDS = {
    "train": "train",
    "sample": "sampling",
    "simulate": "simulator",
    "replay": "experiment",
    "search": "search",
}


def _complete_arguments(parser: argparse.ArgumentParser, files: object, name: str = "") -> None:
    """Says for each argument of a parser, and of those below it, what shtab shall complete it with."""
    for below, one in _commands(parser).items():
        _complete_arguments(one, files, name or below)
    for action in parser._actions:
        if "--set" in action.option_strings:
            keys = [f"{key}=" for key in config_keys(_SET_KINDS[name])]
            action.complete = _words(f"_ctr_{name}_keys", keys)  # type: ignore[attr-defined]
        elif (name, action.dest) == ("config", "key"):
            action.complete = _words("_ctr_config_keys", config_keys("train"))  # type: ignore[attr-defined]
        elif action.metavar in {*_PLACES, "SRC", "DST"}:
            action.complete = files  # type: ignore[attr-defined]


def config_keys(kind: str) -> list[str]:
    """Lists the dotted keys of a configuration that ``--set`` takes."""
    from ctr.config.schema import settable_keys

    return settable_keys(config_model(kind))


def config_model(kind: str) -> Any:
    """Imports the model of a configuration's file."""
    module, name = CONFIGS[kind]
    return getattr(importlib.import_module(module), name)


def _words(function: str, words: Sequence[str]) -> dict[str, Any]:
    text = " ".join(words)
    bash = f"{function}() {{ compgen -W '{text}' -- \"$1\"; }}"
    return {"bash": function, "zsh": f"({text})", "fish": text, "preamble": {"bash": bash}}
