"""An exported model for a few rows, without TensorFlow: ids in Python, everything else in NumPy.

The weights are those of the SavedModel's own files, mapped to memory; of a delta, those that it leads to. So a model
has no second copy of them in its folder, and a process that only asks for few rows has few pages of its tables.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ctr.data.row_ids import Ids, RowIds
from ctr.data.schema import Schema
from ctr.io.blas import one_blas_thread
from ctr.serving.combine import sigmoid, transfers_of
from ctr.serving.metadata import NETWORK
from ctr.serving.row_network import Inputs, RowNetwork
from ctr.serving.row_tables import RowTable

_ALL = ("quality", "ui")


class RowModel:
    """Functions of a model, with weights named as under ``network`` in the metadata; else KeyError or ValueError."""

    def __init__(
        self, metadata: Mapping[str, Any], schema: Schema, weights: Mapping[str, np.ndarray]
    ) -> None:
        described, model = metadata[NETWORK], metadata["model"]
        alpha2 = weights.get("alpha2", model["alpha2"])
        self._network = RowNetwork(
            described["architecture"], _dense(weights), float(alpha2), transfers_of(model)
        )
        self._tables = [
            RowTable(table, weights[f"rows/{table['name']}"], weights.get(f"keys/{table['name']}"))
            for table in described["tables"]
        ]
        self._ids = {
            "predict": RowIds(schema.only(name for table in self._tables for name in table.features)),
            **{
                tower: RowIds(schema.only(name for table in own for name in table.features))
                for tower in _ALL
                if (own := [table for table in self._tables if table.tower == tower])
            },
        }
        self._single, self._multivalent = schema.single_valued, schema.multivalent

    def call(self, name: str, columns: Mapping[str, Any], rows: int) -> dict[str, np.ndarray]:
        """Computes what a function does of N rows, or raises OtherWayError: a value is to be left to TensorFlow."""
        ids = self._ids[name](columns, rows)
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
        """The inputs of one tower, or of all."""
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


def _dense(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name: value
        for name, value in weights.items()
        if name != "alpha2" and not name.startswith(("rows/", "keys/"))
    }
