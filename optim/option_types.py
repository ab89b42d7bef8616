"""Options of optimizers: pydantic dataclasses that validate their values, and the types of these values."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, TypeVar, dataclass_transform

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from ctr.io.errors import did_you_mean

OptionsT = TypeVar("OptionsT")

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
"""Pydantic settings of every dataclass of options. A group of options may also be given as a mapping."""


def _python_number(value: Any) -> Any:
    """Converts a NumPy scalar, as sweeps over ranges pass it, to a Python number, which JSON can hold."""
    return value.item() if isinstance(value, np.integer | np.floating) else value


NUMPY = BeforeValidator(_python_number)
"""Must be last in the type of a number: pydantic leaves limits after it out of the JSON Schema."""

Switch = Annotated[bool, Field(strict=True)]
Share = Annotated[float, Field(strict=True, ge=0, le=1), NUMPY]
Decay = Annotated[float, Field(strict=True, ge=0, lt=1), NUMPY]
NotNegative = Annotated[float, Field(strict=True, ge=0), NUMPY]
Steps = Annotated[int, Field(strict=True, ge=0, le=2**62), NUMPY]
# The most steps that float32 sums collect before they go into float64 (see statistics.py of Shampoo).
Frequency = Annotated[int, Field(strict=True, ge=1, le=100_000), NUMPY]
Size = Annotated[int, Field(strict=True, ge=1, le=65536), NUMPY]


def merged(options: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``options`` with ``changes`` merged in, recursively; a group of another ``kind`` starts at its defaults.

    Both are mappings of plain values, as ``dataclasses.asdict`` returns them.
    """
    result = dict(options)
    for name, change in changes.items():
        group = result.get(name)
        if isinstance(group, Mapping) and isinstance(change, str):
            change = {"kind": change}
        if isinstance(group, Mapping) and isinstance(change, Mapping):
            same_kind = change.get("kind", group.get("kind")) == group.get("kind")
            change = merged(group, change) if same_kind else change
        result[name] = change
    return result


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
def option_dataclass(config: ConfigDict = STRICT) -> Callable[[type[OptionsT]], type[OptionsT]]:
    """Returns a decorator for frozen dataclasses of options, whose errors have one line each.

    Such a class raises TypeError for an unknown option, with a suggestion of a similar one, and ValueError for
    an invalid value, with the path of the option.
    """

    def decorate(options: type[OptionsT]) -> type[OptionsT]:
        checked: Any = dataclass(frozen=True, kw_only=True, config=config)(options)
        check: Callable[..., None] = checked.__init__

        @functools.wraps(check)
        def __init__(self: Any, **values: Any) -> None:  # noqa: N807
            check_names(type(self).__name__, values, names_of(type(self)))
            try:
                check(self, **values)
            except ValidationError as error:
                faults = error.errors(include_url=False)
                raise ValueError("; ".join(_describe_fault(type(self), fault) for fault in faults)) from None

        checked.__init__ = __init__
        return checked

    return decorate


def names_of(options: Any) -> list[str]:
    """Returns the names of the options of a dataclass."""
    return [field.name for field in fields(options)]


def check_names(title: str, values: Iterable[str], names: Sequence[str]) -> None:
    """Raises TypeError for a keyword that is not in ``names``, with a suggestion of a similar one."""
    for name in values:
        if name not in names:
            raise TypeError(f"{title} has no option {name!r}{_meant(name, names)}")


def _meant(name: str, names: Sequence[str]) -> str:
    return did_you_mean(name, sorted(names)) or f"; allowed: {', '.join(sorted(names))}"


def _describe_fault(options: type[Any], fault: Any) -> str:
    message, path = fault["msg"], ".".join(map(str, fault["loc"]))
    if fault["type"] == "unexpected_keyword_argument":
        *groups, name = fault["loc"]
        group = options()
        for part in groups:
            # The path contains the kind of a group after the group's name.
            group = getattr(group, part, group if part == getattr(group, "kind", None) else None)
        return f"unknown option {path}" + ("" if group is None else _meant(name, names_of(group)))
    if fault["type"] == "value_error":
        # The fault is about several options, which the message names.
        return f"{path}: {message}".removeprefix(": ").replace("Value error, ", "")
    return f"{path} is {fault['input']!r}; allowed: {message.removeprefix('Input should be ')}"
