"""Files of a table, and how they are read: type, delimiter, quotes, header, and columns that some files lack."""

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctr.config import parse_model
from ctr.data.mapping import DelimitedInput, JsonlInput, ParquetInput
from ctr.io.errors import InputError
from ctr.pipelines.tables.delimited import split_rows
from ctr.pipelines.tables.input_files import (
    SourceFile,
    faults_named,
    find_files,
    folder_keys,
    is_blank,
    is_hidden,
    open_bytes,
)
from ctr.pipelines.tables.table_files import table_file_columns

Form = DelimitedInput | JsonlInput | ParquetInput

START_BYTES = 256 << 10
_LINES = 500  # so many lines at the beginning of a file are looked at
_MOST_SKIPPED = 100
# Among equals the first: a comma may be a decimal one.
_DELIMITERS = "\t;|,"
_CONSISTENT = 0.9  # of the lines have as many fields as the header
_NUMBERED = re.compile(r"c[1-9][0-9]*")

_JSON_LINES = (
    "allowed: one JSON object a line, as jq -c '.[]' or pandas' to_json(orient='records', lines=True) writes"
)
_TABLE = "one value of each column for each row, with a header, as csv, tsv, JSON lines or Parquet"
_NUMBER = r"[-+]?\d[\d.eE+-]*"
_FOREIGN = {
    "libffm (LABEL FIELD:INDEX:VALUE ...)": rf"{_NUMBER}([ \t]+\d+:\d+:{_NUMBER})+",
    "libsvm (LABEL INDEX:VALUE ...)": rf"{_NUMBER}([ \t]+qid:\d+)?([ \t]+\w+:{_NUMBER})+\s*(#.*)?",
    "Vowpal Wabbit's (LABEL |NAMESPACE FEATURE ...)": (
        rf"({_NUMBER}[ \t]+)*('?[\w-]+[ \t]*)?(\|[A-Za-z]\w*[ \t].*|\|[ \t][^|]*)"
    ),
}


@dataclass(frozen=True)
class TableFiles:
    """Files of a table and how they are read."""

    files: tuple[SourceFile, ...]  # without empty ones, in the order in which their rows count
    form: Form  # the ``input`` of a mapping
    columns: tuple[str, ...]  # in the order of the header; empty for JSON lines
    folders: tuple[str, ...]  # columns that names of folders give, such as ``dt=2023-11-14``
    notes: tuple[str, ...]


