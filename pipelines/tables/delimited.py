"""Reads csv and tsv files in chunks, every column as bytes; rejects lines with malformed quotes or fields.

A repeated header, as in files concatenated by ``cat``, is rejected too, and counted separately.
"""

import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from ctr.data.mapping import DelimitedInput
from ctr.io.errors import InputError
from ctr.pipelines.tables.input_files import (
    BYTE_ORDER_MARK,
    Chunk,
    SourceFile,
    faults_named,
    open_bytes,
    require_columns,
)
from ctr.pipelines.tables.rejects import REPEATED_HEADER, Reject, make_reject

UNCLOSED = "a quote is never closed"
TEXT_AFTER = "text after a closing quote"
ALLOWED = "a quoted value ends with a quote before the delimiter or line end; quotes within are doubled"

_QUOTE = b'"'
_LINE_END = re.compile(rb"\r\n|\n|\r")
_QUOTED = re.compile(rb'"(?:[^"]++|"")*+"')


class _StrictQuotes:
    """Replaces each line with malformed quotes, which a parser would accept, with an invalid line.

    A parser then refuses that line for its number of fields, and reports its number. A value may be quoted (RFC 4180):
    the first quote begins a field, the last one is followed by a delimiter, a line end or nothing, and a quote within
    is doubled. A quote elsewhere in a field is a plain character. If a record breaks these rules, its first line
    is rejected, and reading starts again after it: so a quote that is never closed costs its line, and not all lines
    until the next quote. A quote counts as never closed if its record, of ``fields``, would be longer than ``limit``
    bytes.
    """

    def __init__(self, delimiter: str, fields: int, limit: int) -> None:
        self._delimiter, self._count, self._limit = delimiter, fields, limit
        # Reason and original line, by the text that replaces the line.
        self.faults: dict[str, tuple[str, bytes]] = {}
        comma = re.escape(delimiter).encode()
        value = rb'(?:"(?:[^"]++|"")*+"(?=%b|\r|\n|\Z)|(?!")[^%b\r\n]*+)' % (comma, comma)
        self._fields = re.compile(rb"(?:%b%b)*+" % (value, comma))
        self._records = re.compile(rb"(?:(?:%b%b)*+%b(?:\r\n|\r|\n))*+" % (value, comma, value))
        self._last = re.compile(rb"(?:%b%b)*+%b" % (value, comma, value))

    def check(self, data: bytes, final: bool) -> tuple[bytes, int]:
        """Returns the checked records at the start of ``data``, and how many bytes of ``data`` they take."""
        pieces: list[bytes] = []
        passed = record = 0
        while (record := _end(self._records, data, record)) < len(data):
            if final and self._last.fullmatch(data, record):
                record = len(data)
                break
            # The field that is malformed, or cut off.
            at = _end(self._fields, data, record)
            quoted = _QUOTED.match(data, at)
            is_cut = data[at : at + 1] != _QUOTE or quoted is None or quoted.end() == len(data)
            end = _LINE_END.search(data, record)
            line_end = len(data) if end is None else end.end()
            is_cut |= line_end == len(data) and data[-1:] not in (b"\n", b"\r")
            if is_cut and not final and (data[at : at + 1] != _QUOTE or len(data) - record <= self._limit):
                break
            reason = UNCLOSED if quoted is None or quoted.end() > line_end else TEXT_AFTER
            token = f"\x02{len(self.faults)}\x02"
            text = token if self._count > 1 else f"{token}{self._delimiter}{token}"
            self.faults[text] = reason, data[record:line_end].rstrip(b"\r\n")
            pieces += [data[passed:record], text.encode() + b"\n"]
            passed = record = line_end
        pieces.append(data[passed:record])
        return b"".join(pieces), record


def _end(pattern: re.Pattern[bytes], data: bytes, begin: int) -> int:
    """Returns the end of the longest match from ``begin`` on, for a pattern that matches everywhere."""
    match = pattern.match(data, begin)
    assert match is not None
    return match.end()


_HEADER_LIMIT = 1 << 20
# Lines below a header that show how many fields there are.
_LOOKED = 100


