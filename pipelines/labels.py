"""Labels from events of their own, such as sales: the sidecar ``labels`` of a log that is published already.

A row has the label where the first event with its id comes up to ``window`` after the row's query. A partition is
labeled once all windows of its rows have passed, so its content does not depend on when the command is run::

    LOG/sidecars/labels/          as ctr.data.labels describes it
    LOG/label_rejects/NAME.jsonl  events of the last run that cannot be read
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from ctr.config import parse_model
from ctr.data.label_mapping import LabelEvents, LabelMapping, load_label_mapping
from ctr.data.labels import SIDECAR, label_columns, write_labels
from ctr.data.log import read_manifests, read_schema
from ctr.data.mapping import JsonlInput, input_patterns
from ctr.data.shards import read_shard
from ctr.data.sidecar import sidecar_folder
from ctr.data.time_range import TimeRange
from ctr.io.errors import InputError
from ctr.pipelines.rows.jsonl import JsonlReader
from ctr.pipelines.rows.raw_columns import Verdict, checked_columns, read_ids, read_time_column
from ctr.pipelines.rows.rejects import MAX_REJECT_SHARE, RejectLog, check_reject_share
from ctr.pipelines.rows.sources import Chunk, SourceFile, find_files
from ctr.pipelines.rows.table_files import read_table_file

BLOCK_BYTES = 16 << 20  # of a file that are read at a time


@dataclass
class LabelCounts:
    """Events of a label, those of them that were rejected, and newly labeled rows that have the label."""

    events: int = 0
    rejected: int = 0
    rows: int = 0


@dataclass
class LabelResult:
    """Partitions and rows that were labeled, and counts by label."""

    partitions: int
    rows: int
    labels: dict[str, LabelCounts]

    def as_text(self) -> str:
        found = [f"{self.partitions} partitions and {self.rows} rows are labeled now"]
        for name, one in self.labels.items():
            rejected = f" ({one.rejected} rejected)" if one.rejected else ""
            found.append(f"{name}: {one.events} events{rejected}, {one.rows} of these rows have it")
        return "; ".join(found)


def check_labels(arguments: argparse.Namespace) -> tuple[LabelMapping, int]:
    """Reads the mapping, and ``--until`` in microseconds. Raises InputError: one of them, or a share, is wrong."""
    mapping = load_label_mapping(arguments.mapping)
    until = parse_model(TimeRange, {"end": arguments.until}, "--until")
    check_reject_share(arguments.max_reject_share)
    return mapping, until.end_us


def label_log(
    log: Path,
    inputs: Sequence[Path],
    mapping: LabelMapping,
    until_us: int,
    max_reject_share: float = MAX_REJECT_SHARE,
    progress: Callable[[int], None] = lambda rows: None,
) -> LabelResult:
    """Labels the partitions of a log that have no labels yet and whose events are all known.

    Args:
        inputs: files (of one label alone) or folders of events.
        until_us: the inputs hold all events before this time, in microseconds.
        progress: gets the number of rows of each partition.

    Raises InputError: no files, a damaged one, or more rejects than allowed.
    """
    if len(mapping.labels) > 1 and (files := [path for path in inputs if path.is_file()]):
        raise InputError(f"input {files[0]}: is a file; with several labels, folders are required")
    done = sidecar_folder(log, SIDECAR)
    due = [
        one
        for one in read_manifests(log)
        if one.rows and one.end + mapping.window_us <= until_us and not (done / f"{one.name}.json").exists()
    ]
    if not due:
        return LabelResult(0, 0, {})
    first = due[0].start
    counts, events = {}, {}
    for name, label in mapping.labels.items():
        counts[name], events[name] = _read_events(log, name, label, inputs, first, max_reject_share)
    schema = read_schema(log)
    for manifest in due:
        shards = [read_shard(log, entry, schema) for entry in manifest.shards]
        rows = pa.concat_tables(shards).select(["example_id", "query_time"])
        for name, label in mapping.labels.items():
            rows = _with_label(rows, name, label, events[name], counts[name])
        write_labels(log, manifest, list(mapping.labels), rows)
        progress(manifest.rows)
    return LabelResult(len(due), sum(manifest.rows for manifest in due), counts)


def _read_events(
    log: Path, name: str, label: LabelEvents, inputs: Sequence[Path], first: int, max_reject_share: float
) -> tuple[LabelCounts, pd.DataFrame]:
    """Reads the events from ``first`` on by time: ``example_id``, ``time`` in microseconds, and their number."""
    patterns = input_patterns(label.input)
    if label.input.pattern is None:
        patterns = tuple(f"{name}/{pattern}" for pattern in patterns)
    files = find_files(inputs, patterns, ())
    rejects = RejectLog([file.name for file in files], max_reject_share)
    counts, parts = LabelCounts(), [pd.DataFrame({"example_id": [], "time": []}, dtype=np.int64)]
    for file in files:
        for chunk in _read_file(file, label):
            verdict = Verdict(chunk)
            columns = checked_columns(chunk, (), verdict)
            times = read_time_column(label.time, "time", columns, verdict)
            ids = read_ids(label.example_id, "example_id", columns, verdict)
            rejects.add(verdict.rejects)
            counts.events += chunk.count
            counts.rejected += len(verdict.rejects)
            kept = verdict.good & (times >= first)
            parts.append(pd.DataFrame({"example_id": ids[kept], "time": times[kept]}))
    rejects.write(log / "label_rejects" / f"{name}.jsonl")
    rejects.check(counts.events)
    events = pd.concat(parts).sort_values(["time", "example_id"], ignore_index=True)
    return counts, events.assign(number=np.arange(len(events)))


def _read_file(file: SourceFile, label: LabelEvents) -> Iterator[Chunk]:
    if isinstance(label.input, JsonlInput):
        numbers = [] if label.time.unit is None else [label.time.column or ""]
        reader = JsonlReader(label.columns, numbers, {}, all_needed=False)
        return reader.read(file, BLOCK_BYTES)
    return read_table_file(file, label.input, label.columns, BLOCK_BYTES)


def _with_label(
    rows: pa.Table, name: str, label: LabelEvents, events: pd.DataFrame, counts: LabelCounts
) -> pa.Table:
    """Adds the columns of a label as ``write_labels`` takes them to rows in the order of their query times."""
    keys = rows.select(["example_id", "query_time"]).to_pandas()
    found = pd.merge_asof(
        keys,
        events,
        left_on="query_time",
        right_on="time",
        by="example_id",
        direction="forward",
        tolerance=label.window_us,
    )["number"]
    counts.rows += int(found.count())
    after, known = label_columns(name)
    # Times as floats would lose microseconds.
    times = pa.array(events["time"]).take(pa.array(found, pa.int64(), from_pandas=True))
    rows = rows.append_column(f"@{after}", times)
    return rows.append_column(f"@{known}", pa.array(keys["query_time"].to_numpy() + label.window_us))
