"""Weights that grow from 0 to 1 over the first part of training (FF 4.1.3, 4.3)."""

from pydantic import Field

from ctr.config import StrictModel


class Ramp(StrictModel):
    """A weight that is 0 up to an example, and then grows linearly to 1.

    Attributes:
        start: examples before the weight begins to grow.
        length: examples over which it grows from 0 to 1; 0: a step at ``start``.
    """

    start: int = Field(default=0, ge=0)
    length: int = Field(default=0, ge=0)

    def at(self, examples: int) -> float:
        if examples < self.start:
            return 0.0
        return min(1.0, (examples - self.start) / self.length) if self.length else 1.0
