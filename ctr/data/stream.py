"""Rows of a log that a run reads: the rows of a time range, weighted by a sample, with a teacher's logits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ctr.data.joined_sidecar import FOUND, JoinedSidecar, MissingValues
from ctr.data.log import Manifest
from ctr.data.reader import Rows, read_rows
from ctr.data.schema import Schema
from ctr.data.time_range import TimeRange
from ctr.io.errors import InputError

TEACHER_LOGIT = "teacher_logit"
"""Column of ``Rows.joined`` with the teacher's logits, float32 [N], NaN where it has none."""


@dataclass(frozen=True)
class Selection:
    """Rows and joined columns to read. A sample multiplies train weights and, if ``only_kept``, metric weights."""

    time_range: TimeRange = field(default_factory=TimeRange)
    sample: JoinedSidecar | None = None  # has a column ``weight``; None: all rows
    only_kept: bool = False  # if False, rows that the sample dropped remain, with train weight 0
    teacher: JoinedSidecar | None = None
    every_row_taught: bool = True  # whether ``check_selection`` refuses rows without a teacher's logit


def read_selection(
    log: Path, schema: Schema, manifests: Sequence[Manifest], selection: Selection, start: int = 0
) -> Iterator[Rows]:
    """Yields the selected rows from ``start`` on. Raises InputError if files are damaged or the sample lacks a row."""
    times = (selection.time_range.start_us, selection.time_range.end_us)
    for block in read_rows(log, schema, manifests, start, times):
        rows = block if selection.sample is None else _weighted(block, selection.sample, selection.only_kept)
        if selection.teacher is not None:
            logit = selection.teacher.at(rows.query_time, rows.example_id)["logit"]
            rows = replace(rows, joined={**rows.joined, TEACHER_LOGIT: logit.astype(np.float32)})
        yield rows


def _weighted(rows: Rows, sample: JoinedSidecar, only_kept: bool) -> Rows:
    decided = sample.at(rows.query_time, rows.example_id)
    if not decided[FOUND].all():
        missing = np.flatnonzero(~decided[FOUND])
        raise InputError(
            f"{sample}: no decision for {len(missing)} of the {len(rows)} rows from row {rows.position[0]} of the "
            f"log on, first: example_id {rows.example_id[missing[0]]}; sample the whole log (ctr sample)"
        )
    weight = decided["weight"].astype(np.float32)
    weighted = replace(rows, train_weight=rows.train_weight * weight)
    if not only_kept:
        return weighted
    return replace(weighted, metric_weight=rows.metric_weight * weight).keep(weight > 0)


def check_selection(
    log: Path,
    schema: Schema,
    manifests: Sequence[Manifest],
    selection: Selection,
    start: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Checks the selected rows from position ``start`` on before training; returns whether all were checked.

    ``stop`` is called between two blocks and returns whether to stop. Raises InputError if the sample lacks a row, or
    the teacher a logit for a row that would be learned from.
    """
    missing = MissingValues()
    for rows in read_selection(log, schema, manifests, selection, start):
        if stop():
            return False
        if selection.teacher is None or not selection.every_row_taught:
            continue
        missing.add(rows, (rows.fault == 0) & (rows.train_weight > 0), rows.joined[TEACHER_LOGIT])
    if missing.missing:
        raise InputError(
            f"{selection.teacher}: {missing.describe()}, of those to train on; "
            "objective.distillation.missing: train_without trains these without a teacher"
        )
    return True
