"""The dense part of the click model: plain or factorized, of one component or of several (FF 4.3, 5, 6).

Plain, on the features of both towers (without crosses and deep layers: a logistic regression)::

    logit = w . DCN(e_0) + b + sum of linear weights

Factorized, where Q knows the features of the Quality tower alone and U those of the UI tower::

    logit = tau(Q . U),   Q = [W_q DCN(e_0), linear, 1],   U = [W_u MLP(e_0) + b_u, 1, linear]

so that the linear weights are still added. An ensemble's prediction is the mean of its components' probabilities.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import tensorflow as tf

from ctr.models.activations import make_activation
from ctr.models.dcn import DCN, hidden_layers
from ctr.models.linear import Linear, glorot_uniform, multiply, stack_matrices, stack_weights
from ctr.models.supernet import Detours, Masks, Tower, masked_output, masks_of_tower
from ctr.models.transfer import PiecewiseLinearTransfer, SigmoidTransfer, Transfer


class TowerInput(NamedTuple):
    """The input of a tower for B rows: c = 1, or the number of components where each has embeddings of its own.

    Attributes:
        e0: [c, B, m], the concatenated embeddings, float32 or of the compute dtype.
        linear: float32 [c, B], the summed linear weights.
    """

    e0: tf.Tensor
    linear: tf.Tensor


class Scores(NamedTuple):
    """The scores of n components for B rows.

    Attributes:
        logits: float32 [n, B], of the click.
        rank_scores: float32 [n, B], of the rank head, which only training uses; without such a head the logits.
        alone: float32 [n, B], the logits of the linear weights alone, where the network is gated.
        network: float32 [n, B], those of the network alone, where it is gated; None without a network.
    """

    logits: tf.Tensor
    rank_scores: tf.Tensor
    alone: tf.Tensor | None = None
    network: tf.Tensor | None = None


@dataclass(frozen=True)
class Factors:
    """The factorization of a model, p = tau(Q . U).

    Attributes:
        width: of the learned part of Q and U.
        ui_units: widths of the UI tower's hidden layers.
        pieces: of a piecewise-linear transfer function; 0: a sigmoid with scale and bias.
        reach: its joints are evenly spaced over [-reach, reach].
    """

    width: int
    ui_units: tuple[int, ...]
    pieces: int
    reach: float


@dataclass(frozen=True)
class Architecture:
    """The shape of a ``ClickModel``.

    Attributes:
        cross_layers: number of crosses; 0 for none.
        cross_rank: of their products; 0 for full matrices.
        deep_units: widths of the deep layers.
        deep_ranks: of their bottlenecks, 0 for none; empty for none at all.
        activation: its name, for ``ctr.models.activations.make_activation``.
        smelu_beta: beta of SmeLU.
        prior: the initial predicted click probability.
        compute_dtype: ``float32`` or ``bfloat16``; weights are float32 in both.
        rank_head: whether there is a second output, for a ranking loss (FF 4.1.1, multi-task).
        components: of the ensemble; 1: no ensemble.
        factors: None: the plain model.
        gated: whether linear weights and network are two models, which two fitted numbers combine::

            alone = linear + b,    network = w . DCN(e_0) + b_n
            logit = alone + gate * (network - alone) + offset
        sources: of a supernet, for each tower which layers each deep layer and the head may read beside the one before
            it (``ctr.models.supernet``); empty: no others.
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
    gated: bool = False
    sources: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)