def delimited_columns(path: Path, form: DelimitedInput) -> tuple[str, ...]:
    """Returns the names of a file's columns, from its header or the mapping.

    If the lines below the header have an extra empty field at their end, a column without a name is added for it; if
    only the header ends with a delimiter, the delimiter is ignored. If lines begin with a row number for which the
    header has no name, the name of that column is empty. Raises InputError if the file is unreadable or has no header.
    """
    if form.columns is not None:
        return form.columns
    with faults_named(path), open_bytes(path) as stream:
        start = bytes(stream.read(_HEADER_LIMIT))
        lines = _LINE_END.split(start, form.skip_lines + 1)
        line = lines[form.skip_lines].decode("utf-8-sig") if len(lines) > form.skip_lines else ""
    below = lines[-1].decode("utf-8", "replace") if len(lines) > form.skip_lines + 1 else ""
    rows = split_rows(below, form.field_delimiter, form.quotes, _LOOKED)
    if len(start) == _HEADER_LIMIT and len(rows) < _LOOKED:
        # The last one may have been cut.
        rows = rows[:-1]
    if not line.strip():
        raise InputError(f"{path}: the first line is empty; it must hold the column names")
    if not form.quotes:
        return fitted_names(line.split(form.field_delimiter), rows)
    try:
        return fitted_names(next(csv.reader([line], delimiter=form.field_delimiter, strict=True)), rows)
    except csv.Error as error:
        raise InputError(f"{path}: the first line does not hold column names: {error}") from None


def split_rows(text: str, delimiter: str, quoting: bool, limit: int) -> list[list[str]]:
    """Splits the first ``limit`` non-empty lines into fields; stops early at a field above the csv module's limit."""
    lines = io.StringIO(text.replace("\0", ""), newline=None)
    reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE)
    rows: list[list[str]] = []
    # The fields before one that is too long suffice.
    with suppress(csv.Error):
        for row in reader:
            rows += [row] if row else []
            if len(rows) == limit:
                break
    return rows


