"""Forward functions of experts, and their combination: pure functions of named weights, for training and serving.

::

    z_k        = the logits of expert k, with its bias; for an ensemble the logits of its mean probability
    prediction = z_1 + offset + sum of gate_k (z_k - z_1), k > 1
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf

from ctr.models.architecture import Architecture, Factors
from ctr.models.click_model import Scores, TowerInput, ensemble_logit, forward
from ctr.models.embeddings import tower_widths
from ctr.models.initial_weights import weight_shapes
from ctr.models.rows import TableLayout
from ctr.objective.config import ObjectiveConfig
from ctr.training.experts.names import LINEAR, NETWORK, PAIRS, expert_names
from ctr.training.model_config import ModelConfig

Weights = Mapping[str, tf.Tensor]
"""Weights by name, as in ``ctr.models.initial_weights`` and ``Experts.initial``."""

Sources = Mapping[str, tuple[tuple[int, ...], ...]]
"""Sources of a supernet's layers; see ``Architecture``."""


@dataclass(frozen=True)
class Experts:
    """The experts of a model, in their order, and the architecture of the network."""

    names: tuple[str, ...]
    network: Architecture

    @property
    def without_pairs(self) -> "Experts":
        return replace(self, names=tuple(name for name in self.names if name != PAIRS))

    @property
    def network_alone(self) -> "Experts":
        return replace(self, names=(NETWORK,))

    @property
    def combination(self) -> str:
        """Returns the name of the weights that combine K experts: float32 [K], an offset and K - 1 gates."""
        return f"experts/{'-'.join(self.names)}"

    @property
    def served(self) -> list[str]:
        """Returns the names of the weights besides the network's that a prediction needs."""
        names = [bias_of(name) for name in self.names if name != NETWORK]
        return names + ([self.combination] if len(self.names) > 1 else [])

    def initial(self) -> dict[str, np.ndarray]:
        """Returns the initial biases of experts and weights of their combinations, float32, by name."""
        prior = np.float32(math.log(self.network.prior / (1 - self.network.prior)))
        weights = dict.fromkeys([*self.served, *self.without_pairs.served], np.array(prior))
        for some in (self, self.without_pairs):
            if some.combination in weights:
                weights[some.combination] = np.zeros(len(some.names), np.float32)
        return weights

    def scores(
        self, weights: Weights, inputs: Mapping[str, TowerInput], alpha2: tf.Tensor, compiled: bool = False
    ) -> dict[str, Scores]:
        """Computes the scores of each expert for B rows; see ``ctr.models.click_model.forward``.

        Args:
            inputs: by tower: both towers of a factorized network, otherwise ``quality`` alone; also ``pairs`` if used.
        """
        scores: dict[str, Scores] = {}
        for name in self.names:
            if name == NETWORK:
                scores[name] = forward(self.network, weights, inputs, alpha2, compiled)
                continue
            selected = [value for tower, value in inputs.items() if (tower == PAIRS) == (name == PAIRS)]
            linear = [value.linear for value in selected]
            if self.network.components > 1:
                # If components have separate linear weights, all of them learn the same.
                linear = [tf.reduce_mean(values, axis=0, keepdims=True) for values in linear]
            logits = tf.add_n(linear) + weights[bias_of(name)]
            scores[name] = Scores(logits, logits)
        return scores

    def combine(self, weights: Weights, logits: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Computes the prediction, float32 [B], from the logits z_k, float32 [B]."""
        first, *others = (logits[name] for name in self.names)
        if not others:
            return first
        offset, *gates = tf.unstack(weights[self.combination])
        moves = [gate * (other - first) for gate, other in zip(gates, others, strict=True)]
        return tf.add_n([first + offset, *moves])

    def gates(self, weights: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Returns the gate, in [0, 1], of each expert but the first, by name; empty for a single expert."""
        if len(self.names) == 1:
            return {}
        return dict(zip(self.names[1:], weights[self.combination][1:].tolist(), strict=True))

    def predictions(self, weights: Weights, scores: Mapping[str, Scores]) -> list[tf.Tensor]:
        """Computes the logits of the click, and of each further label: float32 [B] each."""
        logits = {name: ensemble_logit(expert.logits) for name, expert in scores.items()}
        labels = scores[NETWORK].labels.values() if NETWORK in scores else ()
        return [self.combine(weights, logits), *map(ensemble_logit, labels)]


def bias_of(name: str) -> str:
    """Returns the name of the bias, a float32 scalar, of an expert other than the network."""
    return f"experts/{name}/bias"


def tables_of(experts: Experts, layouts: Sequence[TableLayout]) -> tuple[TableLayout, ...]:
    """Returns the layouts of the tables that experts read: all, or all but the table of pairs."""
    return tuple(layout for layout in layouts if layout.tower != PAIRS or PAIRS in experts.names)


def linear_expert(experts: Experts, layout: TableLayout) -> str:
    """Returns the expert to which the linear weights of a table belong."""
    return PAIRS if layout.tower == PAIRS else experts.names[0]


def make_experts(
    model: ModelConfig,
    objective: ObjectiveConfig,
    compute_dtype: str,
    layouts: Sequence[TableLayout],
    sources: Sources | None = None,
) -> Experts:
    """Makes the experts of a configuration, for tables with these layouts."""
    ranking, factorized = objective.ranking, model.factorized
    names, factors, plugin = expert_names(model), None, model.plugin
    if factorized is not None:
        pieces = factorized.pieces if factorized.transfer == "piecewise_linear" else 0
        factors = Factors(factorized.width, factorized.ui_units, pieces, reach=6.0)
    has_layers = NETWORK in names
    network = Architecture(
        cross_layers=model.crosses.layers if has_layers and plugin is None else 0,
        cross_rank=model.crosses.rank,
        deep_units=() if not has_layers else model.deep.units if plugin is None else (plugin.units,),
        deep_ranks=model.deep.ranks if has_layers and plugin is None else (),
        activation=model.deep.activation,
        smelu_beta=model.deep.smelu_beta,
        prior=model.prior,
        compute_dtype=compute_dtype,
        rank_head=ranking is not None and ranking.setup == "multi_task",
        components=model.ensemble.components,
        factors=factors,
        linear=LINEAR not in names,
        sources=sources or {},
        pooled=tuple(f.pooled for layout in layouts for f in layout.features if f.pooled is not None),
        network=plugin,
        labels=tuple(objective.labels),
    )
    return Experts(names, network)


def dense_shapes(
    model: ModelConfig, objective: ObjectiveConfig, layouts: tuple[TableLayout, ...]
) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a model's dense weights by name, in the order of checkpoints."""
    widths = tower_widths(layouts, model.factorized is not None)
    return weight_shapes(make_experts(model, objective, "float32", layouts).network, widths)