class _Component(tf.Module):
    """One component's towers and heads."""

    def __init__(
        self, architecture: Architecture, widths: Mapping[str, int], compiled: bool, seeds: random.Random
    ) -> None:
        super().__init__()
        a = architecture
        has_network = bool(a.cross_layers or a.deep_units)
        if a.factors is not None and not has_network:
            raise ValueError("a factorized model needs crosses or deep layers")
        if a.gated and (a.factors is not None or a.rank_head or a.components > 1):
            raise ValueError("a gated model is not factorized, and has no rank head and one component")
        if a.rank_head and not has_network:
            raise ValueError("a rank head needs crosses or deep layers to share with the click's head")
        shared = make_activation(a.activation, a.smelu_beta), a.compute_dtype, compiled, seeds
        network = DCN(widths["quality"], a.cross_layers, a.cross_rank, a.deep_units, a.deep_ranks, *shared)
        self.towers = {"quality": network}
        self.heads: dict[str, Linear] = {}
        self.output_bias: tf.Variable | None = None
        self.transfer: Transfer | None = None
        self.fitted: dict[str, tf.Variable] = {}
        if a.gated:
            start = math.log(a.prior / (1.0 - a.prior))
            both = {"network_bias": start, "gate": 0.0} if has_network else {}
            self.fitted = {
                name: tf.Variable(value, name=name) for name, value in {**both, "offset": 0.0}.items()
            }
        # The order decides which seed each matrix has.
        width = 1 if a.factors is None else a.factors.width
        if has_network:
            self.heads["quality"] = _make_head(network.units, width, None, seeds)
        if a.rank_head:
            self.heads["rank"] = _make_head(network.units, width, None, seeds)
        if a.factors is None:
            self.output_bias = tf.Variable(math.log(a.prior / (1.0 - a.prior)))
        else:
            self._add_ui(a, a.factors, DCN(widths["ui"], 0, 0, a.factors.ui_units, (), *shared), seeds)
        self.detours = {
            tower: Detours(self.towers[tower], sources, widths[tower], width, seeds)
            for tower, sources in a.sources.items()
            if any(sources)
        }

    def _add_ui(self, a: Architecture, factors: Factors, tower: DCN, seeds: random.Random) -> None:
        """Adds what a factorized model has beside the Quality tower and its heads."""
        self.towers["ui"] = tower
        # As if Q had one more layer and U were the same everywhere: with both near 0, neither would learn.
        self.heads["ui"] = _make_head(tower.units, factors.width, 1 / math.sqrt(factors.width), seeds)
        self.transfer = (
            PiecewiseLinearTransfer(a.prior, factors.pieces, factors.reach)
            if factors.pieces
            else SigmoidTransfer(a.prior)
        )

    def tower(self, name: str) -> Tower:
        """A tower as masks need it."""
        return Tower(self.towers[name], self.heads[name], self.detours.get(name))

    def weights(self) -> Iterator[tuple[str, tf.Variable]]:
        for tower, network in self.towers.items():
            for name, weight in network.weights():
                yield f"{tower}/{name}", weight
        for head in ("ui", "quality", "rank"):
            if head in self.heads:
                layer = self.heads[head]
                yield f"{head}_head", layer.matrices[0]
                if layer.bias is not None:
                    yield f"{head}_head_bias", layer.bias
        for tower, detours in self.detours.items():
            for name, weight in detours.weights():
                yield f"{tower}/{name}", weight
        if self.transfer is not None:
            yield from self.transfer.weights()
        if self.output_bias is not None:
            yield "output_bias", self.output_bias
        yield from self.fitted.items()


def _make_head(inputs: int, units: int, bias: float | None, seeds: random.Random) -> Linear:
    return Linear([inputs, units], [glorot_uniform], seeds, bias)


