"""From the ``space`` of a search's file to its space, everything checked that can be before the first run."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ctr.config import parse_model
from ctr.data.log import Manifest
from ctr.data.schema import Schema
from ctr.experiments.config import merged
from ctr.io.errors import InputError
from ctr.io.words import listed
from ctr.search.config import SearchConfig
from ctr.search.space import Content, Decision, Space
from ctr.training.config import TrainConfig
from ctr.training.logs import resolve

_OWN_KEYS = ("seed", "time_range", "record_predictions")  # keys that a search sets itself

_KEYS = {
    "layers": ("model.deep.units", "model.deep.ranks"),
    "units": ("model.deep.units", "model.deep.ranks"),
    "ranks": ("model.deep.units", "model.deep.ranks"),
    "crosses": ("model.crosses.layers",),
    "cross_rank": ("model.crosses.rank",),
    "ui_units": ("model.factorized.ui_units",),
    "factor_width": ("model.factorized.width",),
    "widths": ("model.widths",),
    "features": ("model.without",),
}
"""Keys of the training configuration that parts of an architecture set."""


def with_widths(
    content: Content, search: SearchConfig, schema: Schema, manifests: Sequence[Manifest], where: str
) -> dict[str, Any]:
    """Writes out the embedding widths of the features that a search decides on."""
    config = resolve(parse_model(TrainConfig, dict(content), where), schema, manifests)
    widths = {f.name: f.width for f in schema.features if f.width is not None} | config.model.widths
    names = {
        name
        for decision in decisions_of(search)
        if decision.part is not None and decision.part.kind == "widths"
        for name in decision.part.features
    }
    decided = {name: widths[name] for name in schema.by_name if name in names}
    return merged(content, {"model": {"widths": decided}}) if decided else dict(content)


def decisions_of(search: SearchConfig) -> tuple[Decision, ...]:
    """Decisions of a search's file, unchecked."""
    return tuple(Decision(name, choices) for name, choices in search.space.items())


def make_space(search: SearchConfig, content: Content, schema: Schema, where: str) -> Space:
    """Makes the space of a search; ``content`` is the training configuration, see ``with_widths``.

    Raises InputError: a decision does not exist, has a choice that is not possible, or one that the method
    cannot try.
    """
    space = Space(decisions_of(search))
    for decision in space.decisions:
        problem = _problem(decision, schema)
        if not problem and search.method == "supernet" and decision.unmaskable:
            problem = f"{decision.unmaskable}; allowed with method halving or random"
        if problem:
            raise InputError(f"{where}: space.{decision.name}: {problem}")
    _check_once(space, where)
    _check_layers(space, parse_model(TrainConfig, dict(content), where), where)
    _check_choices(space, content, schema, where)
    if (
        search.method == "supernet"
        and not space.apply_values(content, next(_extremes(space))).model.has_network
    ):
        raise InputError(
            f"{where}: space: a candidate has neither crosses nor deep layers, which a supernet cannot be; "
            "allowed: choices of at least one layer"
        )
    return space


def _problem(decision: Decision, schema: Schema) -> str:
    """Says what is wrong with a decision by itself; empty: nothing."""
    choices, part = decision.choices, decision.part
    if not choices:
        return "has no choice; at least one is required"
    for index, one in enumerate(choices):
        if _in(one, choices[:index]):
            return f"{one!r} appears twice"
    if part is None:
        own = next((key for key in _OWN_KEYS if _overlaps(key, decision.name)), None)
        return "is set by the search itself, so that no candidate may" if own else ""
    kind, least = (bool, 0) if part.kind == "features" else (int, part.kind == "factor_width")
    wrong = [one for one in choices if type(one) is not kind or one < least]
    if wrong:
        allowed = "true and false" if kind is bool else f"whole numbers of at least {int(least)}"
        return f"{wrong[0]!r} is not allowed: {allowed}"
    unknown = [name for name in part.features if name not in schema.by_name]
    if unknown:
        return (
            f"{unknown[0]} is not a feature of the log; allowed: {listed(list(schema.by_name), unknown[0])}"
        )
    return ""


def _in(value: Any, others: Sequence[Any]) -> bool:
    return any(value == other and type(value) is type(other) for other in others)


def _overlaps(key: str, other: str) -> bool:
    """Tells whether one dotted key is the other, or within it."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def _check_once(space: Space, where: str) -> None:
    parts = [decision.part for decision in space.decisions if decision.part is not None]
    features = Counter((part.kind, name) for part in parts for name in part.features)
    for (kind, name), count in features.items():
        if count > 1:
            raise InputError(f"{where}: space: two decisions are about {kind} of the feature {name}")
    for decision in (one for one in space.decisions if one.part is None):
        for other in (one for one in space.decisions if one is not decision):
            keys = (other.name,) if other.part is None else _KEYS[other.part.kind]
            if any(_overlaps(decision.name, key) for key in keys):
                raise InputError(f"{where}: space.{decision.name}: sets the same key as {other.name}")


def _check_layers(space: Space, base: TrainConfig, where: str) -> None:
    """Raises InputError where layers have gaps, or a bottleneck is not narrower than its layer."""
    decided = {decision.part: decision for decision in space.decisions if decision.part is not None}
    for kind, there in (("units", base.model.deep.units), ("ui_units", _ui_units(base))):
        layers = {part.layer for part in decided if part.kind == kind}
        for part, decision in decided.items():
            count = len(there) + len(layers - set(range(len(there))))
            if part.kind == kind and part.layer >= count:
                raise InputError(
                    f"{where}: space.{decision.name}: a layer before it is neither in the configuration nor decided on"
                )
    if base.model.factorized is None:
        for part, decision in decided.items():
            if part.kind in ("ui_units", "factor_width"):
                raise InputError(f"{where}: space.{decision.name}: the configuration has no model.factorized")
    widths = {number: [width] for number, width in enumerate(base.model.deep.units)}
    ranks = {number: [rank] for number, rank in enumerate(base.model.deep.ranks)}
    for part, decision in decided.items():
        for kind, numbers in (("units", widths), ("ranks", ranks)):
            if part.kind == kind:
                numbers[part.layer] = list(decision.choices)
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


def _ui_units(base: TrainConfig) -> Sequence[int]:
    return base.model.factorized.ui_units if base.model.factorized is not None else ()


def _check_choices(space: Space, content: Content, schema: Schema, where: str) -> None:
    """Raises InputError where a choice, or the smallest or largest candidate, is not possible."""
    for decision in (one for one in space.decisions if one.part is None):
        for value in decision.choices:
            try:
                space.apply_values(content, {decision.name: value}).table_layouts(schema)
            except InputError as error:
                reason = str(error).partition(": ")[2] or str(error)
                raise InputError(f"{where}: space.{decision.name}: {reason}") from None
    for values in _extremes(space):
        try:
            space.apply_values(content, values).table_layouts(schema)
        except InputError as error:
            raise InputError(f"{where}: space: {error}") from None


def _extremes(space: Space) -> Iterator[Mapping[str, Any]]:
    """Values of the smallest and of the largest architecture."""
    architecture = [decision for decision in space.decisions if decision.part is not None]
    for end in (min, max):
        yield {decision.name: end(decision.choices) for decision in architecture}
