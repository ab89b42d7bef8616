"""Options of optimizers: pydantic dataclasses that check their values, and the types of these values."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

from ctr.io.errors import did_you_mean

OptionsT = TypeVar("OptionsT")

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
"""Settings of every dataclass of options. A group of options may be given as a mapping."""


def _python_number(value: Any) -> Any:
    """Converts a NumPy scalar, as sweeps over ranges give it, to a Python number, which JSON takes."""
    return value.item() if isinstance(value, np.integer | np.floating) else value


NUMPY = BeforeValidator(_python_number)
"""Stands last in the type of a number: pydantic applies limits behind it without a place in the JSON Schema."""

Switch = Annotated[bool, Field(strict=True)]
Share = Annotated[float, Field(strict=True, ge=0, le=1), NUMPY]
Decay = Annotated[float, Field(strict=True, ge=0, lt=1), NUMPY]
NotNegative = Annotated[float, Field(strict=True, ge=0), NUMPY]
Steps = Annotated[int, Field(strict=True, ge=0, le=2**62), NUMPY]
# float32 sums collect for so many steps before they go into float64 (see statistics.py of Shampoo).
Frequency = Annotated[int, Field(strict=True, ge=1, le=100_000), NUMPY]
Size = Annotated[int, Field(strict=True, ge=1, le=65536), NUMPY]


def merged(options: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options with what ``changes`` says, in groups too; a group of another ``kind`` begins with its defaults.

    Both are mappings of plain values, as of ``dataclasses.asdict``.
    """
    found = dict(options)
    for name, change in changes.items():
        group = found.get(name)
        if isinstance(group, Mapping) and isinstance(change, str):
            change = {"kind": change}
        if isinstance(group, Mapping) and isinstance(change, Mapping):
            same_kind = change.get("kind", group.get("kind")) == group.get("kind")
            change = merged(group, change) if same_kind else change
        found[name] = change
    return found


def make_options(
    options: type[OptionsT], title: str, given: Mapping[str, Any], others: Sequence[str] = ()
) -> OptionsT:
    """Makes options from keywords; ``others`` are keywords that are no options of this kind.

    Raises:
        TypeError: there is no such option; names the one that was meant.
        ValueError: a value is not allowed; on one line, with the path of the option.
    """
    names = [field.name for field in fields(options)]  # type: ignore[arg-type]
    for name in given:
        if name not in names:
            known = sorted([*names, *others])
            meant = did_you_mean(name, known) or f"; allowed: {', '.join(known)}"
            raise TypeError(f"{title} has no option {name!r}{meant}")
    try:
        return options(**given)
    except ValidationError as error:
        raise ValueError("; ".join(map(_describe_fault, error.errors(include_url=False)))) from None


def _describe_fault(fault: Mapping[str, Any]) -> str:
    message, path = fault["msg"], ".".join(map(str, fault["loc"]))
    if fault["type"] == "unexpected_keyword_argument":
        return f"unknown option {path}"
    if fault["type"] == "value_error":
        # About several options, which the message names.
        return f"{path}: {message}".removeprefix(": ").replace("Value error, ", "")
    return f"{path} is {fault['input']!r}; allowed: {message.removeprefix('Input should be ')}"
