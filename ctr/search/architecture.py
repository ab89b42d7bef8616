"""Decisions of a search about the architecture, and the resulting shape (FF 3.1, 3.2, 4.3, 6).

model.deep.layers             the number of deep layers that are present: the first ones
model.deep.units.I            the width of deep layer I, from 0;  0: there is no such layer
model.deep.ranks.I            the rank of its bottleneck;  0: none
model.crosses.layers          the number of crosses
model.crosses.rank            the rank of their matrices;  0: full matrices
model.factorized.ui_units.I   the width of layer I of the UI tower;  0: there is no such layer
model.factorized.width        the width of the vectors Q and U
model.widths.A,B              the embedding width of the features A and B, for instance of all features of a tower
features.A,B                  true or false: whether the model has these features
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ctr.training.config import TrainConfig
from ctr.training.model_config import ModelConfig

_DEEP = ("model.deep.units", "model.deep.ranks")
_KINDS = {
    "layers": (r"model\.deep\.layers", _DEEP),
    "units": (r"model\.deep\.units\.(\d{1,2})", _DEEP),
    "ranks": (r"model\.deep\.ranks\.(\d{1,2})", _DEEP),
    "crosses": (r"model\.crosses\.layers", ("model.crosses.layers",)),
    "cross_rank": (r"model\.crosses\.rank", ("model.crosses.rank",)),
    "ui_units": (r"model\.factorized\.ui_units\.(\d{1,2})", ("model.factorized.ui_units",)),
    "factor_width": (r"model\.factorized\.width", ("model.factorized.width",)),
    "widths": (r"model\.widths\.(.+)", ("model.widths",)),
    "features": (r"features\.(.+)", ("model.without",)),
}
"""For each kind of part: a pattern of its decisions' names, and the configuration keys that it sets."""


class Part(NamedTuple):
    """Part of a model that a decision determines."""

    kind: str  # a key of _KINDS
    layer: int = 0  # for ``units``, ``ranks`` and ``ui_units``
    features: tuple[str, ...] = ()  # for ``widths`` and ``features``

    @property
    def keys(self) -> tuple[str, ...]:
        return _KINDS[self.kind][1]


@dataclass(frozen=True)
class Shape:
    """Shape of a model in which absent layers keep their indices, as masks of a larger model require.

    Attributes:
        deep_units: the width of each deep layer; 0: it is absent, and the next one reads its input.
        deep_ranks: for each deep layer, the rank of its bottleneck; 0: none.
        crosses: the number of crosses.
        cross_rank: the rank of their matrices; 0: full rank.
        widths: embedding widths of features whose width is a decision; 0: only a linear weight.
        without: the features that the model does not have.
        ui_units: widths of the UI tower's layers, like ``deep_units``.
        factor_width: width of the learned part of Q and U; 0 if the model is not factorized.
    """

    deep_units: tuple[int, ...]
    deep_ranks: tuple[int, ...]
    crosses: int
    cross_rank: int
    widths: Mapping[str, int]
    without: Collection[str]
    ui_units: tuple[int, ...] = ()
    factor_width: int = 0

    def within(self, largest: "Shape") -> "Shape":
        """Returns the shape without the layers that even the largest network lacks."""

        def present(values: tuple[int, ...], widths: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(value for value, width in zip(values, widths, strict=True) if width)

        return replace(
            self,
            deep_units=present(self.deep_units, largest.deep_units),
            deep_ranks=present(self.deep_ranks, largest.deep_units),
            ui_units=present(self.ui_units, largest.ui_units),
        )


DECISIONS = (
    *(
        "model.deep.layers",
        "model.deep.units.I",
        "model.deep.ranks.I",
        "model.crosses.layers",
        "model.crosses.rank",
    ),
    *("model.factorized.ui_units.I", "model.factorized.width", "model.widths.FEATURES", "features.FEATURES"),
)
"""Names of decisions; I is the index of a layer, FEATURES are feature names joined by commas."""


def part_of(name: str) -> Part:
    """Returns the part that the decision with this name determines. Raises KeyError for an unknown name."""
    for kind, (pattern, _) in _KINDS.items():
        if match := re.fullmatch(pattern, name):
            if kind in ("widths", "features"):
                return Part(kind, features=tuple(match[1].split(",")))
            return Part(kind, layer=int(match[1]) if match.groups() else 0)
    raise KeyError(name)


def shape_of(config: TrainConfig, values: Mapping[Part, Any]) -> Shape:
    """Returns the shape of a configuration's model, with other ``values`` for some of its parts."""
    model, factors = config.model, config.model.factorized
    units, ranks = list(model.deep.units), list(model.deep.ranks)
    ui_units = list(factors.ui_units) if factors is not None else []
    single = {
        "crosses": model.crosses.layers,
        "cross_rank": model.crosses.rank,
        "factor_width": factors.width if factors is not None else 0,
    }
    present: int | None = None
    widths: dict[str, int] = {}
    without = set(model.without)
    for part, value in values.items():
        if part.kind == "widths":
            widths |= dict.fromkeys(part.features, value)
        elif part.kind == "features":
            (without.difference_update if value else without.update)(part.features)
        elif part.kind == "layers":
            present = value
        elif part.kind in single:
            single[part.kind] = value
        else:
            layers = {"units": units, "ranks": ranks, "ui_units": ui_units}[part.kind]
            layers += [0] * (part.layer + 1 - len(layers))
            layers[part.layer] = value
    ranks += [0] * (len(units) - len(ranks))
    return Shape(
        deep_units=tuple(units) if present is None else (*units[:present], *[0] * (len(units) - present)),
        deep_ranks=tuple(ranks),
        ui_units=tuple(ui_units),
        widths=widths,
        without=frozenset(without),
        **single,
    )


def shape_changes(shape: Shape, decided: Collection[Part], base: ModelConfig) -> dict[str, Any]:
    """Returns the training configuration's values, by dotted key, for which the model has the given shape.

    ``decided``: the parts that decisions determine; the result has only the keys of these parts.
    """
    present = [layer for layer, width in enumerate(shape.deep_units) if width]
    ranks = [shape.deep_ranks[layer] for layer in present]
    without = [name for name in base.without if name in shape.without]
    values = {
        "model.deep.units": [shape.deep_units[layer] for layer in present],
        # Without bottlenecks, zeros and an empty list mean the same: the base's form is kept.
        "model.deep.ranks": ranks if any(ranks) or base.deep.ranks else [],
        "model.crosses.layers": shape.crosses,
        "model.crosses.rank": shape.cross_rank,
        "model.factorized.ui_units": [width for width in shape.ui_units if width],
        "model.factorized.width": shape.factor_width,
        "model.widths": {**base.widths, **shape.widths},
        "model.without": without + sorted(set(shape.without) - set(without)),
    }
    keys = {key for part in decided for key in part.keys}
    return {key: value for key, value in values.items() if key in keys}
