"""Files of a table and how they are read: lines before it, format, delimiter, quotes, header and columns."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctr.config import parse_model
from ctr.data.mapping import DelimitedInput, JsonlInput, ParquetInput, format_names, load_format
from ctr.io.errors import InputError
from ctr.io.files import not_text
from ctr.pipelines.inference.columns import NULLS
from ctr.pipelines.inference.foreign import check_json, check_lines
from ctr.pipelines.inference.names import (
    EXAMPLE_NAMES,
    ID_WORDS,
    LABEL_WORDS,
    PLACE_WORDS,
    QUERY_NAMES,
    TIME_NAMES,
    USER_WORDS,
)
from ctr.pipelines.rows.delimited import split_rows
from ctr.pipelines.rows.sources import (
    SourceFile,
    faults_named,
    find_files,
    folder_keys,
    is_blank,
    is_hidden,
    natural_order,
    open_bytes,
)
from ctr.pipelines.rows.table_files import table_file_columns

LINES = 500  # so many lines at the beginning of a file are looked at

_MOST_SKIPPED = 100
_SEP = re.compile(r'"?sep=(.)"?', re.IGNORECASE)
_ITEM_WORDS = frozenset(("ad", "item", "product", "banner", "article"))
_KNOWN = (
    LABEL_WORDS | USER_WORDS | TIME_NAMES | QUERY_NAMES | EXAMPLE_NAMES | PLACE_WORDS | ID_WORDS | _ITEM_WORDS
)
# Values that stand for none, among numbers.
_NO_NAMES = frozenset(
    ("unknown", "missing", "none", "null", "nan", "inf", "infinity", *(text.lower() for text in NULLS))
)
# So many columns that are named 1, 2, 3, ... in order.
_NUMBERED = 5


def lines_before(text: str) -> tuple[int, str | None]:
    """Counts the lines before a table, and reads the delimiter that one of them names.

    They are empty, comments that begin with #, or Excel's ``sep=;``. A comment with as many fields as the line below is
    left: it may have the names.
    """
    lines = text.split("\n", _MOST_SKIPPED + 1)[: _MOST_SKIPPED + 1]
    count, delimiter = 0, None
    for line in lines:
        found = _SEP.fullmatch(line.strip(" \r"))
        if found is not None:
            delimiter = found[1]
        elif line.strip() and not line.startswith("#"):
            break
        count += 1
    if count == len(lines):
        # Nothing but comments.
        return 0, None
    return count, delimiter


def title_lines(text: str, rows: Sequence[Sequence[str]]) -> int:
    """Counts lines of one field, such as the title of a report, before a table of at least three."""
    fields = Counter(map(len, rows)).most_common(1)[0][0]
    count = next((place for place, row in enumerate(rows) if len(row) > 1), 0)
    if not count or fields < 3 or count > 10 or '"' in "".join(text.split("\n", count)[:count]):
        return 0
    # In lines, of which empty ones are no rows.
    places = [place for place, line in enumerate(text.split("\n", _MOST_SKIPPED)) if line.strip()]
    return places[count] if count < len(places) else 0


def is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Tells whether the first row names the columns: words above numbers, or values unlike those below.

    Names may be numbers, such as 101 of an anonymous feature, where others are words. Rows that repeat the first one do
    not speak against it where it is a header for other reasons, as in files put together by ``cat``.
    """
    first = list(rows[0])
    below = [row for row in rows[1:] if list(row) != first]
    places = range(len(first))
    found = [{row[place] for row in below if place < len(row)} - {""} for place in places]
    filled = [name for name in first if name.strip()]
    unnamed = [place for place in places if not first[place].strip() and found[place]]
    if not filled or len(unnamed) > 1:
        return False
    words = [place for place in places if first[place].strip() and not is_number(first[place])]
    over_numbers = [place for place in words if _is_name(first[place]) and _are_numbers(found[place])]
    if len(words) < len(filled):
        return _is_numbered(first, unnamed) or (
            bool(over_numbers)
            and len(set(filled)) == len(filled)
            and all(re.fullmatch(r"\d+(\.0)?", name) for name in filled if is_number(name))
            and not any(first[place] in found[place] for place in words)
        )
    if over_numbers:
        return True
    if len(set(filled)) < 0.8 * len(filled):
        return False
    repeated = sum(bool(first[place].strip()) and first[place] in found[place] for place in places)
    if len(below) < len(rows) - 1:
        # Only values come again in whole, unless the names say that they are names.
        known = sum(bool(set(re.split(r"[^a-z]+", name.lower())) & _KNOWN) for name in filled)
        return repeated == 0 and known >= 2
    return repeated <= 0.1 * len(first)


