"""Space of a search: decisions, each with its choices, and the configuration that each candidate has."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ctr.config import parse_model
from ctr.data.log import Manifest
from ctr.data.schema import Schema
from ctr.experiments.config import Changes, changed, merged
from ctr.io.errors import InputError, listed
from ctr.search.architecture import Part, Shape, part_of, shape_changes, shape_of
from ctr.search.config import SearchConfig
from ctr.training.config import TrainConfig
from ctr.training.logs import resolve

Choice = tuple[int, ...]  # candidate: for each decision the number of its choice

Content = Mapping[str, Any]  # training configuration as nested keys

_OWN_KEYS = ("seed", "time_range", "record_predictions")  # keys that a search sets itself


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
    def keys(self) -> tuple[str, ...]:
        """Keys of the training configuration that it sets."""
        return (self.name,) if self.part is None else self.part.keys

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
        """Candidate at a place of ``candidates``, without going through those before it; ValueError beyond."""
        numbers = []
        for decision in reversed(self.decisions):
            index, number = divmod(index, len(decision.choices))
            numbers.append(number)
        if index:
            raise ValueError("beyond the last candidate")
        return tuple(reversed(numbers))

    def index(self, choice: Choice) -> int:
        """Place of a candidate in ``candidates``."""
        place = 0
        for decision, number in zip(self.decisions, choice, strict=True):
            place = place * len(decision.choices) + number
        return place

    def values(self, choice: Choice) -> dict[str, Any]:
        """Values of a candidate by the names of the decisions."""
        pairs = zip(self.decisions, choice, strict=True)
        return {decision.name: decision.choices[number] for decision, number in pairs}

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
        return shape_of(base, _split(self.values(choice))[0])

    def apply(self, base: TrainConfig | Content, choice: Choice) -> TrainConfig:
        """Configuration of a candidate; raises InputError, which names it, where that is not possible."""
        return self.apply_values(base, self.values(choice))

    def apply_values(self, base: TrainConfig | Content, values: Mapping[str, Any]) -> TrainConfig:
        """Does the same with values for some of the decisions; others stay as the base has them."""
        content = base.model_dump(mode="json") if isinstance(base, TrainConfig) else base
        return parse_model(
            TrainConfig, changed(content, self.changes(base, values)), f"candidate {described(values)}"
        )

    def changes(self, base: TrainConfig | Content, values: Mapping[str, Any]) -> Changes:
        """Changes of a base by values for some of the decisions: values by dotted keys of its configuration."""
        config = _parsed(base)
        parts, settings = _split(values)
        return shape_changes(shape_of(config, parts), parts, config.model) | settings

    def baseline(self, base: TrainConfig | Content) -> Choice | None:
        """Candidate that changes nothing of the base; None where the space does not have it."""
        config = _parsed(base)

        def is_same(name: str, value: Any) -> bool:
            try:
                return self.apply_values(base, {name: value}) == config
            except InputError:
                return False

        found: list[int] = []
        for decision in self.decisions:
            same = (place for place, value in enumerate(decision.choices) if is_same(decision.name, value))
            found += itertools.islice(same, 1)
        return tuple(found) if len(found) == len(self.decisions) else None


def described(values: Mapping[str, Any]) -> str:
    """Text of values by the names of decisions, ``model.deep.units.0 64, model.crosses.layers 2``."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _parsed(base: TrainConfig | Content) -> TrainConfig:
    return base if isinstance(base, TrainConfig) else parse_model(TrainConfig, dict(base), "base")


def _split(values: Mapping[str, Any]) -> tuple[dict[Part, Any], dict[str, Any]]:
    """Values of parts of the architecture, and those of settings of training by their keys."""
    parts = {part: value for name, value in values.items() if (part := part_of(name)) is not None}
    return parts, {name: value for name, value in values.items() if part_of(name) is None}


_LAYER_KINDS = ("layers", "units", "ranks", "crosses", "cross_rank")


def with_widths(
    content: Content, search: SearchConfig, schema: Schema, manifests: Sequence[Manifest], where: str
) -> dict[str, Any]:
    """Writes out the embedding widths of the features that a search decides on."""
    config = resolve(parse_model(TrainConfig, dict(content), where), schema, manifests)
    widths = {f.name: f.width for f in schema.features if f.width is not None} | config.model.widths
    parts = [part for name in search.space if (part := part_of(name)) is not None and part.kind == "widths"]
    names = {name for part in parts for name in part.features}
    decided = {name: widths[name] for name in schema.by_name if name in names}
    return merged(content, {"model": {"widths": decided}}) if decided else dict(content)


def space_of(search: SearchConfig) -> Space:
    """Space of a search's file, unchecked."""
    return Space(tuple(Decision(name, choices) for name, choices in search.space.items()))


def make_space(search: SearchConfig, content: Content, schema: Schema, where: str) -> Space:
    """Makes the space of a search, everything checked that can be before the first run.

    ``content`` is the training configuration, see ``with_widths``. Raises InputError: a decision does not
    exist, has a choice that is not possible, or one that the method cannot try.
    """
    space = space_of(search)
    for decision in space.decisions:
        problem = _problem(decision, schema)
        if not problem and search.method == "supernet" and decision.unmaskable:
            problem = f"{decision.unmaskable}; allowed with method random"
        if problem:
            raise InputError(f"{where}: space.{decision.name}: {problem}")
    _check_once(space, where)
    base = parse_model(TrainConfig, dict(content), where)
    about_layers = any(one.part is not None and one.part.kind in _LAYER_KINDS for one in space.decisions)
    if base.model.network and (about_layers or search.method == "supernet"):
        raise InputError(
            f"{where}: with model.network there are no crosses and deep layers to decide on; "
            "allowed: other decisions, with method random"
        )
    _check_layers(space, base, where)
    smallest = _check_choices(space, content, schema, where)
    if search.method == "supernet" and not smallest.model.has_network:
        raise InputError(
            f"{where}: space: a candidate has no network, which a supernet cannot be; allowed: choices of at least one "
            "layer, and network among model.experts"
        )
    return space


