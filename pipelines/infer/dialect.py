"""Finds a table's files and their format (type, delimiter, header, columns that some lack), and samples their rows."""

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ctr.config import parse_model
from ctr.data.mapping import DelimitedInput, JsonlInput, ParquetInput
from ctr.io.errors import InputError
from ctr.pipelines.tables.convert import check_utf8, is_text_or_number
from ctr.pipelines.tables.delimited import split_rows
from ctr.pipelines.tables.input_files import (
    BYTE_ORDER_MARK,
    Chunk,
    SourceFile,
    faults_named,
    find_files,
    folder_keys,
    is_blank,
    is_hidden,
    open_bytes,
    with_constants,
)
from ctr.pipelines.tables.jsonl import JsonlReader
from ctr.pipelines.tables.reader import read_table_file, row_group_sizes, table_file_columns
from ctr.pipelines.tables.rejects import REPEATED_HEADER

Form = DelimitedInput | JsonlInput | ParquetInput

START_BYTES = 256 << 10
_LINES = 500  # number of lines at the beginning of a file that are inspected
_MOST_SKIPPED = 100
# By preference among equals: a comma may be a decimal comma.
_DELIMITERS = "\t;|,"
_CONSISTENT = 0.9  # share of the lines that must have as many fields as the header
_NUMBERED = re.compile(r"c[1-9][0-9]*")

_TABLE = "one value of each column for each row, with a header, as csv, tsv, JSON lines or Parquet"
_NUMBER = r"[-+]?\d[\d.eE+-]*"
_FOREIGN = {
    "XML or HTML": "<[!?A-Za-z].*",
    "libffm (LABEL FIELD:INDEX:VALUE ...)": rf"{_NUMBER}([ \t]+\d+:\d+:{_NUMBER})+",
    "libsvm (LABEL INDEX:VALUE ...)": rf"{_NUMBER}([ \t]+qid:\d+)?([ \t]+\w+:{_NUMBER})+\s*(#.*)?",
    "Vowpal Wabbit's (LABEL |NAMESPACE FEATURE ...)": (
        rf"({_NUMBER}[ \t]+)*('?[\w-]+[ \t]*)?(\|[A-Za-z]\w*[ \t].*|\|[ \t][^|]*)"
    ),
}


@dataclass(frozen=True)
class TableFiles:
    """Files of a table and their format."""

    files: tuple[SourceFile, ...]  # without empty files, in the order of their rows
    form: Form  # the ``input`` of a mapping
    columns: tuple[str, ...]  # in the order of the header; empty for JSON lines
    folders: tuple[str, ...]  # columns from names of folders, such as ``dt=2023-11-14``
    notes: tuple[str, ...]


def find_table(path: Path, label: str | None) -> TableFiles:
    """Finds a table's files and their format; ``label`` is the rule whose column the header should name.

    Raises InputError for files that are not a table, or are several tables.
    """
    inputs, pattern = _files_of(path) if path.is_dir() else (find_files([path], (), ()), None)
    files = tuple(file for file in inputs if not is_blank(file.path))
    if not files:
        raise InputError(f"{inputs[0].path}: is empty; a table with a label and a feature is required")
    if any(file.path.name.startswith("behaviors.tsv") for file in files):
        raise InputError(
            f"{path}: a row of MIND's behaviors.tsv is a whole list of impressions, not one: make rows of it by "
            "examples/mind/rows.py"
        )
    first = files[0].path
    content = _input_of(first, label)
    if pattern is not None and pattern != f"*.{content['type']}":
        content["pattern"] = pattern
    models: dict[str, Any] = {"jsonl": JsonlInput, "parquet": ParquetInput}
    form: Form = parse_model(models.get(content["type"], DelimitedInput), content, str(first))
    columns: tuple[str, ...] = ()
    notes = []
    if not isinstance(form, JsonlInput):
        names_by_file = [table_file_columns(file.path, form) for file in files]
        widest = max(names_by_file, key=len)
        for file, names in zip(files, names_by_file, strict=True):
            others = set(names) ^ set(widest)
            # One file has all columns, and the others at least half of them.
            if set(names) - set(widest) or len(others) > 0.5 * len(widest):
                raise InputError(
                    f"input {path}: {files[names_by_file.index(widest)].name} and {file.name} have different columns: "
                    f"{', '.join(sorted(others)[:3])} in one alone; give one file; a side table is joined by a mapping "
                    "of your own (ctr ingest table)"
                )
        columns = (*names_by_file[0], *(name for name in widest if name not in names_by_file[0]))
        if lacking := [name for name in columns if any(name not in names for names in names_by_file)]:
            form = form.model_copy(update={"optional": tuple(lacking)})
            notes.append(f"missing where a file lacks them: {', '.join(lacking)}")
    keys = [set(folder_keys(Path("/", file.name))) for file in files]
    folders = tuple(sorted(set.intersection(*keys).difference(columns)))
    if len(files) < len(inputs):
        empty = [file.name for file in inputs if file not in files]
        notes.append(f"{len(empty)} of {len(inputs)} files are empty and are skipped: {', '.join(empty[:3])}")
    if folders:
        notes.append(f"the folders of the files give the column {' and '.join(folders)}")
    return TableFiles(files, form, columns, folders, tuple(notes))


