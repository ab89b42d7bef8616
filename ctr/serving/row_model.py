"""An exported model for a few rows, without TensorFlow: ids in Python, everything else in NumPy.

Calling TensorFlow takes many times as long as the products of a row. Everything is float32. With ``compute_dtype:
bfloat16``, the same numbers are rounded to it as in the graph: inputs of layers, products and activations.

The weights are those of the SavedModel's own files, mapped to memory; of a delta, those that it leads to. So a model
has no second copy of them in its folder, and a process that only asks for few rows has few pages of its tables.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ctr.data.ids.values import Ids, RowIds
from ctr.data.schema import MISSING_ID, Schema
from ctr.io.blas import one_blas_thread
from ctr.io.hashing import splitmix64
from ctr.serving.metadata import NETWORK

Rounding = Callable[[np.ndarray], np.ndarray]
Transfer = Callable[[np.ndarray], np.ndarray]
Weights = Mapping[str, np.ndarray]
Inputs = Sequence[tuple[np.ndarray, np.ndarray]]
"""For each copy of the embeddings those of B rows, [B, m], and the sums of their linear weights, [B]."""

_LAST_KEY = np.iinfo(np.int64).max
_TOWERS = ("quality", "ui")


class RowTable:
    """One table, described as in ``ctr.serving.saved_model``; else KeyError or ValueError.

    Args:
        rows: float32 [R, columns]: the fixed rows, and behind them those of ids that grow.
        keys: of the latter and one more, int64 [R - fixed + 1], rising; None where no ids grow.
    """

    def __init__(self, described: Mapping[str, Any], rows: np.ndarray, keys: np.ndarray | None) -> None:
        self.tower: str = described["tower"]
        self._rows, self._keys = rows, keys
        self._width, self._copies = described["width"], described["copies"]
        features: list[dict[str, Any]] = described["features"]
        starts = np.cumsum([0, *(feature["buckets"] for feature in features)]).tolist()
        self._fixed: int = starts[-1]
        grown = 0 if keys is None else len(keys) - 1
        growing = any(feature["growing"] for feature in features)
        fits = rows.shape == (self._fixed + grown, self._copies * (self._width + 1))
        if not fits or growing != (keys is not None):
            raise ValueError(f"table {described['name']} has the shape {list(rows.shape)}")
        placed = [{**one, "start": start} for one, start in zip(features, starts, strict=False)]
        self._single = [feature for feature in placed if feature["single"]]
        self._multivalent = [feature for feature in placed if not feature["single"]]
        self._starts = np.array([feature["start"] for feature in self._single], np.int64)
        self._sizes = np.array([feature["buckets"] for feature in self._single], np.int64)
        self.features = [feature["name"] for feature in placed]

    def look_up(self, ids: Mapping[str, Ids], rows: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Looks up each copy's embeddings [N, features * width] and linear sums [N]; ValueError: no such id."""
        parts = []
        if self._single:
            parts.append(self._rows[self._single_rows(ids, rows)])
        if self._multivalent:
            means = [self._mean(each, row) for each in self._multivalent for row in ids[each["name"]]]
            shape = (len(self._multivalent), rows, self._rows.shape[1])
            parts.append(np.array(means, np.float32).reshape(shape).swapaxes(0, 1))
        found = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        size = self._width + 1
        columns = (found[:, :, begin : begin + size] for begin in range(0, self._copies * size, size))
        width = self._width
        return [(own[:, :, :width].reshape(rows, -1), own[:, :, width].sum(axis=1)) for own in columns]

    def _single_rows(self, ids: Mapping[str, Ids], rows: int) -> np.ndarray:
        given = np.array([ids[feature["name"]] for feature in self._single], np.int64).reshape(-1, rows).T
        if self._keys is None:
            if (given < 0).any() or (given >= self._sizes).any():
                raise ValueError("an id is none of its feature's")
            return given + self._starts
        columns = zip(self._single, np.ascontiguousarray(given.T), strict=True)
        return np.stack(
            [self._rows_of(feature, ids_of_feature) for feature, ids_of_feature in columns], axis=1
        )

    def _rows_of(self, feature: Mapping[str, Any], ids: np.ndarray) -> np.ndarray:
        start, size = feature["start"], feature["buckets"]
        if not feature["growing"]:
            if (ids < 0).any() or (ids >= size).any():
                raise ValueError("an id is none of its feature's")
            return ids + start
        assert self._keys is not None
        sought = ids ^ np.int64(feature["salt"])
        places = np.searchsorted(self._keys, sought)
        found = (self._keys[places] == sought) & (sought != _LAST_KEY)
        shared = (splitmix64(ids.view(np.uint64)) % np.uint64(size - 1)).astype(np.int64)
        rows = np.where(found, self._fixed + places, start + 1 + shared)
        return np.where(ids == MISSING_ID, start, rows)

    def _mean(self, feature: Mapping[str, Any], ids: Sequence[int] | int) -> np.ndarray:
        values = np.array(ids, np.int64)
        if not values.size:
            return np.zeros(self._rows.shape[1], np.float32)
        mean: np.ndarray = self._rows[self._rows_of(feature, values)].sum(axis=0) / np.float32(values.size)
        return mean


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
    crosses: tuple[_Layer, ...]
    deep: tuple[_Layer, ...]
    head: np.ndarray
    head_bias: np.ndarray | None
    rounding: Rounding
    activation: Rounding

    def __call__(self, e0: np.ndarray, alpha2: np.float32) -> np.ndarray:
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
    """All components of a model. KeyError: weights are missing; ValueError: it has no such network."""

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
            component = {
                name.removeprefix(prefix): np.asarray(value, np.float32)
                for name, value in weights.items()
                if name.startswith(prefix)
            }
            there = [tower for tower in _TOWERS if f"{tower}_head" in component]
            towers = {tower: _make_tower(tower, architecture, component) for tower in there}
            self._components.append((towers, component))

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
        """Computes the logit of the components' mean probability, float32 [B]; not factorized, of ``quality`` alone."""
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
        rounding=_round if is_half else lambda values: values,
        activation=_make_activation(architecture["activation"], architecture["smelu_beta"]),
    )


