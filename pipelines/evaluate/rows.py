"""Finds files of recorded predictions, checks them, and gathers the rows of whole queries.

A piece is some rows of one file as a structured array of `ROW`; the pieces of a key together hold all rows of
the queries that are hashed to it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ctr.data.times import DAY_US
from ctr.eval.arrays import sigmoid
from ctr.eval.prediction_difference import JoinedPredictions
from ctr.io.errors import InputError
from ctr.io.files import check_local
from ctr.io.hashing import splitmix64
from ctr.pipelines.tables.input_files import faults_named, require_columns
from ctr.serving.metadata import LEARNED

# A prediction; rows without labels have label False and weight 0.
ROW = np.dtype(
    [
        ("example_id", np.int64),
        ("query_id", np.int64),
        ("logit", np.float64),
        ("weight", np.float64),
        ("label", np.bool_),
    ]
)

BATCH_ROWS = 1 << 20  # rows of a file in memory at a time

Rows = npt.NDArray[np.void]
Piece = tuple[str, Rows]  # a file's name, and some of its rows

_KEYS = ("example_id", "query_id", "logit")
_LABELS = ("label", "metric_weight")
_TIME = "query_time"
_CENTURY_US = 946_684_800 * 10**6, 4_102_444_800 * 10**6  # 2000-01-01 and 2100-01-01


@dataclass(frozen=True)
class RowGroup:
    """Row group of a file of predictions."""

    path: str
    number: int  # from 0
    first_row: int  # number of its first row in the file, from 1
    rows: int
    labeled: bool  # whether the file has labels and metric weights
    marked: bool = False  # whether the file has a column `LEARNED`
    outcomes: tuple[str, ...] = ()  # the further labels that the file has
    outcome: str = ""  # the label to read, only of rows that have it; empty: the click
    new: bool = False  # whether to read only rows that the model has not learned from
    day: int | None = None  # read only queries of this day, UTC, in days since 1970; None: all


def find_row_groups(inputs: Sequence[Path]) -> list[RowGroup]:
    """Lists the row groups in the footers of files, folders and run directories. Raises InputError for a bad file."""
    groups: list[RowGroup] = []
    seen: set[Path] = set()
    for path in _files(inputs):
        if path.resolve() in seen:
            raise InputError(f"{path}: given twice; allowed: each file once")
        seen.add(path.resolve())
        with faults_named(path), pq.ParquetFile(path) as file:
            labeled = check_columns(str(path), file.schema_arrow)
            names = file.schema_arrow.names
            marked = LEARNED in names
            predicted = (name.removeprefix("logit_") for name in names if name.startswith("logit_"))
            outcomes = tuple(name for name in predicted if f"label_{name}" in names)
            for name in outcomes:
                _check_types(str(path), file.schema_arrow, {f"{of}_{name}": of for of in ("logit", "label")})
            first_row = 1
            for number in range(file.num_row_groups):
                rows = file.metadata.row_group(number).num_rows
                groups.append(RowGroup(str(path), number, first_row, rows, labeled, marked, outcomes))
                first_row += rows
    return groups


def _files(inputs: Sequence[Path]) -> list[Path]:
    paths: list[Path] = []
    for path in inputs:
        if path.is_file():
            paths.append(path)
            continue
        if not path.is_dir():
            check_local(path)
            raise InputError(f"input {path}: no such file or folder")
        folder = path / "predictions" if (path / "predictions").is_dir() else path
        files = sorted(folder.glob("*.parquet"))
        if not files:
            raise InputError(
                f"input {path}: no predictions in it; allowed: *.parquet files, folders of them, and run "
                "directories with record_predictions"
            )
        paths += files
    if not paths:
        raise InputError("no input is given")
    return paths


def check_columns(where: str, schema: pa.Schema) -> bool:
    """Checks the columns of predictions; returns whether they have labels and metric weights (both may be absent).

    Raises InputError, which names `where`, if a column is missing or has a wrong type.
    """
    if LEARNED in schema.names and not pa.types.is_boolean(schema.field(LEARNED).type):
        raise InputError(f"{where}: column {LEARNED} must be true or false, got {schema.field(LEARNED).type}")
    labeled = any(name in schema.names for name in _LABELS)
    wanted = [*_KEYS, *(_LABELS if labeled else ())]
    require_columns(Path(where), wanted, schema.names)
    _check_types(where, schema, {name: name for name in wanted})
    return labeled


def _check_types(where: str, schema: pa.Schema, columns: Mapping[str, str]) -> None:
    # Maps the columns' names in the file to the names in ``_ALLOWED``.
    for name, of in columns.items():
        kind = schema.field(name).type
        if not _ALLOWED[of][0](kind):
            raise InputError(f"{where}: column {name} must be {_ALLOWED[of][1]}, got {kind}")


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


_ALLOWED: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    # Unsigned numbers above 2**63 would change their value, and with it the query they belong to.
    "example_id": (pa.types.is_signed_integer, "int64"),
    "query_id": (pa.types.is_signed_integer, "int64"),
    "logit": (pa.types.is_floating, "float32 or float64"),
    "metric_weight": (_is_number, "numbers"),
    "label": (lambda kind: _is_number(kind) or pa.types.is_boolean(kind), "0 or 1"),
}


def read_row_group(group: RowGroup) -> Iterator[Piece]:
    """Yields a row group's checked rows, at most `BATCH_ROWS` at a time. Raises InputError with file and row."""
    wanted = [*_KEYS, *(_LABELS if group.labeled else ()), *([LEARNED] if group.new else [])]
    of_outcome = {f"{name}_{group.outcome}": name for name in ("logit", "label") if group.outcome}
    wanted = [*(name for name in wanted if name not in of_outcome.values()), *of_outcome]
    wanted += [] if group.day is None else [_TIME]
    path, first_row = group.path, group.first_row
    with faults_named(Path(path)), pq.ParquetFile(path, page_checksum_verification=True) as file:
        batches = file.iter_batches(BATCH_ROWS, row_groups=[group.number], columns=wanted, use_threads=False)
        for batch in batches:
            batch = batch.rename_columns([of_outcome.get(name, name) for name in batch.schema.names])
            taken = np.ones(batch.num_rows, bool)
            if group.outcome:
                index, column = batch.schema.get_field_index("label"), batch.column("label")
                has_label = pc.invert(pc.is_null(column, nan_is_null=True))
                values = column.cast(pa.float64(), safe=False)
                batch = batch.set_column(index, "label", pc.if_else(has_label, values, 0.0))
                taken &= has_label.to_numpy(zero_copy_only=False)
            if group.new:
                new = pc.invert(batch.column(LEARNED)).fill_null(False)
                taken &= new.to_numpy(zero_copy_only=False)
            if group.day is not None:
                taken &= _days(batch.column(_TIME)) == group.day
            table = pa.Table.from_batches([batch])
            yield path, checked_rows(path, table, group.labeled, first_row, group.outcome)[taken]
            first_row += batch.num_rows


