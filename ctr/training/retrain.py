"""Retrains: runs with the same model, settings, seed and log, except for an effect that varies in production (FF 5).

Two retrains differ in their predictions as much as equal models on different hardware do in production.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from ctr.config import StrictModel
from ctr.io.hashing import uniform_hash

if TYPE_CHECKING:
    # Reading a configuration must not load the modules that read a log.
    from ctr.data.batches import Batch


class RetrainConfig(StrictModel):
    """One small change of the training, all else being equal. Null: none.

    Attributes:
        kind: ``rounding``: each initial dense weight but 0 is moved by one unit in its last place, up or down.
            ``order``: the rows of each query come in random order, so that sums are rounded differently. ``drop_rows``:
            a share of the queries is scored, and not learned from.
        number: two retrains of one kind with different numbers draw independently.
        share: the share of the queries that ``drop_rows`` leaves out.
    """

    kind: Literal["rounding", "order", "drop_rows"]
    number: int = Field(default=1, ge=0)
    share: float = Field(default=1e-4, gt=0, le=1)

    @property
    def salt(self) -> str:
        return f"retrain {self.kind} {self.number}"


def initial_weights(
    weights: Mapping[str, np.ndarray], retrain: RetrainConfig | None
) -> dict[str, np.ndarray]:
    """Returns the initial dense weights of a retrain, float32; weights of 0 are unchanged."""
    if retrain is None or retrain.kind != "rounding":
        return {**weights}
    return {name: _moved(np.asarray(value), f"{retrain.salt} {name}") for name, value in weights.items()}


def _moved(values: np.ndarray, salt: str) -> np.ndarray:
    draws = uniform_hash(np.arange(values.size), salt).reshape(values.shape)
    moved = np.nextafter(values, np.where(draws < 0.5, -np.inf, np.inf).astype(values.dtype))
    return np.where(values == 0, values, moved)


def learned_batch(batch: "Batch", retrain: RetrainConfig | None) -> "Batch":
    """Returns a batch in the form that a retrain learns from, with the same rows and positions in the log."""
    if retrain is None or retrain.kind == "rounding" or not len(batch.rows):
        return batch
    rows = batch.rows
    if retrain.kind == "drop_rows":
        is_learned = uniform_hash(rows.query_id, retrain.salt) >= retrain.share
        weight = np.where(is_learned, rows.train_weight, np.float32(0))
        return replace(batch, rows=replace(rows, train_weight=weight))
    begins = np.zeros(len(rows), np.int64)
    begins[rows.query_begins()[1:]] = 1
    order = np.lexsort([uniform_hash(rows.example_id, retrain.salt), np.cumsum(begins)])
    # Positions stay in order: a batch begins and ends where it did.
    return replace(batch, rows=replace(rows.take(order), position=rows.position))