def _make_layer(name: str, weights: Weights) -> _Layer:
    last = "w" if f"{name}/w" in weights else "v"
    matrices = [weights[f"{name}/{part}"] for part in ("w" if last == "w" else "uv")]
    return _Layer(tuple(matrices), weights[f"{name}/{last}_bias"])


def _round(values: np.ndarray) -> np.ndarray:
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def _make_activation(name: str, beta: float) -> Rounding:
    if name == "smelu":
        return lambda z: np.where(z >= beta, z, np.square(np.maximum(z + np.float32(beta), 0)) / (4 * beta))
    return _ACTIVATIONS[name]


def _softplus(z: np.ndarray) -> np.ndarray:
    return np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))


_erf = np.frompyfunc(math.erf, 1, 1)

_ACTIVATIONS: dict[str, Rounding] = {
    "gelu": lambda z: 0.5 * z * (1 + np.asarray(_erf(z * math.sqrt(0.5)), np.float32)),
    "swish": lambda z: z * sigmoid(z),
    "mish": lambda z: z * np.tanh(_softplus(z)),
    "softplus": _softplus,
    "tanh": np.tanh,
    "elu": lambda z: np.where(z < 0, np.expm1(np.minimum(z, 0)), z),
    "relu": lambda z: np.maximum(z, 0),
}


