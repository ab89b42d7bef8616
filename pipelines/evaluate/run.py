"""Metrics of progressive validation, and the prediction difference, over files of predictions of any size.

The numbers are those of `ctr.eval` to rounding, the counts exactly. For how, see `ctr.pipelines.evaluate.transforms`.
"""

# Beam types its classes, few of its functions.
# mypy: allow-untyped-calls

import contextlib
import io
import math
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from ctr.io.errors import InputError
from ctr.pipelines.beam import read_beam_options, run_pipeline, runs_in_this_process
from ctr.pipelines.evaluate.rows import (
    RowGroup,
    count_learned,
    find_row_groups,
    part_by_day,
    read_row_group,
)
from ctr.pipelines.evaluate.transforms import FAULT, KINDS, difference_of, metric_states, npz_bytes

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
    are both kinds, ``new``: the summary of those that it has not learned from. With ``by_day`` also ``days``: the
    summary of each day of query times, in UTC, by its date.

    Files are read once for each pass over ``rows_per_pass`` rows: by default `ROWS_PER_PASS` for a runner that groups
    in memory, such as that inside this process, and all rows for any other. ``rows_per_key`` are to meet in memory.
    Raises InputError: no predictions, a faulty file or row, a repeated example_id, or unknown Beam options.
    """
    groups = find_row_groups(inputs)
    _require_labels(groups)

    def summary_of(own: Sequence[RowGroup]) -> dict[str, Any]:
        found: dict[str, Any] = _run({"a": own}, beam_options, rows_per_key, rows_per_pass)["a"].summary()
        return found

    summary = summary_of(groups)
    if by_day:
        summary["days"] = {day: summary_of(own) for day, own in part_by_day(groups).items()}
    for name in dict.fromkeys(name for group in groups for name in group.outcomes):
        own = [replace(group, outcome=name) for group in groups if name in group.outcomes]
        summary.setdefault("labels", {})[name] = summary_of(own)
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

    Arguments are those of `evaluate`; what `ctr score` writes for a log is allowed.

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
            states = metric_states(elements, read_row_group, keys, number, passes)
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
    return {name: KINDS[name].from_arrays(found) for name, found in by_state.items()}
