"""Sample of a table's rows that a mapping is inferred from: the first ones, and blocks spread over all files.

The lines go through the readers of an ingest. Memory and time have a bound whatever the size of the table.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr.data.mapping import DelimitedInput, JsonlInput, ParquetInput
from ctr.io.errors import InputError
from ctr.pipelines.inference.files import TableFiles, some_of
from ctr.pipelines.rows.convert import check_utf8
from ctr.pipelines.rows.delimited import delimited_columns, read_delimited
from ctr.pipelines.rows.jsonl import JsonlReader
from ctr.pipelines.rows.rejects import REPEATED_HEADER
from ctr.pipelines.rows.sources import (
    Chunk,
    SourceFile,
    faults_named,
    folder_keys,
    open_bytes,
    with_constants,
)

# Of text: bytes at the beginning, bytes of a block that stands elsewhere, and how many of these there are.
HEAD_BYTES = 4 << 20
BLOCK_BYTES = 512 << 10
BLOCKS = 16

_COMPRESSED_BYTES = 128 << 20
# How much longer compressed text is, roughly; only to choose a length of partitions.
_RATIO = 6
HEAD_ROWS, BATCH_ROWS = 30_000, 4096  # of Parquet files: at the beginning, and at each other place

_READ_BYTES = 4 << 20
# Rows with such a value become rejects.
_NO_TEXT = 0.005
_NO_NAME, _TWICE = "the column has no name", "the name stands twice in the header"


@dataclass(frozen=True)
class Sample:
    """Some rows of a table; the first ``head_rows`` are the first of the table."""

    columns: dict[str, pa.Array]  # of N rows, checked to be UTF-8 as an ingest does
    unusable: dict[str, str]  # by name, why a column cannot be used
    rows: int
    head_rows: int
    table_rows: int  # an estimate unless ``whole``
    whole: bool
    # [N] int64, the 1-based line or record number in the first file, as those of rejects; 0 for rows elsewhere.
    row_numbers: np.ndarray
    malformed: int = 0  # rows that could not be read, such as lines with a wrong number of fields
    headers: int = 0  # lines that repeat the header
    lacking: tuple[str, ...] = ()  # columns that some files lack

    def describe(self) -> str:
        if self.whole:
            return f"all {self.rows:,} rows"
        spread = f"the first {self.head_rows:,}, the others spread over the table"
        return f"{self.rows:,} rows of about {self.table_rows:,}: {spread}"


def read_sample(table: TableFiles) -> Sample:
    """Reads a sample of bounded size. Raises InputError for damaged files and for a table without rows."""
    sample = _parquet_sample(table) if isinstance(table.form, ParquetInput) else _text_sample(table)
    if not sample.columns and sample.unusable:
        shown = some_of(list(sample.unusable), 6)
        raise InputError(
            f"{table.files[0].path}: no column can be read: {shown} hold objects, lists of lists or other types than "
            'single values; allowed: a value, or a list of values, under each name, such as "user.id": 7 in place of '
            '"user": {"id": 7}'
        )
    if not sample.rows:
        unread = f"none of the {sample.malformed} lines could be read"
        below = " below the names of the columns" if table.columns else ""
        raise InputError(
            f"{table.files[0].path}: {unread if sample.malformed else 'there are no rows'}{below}"
        )
    return sample


@dataclass
class _Lines:
    """Whole lines of text files: of each file its beginning and other blocks, and how much of the files they are."""

    pieces: list[tuple[SourceFile, list[bytes]]]
    head_lines: int = 0  # in the first block
    taken: int = 0
    size: int = 0
    whole: bool = True


def _text_sample(table: TableFiles) -> Sample:
    form = table.form
    assert isinstance(form, DelimitedInput | JsonlInput)
    lines = _read_lines(table.files)
    with tempfile.TemporaryDirectory() as folder:
        parts = []
        for number, (file, blocks) in enumerate(lines.pieces):
            path = Path(folder) / f"{number}"
            path.write_bytes(b"".join(blocks))
            parts.append((file, SourceFile(0, path, file.name)))
        unusable, chunks, lacking = (
            _delimited_chunks(table, form, parts)
            if isinstance(form, DelimitedInput)
            else _json_chunks(table, parts)
        )
    rows = sum(chunk.table.num_rows for chunk in chunks)
    malformed = sum(len(chunk.rejects) for chunk in chunks)
    headers = sum(reject.reason == REPEATED_HEADER for chunk in chunks for reject in chunk.rejects)
    total = rows if lines.whole else round((rows + malformed) * lines.size / max(lines.taken, 1))
    first = form.skip_lines + form.header if isinstance(form, DelimitedInput) else 0
    head = max(0, min(lines.head_lines - first, rows))
    columns = _read_columns(chunks[0].table.column_names if chunks else [], chunks, unusable)
    numbers = np.concatenate([np.zeros(0, np.int64), *(chunk.rows for chunk in chunks)])
    numbers[head:] = 0
    return Sample(
        columns, unusable, rows, head, total, lines.whole, numbers, malformed - headers, headers, lacking
    )


def _read_parts(
    table: TableFiles,
    parts: Sequence[tuple[SourceFile, SourceFile]],
    wanted: Sequence[str],
    read: Callable[[SourceFile], Iterable[Chunk]],
) -> list[Chunk]:
    """The wanted columns of parts of files, each beside its file, which is named in place of the part."""
    chunks: list[Chunk] = []
    for file, part in parts:
        try:
            chunks += [_with_all_columns(chunk, wanted, table, file) for chunk in read(part)]
        except InputError as error:
            raise InputError(str(error).replace(str(part.path), str(file.path))) from None
    return chunks


def _delimited_chunks(
    table: TableFiles, form: DelimitedInput, parts: Sequence[tuple[SourceFile, SourceFile]]
) -> tuple[dict[str, str], list[Chunk], tuple[str, ...]]:
    unusable = _unusable_names(table.columns)
    wanted = [name for name in table.columns if name not in unusable]
    if not wanted:
        raise InputError(f"{table.files[0].path}: no column has a name of its own; allowed: each name once")

    def read(part: SourceFile) -> Iterable[Chunk]:
        names = delimited_columns(part.path, form)
        return read_delimited(part, form, [name for name in wanted if name in names], _READ_BYTES)

    return unusable, _read_parts(table, parts, wanted, read), tuple(table.lacking)


def _with_all_columns(chunk: Chunk, wanted: Sequence[str], table: TableFiles, file: SourceFile) -> Chunk:
    """The wanted columns, missing where the file lacks them, and those that its folders give, in this order."""
    names = chunk.table.column_names
    values: dict[str, str | None] = dict.fromkeys(name for name in wanted if name not in names)
    values |= {name: folder_keys(file.path)[name] for name in table.folders}
    chunk = with_constants(chunk, values)
    return replace(chunk, table=chunk.table.select([*wanted, *table.folders]))


def _unusable_names(names: Sequence[str]) -> dict[str, str]:
    faulty = [name for name in names if not name or names.count(name) > 1]
    return {name: _TWICE if name else _NO_NAME for name in faulty}


def _read_columns(
    names: Sequence[str], chunks: Sequence[Chunk], unusable: dict[str, str]
) -> dict[str, pa.Array]:
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


def _json_chunks(
    table: TableFiles, parts: Sequence[tuple[SourceFile, SourceFile]]
) -> tuple[dict[str, str], list[Chunk], tuple[str, ...]]:
    keys: dict[str, set[str]] = {}
    counts: Counter[str] = Counter()
    objects = 0
    for _, part in parts:
        with part.path.open("rb") as opened:
            for line in opened:
                try:
                    content = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(content, dict):
                    objects += 1
                    counts.update(content.keys())
                    for name, value in content.items():
                        keys.setdefault(name, set()).add(_json_kind(value))
    unusable = {name: "it holds objects or lists of lists" for name in keys if "nested" in keys[name]}
    unusable |= {name: _NO_NAME for name in keys if not name}
    unusable |= {
        name: "it holds lists in some rows and single values in others"
        for name in keys
        if name not in unusable and len(keys[name] - {"missing"}) > 1
    }
    wanted = [name for name in keys if name not in unusable and name not in table.folders]
    lists = {name: "|" for name in wanted if "list" in keys[name]}
    reader = JsonlReader(wanted, [], lists, all_needed=False)
    chunks = _read_parts(table, parts if wanted else (), wanted, lambda part: reader.read(part, _READ_BYTES))
    # One file alone has each of its keys somewhere.
    lacking = tuple(name for name in wanted if counts[name] < objects) if len(table.files) > 1 else ()
    return unusable, chunks, lacking


def _json_kind(value: object) -> str:
    if value is None:
        return "missing"
    if isinstance(value, list):
        return "nested" if any(isinstance(item, list | dict) for item in value) else "list"
    return "nested" if isinstance(value, dict) else "single"


def _read_lines(files: Sequence[SourceFile]) -> _Lines:
    sizes = [file.path.stat().st_size for file in files]
    lines = _Lines([], size=sum(sizes))
    # Of very many files those at even distances.
    step = max(1, len(files) // BLOCKS)
    for place in range(0, len(files), step):
        path, share = files[place].path, sizes[place] / max(lines.size, 1)
        blocks = max(1, round(BLOCKS * share * step))
        head = HEAD_BYTES if place == 0 else 0
        read = _compressed if path.suffix in (".gz", ".zst") else _plain
        taken: list[bytes] = []
        for piece in read(path, sizes[place], head, blocks, lines):
            lines.taken += len(piece)
            if place == 0 and not taken:
                lines.head_lines = piece.count(b"\n")
            taken.append(piece if piece.endswith(b"\n") or not piece else piece + b"\n")
        lines.pieces.append((files[place], taken))
    lines.whole &= step == 1
    return lines


def _ended(data: bytes) -> bytes:
    """Lines that end in a carriage return alone, as on an old Mac, end as others do."""
    return data if b"\n" in data else data.replace(b"\r", b"\n")


def _plain(path: Path, size: int, head: int, blocks: int, lines: _Lines) -> Iterator[bytes]:
    with faults_named(path), open_bytes(path) as file:
        if size <= head + blocks * BLOCK_BYTES:
            yield _ended(bytes(file.read()))
            return
        lines.whole = False
        yield _trimmed(path, _ended(bytes(file.read(head or BLOCK_BYTES))))
        begin = head or BLOCK_BYTES
        rest = blocks if head else blocks - 1
        for number in range(rest):
            file.seek(begin + (size - begin - BLOCK_BYTES) * (number + 1) // rest)
            block = _ended(bytes(file.read(BLOCK_BYTES)))
            # A block that begins inside a line goes on with the next one.
            yield block[block.find(b"\n") + 1 : block.rfind(b"\n") + 1]


def _compressed(path: Path, size: int, head: int, blocks: int, lines: _Lines) -> Iterator[bytes]:
    """As ``_plain``, but one cannot go to a place: of the first 128 MiB of text, a block every so often."""
    gap = _COMPRESSED_BYTES // BLOCKS
    with faults_named(path), open_bytes(path) as stream:
        first = _ended(bytes(stream.read(head or BLOCK_BYTES)))
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
            block = _ended(data[-BLOCK_BYTES:])
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
    for file in table.files[:: max(1, len(table.files) // BLOCKS)] if table.lacking else table.files[:1]:
        with faults_named(file.path):
            schema = pq.read_schema(file.path)
        for field in schema:
            if reason := _parquet_reason(field.type):
                unusable.setdefault(field.name, reason)
    wanted = [name for name in table.columns if name not in unusable]
    chunks: list[Chunk] = []
    total = head = 0
    step = max(1, len(table.files) // BLOCKS)
    per_file = max(1, BLOCKS * step // len(table.files))
    for place, file in enumerate(table.files):
        with faults_named(file.path), pq.ParquetFile(file.path) as opened:
            total += opened.metadata.num_rows
            if place % step or not wanted:
                continue
            last = opened.num_row_groups - 1
            groups = np.unique(np.linspace(0, last, per_file + 1 if last >= 0 else 0).astype(int))
            present = [name for name in wanted if name in opened.schema_arrow.names]
            for group in groups.tolist():
                batch = _first_rows(opened, group, present, BATCH_ROWS if chunks else HEAD_ROWS)
                chunk = Chunk(0, batch, np.arange(batch.num_rows), [])
                chunks.append(_with_all_columns(chunk, wanted, table, file))
                head = head or batch.num_rows
    rows = sum(chunk.table.num_rows for chunk in chunks)
    columns = _read_columns([*wanted, *table.folders] if wanted else [], chunks, unusable)
    numbers = np.arange(1, rows + 1)
    numbers[head:] = 0
    return Sample(columns, unusable, rows, head, total, rows == total, numbers, lacking=tuple(table.lacking))


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
    unread = (types.is_time, types.is_duration, types.is_interval, types.is_fixed_size_binary)
    if isinstance(kind, pa.BaseExtensionType) or any(
        is_kind(kind) for is_kind in (*unread, types.is_binary_view, types.is_nested)
    ):
        return f"it is of type {kind}"
    return ""
