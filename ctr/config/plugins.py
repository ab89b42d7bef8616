"""Plug-ins: losses, networks and rules of columns that installed packages add, each under a unique name.

A package names a class at an entry point of one of the groups below. The class, a ``StrictModel``, is both the keys of
the plug-in in a configuration, ``{NAME: {...}}``, and its computation. It is imported when a configuration
names it, and only then.
"""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, SerializeAsAny

from ctr.config import StrictModel, parse_model
from ctr.io.errors import InputError, did_you_mean, one_line

Group = Literal["ctr.losses", "ctr.models", "ctr.features"]
_WHAT: dict[Group, str] = {"ctr.losses": "loss", "ctr.models": "network", "ctr.features": "rule of columns"}


class Origin(NamedTuple):
    """Name and version of the package that a plug-in comes from."""

    package: str
    version: str


def find_plugin(group: Group, name: str) -> type[StrictModel]:
    """Imports the class of a plug-in. Raises InputError if none or several have the name, or it is no plug-in."""
    entry = _entry(group, name)
    try:
        plugin = entry.load()
    except (Exception, SystemExit) as error:
        what = f"the {_WHAT[group]} {name} of {_origin(entry).package} cannot be imported"
        raise InputError(f"{what}: {_fault(error)}") from None
    if not (isinstance(plugin, type) and issubclass(plugin, StrictModel)):
        raise InputError(f"the {_WHAT[group]} {name}: {entry.value} is not a class of keys (StrictModel)")
    return plugin


def _fault(error: BaseException) -> str:
    text = one_line(error)
    return text if isinstance(error, ImportError) else f"{type(error).__name__}: {text}"


def _entry(group: Group, name: str) -> EntryPoint:
    installed = sorted({entry.name for entry in entry_points(group=group)})
    entries = tuple(dict.fromkeys(entry_points(group=group, name=name)))
    if not entries:
        names = f"installed: {', '.join(installed)}" if installed else "none is installed"
        raise InputError(
            f"the {_WHAT[group]} {name} is a plug-in that no installed package has; {names}"
            f"{did_you_mean(name, installed)}"
        )
    if len(entries) > 1:
        packages = " and ".join(sorted(_origin(entry).package for entry in entries))
        raise InputError(
            f"the {_WHAT[group]} {name} is in several packages: {packages}; allowed: one of them"
        )
    return entries[0]


def _origin(entry: EntryPoint) -> Origin:
    assert entry.dist is not None
    return Origin(entry.dist.name, entry.dist.version)


def read_plugins(group: Group, content: Any) -> Any:
    """Creates the plug-ins of ``{NAME: {...}}`` from their keys. Raises ValueError, in one line, if one is wrong."""
    if not isinstance(content, Mapping):
        return content
    try:
        return {name: _read_plugin(group, str(name), keys) for name, keys in content.items()}
    except InputError as error:
        raise ValueError(str(error)) from None


def _read_plugin(group: Group, name: str, keys: Any) -> StrictModel:
    if isinstance(keys, StrictModel):
        return keys
    plugin = find_plugin(group, name)
    try:
        return parse_model(plugin, {} if keys is None else keys, name)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        what = f"the {_WHAT[group]} {name} of {origin_of(group, name).package} cannot be made of its keys"
        raise InputError(f"{what}: {_fault(error)}") from None


def _reader(group: Group) -> BeforeValidator:
    keys = dict[str, dict[str, Any]]
    return BeforeValidator(lambda content: read_plugins(group, content), json_schema_input_type=keys)


_Plugins = dict[str, SerializeAsAny[StrictModel]]
LossPlugins = Annotated[_Plugins, _reader("ctr.losses")]
NetworkPlugins = Annotated[_Plugins, _reader("ctr.models")]
RulePlugins = Annotated[_Plugins, _reader("ctr.features")]


def origin_of(group: Group, name: str) -> Origin:
    """Returns the package that installs a plug-in. Raises InputError if there is none, or several."""
    return _origin(_entry(group, name))
