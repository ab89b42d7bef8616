"""An exported model for a few rows, without TensorFlow: ids in Python, everything else in NumPy.

Calling TensorFlow takes many times as long as the products of a row. The functions of ``ctr.models.click_model`` would
give the same bits with NumPy in place of TensorFlow, but they stack components and find weights anew in each call: the
logits of a small model would take three times as long.

Everything is float32. With ``compute_dtype: bfloat16``, the same numbers are rounded to it as in the graph: inputs of
layers, products and activations.

The weights are those of the SavedModel's own files, mapped to memory; of a delta, those that it leads to. So a model
has no second copy of them in its folder, and a process that only asks for few rows has few pages of its tables.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ctr.config.plugins import read_plugins
from ctr.data.ids import arrow
from ctr.data.ids.rules import pair_ids
from ctr.data.ids.values import Ids, RowIds
from ctr.data.schema import MISSING_ID, Schema
from ctr.io.blas import one_blas_thread
from ctr.io.hashing import splitmix64
from ctr.models.architecture import NETWORK as PLUGIN
from ctr.models.architecture import Architecture, Factors, label_weights
from ctr.models.rows import STATISTICS, Numbers, Pooled
from ctr.serving.metadata import NETWORK
from ctr.serving.row_inputs import attend, number_inputs

Elementwise = Callable[[np.ndarray], np.ndarray]
Weights = Mapping[str, np.ndarray]
Inputs = Sequence[tuple[np.ndarray, np.ndarray]]
"""For each copy of the embeddings those of B rows, [B, m], and the sums of their linear weights, [B]."""

_LAST_KEY = np.iinfo(np.int64).max


class _Features(NamedTuple):
    """Where features' ids are in a table: of several features arrays [F], of one numbers."""

    starts: np.ndarray
    shared: np.ndarray  # uint64, how many rows ids that grow share
    last: np.ndarray  # uint64: a negative id is larger
    growing: np.ndarray
    salts: np.ndarray


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
        given: list[dict[str, Any]] = described["features"]
        self.numbers = [Numbers(**one) for one in described.get("numbers", [])]
        self.features = [feature["name"] for feature in given if feature["of"] is None]
        self.features += [one.name for one in self.numbers]
        sizes = np.array([feature["buckets"] for feature in given], np.int64)
        growing = np.array([feature["growing"] for feature in given], np.bool_)
        salts = np.array([feature["salt"] for feature in given], np.int64)
        self._fixed = int(sizes.sum())
        grown = 0 if keys is None else len(keys) - 1
        fits = rows.shape == (self._fixed + grown, self._copies * (self._width + 1))
        if not fits or growing.any() != (keys is not None):
            raise ValueError(f"table {described['name']} has the shape {list(rows.shape)}")
        last = np.where(growing, np.uint64(2**64 - 1), (sizes - 1).view(np.uint64))
        shared = np.maximum(sizes - 1, 1).view(np.uint64)
        features = np.cumsum(sizes) - sizes, shared, last, growing, salts
        self._by_name = {
            feature["name"]: _Features(*(values[number] for values in features))
            for number, feature in enumerate(given)
        }
        single = [number for number, feature in enumerate(given) if feature["single"]]
        self._single = _Features(*(values[single] for values in features))
        self._single_names = [given[number]["name"] for number in single if given[number]["of"] is None]
        self._pairs = [given[number]["of"] for number in single if given[number]["of"] is not None]
        self._multivalent = {
            feature["name"]: self._by_name[feature["name"]] for feature in given if not feature["single"]
        }

    def embeddings(self, name: str, ids: Ids | int) -> np.ndarray:
        """Looks up ids of a feature in a table of one copy: float32 [l, width]; ValueError: no such id."""
        rows = self._rows_of(self._by_name[name], np.array(ids, np.int64))
        return self._rows[rows, : self._width]

    def look_up(self, ids: Mapping[str, Ids], rows: int, pooled: Mapping[str, np.ndarray]) -> Inputs:
        """Looks up each copy's embeddings [N, features * width] and linear sums [N]; ValueError: no such id.

        ``pooled`` has the embeddings, [N, width], of features that are pooled by attention.
        """
        parts = []
        if self._single_names:
            given = np.array([ids[name] for name in self._single_names], np.int64).reshape(-1, rows)
            if self._pairs:
                given = np.concatenate([given, self._pair_ids(ids, rows)])
            parts.append(self._rows[self._rows_of(self._single, given.T)])
        if self._multivalent:
            means = [self._mean(one, row) for name, one in self._multivalent.items() for row in ids[name]]
            shape = (len(self._multivalent), rows, self._rows.shape[1])
            parts.append(np.array(means, np.float32).reshape(shape).swapaxes(0, 1))
        found = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        size, width = self._width + 1, self._width
        for place, name in enumerate(self._multivalent, found.shape[1] - len(self._multivalent)):
            if name in pooled:
                found[:, place, :width] = pooled[name]
        columns = (found[:, :, begin : begin + size] for begin in range(0, self._copies * size, size))
        return [(own[:, :, :width].reshape(rows, -1), own[:, :, width].sum(axis=1)) for own in columns]

    def _pair_ids(self, ids: Mapping[str, Ids], rows: int) -> np.ndarray:
        """Ids of pairs, int64 [P, N]."""
        sides = (np.array([ids[name] for name in side], np.int64) for side in zip(*self._pairs, strict=True))
        left, right = (side.ravel().view(np.uint64) for side in sides)
        return pair_ids(arrow, left, right).reshape(-1, rows)

    def _rows_of(self, features: _Features, ids: np.ndarray) -> np.ndarray:
        if (ids.view(np.uint64) > features.last).any():
            raise ValueError("an id is none of its feature's")
        # Those of an id that is missing are always there.
        fixed = ids + features.starts
        if self._keys is None or not features.growing.any():
            return fixed
        sought = ids ^ features.salts
        places = np.searchsorted(self._keys, sought)
        found = (self._keys[places] == sought) & (sought != _LAST_KEY)
        shared = (splitmix64(ids.view(np.uint64)) % features.shared).astype(np.int64)
        rows = np.where(found, self._fixed + places, features.starts + 1 + shared)
        return np.where(features.growing & (ids != MISSING_ID), rows, fixed)

    def _mean(self, features: _Features, ids: Sequence[int] | int) -> np.ndarray:
        values = np.array(ids, np.int64)
        if not values.size:
            return np.zeros(self._rows.shape[1], np.float32)
        mean: np.ndarray = self._rows[self._rows_of(features, values)].sum(axis=0) / np.float32(values.size)
        return mean


