"""How the files of a table are read: which ones they are, their format, delimiter, quotes, header and columns."""

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctr.config import parse_model
from ctr.data.mapping import DelimitedInput, JsonlInput, ParquetInput, format_names, load_format
from ctr.io.errors import InputError
from ctr.pipelines.rows.parquet import parquet_columns
from ctr.pipelines.rows.sources import SourceFile, faults_named, find_files, natural_order, open_bytes

Form = DelimitedInput | JsonlInput | ParquetInput

_SUFFIX_TYPES = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_COMPRESSIONS = (".gz", ".zst")
_DELIMITERS = {"csv": ",;|\t", "tsv": "\t,;|", "": "\t,;|"}
_COMMA_ELSEWHERE = re.compile(r"(?<![0-9]),|,(?![0-9])")
_START_BYTES = 256 << 10
_LINES = 500
_SUGGEST = "ctr ingest {name} reads this format with a mapping made for it"


@dataclass(frozen=True)
class TableFiles:
    """The files of a table and how they are read.

    Attributes:
        files: the files, in the order in which their rows count.
        form: the ``input`` of a mapping.
        columns: the names of the columns in their order, as the header or the form has them; empty for JSON lines.
        suggestion: the shipped mapping that reads these files, in a sentence; empty where there is none.
    """

    files: tuple[SourceFile, ...]
    form: Form
    columns: tuple[str, ...]
    suggestion: str


def find_table(given: Path) -> TableFiles:
    """Finds out how a file, or the files of a folder, are read.

    Raises:
        InputError: no file, files of several kinds, files with different columns, or of a format that is not read.
    """
    if given.is_dir():
        files, pattern = _files_of(given)
    else:
        files, pattern = tuple(find_files([given], (), ())), None
    first = files[0].path
    if any(file.path.name.startswith("behaviors.tsv") for file in files):
        raise InputError(
            f"{given}: a row of MIND's behaviors.tsv is a whole list of impressions, not one: use ctr ingest mind"
        )
    kind = _type_of(first)
    content: dict[str, Any] = {"type": kind}
    columns: tuple[str, ...] = ()
    if kind == "parquet":
        columns = parquet_columns(first)
    elif kind != "jsonl":
        content, columns = _delimited(first, kind)
    if pattern is not None and pattern != f"*.{content['type']}":
        content["pattern"] = pattern
    form = parse_model(_MODELS[content["type"]], content, str(first))
    table = TableFiles(files, form, columns, _suggestion(columns, form))
    _check_same_columns(given, table)
    return table


_MODELS: dict[str, Any] = {
    "csv": DelimitedInput,
    "tsv": DelimitedInput,
    "jsonl": JsonlInput,
    "parquet": ParquetInput,
}


def _files_of(folder: Path) -> tuple[tuple[SourceFile, ...], str]:
    """The files of a folder in their order, and the glob that finds them."""
    names = sorted((path.name for path in folder.iterdir() if path.is_file()), key=natural_order)
    names = [name for name in names if not name.startswith((".", "_"))]
    if not names:
        raise InputError(f"input {folder}: no file in this folder")
    kinds = {name: Path(name.removesuffix(".gz").removesuffix(".zst")).suffix for name in names}
    if len(set(kinds.values())) > 1:
        shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
        raise InputError(
            f"input {folder}: holds files of several kinds ({shown}): give one file, or a folder of one"
        )
    suffix = next(iter(kinds.values()))
    if not suffix:
        if len(names) > 1:
            raise InputError(f"input {folder}: the names of its files have no common ending: give one file")
        return tuple(find_files([folder], names, ())), names[0]
    plain = not any(name.endswith(_COMPRESSIONS) for name in names)
    pattern = f"*{suffix}" if plain or suffix[1:] in _MODELS else f"*{suffix}*"
    patterns = [f"*{suffix}{compression}" for compression in ("", *_COMPRESSIONS)]
    return tuple(find_files([folder], patterns, [".*", "_*"])), pattern


def _type_of(path: Path) -> str:
    """csv, tsv, jsonl or parquet by the name and the first bytes; empty for text of another name."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in _COMPRESSIONS]
    named = _SUFFIX_TYPES.get(suffixes[-1].lower(), "") if suffixes else ""
    with path.open("rb") as file:
        if file.read(4) == b"PAR1":
            return "parquet"
    if named == "parquet":
        return named
    start = read_start(path).lstrip("\ufeff \t\r\n")
    if named == "jsonl" and start and not start.startswith("{"):
        is_array = start.startswith("[")
        found = "one JSON array" if is_array else "no JSON objects"
        raise InputError(f"{path}: holds {found}; allowed: one JSON object a line")
    return "jsonl" if not named and start.startswith("{") else named


def read_start(path: Path, size: int = _START_BYTES) -> str:
    """The first characters of a text file, decompressed; bytes that are no UTF-8 are replaced.

    Raises:
        InputError: the file holds something else than text, or is damaged.
    """
    with faults_named(path), open_bytes(path) as stream:
        return bytes(stream.read(size)).decode("utf-8", "replace")


def _delimited(path: Path, kind: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The ``input`` of a delimited file, and the names of its columns."""
    start = read_start(path).removeprefix("\ufeff")
    if not start.strip():
        raise InputError(f"{path}: is empty; a table with a label and at least one feature is required")
    whole = start[: start.rfind("\n") + 1] if len(start) >= _START_BYTES // 2 and "\n" in start else start
    delimiter = _sniff(whole, _DELIMITERS[kind])
    quoting = delimiter != "\t" or _has_quoted(whole, delimiter)
    rows = _rows(whole, delimiter, quoting)
    content: dict[str, Any] = {"type": "tsv" if delimiter == "\t" else "csv"}
    if delimiter not in ",\t":
        content["delimiter"] = delimiter
    if quoting and delimiter == "\t":
        content["quoting"] = True
    if _is_header(rows):
        return content, tuple(rows[0])
    names = tuple(f"c{number}" for number in range(1, len(rows[0]) + 1))
    return {**content, "header": False, "columns": list(names)}, names


