"""The metrics of progressive validation, and the prediction difference, over predictions of any number.

The numbers are those of `ctr.eval` to rounding, the counts exactly. Rows are read a row group at a time and
parted by a hash of their query; grouped by that hash, whole queries meet, whatever files and row groups they
stood in; a key's rows are one batch of the metrics' states, which merge. Elements are NumPy arrays of many
rows, never single rows.

A fault is carried through the pipeline as data and raised at its end: a runner would retry what raises, and
wrap the one line that says what is wrong.
"""

# Beam types its classes, few of its functions.
# mypy: allow-untyped-calls

import contextlib
import io
import math
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from ctr.errors import InputError
from ctr.eval.compare import compare, same_examples
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.run_files import METRICS
from ctr.pipelines.evaluate_combine import JoinedDifference, PredictionDifferenceFn, ProgressiveMetricsFn
from ctr.pipelines.evaluate_rows import (
    Piece,
    RowGroup,
    check_columns,
    checked_rows,
    find_row_groups,
    gather,
    join_rows,
    read_row_group,
    split_by_query,
)

ROWS_PER_KEY = 1 << 20
"""Rows that meet in one worker's memory, about 100 bytes each; a larger query meets whole all the same."""

ROWS_PER_PASS = 1 << 24
"""Rows that a runner inside this process groups at a time: it holds all of them in memory."""

TABLE_KEYS = 256
"""Keys for tables whose number of rows is not known beforehand."""

_IN_MEMORY = ("FnApiRunner", "DirectRunner", "BundleBasedDirectRunner")
_FAULT = "fault"
_KINDS: dict[str, type[Any]] = {
    "a": ProgressiveMetrics,
    "b": ProgressiveMetrics,
    "difference": JoinedDifference,
}

Reader = Callable[[Any], Iterable[Piece]]


class SummarizePredictions(beam.PTransform[Any, Any]):
    """Tables of predictions -> one dict, `ProgressiveMetrics.summary` of all their rows.

    The tables (`pa.Table`, N rows each, in any order, a query's rows in any of them; what
    `beam.io.ReadFromParquetBatched` gives) have the columns example_id, query_id (int64), logit, metric_weight
    and label. Bounded and in the global window.

        summary = pipeline | beam.io.ReadFromParquetBatched(pattern) | SummarizePredictions()

    The pipeline fails with an InputError on a missing column, a value that is not allowed, or a repeated
    example_id.
    """

    def __init__(self, keys: int = TABLE_KEYS) -> None:
        """Group queries by `keys` keys, of which each is to fit into a worker's memory."""
        super().__init__()
        self._keys = keys

    def expand(self, tables: Any) -> Any:
        """The summary of `tables`."""
        found = _states({"a": tables}, _labelled_table, self._keys)
        return found | beam.Map(lambda states: _raised(states)["a"].summary())


class ComparePredictions(beam.PTransform[Any, Any]):
    """Two sets of tables of predictions -> one dict, as `evaluate_difference` returns it.

        compared = {"a": tables_a, "b": tables_b} | ComparePredictions()

    The tables are those of `SummarizePredictions`; label and metric_weight may both be absent, and then no
    metric of that set is defined.
    """

    def __init__(self, keys: int = TABLE_KEYS) -> None:
        """Group queries by `keys` keys, of which each is to fit into a worker's memory."""
        super().__init__()
        self._keys = keys

    def expand(self, tables: Mapping[str, Any]) -> Any:
        """The comparison of the sets ``a`` and ``b``."""
        found = _states({side: tables[side] for side in ("a", "b")}, _table, self._keys)
        return found | beam.Map(lambda states: _difference(_raised(states)))


def evaluate(
    inputs: Sequence[Path],
    beam_options: Sequence[str] = (),
    *,
    rows_per_key: int = ROWS_PER_KEY,
    rows_per_pass: int | None = None,
) -> dict[str, Any]:
    """The metrics of recorded predictions.

    Args:
        inputs: Parquet files, folders of them, and run directories.
        beam_options: as on Beam's command line, ``--runner=...``; the runner inside this process by default.
        rows_per_key: rows that are to meet in memory.
        rows_per_pass: rows grouped at a time, the files being read once for each pass; `ROWS_PER_PASS` by
            default for a runner that groups in memory, all for any other.

    Returns:
        `ProgressiveMetrics.summary`; no feature is recorded, so ``calibration_slices`` is empty.

    Raises:
        InputError: no predictions, a faulty file or row, a repeated example_id, or unknown Beam options.
    """
    groups = find_row_groups(inputs)
    _require_labels(groups)
    found = _run({"a": groups}, beam_options, rows_per_key, rows_per_pass)
    summary: dict[str, Any] = found["a"].summary()
    return summary


