"""Space of a search: decisions, each with its choices, and the configuration that each candidate has."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ctr.config import parse_model
from ctr.experiments.config import Changes, changed
from ctr.io.errors import InputError
from ctr.search.architecture import Part, Shape, part_of, shape_changes, shape_of
from ctr.training.config import TrainConfig

Choice = tuple[int, ...]  # candidate: for each decision the number of its choice

Content = Mapping[str, Any]  # training configuration as nested keys


@dataclass(frozen=True)
class Decision:
    """A part of the architecture, see ``ctr.search.architecture``, or a dotted training key, and its choices."""

    name: str
    choices: tuple[Any, ...]

    @cached_property
    def part(self) -> Part | None:
        """Part of the architecture that it is about; None: it is a setting of training."""
        return part_of(self.name)

    @property
    def unmaskable(self) -> str:
        """Reason why a supernet cannot hold all choices at once; empty where masks can."""
        if self.part is None:
            return "is a setting of training"
        if self.part.kind in ("ranks", "cross_rank") and 0 in self.choices and any(self.choices):
            return "has rank 0 beside others: a full matrix and a bottleneck are different weights"
        return ""


@dataclass(frozen=True)
class Space:
    """All candidates: every combination of the decisions' choices."""

    decisions: tuple[Decision, ...]

    @property
    def size(self) -> int:
        return math.prod(len(decision.choices) for decision in self.decisions)

    def candidates(self) -> Iterator[Choice]:
        """All candidates, the last decision's choices changing first."""
        return itertools.product(*(range(len(decision.choices)) for decision in self.decisions))

    def number(self, index: int) -> Choice:
        """Candidate at a place of ``candidates``, without going through those before it."""
        return self.choice_of(_digits(index, [len(decision.choices) for decision in self.decisions]))

    def index(self, choice: Choice) -> int:
        """Place of a candidate in ``candidates``."""
        place = 0
        for decision, number in zip(self.decisions, choice, strict=True):
            place = place * len(decision.choices) + number
        return place

    def choice_of(self, numbers: Sequence[int]) -> Choice:
        """Checks a choice of numbers; raises ValueError where it is none."""
        if len(numbers) != len(self.decisions):
            raise ValueError(f"{len(numbers)} numbers for {len(self.decisions)} decisions")
        for decision, number in zip(self.decisions, numbers, strict=True):
            if not 0 <= number < len(decision.choices):
                raise ValueError(f"{decision.name} has no choice {number}")
        return tuple(int(number) for number in numbers)

    def values(self, choice: Choice) -> dict[str, Any]:
        """Values of a candidate by the names of the decisions."""
        pairs = zip(self.decisions, choice, strict=True)
        return {decision.name: decision.choices[number] for decision, number in pairs}

    def describe(self, choice: Choice) -> str:
        """Text of a candidate, ``model.deep.units.0 64, model.crosses.layers 2``."""
        return ", ".join(f"{name} {value}" for name, value in self.values(choice).items())

    @property
    def largest(self) -> Choice:
        """Candidate whose parts hold those of all others: the supernet. Of settings the first choice."""
        return self._extreme(max)

    @property
    def smallest(self) -> Choice:
        """Candidate of the smallest parts. Of settings the first choice."""
        return self._extreme(min)

    def _extreme(self, end: Callable[[Iterable[Any]], Any]) -> Choice:
        return tuple(
            0 if decision.part is None else decision.choices.index(end(decision.choices))
            for decision in self.decisions
        )

    def shape(self, base: TrainConfig, choice: Choice) -> Shape:
        """Architecture of a candidate, absent layers included. Rank decisions of absent layers remain."""
        return shape_of(base, self._parts(self.values(choice)))

    def apply(self, base: TrainConfig | Content, choice: Choice) -> TrainConfig:
        """Configuration of a candidate; raises InputError, which names it, where that is not possible."""
        return self.apply_values(base, self.values(choice))

    def apply_values(self, base: TrainConfig | Content, values: Mapping[str, Any]) -> TrainConfig:
        """Does the same with values for some of the decisions; others stay as the base has them."""
        where = "candidate " + ", ".join(f"{name} {value}" for name, value in values.items())
        content = base.model_dump(mode="json") if isinstance(base, TrainConfig) else base
        return parse_model(TrainConfig, changed(content, self.changes(base, values)), where)

    def changes(self, base: TrainConfig | Content, values: Mapping[str, Any]) -> Changes:
        """Changes of a base by values for some of the decisions: values by dotted keys of its configuration."""
        config = base if isinstance(base, TrainConfig) else parse_model(TrainConfig, dict(base), "base")
        parts = self._parts(values)
        settings = {name: value for name, value in values.items() if part_of(name) is None}
        return shape_changes(shape_of(config, parts), {part.kind for part in parts}, config.model) | settings

    def baseline(self, base: TrainConfig | Content) -> Choice | None:
        """Candidate that changes nothing of the base; None where the space does not have it."""
        config = base if isinstance(base, TrainConfig) else parse_model(TrainConfig, dict(base), "base")
        found = []
        for decision in self.decisions:
            same = (
                number
                for number, value in enumerate(decision.choices)
                if self._is_possible_and_same(base, config, {decision.name: value})
            )
            found.append(next(same, None))
        return None if None in found else tuple(number for number in found if number is not None)

    def _is_possible_and_same(
        self, base: TrainConfig | Content, config: TrainConfig, values: Mapping[str, Any]
    ) -> bool:
        try:
            return self.apply_values(base, values) == config
        except InputError:
            return False

    def _parts(self, values: Mapping[str, Any]) -> dict[Part, Any]:
        parts = ((part_of(name), value) for name, value in values.items())
        return {part: value for part, value in parts if part is not None}


def _digits(index: int, bases: Sequence[int]) -> list[int]:
    """Digits of a number in mixed bases, the last one's the lowest."""
    digits = []
    for base in reversed(bases):
        index, digit = divmod(index, base)
        digits.append(digit)
    if index:
        raise ValueError("beyond the last candidate")
    return digits[::-1]
