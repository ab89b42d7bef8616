"""Reads csv and tsv files in chunks; every column as bytes; rejects lines with malformed quotes or fields."""

import csv
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from ctr.data.mapping import DelimitedInput
from ctr.io.errors import InputError
from ctr.pipelines.rows.chunks import Chunk
from ctr.pipelines.rows.quotes import ALLOWED, StrictQuotes
from ctr.pipelines.rows.rejects import Reject, make_reject
from ctr.pipelines.rows.sources import SourceFile, faults_named, open_bytes, require_columns

_HEADER_LIMIT = 1 << 20


def delimited_columns(path: Path, form: DelimitedInput) -> tuple[str, ...]:
    """The names of a file's columns, from its header or the mapping.

    Raises:
        InputError: an unreadable file, or one without the header that it should have.
    """
    if form.columns is not None:
        return form.columns
    with faults_named(path), open_bytes(path) as stream:
        start = bytes(stream.read(_HEADER_LIMIT))
        line = start.split(b"\n", 1)[0].decode("utf-8-sig").rstrip("\r")
    if not line:
        raise InputError(f"{path}: the first line is empty; it must hold the column names")
    if not form.quotes:
        return tuple(line.split(form.field_delimiter))
    try:
        return tuple(next(csv.reader([line], delimiter=form.field_delimiter, strict=True)))
    except csv.Error as error:
        raise InputError(f"{path}: the first line does not hold column names: {error}") from None


def read_delimited(
    source: SourceFile,
    form: DelimitedInput,
    wanted: Sequence[str],
    block_bytes: int,
    encoded: Collection[str] = (),
) -> Iterator[Chunk]:
    """Yields the wanted columns of a csv or tsv file, as binary with nulls, those of ``encoded`` as dictionaries of it.

    Rows are numbered as records: the header counts, empty lines do not, and a quoted value may hold line ends.

    Raises:
        InputError: a missing column, a damaged file, a record longer than ``block_bytes``.
    """
    names = delimited_columns(source.path, form)
    require_columns(source.path, wanted, names)
    refused: deque[Any] = deque()

    def refuse(row: Any) -> str:
        refused.append(row)
        return "skip"

    # Columns that are not wanted get unique names, since a header may repeat them.
    given = [name if name in wanted else f"\0{place}" for place, name in enumerate(names)]
    first = 2 if form.header else 1
    faults: dict[str, tuple[str, bytes]] = {}
    with faults_named(source.path), _quiet_about_text(), open_bytes(source.path) as stream:
        quotes = (
            StrictQuotes(stream, form.field_delimiter, len(names), block_bytes, faults)
            if form.quotes
            else None
        )
        try:
            reader = pa_csv.open_csv(
                stream if quotes is None else pa.PythonFile(quotes, mode="r"),
                # One thread: only then does Arrow number the refused rows. The reader is not the bottleneck.
                pa_csv.ReadOptions(
                    use_threads=False, block_size=block_bytes, column_names=given, skip_rows=first - 1
                ),
                pa_csv.ParseOptions(
                    delimiter=form.field_delimiter,
                    quote_char='"' if form.quotes else False,
                    newlines_in_values=form.quotes,
                    invalid_row_handler=refuse,
                ),
                pa_csv.ConvertOptions(
                    include_columns=list(wanted),
                    column_types={
                        name: pa.dictionary(pa.int32(), pa.binary()) if name in encoded else pa.binary()
                        for name in wanted
                    },
                    strings_can_be_null=True,
                    null_values=list(form.nulls),
                ),
            )
        except pa.ArrowInvalid as error:
            if "Empty CSV file" in str(error):
                return
            raise
        row = first
        for batch in reader:
            # Arrow parses ahead: what it refused by now may stand after this batch's last row.
            numbers = np.array([bad.number for bad in list(refused)], np.int64) - row
            places = np.ones(batch.num_rows + len(numbers), bool)
            places[numbers[numbers < len(places)]] = False
            rows = row + np.flatnonzero(places)[: batch.num_rows]
            row = int(rows[-1]) + 1 if len(rows) else row
            rejects = []
            while refused and refused[0].number < row:
                rejects += _field_rejects(source, refused.popleft(), faults)
            yield Chunk(source.number, pa.Table.from_batches([batch]), rows, rejects)
        nothing = pa.table({name: pa.array([], pa.binary()) for name in wanted})
        rejects = [reject for bad in refused for reject in _field_rejects(source, bad, faults)]
        yield Chunk(source.number, nothing, np.zeros(0, np.int64), rejects)


@contextmanager
def _quiet_about_text() -> Iterator[None]:
    """Arrow stops at a row that is no UTF-8 and that it cannot show ``refuse``; what Python says of that goes."""
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, UnicodeDecodeError):
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _field_rejects(source: SourceFile, bad: Any, faults: Mapping[str, tuple[str, bytes]]) -> list[Reject]:
    if bad.text in faults:
        reason, line = faults[bad.text]
        return [make_reject(source.number, bad.number, "line", reason, line, ALLOWED)]
    lines = bad.text.count("\n") + 1
    reason = "wrong number of fields" if lines == 1 else "wrong number of fields in a quoted run of lines"
    text = bad.text.replace("\n", " ")
    # A quote that is never closed swallows the lines after it: each counts, none is lost silently.
    return [
        make_reject(source.number, bad.number, "line", reason, text, f"{bad.expected_columns} fields")
    ] * lines