def part_by_day(groups: Sequence[RowGroup]) -> dict[str, list[RowGroup]]:
    """Returns the row groups of each UTC day of query times, by ISO date. Raises InputError for bad query times."""
    days: dict[int, list[RowGroup]] = {}
    spans: dict[Path, tuple[int, int]] = {}
    for group in groups:
        path = Path(group.path)
        with faults_named(path), pq.ParquetFile(path) as file:
            require_columns(path, [_TIME], file.schema_arrow.names)
            if (kind := file.schema_arrow.field(_TIME).type) != pa.int64():
                raise InputError(f"{path}: column {_TIME} must be int64, microseconds since 1970, got {kind}")
            column = file.read_row_group(group.number, columns=[_TIME]).column(_TIME)
            if column.null_count:
                row = group.first_row + pc.index(column.is_null(), True).as_py()
                raise InputError(f"{path} row {row}: {_TIME} must be given in every row, got null")
            if group.rows:
                least, most = pc.min_max(column).as_py().values()
                before = spans.get(path, (least, most))
                spans[path] = min(least, before[0]), max(most, before[1])
            for day in np.unique(_days(column)).tolist():
                days.setdefault(day, []).append(replace(group, day=day))
    for path, (least, most) in spans.items():
        # All times would be in this century in another unit, but not in the declared one.
        begin, end = _CENTURY_US
        for unit, per_unit in (("seconds", 10**6), ("milliseconds", 10**3), ("nanoseconds", 10**-3)):
            if begin <= least * per_unit and most * per_unit < end and not (begin <= most and least < end):
                factor = f"multiply by {per_unit:,}" if per_unit > 1 else "divide by 1,000"
                got = f"got {least}, which seems to be {unit}"
                raise InputError(f"{path}: column {_TIME} must be microseconds since 1970, {got}; {factor}")
    return {str(np.datetime64(day, "D")): days[day] for day in sorted(days)}