def _files_of(folder: Path) -> tuple[list[SourceFile], str]:
    """Returns the files of a folder, or of its subfolders if it holds none, and their glob."""
    for below in ("", "**/"):
        inside = (path.relative_to(folder) for path in folder.glob(f"{below}*") if path.is_file())
        if paths := sorted(path for path in inside if not is_hidden(path)):
            break
    else:
        raise InputError(f"input {folder}: no file in this folder")
    stems = [path.name.removesuffix(".gz").removesuffix(".zst") for path in paths]
    suffixes = {Path(stem).suffix for stem in stems}
    if len(suffixes) > 1:
        names = ", ".join(path.as_posix() for path in paths[:6])
        raise InputError(
            f"input {folder}: holds files of several kinds ({names}): give one file, or a folder of one"
        )
    is_compressed = any(path.name != stem for path, stem in zip(paths, stems, strict=True))
    [suffix] = suffixes
    # The default pattern of a mapping also finds compressed files.
    more = "*" if is_compressed and (below or suffix not in (".csv", ".tsv", ".jsonl")) else ""
    patterns = [f"{below}*{suffix}{compression}" for compression in ("", ".gz", ".zst")]
    return find_files([folder], patterns, ()), patterns[0] + more


def read_start(path: Path, size: int = START_BYTES) -> str:
    """Reads the start of a text file, decompressed, with bad UTF-8 replaced. Raises InputError if it is damaged."""
    with faults_named(path), open_bytes(path) as stream:
        text = bytes(stream.read(size)).decode("utf-8", "replace").removeprefix("\ufeff")
    return text.replace("\r\n", "\n") if "\n" in text else text.replace("\r", "\n")


def _input_of(path: Path, label: str | None) -> dict[str, Any]:
    """Infers the ``input`` of a mapping from a file's content. Raises InputError if it is not a table."""
    with path.open("rb") as file:
        if file.read(4) == b"PAR1":
            return {"type": "parquet"}
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix not in (".gz", ".zst")]
    if suffixes[-1:] in ([".parquet"], [".pq"]):
        raise InputError(f"{path}: is no Parquet file, though its name ends in {suffixes[-1]}")
    text = read_start(path)
    is_json = suffixes[-1:] in ([".json"], [".jsonl"], [".ndjson"])
    if is_json or text.lstrip().startswith(("{", "[")):
        lines = text.strip().split("\n")[:10]
        if any(_json_object(line) is not None for line in lines):
            return {"type": "jsonl"}
        if is_json or re.match(r"\s*\[\s*\{|\s*\{\s*$", lines[0]):
            raise InputError(
                f"{path}: does not hold one JSON object a line; allowed: one JSON object a line, as jq -c '.[]' or "
                "pandas' to_json(orient='records', lines=True) writes"
            )
    return _delimited_input(path, text, label)


