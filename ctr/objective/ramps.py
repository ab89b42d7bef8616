"""Weights that grow from 0 to 1 over the first part of training (FF 4.1.3, 4.3)."""

from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field


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
"""The type of a key that is a ramp: ``10000``, or ``[5000, 10000]``; 0: the whole weight from the first example on."""
