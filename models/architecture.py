"""The shape of the dense part of the click model, and quantities derived from it alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ctr.models.rows import Pooled

Array = Any
"""A tensor or an array."""


class Network(Protocol):
    """A network that replaces crosses and deep layers; see ``ctr.training.model_config.NetworkPlugin``."""

    @property
    def units(self) -> int: ...
    def weights(self, width: int) -> Mapping[str, tuple[tuple[int, ...], Any]]: ...
    def forward(self, weights: Mapping[str, Array], e0: Array, alpha2: Array) -> Array: ...


class Tower(NamedTuple):
    """The hidden layers of a tower: crosses, then deep layers.

    Attributes:
        crosses: number of crosses.
        cross_rank: rank of their matrices; 0 for full rank.
        units: widths of the deep layers.
        ranks: ranks of the deep layers' bottlenecks, 0 for none.
        sources: for each deep layer, and last for the head, the layers read besides the previous one: 0 for the
            output of the crosses, i for the output of deep layer i - 1.
    """

    crosses: int
    cross_rank: int
    units: tuple[int, ...]
    ranks: tuple[int, ...]
    sources: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Factors:
    """Factorization of a model, p = tau(Q . U) (FF 6).

    Attributes:
        width: width of the learned part of Q and U.
        ui_units: widths of the UI tower's hidden layers.
        pieces: number of pieces of the piecewise-linear transfer function; 0: a sigmoid with scale and bias.
        reach: the joints of the pieces are evenly spaced over [-reach, reach].
    """

    width: int
    ui_units: tuple[int, ...]
    pieces: int
    reach: float


@dataclass(frozen=True)
class Architecture:
    """The shape of a model. Raises ValueError if its settings do not fit together.

    Attributes:
        cross_layers: number of crosses; 0 for none.
        cross_rank: rank of their matrices; 0 for full rank.
        deep_units: widths of the deep layers.
        deep_ranks: ranks of their bottlenecks, 0 for none; empty if no layer has one.
        activation: name of the activation, for ``ctr.models.activations.make_activation``.
        smelu_beta: beta of SmeLU.
        prior: the initial predicted click probability.
        compute_dtype: ``float32`` or ``bfloat16``; weights are float32 in both.
        rank_head: whether there is a second output, for a ranking loss (FF 4.1.1, multi-task).
        components: number of components of the ensemble; 1: no ensemble.
        factors: the factorization; None: a plain model.
        linear: whether the linear weights are added to the logit.
        sources: sources of each tower, see ``Tower``; empty: each layer reads the one before it.
        pooled: the features that are pooled by attention.
        network: a network that replaces the layers; ``deep_units`` then has one entry, the width of its output.
        labels: names of further labels, each with a separate output on the same last layer.
    """

    cross_layers: int
    cross_rank: int
    deep_units: tuple[int, ...]
    deep_ranks: tuple[int, ...] = ()
    activation: str = "relu"
    smelu_beta: float = 1.0
    prior: float = 0.5
    compute_dtype: str = "float32"
    rank_head: bool = False
    components: int = 1
    factors: Factors | None = None
    linear: bool = True
    sources: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    pooled: tuple[Pooled, ...] = ()
    network: Network | None = None
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.factors is not None and not self.has_network:
            raise ValueError("a factorized model needs crosses or deep layers")
        if self.pooled and (self.components > 1 or not self.has_network):
            raise ValueError("pooling by attention needs crosses or deep layers, and one component")
        if self.labels and (self.factors is not None or not self.has_network):
            raise ValueError("further labels need crosses or deep layers, and a model that is not factorized")
        if self.rank_head and not self.has_network:
            raise ValueError("a rank head needs crosses or deep layers to share with the click's head")

    @property
    def has_network(self) -> bool:
        """Returns whether the model has more than linear weights."""
        return bool(self.cross_layers or self.deep_units)

    @property
    def prefixes(self) -> list[str]:
        """Returns the prefix of the weights' names for each component."""
        return [f"component_{number}/" for number in range(self.components)] if self.components > 1 else [""]

    @property
    def towers(self) -> dict[str, Tower]:
        """Returns the towers that have a head: ``quality``, and ``ui`` of a factorized model."""
        towers = {}
        if self.has_network:
            towers["quality"] = self._tower("quality", self.cross_layers, self.deep_units, self.deep_ranks)
        if self.factors is not None:
            towers["ui"] = self._tower("ui", 0, self.factors.ui_units, ())
        return towers

    def _tower(self, name: str, crosses: int, units: tuple[int, ...], ranks: tuple[int, ...]) -> Tower:
        sources = self.sources.get(name) or ((),) * (len(units) + 1)
        return Tower(crosses, self.cross_rank, units, ranks or (0,) * len(units), sources)

    def by_component(self, weights: Mapping[str, Array]) -> list[dict[str, Array]]:
        """Returns the weights of each component by their names in a model with one component."""
        return [
            {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
            for prefix in self.prefixes
        ]

    def input_dtype(self, tower: str) -> str:
        """Returns the dtype of a tower's embeddings: the compute dtype, or float32 if no layer reads them."""
        layers = self.towers.get(tower if self.factors is not None else "quality")
        return self.compute_dtype if layers is not None and (layers.crosses or layers.units) else "float32"


def label_weights(name: str) -> tuple[str, str]:
    """Returns the names of the output matrix, [h, 1], and of the output bias, a scalar, of a further label."""
    return f"{LABELS}{name}/out", f"{LABELS}{name}/bias"


LABELS = "labels/"
"""Prefix of the names of further labels' weights, within a component."""


NETWORK = "quality/network/"
"""Prefix of the names of an ``Architecture.network``'s weights, within a component."""
