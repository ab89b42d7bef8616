"""Beam combiners of the metrics' states: their input may be cut and merged anywhere between two queries."""

import io
from collections.abc import Iterable
from typing import Any, ClassVar

import apache_beam as beam
import numpy as np

from ctr.eval.arrays import IntArray
from ctr.eval.prediction_difference import JoinedPredictions, PredictionDifference
from ctr.eval.progressive import ProgressiveMetrics
from ctr.pipelines.evaluate.rows import Rows

State = ProgressiveMetrics | PredictionDifference


class JoinedDifference(PredictionDifference):
    """PD over joined predictions, and how many examples only the first or only the second set has (int64 [])."""

    LAYOUT: ClassVar = {
        **PredictionDifference.LAYOUT,
        "only_a": ((), np.int64),
        "only_b": ((), np.int64),
    }

    only_a: IntArray
    only_b: IntArray

    def add(self, joined: JoinedPredictions) -> None:
        """Add joined examples, of which each is given once."""
        self.update(joined.first, joined.second, joined.query_id)
        self.only_a += joined.only_first
        self.only_b += joined.only_second


class StateCoder(beam.coders.Coder):
    """State as a compressed ``.npz``: its 7 MB are mostly zeros, and travel between workers."""

    def __init__(self, kind: type[Any]) -> None:
        self._kind = kind

    def encode(self, value: State) -> bytes:
        file = io.BytesIO()
        np.savez_compressed(file, **value.to_arrays())  # type: ignore[arg-type]
        return file.getvalue()

    def decode(self, encoded: bytes) -> Any:
        with np.load(io.BytesIO(encoded), allow_pickle=False) as arrays:
            return self._kind.from_arrays(dict(arrays))

    def is_deterministic(self) -> bool:
        return False


class _StateFn(beam.CombineFn):
    """Combiner to a state, which merges with others of its class."""

    kind: ClassVar[type[Any]]

    def create_accumulator(self) -> Any:
        return self.kind()

    def merge_accumulators(self, accumulators: Iterable[Any]) -> Any:
        merged = self.kind()
        for accumulator in accumulators:
            merged.merge(accumulator)
        return merged

    def extract_output(self, accumulator: Any) -> Any:
        return accumulator

    def get_accumulator_coder(self) -> StateCoder:
        return StateCoder(self.kind)


class ProgressiveMetricsFn(_StateFn):
    """Combines batches of whole queries (`ROW` [N]) to their `ProgressiveMetrics`.

    A query must not be spread over two batches; batches may come in any order, and merge in any.
    """

    kind = ProgressiveMetrics

    def add_input(self, accumulator: ProgressiveMetrics, rows: Rows) -> ProgressiveMetrics:
        accumulator.update(rows["label"], rows["logit"], rows["weight"], rows["query_id"])
        return accumulator


class PredictionDifferenceFn(_StateFn):
    """Combines joined predictions of two sets to their `JoinedDifference`."""

    kind = JoinedDifference

    def add_input(self, accumulator: JoinedDifference, joined: JoinedPredictions) -> JoinedDifference:
        accumulator.add(joined)
        return accumulator
