"""Commands built with click: a signature defines the usage, and a docstring the help. Loads no TensorFlow.

Positional parameters are arguments of the command, the others its options. An annotation has the type, the name of the
value and the help, and then optionally a function that completes a value::

    def sample(log: Annotated[Path, "LOG", "directory of the log"], *, out: Annotated[Path | None, "DIR", "..."] = None)

A flag has no value; a repeatable option is a tuple. A command that passes its options to other functions takes a
dataclass, whose fields are the parameters.
"""

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from ctr.cli_output import JSON_KEY, set_verbosity
from ctr.io.errors import InputError, did_you_mean
from ctr.io.files import address_fault, check_local
from ctr.io.log_lines import FORMATS, TEXT


def keys_of(kind: str, ending: str = "=") -> Callable[[str], list[str]]:
    """Returns a function that completes a key of a configuration."""

    def complete(begun: str) -> list[str]:
        from ctr.config.kinds import config_keys

        return [f"{key}{ending}" for key in config_keys(kind) if key.startswith(begun)]

    return complete


class LocalPath(click.ParamType[Path | str]):
    """A local path, or with ``takes_addresses`` the text of an address such as ``s3://bucket``."""

    name = "path"

    def __init__(self, takes_addresses: bool = False) -> None:
        self._takes_addresses = takes_addresses

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        if self._takes_addresses and address_fault(value) and "://" in value:
            return str(value).strip().rstrip("/")
        try:
            check_local(value)
        except InputError as error:
            name = param.opts[0] if isinstance(param, click.Option) else param and param.metavar
            raise InputError(f"{str(name).strip('[].')} {error}") from None
        return Path(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


class _Choice(click.Choice[str]):
    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        return f"{value!r} is not allowed; allowed: {', '.join(self.choices)}{did_you_mean(value, [*self.choices])}"


class Command(click.Command):
    """A command that calls a function of a module of this package; the module is imported when the command is used.

    ``bound``: the function's first arguments, which are not parameters of the command.
    """

    def __init__(self, name: str, module: str, function: str, *bound: str, text: str = "") -> None:
        super().__init__(name, help=text)
        self._target, self._bound = (module, function), bound

    def load(self) -> None:
        """Imports the function, unless it is imported already, and makes the help and the parameters from it."""
        if self.callback is not None:
            return
        module, function = self._target
        run: Callable[..., Any] = getattr(importlib.import_module(f"ctr.{module}"), function)
        self.help = self.help or inspect.getdoc(run)
        self.callback = run = functools.partial(run, *self._bound)
        usage: Any = run
        options = next(iter(inspect.signature(run).parameters.values())).annotation
        if dataclasses.is_dataclass(options):
            usage = options
            self.callback = lambda **values: run(usage(**values))
        self.params = [_parameter(parameter) for parameter in inspect.signature(usage).parameters.values()]
        json = _flag(["--json"], "print the result as JSON", lambda ctx: ctx.meta.update({JSON_KEY: True}))
        self.params += [json, *common_options()]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        self.load()
        return super().get_params(ctx)


class Group(click.Group):
    """A group of commands, listed by the help under titles; ``listed``: the commands of each title."""

    def __init__(self, name: str, listed: Mapping[str, list[click.Command]], **more: Any) -> None:
        commands = [command for below in listed.values() for command in below]
        super().__init__(name, commands, subcommand_metavar="COMMAND ...", **more)
        self.params += common_options()
        self._listed = listed

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes all commands, each with the first paragraph of its help text."""
        for title, commands in self._listed.items():
            for command in commands:
                if isinstance(command, Command):
                    command.load()
            with formatter.section(title):
                texts = [" ".join((command.help or "").partition("\n\n")[0].split()) for command in commands]
                formatter.write_dl([*zip([str(command.name) for command in commands], texts, strict=True)])


def _parameter(parameter: inspect.Parameter) -> click.Parameter:
    kind, *texts = get_args(parameter.annotation)
    more: dict[str, Any] = {}
    if callable(texts[-1]):
        complete = texts.pop()
        more["shell_complete"] = lambda ctx, param, begun: complete(begun)
    *value, more["help"] = texts
    more["metavar"] = value[0] if value else None
    more["required"] = parameter.default is parameter.empty
    if not more["required"]:
        more["default"] = parameter.default
    kind = next(
        (part for part in get_args(kind) if NoneType in get_args(kind) and part is not NoneType), kind
    )
    is_many = get_origin(kind) is tuple
    kind = get_args(kind)[0] if is_many else kind
    more["type"] = LocalPath(kind is not Path) if kind in (Path, Path | str) else kind
    if get_origin(kind) is Literal:
        more["type"] = _Choice(get_args(kind))
    # Python takes names such as `from` and `set` for itself.
    name = parameter.name.rstrip("_").replace("_", "-")
    if parameter.kind is not parameter.KEYWORD_ONLY:
        usage = more["metavar"] if more["required"] else f"[{more['metavar']}]"
        more |= {"nargs": -1, "metavar": f"{usage}..."} if is_many else {"metavar": usage}
        return click.Argument([parameter.name], **more)
    return click.Option([f"--{name}", parameter.name], is_flag=kind is bool, multiple=is_many, **more)


def _flag(names: list[str], text: str, act: Callable[[click.Context], object]) -> click.Option:
    def call(context: click.Context, _: click.Parameter, is_set: bool) -> object:
        return act(context) if is_set else None

    return click.Option(names, is_flag=True, expose_value=False, help=text, callback=call)


def common_options() -> list[click.Parameter]:
    """Returns the options that every command takes, before or after its name."""
    form = "form of what goes to standard error: text, or one JSON object a line (text)"
    return [
        _flag(["-v", "--verbose"], "report files, devices and times", lambda context: set_verbosity(1)),
        _flag(["-q", "--quiet"], "print the result and errors only", lambda context: set_verbosity(-1)),
        # ``main`` reads it before all others.
        click.Option(["--log-format"], type=_Choice(FORMATS), default=TEXT, expose_value=False, help=form),
    ]


Text: TypeAlias = str | None
Texts: TypeAlias = tuple[str, ...]
Log = Annotated[Path, "LOG", "directory of the log"]
NewLog = Annotated[Path, "LOG", "output directory of the log"]
BeamOptions = Annotated[str, "OPTIONS", "options of a Beam runner: --beam-options='--runner=FlinkRunner ...'"]
