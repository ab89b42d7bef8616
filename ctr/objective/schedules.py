"""Schedules of learning rates and of loss weights as functions of the number of examples trained on.

Learning rates warm up, then decay (PSO appendix G.1). Weights grow from 0 to 1 over the first part of training
(FF 4.1.3, 4.3).
"""

import functools
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field

_NUMBER = r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
_WARMUP = re.compile(rf"warmup (\d+)(?: power {_NUMBER})?")
_DECAY = re.compile(rf"(cosine|polynomial|inverse_sqrt) (\d+)(?: power {_NUMBER})?(?: to {_NUMBER})?")


@dataclass(frozen=True)
class RateSchedule:
    """Factor of a learning rate as a function of the number of examples trained on.

    With w = ``warmup``, T = ``decay_examples``, f = ``final`` and t = min(1, (examples - w) / T) the factor is::

        warm-up                 (examples / w)^warmup_power     while examples < w
        decay: none             1
        decay: polynomial       f + (1 - f) (1 - t)^power
        decay: cosine           f + (1 - f) (1 + cos(pi t)) / 2
        decay: inverse_sqrt     min(1, sqrt(T / examples))
    """

    warmup: int = 0
    warmup_power: float = 1.0
    decay: str = "none"
    decay_examples: int = 0
    power: float = 1.0
    final: float = 0.0

    def at(self, examples: int) -> float:
        """Returns the factor for the next batch after ``examples`` examples were trained on."""
        if examples < self.warmup:
            return (examples / self.warmup) ** self.warmup_power
        if self.decay == "none":
            return 1.0
        if self.decay == "inverse_sqrt":
            return math.sqrt(self.decay_examples / max(examples, self.decay_examples))
        passed = min(1.0, (examples - self.warmup) / self.decay_examples)
        left = (1.0 - passed) ** self.power
        if self.decay == "cosine":
            left = (1.0 + math.cos(math.pi * passed)) / 2.0
        return self.final + (1.0 - self.final) * left


CONSTANT = RateSchedule()


@functools.cache
def parse_schedule(text: str) -> RateSchedule:
    """Parses a schedule such as ``warmup 10000 power 2, cosine 1000000 to 0.1``, one of its halves, or ``constant``.

    Raises:
        ValueError: the text is not a schedule.
    """
    if text == "constant":
        return CONSTANT
    parts = re.split(r", *", text)
    warmup, decay = _WARMUP.fullmatch(parts[0]), _DECAY.fullmatch(parts[-1])
    if len(parts) != (warmup is not None) + (decay is not None):
        raise ValueError(
            "allowed: constant, `warmup EXAMPLES power P`, `cosine EXAMPLES to SHARE`, `polynomial EXAMPLES power P to "
            "SHARE`, `inverse_sqrt EXAMPLES`, or a warm-up and one of the others with a comma between"
        )
    examples, rise = (int(warmup[1]), float(warmup[2] or 1)) if warmup else (0, 1.0)
    if not rise:
        raise ValueError("a warm-up takes a power above 0")
    if decay is None:
        return RateSchedule(examples, rise)
    name, length, power, final = decay.groups()
    if name != "polynomial" and power:
        raise ValueError(f"power is of a warm-up or a polynomial decay, not of {name}")
    if name == "inverse_sqrt" and final:
        raise ValueError("inverse_sqrt falls without end: it takes no share")
    schedule = RateSchedule(examples, rise, name, int(length), float(power or 1), float(final or 0))
    if not schedule.decay_examples or not schedule.power or schedule.final > 1:
        raise ValueError("a decay takes examples above 0, a power above 0 and a share of at most 1")
    if name == "inverse_sqrt" and schedule.decay_examples < examples:
        raise ValueError(
            f"inverse_sqrt begins at {length} examples of all: allowed from the end of the warm-up, {examples}, on"
        )
    return schedule


def _check(text: str) -> str:
    parse_schedule(text)
    return text


ScheduleKey = Annotated[str, AfterValidator(_check), Field(title="constant, or warm-up and decay")]
"""Type of a configuration key that holds a schedule."""


class Ramp(NamedTuple):
    """A weight that is 0 up to example ``start`` and then grows linearly, to 1 at example ``end``."""

    start: int = 0
    end: int = 0

    def at(self, examples: int) -> float:
        if examples < self.start:
            return 0.0
        return 1.0 if examples >= self.end else (examples - self.start) / (self.end - self.start)


def _read(value: Any) -> Ramp:
    ends = list(value) if isinstance(value, list | tuple) else [0, value]
    if not all(type(end) is int for end in ends) or len(ends) != 2 or not 0 <= ends[0] <= ends[1] < 2**63:
        raise ValueError(
            "the number of examples over which the weight grows from 0 to 1 is required, or a list of the "
            "example where it begins to grow and of the one where it is 1"
        )
    return Ramp(*ends)


_Examples = Annotated[int, Field(ge=0, lt=2**63)]
RampKey = Annotated[
    Ramp,
    BeforeValidator(_read, json_schema_input_type=_Examples | tuple[_Examples, _Examples]),
    Field(title="whole number, or list of two that rise"),
]
"""Type of a configuration key that holds a ramp: ``10000`` or ``[5000, 10000]``; 0: weight 1 from the start."""
