"""How a learning rate changes with the examples trained on: warm-up, then decay (PSO appendix G.1)."""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from ctr.config import StrictModel


class RateSchedule(StrictModel):
    """How a learning rate changes with the examples trained on. By default it does not.

    With w = ``warmup_examples``, T = ``decay_examples``, f = ``final_fraction`` and
    t = min(1, (examples - w) / T), the learning rate is multiplied by::

        warm-up                 examples / w            while examples < w
        decay: none             1
        decay: polynomial       f + (1 - f) (1 - t)^power
        decay: cosine           f + (1 - f) (1 + cos(pi t)) / 2

    Attributes:
        warmup_examples: examples over which the learning rate grows linearly from 0. 0: none.
        decay: how the learning rate falls after the warm-up: ``none``, ``polynomial`` or ``cosine``.
        decay_examples: examples after the warm-up over which the learning rate falls; from then on it is constant.
            Required above 0 with a decay.
        power: power of the polynomial; 1: a straight line.
        final_fraction: the share of the learning rate at the end of the decay.
    """

    warmup_examples: int = Field(default=0, ge=0)
    decay: Literal["none", "polynomial", "cosine"] = "none"
    decay_examples: int = Field(default=0, ge=0)
    power: float = Field(default=1.0, gt=0)
    final_fraction: float = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.decay == "none" and (self.decay_examples or self.final_fraction):
            raise ValueError("decay_examples and final_fraction need a decay: polynomial or cosine")
        if self.decay != "none" and not self.decay_examples:
            raise ValueError(f"decay {self.decay} needs decay_examples above 0")
        if self.decay != "polynomial" and self.power != 1:
            raise ValueError(f"power is of no effect with decay {self.decay}; allowed: decay polynomial")
        return self

    @property
    def is_constant(self) -> bool:
        """Whether the learning rate never changes."""
        return not self.warmup_examples and self.decay == "none"

    def at(self, examples: int) -> float:
        """The factor of the learning rate for a batch before which ``examples`` examples were trained on."""
        if examples < self.warmup_examples:
            return examples / self.warmup_examples
        if self.decay == "none":
            return 1.0
        passed = min(1.0, (examples - self.warmup_examples) / self.decay_examples)
        left = (1.0 - passed) ** self.power
        if self.decay == "cosine":
            left = (1.0 + math.cos(math.pi * passed)) / 2.0
        return self.final_fraction + (1.0 - self.final_fraction) * left