def fitted_names(names: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Adapts the names of a header to the number of fields of the lines below it (see ``delimited_columns``)."""
    rows = [row for row in rows if list(row) != list(names)]
    fields, lines = Counter(map(len, rows)).most_common(1)[0] if rows else (len(names), 0)
    if lines >= 0.9 * len(rows):
        rows = [row for row in rows if len(row) == fields]
        if fields == len(names) + 1 and not any(row[-1].strip() for row in rows):
            return (*names, "")
        if fields == len(names) + 1 and [row[0] for row in rows] == [str(n + 1) for n in range(lines)]:
            return ("", *names)
        if fields == len(names) - 1 and not names[-1].strip():
            return tuple(names[:-1])
    return tuple(names)


def read_delimited(
    source: SourceFile,
    form: DelimitedInput,
    wanted: Sequence[str],
    block_bytes: int,
    encoded: Collection[str] = (),
) -> Iterator[Chunk]:
    """Yields the wanted columns of a csv or tsv file, as binary with nulls; ``encoded`` columns as dictionaries.

    Rows are numbered as records: the header and the lines before it count, empty lines do not, and a quoted value may
    hold line ends. Raises InputError if a column is missing, the file is damaged, or a record exceeds ``block_bytes``.
    """
    names = delimited_columns(source.path, form)
    require_columns(source.path, wanted, names)
    # Columns that are not wanted get unique names, since a header may repeat them.
    read = set(wanted)
    column_names = [name if name in read else f"\0{index}" for index, name in enumerate(names)]
    kinds = {
        name: pa.dictionary(pa.int32(), pa.binary()) if name in encoded else pa.binary() for name in wanted
    }
    converting = pa_csv.ConvertOptions(
        include_columns=list(wanted),
        column_types=kinds,
        strings_can_be_null=True,
        null_values=list(form.nulls),
    )
    refused: list[Any] = []

    def refuse(row: Any) -> str:
        refused.append(row)
        return "skip"

    parsing = pa_csv.ParseOptions(
        delimiter=form.field_delimiter,
        quote_char='"' if form.quotes else False,
        newlines_in_values=form.quotes,
        invalid_row_handler=refuse,
    )
    quotes = _StrictQuotes(form.field_delimiter, len(names), block_bytes)
    header = [name for name in names if name]
    row = 1 + form.skip_lines + form.header
    with faults_named(source.path), _quiet_about_text():
        for block in _records(source.path, form, quotes, block_bytes):
            refused.clear()
            # One thread: only then does Arrow number the refused rows.
            reading = pa_csv.ReadOptions(
                use_threads=False, block_size=len(block) + 1, column_names=column_names
            )
            try:
                table = pa_csv.read_csv(pa.BufferReader(block), reading, parsing, converting)
            except pa.ArrowInvalid as error:
                fault = str(error)
                if "Empty CSV file" in fault:
                    continue
                if number := re.search(r"Row #([0-9]+)", fault):
                    # Arrow counts the rows of the block.
                    fault = fault.replace(number[0], f"Row #{row + int(number[1]) - 1}", 1)
                raise pa.ArrowInvalid(fault) from None
            rows = row + np.delete(
                np.arange(table.num_rows + len(refused)), [bad.number - 1 for bad in refused]
            )
            rejects: list[Reject] = []
            header_rows: list[int] = []
            for bad in refused:
                fields = bad.text.strip().replace('"', "").split(form.field_delimiter)
                if form.header and [field for field in fields if field] == header:
                    header_rows.append(row + bad.number - 1)
                else:
                    rejects += _field_rejects(source.number, bad, row + bad.number - 1, quotes.faults)
            row += table.num_rows + len(refused)
            if form.header and (repeated := _repeats_header(table)).any():
                header_rows += rows[repeated].tolist()
                table, rows = table.filter(pa.array(~repeated)), rows[~repeated]
            line, allowed = form.field_delimiter.join(names), "the header as the first line only"
            rejects += [
                make_reject(source.number, number, "line", REPEATED_HEADER, line, allowed)
                for number in header_rows
            ]
            yield Chunk(source.number, table, rows, rejects)


def _records(path: Path, form: DelimitedInput, quotes: _StrictQuotes, block_bytes: int) -> Iterator[bytes]:
    """Yields whole records below the header, about ``block_bytes`` at a time."""
    skipped = form.skip_lines + form.header
    with open_bytes(path) as stream:
        rest = bytes(stream.read(len(BYTE_ORDER_MARK))).removeprefix(BYTE_ORDER_MARK)
        final = False
        while not final:
            part = bytes(stream.read(block_bytes))
            final = not part
            data = rest + part
            if skipped:
                lines = _LINE_END.split(data, skipped)
                if len(lines) <= skipped and not final:
                    rest = data
                    continue
                data, skipped = lines[skipped] if len(lines) > skipped else b"", 0
            if form.quotes and _QUOTE in data:
                block, cut = quotes.check(data, final)
            else:
                cut = len(data) if final else max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
                block = data[:cut]
            rest = data[cut:]
            if len(rest) > block_bytes:
                raise InputError(
                    f"{path}: a record is longer than the read buffer; check for a quote that is never closed"
                )
            if block:
                yield block


def _repeats_header(table: pa.Table) -> np.ndarray:
    """Returns [N] bool: whether a row holds the names of the columns."""
    # A single name may well be a value, and numbers are values.
    if table.num_columns < 2 or all(name.isdigit() for name in table.column_names):
        return np.zeros(table.num_rows, bool)
    repeated = np.ones(table.num_rows, bool)
    # Dictionaries, which have to be decoded, come last.
    for name in sorted(table.column_names, key=lambda name: pa.types.is_dictionary(table[name].type)):
        if repeated.any():
            same = pc.equal(table[name].cast(pa.binary()), name.encode())
            repeated &= pc.fill_null(same, False).to_numpy()
    return repeated


@contextmanager
def _quiet_about_text() -> Iterator[None]:
    # Arrow stops at a row that is no UTF-8, as it cannot pass it to ``refuse``; Python's error is dropped.
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, UnicodeDecodeError):
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _field_rejects(file: int, bad: Any, row: int, faults: Mapping[str, tuple[str, bytes]]) -> list[Reject]:
    if bad.text in faults:
        reason, line = faults[bad.text]
        return [make_reject(file, row, "line", reason, line, ALLOWED)]
    lines = bad.text.count("\n") + 1
    reason = "wrong number of fields" if lines == 1 else "wrong number of fields in a quoted run of lines"
    text = bad.text.replace("\n", " ")
    # A quote that is never closed swallows the lines after it: each is counted, so that none is lost silently.
    return [make_reject(file, row, "line", reason, text, f"{bad.expected_columns} fields")] * lines