def _problem(decision: Decision, schema: Schema) -> str:
    """Says what is wrong with a decision by itself; empty: nothing."""
    choices, part = decision.choices, decision.part
    if not choices:
        return "has no choice; at least one is required"
    for place, one in enumerate(choices):
        if any(one == other and type(one) is type(other) for other in choices[:place]):
            return f"{one!r} appears twice"
    if part is None:
        is_own = any(_overlaps(key, decision.name) for key in _OWN_KEYS)
        return "is set by the search itself, so that no candidate may" if is_own else ""
    kind, least = (bool, 0) if part.kind == "features" else (int, int(part.kind == "factor_width"))
    wrong = [one for one in choices if type(one) is not kind or one < least]
    if wrong:
        allowed = "true and false" if kind is bool else f"whole numbers of at least {least}"
        return f"{wrong[0]!r} is not allowed: {allowed}"
    known = list(schema.by_name)
    unknown = [name for name in part.features if name not in known]
    numbers = [name for name in part.features if name in known and not schema.by_name[name].has_ids]
    if numbers:
        return f"{numbers[0]} is a feature whose numbers the network reads: no candidate differs in it"
    return (
        f"{unknown[0]} is not a feature of the log; allowed: {listed(known, unknown[0])}" if unknown else ""
    )


def _overlaps(key: str, other: str) -> bool:
    """Tells whether one dotted key is the other, or within it."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def _check_once(space: Space, where: str) -> None:
    parts = [decision.part for decision in space.decisions if decision.part is not None]
    features = Counter((part.kind, name) for part in parts for name in part.features)
    for (kind, name), count in features.items():
        if count > 1:
            raise InputError(f"{where}: space: two decisions are about {kind} of the feature {name}")
    for decision, other in itertools.permutations(space.decisions, 2):
        if decision.part is None and any(_overlaps(decision.name, key) for key in other.keys):
            raise InputError(f"{where}: space.{decision.name}: sets the same key as {other.name}")


def _check_layers(space: Space, base: TrainConfig, where: str) -> None:
    """Raises InputError where layers have gaps, or a bottleneck is not narrower than its layer."""
    deep, factors = base.model.deep, base.model.factorized
    decided = {decision.part: decision for decision in space.decisions if decision.part is not None}
    for kind, there in (("units", deep.units), ("ui_units", factors.ui_units if factors is not None else ())):
        layers = {part.layer for part in decided if part.kind == kind}
        count = len(there) + len(layers - set(range(len(there))))
        for part, decision in decided.items():
            if part.kind == kind and part.layer >= count:
                raise InputError(
                    f"{where}: space.{decision.name}: a layer before it is neither in the configuration nor decided on"
                )
    for part, decision in decided.items():
        if part.kind in ("ui_units", "factor_width") and factors is None:
            raise InputError(f"{where}: space.{decision.name}: the configuration has no model.factorized")
    widths: dict[int, Sequence[int]] = {layer: [width] for layer, width in enumerate(deep.units)}
    ranks: dict[int, Sequence[int]] = {layer: [rank] for layer, rank in enumerate(deep.ranks)}
    widths |= {part.layer: one.choices for part, one in decided.items() if part.kind == "units"}
    ranks |= {part.layer: one.choices for part, one in decided.items() if part.kind == "ranks"}
    for layer, choices in ranks.items():
        narrowest = min((width for width in widths.get(layer, ()) if width), default=0)
        if max(choices) >= max(narrowest, 1):
            raise InputError(
                f"{where}: space.model.deep.ranks.{layer}: {max(choices)} is not a bottleneck of a layer of "
                f"{narrowest}; allowed: below the layer's smallest width"
            )
    for part, decision in decided.items():
        if part.kind == "layers" and max(decision.choices) > len(widths):
            raise InputError(
                f"{where}: space.{decision.name}: {max(decision.choices)} is not allowed: there are {len(widths)} "
                "deep layers in the configuration and the decisions"
            )


def _check_choices(space: Space, content: Content, schema: Schema, where: str) -> TrainConfig:
    """Returns the smallest candidate; raises InputError where it, the largest, or a setting is not possible."""

    def possible(values: Mapping[str, Any]) -> TrainConfig:
        config = space.apply_values(content, values)
        config.table_layouts(schema)
        return config

    for decision in (one for one in space.decisions if one.part is None):
        for value in decision.choices:
            try:
                possible({decision.name: value})
            except InputError as error:
                reason = str(error).partition(": ")[2] or str(error)
                raise InputError(f"{where}: space.{decision.name}: {reason}") from None
    architecture = Space(tuple(one for one in space.decisions if one.part is not None))
    try:
        smallest, _ = [
            possible(architecture.values(one)) for one in (architecture.smallest, architecture.largest)
        ]
    except InputError as error:
        raise InputError(f"{where}: space: {error}") from None
    return smallest
