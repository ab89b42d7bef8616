"""Sample of a table's rows: the first ones of some of its files, through the readers of an ingest."""

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from ctr.data.mapping import JsonlInput, ParquetInput
from ctr.io.errors import InputError
from ctr.pipelines.infer.dialect import TableFiles, read_start
from ctr.pipelines.tables.convert import check_utf8, is_text_or_number
from ctr.pipelines.tables.input_files import (
    Chunk,
    SourceFile,
    faults_named,
    folder_keys,
    open_bytes,
    with_constants,
)
from ctr.pipelines.tables.jsonl import BYTE_ORDER_MARK, JsonlReader
from ctr.pipelines.tables.rejects import REPEATED_HEADER
from ctr.pipelines.tables.table_files import read_table_file, row_group_sizes

SAMPLE_ROWS, SAMPLE_FILES = 50_000, 16
_BLOCK_BYTES = 4 << 20
# How much longer compressed text is, roughly; only to choose a length of partitions.
_RATIO = 6
# A column is left out where more of its values than this are not UTF-8.
_NO_TEXT = 0.005


@dataclass(frozen=True)
class Sample:
    """Some rows of a table."""

    columns: dict[str, pa.Array]  # of N rows, as an ingest reads them
    unusable: dict[str, str]  # by name, why a column cannot be used
    rows: int
    table_rows: int  # an estimate unless ``whole``
    whole: bool
    malformed: int = 0  # rows that could not be read, such as lines with a wrong number of fields
    headers: int = 0  # lines that repeat the header
    lacking: tuple[str, ...] = ()  # keys that some lines of several files of JSON lack

    def describe(self) -> str:
        """Says which rows the sample holds."""
        return (
            f"all {self.rows:,} rows"
            if self.whole
            else f"the first {self.rows:,} of about {self.table_rows:,} rows"
        )