def _rows(text: str, delimiter: str, quoting: bool) -> list[list[str]]:
    """The fields of the first lines; empty lines are skipped."""
    lines = io.StringIO(text.replace("\0", ""))
    reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE)
    rows: list[list[str]] = []
    try:
        for row in reader:
            rows += [row] if row else []
            if len(rows) == _LINES:
                break
    except csv.Error:
        # A field longer than Python's limit: what came before it is enough to go on.
        pass
    return rows or [text.splitlines()[:1]]


def _sniff(text: str, delimiters: str) -> str:
    """The delimiter with which most lines have the same number of fields, at least two; else the first one."""
    best = (False, 0.0, delimiters[0])
    for delimiter in delimiters:
        rows = _rows(text, delimiter, delimiter != "\t")
        counts = Counter(map(len, rows))
        fields, lines = counts.most_common(1)[0]
        share = lines / counts.total()
        # A decimal comma gives lines the same number of fields, too. It stands only between digits, never in a header.
        is_decimal = delimiter == "," and ";" in text and not _COMMA_ELSEWHERE.search(text)
        fits = len(rows[0]) == fields and not is_decimal
        # Among equals the first one of the order.
        if fields > 1 and (fits, share) > (best[0], best[1] + 0.02):
            best = (fits, share, delimiter)
    return best[2]


def _has_quoted(text: str, delimiter: str) -> bool:
    fields = [field for line in text.splitlines()[:_LINES] for field in line.split(delimiter)]
    opened = sum(field.startswith('"') for field in fields)
    closed = sum(len(field) > 1 and field.startswith('"') and field.endswith('"') for field in fields)
    return closed > 0 and closed == opened


def _is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names the columns: no number in it, and values unlike those below."""
    first, below = rows[0], rows[1:]
    filled = [name for name in first if name.strip()]
    if len(filled) < max(1, len(first) - 1) or any(is_number(name) for name in filled):
        return False
    places = range(len(first))
    found = [{row[place] for row in below if place < len(row)} for place in places]
    if any(values - {""} and all(map(is_number, values - {""})) for values in found):
        # A word above numbers.
        return True
    if len(set(filled)) < 0.8 * len(filled):
        return False
    repeated = sum(bool(first[place].strip()) and first[place] in found[place] for place in places)
    return repeated <= 0.1 * len(first)


def is_number(text: str) -> bool:
    """Whether a text is a finite or infinite decimal number; ``nan`` and ``inf`` are words."""
    try:
        float(text)
    except ValueError:
        return False
    return any(character.isdigit() for character in text)


def _check_same_columns(given: Path, table: TableFiles) -> None:
    """Raises InputError where a file of a folder has other columns than the first one."""
    if isinstance(table.form, JsonlInput):
        return
    for file in table.files[1:]:
        if isinstance(table.form, ParquetInput):
            columns = parquet_columns(file.path)
            same = sorted(columns) == sorted(table.columns)
        else:
            rows = _rows(read_start(file.path, 64 << 10).removeprefix("\ufeff"), table.form.field_delimiter,
                         table.form.quotes)  # fmt: skip
            columns = tuple(rows[0])
            same = columns == table.columns if table.form.header else len(columns) == len(table.columns)
        if not same:
            raise InputError(
                f"input {given}: {table.files[0].name} and {file.name} have different columns: give one file; a side "
                "table is joined by a mapping of your own (ctr ingest table)"
            )


def _suggestion(columns: Sequence[str], form: Form) -> str:
    """The shipped mapping whose columns a table has, in a sentence; empty where there is none."""
    if isinstance(form, DelimitedInput) and not form.header:
        criteo = load_format("criteo").input
        assert isinstance(criteo, DelimitedInput) and criteo.columns is not None
        if form.type == "tsv" and len(columns) == len(criteo.columns):
            return _SUGGEST.format(name="criteo")
        return ""
    for name in format_names():
        mapping = load_format(name)
        keys = {*mapping.key_columns, *(join.key for join in mapping.joins)}
        # Columns of its own that no other table has by chance.
        shared = set(mapping.raw_columns) & set(columns)
        if name not in ("criteo", "mind") and keys <= set(columns) and len(shared) >= 3:
            return _SUGGEST.format(name=name)
    return ""
