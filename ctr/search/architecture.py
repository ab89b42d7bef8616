"""The decisions of a search that are about the architecture, and the shape that they give it (FF 3.1, 3.2, 4.3, 6).

    model.deep.layers             how many of the deep layers there are: the first ones
    model.deep.units.I            the width of deep layer I, from 0;  0: there is no such layer
    model.deep.ranks.I            the rank of its bottleneck;  0: none
    model.crosses.layers          the number of crosses
    model.crosses.rank            the rank of their matrices;  0: full matrices
    model.factorized.ui_units.I   the width of layer I of the UI tower;  0: there is no such layer
    model.factorized.width        the width of the vectors Q and U
    model.widths.A,B              the embedding width of the features A and B, of a tower for instance
    features.A,B                  true or false: whether the model has these features at all

All other decisions are keys of the training configuration as they are.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ctr.training.config import TrainConfig
from ctr.training.model_config import ModelConfig

_NAMES = {
    "layers": r"model\.deep\.layers",
    "units": r"model\.deep\.units\.(\d{1,2})",
    "ranks": r"model\.deep\.ranks\.(\d{1,2})",
    "crosses": r"model\.crosses\.layers",
    "cross_rank": r"model\.crosses\.rank",
    "ui_units": r"model\.factorized\.ui_units\.(\d{1,2})",
    "factor_width": r"model\.factorized\.width",
    "widths": r"model\.widths\.(.+)",
    "features": r"features\.(.+)",
}


class Part(NamedTuple):
    """Part of a model that a decision is about."""

    kind: str  # a key of _NAMES
    layer: int = 0  # for ``units``, ``ranks`` and ``ui_units``
    features: tuple[str, ...] = ()  # for ``widths`` and ``features``


@dataclass(frozen=True)
class Shape:
    """Architecture in which layers that are absent keep their places, as masks of a larger one need it."""

    deep_units: tuple[int, ...]  # 0: the layer is absent, and the next one reads its input
    deep_ranks: tuple[int, ...]  # of the bottlenecks; 0: it has none
    crosses: int
    cross_rank: int  # 0: full matrices
    ui_units: tuple[int, ...]
    factor_width: int  # of the vectors Q and U; 0 where the model is not factorized
    widths: Mapping[str, int]  # of the features that are decided on; 0: a linear weight alone
    without: frozenset[str]


def part_of(name: str) -> Part | None:
    """Part that a decision of this name is about; None: it is a key of the training configuration as it is."""
    for kind, pattern in _NAMES.items():
        if found := re.fullmatch(pattern, name):
            if kind in ("widths", "features"):
                return Part(kind, features=tuple(found[1].split(",")))
            return Part(kind, layer=int(found[1]) if found.groups() else 0)
    return None


def shape_of(config: TrainConfig, values: Mapping[Part, Any]) -> Shape:
    """Shape of a configuration's model with other values for some of its parts."""
    model = config.model
    factors = model.factorized
    units, ranks = list(model.deep.units), list(model.deep.ranks or [0] * len(model.deep.units))
    ui_units = list(factors.ui_units) if factors is not None else []
    lists = {"units": units, "ranks": ranks, "ui_units": ui_units}
    single = {
        "crosses": model.crosses.layers,
        "cross_rank": model.crosses.rank,
        "factor_width": factors.width if factors is not None else 0,
    }
    widths: dict[str, int] = {}
    without = set(model.without)
    layers = None
    for part, value in values.items():
        if part.kind in lists:
            changed = lists[part.kind]
            changed += [0] * (part.layer + 1 - len(changed))
            changed[part.layer] = value
        elif part.kind == "widths":
            widths |= dict.fromkeys(part.features, value)
        elif part.kind == "features":
            (without.difference_update if value else without.update)(part.features)
        elif part.kind == "layers":
            layers = value
        else:
            single[part.kind] = value
    ranks += [0] * (len(units) - len(ranks))
    present = len(units) if layers is None else layers
    return Shape(
        deep_units=tuple(width if number < present else 0 for number, width in enumerate(units)),
        deep_ranks=tuple(ranks),
        ui_units=tuple(ui_units),
        widths=widths,
        without=frozenset(without),
        **single,
    )


def shape_changes(shape: Shape, decided: Collection[str], base: ModelConfig) -> dict[str, Any]:
    """Values by dotted keys of the training configuration that give its model a shape.

    ``decided``: the kinds of the parts that are decided on; keys of others are left alone.
    """
    changes: dict[str, Any] = {}
    if {"layers", "units", "ranks"} & set(decided):
        present = [number for number, width in enumerate(shape.deep_units) if width]
        ranks = [shape.deep_ranks[number] for number in present]
        changes["model.deep.units"] = [shape.deep_units[number] for number in present]
        # Without any bottleneck both spellings mean the same model: the base's is kept.
        changes["model.deep.ranks"] = ranks if any(ranks) or base.deep.ranks else []
    values = {
        "crosses": ("model.crosses.layers", shape.crosses),
        "cross_rank": ("model.crosses.rank", shape.cross_rank),
        "ui_units": ("model.factorized.ui_units", [width for width in shape.ui_units if width]),
        "factor_width": ("model.factorized.width", shape.factor_width),
        "widths": ("model.widths", {**base.widths, **shape.widths}),
        "features": ("model.without", _in_order(shape.without, base.without)),
    }
    return changes | dict(pair for kind, pair in values.items() if kind in decided)


def _in_order(names: Collection[str], before: Sequence[str]) -> list[str]:
    """Names, those that were there before first, in their order."""
    kept = [name for name in before if name in names]
    return kept + sorted(set(names) - set(kept))