def _days(times: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    days: npt.NDArray[np.int64] = times.to_numpy(zero_copy_only=False) // DAY_US
    return days


def count_learned(groups: Sequence[RowGroup]) -> dict[str, Any] | None:
    """Counts the rows that the model has learned from, as marked by `ctr score`.

    ``new_rows`` were not learned from, ``untold_rows`` are unmarked. ``held_out``: false if any row was learned from,
    else null if some are unmarked, else true. Returns None if no row group is marked, as in progressive predictions,
    which are made before the model learns from the row. Raises InputError if a file is damaged.
    """
    if not any(group.marked for group in groups):
        return None
    learned = new = 0
    for group in groups:
        if group.marked:
            with faults_named(Path(group.path)), pq.ParquetFile(group.path) as file:
                column = file.read_row_group(group.number, columns=[LEARNED]).column(LEARNED)
                learned += pc.sum(column).as_py() or 0
                new += pc.sum(pc.invert(column)).as_py() or 0
    untold = sum(group.rows for group in groups) - learned - new
    held_out = False if learned else None if untold else True
    return {"learned_rows": learned, "new_rows": new, "untold_rows": untold, "held_out": held_out}


def checked_rows(where: str, table: pa.Table, labeled: bool, first_row: int = 1, outcome: str = "") -> Rows:
    """Returns a table's rows as `ROW` [N], after `check_columns`; labels and weights only if `labeled`.

    Raises InputError if a value is null, a logit not finite, a label neither 0 nor 1, or a weight negative or not
    finite. It names `where`, the row, counted from `first_row`, and the column, with the suffix `outcome` if given.
    """
    rows = np.zeros(table.num_rows, ROW)

    def require(name: str, good: npt.NDArray[np.bool_], values: object, allowed: str) -> None:
        if not good.all():
            row = int(np.argmin(good))
            got = "null" if values is None else values[row]  # type: ignore[index]
            column_name = f"{name}_{outcome}" if outcome and name in ("logit", "label") else name
            raise InputError(f"{where} row {first_row + row}: {column_name} must be {allowed}, got {got}")

    for name in (*_KEYS, *(_LABELS if labeled else ())):
        column = table.column(name)
        if column.null_count:
            require(name, column.is_valid().to_numpy(), None, "given in every row")
        values = column.to_numpy()
        if name == "logit":
            require(name, np.isfinite(values), values, "a finite number")
        elif name == "metric_weight":
            require(name, (values >= 0) & (values < np.inf), values, "a finite number of at least 0")
        elif name == "label":
            require(name, (values == 0) | (values == 1), values, "0 or 1")
        rows["weight" if name == "metric_weight" else name] = values
    return rows


def split_by_query(rows: Rows, keys: int) -> Iterator[tuple[int, Rows]]:
    """Splits rows by a hash of their query into `keys` keys, so that all rows of a query have the same key.

    Yields each key, 0..keys-1, ascending, and its rows, in their order; keys without rows are left out.
    """
    # Not the upper bits, which assign queries to the buckets of the intervals.
    key = splitmix64(rows["query_id"].astype(np.uint64)) % np.uint64(keys)
    # NumPy sorts 16-bit integers by radix, eight times faster than wider ones.
    order = np.argsort(key.astype(np.uint16 if keys <= 2**16 else np.uint64), kind="stable")
    ends = np.cumsum(np.bincount(key.astype(np.int64), minlength=keys))
    for number in np.flatnonzero(np.diff(ends, prepend=0)).tolist():
        begin = ends[number - 1] if number else 0
        yield number, rows[order[begin : ends[number]]]


def gather(pieces: Iterable[Piece]) -> Rows:
    """Concatenates the pieces of a key, in any order. Raises InputError with the files of a repeated example_id."""
    held = list(pieces)
    rows = np.concatenate([np.empty(0, ROW), *(part for _, part in held)])
    ids = np.sort(rows["example_id"])
    repeats = ids[1:][ids[1:] == ids[:-1]]
    if len(repeats):
        example_id = repeats[0]
        counts = [(source, int((part["example_id"] == example_id).sum())) for source, part in held]
        sources = [source for source, count in counts for _ in range(count)]
        raise InputError(
            f"{min(sources)}: example_id {example_id} appears in the predictions {len(sources)} times"
            + (f", also in {max(sources)}" if max(sources) != min(sources) else "")
            + "; allowed: each example once"
        )
    return rows


def join_rows(first: Rows, second: Rows) -> JoinedPredictions:
    """Aligns the rows of two sets under one key, each as returned by `gather`.

    Examples match if both example_id and query_id are equal: an example whose query_id differs is not joined,
    even if both queries fall under the same key.
    """
    example_id, rows_1, rows_2 = np.intersect1d(
        first["example_id"], second["example_id"], assume_unique=True, return_indices=True
    )
    same = first["query_id"][rows_1] == second["query_id"][rows_2]
    rows_1, rows_2 = rows_1[same], rows_2[same]
    return JoinedPredictions(
        example_id=example_id[same],
        query_id=first["query_id"][rows_1],
        first=sigmoid(first["logit"][rows_1]),
        second=sigmoid(second["logit"][rows_2]),
        only_first=len(first) - len(rows_1),
        only_second=len(second) - len(rows_2),
    )
