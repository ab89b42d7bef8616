"""Metrics of progressive validation, and the prediction difference, over files of predictions of any size.

The numbers are those of `ctr.eval` to rounding, the counts exactly. Rows are split by a hash of their query; grouped
by that hash in Beam, whole queries meet, whatever files and row groups they stood in; a key's rows are one batch of the
metrics' states, which merge. Elements are NumPy arrays of many rows, never single rows.

A fault is carried through the pipeline as data and raised at its end: a runner would retry what raises, and wrap the
one line that says what is wrong.
"""

# Beam types its classes, few of its functions.
# mypy: allow-untyped-calls

import contextlib
import io
import math
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from ctr.eval.arrays import IntArray
from ctr.eval.compare import compare, compared_records, same_examples
from ctr.eval.prediction_difference import JoinedPredictions, PredictionDifference
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.run_files import COMPARED
from ctr.io.documents import json_number
from ctr.io.errors import InputError
from ctr.pipelines.beam import read_beam_options, run_pipeline, runs_in_this_process
from ctr.pipelines.evaluate.rows import (
    Piece,
    RowGroup,
    count_learned,
    find_row_groups,
    gather,
    join_rows,
    part_by_day,
    read_row_group,
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


class StateFn(beam.CombineFn):
    """Combines batches to a state, which merges with others of its class.

    Batches are whole queries (`ROW` [N]) for `ProgressiveMetrics`, joined predictions for `JoinedDifference`. A query
    must not be spread over two batches; batches may come in any order, and merge in any.
    """

    def __init__(self, kind: type[Any]) -> None:
        super().__init__()
        self._kind = kind

    def create_accumulator(self) -> Any:
        return self._kind()

    def add_input(self, accumulator: Any, batch: Any) -> Any:
        if isinstance(accumulator, JoinedDifference):
            accumulator.add(batch)
        else:
            accumulator.update(batch["label"], batch["logit"], batch["weight"], batch["query_id"])
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[Any]) -> Any:
        merged = self._kind()
        for accumulator in accumulators:
            merged.merge(accumulator)
        return merged

    def extract_output(self, accumulator: Any) -> Any:
        return accumulator

    def get_accumulator_coder(self) -> StateCoder:
        return StateCoder(self._kind)


FAULT = "fault"  # the key of `metric_states` for the message of an error, empty without one

# The states of two sets; of one, only the first.
KINDS: dict[str, type[Any]] = {
    "a": ProgressiveMetrics,
    "b": ProgressiveMetrics,
    "difference": JoinedDifference,
}


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


def _split(group: RowGroup, side: str, keys: int, number: int, passes: int) -> Iterator[Any]:
    """Splits a row group into (key, (side, piece)) for the keys of this pass."""
    try:
        for source, rows in read_row_group(group):
            for key, part in split_by_query(rows, keys):
                if key % passes == number:
                    yield key, (side, (source, part))
    except InputError as error:
        yield beam.pvalue.TaggedOutput(FAULT, str(error))


def _gather(element: Any, sides: Sequence[str]) -> Iterator[Any]:
    """Gathers a key's pieces into the whole queries of each side and, with two sides, their joined rows."""
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


