"""Space of a search: decisions with their choices, and the configuration of each candidate."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ctr.config import parse_model
from ctr.data.log import Manifest
from ctr.data.schema import Schema
from ctr.experiments.config import Changes, changed, merged
from ctr.io.errors import InputError, listed
from ctr.search.architecture import DECISIONS, Part, Shape, part_of, shape_changes, shape_of
from ctr.search.config import SearchConfig
from ctr.training.config import TrainConfig
from ctr.training.experts.names import PAIRS, choose_experts, expert_names
from ctr.training.logs import resolve

Choice = tuple[int, ...]  # candidate: for each decision, the index of its choice

Content = Mapping[str, Any]  # training configuration as nested keys


@dataclass(frozen=True)
class Decision:
    """A part of the architecture (``ctr.search.architecture``) and its choices."""

    name: str
    choices: tuple[Any, ...]

    @cached_property
    def part(self) -> Part:
        """Returns the part of the architecture that the decision determines. Raises KeyError for an unknown name."""
        return part_of(self.name)


@dataclass(frozen=True)
class Space:
    """Search space: every combination of the decisions' choices."""

    decisions: tuple[Decision, ...]

    @property
    def size(self) -> int:
        return math.prod(len(decision.choices) for decision in self.decisions)

    def candidates(self) -> Iterator[Choice]:
        """Yields all candidates; the last decision's choice varies fastest."""
        return itertools.product(*(range(len(decision.choices)) for decision in self.decisions))

    def index(self, choice: Choice) -> int:
        """Returns the index of a candidate in ``candidates``."""
        index = 0
        for decision, number in zip(self.decisions, choice, strict=True):
            index = index * len(decision.choices) + number
        return index

    def values(self, choice: Choice) -> dict[str, Any]:
        """Returns the values of a candidate by the names of the decisions."""
        pairs = zip(self.decisions, choice, strict=True)
        return {decision.name: decision.choices[number] for decision, number in pairs}

    @property
    def largest(self) -> Choice:
        """Returns the candidate that contains all others: the supernet."""
        return tuple(decision.choices.index(max(decision.choices)) for decision in self.decisions)

    @property
    def smallest(self) -> Choice:
        """Returns the candidate with the smallest choice of each decision."""
        return tuple(decision.choices.index(min(decision.choices)) for decision in self.decisions)

    def shape(self, base: TrainConfig, choice: Choice) -> Shape:
        """Returns the shape of a candidate, including absent layers, which keep their ranks."""
        return shape_of(base, _parts(self.values(choice)))

    def apply(self, base: TrainConfig | Content, choice: Choice) -> TrainConfig:
        """Returns the configuration of a candidate. Raises InputError, naming the candidate, if it is invalid."""
        return self.apply_values(base, self.values(choice))

    def apply_values(self, base: TrainConfig | Content, values: Mapping[str, Any]) -> TrainConfig:
        """Returns the base with values for some decisions. Raises InputError as ``apply`` does."""
        content = base.model_dump(mode="json") if isinstance(base, TrainConfig) else base
        return parse_model(
            TrainConfig, changed(content, self.changes(base, values)), f"candidate {described(values)}"
        )

    def changes(self, base: TrainConfig | Content, values: Mapping[str, Any]) -> Changes:
        """Returns the changes of a base, by dotted key, that values for some of the decisions make."""
        config = _parsed(base)
        parts = _parts(values)
        return shape_changes(shape_of(config, parts), parts, config.model)

    def baseline(self, base: TrainConfig | Content) -> Choice | None:
        """Returns the candidate that equals the base, or None if the space does not contain it."""
        config = _parsed(base)

        def is_same(name: str, value: Any) -> bool:
            try:
                return self.apply_values(base, {name: value}) == config
            except InputError:
                return False

        numbers: list[int] = []
        for decision in self.decisions:
            same = (number for number, value in enumerate(decision.choices) if is_same(decision.name, value))
            numbers += itertools.islice(same, 1)
        return tuple(numbers) if len(numbers) == len(self.decisions) else None