def find_table(given: Path, label: str | None) -> TableFiles:
    """Finds how a file, or the files of a folder, are read; ``label`` is the rule whose column the header names.

    Raises InputError: files that are no table, or are several.
    """
    found, pattern = _files_of(given) if given.is_dir() else (find_files([given], (), ()), None)
    files = tuple(file for file in found if not is_blank(file.path))
    if not files:
        raise InputError(f"{found[0].path}: is empty; a table with a label and a feature is required")
    if any(file.path.name.startswith("behaviors.tsv") for file in files):
        raise InputError(
            f"{given}: a row of MIND's behaviors.tsv is a whole list of impressions, not one: use ctr ingest mind"
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
        columns, lacking = _columns_of(given, files, form)
        if lacking:
            form = form.model_copy(update={"optional": tuple(lacking)})
            notes.append(f"missing where a file lacks them: {', '.join(lacking)}")
    keys = [set(folder_keys(Path("/", file.name))) for file in files]
    folders = tuple(sorted(set.intersection(*keys).difference(columns)))
    if len(files) < len(found):
        empty = [file.name for file in found if file not in files]
        notes.append(f"{len(empty)} of {len(found)} files are empty and are skipped: {', '.join(empty[:3])}")
    if folders:
        notes.append(f"the folders of the files give the column {' and '.join(folders)}")
    return TableFiles(files, form, columns, folders, tuple(notes))


def _files_of(folder: Path) -> tuple[list[SourceFile], str]:
    """The files of a folder, or those below it where it holds none itself; and the glob that finds them."""
    for below in ("", "**/"):
        inside = (path.relative_to(folder) for path in folder.glob(f"{below}*") if path.is_file())
        if paths := sorted(path for path in inside if not is_hidden(path)):
            break
    else:
        raise InputError(f"input {folder}: no file in this folder")
    stems = [path.name.removesuffix(".gz").removesuffix(".zst") for path in paths]
    suffixes = {Path(stem).suffix for stem in stems}
    if len(suffixes) > 1:
        shown = ", ".join(path.as_posix() for path in paths[:6])
        raise InputError(
            f"input {folder}: holds files of several kinds ({shown}): give one file, or a folder of one"
        )
    is_compressed = any(path.name != stem for path, stem in zip(paths, stems, strict=True))
    [suffix] = suffixes
    # The pattern that a mapping has by default finds compressed files, too.
    more = "*" if is_compressed and (below or suffix not in (".csv", ".tsv", ".jsonl")) else ""
    pattern = f"{below}*{suffix}{more}"
    patterns = [f"{below}*{suffix}{compression}" for compression in ("", ".gz", ".zst")]
    return find_files([folder], patterns, ()), pattern


def read_start(path: Path, size: int = START_BYTES) -> str:
    """Reads the first characters of a text file, decompressed; bad UTF-8 is replaced. InputError: it is no text."""
    with faults_named(path), open_bytes(path) as stream:
        text = bytes(stream.read(size)).decode("utf-8", "replace").removeprefix("\ufeff")
    return text.replace("\r\n", "\n") if "\n" in text else text.replace("\r", "\n")


def _input_of(path: Path, label: str | None) -> dict[str, Any]:
    """The ``input`` of a mapping, by the content of a file; InputError where it is no table."""
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
        if any(map(_is_object, lines)):
            return {"type": "jsonl"}
        if is_json or re.match(r"\s*\[\s*\{|\s*\{\s*$", lines[0]):
            raise InputError(f"{path}: does not hold one JSON object a line; {_JSON_LINES}")
    return _delimited_input(path, text, label)


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _delimited_input(path: Path, text: str, label: str | None) -> dict[str, Any]:
    whole = text[: text.rfind("\n") + 1] if len(text) >= START_BYTES // 2 else text
    lines = whole.split("\n")[:_LINES]
    # Names may hold what looks like a rule.
    wanted = {label, re.split(r"\s*(?:>=|<=|==|!=|>|<)", label)[0]} - {""} if label is not None else set()
    found = _labeled_header(lines, wanted)
    is_numbered = found is None and any(map(_NUMBERED.fullmatch, wanted))
    found = found or _consistent_header(lines)
    if found is None or not (wanted & set(found[2]) or is_numbered):
        # Nothing says that this is a table with the label: it may be of another format.
        _check_foreign(path, lines, found is not None)
    if found is None:
        shown = next((line for line in lines if line.strip()), "")[:40]
        raise InputError(
            f"{path}: has one column ({shown}); a label and at least one feature are required, in columns "
            "between commas, tabs, ; or |"
        )
    skipped, delimiter, header = found
    content: dict[str, Any] = {"type": "tsv" if delimiter == "\t" else "csv"}
    if delimiter not in ",\t":
        content["delimiter"] = delimiter
    if delimiter == "\t" and _has_quoted(lines, delimiter):
        content["quoting"] = True
    if skipped:
        content["skip_lines"] = skipped
    if is_numbered:
        content |= {"header": False, "columns": [f"c{place}" for place in range(1, len(header) + 1)]}
    return content


def _fields(line: str, delimiter: str) -> list[str]:
    rows = split_rows(line, delimiter, delimiter != "\t" or '"' in line, 1)
    return rows[0] if rows else []


_Header = tuple[int, str, list[str]]  # the number of lines before it, the delimiter, and its fields


def _labeled_header(lines: Sequence[str], wanted: set[str]) -> _Header | None:
    """The first line that has the label among its fields; lines before it are comments or titles."""
    for place, line in enumerate(lines[: _MOST_SKIPPED + 1]):
        for delimiter in _DELIMITERS:
            fields = _fields(line, delimiter)
            if len(fields) > 1 and wanted & set(fields):
                return place, delimiter, fields
    return None


def _consistent_header(lines: Sequence[str]) -> _Header | None:
    """The first line of two fields or more, by the delimiter that gives the most, and nearly as many to all others."""
    best: _Header | None = None
    looked = [(place, line) for place, line in enumerate(lines) if line.strip() and not line.startswith("#")]
    text = "\n".join(line for _, line in looked)
    for delimiter in _DELIMITERS:
        rows = split_rows(text, delimiter, delimiter != "\t" or '"' in text, _LINES)
        rows = list(itertools.dropwhile(lambda row: len(row) < 2, rows))
        # A header may lack the name of the row's number, or end with a delimiter.
        fitting = sum(abs(len(row) - len(rows[0])) < 2 for row in rows)
        if rows and fitting >= _CONSISTENT * len(rows) and (best is None or len(rows[0]) > len(best[2])):
            place = next(place for place, line in looked if len(_fields(line, delimiter)) > 1)
            best = place, delimiter, rows[0]
    return best


def _has_quoted(lines: Sequence[str], delimiter: str) -> bool:
    fields = [field for line in lines for field in line.split(delimiter)]
    return any(len(field) > 1 and field[0] == field[-1] == '"' for field in fields)


def _check_foreign(path: Path, lines: Sequence[str], has_columns: bool) -> None:
    """Raises InputError where the lines, the first one too, are of a format that is no table of single values."""
    filled = [line.strip() for line in lines if line.strip()][:50]
    if not filled:
        raise InputError(f"{path}: its beginning holds no row; allowed: {_TABLE}")
    names = []
    if not has_columns:
        names += ["ARFF"] if filled[0].lower().startswith("@relation") else []
        names += ["XML or HTML"] if re.match(r"<[!?A-Za-z]", filled[0]) else []
    for name, pattern in _FOREIGN.items():
        matching = [re.fullmatch(pattern, line) is not None for line in filled]
        names += [name] if matching[0] and sum(matching) >= _CONSISTENT * len(filled) else []
    if names:
        raise InputError(f"{path}: the format is {names[0]}, which is not read; allowed: {_TABLE}")
    if not has_columns and sum(line.count("::") >= 2 for line in filled) >= _CONSISTENT * len(filled):
        raise InputError(
            f"{path}: the fields are separated by ::; allowed: one character, such as a tab that no value contains, as "
            r"sed 's/::/\t/g' writes"
        )


def _columns_of(
    given: Path, files: Sequence[SourceFile], form: DelimitedInput | ParquetInput
) -> tuple[tuple[str, ...], list[str]]:
    """The columns of all files, and those that some lack; InputError where files are of different tables.

    Files are of one table if one of them has all columns, and the others at least half of them.
    """
    found = [table_file_columns(file.path, form) for file in files]
    widest = max(found, key=len)
    for file, names in zip(files, found, strict=True):
        others = set(names) ^ set(widest)
        if set(names) - set(widest) or len(others) > 0.5 * len(widest):
            raise InputError(
                f"input {given}: {files[found.index(widest)].name} and {file.name} have different columns: "
                f"{', '.join(sorted(others)[:3])} in one alone; give one file; a side table is joined by a mapping of "
                "your own (ctr ingest table)"
            )
    columns = (*found[0], *(name for name in widest if name not in found[0]))
    return columns, [name for name in columns if any(name not in names for names in found)]
