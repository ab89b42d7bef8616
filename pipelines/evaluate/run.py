"""Metrics of progressive validation, and the prediction difference, over files of predictions of any size.

The metrics equal `ctr.eval`'s up to rounding, the counts exactly. Rows are split by a hash of their query, so that all
rows of a query have one key, whatever their files and row groups, and a key's rows are one batch for the metric states,
which can be merged. This process reads the files once for each pass over `ROWS_PER_PASS` rows; Beam, if its options
are set, reads them once (`on_beam.py`).
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ctr.eval.compare import compare, compared_records, same_examples
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.run_files import COMPARED
from ctr.io.documents import json_number
from ctr.io.errors import InputError
from ctr.pipelines.evaluate.keyed_states import JoinedDifference, States, add_key, new_states
from ctr.pipelines.evaluate.rows import (
    Piece,
    RowGroup,
    count_learned,
    find_row_groups,
    part_by_day,
    read_row_group,
    split_by_query,
)


def difference_of(a: ProgressiveMetrics, b: ProgressiveMetrics, joined: JoinedDifference) -> dict[str, Any]:
    """Makes the result of `evaluate_difference` from the metrics of two sets and their joined predictions."""
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


# Rows that one worker holds in memory, about 100 bytes each; a larger query is held whole all the same.
ROWS_PER_KEY = 1 << 20
# Rows that this process holds in memory at a time, about 100 bytes each.
ROWS_PER_PASS = 1 << 23


def evaluate(
    inputs: Sequence[Path], beam_options: Sequence[str] = (), *, by_day: bool = False
) -> dict[str, Any]:
    """Measures recorded predictions: Parquet files, folders of them, and run directories.

    Returns `ProgressiveMetrics.summary`; no feature is recorded, so ``calibration_slices`` is empty. If predictions
    have further labels, ``labels`` has the summary of each, over the rows that have the label. If `ctr score` has
    marked the rows that the model learned from, there is also ``training``, see `count_learned`, and, if there are
    both kinds, ``new``: the summary of the rows not learned from. With ``by_day`` also ``days``: the summary
    of each day of query times, in UTC, by its date.

    Raises InputError for no predictions, a faulty file or row, a repeated example_id, or unknown Beam options.
    """
    groups = find_row_groups(inputs)
    _require_labels(groups)

    def summary_of(part: Sequence[RowGroup]) -> dict[str, Any]:
        summary: dict[str, Any] = _run({"a": part}, beam_options)["a"].summary()
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
    inputs_a: Sequence[Path], inputs_b: Sequence[Path], beam_options: Sequence[str] = ()
) -> dict[str, Any]:
    """Compares two sets of predictions, a the baseline, joined by query_id and example_id (FF section 5).

    Takes the arguments of `evaluate`; the output of `ctr score` for a log is allowed.

    Returns:
        ``baseline``: a. ``predictions``: the paths of both. ``a`` and ``b``: the summaries of both, without metrics
        if there are no labels, with ``training`` as in `evaluate`. ``prediction_difference``:
        ``value``, ``ci95``, ``examples`` of both, ``only_a``, ``only_b``. ``metrics``: by metric ``a``, ``b``,
        ``difference``, ``ci95`` (paired), ``relative_percent``, ``significant`` (None: no interval), ``no_interval``
        (why; else None); None if the sets do not hold the same labeled examples.

    Raises:
        InputError: as `evaluate`, except that labels may be absent from all files of a set.
    """
    sides = {"a": find_row_groups(inputs_a), "b": find_row_groups(inputs_b)}
    for groups in sides.values():
        if any(group.labeled for group in groups):
            _require_labels(groups)
    paths = {side: [str(path) for path in inputs] for side, inputs in (("a", inputs_a), ("b", inputs_b))}
    states = _run(sides, beam_options)
    result = difference_of(states["a"], states["b"], states["difference"])
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


def _run(sides: Mapping[str, Sequence[RowGroup]], beam_options: Sequence[str]) -> States:
    rows = sum(group.rows for groups in sides.values() for group in groups)
    if beam_options:
        from ctr.pipelines.evaluate.on_beam import measure_on_beam

        return measure_on_beam(sides, beam_options, max(1, math.ceil(rows / ROWS_PER_KEY)))
    passes = max(1, math.ceil(rows / ROWS_PER_PASS))
    keys = max(passes, math.ceil(rows / ROWS_PER_KEY))
    states = new_states(sides)
    for number in range(passes):
        pieces: defaultdict[int, list[tuple[str, Piece]]] = defaultdict(list)
        for side, groups in sides.items():
            for source, part in (piece for group in groups for piece in read_row_group(group)):
                for key, split in split_by_query(part, keys):
                    if key % passes == number:
                        pieces[key].append((side, (source, split)))
        for key in sorted(pieces):
            add_key(states, pieces.pop(key))
    return states