def evaluate_difference(
    inputs_a: Sequence[Path],
    inputs_b: Sequence[Path],
    beam_options: Sequence[str] = (),
    *,
    rows_per_key: int = ROWS_PER_KEY,
    rows_per_pass: int | None = None,
) -> dict[str, Any]:
    """The prediction difference of two sets of predictions, joined by query_id and example_id (FF section 5).

    Args:
        inputs_a: the set to compare with, as in `evaluate`; what `ctr score` writes for a log is allowed.
        inputs_b: the set under study.
        beam_options: as in `evaluate`.
        rows_per_key: as there.
        rows_per_pass: as there.

    Returns:
        ``a`` and ``b``: the summaries of both, without metrics where there are no labels. ``prediction_difference``:
        ``value``, ``ci95``, ``examples`` of both, ``only_a``, ``only_b``. ``metrics``: by metric ``a``, ``b``,
        ``difference``, ``ci95`` (paired), ``relative_percent``, ``significant``; None where the sets do not hold
        the same labelled examples.

    Raises:
        InputError: as `evaluate`, except that labels may be absent from all files of a set.
    """
    sides = {"a": find_row_groups(inputs_a), "b": find_row_groups(inputs_b)}
    for groups in sides.values():
        if any(group.labelled for group in groups):
            _require_labels(groups)
    return _difference(_run(sides, beam_options, rows_per_key, rows_per_pass))


def _require_labels(groups: Sequence[RowGroup]) -> None:
    for group in groups:
        if not group.labelled:
            raise InputError(
                f"{group.path}: no column label and metric_weight, so there is nothing to measure by; allowed: the "
                "predictions of `ctr train`; those of `ctr score` can be compared with others"
            )


def _difference(states: Mapping[str, Any]) -> dict[str, Any]:
    a, b, joined = states["a"], states["b"], states["difference"]
    estimate = joined.estimate()
    labelled = a.logloss.class_weight.any() and same_examples(a, b)
    return {
        "a": a.summary(),
        "b": b.summary(),
        "prediction_difference": {
            "value": _json_number(estimate.point),
            "ci95": [_json_number(end) for end in estimate.interval()],
            "examples": int(joined.examples.sum()),
            "only_a": int(joined.only_a),
            "only_b": int(joined.only_b),
        },
        "metrics": _paired(a, b) if labelled else None,
    }


def _paired(a: ProgressiveMetrics, b: ProgressiveMetrics) -> dict[str, Any]:
    table = compare(a, b).loc[list(METRICS)]
    return {
        str(metric): {
            **{key: _json_number(row[key]) for key in ("a", "b", "difference")},
            "ci95": [_json_number(row["ci95_low"]), _json_number(row["ci95_high"])],
            "relative_percent": _json_number(row["relative_percent"]),
            "significant": bool(row["significant"]),
        }
        for metric, row in table.iterrows()
    }