def metric_states(sides: Mapping[str, Any], keys: int, number: int = 0, passes: int = 1) -> Any:
    """Collect the states by name (`KINDS`), and `FAULT`, of one set of predictions, or of two with their difference.

    `sides` are collections of row groups, under ``a``, or under ``a`` and ``b``. Only keys that leave the remainder
    `number`, divided by `passes`, are taken.
    """
    split = {
        side: elements
        | f"Split {side}"
        >> beam.FlatMap(_split, side, keys, number, passes).with_outputs(FAULT, main="pieces")
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
        states[name] = gathered[name] | f"Combine {name}" >> beam.CombineGlobally(StateFn(KINDS[name]))
    join = beam.Map(
        lambda _, **values: values, **{name: beam.pvalue.AsSingleton(state) for name, state in states.items()}
    )
    return faults.pipeline | "Once" >> beam.Create([None]) | "Join" >> join


def _first_fault(faults: Iterable[str]) -> str:
    return min(filter(None, faults), default="")


# Rows that meet in one worker's memory, about 100 bytes each; a larger query meets whole all the same.
ROWS_PER_KEY = 1 << 20
# A runner inside this process groups so many at a time: it holds all of them in memory, about 100 bytes each.
ROWS_PER_PASS = 1 << 23


def evaluate(
    inputs: Sequence[Path],
    beam_options: Sequence[str] = (),
    *,
    by_day: bool = False,
    rows_per_key: int = ROWS_PER_KEY,
    rows_per_pass: int | None = None,
) -> dict[str, Any]:
    """Measure recorded predictions: Parquet files, folders of them, and run directories.

    Returns `ProgressiveMetrics.summary`; no feature is recorded, so ``calibration_slices`` is empty. Where predictions
    were made with further labels, ``labels`` has the same of each, over the rows of which it is known. Where `ctr
    score` has marked the rows that the model has learned from also ``training``, see `count_learned`, and, where there
    are both kinds, ``new``: the summary of the rows not learned from. With ``by_day`` also ``days``: the
    summary of each day of query times, in UTC, by its date.

    Files are read once for each pass over ``rows_per_pass`` rows: by default `ROWS_PER_PASS` for a runner that groups
    in memory, such as that inside this process, and all rows for any other. ``rows_per_key`` are to meet in memory.
    Raises InputError: no predictions, a faulty file or row, a repeated example_id, or unknown Beam options.
    """
    groups = find_row_groups(inputs)
    _require_labels(groups)

    def summary_of(part: Sequence[RowGroup]) -> dict[str, Any]:
        summary: dict[str, Any] = _run({"a": part}, beam_options, rows_per_key, rows_per_pass)["a"].summary()
        return summary

    summary = summary_of(groups)
    if by_day:
        summary["days"] = {day: summary_of(of_day) for day, of_day in part_by_day(groups).items()}
    for name in dict.fromkeys(name for group in groups for name in group.outcomes):
        labeled = [replace(group, outcome=name) for group in groups if name in group.outcomes]
        summary.setdefault("labels", {})[name] = summary_of(labeled)
    training = count_learned(groups)
    if training is None:
        return summary
    summary["training"] = training
    if training["learned_rows"] and training["new_rows"]:
        summary["new"] = summary_of([replace(group, new=True) for group in groups if group.marked])
    return summary


def evaluate_difference(
    inputs_a: Sequence[Path],
    inputs_b: Sequence[Path],
    beam_options: Sequence[str] = (),
    *,
    rows_per_key: int = ROWS_PER_KEY,
    rows_per_pass: int | None = None,
) -> dict[str, Any]:
    """Compare two sets of predictions, a the baseline, joined by query_id and example_id (FF section 5).

    Takes the arguments of `evaluate`; the output of `ctr score` for a log is allowed.

    Returns:
        ``baseline``: a. ``predictions``: the paths of both. ``a`` and ``b``: the summaries of both, without metrics
        where there are no labels, with ``training`` as in `evaluate`. ``prediction_difference``:
        ``value``, ``ci95``, ``examples`` of both, ``only_a``, ``only_b``. ``metrics``: by metric ``a``, ``b``,
        ``difference``, ``ci95`` (paired), ``relative_percent``, ``significant`` (None: no interval), ``no_interval``
        (why; else None); None where the sets do not hold the same labeled examples.

    Raises:
        InputError: as `evaluate`, except that labels may be absent from all files of a set.
    """
    sides = {"a": find_row_groups(inputs_a), "b": find_row_groups(inputs_b)}
    for groups in sides.values():
        if any(group.labeled for group in groups):
            _require_labels(groups)
    paths = {side: [str(path) for path in inputs] for side, inputs in (("a", inputs_a), ("b", inputs_b))}
    result = difference_of(_run(sides, beam_options, rows_per_key, rows_per_pass))
    for side, groups in sides.items():
        if (training := count_learned(groups)) is not None:
            result[side]["training"] = training
    return {"baseline": "a", "predictions": paths, **result}


def _require_labels(groups: Sequence[RowGroup]) -> None:
    for group in groups:
        if not group.labeled:
            raise InputError(
                f"{group.path}: no columns label and metric_weight, which the metrics require; allowed: the "
                "predictions of `ctr train`, and those of `ctr score` for a log with labels; those without labels can "
                "be compared with others"
            )


def _run(
    sides: Mapping[str, Sequence[RowGroup]],
    beam_options: Sequence[str],
    rows_per_key: int,
    rows_per_pass: int | None,
) -> dict[str, Any]:
    options = read_beam_options(beam_options)
    rows = sum(group.rows for groups in sides.values() for group in groups)
    if rows_per_pass is None:
        rows_per_pass = ROWS_PER_PASS if runs_in_this_process(options) else max(rows, 1)
    passes = max(1, math.ceil(rows / rows_per_pass))
    keys = max(passes, math.ceil(rows / rows_per_key))
    names = list(sides) if len(sides) == 1 else list(KINDS)
    merged: dict[str, Any] = {name: KINDS[name]() for name in names}
    for number in range(passes):
        for name, state in _run_pass(sides, options, keys, number, passes).items():
            merged[name].merge(state)
    return merged


def _run_pass(
    sides: Mapping[str, Sequence[RowGroup]], options: PipelineOptions, keys: int, number: int, passes: int
) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        # Runners on other machines leave the result where both can reach it.
        folder = options.get_all_options().get("temp_location") or stack.enter_context(
            tempfile.TemporaryDirectory(prefix="ctr-evaluate-")
        )
        path = FileSystems.join(folder, f"ctr-evaluate-{secrets.token_hex(8)}.npz")

        def build(pipeline: beam.Pipeline) -> None:
            elements = {
                side: pipeline
                | f"Row groups {side}" >> beam.Create(list(groups))
                | f"Spread {side}" >> beam.Reshuffle()
                for side, groups in sides.items()
            }
            states = metric_states(elements, keys, number, passes)
            _ = states | "Write" >> beam.Map(_write_states, path)

        run_pipeline(options, build)
        return _read_states(path)


def _write_states(states: Mapping[str, Any], path: str) -> None:
    arrays = {FAULT: np.array(states[FAULT])}
    for name, state in states.items():
        if name != FAULT:
            arrays |= {f"{name}/{key}": array for key, array in state.to_arrays().items()}
    # Made whole in memory first: an archive needs to seek, which not every file system does.
    with FileSystems.create(path) as file:
        file.write(npz_bytes(arrays))


def _read_states(path: str) -> dict[str, Any]:
    if not FileSystems.exists(path):
        raise InputError(
            f"--beam-options: the runner's workers left no result at {path}; --temp_location must be a folder that "
            "they and this process share"
        )
    with FileSystems.open(path) as file:
        content = io.BytesIO(file.read())
    FileSystems.delete([path])
    by_state: dict[str, dict[str, Any]] = {}
    with np.load(content, allow_pickle=False) as arrays:
        if fault := str(arrays[FAULT]):
            raise InputError(fault)
        for key in arrays.files:
            name, _, rest = key.partition("/")
            if rest:
                by_state.setdefault(name, {})[rest] = arrays[key]
    return {name: KINDS[name].from_arrays(state_arrays) for name, state_arrays in by_state.items()}