def _make_tower(tower: str, architecture: Architecture, weights: Weights, alpha2: np.float32) -> Elementwise:
    """Makes the function from embeddings [B, m] to outputs of the head [B, units]; KeyError: a weight is missing.

    Behind those of the head are the outputs of further labels, without their biases.
    """
    shape = architecture.towers[tower]
    crosses = [_layer(f"{tower}/cross_{number}", weights) for number in range(shape.crosses)]
    is_plugin = architecture.network is not None and tower == "quality"
    count = 0 if is_plugin else len(shape.units)
    deep = [_layer(f"{tower}/deep_{number}", weights) for number in range(count)]
    head, head_bias = weights[f"{tower}_head"], weights.get(f"{tower}_head_bias")
    if architecture.labels:
        head = np.column_stack([head, *(weights[label_weights(name)[0]] for name in architecture.labels)])
    activation = _make_activation(architecture.activation, architecture.smelu_beta)
    rounding = _round if architecture.compute_dtype != "float32" else lambda values: values

    def multiply(inputs: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        return rounding(inputs @ matrix)

    if architecture.network is not None and is_plugin:
        forward = functools.partial(
            architecture.network.forward,
            np,
            {name.removeprefix(PLUGIN): value for name, value in weights.items() if name.startswith(PLUGIN)},
        )
        return lambda e0: rounding(np.asarray(forward(rounding(e0), alpha2), np.float32)) @ head

    def outputs(e0: np.ndarray) -> np.ndarray:
        hidden = e0 = rounding(e0) if crosses or deep else e0
        scaled = alpha2 * e0 if crosses else e0
        for matrices, bias in crosses:
            hidden = rounding(scaled * (functools.reduce(multiply, matrices, hidden) + bias) + hidden)
        for matrices, bias in deep:
            hidden = rounding(activation(functools.reduce(multiply, matrices, hidden) + bias))
        made = hidden @ head
        return made if head_bias is None else made + head_bias

    return outputs


def _layer(name: str, weights: Weights) -> tuple[list[np.ndarray], np.ndarray]:
    """The matrices of a layer, W or U and V, and its bias."""
    names = ["w"] if f"{name}/w" in weights else ["u", "v"]
    return [weights[f"{name}/{part}"] for part in names], weights[f"{name}/{names[-1]}_bias"]


def _mean_logit(logits: Sequence[np.ndarray]) -> np.ndarray:
    """As ``ctr.models.click_model.ensemble_logit``."""
    if len(logits) == 1:
        return logits[0]
    stacked = np.stack(logits)
    clicked = np.logaddexp.reduce(-_softplus(-stacked), axis=0)
    found: np.ndarray = clicked - np.logaddexp.reduce(-_softplus(stacked), axis=0)
    return found


def _round(values: np.ndarray) -> np.ndarray:
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def _make_activation(name: str, beta: float) -> Elementwise:
    if name == "smelu":
        return lambda z: np.where(z >= beta, z, np.square(np.maximum(z + np.float32(beta), 0)) / (4 * beta))
    return _ACTIVATIONS[name]


def _softplus(z: np.ndarray) -> np.ndarray:
    return np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))


