"""Graph of an exported model in TensorFlow, called without the overhead that TensorFlow adds in Python."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ctr.io.errors import InputError, one_line
from ctr.serving.delta import Weights
from ctr.serving.inputs import FunctionInputs
from ctr.serving.metadata import Chain
from ctr.serving.model_check import check_model
from ctr.serving.raw_values import make_texts


class Program:
    """A loaded graph; ``weights``, in the order of its variables, replace those of the full model.

    Raises:
        InputError: it cannot be loaded, or could do more than compute (``ctr.serving.model_check``).
    """

    def __init__(self, chain: Chain, inputs: Mapping[str, FunctionInputs], weights: Weights | None) -> None:
        check_model(chain.full)
        try:
            # Functions are held by the loaded object.
            self._loaded = tf.saved_model.load(str(chain.full))
            if weights is not None:
                for variable, value in zip(self._loaded.weights, weights.values(), strict=True):
                    variable.assign(value)
            self._functions = {
                name: _Function(self._loaded.signatures[name], described)
                for name, described in inputs.items()
            }
        except InputError:
            raise
        except Exception as error:
            # What TensorFlow raises for what it did not write itself has no common kind.
            raise InputError(f"{chain.model}: cannot be loaded: {one_line(error)[:300]}") from None

    def __call__(
        self, name: str, columns: Mapping[str, Any], separators: Mapping[str, str | None]
    ) -> dict[str, np.ndarray]:
        function = self._functions[name]
        inputs = function.inputs
        tensors = {
            key: tf.constant(columns[source])
            for key, source in (*inputs.numbers.items(), *inputs.times.items())
        }
        if inputs.texts:
            sources = list(inputs.texts.values())
            parts = tf.unstack(_matrix(sources, [columns[source] for source in sources], separators))
            tensors |= dict(zip(inputs.texts, parts, strict=True))
        return function(tensors)

    def score_ids(self, packed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        function = self._functions["predict_ids"]
        return function({key: tf.constant(packed[column]) for key, column in function.inputs.columns.items()})


def _matrix(
    names: Sequence[str], columns: list[list[Any]], separators: Mapping[str, str | None]
) -> tf.Tensor:
    """One tensor [S, N] of all texts: a tensor for each column would take longer than a small model."""
    try:
        matrix = tf.constant(columns, tf.string)
        if matrix.shape.rank == 2:
            return matrix
    except (TypeError, ValueError):
        pass
    texts = [
        make_texts(name, column, separators.get(name)) for name, column in zip(names, columns, strict=True)
    ]
    return tf.constant(texts, tf.string, shape=(len(texts), len(texts[0])))


class _Function:
    def __init__(self, signature: Any, inputs: FunctionInputs) -> None:
        self.inputs = inputs
        self._signature = signature
        specs = signature.structured_input_signature[1]
        if {name: spec.dtype.name for name, spec in specs.items()} != inputs.dtypes:
            raise ValueError("the inputs of a function are not those that its description names")
        order = tuple(getattr(signature, "_arg_keywords", None) or ())
        # Keyword arguments are matched and checked one by one, which takes as long as scoring a row does.
        self._flat = getattr(signature, "_call_flat", None) if set(order) == set(inputs.dtypes) else None
        self._order = order

    def __call__(self, tensors: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
        if self._flat is not None:
            outputs = self._flat([tensors[name] for name in self._order], self._signature.captured_inputs)
        else:
            outputs = self._signature(**tensors)
        return {key: value.numpy() for key, value in outputs.items()}
