"""Options of optimizers as frozen dataclasses whose annotations say which values are allowed.

A field may be a group of options of its own, or one of several groups, each of which has a ``kind``. Such a field also
takes a mapping of what differs from its default, with ``kind`` where it is of another one, or that kind alone.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Self, get_args, get_type_hints

import numpy as np


@dataclass(frozen=True)
class Whole:
    """Whole numbers from ``low`` to ``high``."""

    low: int
    high: int

    @property
    def allowed(self) -> str:
        return f"a whole number in {self.low}..{self.high}"

    @property
    def json_schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

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

    @property
    def json_schema(self) -> dict[str, Any]:
        ends = {
            "exclusiveMinimum" if self.low_open else "minimum": self.low,
            "exclusiveMaximum" if self.high_open else "maximum": self.high,
        }
        return {"type": "number", **{end: value for end, value in ends.items() if math.isfinite(value)}}

    def holds(self, value: Any) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        above = self.low < value if self.low_open else self.low <= value
        return above and (value < self.high if self.high_open else value <= self.high)


Share = Annotated[float, Real(0.0, 1.0)]
Decay = Annotated[float, Real(0.0, 1.0, high_open=True)]
NotNegative = Annotated[float, Real(0.0, math.inf, high_open=True)]
Steps = Annotated[int, Whole(0, 2**62)]
# float32 sums collect for so many steps before they go into float64 (see statistics.py of Shampoo).
Frequency = Annotated[int, Whole(1, 100_000)]
Size = Annotated[int, Whole(1, 65536)]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options that check their values when they are made."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        for field in fields(self):
            name, value, groups = field.name, getattr(self, field.name), groups_of(type(self), field.name)
            if isinstance(value, np.integer | np.floating):
                # As sweeps over NumPy ranges give them; JSON would not take them.
                value = value.item()
            elif isinstance(value, str | Mapping) and groups:
                value = _changed_group(name, field.default, groups, value)
            _check(name, value, hints[name], groups)
            object.__setattr__(self, name, value)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))

    def changed(self, content: Mapping[str, Any], without: Collection[str] = ()) -> Self:
        """Returns these options with what a mapping says, in groups too.

        Raises ValueError: there is no such option, or it is one of those left out, ``without``.
        """
        allowed = [name for name in self.names() if name not in without and name != "kind"]
        found = {}
        for name, value in content.items():
            if name not in allowed:
                raise ValueError(f"unknown key {name}; allowed: {', '.join(sorted(allowed))}")
            groups = groups_of(type(self), name)
            if groups and isinstance(value, str | Mapping):
                value = _changed_group(name, getattr(self, name), groups, value)
            found[name] = value
        return replace(self, **found)


@dataclass(frozen=True, kw_only=True)
class OneOf(Options):
    """Base of groups of which an option is one.

    Attributes:
        kind: which one.
    """


def groups_of(options: type, name: str) -> tuple[type[Options], ...]:
    """Returns the groups that an option may be; none where it is a plain value."""
    hint = get_type_hints(options)[name]
    candidates = get_args(hint) or (hint,)
    return tuple(one for one in candidates if isinstance(one, type) and issubclass(one, Options))


def _changed_group(name: str, now: Any, groups: tuple[type[Options], ...], content: Any) -> Any:
    kinds = {getattr(group, "kind", ""): group for group in groups}
    given = {"kind": content} if isinstance(content, str) else dict(content)
    kind = given.pop("kind", getattr(now, "kind", ""))
    if kind not in [*kinds] or (isinstance(content, str) and not kind):
        raise ValueError(f"{name} is {content!r}; allowed: {_kinds(groups)}")
    start = now if type(now) is kinds[kind] else kinds[kind]()
    try:
        return start.changed(given)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def refuse_unknown(title: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    """Raises TypeError for the name of an option that an optimizer does not have."""
    names = set(allowed)
    for name in given:
        if name not in names:
            raise TypeError(f"{title} has no option {name!r}; allowed: {', '.join(sorted(names))}")


def _check(name: str, value: Any, hint: Any, groups: tuple[type[Options], ...]) -> None:
    limits = range_of(hint)
    if groups:
        fits, allowed = isinstance(value, groups), _kinds(groups)
    elif limits is not None:
        fits, allowed = limits.holds(value), limits.allowed
    elif hint is bool:
        fits, allowed = isinstance(value, bool), "True, False"
    else:
        fits, allowed = value in get_args(hint), ", ".join(get_args(hint))
    if type(None) in get_args(hint):
        fits, allowed = fits or value is None, f"{allowed} or None"
    if not fits:
        raise ValueError(f"{name} is {value!r}; allowed: {allowed}")


def _kinds(groups: Iterable[type[Options]]) -> str:
    return ", ".join(getattr(group, "kind", "a group of keys") for group in groups)


def range_of(hint: Any) -> Whole | Real | None:
    """Returns the range of numbers that an annotation has; None: it is of something else."""
    found = [part for part in _parts(hint) if isinstance(part, Whole | Real)]
    return found[0] if found else None


def _parts(hint: Any) -> list[Any]:
    return [
        hint,
        *(inner for part in getattr(hint, "__metadata__", ()) for inner in _parts(part)),
        *(inner for part in get_args(hint) for inner in _parts(part)),
    ]
