"""State of experts: their biases, their combination, and whether pairs are active.

Pairs that do not reduce the loss are left out of the step, and tried again after eight times as many rows. Their gain
is the difference in loss between two fitted combinations of experts: without and with pairs.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import replace

import numpy as np
import tensorflow as tf

from ctr.optim.first_order.online_bias import Calibrator, OnlineBias
from ctr.optim.first_order.online_newton import OnlineNewton
from ctr.training.experts.forward import Experts, bias_of
from ctr.training.experts.names import NETWORK, PAIRS

_OFFSET_PRIOR, _GATE_PRIOR = 100.0, 10.0
"""Prior P of ``OnlineNewton``; the offset's is larger because an offset that fluctuates costs more than it gains."""
_OFFSETS, _GATES = (-20.0, 20.0), (0.0, 1.0)
"""Ranges of the offset and of gates; at most 1, so that a gate never extrapolates beyond its expert."""

FIRST_LOOK = 32768
"""Rows after which it is first decided whether pairs stay, from the loss of the second half of these rows."""
_LEAST_GAIN = 0.001
"""Minimum share of the loss that pairs must save to stay."""
_AGAIN, _LOOK = 8, 32
"""Pairs are tried again after ``_AGAIN`` times as many rows, for a ``_LOOK``-th of these, at least ``FIRST_LOOK``."""
_LEARNING, _COUNTED, _ASLEEP = 0.0, 1.0, 2.0
_WATCH = "experts/watch"


class ExpertState:
    """Biases and combination of a run's experts, with the decision whether pairs are active.

    Attributes:
        experts: all experts of the model.
        weights: the weights that combine experts, by the names of ``Experts.initial``.
        biases: for each expert, the Newton steps of its bias, or of one bias per component; none for a network alone
            or a factorized one, whose bias learns like its other weights.
        combiners: the Newton steps of the combination of all experts, and of all except pairs.
        gain: float64 [2], over the rows that decide on pairs: the loss that pairs saved, and the loss without pairs.
    """

    def __init__(self, experts: Experts, network: Mapping[str, tf.Variable]) -> None:
        """Creates the state of an untrained run; ``network`` has the weights of the network by name."""
        self.experts, self.has_pairs = experts, PAIRS in experts.names
        self.weights = {name: tf.Variable(value, name=name) for name, value in experts.initial().items()}
        self.biases: dict[str, list[OnlineBias]] = {}
        for name in experts.names:
            if name != NETWORK:
                self.biases[name] = [OnlineBias(name, self.weights[bias_of(name)])]
            elif len(experts.names) > 1:
                names = [f"{prefix}output_bias" for prefix in experts.network.prefixes]
                self.biases[name] = [OnlineBias(bias, network[bias]) for bias in names if bias in network]
        self.combiners: dict[str, OnlineNewton] = {}
        for some in (experts, experts.without_pairs):
            if (count := len(some.names) - 1) and some.combination not in self.combiners:
                key = some.combination
                ranges, priors = [_OFFSETS] + [_GATES] * count, [_OFFSET_PRIOR] + [_GATE_PRIOR] * count
                self.combiners[key] = OnlineNewton(key, self.weights[key], priors, 1.0, ranges)
        # Phase, rows passed, rows at which the phase began, and rows at which it ends: an array, as it is read at each
        # batch.
        self.watch = np.array([_LEARNING, 0, 0, FIRST_LOOK / 2])
        self._without_pairs = experts.without_pairs
        self.gain = tf.Variable([0.0, 0.0], dtype=tf.float64, trainable=False)

    def in_float32(self) -> "ExpertState":
        """Returns a state with the same variables, for a network that computes in float32."""
        changed = copy(self)
        network = replace(self.experts.network, compute_dtype="float32")
        changed.experts = replace(self.experts, network=network)
        changed._without_pairs = changed.experts.without_pairs
        return changed

    @property
    def active(self) -> Experts:
        """Returns the experts that currently learn and predict."""
        return self.experts if self.watch[0] != _ASLEEP else self._without_pairs

    @property
    def fitted(self) -> set[str]:
        """Returns the names of the network's weights that have separate Newton steps."""
        return {bias.name for bias in self.biases.get(NETWORK, ())}

    def variables(self) -> dict[str, tf.Variable]:
        calibrators: list[Calibrator] = [bias for biases in self.biases.values() for bias in biases]
        named = dict(self.weights)
        for calibrator in (*calibrators, *self.combiners.values()):
            named |= calibrator.variables
        return named | ({"experts/gain": self.gain} if self.has_pairs else {})

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the state that is not in variables, by name in checkpoints."""
        return {_WATCH: self.watch} if self.has_pairs else {}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restores the state that is not in variables from the arrays of a checkpoint."""
        if self.has_pairs:
            self.watch = np.array(arrays[_WATCH])

    def report(self) -> dict[str, float]:
        """Returns the gates by their names in metrics; 0 for pairs that are left out."""
        active = self.active
        gates = active.gates({name: weight.numpy() for name, weight in self.weights.items()})
        return {f"{name}_gate": round(gates.get(name, 0.0), 6) for name in self.experts.names[1:]}

    def is_due_after(self, rows: np.ndarray) -> np.ndarray:
        """Returns whether a decision on pairs is due, bool [K], after ``rows`` [K] more rows."""
        return self.has_pairs & (self.watch[1] + rows >= self.watch[3])

    def count(self, rows: int) -> None:
        """Counts rows that were learned from; if a decision is due, decides whether pairs are active."""
        if not self.has_pairs:
            return
        phase, passed, begun, due = self.watch.tolist()
        passed += rows
        if passed >= due:
            saved, loss = self.gain.numpy()
            if phase == _ASLEEP:
                self._begin_again()
                look = max(FIRST_LOOK, passed // _LOOK)
                phase, begun, due = _LEARNING, passed, passed + look / 2
            elif phase == _LEARNING:
                phase, due = _COUNTED, 2 * passed - begun
                self.gain.assign([0.0, 0.0])
            elif saved >= _LEAST_GAIN * loss:
                phase, begun, due = _LEARNING, passed, 1.5 * passed
            else:
                phase, due = _ASLEEP, _AGAIN * passed
        self.watch = np.array([phase, passed, begun, due])

    def _begin_again(self) -> None:
        """Restarts the pairs' gate at 0, as its statistics are outdated."""
        combiner = self.combiners[self.experts.combination]
        others = self.combiners.get(self.experts.without_pairs.combination)
        size = combiner.weights.shape[0]
        weights, information = np.zeros(size, np.float32), np.zeros((size, size), np.float32)
        if others is not None:
            weights[:-1], information[:-1, :-1] = others.weights.numpy(), others.information.numpy()
            combiner.seen.assign(others.seen)
        combiner.weights.assign(weights)
        combiner.information.assign(information)


def active_experts(experts: Experts, arrays: Mapping[str, np.ndarray]) -> Experts:
    """Returns the experts that learn and predict, according to the arrays of a checkpoint."""
    if PAIRS in experts.names and arrays[_WATCH][0] == _ASLEEP:
        return experts.without_pairs
    return experts