def _json_object(line: str | bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _delimited_input(path: Path, text: str, label: str | None) -> dict[str, Any]:
    whole = text[: text.rfind("\n") + 1] if len(text) >= START_BYTES // 2 else text
    lines = whole.split("\n")[:_LINES]
    # A column's name may itself look like a rule.
    wanted = {label, re.split(r"\s*(?:>=|<=|==|!=|>|<)", label)[0]} - {""} if label is not None else set()
    layout = _find_header(lines, wanted)
    has_label = layout is not None and bool(wanted & set(layout[2]))
    is_numbered = not has_label and any(map(_NUMBERED.fullmatch, wanted))
    if layout is None or not (has_label or is_numbered):
        # Nothing says that this is a table with the label: it may be of another format.
        _check_foreign(path, lines, layout is not None)
    if layout is None:
        begin = next((line for line in lines if line.strip()), "")[:40]
        raise InputError(
            f"{path}: has one column ({begin}); a label and at least one feature are required, in columns "
            "between commas, tabs, ; or |"
        )
    skipped, delimiter, header = layout
    content: dict[str, Any] = {"type": "tsv" if delimiter == "\t" else "csv"}
    if delimiter not in ",\t":
        content["delimiter"] = delimiter
    fields = [field for line in lines for field in line.split("\t")] if delimiter == "\t" else []
    if any(len(field) > 1 and field[0] == field[-1] == '"' for field in fields):
        content["quoting"] = True
    if skipped:
        content["skip_lines"] = skipped
    if is_numbered:
        content |= {"header": False, "columns": [f"c{number}" for number in range(1, len(header) + 1)]}
    return content


def _fields(line: str, delimiter: str) -> list[str]:
    return next(iter(split_rows(line, delimiter, delimiter != "\t" or '"' in line, 1)), [])


def _find_header(lines: Sequence[str], wanted: set[str]) -> tuple[int, str, list[str]] | None:
    """Finds the header: the number of lines before it, which are comments or titles, the delimiter, and its fields.

    It is the first line with the label among its fields; if there is none, the first line with several fields, split at
    the delimiter that gives the most fields, nearly as many in all lines.
    """
    for index, line in enumerate(lines[: _MOST_SKIPPED + 1]):
        for delimiter in _DELIMITERS:
            fields = _fields(line, delimiter)
            if len(fields) > 1 and wanted & set(fields):
                return index, delimiter, fields
    best: tuple[int, str, list[str]] | None = None
    looked = [(index, line) for index, line in enumerate(lines) if line.strip() and not line.startswith("#")]
    text = "\n".join(line for _, line in looked)
    for delimiter in _DELIMITERS:
        rows = split_rows(text, delimiter, delimiter != "\t" or '"' in text, _LINES)
        rows = list(itertools.dropwhile(lambda row: len(row) < 2, rows))
        # A header may lack the name of the row's number, or end with a delimiter.
        fitting = sum(abs(len(row) - len(rows[0])) < 2 for row in rows)
        if rows and fitting >= _CONSISTENT * len(rows) and (best is None or len(rows[0]) > len(best[2])):
            index = next(index for index, line in looked if len(_fields(line, delimiter)) > 1)
            best = index, delimiter, rows[0]
    return best


def _check_foreign(path: Path, lines: Sequence[str], has_columns: bool) -> None:
    """Raises InputError if the lines, including the first, are in a format that is not a table of single values."""
    filled = [line.strip() for line in lines if line.strip()][:50]
    if not filled:
        raise InputError(f"{path}: its beginning holds no row; allowed: {_TABLE}")
    for name, pattern in _FOREIGN.items():
        matching = [re.fullmatch(pattern, line) is not None for line in filled]
        if matching[0] and sum(matching) >= _CONSISTENT * len(filled):
            raise InputError(f"{path}: the format is {name}, which is not read; allowed: {_TABLE}")
    if not has_columns and sum(line.count("::") >= 2 for line in filled) >= _CONSISTENT * len(filled):
        raise InputError(
            f"{path}: the fields are separated by ::; allowed: one character, such as a tab that no value contains, as "
            r"sed 's/::/\t/g' writes"
        )


SAMPLE_ROWS, SAMPLE_FILES = 50_000, 16
_BLOCK_BYTES = 4 << 20
# Rough ratio of a text's size to its compressed size; used only to choose a length of partitions.
_RATIO = 6
# A column is left out where more of its values than this are not UTF-8.
_NO_TEXT = 0.005


@dataclass(frozen=True)
class Sample:
    """Sample of a table's rows, by column."""

    columns: dict[str, pa.Array]  # of N rows, as an ingest reads them
    unusable: dict[str, str]  # by name, why a column cannot be used
    rows: int
    table_rows: int  # an estimate unless ``whole``
    whole: bool
    malformed: int = 0  # rows that could not be read, such as lines with a wrong number of fields
    headers: int = 0  # lines that repeat the header
    lacking: tuple[str, ...] = ()  # keys that some lines of several files of JSON lack

    def describe(self) -> str:
        """Describes which rows the sample holds."""
        some = f"the first {self.rows:,} of about {self.table_rows:,} rows"
        return f"all {self.rows:,} rows" if self.whole else some


def read_sample(table: TableFiles) -> Sample:
    """Reads a sample of bounded size. Raises InputError for damaged files, or without rows or readable columns."""
    files = table.files[:: -(-len(table.files) // SAMPLE_FILES)]
    limit = SAMPLE_ROWS // len(files)
    unusable = {
        name: "the name stands twice in the header" if name else "the column has no name"
        for name in table.columns
        if not name or table.columns.count(name) > 1
    }
    names, lacking = list(table.columns), list[str]()
    lists: dict[str, str] = {}
    if isinstance(table.form, JsonlInput):
        names, lists, lacking = _json_keys(files, limit, unusable)
    elif isinstance(table.form, ParquetInput):
        fields = [field for file in files for field in pq.read_schema(file.path)]
        unusable |= {
            field.name: f"it is of type {field.type}" for field in fields if not _is_read(field.type)
        }
    wanted = [name for name in names if name not in unusable]
    # In a single file every key occurs in some line.
    lacking = [name for name in lacking if len(table.files) > 1 and name in wanted]
    if not wanted:
        reasons = "; ".join(f"{name or '(no name)'}: {why}" for name, why in list(unusable.items())[:4])
        raise InputError(
            f"{table.files[0].path}: no column can be read ({reasons}); allowed: each name once, and a value or a list "
            "of values under it"
        )
    chunks: list[Chunk] = []
    whole = len(files) == len(table.files)
    for file in files:
        if isinstance(table.form, JsonlInput):
            read: Iterable[Chunk] = JsonlReader(wanted, [], lists, all_needed=False).read(file, _BLOCK_BYTES)
        else:
            read = read_table_file(file, table.form, wanted, _BLOCK_BYTES)
        constants = {name: folder_keys(file.path)[name] for name in table.folders}
        rows = 0
        for chunk in read:
            if rows < limit:
                first_rows = replace(chunk, table=chunk.table.slice(0, limit - rows))
                chunks.append(with_constants(first_rows, constants))
            rows += chunk.table.num_rows
            if rows > limit:
                whole = False
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
            kinds = {values.type for values, _ in checked if not pa.types.is_null(values.type)}
            # JSON lines whose values are a number here and a text there are texts.
            kind = pa.string() if len(kinds) > 1 else next(iter(kinds), pa.null())
            columns[name] = pa.concat_arrays([values.cast(kind) for values, _ in checked])
    total = rows if whole else max(rows, _estimated_rows(table))
    return Sample(columns, unusable, rows, total, whole, len(rejects) - headers, headers, tuple(lacking))


def _estimated_rows(table: TableFiles) -> int:
    if isinstance(table.form, ParquetInput):
        return sum(sum(row_group_sizes(file.path)) for file in table.files)
    start = read_start(table.files[0].path)
    is_compressed = table.files[0].path.suffix in (".gz", ".zst")
    size = sum(file.path.stat().st_size for file in table.files) * (_RATIO if is_compressed else 1)
    return round(size * start.count("\n") / len(start.encode()))


def _json_keys(
    files: Sequence[SourceFile], limit: int, unusable: dict[str, str]
) -> tuple[list[str], dict[str, str], list[str]]:
    """Returns JSON lines' keys, lists' separators, and keys that some lines lack; adds faults to ``unusable``."""
    rows: list[dict[str, Any]] = []
    for file in files:
        with faults_named(file.path), open_bytes(file.path) as stream:
            lines = bytes(stream.read(_BLOCK_BYTES)).removeprefix(BYTE_ORDER_MARK).split(b"\n")[:limit]
        rows += [content for content in map(_json_object, lines) if content is not None]
    names = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    separators = {}
    for name in names:
        values = [row[name] for row in rows if row.get(name) is not None]
        lists = [value for value in values if isinstance(value, list)]
        if not name:
            unusable[name] = "the column has no name"
        elif any(isinstance(item, list | dict) for value in lists for item in value) or any(
            isinstance(value, dict) for value in values
        ):
            unusable[name] = "it holds objects or lists of lists"
        elif lists and len(lists) < len(values):
            unusable[name] = "it holds lists in some rows and single values in others"
        elif lists:
            separators[name] = "|"
    return names, separators, [name for name in names if any(name not in row for row in rows)]


def _is_read(kind: pa.DataType) -> bool:
    types = pa.types
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType | pa.DictionaryType):
        # Lists and dictionaries, but none of lists.
        return not types.is_nested(kind.value_type) and _is_read(kind.value_type)
    is_bytes = types.is_binary(kind) or types.is_large_binary(kind) or types.is_string_view(kind)
    return is_text_or_number(kind) or is_bytes or types.is_timestamp(kind) or types.is_date(kind)
