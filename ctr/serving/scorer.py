"""Scores with an exported model inside one Python process.

Needs the exported folder and TensorFlow alone: nothing of the trainer, no Keras.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ctr.errors import InputError
from ctr.serving.metadata import check_files, find_model, model_schema, read_metadata
from ctr.serving.raw_values import as_list, make_numbers, make_texts, row_count, separators

_LOADING_FAULTS = (OSError, ValueError, KeyError, AttributeError, TypeError, tf.errors.OpError)


class Scorer:
    """The functions of an exported model on Python's values.

    Args:
        path: the model's folder, or a folder of versions, of which the newest is taken.

    Attributes:
        path: the model's folder.
        metadata: the content of ctr.json.
        schema: the features.

    Raises:
        InputError: no model, or a damaged one.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = find_model(Path(path))
        self.metadata = read_metadata(self.path)
        check_files(self.path, self.metadata)
        self.schema = model_schema(self.metadata, self.path)
        self._separators = separators(self.schema)
        try:
            # Functions are held by the loaded object.
            self._loaded = tf.saved_model.load(str(self.path))
            self._functions = {
                name: _Function(self._loaded.signatures[name], described["inputs"])
                for name, described in self.metadata["signatures"].items()
            }
        except _LOADING_FAULTS as error:
            raise InputError(f"{self.path}: cannot be loaded: {' '.join(str(error).split())[:300]}") from None

    @property
    def signatures(self) -> tuple[str, ...]:
        """The names of the model's functions."""
        return tuple(self.metadata["signatures"])

    def predict(self, features: Mapping[str, Any]) -> np.ndarray:
        """Click probabilities, float32 [N], of N rows of raw values.

        Args:
            features: for each source column of the schema a list or an array of N values, or one value, which is then
                that of every row. Other columns are ignored.

        Raises:
            InputError: a source is absent, lengths differ, or a value is not one of its kind.
        """
        return self.score(features)["p"]

    def score(self, features: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """``p`` and ``logit``, float32 [N], arguments as of ``predict``."""
        return self._functions["predict"](self._tensors("predict", features))

    def score_ids(self, packed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """``p`` and ``logit``, float32 [N], of ids as a log holds them.

        Args:
            packed: ``ids``, int32 [N, F], of the single-valued features; of each multivalent one ``NAME.values``,
                int32 [V], row after row, and ``NAME.lengths``, int32 [N].
        """
        function = self._functions["predict_ids"]
        return function({name: tf.constant(packed[column]) for name, column in function.columns.items()})

    def _tensors(self, signature: str, features: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        function = self._functions[signature]
        absent = [source for source in function.columns.values() if source not in features]
        if absent:
            raise InputError(
                f"{signature}: the column {absent[0]} is absent; needed are {', '.join(function.columns.values())}"
            )
        rows = row_count({source: features[source] for source in function.columns.values()})
        tensors = {
            name: tf.constant(make_numbers(source, features[source], rows))
            for name, source in function.numbers.items()
        }
        if function.texts:
            sources = list(function.texts.values())
            parts = tf.unstack(self._matrix(sources, [as_list(features[source], rows) for source in sources]))
            tensors |= dict(zip(function.texts, parts, strict=True))
        return tensors

    def _matrix(self, names: Sequence[str], columns: list[list[Any]]) -> tf.Tensor:
        """All texts as one tensor [S, N], since a tensor for each column would take longer than a small model."""
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


class _Function:
    """A function of the model, called without what Python adds to each call.

    Attributes:
        columns: what each input is: its name -> a column of raw values or of ids.
        texts: those that are strings.
        numbers: those that are float32.
    """

    def __init__(self, signature: Any, inputs: Mapping[str, Mapping[str, Any]]) -> None:
        self.columns = {name: described["column"] for name, described in inputs.items()}
        self.texts = {name: self.columns[name] for name in inputs if inputs[name]["dtype"] == "string"}
        self.numbers = {name: self.columns[name] for name in inputs if inputs[name]["dtype"] == "float32"}
        self._signature = signature
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