def _is_numbered(first: Sequence[str], unnamed: Sequence[int]) -> bool:
    """Whether columns are named by their numbers, as pandas names those without names; its index has no name."""
    names = [name for place, name in enumerate(first) if place or not unnamed]
    counted = [[str(begin + place) for place in range(len(names))] for begin in (0, 1)]
    return len(names) >= (2 if unnamed == [0] else _NUMBERED) and names in counted


def _is_name(text: str) -> bool:
    text = text.strip(' "#')
    return (text[:1].isalpha() or text[:1] == "_") and text.lower() not in _NO_NAMES


def _are_numbers(values: set[str]) -> bool:
    """Whether there are values and all are numbers, but for those that mean a missing one."""
    numbers = values.difference(NULLS)
    return bool(numbers) and all(map(is_number, numbers))


def is_number(text: str) -> bool:
    """Tells whether a text is a finite or infinite decimal number; ``nan`` and ``inf`` are words."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text and any(character.isdigit() for character in text)


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
# Hive's byte and a space: only where none of the usual ones separates anything.
_SELDOM = "\x01 "
_COMMA_ELSEWHERE = re.compile(r"(?<![0-9]),|,(?![0-9])")
_START_BYTES = 256 << 10
_SUGGEST = "ctr ingest {name} reads this format with a mapping made for it"


@dataclass(frozen=True)
class TableFiles:
    """Files of a table and how they are read."""

    files: tuple[SourceFile, ...]  # those that hold something, in the order in which their rows count
    form: Form  # the ``input`` of a mapping
    columns: tuple[str, ...]  # in the order of the header or the form; empty for JSON lines
    suggestion: str = ""  # the shipped mapping that reads these files, in a sentence
    # By column: how many files lack it, and which, in words.
    lacking: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()  # columns that names of folders give, such as ``dt=2023-11-14``
    notes: tuple[str, ...] = ()


def find_table(given: Path) -> TableFiles:
    """Finds out how a file, or those of a folder, are read; InputError where they are not, or are several tables."""
    if given.is_dir():
        found, pattern = _files_of(given)
    else:
        found, pattern = tuple(find_files([given], (), ())), None
    files = tuple(file for file in found if not is_blank(file.path))
    if not files:
        path = found[0].path
        raise InputError(f"{path}: is empty; a table with a label and at least one feature is required")
    first = files[0].path
    if any(file.path.name.startswith("behaviors.tsv") for file in files):
        raise InputError(
            f"{given}: a row of MIND's behaviors.tsv is a whole list of impressions, not one: use ctr ingest mind"
        )
    kind = _type_of(first)
    content = _delimited(first, kind) if kind not in ("parquet", "jsonl") else {"type": kind}
    if pattern is not None and pattern != f"*.{content['type']}":
        content["pattern"] = pattern
    form = parse_model(_MODELS[content["type"]], content, str(first))
    columns, lacking = _columns_of(given, files, form)
    keys = [set(folder_keys(Path("/", file.name))) for file in files]
    folders = sorted(set.intersection(*keys).difference(columns))
    notes = []
    if len(files) < len(found):
        empty = [file.name for file in found if file not in files]
        notes.append(f"{len(empty)} of {len(found)} files are empty and are skipped: {_some(empty)}")
    if folders:
        names = f"column{'s' if len(folders) > 1 else ''} {', '.join(folders)}"
        notes.append(f"the folders of the files give the {names}")
    return TableFiles(files, form, columns, _suggestion(columns, form), lacking, tuple(folders), tuple(notes))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


_MODELS: dict[str, Any] = {
    "csv": DelimitedInput,
    "tsv": DelimitedInput,
    "jsonl": JsonlInput,
    "parquet": ParquetInput,
}


def _files_of(folder: Path) -> tuple[tuple[SourceFile, ...], str]:
    """The files of a folder in their order, and the glob that finds them; those below it where it holds none itself."""
    paths = [path.relative_to(folder) for path in folder.iterdir() if path.is_file()]
    paths = [path for path in paths if not is_hidden(path)]
    below = "" if paths else "**/"
    if not paths:
        paths = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
        paths = [path for path in paths if not is_hidden(path)]
    names = sorted((path.as_posix() for path in paths), key=natural_order)
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
        stems = {re.split(r"[0-9]", path.name)[0] for path in paths}
        if len(stems) > 1:
            raise InputError(
                f"input {folder}: the names of its files have no common beginning or ending: give one file"
            )
        pattern = below + (paths[0].name if len(names) == 1 else f"{min(stems) or '[0-9]'}*")
        return tuple(find_files([folder], [pattern], ())), pattern
    plain = not any(name.endswith(_COMPRESSIONS) for name in names)
    pattern = below + (f"*{suffix}" if plain or suffix[1:] in _MODELS else f"*{suffix}*")
    patterns = [f"{below}*{suffix}{compression}" for compression in ("", *_COMPRESSIONS)]
    files = tuple(find_files([folder], patterns, ()))
    if below and not plain:
        pattern = f"{below}*{suffix}*"
    return files, pattern


def _type_of(path: Path) -> str:
    """csv, tsv, jsonl or parquet by the name and the first bytes; empty for text of another name."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in _COMPRESSIONS]
    named = _SUFFIX_TYPES.get(suffixes[-1].lower(), "") if suffixes else ""
    with path.open("rb") as file:
        if file.read(4) == b"PAR1":
            return "parquet"
    if named == "parquet":
        what = f"{not_text(path) or 'no Parquet file'}, though its name ends in {suffixes[-1]}"
        raise InputError(f"{path}: is {what}; allowed: a Parquet file")
    start = read_start(path)
    text = start.lstrip("\ufeff \t\r\n")
    is_array = text.startswith("[") if named == "jsonl" else re.match(r"\[\s*[\[{]", text) is not None
    # The first column of another file may hold objects, too.
    is_object = text.startswith("{") and (
        named in ("", "jsonl") or text.split("\n", 1)[0].rstrip().endswith(("{", "}"))
    )
    if is_array or is_object:
        check_json(path, text, is_whole=len(start.encode()) < _START_BYTES)
        return "jsonl"
    if named == "jsonl":
        raise InputError(f"{path}: holds no JSON objects; allowed: one JSON object a line")
    return named