class ClickModel(tf.Module):
    """Everything of the model but its embedding tables.

    Args:
        architecture: its shape.
        widths: m of each tower's input: ``quality``, and ``ui`` in a factorized model.
        compiled: whether XLA compiles what lies between the products (``ctr.models.passes``).
        seed: of the initial weights.

    Raises:
        ValueError: the architecture is not possible.
    """

    def __init__(
        self, architecture: Architecture, widths: Mapping[str, int], compiled: bool = True, *, seed: int
    ) -> None:
        super().__init__(name="click_model")
        self.architecture = architecture
        seeds = random.Random(seed)
        self._components = [
            _Component(architecture, widths, compiled, seeds) for _ in range(architecture.components)
        ]

    def round_weights(self) -> None:
        """Rounds the weights of layers that compute in bfloat16, once and not in every call: the same products."""
        for layer in self.submodules:
            if isinstance(layer, Linear):
                layer.round_weights()

    @property
    def calibrated(self) -> dict[str, tf.Variable]:
        """The scalars that are fitted where the network is gated: ``output_bias``, then those of the architecture."""
        component = self._components[0]
        if not component.fitted or component.output_bias is None:
            return {}
        return {"output_bias": component.output_bias, **component.fitted}

    @property
    def components(self) -> int:
        """The number of networks."""
        return len(self._components)

    @property
    def factorized(self) -> bool:
        """Whether the model is tau(Q . U)."""
        return self.architecture.factors is not None

    def input_dtype(self, tower: str) -> str:
        """Returns the dtype of a tower's embeddings: the compute dtype, float32 where no layer computes with them."""
        a = self.architecture
        layers = (
            a.factors.ui_units
            if a.factors is not None and tower == "ui"
            else (a.cross_layers or a.deep_units)
        )
        return a.compute_dtype if layers else "float32"

    def drop_rank_head(self) -> None:
        """Drops the second output, which only training uses."""
        for component in self._components:
            component.heads.pop("rank", None)

    def weights(self) -> dict[str, tf.Variable]:
        """Returns all weights by readable names, in an order that does not change: ``quality/deep_0/w``."""
        named: dict[str, tf.Variable] = {}
        for index, component in enumerate(self._components):
            prefix = f"component_{index}/" if self.components > 1 else ""
            named |= {f"{prefix}{name}": weight for name, weight in component.weights()}
        return named

    def __call__(
        self, inputs: Mapping[str, TowerInput], alpha2: tf.Tensor, masks: Masks | None = None
    ) -> Scores:
        """Scores B rows.

        Args:
            inputs: of each tower of a factorized model, otherwise of ``quality`` alone.
            alpha2: float32 scalar in [0, 1].
            masks: under which it computes what a smaller network would; None: it computes with all of its own. An
                ensemble and a model with a rank head take none.
        """
        return _score(self._components, inputs, alpha2, masks)

    @property
    def supernet(self) -> dict[str, Tower]:
        """The towers of a model of one component, with the matrices that are there for candidates alone."""
        (one,) = self._components
        return {name: one.tower(name) for name in one.towers}

    @property
    def transfers(self) -> list[Transfer]:
        """The components' transfer functions; none of a plain model."""
        return [component.transfer for component in self._components if component.transfer is not None]

    def quality(self, inputs: TowerInput, alpha2: tf.Tensor) -> tf.Tensor:
        """Computes Q of a factorized model, float32 [B, n, K + 2], with the K learned numbers first."""
        quality, _ = _quality(self._components, inputs, alpha2)
        return tf.transpose(quality, [1, 0, 2])

    def ui(self, inputs: TowerInput) -> tf.Tensor:
        """Computes U of a factorized model, float32 [B, n, K + 2]."""
        return tf.transpose(_ui(self._components, inputs), [1, 0, 2])

    def combine(self, quality: tf.Tensor, ui: tf.Tensor) -> tf.Tensor:
        """Computes the components' logits tau(Q . U), float32 [n, B].

        Args:
            quality: Q, float32 [B, n, K + 2].
            ui: U, in the same form.
        """
        return _transfer(self._components, tf.transpose(tf.reduce_sum(quality * ui, axis=2)))


def ensemble_logit(logits: tf.Tensor) -> tf.Tensor:
    """Computes the logit of the mean of n probabilities, exact for logits of any size.

    Args:
        logits: float32 [n, B].

    Returns:
        float32 [B].
    """
    if logits.shape[0] == 1:
        return logits[0]
    # Both sums are of the same n terms, whose divisor cancels.
    clicked = tf.reduce_logsumexp(-tf.nn.softplus(-logits), axis=0)
    return clicked - tf.reduce_logsumexp(-tf.nn.softplus(logits), axis=0)


def _score(
    components: Sequence[_Component],
    inputs: Mapping[str, TowerInput],
    alpha2: tf.Tensor,
    masks: Masks | None = None,
) -> Scores:
    if components[0].transfer is None:
        return _plain_scores(components, inputs["quality"], alpha2, masks)
    quality, ranked = _quality(components, inputs["quality"], alpha2, masks)
    ui = _ui(components, inputs["ui"], masks)
    logits = _transfer(components, tf.reduce_sum(quality * ui, axis=2))
    if ranked is None:
        return Scores(logits, logits)
    # The ranking has its own Q for the same U.
    return Scores(logits, tf.reduce_sum(ranked * ui[:, :, : ranked.shape[2]], axis=2))