_erf = np.frompyfunc(math.erf, 1, 1)

_ACTIVATIONS: dict[str, Elementwise] = {
    "gelu": lambda z: 0.5 * z * (1 + np.asarray(_erf(z * math.sqrt(0.5)), np.float32)),
    "swish": lambda z: z * sigmoid(z),
    "mish": lambda z: z * np.tanh(_softplus(z)),
    "softplus": _softplus,
    "tanh": np.tanh,
    "elu": lambda z: np.where(z < 0, np.expm1(np.minimum(z, 0)), z),
    "relu": lambda z: np.maximum(z, 0),
}


class RowModel:
    """Functions of a model, with weights named as under ``network`` in the metadata.

    ``on_load`` is called before TensorFlow is asked about values that only its libraries read. Raises KeyError,
    TypeError or ValueError: the weights are not those of such a model, or it is a supernet.
    """

    def __init__(
        self,
        metadata: Mapping[str, Any],
        schema: Schema,
        weights: Mapping[str, np.ndarray],
        on_load: Callable[[], object] | None = None,
    ) -> None:
        described, model = metadata[NETWORK], metadata["model"]
        given = described["architecture"]
        if any(given["sources"]):
            raise ValueError("a supernet")
        factors = None if given["factors"] is None else Factors(**given["factors"])
        pooled = tuple(Pooled(**one) for one in given["pooled"])
        networks = read_plugins("ctr.models", given.get("network", {}))
        network = next(iter(networks.values()), None)
        made = {
            "factors": factors,
            "pooled": pooled,
            "network": network,
            "labels": tuple(given.get("labels", ())),
        }
        self._architecture = shape = Architecture(**{**given, **made})
        alpha2 = np.float32(weights.get("alpha2", model["alpha2"]))
        dense = {
            name: np.asarray(value, np.float32)
            for name, value in weights.items()
            if not name.startswith(("rows/", "keys/", STATISTICS))
        }
        self._components = shape.by_component(dense)
        self._statistics = weights.get(STATISTICS, np.zeros((3, 0)))
        self._towers = [
            {tower: _make_tower(tower, shape, own, alpha2) for tower in shape.towers}
            for own in self._components
        ]
        self._transfers = transfers_of(model)
        self._tables = [
            RowTable(table, weights[f"rows/{table['name']}"], weights.get(f"keys/{table['name']}"))
            for table in described["tables"]
        ]
        own_tables = {
            tower: [table for table in self._tables if table.tower == tower] for tower in ("quality", "ui")
        }
        self._ids = {
            function: RowIds(schema.only(name for table in tables for name in table.features), on_load)
            for function, tables in {"predict": self._tables, **own_tables}.items()
            if tables
        }
        self._single, self._multivalent = schema.single_valued, schema.multivalent

    def call(self, name: str, columns: Mapping[str, Any], rows: int) -> dict[str, np.ndarray]:
        """Computes what a function does of N rows."""
        ids = self._ids[name](columns)
        if name == "predict":
            return self._score(ids, rows)
        inputs = self._inputs(ids, rows, name)[name]
        with one_blas_thread():
            return {"Q" if name == "quality" else "U": self._factor(name, inputs)}

    def score_ids(self, packed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes what ``predict`` does of a log's ids. Raises ValueError for one that is no feature's."""
        matrix = np.asarray(packed["ids"])
        ids: dict[str, Ids] = dict(zip(self._single, matrix.T.tolist(), strict=True))
        for name in self._multivalent:
            values, ends = packed[f"{name}.values"].tolist(), np.cumsum(packed[f"{name}.lengths"]).tolist()
            ids[name] = [values[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        return self._score(ids, len(matrix))

    def _inputs(self, ids: Mapping[str, Ids], rows: int, tower: str | None = None) -> dict[str, Inputs]:
        def input_of(tower: str) -> str:
            return tower if tower == "pairs" or self._architecture.factors is not None else "quality"

        found: dict[str, list[Inputs]] = {}
        tables = [table for table in self._tables if tower is None or table.tower == tower]
        # Linear weights beside the model are in a table of their own.
        table_of = {name: table for table in tables if table.tower != "pairs" for name in table.features}
        pooled = {
            one.name: self._pooled(one, table_of, ids)
            for one in self._architecture.pooled
            if one.name in table_of
        }
        for table in tables:
            own = {name: one[0] for name, one in pooled.items() if table_of[name] is table}
            found.setdefault(input_of(table.tower), []).append(table.look_up(ids, rows, own))
        for name, (_, product) in pooled.items():
            found[input_of(table_of[name].tower)].append([(product, np.zeros(rows, np.float32))])
        for one in sorted((one for table in tables for one in table.numbers), key=lambda one: one.first):
            made = number_inputs(one, self._statistics, ids[one.name])
            own_inputs = found[input_of(one.tower)]
            own_inputs.append([(made, np.zeros(rows, np.float32))] * len(own_inputs[0]))
        return {of: [_joined(copy) for copy in zip(*own, strict=True)] for of, own in found.items()}

    def _pooled(
        self, one: Pooled, table_of: Mapping[str, RowTable], ids: Mapping[str, Ids]
    ) -> tuple[np.ndarray, np.ndarray]:
        lists = [table_of[one.name].embeddings(one.name, row) for row in ids[one.name]]
        targets = table_of[one.of].embeddings(one.of, ids[one.of])
        made = [attend(one, self._components[0], *row) for row in zip(lists, targets, strict=True)]
        both = np.array(made, np.float32).reshape(-1, 2, one.width)
        return both[:, 0], both[:, 1]

    def _score(self, ids: Mapping[str, Ids], rows: int) -> dict[str, np.ndarray]:
        inputs, labels = self._inputs(ids, rows), {}
        with one_blas_thread():
            if self._architecture.factors is None:
                found = [
                    self._plain_logit(number, inputs["quality"]) for number in range(len(self._components))
                ]
                logits = [logit for logit, _ in found]
                for place, name in enumerate(self._architecture.labels):
                    own = _mean_logit([of_labels[:, place] for _, of_labels in found])
                    labels[f"p_{name}"] = sigmoid(own.astype(np.float32, copy=False))
                if self._architecture.pairs:
                    (linear,) = (linear for _, linear in inputs["pairs"])
                    logits = [self._architecture.add_pairs(self._components[0], logits[0], linear)]
            else:
                both = self._factor("quality", inputs["quality"]) * self._factor("ui", inputs["ui"])
                products = zip(self._transfers, both.sum(axis=2).T, strict=True)
                logits = [transfer(own) for transfer, own in products]
            logit = _mean_logit(logits).astype(np.float32, copy=False)
        return {"p": sigmoid(logit), "logit": logit, **labels}

    def _plain_logit(self, number: int, inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """As ``ctr.models.click_model`` computes those of a component, float32 [B], and of L labels, [B, L]."""
        shape, weights, (e0, linear) = (
            self._architecture,
            self._components[number],
            inputs[number % len(inputs)],
        )
        linear = linear + weights["output_bias"]
        logits: np.ndarray = linear + weights["offset"] if shape.experts else linear
        if not shape.has_network:
            return logits, np.zeros((len(logits), 0), np.float32)
        outputs = self._towers[number]["quality"](e0)
        network, labels = outputs[:, 0], outputs[:, 1:]
        if shape.labels:
            labels = labels + np.array([weights[label_weights(name)[1]] for name in shape.labels])
        if not shape.experts:
            return logits + network, labels
        return shape.combine_experts(weights, logits, {"linear": linear, "network": network})[0], labels

    def _factor(self, tower: str, inputs: Inputs) -> np.ndarray:
        """Computes Q or U of a factorized model, float32 [B, n, K + 2]."""
        made = []
        for number, towers in enumerate(self._towers):
            e0, linear = inputs[number % len(inputs)]
            column = linear[:, np.newaxis]
            ones = np.ones_like(column)
            last = (column, ones) if tower == "quality" else (ones, column)
            made.append(np.concatenate([towers[tower](e0), *last], axis=1))
        return made[0][:, np.newaxis] if len(made) == 1 else np.stack(made, axis=1)


def _joined(parts: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """The inputs of several tables side by side."""
    if len(parts) == 1:
        return parts[0]
    embeddings, linear = zip(*parts, strict=True)
    return np.concatenate(embeddings, axis=1), functools.reduce(np.add, linear)


def make_transfer(joints: Sequence[float], slopes: Sequence[float], bias: float) -> Elementwise:
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


def transfers_of(model: Mapping[str, Any]) -> list[Elementwise]:
    """Makes the components' functions from an export's metadata. Raises KeyError or ValueError if malformed."""
    return [make_transfer(piece["joints"], piece["slopes"], piece["bias"]) for piece in model["transfer"]]


def probabilities(products: np.ndarray, transfers: Sequence[Elementwise]) -> np.ndarray:
    """Averages the probabilities of the n components: of Q . U, float32 [n, ...], float32 [...]."""
    made = [sigmoid(transfer(own)) for transfer, own in zip(transfers, products, strict=True)]
    return made[0] if len(made) == 1 else np.mean(made, axis=0)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Computes probabilities, of the shape and dtype of logits."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-logits))