def read_sample(table: TableFiles) -> Sample:
    """Reads a sample of bounded size. Raises InputError for damaged files and for a table without rows."""
    files = table.files[:: -(-len(table.files) // SAMPLE_FILES)]
    limit = SAMPLE_ROWS // len(files)
    unusable = {
        name: "the name stands twice in the header" if name else "the column has no name"
        for name in table.columns
        if not name or table.columns.count(name) > 1
    }
    lacking: tuple[str, ...] = ()
    if isinstance(table.form, JsonlInput):
        kinds, always = _json_keys(files, limit, unusable)
        wanted = [name for name in kinds if name not in unusable]
        # A file alone has each of its keys somewhere.
        lacking = tuple(name for name in wanted if len(table.files) > 1 and name not in always)
    else:
        if isinstance(table.form, ParquetInput):
            unusable |= _parquet_faults(files)
        wanted = [name for name in table.columns if name not in unusable]
    if not wanted:
        shown = "; ".join(f"{name or '(no name)'}: {why}" for name, why in list(unusable.items())[:4])
        raise InputError(
            f"{table.files[0].path}: no column can be read ({shown}); allowed: each name once, and a value or a list "
            "of values under it"
        )
    chunks: list[Chunk] = []
    whole = len(files) == len(table.files)
    for file in files:
        if isinstance(table.form, JsonlInput):
            lists = {name: "|" for name in wanted if "list" in kinds[name]}
            read: Iterable[Chunk] = JsonlReader(wanted, [], lists, all_needed=False).read(file, _BLOCK_BYTES)
        else:
            read = read_table_file(file, table.form, wanted, _BLOCK_BYTES)
        rows = 0
        for chunk in read:
            values = {name: folder_keys(file.path)[name] for name in table.folders}
            chunk = with_constants(chunk, values)
            if rows + chunk.table.num_rows > limit:
                whole = False
                chunk = replace(chunk, table=chunk.table.slice(0, limit - rows))
            chunks.append(chunk)
            rows += chunk.table.num_rows
            if rows >= limit:
                # What is left of the file is not known.
                whole = whole and next(iter(read), None) is None
                break
    rows = sum(chunk.table.num_rows for chunk in chunks)
    rejects = [reject for chunk in chunks for reject in chunk.rejects]
    headers = sum(reject.reason == REPEATED_HEADER for reject in rejects)
    if not rows:
        why = f"none of the {len(rejects)} lines could be read" if rejects else "there are no rows"
        below = " below the names of the columns" if table.columns else ""
        raise InputError(f"{table.files[0].path}: {why}{below}")
    columns = {}
    for name in (*wanted, *table.folders):
        checked = [check_utf8(chunk.table.column(name).combine_chunks()) for chunk in chunks]
        bad = sum(int(refused.sum()) for _, refused in checked)
        if bad > _NO_TEXT * rows:
            unusable[name] = f"{bad:,} values of the sample are not UTF-8"
        else:
            columns[name] = _joined([values for values, _ in checked])
    total = rows if whole else max(rows, _estimated_rows(table))
    return Sample(columns, unusable, rows, total, whole, len(rejects) - headers, headers, lacking)


def _joined(pieces: list[pa.Array]) -> pa.Array:
    kinds = {piece.type for piece in pieces if not pa.types.is_null(piece.type)}
    if len(kinds) > 1:
        # JSON lines whose values are a number here and a text there.
        pieces = [piece.cast(pa.string()) for piece in pieces]
    elif kinds:
        pieces = [piece.cast(next(iter(kinds))) for piece in pieces]
    return pa.concat_arrays(pieces)


def _estimated_rows(table: TableFiles) -> int:
    if isinstance(table.form, ParquetInput):
        return sum(sum(row_group_sizes(file.path)) for file in table.files)
    start = read_start(table.files[0].path)
    is_compressed = table.files[0].path.suffix in (".gz", ".zst")
    size = sum(file.path.stat().st_size for file in table.files) * (_RATIO if is_compressed else 1)
    return round(size * start.count("\n") / len(start.encode()))


def _json_keys(
    files: Sequence[SourceFile], limit: int, unusable: dict[str, str]
) -> tuple[dict[str, set[str]], set[str]]:
    """The kinds of values under each key of JSON lines, and the keys of all lines; adds to ``unusable``."""
    kinds: dict[str, set[str]] = {}
    always: set[str] | None = None
    for file in files:
        with faults_named(file.path), open_bytes(file.path) as stream:
            block = bytes(stream.read(_BLOCK_BYTES)).removeprefix(BYTE_ORDER_MARK)
        for line in itertools.islice(block.split(b"\n"), limit):
            try:
                content = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(content, dict):
                always = set(content) if always is None else always & set(content)
                for name, value in content.items():
                    kinds.setdefault(name, set()).add(_json_kind(value))
    for name, found in kinds.items():
        if not name:
            unusable[name] = "the column has no name"
        elif "nested" in found:
            unusable[name] = "it holds objects or lists of lists"
        elif {"list", "single"} <= found:
            unusable[name] = "it holds lists in some rows and single values in others"
    return kinds, always or set()


def _json_kind(value: object) -> str:
    if isinstance(value, list):
        return "nested" if any(isinstance(item, list | dict) for item in value) else "list"
    return "missing" if value is None else "nested" if isinstance(value, dict) else "single"


def _parquet_faults(files: Sequence[SourceFile]) -> dict[str, str]:
    """Why columns of Parquet files are not read, by name."""
    found: dict[str, str] = {}
    for file in files:
        with faults_named(file.path):
            schema = pq.read_schema(file.path)
        found |= {
            name: f"it is of type {kind}"
            for name, kind in zip(schema.names, schema.types, strict=True)
            if not _is_read(kind)
        }
    return found


def _is_read(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return not types.is_nested(kind.value_type) and _is_read(kind.value_type)
    if types.is_dictionary(kind):
        return _is_read(kind.value_type)
    is_bytes = types.is_binary(kind) or types.is_large_binary(kind) or types.is_string_view(kind)
    return is_text_or_number(kind) or is_bytes or types.is_timestamp(kind) or types.is_date(kind)
