"""Reads tables from frames of pandas, polars or Arrow, or from files, and the columns for ``ctr.evaluate``."""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from ctr.eval.arrays import sigmoid
from ctr.eval.progressive import ProgressiveMetrics
from ctr.io.errors import InputError, did_you_mean, listed
from ctr.io.files import check_local
from ctr.pipelines.evaluate.keyed_states import JoinedDifference
from ctr.pipelines.evaluate.run import difference_of
from ctr.pipelines.tables.input_files import faults_named, open_bytes

LEAST_PROBABILITY = 1e-15  # a prediction nearer to 0 or 1 is taken for this: its logit would not be finite

_SAME_ROWS = "allowed: the same rows in the same order"


class ArrowStream(Protocol):
    """A frame of pandas, polars, pyarrow or others that offers its columns by Arrow's PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Source: TypeAlias = Path | str | ArrowStream


def arrow_table(frame: ArrowStream) -> pa.Table:
    """Converts a frame to an Arrow table, without the index of a pandas frame. Raises InputError for other objects."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(frame, pandas.DataFrame):
        return pa.Table.from_pandas(frame, preserve_index=False)
    if not hasattr(frame, "__arrow_c_stream__"):
        raise InputError(
            f"{type(frame).__name__} is no table; allowed: a path, and a frame of pandas, polars or Arrow"
        )
    return pa.table(frame)


@contextmanager
def table_file(source: Source) -> Iterator[Path]:
    """Yields the path of a table; a frame is written to a temporary Parquet file, deleted afterwards."""
    if isinstance(source, Path | str):
        yield Path(source)
        return
    with TemporaryDirectory(prefix="ctr-frame-") as folder:
        path = Path(folder) / "frame.parquet"
        pq.write_table(arrow_table(source), path)
        try:
            yield path
        except InputError as error:
            raise InputError(str(error).replace(str(path), "the table")) from None


class Columns(NamedTuple):
    """Names of the columns of a table of predictions; either ``prediction`` or ``logit`` is set."""

    label: str
    prediction: str | None
    logit: str | None
    query: str | None
    weight: str | None
    slices: Sequence[str]

    @property
    def ids(self) -> list[str]:
        return [*([self.query] if self.query else []), *self.slices]

    @property
    def names(self) -> list[str]:
        return [name for name in dict.fromkeys((*self[:5], *self.slices)) if name is not None]


@dataclass(frozen=True)
class Predictions:
    """N predictions of any model."""

    where: str
    label: np.ndarray  # [N] 0 or 1
    logit: np.ndarray  # [N] float64, finite
    weight: np.ndarray  # [N] float64, at least 0
    query_id: np.ndarray  # [N] int64
    slices: dict[str, tuple[np.ndarray, list[Any]]]  # int64 [N], numbers of the values in the list
    clipped: int  # predictions that were nearer to 0 or 1 than ``LEAST_PROBABILITY``

    def metrics(self) -> ProgressiveMetrics:
        metrics = ProgressiveMetrics(list(self.slices))
        ids = {name: numbers for name, (numbers, _) in self.slices.items()}
        metrics.update(self.label, self.logit, self.weight, self.query_id, ids)
        return metrics

    def summary(self, metrics: ProgressiveMetrics) -> dict[str, Any]:
        """Returns ``ProgressiveMetrics.summary``, with the slices' values as texts."""
        summary = metrics.summary()
        for name, (_, values) in self.slices.items():
            for row in summary["calibration_slices"][name]["heaviest"]:
                row["id"] = "(none)" if values[row["id"]] is None else str(values[row["id"]])
        return {**summary, "predictions_clipped": self.clipped}


