"""Beam transforms from predictions to their metrics, and to those of two sets.

Rows are parted by a hash of their query; grouped by that hash, whole queries meet, whatever files and row groups they
stood in; a key's rows are one batch of the metrics' states, which merge. Elements are NumPy arrays of many rows, never
single rows.

A fault is carried through the pipeline as data and raised at its end: a runner would retry what raises, and wrap the
one line that says what is wrong.
"""

# Beam types its classes, few of its functions.
# mypy: allow-untyped-calls

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import apache_beam as beam
import numpy as np

from ctr.eval.arrays import IntArray
from ctr.eval.compare import compare, compared_records, same_examples
from ctr.eval.prediction_difference import JoinedPredictions, PredictionDifference
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.run_files import COMPARED
from ctr.io.documents import json_number
from ctr.io.errors import InputError
from ctr.pipelines.evaluate.rows import (
    Piece,
    Rows,
    gather,
    join_rows,
    split_by_query,
)

State = ProgressiveMetrics | PredictionDifference


class JoinedDifference(PredictionDifference):
    """PD over joined predictions, and how many examples only the first or only the second set has (int64 [])."""

    LAYOUT: ClassVar = {**PredictionDifference.LAYOUT, "only_a": ((), np.int64), "only_b": ((), np.int64)}

    only_a: IntArray
    only_b: IntArray

    def add(self, joined: JoinedPredictions) -> None:
        """Add joined examples, of which each is given once."""
        self.update(joined.first, joined.second, joined.query_id)
        self.only_a += joined.only_first
        self.only_b += joined.only_second


def npz_bytes(arrays: Mapping[str, Any]) -> bytes:
    """Packs arrays as a compressed ``.npz``: the 7 MB of a state are mostly zeros, and travel between workers."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


class StateCoder(beam.coders.Coder):
    """State as the bytes of its arrays."""

    def __init__(self, kind: type[Any]) -> None:
        self._kind = kind

    def encode(self, value: State) -> bytes:
        return npz_bytes(value.to_arrays())

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


FAULT = "fault"  # the key of `metric_states` for the message of an error, empty without one

# The states of two sets; of one, only the first.
KINDS: dict[str, type[Any]] = {
    "a": ProgressiveMetrics,
    "b": ProgressiveMetrics,
    "difference": JoinedDifference,
}

Reader = Callable[[Any], Iterable[Piece]]  # gives the checked rows of an element


def difference_of(states: Mapping[str, Any]) -> dict[str, Any]:
    """Make what `evaluate_difference` returns of the states of `KINDS`."""
    a, b, joined = states["a"], states["b"], states["difference"]
    estimate = joined.estimate()
    same = not joined.only_a and not joined.only_b and same_examples(a, b)
    metrics = None
    if same and a.logloss.class_weight.any():
        metrics = compared_records(compare(a, b).loc[list(COMPARED)])
    return {
        "a": a.summary(),
        "b": b.summary(),
        "prediction_difference": {
            "value": json_number(estimate.point),
            "ci95": [json_number(end) for end in estimate.interval()],
            "examples": int(joined.examples.sum()),
            "only_a": int(joined.only_a),
            "only_b": int(joined.only_b),
        },
        "metrics": metrics,
    }


def _split(element: Any, side: str, read: Reader, keys: int, number: int, passes: int) -> Iterator[Any]:
    """An element that `read` understands -> (key, (side, piece)); of the keys, those of this pass."""
    try:
        for source, rows in read(element):
            for key, part in split_by_query(rows, keys):
                if key % passes == number:
                    yield key, (side, (source, part))
    except InputError as error:
        yield beam.pvalue.TaggedOutput(FAULT, str(error))


def _gather(element: Any, sides: Sequence[str]) -> Iterator[Any]:
    """(key, pieces of each side) -> the whole queries of each side; and, with two, their joined rows."""
    held: dict[str, list[Piece]] = {side: [] for side in sides}
    for side, piece in element[1]:
        held[side].append(piece)
    try:
        whole = {side: gather(pieces) for side, pieces in held.items()}
    except InputError as error:
        yield beam.pvalue.TaggedOutput(FAULT, str(error))
        return
    for side, rows in whole.items():
        yield beam.pvalue.TaggedOutput(side, rows)
    if len(whole) > 1:
        yield beam.pvalue.TaggedOutput("difference", join_rows(whole["a"], whole["b"]))


def metric_states(sides: Mapping[str, Any], read: Reader, keys: int, number: int = 0, passes: int = 1) -> Any:
    """Collect the states by name (`KINDS`), and `FAULT`, of one set of predictions, or of two with their difference.

    `sides` are collections of elements that `read` understands, under ``a``, or under ``a`` and ``b``. Only keys that
    leave the remainder `number`, divided by `passes`, are taken.
    """
    split = {
        side: elements
        | f"Split {side}"
        >> beam.FlatMap(_split, side, read, keys, number, passes).with_outputs(FAULT, main="pieces")
        for side, elements in sides.items()
    }
    names = list(sides) if len(sides) == 1 else list(KINDS)
    gathered = (
        tuple(part["pieces"] for part in split.values())
        | "Pieces" >> beam.Flatten()
        | "Meet" >> beam.GroupByKey()
        | "Gather" >> beam.FlatMap(_gather, list(sides)).with_outputs(FAULT, *names)
    )
    faults = (gathered[FAULT], *(part[FAULT] for part in split.values())) | "Faults" >> beam.Flatten()
    states = {FAULT: faults | "First fault" >> beam.CombineGlobally(_first_fault)}
    for name in names:
        combine = PredictionDifferenceFn() if name == "difference" else ProgressiveMetricsFn()
        states[name] = gathered[name] | f"Combine {name}" >> beam.CombineGlobally(combine)
    join = beam.Map(
        lambda _, **found: found, **{name: beam.pvalue.AsSingleton(state) for name, state in states.items()}
    )
    return faults.pipeline | "Once" >> beam.Create([None]) | "Join" >> join


def _first_fault(faults: Iterable[str]) -> str:
    return min(filter(None, faults), default="")
