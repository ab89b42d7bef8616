"""A sample of a table's rows that a mapping is inferred from: the first ones, and some spread over all files.

Text files are not read in whole: a block of lines at the beginning, and blocks at even distances. The lines go through
the same readers as in an ingest. So memory and time have a bound whatever the size of the table.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr.data.mapping import DelimitedInput, JsonlInput, ParquetInput
from ctr.io.errors import InputError
from ctr.pipelines.inference.forms import TableFiles
from ctr.pipelines.rows.chunks import Chunk
from ctr.pipelines.rows.convert import check_utf8
from ctr.pipelines.rows.delimited import read_delimited
from ctr.pipelines.rows.jsonl import JsonlReader
from ctr.pipelines.rows.sources import SourceFile, faults_named, open_bytes

HEAD_BYTES = 4 << 20
BLOCK_BYTES = 512 << 10
BLOCKS = 16
"""Of text: bytes at the beginning, bytes of a block that stands elsewhere, and how many of these there are."""

_COMPRESSED_BYTES = 128 << 20
# How much longer compressed text is, roughly; only to choose a length of partitions.
_RATIO = 6
HEAD_ROWS, BATCH_ROWS = 30_000, 4096
"""Of Parquet files: rows at the beginning, and rows at each other place."""

_READ_BYTES = 4 << 20
# Rows with such a value become rejects.
_NO_TEXT = 0.005


@dataclass(frozen=True)
class Sample:
    """Some rows of a table.

    Attributes:
        columns: by name, values of N rows, checked to be UTF-8 as an ingest does.
        unusable: by name, why a column cannot be used.
        rows: N.
        head_rows: the first rows of the table, which stand together, come first in the sample: so many.
        table_rows: rows of the table; an estimate unless ``whole``.
        whole: whether the sample is the whole table.
        malformed: rows that could not be read, such as lines with a wrong number of fields.
        row_numbers: [N] int64, the 1-based line or record number of each row in the first file, as those of rejects;
            0 for rows that stand elsewhere.
    """

    columns: dict[str, pa.Array]
    unusable: dict[str, str]
    rows: int
    head_rows: int
    table_rows: int
    whole: bool
    malformed: int
    row_numbers: np.ndarray

    def describe(self) -> str:
        """Which rows these are, in words."""
        if self.whole:
            return f"all {self.rows:,} rows"
        spread = f"the first {self.head_rows:,}, the others spread over the table"
        return f"{self.rows:,} rows of about {self.table_rows:,}: {spread}"


def read_sample(table: TableFiles) -> Sample:
    """Reads a sample of bounded size. Raises InputError for damaged files and for a table without rows."""
    sample = _parquet_sample(table) if isinstance(table.form, ParquetInput) else _text_sample(table)
    if not sample.rows:
        problem = (
            f"none of the {sample.malformed} lines could be read" if sample.malformed else "there are no rows"
        )
        raise InputError(f"{table.files[0].path}: {problem} below the names of the columns" if table.columns
                         else f"{table.files[0].path}: {problem}")  # fmt: skip
    return sample


@dataclass
class _Lines:
    """Whole lines of text files, and how much of the files they are."""

    blocks: list[bytes]
    head_lines: int = 0
    taken: int = 0
    size: int = 0
    whole: bool = True


def _text_sample(table: TableFiles) -> Sample:
    form = table.form
    assert isinstance(form, DelimitedInput | JsonlInput)
    lines = _read_lines(table.files, isinstance(form, DelimitedInput) and form.header)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sample"
        path.write_bytes(b"".join(lines.blocks))
        source = SourceFile(0, path, table.files[0].name)
        try:
            if isinstance(form, DelimitedInput):
                unusable = _unusable_names(table.columns)
                wanted = [name for name in table.columns if name not in unusable]
                if not wanted:
                    raise InputError(f"{path}: no column has a name of its own; allowed: each name once")
                chunks = list(read_delimited(source, form, wanted, _READ_BYTES))
            else:
                wanted, unusable, chunks = _json_chunks(source, path)
        except InputError as error:
            # The temporary file is nobody's.
            raise InputError(str(error).replace(str(path), str(table.files[0].path))) from None
    rows = sum(chunk.table.num_rows for chunk in chunks)
    malformed = sum(len(chunk.rejects) for chunk in chunks)
    total = rows if lines.whole else round((rows + malformed) * lines.size / max(lines.taken, 1))
    columns = _read_columns(wanted, chunks, unusable)
    head = min(lines.head_lines, rows)
    numbers = np.concatenate([np.zeros(0, np.int64), *(chunk.rows for chunk in chunks)])
    numbers[head:] = 0
    return Sample(columns, unusable, rows, head, total, lines.whole, malformed, numbers)


def _unusable_names(names: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        if not name:
            found[name] = "the column has no name"
        elif names.count(name) > 1:
            found[name] = "the name stands twice in the header"
    return found


def _read_columns(
    names: Sequence[str], chunks: Sequence[Chunk], unusable: dict[str, str]
) -> dict[str, pa.Array]:
    """The columns by name, but for those with too many values that are no text, which become unusable."""
    found = {}
    for name in names:
        checked = [
            check_utf8(chunk.table.column(name).combine_chunks()) for chunk in chunks if chunk.table.num_rows
        ]
        bad = sum(int(refused.sum()) for _, refused in checked)
        if bad > _NO_TEXT * sum(len(refused) for _, refused in checked):
            unusable[name] = f"{bad:,} values of the sample are not UTF-8"
        else:
            found[name] = _joined([values for values, _ in checked])
    return found


def _joined(pieces: list[pa.Array]) -> pa.Array:
    kinds = {piece.type for piece in pieces if not pa.types.is_null(piece.type)}
    if len(kinds) > 1:
        # JSON lines whose values are a number here and a text there.
        pieces = [piece.cast(pa.string()) for piece in pieces]
    elif kinds:
        pieces = [piece.cast(next(iter(kinds))) for piece in pieces]
    return pa.concat_arrays(pieces) if pieces else pa.array([], pa.string())


def _json_chunks(source: SourceFile, path: Path) -> tuple[list[str], dict[str, str], list[Chunk]]:
    """The columns of JSON lines, those that hold objects, and the rows."""
    keys: dict[str, set[str]] = {}
    with path.open("rb") as file:
        for line in file:
            try:
                content = json.loads(line)
            except (ValueError, RecursionError):
                continue
            for name, value in content.items() if isinstance(content, dict) else ():
                keys.setdefault(name, set()).add(_json_kind(value))
    unusable = {name: "it holds objects or lists of lists" for name in keys if "nested" in keys[name]}
    unusable |= {name: "the column has no name" for name in keys if not name}
    unusable |= {
        name: "it holds lists in some rows and single values in others"
        for name in keys
        if name not in unusable and len(keys[name] - {"missing"}) > 1
    }
    wanted = [name for name in keys if name not in unusable]
    lists = {name: "|" for name in wanted if "list" in keys[name]}
    reader = JsonlReader(wanted, [], lists, all_needed=False)
    return wanted, unusable, list(reader.read(source, _READ_BYTES)) if wanted else []


def _json_kind(value: object) -> str:
    if value is None:
        return "missing"
    if isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(item, list | dict) for item in value)
    ):
        return "nested"
    return "list" if isinstance(value, list) else "single"


def _read_lines(files: Sequence[SourceFile], header: bool) -> _Lines:
    """The first lines of the first file with its header, and blocks of lines spread over all files."""
    sizes = [file.path.stat().st_size for file in files]
    lines = _Lines([], size=sum(sizes))
    # Of very many files those at even distances.
    step = max(1, len(files) // BLOCKS)
    for place in range(0, len(files), step):
        path, share = files[place].path, sizes[place] / max(lines.size, 1)
        blocks = max(1, round(BLOCKS * share * step))
        head = HEAD_BYTES if place == 0 else 0
        pieces = _compressed(path, head, blocks, lines) if path.suffix in (".gz", ".zst") else _plain(
            path, sizes[place], head, blocks, lines)  # fmt: skip
        for number, piece in enumerate(pieces):
            lines.taken += len(piece)
            if place == 0 and number == 0:
                lines.head_lines = piece.count(b"\n") - header
            if place and number == 0 and header:
                piece = piece[piece.find(b"\n") + 1 :]
            lines.blocks.append(piece if piece.endswith(b"\n") or not piece else piece + b"\n")
    lines.whole &= step == 1
    return lines


def _plain(path: Path, size: int, head: int, blocks: int, lines: _Lines) -> Iterator[bytes]:
    with faults_named(path), open_bytes(path) as file:
        if size <= head + blocks * BLOCK_BYTES:
            yield bytes(file.read())
            return
        lines.whole = False
        yield _trimmed(path, bytes(file.read(head or BLOCK_BYTES)))
        begin = head or BLOCK_BYTES
        rest = blocks if head else blocks - 1
        for number in range(rest):
            file.seek(begin + (size - begin - BLOCK_BYTES) * (number + 1) // rest)
            block = bytes(file.read(BLOCK_BYTES))
            # A block that begins inside a line goes on with the next one.
            yield block[block.find(b"\n") + 1 : block.rfind(b"\n") + 1]


def _compressed(path: Path, head: int, blocks: int, lines: _Lines) -> Iterator[bytes]:
    """As ``_plain``, but one cannot go to a place: of the first 128 MiB of text, a block every so often."""
    gap = _COMPRESSED_BYTES // BLOCKS
    size = path.stat().st_size
    with faults_named(path), open_bytes(path) as stream:
        first = bytes(stream.read(head or BLOCK_BYTES))
        if len(first) < (head or BLOCK_BYTES):
            lines.size += len(first) - size
            yield first
            return
        lines.whole = False
        yield _trimmed(path, first)
        read = len(first)
        for _ in range(blocks):
            if read >= _COMPRESSED_BYTES:
                break
            data = bytes(stream.read(gap))
            read += len(data)
            block = data[-BLOCK_BYTES:]
            yield block[block.find(b"\n") + 1 : block.rfind(b"\n") + 1]
            if len(data) < gap:
                lines.size += read - size
                return
        lines.size += max(0, size * (_RATIO - 1))


def _trimmed(path: Path, block: bytes) -> bytes:
    cut = block.rfind(b"\n") + 1
    if not cut:
        raise InputError(f"{path}: the first line is longer than {len(block):,} bytes")
    return block[:cut]


def _parquet_sample(table: TableFiles) -> Sample:
    unusable = _unusable_names(table.columns)
    first = table.files[0].path
    with faults_named(first):
        schema = pq.read_schema(first)
    for field in schema:
        if (reason := _parquet_reason(field.type)) and field.name not in unusable:
            unusable[field.name] = reason
    wanted = [name for name in table.columns if name not in unusable]
    batches: list[pa.Table] = []
    total = head = 0
    step = max(1, len(table.files) // BLOCKS)
    per_file = max(1, BLOCKS * step // len(table.files))
    for place, file in enumerate(table.files):
        with faults_named(file.path), pq.ParquetFile(file.path) as opened:
            total += opened.metadata.num_rows
            if place % step or not wanted:
                continue
            groups = np.unique(np.linspace(0, opened.num_row_groups - 1, per_file + 1).astype(int)) if (
                opened.num_row_groups) else np.zeros(0, int)  # fmt: skip
            for group in groups.tolist():
                limit = HEAD_ROWS if not batches else BATCH_ROWS
                batches.append(_first_rows(opened, group, wanted, limit))
                head = head or batches[0].num_rows
    rows = sum(batch.num_rows for batch in batches)
    chunks = [Chunk(0, batch, np.zeros(0, np.int64), []) for batch in batches]
    columns = _read_columns(wanted, chunks, unusable)
    numbers = np.arange(1, rows + 1)
    numbers[head:] = 0
    return Sample(columns, unusable, rows, head, total, rows == total, 0, numbers)


def _first_rows(file: pq.ParquetFile, group: int, columns: Sequence[str], limit: int) -> pa.Table:
    found, rows = [], 0
    for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=list(columns), use_threads=False):
        found.append(batch)
        rows += batch.num_rows
        if rows >= limit:
            break
    return pa.Table.from_batches(found, file.schema_arrow.empty_table().select(list(columns)).schema)


def _parquet_reason(kind: pa.DataType) -> str:
    """Why a column of a type is not read; empty where it is."""
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return "it holds lists of lists or objects" if types.is_nested(kind.value_type) else ""
    unread = (
        types.is_time,
        types.is_duration,
        types.is_interval,
        types.is_fixed_size_binary,
        types.is_binary_view,
    )
    if any(is_so(kind) for is_so in unread) or isinstance(kind, pa.BaseExtensionType):
        return f"it is of type {kind}"
    return f"it is of type {kind}" if types.is_nested(kind) else ""