def read_predictions(source: Source, columns: Columns) -> Predictions:
    """Reads and checks predictions. Raises InputError with all missing columns, or the row of the first bad value."""
    if (columns.prediction is None) == (columns.logit is None):
        raise InputError("one of prediction, probabilities from 0 to 1, and logit is required")
    where, table = _read(source, columns)

    def values(name: str, is_allowed: Any, allowed: str) -> np.ndarray:
        column = table.column(name)
        try:
            numbers = column.cast(pa.float64(), safe=False)
        except pa.ArrowException:
            raise InputError(f"{where}: column {name} has {column.type}; allowed: {allowed}") from None
        read: np.ndarray = numbers.to_numpy()
        if not (good := is_allowed(read)).all():
            row = int(np.argmin(good))
            raise InputError(f"{where} row {row + 1}: {name} is {column[row].as_py()}; allowed: {allowed}")
        return read

    label = values(columns.label, lambda y: (y == 0) | (y == 1), "0 or 1")
    clipped = 0
    if columns.logit is not None:
        logit = values(columns.logit, np.isfinite, "finite numbers")
    else:
        p = values(str(columns.prediction), lambda p: (p >= 0) & (p <= 1), "probabilities from 0 to 1")
        inside = np.clip(p, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
        clipped, logit = int((inside != p).sum()), np.log(inside) - np.log1p(-inside)
    weight = np.ones(len(label))
    if columns.weight is not None:
        finite = "finite numbers of at least 0"
        weight = values(columns.weight, lambda w: (w >= 0) & (w < math.inf), finite)
    query_id = np.arange(len(label))
    if columns.query is not None:
        query = table.column(columns.query)
        if query.null_count:
            row = pc.index(query.is_null(), True).as_py() + 1
            raise InputError(
                f"{where} row {row}: {columns.query} has no value; allowed: a value in every row"
            )
        # Whole numbers are ids as they are, other values are numbered.
        is_id = pa.types.is_signed_integer(query.type)
        query_id = query.cast(pa.int64()).to_numpy() if is_id else _coded(query)[0]
    slices = {name: _coded(table.column(name)) for name in columns.slices}
    return Predictions(where, label, logit, weight, query_id, slices, clipped)


def _read(source: Source, columns: Columns) -> tuple[str, pa.Table]:
    if not isinstance(source, Path | str):
        table = arrow_table(source)
        _require("the table", columns.names, table.column_names)
        return "the table", table
    path = Path(source)
    check_local(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; allowed: a CSV, TSV or Parquet file")
    with faults_named(path):
        if path.suffix == ".parquet":
            _require(str(path), columns.names, pq.read_schema(path).names)
            return str(path), pq.read_table(path, columns=columns.names)
        parse = pa.csv.ParseOptions(delimiter="\t" if ".tsv" in path.suffixes else ",")
        with open_bytes(path) as stream, pa.csv.open_csv(stream, parse_options=parse) as header:
            _require(str(path), columns.names, header.schema.names)
        # Ids are any text; what a later block of the file has does not change their type.
        convert = pa.csv.ConvertOptions(
            include_columns=columns.names,
            column_types=dict.fromkeys(columns.ids, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
        )
        with open_bytes(path) as stream:
            return str(path), pa.csv.read_csv(stream, parse_options=parse, convert_options=convert)


def _require(where: str, wanted: Sequence[str], present: Sequence[str]) -> None:
    if missing := [name for name in wanted if name not in present]:
        meant = did_you_mean(missing[0], present)
        raise InputError(f"{where}: no column {', '.join(missing)}; the columns are {listed(present)}{meant}")


def _coded(column: pa.ChunkedArray) -> tuple[np.ndarray, list[Any]]:
    """Returns the code of each row's value, int64 [N], and the values by code; null also has a code."""
    coded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    return coded.indices.cast(pa.int64()).to_numpy(), coded.dictionary.to_pylist()


def compare_predictions(a: Predictions, b: Predictions) -> dict[str, Any]:
    """Compares predictions of the same rows, with a as the baseline. Raises InputError if the rows differ."""
    if len(a.label) != len(b.label):
        raise InputError(f"{a.where} has {len(a.label):,} rows, {b.where} {len(b.label):,}; {_SAME_ROWS}")
    if (differs := (a.label != b.label) | (a.weight != b.weight) | (a.query_id != b.query_id)).any():
        row = int(np.argmax(differs)) + 1
        raise InputError(
            f"{b.where} row {row}: label, weight or query is not that of {a.where}; {_SAME_ROWS}"
        )
    difference, metrics = JoinedDifference(), (a.metrics(), b.metrics())
    difference.update(sigmoid(a.logit), sigmoid(b.logit), a.query_id)
    return {
        "baseline": "a",
        "predictions": {"a": [a.where], "b": [b.where]},
        **difference_of(*metrics, difference),
        "a": a.summary(metrics[0]),
        "b": b.summary(metrics[1]),
    }
