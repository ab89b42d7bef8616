"""Scoring with an exported model inside a Python process.

Needs the exported folder and TensorFlow alone: nothing of the trainer, no Keras.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ctr.io.errors import InputError, one_line
from ctr.serving.combine import probabilities, transfers_of
from ctr.serving.metadata import Chain, check_files, find_model, model_schema, read_chain, read_metadata
from ctr.serving.model_check import check_model
from ctr.serving.raw_values import as_list, make_numbers, make_texts, make_times, row_count
from ctr.serving.row_cache import RowCache
from ctr.serving.weights import apply_deltas, variable_names


class Scorer:
    """Calls the functions of an exported model on Python's values.

    Args:
        path: the model's folder, or a folder of versions, of which the newest is taken. A delta needs the
            versions that it builds on beside it.
        cached_rows: how many rows of U a factorized model keeps; 0: none.

    Attributes:
        path: the model's folder.
        metadata: the content of ctr.json.
        schema: the features.
        factorized: whether there are Q and U.

    Raises:
        InputError: no model, a damaged one, a delta without what it builds on, or one that could do more than compute
            (``ctr.serving.model_check``).

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
        chain = read_chain(self.path)
        full_metadata = read_metadata(chain.full)
        check_files(chain.full, full_metadata)
        check_model(chain.full)
        self._separators = self.schema.list_separators
        self._cache: RowCache | None = None
        try:
            # Functions are held by the loaded object.
            self._loaded = tf.saved_model.load(str(chain.full))
            if chain.deltas:
                _update(self._loaded.weights, variable_names(chain.full, full_metadata), chain)
            self._functions = {
                name: _Function(self._loaded.signatures[name], described["inputs"])
                for name, described in self.metadata["signatures"].items()
            }
            self._transfers = transfers_of(self.metadata["model"])
            self.factorized = "ui" in self._functions
            if self.factorized and cached_rows:
                shape = self._loaded.signatures["ui"].structured_outputs["U"].shape[1:]
                self._cache = RowCache(cached_rows, shape)
        except InputError:
            raise
        except Exception as error:
            # What TensorFlow raises for what it did not write itself has no common kind.
            raise InputError(f"{self.path}: cannot be loaded: {one_line(error)[:300]}") from None

    @property
    def signatures(self) -> tuple[str, ...]:
        """The names of the model's functions."""
        return tuple(self.metadata["signatures"])

    def predict(self, features: Mapping[str, Any]) -> np.ndarray:
        """Predicts click probabilities, float32 [N], of N rows of raw values.

        Args:
            features: for each input of the model (``schema.inputs``) a list or an array of N values, or one value,
                which is then that of every row. Other columns are ignored.

        Raises:
            InputError: an input is absent, lengths differ, or a value is not one of its kind.
        """
        return self.score(features)["p"]

    def score(self, features: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Computes ``p`` and ``logit``, float32 [N], arguments as for ``predict``."""
        return self._functions["predict"](self._tensors("predict", features))

    def score_ids(self, packed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes ``p`` and ``logit``, float32 [N], of ids as a log holds them.

        Args:
            packed: ``ids``, [N, F], of the single-valued features; of each multivalent one ``NAME.values``, [V], row
                after row, and ``NAME.lengths``, int32 [N]. Ids are of ``schema.id_type``.
        """
        function = self._functions["predict_ids"]
        return function({name: tf.constant(packed[column]) for name, column in function.columns.items()})

    def quality(self, features: Mapping[str, Any]) -> np.ndarray:
        """Computes Q, float32 [N, n, K], of the Quality tower's columns; arguments as for ``predict``."""
        self._require_factors()
        return self._functions["quality"](self._tensors("quality", features))["Q"]

    def ui(self, features: Mapping[str, Any]) -> np.ndarray:
        """Computes U, float32 [N, n, K], of the UI tower's columns; arguments as for ``predict``.

        Rows that were asked for before come from the cache.
        """
        self._require_factors()
        if self._cache is None:
            return self._functions["ui"](self._tensors("ui", features))["U"]
        columns = self._columns("ui", features)
        keys = list(zip(*(_hashable(column) for column in columns.values()), strict=True))

        def compute(places: list[int]) -> np.ndarray:
            some = {
                source: column[places]
                if isinstance(column, np.ndarray)
                else [column[place] for place in places]
                for source, column in columns.items()
            }
            return self._functions["ui"](self._make_tensors("ui", some))["U"]

        return self._cache.get(keys, compute)

    def combine(self, quality: np.ndarray, ui: np.ndarray) -> np.ndarray:
        """Computes click probabilities, float32 [N], of Q and U row by row; a single row goes with each of the other.

        Args:
            quality: of ``quality``, float32 [N, n, K] or [1, n, K].
            ui: of ``ui``, float32 [N, n, K] or [1, n, K].
        """
        self._require_factors()
        return probabilities((quality * ui).sum(axis=2).T, self._transfers)

    def combine_pairs(self, quality: np.ndarray, ui: np.ndarray) -> np.ndarray:
        """Computes click probabilities, float32 [A, T], of each row of Q, [A, n, K], with each row of U, [T, n, K]."""
        self._require_factors()
        return probabilities(quality.transpose(1, 0, 2) @ ui.transpose(1, 2, 0), self._transfers)

    def _require_factors(self) -> None:
        if not self.factorized:
            raise InputError(
                f"{self.path}: the model is not factorized: it has only predict, not quality and ui"
            )

    def _tensors(self, signature: str, features: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        return self._make_tensors(signature, self._columns(signature, features, texts_as_they_are=True))

    def _columns(
        self, signature: str, features: Mapping[str, Any], texts_as_they_are: bool = False
    ) -> dict[str, Any]:
        """Converts the columns that a function takes: texts as lists, numbers as float32 arrays, times as int64 arrays.

        Texts become strings or bytes, unless ``texts_as_they_are``.
        """
        function = self._functions[signature]
        absent = [source for source in function.columns.values() if source not in features]
        if absent:
            raise InputError(
                f"{signature}: the column {absent[0]} is absent; required: {', '.join(function.columns.values())}"
            )
        rows = row_count({source: features[source] for source in function.columns.values()})
        columns: dict[str, Any] = {}
        for source in function.texts.values():
            column = as_list(features[source], rows)
            plain = texts_as_they_are or set(map(type, column)) <= {str}
            columns[source] = column if plain else make_texts(source, column, self._separators.get(source))
        for source in function.numbers.values():
            columns[source] = make_numbers(source, features[source], rows)
        for source in function.times.values():
            columns[source] = make_times(source, features[source], rows)
        return columns

    def _make_tensors(self, signature: str, columns: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        function = self._functions[signature]
        tensors = {
            name: tf.constant(columns[source])
            for name, source in (*function.numbers.items(), *function.times.items())
        }
        if function.texts:
            sources = list(function.texts.values())
            parts = tf.unstack(self._matrix(sources, [columns[source] for source in sources]))
            tensors |= dict(zip(function.texts, parts, strict=True))
        return tensors

    def _matrix(self, names: Sequence[str], columns: list[list[Any]]) -> tf.Tensor:
        """Makes one tensor [S, N] of all texts: a tensor for each column would take longer than a small model."""
        try:
            matrix = tf.constant(columns, tf.string)
            if matrix.shape.rank == 2:
                return matrix
        except (TypeError, ValueError):
            pass
        texts = [
            make_texts(name, column, self._separators.get(name))
            for name, column in zip(names, columns, strict=True)
        ]
        return tf.constant(texts, tf.string, shape=(len(texts), len(texts[0])))


def _update(variables: Sequence[tf.Variable], names: Sequence[str], chain: Chain) -> None:
    """Applies deltas to the variables of a loaded model."""
    named = dict(zip(names, variables, strict=True))
    weights = apply_deltas(chain, {name: variable.numpy() for name, variable in named.items()})
    for name, variable in named.items():
        variable.assign(weights[name])


def _hashable(column: Any) -> list[Any]:
    """Returns a column's values as parts of a key; numbers by their bits, since NaN does not equal itself."""
    if not isinstance(column, np.ndarray):
        return column
    if column.dtype == np.int64:
        return column.tolist()
    return np.where(np.isnan(column), np.float32(np.nan), column).view(np.int32).tolist()


class _Function:
    """A function of the model, called without the overhead that TensorFlow adds in Python.

    Attributes:
        columns: what each input is: its name -> a column of raw values or of ids.
        texts: those that are strings.
        numbers: those that are float32.
        times: those that are int64.
    """

    def __init__(self, signature: Any, inputs: Mapping[str, Mapping[str, Any]]) -> None:
        self.columns = {name: described["column"] for name, described in inputs.items()}
        self.texts = {name: self.columns[name] for name in inputs if inputs[name]["dtype"] == "string"}
        self.numbers = {name: self.columns[name] for name in inputs if inputs[name]["dtype"] == "float32"}
        self.times = {name: self.columns[name] for name in inputs if inputs[name]["dtype"] == "int64"}
        self._signature = signature
        specs = signature.structured_input_signature[1]
        recorded = {name: described["dtype"] for name, described in inputs.items()}
        if {name: spec.dtype.name for name, spec in specs.items()} != recorded:
            raise ValueError("the inputs of a function are not those that its description names")
        order = tuple(getattr(signature, "_arg_keywords", None) or ())
        # Keyword arguments are matched and checked one by one, which takes as long as scoring a row does.
        self._flat = getattr(signature, "_call_flat", None) if set(order) == set(inputs) else None
        self._order = order

    def __call__(self, tensors: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
        if self._flat is not None:
            outputs = self._flat([tensors[name] for name in self._order], self._signature.captured_inputs)
        else:
            outputs = self._signature(**tensors)
        return {key: value.numpy() for key, value in outputs.items()}