def described(values: Mapping[str, Any]) -> str:
    """Formats values of decisions, for instance ``model.deep.units.0 64, model.crosses.layers 2``."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _parsed(base: TrainConfig | Content) -> TrainConfig:
    return base if isinstance(base, TrainConfig) else parse_model(TrainConfig, dict(base), "base")


def _parts(values: Mapping[str, Any]) -> dict[Part, Any]:
    return {part_of(name): value for name, value in values.items()}


def with_widths(
    content: Content, search: SearchConfig, schema: Schema, manifests: Sequence[Manifest], where: str
) -> dict[str, Any]:
    """Returns the configuration with explicit embedding widths of all features whose width is a decision."""
    config = resolve(parse_model(TrainConfig, dict(content), where), schema, manifests)
    widths = {f.name: f.width for f in schema.features if f.width is not None} | config.model.widths
    parts = [part_of(name) for name in search.space if name.startswith("model.widths.")]
    names = {name for part in parts for name in part.features}
    decided = {name: widths[name] for name in schema.by_name if name in names}
    return merged(content, {"model": {"widths": decided}}) if decided else dict(content)


def without_pairs(base: TrainConfig, schema: Schema) -> tuple[TrainConfig, str]:
    """Resolves ``auto`` experts without pairs; also returns a note if that excludes pairs, otherwise "".

    Raises InputError if the configuration names pairs.
    """
    model, names = base.model, expert_names(base.model)
    if PAIRS in names:
        raise InputError(
            "config: model.experts names pairs, which is not allowed in a search: no mask is on pairs; "
            "allowed: auto, linear and network"
        )
    has_pairs = PAIRS in choose_experts(model, schema)[0]
    named = base.model_copy(update={"model": model.model_copy(update={"experts": names})})
    return named, "model.experts is without pairs, as no mask is on them" if has_pairs else ""


def space_of(search: SearchConfig) -> Space:
    """Returns the space of a search's configuration, without validation."""
    return Space(tuple(Decision(name, choices) for name, choices in search.space.items()))


def make_space(search: SearchConfig, content: Content, schema: Schema, where: str) -> Space:
    """Makes the space of a search, and validates it as far as possible before the first run.

    ``content`` is the training configuration (``with_widths``). Raises InputError if a decision does not exist, has an
    invalid choice, or has one that a supernet cannot combine with the others.
    """
    space = space_of(search)
    for decision in space.decisions:
        if problem := _problem(decision, schema):
            raise InputError(f"{where}: space.{decision.name}: {problem}")
    features = Counter((item.part.kind, name) for item in space.decisions for name in item.part.features)
    for (kind, name), count in features.items():
        if count > 1:
            raise InputError(f"{where}: space: two decisions are about {kind} of the feature {name}")
    base = parse_model(TrainConfig, dict(content), where)
    if base.model.network:
        raise InputError(f"{where}: with model.network there are no crosses and deep layers to decide on")
    _check_layers(space, base, where)
    try:
        smallest, largest = (space.apply(content, choice) for choice in (space.smallest, space.largest))
        smallest.table_layouts(schema)
        largest.table_layouts(schema)
    except InputError as error:
        raise InputError(f"{where}: space: {error}") from None
    if not smallest.model.has_network:
        raise InputError(
            f"{where}: space: a candidate has no network, which a supernet cannot be; allowed: choices of at least one "
            "layer, and network among model.experts"
        )
    return space


def _problem(decision: Decision, schema: Schema) -> str:
    """Returns a description of the fault of a decision, or an empty string."""
    choices = decision.choices
    try:
        part = decision.part
    except KeyError:
        return f"is no part of the architecture; allowed: {', '.join(DECISIONS)}"
    if not choices:
        return "has no choice; at least one is required"
    for index, choice in enumerate(choices):
        if any(choice == other and type(choice) is type(other) for other in choices[:index]):
            return f"{choice!r} appears twice"
    kind, least = (bool, 0) if part.kind == "features" else (int, int(part.kind == "factor_width"))
    wrong = [choice for choice in choices if type(choice) is not kind or choice < least]
    if wrong:
        allowed = "true and false" if kind is bool else f"whole numbers of at least {least}"
        return f"{wrong[0]!r} is not allowed: {allowed}"
    if part.kind in ("ranks", "cross_rank") and 0 in choices and any(choices):
        return "has rank 0 beside others: a full matrix and a bottleneck are different weights"
    names = list(schema.by_name)
    unknown = [name for name in part.features if name not in names]
    numbers = [name for name in part.features if name in names and not schema.by_name[name].has_ids]
    if numbers:
        return f"{numbers[0]} is a feature whose numbers the network reads: no candidate differs in it"
    return (
        f"{unknown[0]} is not a feature of the log; allowed: {listed(names, unknown[0])}" if unknown else ""
    )


def _check_layers(space: Space, base: TrainConfig, where: str) -> None:
    """Raises InputError if layers have gaps, or decisions about layers do not fit the configuration."""
    deep, factors = base.model.deep, base.model.factorized
    decided = {decision.part: decision for decision in space.decisions}
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
    widths |= {part.layer: decision.choices for part, decision in decided.items() if part.kind == "units"}
    ranks |= {part.layer: decision.choices for part, decision in decided.items() if part.kind == "ranks"}
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