def _json_number(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _labelled_table(table: pa.Table) -> Iterator[Piece]:
    name = "table of predictions"
    if not check_columns(name, table.schema):
        raise InputError(f"{name}: no column label, metric_weight; the columns are {table.column_names}")
    yield name, checked_rows(name, table, True)


def _table(table: pa.Table) -> Iterator[Piece]:
    name = "table of predictions"
    yield name, checked_rows(name, table, check_columns(name, table.schema))


class _Split(beam.DoFn):
    """Elements that `read` understands -> (key, (side, piece)); of the keys, those of this pass."""

    def __init__(self, side: str, read: Reader, keys: int, number: int, passes: int) -> None:
        self._side, self._read, self._keys = side, read, keys
        self._number, self._passes = number, passes

    def process(self, element: Any) -> Iterator[Any]:
        try:
            for source, rows in self._read(element):
                for key, part in split_by_query(rows, self._keys):
                    if key % self._passes == self._number:
                        yield key, (self._side, (source, part))
        except InputError as error:
            yield beam.pvalue.TaggedOutput(_FAULT, str(error))


class _Gather(beam.DoFn):
    """(key, pieces of each side) -> the whole queries of each side; and, with two, their joined rows."""

    def __init__(self, sides: Sequence[str]) -> None:
        self._sides = tuple(sides)

    def process(self, element: Any) -> Iterator[Any]:
        held: dict[str, list[Piece]] = {side: [] for side in self._sides}
        for side, piece in element[1]:
            held[side].append(piece)
        try:
            whole = {side: gather(pieces) for side, pieces in held.items()}
        except InputError as error:
            yield beam.pvalue.TaggedOutput(_FAULT, str(error))
            return
        for side, rows in whole.items():
            yield beam.pvalue.TaggedOutput(side, rows)
        if len(whole) > 1:
            yield beam.pvalue.TaggedOutput("difference", join_rows(whole["a"], whole["b"]))


def _states(sides: Mapping[str, Any], read: Reader, keys: int, number: int = 0, passes: int = 1) -> Any:
    """One dict: the states by name (`_KINDS`), and under ``fault`` a line, empty when all is well."""
    split = {
        side: elements
        | f"Split {side}"
        >> beam.ParDo(_Split(side, read, keys, number, passes)).with_outputs(_FAULT, main="pieces")
        for side, elements in sides.items()
    }
    names = list(sides) if len(sides) == 1 else list(_KINDS)
    gathered = (
        tuple(part["pieces"] for part in split.values())
        | "Pieces" >> beam.Flatten()
        | "Meet" >> beam.GroupByKey()
        | "Gather" >> beam.ParDo(_Gather(list(sides))).with_outputs(_FAULT, *names)
    )
    faults = (gathered[_FAULT], *(part[_FAULT] for part in split.values())) | "Faults" >> beam.Flatten()
    states = {_FAULT: faults | "First fault" >> beam.CombineGlobally(_first_fault)}
    for name in names:
        combine = PredictionDifferenceFn() if name == "difference" else ProgressiveMetricsFn()
        states[name] = gathered[name] | f"Combine {name}" >> beam.CombineGlobally(combine)
    return (
        faults.pipeline
        | "Once" >> beam.Create([None])
        | "Join"
        >> beam.Map(
            lambda _, **found: found,
            **{name: beam.pvalue.AsSingleton(state) for name, state in states.items()},
        )
    )


def _first_fault(faults: Iterable[str]) -> str:
    return min((fault for fault in faults if fault), default="")


def _raised(states: dict[str, Any]) -> dict[str, Any]:
    if states[_FAULT]:
        raise InputError(states[_FAULT])
    return states


def _run(
    sides: Mapping[str, Sequence[RowGroup]],
    beam_options: Sequence[str],
    rows_per_key: int,
    rows_per_pass: int | None,
) -> dict[str, Any]:
    """The states over all row groups, by name."""
    options = _options(beam_options)
    runner = options.view_as(StandardOptions).runner
    rows = sum(group.rows for groups in sides.values() for group in groups)
    if rows_per_pass is None:
        rows_per_pass = ROWS_PER_PASS if runner.rpartition(".")[2] in _IN_MEMORY else max(rows, 1)
    passes = max(1, math.ceil(rows / rows_per_pass))
    keys = max(passes, math.ceil(rows / rows_per_key))
    names = list(sides) if len(sides) == 1 else list(_KINDS)
    merged: dict[str, Any] = {name: _KINDS[name]() for name in names}
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
        pipeline = _pipeline(options)
        elements = {
            side: pipeline
            | f"Row groups {side}" >> beam.Create(list(groups))
            | f"Spread {side}" >> beam.Reshuffle()
            for side, groups in sides.items()
        }
        found = _states(elements, read_row_group, keys, number, passes)
        _ = found | "Write" >> beam.Map(_write_states, path)
        pipeline.run().wait_until_finish()
        return _read_states(path)


def _options(given: Sequence[str]) -> PipelineOptions:
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            options = PipelineOptions(list(given))
            options.get_all_options()
    except SystemExit:
        last = complaint.getvalue().strip().rpartition("error: ")[2]
        raise InputError(f"Beam options {' '.join(given)}: {last}") from None
    standard = options.view_as(StandardOptions)
    if standard.runner is None:
        # Beam's own default may look for a runner on the network.
        standard.runner = "FnApiRunner"
    return options


def _pipeline(options: PipelineOptions) -> beam.Pipeline:
    try:
        return beam.Pipeline(options=options)
    except (ValueError, ImportError, AttributeError) as error:
        raise InputError(f"Beam options: {' '.join(str(error).split())}") from None


def _write_states(states: Mapping[str, Any], path: str) -> None:
    arrays = {_FAULT: np.array(states[_FAULT])}
    for name, state in states.items():
        if name != _FAULT:
            arrays |= {f"{name}/{key}": array for key, array in state.to_arrays().items()}
    # Written whole in memory first: an archive needs to seek, which not every file system does.
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    with FileSystems.create(path) as file:
        file.write(content.getvalue())


def _read_states(path: str) -> dict[str, Any]:
    if not FileSystems.exists(path):
        raise InputError(
            f"Beam options: the runner's workers left no result at {path}; --temp_location must be a folder that "
            "they and this process share"
        )
    with FileSystems.open(path) as file:
        content = io.BytesIO(file.read())
    FileSystems.delete([path])
    by_state: dict[str, dict[str, Any]] = {}
    with np.load(content, allow_pickle=False) as arrays:
        if fault := str(arrays[_FAULT]):
            raise InputError(fault)
        for key in arrays.files:
            name, _, rest = key.partition("/")
            if rest:
                by_state.setdefault(name, {})[rest] = arrays[key]
    return {name: _KINDS[name].from_arrays(found) for name, found in by_state.items()}
