"""Sizes of the queries of raw files, for models that take them: the rows that an ingest of the files would count."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from ctr.data.mapping import Mapping
from ctr.pipelines.rows.raw_columns import (
    Columns,
    Verdict,
    add_versions,
    checked_columns,
    read_ids,
    read_times,
)
from ctr.pipelines.rows.reader import read_files
from ctr.pipelines.rows.sources import SourceFile

SizesOf = Callable[[Columns, Verdict], np.ndarray]
"""Of N rows float32 [N], NaN where the rows of a query have different times; refuses rows without a query."""


def count_query_sizes(mapping: Mapping, files: Sequence[SourceFile], block_bytes: int) -> SizesOf:
    """Reads all files once, since the rows of a query may lie anywhere in them. InputError: one cannot be read."""
    query = mapping.query
    if query is None:
        return lambda columns, verdict: np.ones(len(verdict.good), np.float32)
    if query.session is not None:
        # It lasts.
        return lambda columns, verdict: np.full(len(verdict.good), np.nan, np.float32)
    needed = [query.group_column, mapping.example_id, mapping.time.column]
    parts = []
    for chunk, sides, first in read_files(mapping, files, block_bytes, tuple(filter(None, needed))):
        verdict = Verdict(chunk)
        columns = checked_columns(chunk, sides, verdict)
        shown = read_times(mapping, columns, chunk, first, verdict)
        add_versions(columns, sides, shown)
        part = {
            "time": shown,
            "query": read_ids(query.group_column, "query", columns, verdict),
        }
        if mapping.example_id is not None:
            part["example"] = read_ids(mapping.example_id, "example_id", columns, verdict)
        parts.append(pd.DataFrame(part)[verdict.good])
    rows = pd.concat(parts) if parts else pd.DataFrame({"time": [], "query": []}, dtype=np.int64)
    if mapping.example_id is not None and parts:
        # Of those with one id the log keeps the first.
        rows = rows.drop_duplicates(["query", "example"])
    times = rows.groupby("query")["time"].agg(["size", "min", "max"])
    known = times["size"].where(times["min"] == times["max"])

    def sizes_of(columns: Columns, verdict: Verdict) -> np.ndarray:
        queries = read_ids(query.group_column, "query", columns, verdict)
        return known.reindex(queries).to_numpy(np.float32)

    return sizes_of
