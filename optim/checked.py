"""Options of optimizers as frozen dataclasses whose annotations say which values are allowed."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_args, get_type_hints

import numpy as np


@dataclass(frozen=True)
class Whole:
    """Whole numbers from ``low`` to ``high``."""

    low: int
    high: int

    @property
    def allowed(self) -> str:
        return f"a whole number in {self.low}..{self.high}"

    def holds(self, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high


@dataclass(frozen=True)
class Real:
    """Numbers from ``low`` to ``high``, without an end that is open."""

    low: float
    high: float
    low_open: bool = False
    high_open: bool = False

    @property
    def allowed(self) -> str:
        return f"{'(' if self.low_open else '['}{self.low}, {self.high}{')' if self.high_open else ']'}"

    def holds(self, value: Any) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        above = self.low < value if self.low_open else self.low <= value
        return above and (value < self.high if self.high_open else value <= self.high)


Share = Annotated[float, Real(0.0, 1.0)]
Decay = Annotated[float, Real(0.0, 1.0, high_open=True)]
NotNegative = Annotated[float, Real(0.0, math.inf, high_open=True)]
Steps = Annotated[int, Whole(0, 2**62)]
# float32 sums collect for so many steps before they go into float64 (see state.py).
Frequency = Annotated[int, Whole(1, 100_000)]
Size = Annotated[int, Whole(1, 65536)]


def refuse_unknown(title: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    """Raises TypeError for the name of an option that an optimizer does not have."""
    names = set(allowed)
    for name in given:
        if name not in names:
            raise TypeError(f"{title} has no option {name!r}; allowed: {', '.join(sorted(names))}")


@dataclass(frozen=True, kw_only=True)
class CheckedOptions:
    """Base of options: values are checked when they are made, and those of NumPy become Python's."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.integer | np.floating):
                # As sweeps over NumPy ranges give them; JSON would not take them.
                object.__setattr__(self, name, value.item())
        check_options(self)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))


def check_options(options: Any) -> None:
    """Raises ValueError where an option of a dataclass has a value that its annotation does not allow."""
    for name, hint in get_type_hints(type(options), include_extras=True).items():
        _check(name, getattr(options, name), hint)


def _check(name: str, value: Any, hint: Any) -> None:
    ranges = [part for part in _parts(hint) if isinstance(part, Whole | Real)]
    if ranges:
        optional = type(None) in get_args(hint)
        fits = (value is None and optional) or ranges[0].holds(value)
        allowed = ranges[0].allowed + (" or None" if optional else "")
    elif hint is bool:
        fits, allowed = isinstance(value, bool), "True, False"
    else:
        fits, allowed = value in get_args(hint), ", ".join(get_args(hint))
    if not fits:
        raise ValueError(f"{name} is {value!r}; allowed: {allowed}")


def _parts(hint: Any) -> list[Any]:
    return [
        hint,
        *(inner for part in getattr(hint, "__metadata__", ()) for inner in _parts(part)),
        *(inner for part in get_args(hint) for inner in _parts(part)),
    ]