class RowModel:
    """Functions of a model, with weights named as under ``network`` in the metadata; else KeyError or ValueError.

    ``on_load`` is called before TensorFlow is asked about values that only its libraries read.
    """

    def __init__(
        self,
        metadata: Mapping[str, Any],
        schema: Schema,
        weights: Mapping[str, np.ndarray],
        on_load: Callable[[], object] | None = None,
    ) -> None:
        described, model = metadata[NETWORK], metadata["model"]
        alpha2 = float(weights.get("alpha2", model["alpha2"]))
        dense = {name: value for name, value in weights.items() if not name.startswith(("rows/", "keys/"))}
        self._network = RowNetwork(described["architecture"], dense, alpha2, transfers_of(model))
        self._tables = [
            RowTable(table, weights[f"rows/{table['name']}"], weights.get(f"keys/{table['name']}"))
            for table in described["tables"]
        ]
        self._ids = {
            "predict": RowIds(
                schema.only(name for table in self._tables for name in table.features), on_load
            ),
            **{
                tower: RowIds(schema.only(name for table in own for name in table.features), on_load)
                for tower in _TOWERS
                if (own := [table for table in self._tables if table.tower == tower])
            },
        }
        self._single, self._multivalent = schema.single_valued, schema.multivalent

    def call(self, name: str, columns: Mapping[str, Any], rows: int) -> dict[str, np.ndarray]:
        """Computes what a function does of N rows."""
        ids = self._ids[name](columns)
        if name == "predict":
            return self._score(ids, rows)
        inputs = self._inputs(ids, rows, name)[name]
        with one_blas_thread():
            if name == "quality":
                return {"Q": self._network.quality(inputs)}
            return {"U": self._network.ui(inputs)}

    def score_ids(self, packed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes ``p`` and ``logit``, float32 [N], of a log's ids. Raises ValueError for one that is no feature's."""
        matrix = np.asarray(packed["ids"])
        ids: dict[str, Ids] = dict(zip(self._single, matrix.T.tolist(), strict=True))
        for name in self._multivalent:
            values, ends = packed[f"{name}.values"].tolist(), np.cumsum(packed[f"{name}.lengths"]).tolist()
            ids[name] = [values[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        return self._score(ids, len(matrix))

    def _score(self, ids: Mapping[str, Ids], rows: int) -> dict[str, np.ndarray]:
        inputs = self._inputs(ids, rows)
        with one_blas_thread():
            logit = self._network.logits(inputs).astype(np.float32, copy=False)
        return {"p": sigmoid(logit), "logit": logit}

    def _inputs(self, ids: Mapping[str, Ids], rows: int, tower: str | None = None) -> dict[str, Inputs]:
        found: dict[str, list[list[tuple[np.ndarray, np.ndarray]]]] = {}
        for table in self._tables:
            if tower is None or table.tower == tower:
                of = table.tower if self._network.factorized else "quality"
                found.setdefault(of, []).append(table.look_up(ids, rows))
        return {of: [_joined(copy) for copy in zip(*own, strict=True)] for of, own in found.items()}


def _joined(parts: tuple[tuple[np.ndarray, np.ndarray], ...]) -> tuple[np.ndarray, np.ndarray]:
    if len(parts) == 1:
        return parts[0]
    embeddings, linear = zip(*parts, strict=True)
    total = linear[0]
    for one in linear[1:]:
        total = total + one
    return np.concatenate(embeddings, axis=1), total


def make_transfer(joints: Sequence[float], slopes: Sequence[float], bias: float) -> Transfer:
    """Makes the continuous function from products to logits with p slopes between p - 1 joints, and ``bias`` at 0."""
    if len(slopes) != len(joints) + 1:
        raise ValueError(f"{len(joints)} joints require {len(joints) + 1} slopes, got {len(slopes)}")
    if not joints:
        scale, constant = np.float32(slopes[0]), np.float32(bias)
        return lambda products: scale * products + constant
    places, steep = np.array(joints, np.float64), np.array(slopes, np.float64)
    lower, upper = np.append(-np.inf, places), np.append(places, np.inf)
    lengths = np.clip(places[:, np.newaxis], lower, upper) - np.clip(0.0, lower, upper)
    values = lengths @ steep + bias
    first, last = steep[0], steep[-1]

    def transfer(products: np.ndarray) -> np.ndarray:
        logits = np.interp(products, places, values)
        logits += first * np.minimum(products - places[0], 0) + last * np.maximum(products - places[-1], 0)
        return logits.astype(np.float32)

    return transfer


def transfers_of(model: Mapping[str, Any]) -> list[Transfer]:
    """Makes the components' functions from an export's metadata. Raises KeyError or ValueError if malformed."""
    return [make_transfer(piece["joints"], piece["slopes"], piece["bias"]) for piece in model["transfer"]]


def probabilities(products: np.ndarray, transfers: Sequence[Transfer]) -> np.ndarray:
    """Averages the probabilities of the n components: of Q . U, float32 [n, ...], float32 [...]."""
    made = [sigmoid(transfer(own)) for transfer, own in zip(transfers, products, strict=True)]
    return made[0] if len(made) == 1 else np.mean(made, axis=0)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Computes probabilities, of the shape and dtype of logits."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-logits))