def read_start(path: Path, size: int = _START_BYTES) -> str:
    """Reads the first characters of a text file, decompressed; bad UTF-8 is replaced. InputError: it is no text."""
    with faults_named(path), open_bytes(path) as stream:
        return bytes(stream.read(size)).decode("utf-8", "replace")


def _delimited(path: Path, kind: str) -> dict[str, Any]:
    start = read_start(path).removeprefix("\ufeff")
    start = start.replace("\r\n", "\n") if "\n" in start else start.replace("\r", "\n")
    whole = start[: start.rfind("\n") + 1] if len(start) >= _START_BYTES // 2 and "\n" in start else start
    skipped, given = lines_before(whole)
    table = _without_lines(whole, skipped)
    check_lines(path, table)
    delimiter = given or _sniff(table, _DELIMITERS[kind])
    quoting = delimiter != "\t" or _has_quoted(table, delimiter)
    rows = split_rows(table, delimiter, quoting, LINES)
    if not rows:
        looked = f"its first {len(start):,} characters hold no row"
        raise InputError(f"{path}: {looked}; allowed: a table from its beginning on")
    if titles := title_lines(table, rows):
        skipped += titles
        rows = split_rows(_without_lines(table, titles), delimiter, quoting, LINES)
    if skipped and not is_header(rows):
        # The last comment may have the names.
        line = whole.split("\n", skipped)[skipped - 1]
        named = [*split_rows(line, delimiter, quoting, 1), *rows]
        is_comment = line.startswith("#") and len(named) > len(rows)
        if is_comment and len(named[0]) == len(rows[0]) > 1 and is_header(named):
            skipped, rows = skipped - 1, named
    content: dict[str, Any] = {"type": "tsv" if delimiter == "\t" else "csv"}
    if delimiter not in ",\t":
        content["delimiter"] = delimiter
    if quoting and delimiter == "\t":
        content["quoting"] = True
    if skipped:
        content["skip_lines"] = skipped
    if is_header(rows):
        return content
    return {**content, "header": False, "columns": list(_numbered(_fields(rows)))}


