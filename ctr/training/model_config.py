"""The configuration of the model: its towers, components and embeddings."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    model_validator,
)

from ctr.config import ShortModel, StrictModel
from ctr.config.plugins import NetworkPlugins
from ctr.data.features import Category, Feature, Name, Number, Tower, Vector
from ctr.data.query_size import with_query_size
from ctr.data.schema import QUERY_SIZE, Schema
from ctr.io.errors import InputError, listed
from ctr.models.rows import FeatureRows, Numbers, Pooled, TableLayout, lay_out_tables
from ctr.objective.schedules import Ramp, RampKey
from ctr.training.experts.names import ExpertName, check_experts, reads_embeddings

_MOST_LAYERS = 64
_USUAL_WIDTH = 16
_WIDTHS = ((4, 2), (16, 4), (128, 8))
"""Pairs of a maximum number of ids and the embedding width that it gets by default."""
_MOST_WEIGHTS = 2**36
"""Maximum weights of all embedding tables together: 256 GiB of float32; accumulators need as much again."""


class CrossConfig(StrictModel):
    """The crosses of DCNv2 (FF 4.3).

    Attributes:
        layers: the number of crosses; 0: none.
        rank: the rank of their matrices; 0: full matrices.
        ramp: multiplies the crosses' contribution (alpha2), so that training begins without them.
    """

    layers: int = Field(default=2, ge=0, le=32)
    rank: int = Field(default=16, ge=0, le=65536)
    ramp: RampKey = Ramp(0, 10_000)


class DeepConfig(StrictModel):
    """The fully-connected layers after the crosses.

    Attributes:
        units: the width of each layer; empty: no layers.
        ranks: for each layer, the rank of a bottleneck U V that replaces its matrix (FF 3.1), or 0 for none;
            empty: no bottlenecks.
        activation: the activation: SmeLU (FF eq. 1), or one that Keras has.
        smelu_beta: half the width of the smooth part of SmeLU.
    """

    units: tuple[int, ...] = Field(default=(128,), max_length=_MOST_LAYERS)
    ranks: tuple[int, ...] = ()
    activation: Literal["relu", "smelu", "gelu", "swish", "mish", "softplus", "tanh", "elu"] = "relu"
    smelu_beta: float = Field(default=1.0, gt=0, le=1000)

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if any(not 1 <= units <= 65536 for units in self.units):
            raise ValueError("widths of layers must be in 1..65536")
        if self.ranks and len(self.ranks) != len(self.units):
            raise ValueError(
                f"there are {len(self.ranks)} ranks for {len(self.units)} units: each layer needs one"
            )
        for rank, units in zip(self.ranks, self.units, strict=False):
            if not 0 <= rank < units:
                raise ValueError(
                    f"rank {rank} of a layer of {units} is not a bottleneck; allowed: 1..{units - 1}, 0: none"
                )
        return self


class EnsembleConfig(StrictModel):
    """A self-ensemble (FF 5): networks with different initial weights, whose probabilities are averaged.

    Attributes:
        components: the number of networks; each is trained on a separate loss.
        embeddings: ``shared``: all networks read the same embeddings, trained with the mean of their
            gradients; ``separate``: each has separate embeddings and linear weights.
    """

    components: int = Field(default=1, ge=1, le=64)
    embeddings: Literal["shared", "separate"] = "shared"


class FactorizedConfig(StrictModel):
    """p = tau(Q . U) (FF 6): the Quality tower is the DCN, the UI tower a small network. Null: one tower.

    Attributes:
        width: the width of the learned vectors; Q and U have two more numbers, for the linear weights.
        ui_units: the widths of the hidden layers of the UI tower.
        transfer: ``tau``: ``sigmoid`` with a learned scale and bias, or the sigmoid of a learned, increasing
            ``piecewise_linear`` function.
        pieces: the number of pieces of the piecewise linear function.
        ui_features: the features of the UI tower. Null: those with tower ``ui`` in the log's schema.
    """

    width: int = Field(default=16, ge=1, le=4096)
    ui_units: tuple[int, ...] = Field(default=(32,), max_length=_MOST_LAYERS)
    transfer: Literal["sigmoid", "piecewise_linear"] = "sigmoid"
    pieces: int = Field(default=16, ge=2, le=1024)
    ui_features: tuple[Name, ...] | None = None

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if any(not 1 <= units <= 65536 for units in self.ui_units):
            raise ValueError("widths of layers must be in 1..65536")
        return self


class Pooling(StrictModel):
    """Pooling of the embeddings of a multivalent feature's values to one (``ctr.models.pooling``), or the kind alone.

    Attributes:
        kind: ``mean``; ``target``: an average weighted by the similarity of each value and the target.
        of: the target, a single-valued feature. Null: the feature that a history lists.
    """

    kind: Literal["mean", "target"]
    of: Name | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, content: Any) -> Any:
        return {"kind": content} if isinstance(content, str) else content


class NetworkPlugin(StrictModel):
    """A network of another package instead of crosses and deep layers: subclasses add keys and the computation."""

    @property
    def units(self) -> int:
        """Returns the width of the network's output, which the head reads."""
        raise NotImplementedError

    def weights(self, width: int) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        """Returns the shape of each weight by name, and its initial value or its initializer.

        An initializer is an ``Initializer`` of ``ctr.models.initial_weights``; ``width`` is m of ``forward``.
        """
        raise NotImplementedError

    def forward(self, weights: Mapping[str, Any], e0: Any, alpha2: Any) -> Any:
        """Computes the output [B, units] of embeddings [B, m].

        All arguments are tensors of one dtype; ``alpha2``, a scalar, grows from 0 to 1 by ``model.crosses.ramp``.
        """
        raise NotImplementedError


