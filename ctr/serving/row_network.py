"""Network of an exported model for a few rows, in NumPy: what ``ctr.models.click_model`` computes, as exported.

Calling TensorFlow takes many times as long as the products of a row. Everything is float32. With ``compute_dtype:
bfloat16``, the same numbers are rounded to it as in the graph: inputs of layers, products and activations.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ctr.serving.combine import Transfer

Rounding = Callable[[np.ndarray], np.ndarray]
Weights = Mapping[str, np.ndarray]
Inputs = Sequence[tuple[np.ndarray, np.ndarray]]
"""For each copy of the embeddings those of B rows, [B, m], and the sums of their linear weights, [B]."""


@dataclass(frozen=True)
class _Layer:
    """x W + b or x U V + b."""

    matrices: tuple[np.ndarray, ...]
    bias: np.ndarray

    def __call__(self, inputs: np.ndarray, rounding: Rounding) -> np.ndarray:
        """Multiplies, without the bias."""
        for matrix in self.matrices:
            inputs = rounding(inputs @ matrix)
        return inputs


@dataclass(frozen=True)
class _Tower:
    """Crosses, then deep layers, then the head."""

    crosses: tuple[_Layer, ...]
    deep: tuple[_Layer, ...]
    head: np.ndarray
    head_bias: np.ndarray | None
    rounding: Rounding
    activation: Rounding

    def __call__(self, e0: np.ndarray, alpha2: np.float32) -> np.ndarray:
        """Head's outputs, [B, units], of embeddings, [B, m]."""
        if self.crosses or self.deep:
            e0 = self.rounding(e0)
        hidden = e0
        if self.crosses:
            scaled = alpha2 * e0
            for layer in self.crosses:
                hidden = self.rounding(scaled * (layer(hidden, self.rounding) + layer.bias) + hidden)
        for layer in self.deep:
            hidden = self.rounding(self.activation(layer(hidden, self.rounding) + layer.bias))
        outputs = hidden @ self.head
        return outputs if self.head_bias is None else outputs + self.head_bias


class RowNetwork:
    """All components of a model, with weights by readable names (``ctr.models.architecture.Architecture``).

    Raises KeyError: weights are missing; ValueError: an architecture that has no such network.
    """

    def __init__(
        self, architecture: Mapping[str, Any], weights: Weights, alpha2: float, transfers: Sequence[Transfer]
    ) -> None:
        if any(architecture["sources"]):
            raise ValueError("a supernet")
        self.factorized = architecture["factors"] is not None
        self._alpha2 = np.float32(alpha2)
        self._transfers = transfers
        self._components = []
        for number in range(architecture["components"]):
            prefix = f"component_{number}/" if architecture["components"] > 1 else ""
            own = {
                name.removeprefix(prefix): np.asarray(value, np.float32)
                for name, value in weights.items()
                if name.startswith(prefix)
            }
            towers = {
                tower: _make_tower(tower, architecture, own)
                for tower in ("quality", "ui")
                if f"{tower}_head" in own
            }
            self._components.append((towers, own))

    def quality(self, inputs: Inputs) -> np.ndarray:
        """Computes Q of a factorized model, float32 [B, n, K + 2]."""
        return self._factor("quality", inputs)

    def ui(self, inputs: Inputs) -> np.ndarray:
        """Computes U of a factorized model, float32 [B, n, K + 2]."""
        return self._factor("ui", inputs)

    def _factor(self, tower: str, inputs: Inputs) -> np.ndarray:
        made = []
        for number, (towers, _) in enumerate(self._components):
            e0, linear = inputs[number % len(inputs)]
            column = linear[:, np.newaxis]
            ones = np.ones_like(column)
            last = (column, ones) if tower == "quality" else (ones, column)
            made.append(np.concatenate([towers[tower](e0, self._alpha2), *last], axis=1))
        return made[0][:, np.newaxis] if len(made) == 1 else np.stack(made, axis=1)

    def logits(self, inputs: Mapping[str, Inputs]) -> np.ndarray:
        """Computes the logit of the mean of the components' probabilities, float32 [B].

        Of a model that is not factorized, ``quality`` alone has inputs.
        """
        if self.factorized:
            products = (self.quality(inputs["quality"]) * self.ui(inputs["ui"])).sum(axis=2).T
            return _mean_logit([own(one) for own, one in zip(self._transfers, products, strict=True)])
        made = []
        for number, (towers, weights) in enumerate(self._components):
            e0, linear = inputs["quality"][number % len(inputs["quality"])]
            network = towers["quality"](e0, self._alpha2)[:, 0] if towers else None
            made.append(_plain_logits(linear + weights["output_bias"], network, weights))
        return _mean_logit(made)


def _plain_logits(alone: np.ndarray, network: np.ndarray | None, weights: Weights) -> np.ndarray:
    if "offset" not in weights:
        return alone if network is None else alone + network
    logits = alone + weights["offset"]
    if network is None:
        return logits
    return logits + weights["gate"] * (network + weights["network_bias"] - alone)


def _mean_logit(logits: Sequence[np.ndarray]) -> np.ndarray:
    """As ``ctr.models.click_model.ensemble_logit``."""
    if len(logits) == 1:
        return logits[0]
    stacked = np.stack(logits)
    clicked = np.logaddexp.reduce(-_softplus(-stacked), axis=0)
    found: np.ndarray = clicked - np.logaddexp.reduce(-_softplus(stacked), axis=0)
    return found


def _make_tower(tower: str, architecture: Mapping[str, Any], weights: Weights) -> _Tower:
    factors = architecture["factors"]
    of_ui = tower == "ui"
    crosses = 0 if of_ui else architecture["cross_layers"]
    deep = len(factors["ui_units"] if of_ui else architecture["deep_units"])
    is_half = architecture["compute_dtype"] != "float32"
    return _Tower(
        crosses=tuple(_make_layer(f"{tower}/cross_{number}", weights) for number in range(crosses)),
        deep=tuple(_make_layer(f"{tower}/deep_{number}", weights) for number in range(deep)),
        head=weights[f"{tower}_head"],
        head_bias=weights.get(f"{tower}_head_bias"),
        rounding=_round if is_half else _keep,
        activation=_make_activation(architecture["activation"], architecture["smelu_beta"]),
    )


def _make_layer(name: str, weights: Weights) -> _Layer:
    last = "w" if f"{name}/w" in weights else "v"
    matrices = [weights[f"{name}/{part}"] for part in ("w" if last == "w" else "uv")]
    return _Layer(tuple(matrices), weights[f"{name}/{last}_bias"])


def _keep(values: np.ndarray) -> np.ndarray:
    return values


def _round(values: np.ndarray) -> np.ndarray:
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def _make_activation(name: str, beta: float) -> Rounding:
    if name == "smelu":
        return lambda z: np.where(z >= beta, z, np.square(np.maximum(z + np.float32(beta), 0)) / (4 * beta))
    return _ACTIVATIONS[name]


def _softplus(z: np.ndarray) -> np.ndarray:
    return np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))


def _sigmoid(z: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-z))


_erf = np.frompyfunc(math.erf, 1, 1)

_ACTIVATIONS: dict[str, Rounding] = {
    "gelu": lambda z: 0.5 * z * (1 + np.asarray(_erf(z * math.sqrt(0.5)), np.float32)),
    "swish": lambda z: z * _sigmoid(z),
    "mish": lambda z: z * np.tanh(_softplus(z)),
    "softplus": _softplus,
    "tanh": np.tanh,
    "elu": lambda z: np.where(z < 0, np.expm1(np.minimum(z, 0)), z),
    "relu": lambda z: np.maximum(z, 0),
}