def _without_lines(text: str, count: int) -> str:
    return text.split("\n", count)[count] if count else text


def _sniff(text: str, delimiters: str) -> str:
    """The delimiter with which most lines have the same number of fields, at least two; else the first one."""
    best = (False, 0.0, delimiters[0])
    for delimiter in (*delimiters, *_SELDOM):
        if delimiter in _SELDOM and best[1]:
            break
        rows = split_rows(text, delimiter, delimiter != "\t", LINES)
        counts = Counter(map(len, rows or [[]]))
        fields, lines = counts.most_common(1)[0]
        share = lines / counts.total()
        # A decimal comma gives lines the same number of fields, too. It stands only between digits, never in a header.
        is_decimal = delimiter == "," and ";" in text and not _COMMA_ELSEWHERE.search(text)
        fits = len(rows[0]) == fields and not is_decimal if rows else False
        # R writes no name for the number of the row.
        is_whole = share >= 0.9 and bool(rows) and fields - len(rows[0]) in (0, 1)
        if delimiter in _SELDOM and not is_whole:
            continue
        # Among equals the first one of the order.
        if fields > 1 and (fits, share) > (best[0], best[1] + 0.02):
            best = (fits, share, delimiter)
    return best[2]


def _has_quoted(text: str, delimiter: str) -> bool:
    fields = [field for line in text.splitlines()[:LINES] for field in line.split(delimiter)]
    opened = sum(field.startswith('"') for field in fields)
    closed = sum(len(field) > 1 and field.startswith('"') and field.endswith('"') for field in fields)
    return closed > 0 and closed == opened


def _columns_of(
    given: Path, files: Sequence[SourceFile], form: Form
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The columns of the files, and those that some files lack (see ``TableFiles``).

    Files are of one table if one of them has all columns, and the others most of these; else InputError.
    """
    if isinstance(form, JsonlInput):
        return (), {}
    named = isinstance(form, ParquetInput) or form.header
    found = [_columns_in(file.path, form) for file in files]
    widest = max(found, key=len)
    for file, names in zip(files, found, strict=True):
        others = set(names) ^ set(widest)
        if others and (not named or set(names) - set(widest) or len(others) > 0.5 * len(widest)):
            raise InputError(
                f"input {given}: {files[found.index(widest)].name} and {file.name} have different columns: "
                f"{_some(sorted(others))} in one alone; give one file; a side table is joined by a mapping of your own "
                "(ctr ingest table)"
            )
    columns = (*found[0], *(name for name in widest if name not in found[0]))
    lacking = {}
    for name in columns:
        absent = [file.name for file, names in zip(files, found, strict=True) if name not in names]
        if absent:
            lacking[name] = f"{len(absent)} of {len(files)} files lack it, such as {absent[0]}"
    return columns, lacking


def _columns_in(path: Path, form: DelimitedInput | ParquetInput) -> tuple[str, ...]:
    """The columns of a file; without a header, as many as most of its first lines have fields."""
    if isinstance(form, ParquetInput) or form.header:
        return table_file_columns(path, form)
    text = _without_lines(read_start(path, 64 << 10).removeprefix("\ufeff"), form.skip_lines)
    return _numbered(_fields(split_rows(text, form.field_delimiter, form.quotes, LINES)))


def _fields(rows: Sequence[Sequence[str]]) -> int:
    return Counter(map(len, rows or [[]])).most_common(1)[0][0]


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"c{number}" for number in range(1, count + 1))


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