def _plain_scores(
    components: Sequence[_Component], inputs: TowerInput, alpha2: tf.Tensor, masks: Masks | None
) -> Scores:
    bias = tf.stack([component.output_bias for component in components])
    logits = inputs.linear + bias[:, tf.newaxis]
    if components[0].fitted:
        return _gated_scores(components, inputs, alpha2, logits, masks)
    if "quality" not in components[0].heads:
        return Scores(logits, logits)
    if masks is not None:
        logits += tf.squeeze(_masked_head(components, "quality", inputs, alpha2, masks), axis=2)
        return Scores(logits, logits)
    hidden = hidden_layers([component.towers["quality"] for component in components], inputs.e0, alpha2)
    logits += tf.squeeze(_head(components, "quality", hidden), axis=2)
    if "rank" not in components[0].heads:
        return Scores(logits, logits)
    return Scores(logits, tf.squeeze(_head(components, "rank", hidden), axis=2))


def _masked_head(
    components: Sequence[_Component], tower: str, inputs: TowerInput, alpha2: tf.Tensor, masks: Masks
) -> tf.Tensor:
    """The outputs of the head of the one component's tower under masks, float32 [1, B, units]."""
    (one,) = components
    return masked_output(one.tower(tower), inputs.e0, alpha2, masks_of_tower(masks, tower))


def _gated_scores(
    components: Sequence[_Component],
    inputs: TowerInput,
    alpha2: tf.Tensor,
    alone: tf.Tensor,
    masks: Masks | None,
) -> Scores:
    fitted = components[0].fitted
    logits = alone + fitted["offset"]
    if "gate" not in fitted:
        return Scores(logits, logits, alone)
    if masks is not None:
        network = tf.squeeze(_masked_head(components, "quality", inputs, alpha2, masks), axis=2)
    else:
        hidden = hidden_layers([component.towers["quality"] for component in components], inputs.e0, alpha2)
        network = tf.squeeze(_head(components, "quality", hidden), axis=2)
    network += fitted["network_bias"]
    logits += fitted["gate"] * (network - alone)
    return Scores(logits, logits, alone, network)


def _head(components: Sequence[_Component], head: str, hidden: tf.Tensor) -> tf.Tensor:
    """Computes the outputs of a head, float32 [n, B, units], from the last hidden layer, [n or 1, B, h]."""
    layers = [component.heads[head] for component in components]
    if layers[0].bias is None:
        return multiply(hidden, stack_matrices(layers))
    matrices, bias = stack_weights(layers)
    return multiply(hidden, matrices) + bias


def _quality(
    components: Sequence[_Component], inputs: TowerInput, alpha2: tf.Tensor, masks: Masks | None = None
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Computes Q, [n, B, K + 2], and the Q of a rank head, [n, B, K]."""
    if masks is not None:
        return _with_linear(
            _masked_head(components, "quality", inputs, alpha2, masks), inputs.linear, True
        ), None
    hidden = hidden_layers([component.towers["quality"] for component in components], inputs.e0, alpha2)
    learned = _head(components, "quality", hidden)
    ranked = _head(components, "rank", hidden) if "rank" in components[0].heads else None
    return _with_linear(learned, inputs.linear, True), ranked


def _ui(components: Sequence[_Component], inputs: TowerInput, masks: Masks | None = None) -> tf.Tensor:
    no_crosses = tf.constant(0.0)
    if masks is not None:
        learned = _masked_head(components, "ui", inputs, no_crosses, masks)
    else:
        hidden = hidden_layers([component.towers["ui"] for component in components], inputs.e0, no_crosses)
        learned = _head(components, "ui", hidden)
    return _with_linear(learned, inputs.linear, False)


def _with_linear(learned: tf.Tensor, linear: tf.Tensor, is_quality: bool) -> tf.Tensor:
    """Adds to the learned numbers of Q or U, [n, B, K], the linear weights [c, B] and a one that meets the other's."""
    linear = tf.broadcast_to(linear[:, :, tf.newaxis], tf.concat([tf.shape(learned)[:2], [1]], 0))
    ones = tf.ones_like(linear)
    return tf.concat([learned, *((linear, ones) if is_quality else (ones, linear))], axis=2)


def _transfer(components: Sequence[_Component], products: tf.Tensor) -> tf.Tensor:
    transfers = [component.transfer for component in components]
    assert all(transfer is not None for transfer in transfers)
    return tf.stack([transfer(products[index]) for index, transfer in enumerate(transfers) if transfer])
