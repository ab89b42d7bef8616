"""Files of a table: which they are, of which type, which columns they have; and JSON that is no table."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctr.config import parse_model
from ctr.data.mapping import DelimitedInput, JsonlInput, ParquetInput, format_names, load_format
from ctr.io.errors import InputError
from ctr.io.files import not_text
from ctr.pipelines.inference.delimited import START_BYTES, delimited_input, numbered_columns, read_start
from ctr.pipelines.rows.sources import (
    SourceFile,
    find_files,
    folder_keys,
    is_blank,
    is_hidden,
    natural_order,
)
from ctr.pipelines.rows.table_files import table_file_columns

Form = DelimitedInput | JsonlInput | ParquetInput

_MODELS: dict[str, Any] = {
    "csv": DelimitedInput,
    "tsv": DelimitedInput,
    "jsonl": JsonlInput,
    "parquet": ParquetInput,
}
_SUFFIX_TYPES = {
    **{f".{kind}": kind for kind in _MODELS},
    ".tab": "tsv",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".pq": "parquet",
}
_COMPRESSIONS = (".gz", ".zst")
_LINE = "one JSON object a line"


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
        found, pattern = find_files([given], (), ()), None
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
    content = {"type": kind} if kind in ("parquet", "jsonl") else delimited_input(first, kind)
    if pattern is not None and pattern != f"*.{content['type']}":
        content["pattern"] = pattern
    form = parse_model(_MODELS[content["type"]], content, str(first))
    columns, lacking = _columns_of(given, files, form)
    keys = [set(folder_keys(Path("/", file.name))) for file in files]
    folders = sorted(set.intersection(*keys).difference(columns))
    notes = []
    if len(files) < len(found):
        empty = [file.name for file in found if file not in files]
        notes.append(f"{len(empty)} of {len(found)} files are empty and are skipped: {some_of(empty)}")
    if folders:
        names = f"column{'s' if len(folders) > 1 else ''} {', '.join(folders)}"
        notes.append(f"the folders of the files give the {names}")
    return TableFiles(files, form, columns, _suggestion(columns, form), lacking, tuple(folders), tuple(notes))


def some_of(names: Sequence[str], most: int = 3) -> str:
    """Lists some names, and whether there are more."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _files_of(folder: Path) -> tuple[list[SourceFile], str]:
    """The files of a folder in their order, and the glob that finds them; those below it where it holds none itself."""
    for below in ("", "**/"):
        inside = (path.relative_to(folder) for path in folder.glob(f"{below}*") if path.is_file())
        if paths := [path for path in inside if not is_hidden(path)]:
            break
    else:
        raise InputError(f"input {folder}: no file in this folder")
    names = sorted((path.as_posix() for path in paths), key=natural_order)
    suffixes = {Path(name.removesuffix(".gz").removesuffix(".zst")).suffix for name in names}
    if len(suffixes) > 1:
        raise InputError(
            f"input {folder}: holds files of several kinds ({some_of(names, 6)}): give one file, or a folder of one"
        )
    [suffix] = suffixes
    if not suffix:
        stems = {re.split(r"[0-9]", path.name)[0] for path in paths}
        if len(stems) > 1:
            raise InputError(
                f"input {folder}: the names of its files have no common beginning or ending: give one file"
            )
        pattern = below + (paths[0].name if len(names) == 1 else f"{min(stems) or '[0-9]'}*")
        return find_files([folder], [pattern], ()), pattern
    is_plain = not any(name.endswith(_COMPRESSIONS) for name in names)
    more = "" if is_plain or (suffix[1:] in _MODELS and not below) else "*"
    patterns = [f"{below}*{suffix}{compression}" for compression in ("", *_COMPRESSIONS)]
    return find_files([folder], patterns, ()), f"{below}*{suffix}{more}"


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
        _check_json(path, text, is_whole=len(start.encode()) < START_BYTES)
        return "jsonl"
    if named == "jsonl":
        raise InputError(f"{path}: holds no JSON objects; allowed: {_LINE}")
    return named