def _one_network(networks: dict[str, StrictModel]) -> dict[str, StrictModel]:
    for name, network in networks.items():
        if not isinstance(network, NetworkPlugin):
            raise ValueError(f"{name} is no subclass of ctr.training.model_config.NetworkPlugin")
    if len(networks) > 1:
        raise ValueError(f"{' and '.join(networks)}: at most one is possible")
    return networks


class ModelConfig(ShortModel):
    """DCNv2; without crosses and deep layers a logistic regression.

    Attributes:
        experts: models that each minimize the whole objective of their logits. ``network``: crosses and deep
            layers, with the linear weights inside if there is no ``linear``; alone, it is FF's model. ``linear``:
            the linear weights of all features. ``pairs``, beside one of these: linear weights of all pairs of
            single-valued features, which help if two features have a joint effect that neither has
            alone; if they do not reduce the loss, they are left out after 32,768 rows until the log is 8 times as long.
            The prediction moves from the first of linear, network and pairs towards the others, by gates and an offset
            that are fitted as the log goes by, so that an expert that does not help costs next to nothing. ``auto``:
            all; without network where there are neither crosses nor deep layers, without pairs where the log has more
            than 32 single-valued features or fewer than two, and network alone with ``factorized``.
        prior: the initial predicted click probability.
        init_scale: the standard deviation of new embeddings.
        widths: embedding widths by feature, instead of those in the log's schema; 0: a linear weight only. Features
            with a width in neither have 16, or 8, 4 and 2 with up to 128, 16 and 4 ids; of growing ids, the ids in the
            log's first partition are counted.
        pooling: for a multivalent feature the pooling of its values, instead of their mean: ``target`` suits
            histories. Its linear weights are always averaged.
        query_size: whether each row has a feature ``query_size``, of the UI tower: the number of rows of its query.
            Missing for a query whose rows have different times, such as a session. ``auto``: where the log's
            first partition has queries of different numbers of rows, and hardly any whose rows have different times.
            Switch it off if the number of displayed rows is not available when a row is scored.
        without: features of the log that the model does not use, neither with embeddings nor with linear weights.
        network: a network of another package (entry points ``ctr.models``) by its name, with its keys; it replaces
            crosses and deep layers, of whose keys only ``crosses.ramp`` still counts. Empty: none.
    """

    left_out = ("network",)
    crosses: CrossConfig = CrossConfig()
    deep: DeepConfig = DeepConfig()
    factorized: FactorizedConfig | None = None
    ensemble: EnsembleConfig = EnsembleConfig()
    experts: Literal["auto"] | tuple[ExpertName, ...] = "auto"
    prior: float = Field(default=0.1, gt=0, lt=1)
    init_scale: float = Field(default=0.01, ge=0)
    widths: dict[str, int] = {}
    pooling: dict[str, Pooling] = {}
    query_size: Literal["auto", True, False] = "auto"
    without: tuple[Name, ...] = ()
    network: Annotated[NetworkPlugins, AfterValidator(_one_network)] = {}

    @property
    def plugin(self) -> NetworkPlugin | None:
        """Returns the network of another package, or None for a DCN."""
        return next((value for value in self.network.values() if isinstance(value, NetworkPlugin)), None)

    @property
    def has_layers(self) -> bool:
        """Returns whether the configuration has crosses, deep layers or a plug-in network."""
        return bool(self.crosses.layers or self.deep.units or self.network)

    @property
    def has_network(self) -> bool:
        """Returns whether the model has a network, which reads embeddings."""
        return reads_embeddings(self)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for name, width in self.widths.items():
            if not 0 <= width <= 4096:
                raise ValueError(f"widths.{name} is {width}; allowed: 0..4096")
        check_experts(self)
        attention = [name for name, pooling in self.pooling.items() if pooling.kind != "mean"]
        if attention and self.ensemble.components > 1:
            raise ValueError(f"pooling.{attention[0]}: attention needs one ensemble.component")
        return self

    def features(self, schema: Schema) -> Schema:
        """Returns a log's features as the model uses them, with or without the feature ``query_size``."""
        if self.query_size is True and not schema.counts_rows:
            return with_query_size(schema)
        return schema.stored if self.query_size is False else schema

    def table_layouts(self, schema: Schema, shared_rows: int) -> tuple[TableLayout, ...]:
        """Lays out the embedding tables for a log's features; see ``TrainConfig.table_layouts``.

        The ids of a growing feature that have no slot share ``shared_rows`` rows. Raises InputError if the
        configuration does not fit the features, or no feature has a table.
        """
        schema = self.features(schema)
        _check_features("model.without", self.without, schema)
        present = [feature for feature in schema.features if feature.name not in self.without]
        features = [feature for feature in present if feature.has_ids]
        if not present:
            raise InputError("config: model.without names all features, so the model would have no input")
        if not features:
            raise InputError(
                "config: all features of the model are numbers; at least one with ids is required"
            )
        widths = self._feature_widths(schema)
        towers = self._feature_towers(schema)
        if self.factorized is not None:
            # The counted query size does not create a tower by itself, unless asked to.
            asked = self.factorized.ui_features or ()
            eligible = [f for f in features if f.name in asked or f in schema.stored.features]
            for tower in ("quality", "ui"):
                if not any(widths[f.name] for f in eligible if towers[f.name] == tower):
                    raise InputError(
                        f"config: model.factorized: no feature with a width above 0 is in the tower {tower}; "
                        "model.factorized.ui_features, model.widths and model.without decide it"
                    )
        pooled = self._pooled(schema, features, widths, towers)
        columns = {name: index for index, name in enumerate(schema.single_valued)}
        rows = [
            FeatureRows(
                f.name,
                1 + shared_rows if f.buckets is None else f.buckets,
                widths[f.name],
                towers[f.name],
                columns.get(f.name),
                growing=f.buckets is None,
                pooled=pooled.get(f.name),
            )
            for f in features
        ]
        numbers = self._numbers(schema, present, towers)
        copies = self.ensemble.components if self.ensemble.embeddings == "separate" else 1
        try:
            layouts = lay_out_tables(rows, copies, numbers)
        except ValueError as error:
            raise InputError(f"config: {error}; change model.widths") from None
        weights = sum(layout.rows * layout.columns for layout in layouts)
        if weights > _MOST_WEIGHTS:
            raise InputError(
                f"config: the embeddings have {weights:,} weights; allowed: {_MOST_WEIGHTS:,}: "
                "fewer buckets or smaller widths (model.widths) are required"
            )
        return layouts

    def _numbers(
        self, schema: Schema, features: Sequence[Feature], towers: Mapping[str, Tower]
    ) -> list[Numbers]:
        numbers: list[Numbers] = []
        for f in (feature for feature in features if not feature.has_ids):
            if not self.has_network:
                raise InputError(
                    f"config: the network alone reads the numbers of {f.name}: crosses or deep layers are required, or "
                    "model.without names it"
                )
            first = sum(before.size for before in numbers)
            if isinstance(f, Vector):
                numbers.append(Numbers(f.name, towers[f.name], f.size, None, first, normalize=f.normalize))
            elif isinstance(f, Number):
                column = schema.single_valued.index(f.name)
                numbers.append(Numbers(f.name, towers[f.name], 1, column, first, log=f.scale == "log"))
        return numbers

    def _pooled(
        self,
        schema: Schema,
        features: Sequence[Feature],
        widths: Mapping[str, int],
        towers: Mapping[str, Tower],
    ) -> dict[str, Pooled]:
        _check_features("model.pooling", self.pooling, schema)
        targets = {f.name for f in features if f.name in schema.single_ids and widths[f.name]}
        pooled = {}
        for name, pooling in self.pooling.items():
            if pooling.kind == "mean" or name in self.without:
                continue
            feature, history = schema.by_name[name], schema.histories.get(name)
            of = pooling.of or (history.of if history is not None else None)
            if not isinstance(feature, Category) or name not in schema.multivalent or not widths[name]:
                raise InputError(
                    f"config: model.pooling.{name}: allowed: a multivalent category with a width above 0"
                )
            if of not in targets or (self.factorized is not None and towers[of] != towers[name]):
                raise InputError(
                    f"config: model.pooling.{name}.of is {of}; allowed: a single-valued feature of the model with a "
                    "width above 0, in the same tower"
                )
            sizes = feature.max_values, widths[name], widths[of], 1 / (self.init_scale or 1)
            pooled[name] = Pooled(name, of, *sizes)
        return pooled

    def _feature_widths(self, schema: Schema) -> dict[str, int]:
        _check_features("model.widths", self.widths, schema)
        if numbers := [name for name in self.widths if not schema.by_name[name].has_ids]:
            raise InputError(f"config: model.widths names {numbers[0]}, whose numbers have no embedding")
        if not self.has_network:
            return dict.fromkeys(schema.by_name, 0)
        widths = {
            f.name: self.widths.get(f.name, fitting_width(f.buckets) if f.width is None else f.width)
            for f in schema.features
            if f.has_ids
        }
        # The counted query size is no reason for a network.
        if not any(widths.get(name) for name in schema.stored.by_name if name not in self.without):
            raise InputError("config: all features have width 0, so the network would have no input")
        return widths

    def _feature_towers(self, schema: Schema) -> dict[str, Tower]:
        chosen = None if self.factorized is None else self.factorized.ui_features
        if chosen is None:
            return {feature.name: feature.tower for feature in schema.features}
        _check_features("model.factorized.ui_features", chosen, schema)
        counted = (QUERY_SIZE,) if schema.counts_rows else ()
        return {name: "ui" if name in (*chosen, *counted) else "quality" for name in schema.by_name}


def fitting_width(ids: int | None) -> int:
    """Returns the default embedding width of a feature with this number of ids; None: the number is unknown."""
    for most, width in _WIDTHS:
        if ids is not None and ids <= most:
            return width
    return _USUAL_WIDTH


def _check_features(key: str, names: Iterable[str], schema: Schema) -> None:
    unknown = sorted(set(names) - set(schema.by_name))
    if unknown:
        raise InputError(
            f"config: {key} names {unknown[0]}, which is not a feature of the log; "
            f"allowed: {listed(list(schema.by_name), unknown[0])}"
        )
