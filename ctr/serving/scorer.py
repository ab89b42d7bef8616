"""Scoring with an exported model inside a Python process, without the trainer."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ctr.io.errors import InputError, one_line
from ctr.serving.metadata import check_files, find_model, model_schema, read_metadata
from ctr.serving.raw_values import FunctionInputs


class Scorer:
    """Calls the functions of an exported model on Python values. A model is a program: loading it can do anything.

    Args:
        path: the model's folder, or a folder of versions, whose newest is used.
        cached_rows: the number of rows of U that a factorized model caches; 0: none.

    Attributes:
        metadata: the content of ctr.json.
        schema: the features of the logs that the model learned from.
        labels: the further labels whose probabilities the model also predicts.
        factorized: whether the model has ``quality``, ``ui`` and ``combine``.

    Raises:
        InputError: there is no model, or it is damaged.

    Example, of a model whose features read the columns user, price and position:
        >>> scorer = Scorer(folder)
        >>> probabilities = scorer.predict({"user": ["u1", "u2"], "price": [1.5, None], "position": "1"})
        >>> probabilities.shape
        (2,)
    """

    def __init__(self, path: Path | str, cached_rows: int = 65_536) -> None:
        self.path = find_model(Path(path))
        self.metadata = read_metadata(self.path)
        self.schema = model_schema(self.metadata, self.path)
        check_files(self.path, self.metadata)
        self._cache: RowCache | None = None
        try:
            signatures = self.metadata["signatures"]
            self._inputs = {
                name: FunctionInputs(name, of["inputs"], self.schema.list_separators)
                for name, of in signatures.items()
            }
            outputs = signatures["predict"]["outputs"]
            self.labels = tuple(name.removeprefix("p_") for name in outputs if name.startswith("p_"))
            self.factorized = "ui" in signatures
            if self.factorized and cached_rows:
                self._cache = RowCache(cached_rows, signatures["ui"]["outputs"]["U"]["shape"][1:])
            # Functions are held by the loaded object.
            self._loaded = tf.saved_model.load(str(self.path))
            self._functions = {
                name: _function(self._loaded.signatures[name], inputs.dtypes)
                for name, inputs in self._inputs.items()
            }
        except InputError:
            raise
        except Exception as error:
            # TensorFlow's errors for foreign files have no common type.
            raise InputError(f"{self.path}: cannot be loaded: {one_line(error)[:300]}") from None

    def predict(self, features: Mapping[str, Any]) -> np.ndarray:
        """Predicts click probabilities, float32 [N], of N rows of raw values.

        ``features`` has for each input (``requests`` of ``metadata``) N values, or one for all rows; ignores other
        columns. Raises InputError if an input is absent, lengths differ, or a value has the wrong type.
        """
        return self.score(features)["p"]

    def score(self, features: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Computes ``p``, ``logit``, and ``p_NAME`` of further labels, float32 [N]; arguments as for ``predict``."""
        return self._call("predict", self._inputs["predict"].read(features))

    def score_ids(self, packed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes the outputs of ``score`` from ids in the form of ``ctr.serving.signatures.packed_columns``."""
        return self._call("predict_ids", packed)

    def quality(self, features: Mapping[str, Any]) -> np.ndarray:
        """Computes Q, float32 [N, n, K]; arguments as for ``predict``. Raises InputError also unless ``factorized``."""
        self._require_factors()
        return self._call("quality", self._inputs["quality"].read(features))["Q"]

    def ui(self, features: Mapping[str, Any]) -> np.ndarray:
        """Returns U, float32 [N, n, K], computed or cached; arguments and errors as for ``quality``."""
        self._require_factors()
        columns = self._inputs["ui"].read(features)
        if self._cache is None:
            return self._call("ui", columns)["U"]
        keys = list(zip(*(_hashable(column) for column in columns.values()), strict=True))

        def compute(indices: list[int]) -> np.ndarray:
            some = {
                source: column[indices]
                if isinstance(column, np.ndarray)
                else [column[index] for index in indices]
                for source, column in columns.items()
            }
            return self._call("ui", some)["U"]

        return self._cache.get(keys, compute)

    def combine(self, quality: np.ndarray, ui: np.ndarray) -> np.ndarray:
        """Computes click probabilities, float32 [N], from Q and U row by row.

        Both are float32 [N, n, K]; one may be [1, n, K], for every row of the other. InputError unless ``factorized``.
        """
        self._require_factors()
        return self._call("combine", {"Q": quality, "U": ui})["p"]

    def combine_pairs(self, quality: np.ndarray, ui: np.ndarray) -> np.ndarray:
        """Computes click probabilities, float32 [A, T], of each row of Q, [A, n, K], with each row of U, [T, n, K]."""
        ads, treatments = len(quality), len(ui)
        pairs = self.combine(np.repeat(quality, treatments, axis=0), np.tile(ui, (ads, 1, 1)))
        return pairs.reshape(ads, treatments)

    def _require_factors(self) -> None:
        if not self.factorized:
            raise InputError(
                f"{self.path}: the model is not factorized, or has other experts beside: it has only predict, not "
                "quality and ui"
            )

    def _call(self, name: str, columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
        inputs = self._inputs[name]
        tensors = {
            key: tf.constant(columns[inputs.columns[key]], dtype)
            for key, dtype in inputs.dtypes.items()
            if dtype != "string"
        }
        if texts := [key for key in inputs.dtypes if key not in tensors]:
            # One tensor of all texts: a tensor for each column would take longer than a small model.
            matrix = tf.constant([columns[inputs.columns[key]] for key in texts], tf.string)
            tensors |= zip(texts, tf.unstack(matrix), strict=True)
        return {key: value.numpy() for key, value in self._functions[name](tensors).items()}


def _function(
    signature: Any, dtypes: Mapping[str, str]
) -> Callable[[Mapping[str, tf.Tensor]], dict[str, tf.Tensor]]:
    specs = signature.structured_input_signature[1]
    if {name: spec.dtype.name for name, spec in specs.items()} != dtypes:
        raise ValueError("the inputs of a function are not those that its description names")
    order = tuple(getattr(signature, "_arg_keywords", None) or ())
    # Keyword arguments are matched and checked one by one, which takes a third of the time of scoring a row.
    flat = getattr(signature, "_call_flat", None) if set(order) == set(dtypes) else None
    if flat is None:
        return lambda tensors: signature(**tensors)
    return lambda tensors: flat([tensors[name] for name in order], signature.captured_inputs)


def _hashable(column: Any) -> list[Any]:
    """Returns a column's values as parts of a key; numbers by their bits, because NaN does not equal itself."""
    if not isinstance(column, np.ndarray):
        return column
    if column.dtype == np.int64:
        return column.tolist()
    return np.where(np.isnan(column), np.float32(np.nan), column).view(np.int32).tolist()


class RowCache:
    """Thread-safe cache of up to ``capacity`` float32 rows by key, which drops the least recently used."""

    def __init__(self, capacity: int, shape: Sequence[int]) -> None:
        if capacity < 1:
            raise ValueError(f"capacity: {capacity} is not allowed; allowed: at least 1")
        self._capacity = capacity
        self._rows = np.empty((capacity, *shape), np.float32)
        self._indices: dict[Hashable, int] = {}
        self._keys: OrderedDict[int, Hashable] = OrderedDict()  # by index, the longest unused first
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._indices)

    def get(self, keys: Sequence[Hashable], compute: Callable[[list[int]], np.ndarray]) -> np.ndarray:
        """Returns the rows of N keys; ``compute`` computes the missing ones from their positions, each key once."""
        with self._lock:
            indices = np.fromiter(map(self._indices.get, keys, repeat(-1)), np.int64, len(keys))
            missing = np.flatnonzero(indices < 0).tolist()
            # map runs the loop in C, not in Python.
            deque(map(self._keys.move_to_end, indices[indices >= 0].tolist()), maxlen=0)
            rows = self._rows[indices]
        if not missing:
            return rows
        begins: dict[Hashable, int] = {}
        for position in missing:
            begins.setdefault(keys[position], position)
        computed = compute(list(begins.values()))
        numbers = {key: number for number, key in enumerate(begins)}
        rows[missing] = computed[[numbers[keys[position]] for position in missing]]
        with self._lock:
            fresh = [key for key in begins if key not in self._indices][-self._capacity :]
            self._rows[[self._new_index(key) for key in fresh]] = computed[[numbers[key] for key in fresh]]
        return rows

    def _new_index(self, key: Hashable) -> int:
        index = len(self._indices)
        if index == self._capacity:
            index, oldest = self._keys.popitem(last=False)
            del self._indices[oldest]
        self._indices[key], self._keys[index] = index, key
        return index