def _check_json(path: Path, text: str, is_whole: bool) -> None:
    """Raises InputError where JSON, from its first brace or bracket on, is not one object a line that is a row."""
    several_lines = InputError(f"{path}: holds a JSON object over several lines; allowed: {_LINE}")
    if text.startswith("["):
        raise InputError(f"{path}: holds one JSON array; allowed: {_LINE}, as jq -c '.[]' writes the items")
    try:
        found, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        if is_whole or "\n" in text.strip():
            if text.split("\n", 1)[0].strip() == "{":
                raise several_lines from None
            return
        # A line longer than any row: what its first key holds tells of which kind it is.
        opened = re.match(r'\{\s*"((?:[^"\\]|\\.)*)"\s*:\s*([\[{])', text)
        if opened is not None:
            raise _columns_fault(path, [opened[1], "..."]) from None
        return
    lines, rest = text[:end].strip(), text[end:].strip()
    if rest and "\n" in lines:
        raise InputError(f"{path}: holds JSON objects over several lines; allowed: {_LINE}")
    if rest or not is_whole or not isinstance(found, dict):
        return
    if len(found) > 1 and all(isinstance(value, list | dict) and len(value) > 1 for value in found.values()):
        raise _columns_fault(path, list(found))
    for key, value in found.items():
        is_long = isinstance(value, list) and len(value) > 1
        if is_long and all(isinstance(item, dict | list) for item in value):
            raise InputError(
                f"{path}: holds one JSON object whose {key!r} is a list of the rows; allowed: {_LINE}, as "
                f"jq -c '.{key}[]' writes them"
            )
    if "\n" in lines:
        raise several_lines


def _columns_fault(path: Path, names: list[str]) -> InputError:
    shown = some_of([name[:24] for name in names], 4)
    return InputError(
        f"{path}: holds one JSON object whose keys ({shown}) each hold many rows or a whole row, as pandas' to_json() "
        f"writes it; allowed: {_LINE}, as to_json(orient='records', lines=True) writes"
    )


def _columns_of(
    given: Path, files: Sequence[SourceFile], form: Form
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The columns of the files, and those that some files lack (see ``TableFiles``).

    Files are of one table if one of them has all columns, and the others most of these; else InputError.
    """
    if isinstance(form, JsonlInput):
        return (), {}
    if isinstance(form, DelimitedInput) and not form.header:
        way = form.skip_lines, form.field_delimiter, form.quotes
        found, most = [numbered_columns(file.path, *way) for file in files], 0.0
    else:
        found, most = [table_file_columns(file.path, form) for file in files], 0.5
    widest = max(found, key=len)
    for file, names in zip(files, found, strict=True):
        others = set(names) ^ set(widest)
        if set(names) - set(widest) or len(others) > most * len(widest):
            raise InputError(
                f"input {given}: {files[found.index(widest)].name} and {file.name} have different columns: "
                f"{some_of(sorted(others))} in one alone; give one file; a side table is joined by a mapping of your "
                "own (ctr ingest table)"
            )
    columns = (*found[0], *(name for name in widest if name not in found[0]))
    lacking = {}
    for name in columns:
        absent = [file.name for file, names in zip(files, found, strict=True) if name not in names]
        if absent:
            lacking[name] = f"{len(absent)} of {len(files)} files lack it, such as {absent[0]}"
    return columns, lacking


def _suggestion(columns: Sequence[str], form: Form) -> str:
    """The shipped mapping whose columns a table has, in a sentence; empty where there is none."""
    fitting = []
    if isinstance(form, DelimitedInput) and not form.header:
        criteo = load_format("criteo").input
        assert isinstance(criteo, DelimitedInput) and criteo.columns is not None
        fitting = ["criteo"] if form.type == "tsv" and len(columns) == len(criteo.columns) else []
    else:
        for name in format_names():
            mapping = load_format(name)
            keys = {*mapping.key_columns, *(join.key for join in mapping.joins)}
            # Columns of its own that no other table has by chance.
            shared = set(mapping.raw_columns) & set(columns)
            if name not in ("criteo", "mind") and keys <= set(columns) and len(shared) >= 3:
                fitting.append(name)
    return f"ctr ingest {fitting[0]} reads this format with a mapping made for it" if fitting else ""
