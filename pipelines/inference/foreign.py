"""Formats of tables that are not read, recognized so that messages can name them."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from ctr.io.errors import InputError

_LINES = 50
_SHARE = 0.9
_NUMBER = r"[-+]?\d[\d.eE+-]*"
_LINE_FORMATS = {
    "libffm (LABEL FIELD:INDEX:VALUE ...)": re.compile(rf"{_NUMBER}([ \t]+\d+:\d+:\S+)+\s*"),
    "libsvm (LABEL INDEX:VALUE ...)": re.compile(
        rf"{_NUMBER}([ \t]+qid:\d+)?([ \t]+\w+:{_NUMBER})+\s*(#.*)?"
    ),
    "Vowpal Wabbit's (LABEL |NAMESPACE FEATURE ...)": re.compile(
        rf"({_NUMBER}[ \t]+)*('?[\w-]+[ \t]*)?(\|[A-Za-z]\w*[ \t].*|\|[ \t][^|]*)"
    ),
}
_FIRST_LINES = {
    "ARFF": re.compile(r"@relation\b.*", re.IGNORECASE),
    "XML or HTML": re.compile(r"<[!?A-Za-z].*"),
}
_LONG_DELIMITERS = ("::", "||", "|~|", "^^", "~~", "##")
_COLUMNS = "one value of each column for each row, with a header, as csv, tsv, JSON lines or Parquet"
_LINE = "one JSON object a line"


def check_lines(path: Path, text: str) -> None:
    """Raises InputError where the first whole lines of a file are of a format that is no table of single values."""
    lines = [line for line in text.split("\n", 4 * _LINES) if line.strip()][:_LINES]
    if not lines:
        return
    found = [name for name, pattern in _FIRST_LINES.items() if pattern.fullmatch(lines[0].strip())]
    for name, pattern in _LINE_FORMATS.items():
        matching = sum(pattern.fullmatch(line.strip()) is not None for line in lines)
        found += [name] if matching >= _SHARE * len(lines) else []
    if found:
        raise InputError(f"{path}: the format is {found[0]}, which is not read; allowed: {_COLUMNS}")
    for delimiter in _LONG_DELIMITERS:
        counts = Counter(line.count(delimiter) for line in lines)
        count, most = counts.most_common(1)[0]
        alone = not any(delimiter[:1] in line.replace(delimiter, "") for line in lines)
        if count >= 2 and most >= _SHARE * len(lines) and (alone or delimiter == "::"):
            raise InputError(
                f"{path}: the fields are separated by {delimiter}; allowed: one character, such as a comma or a tab: "
                f"replace it by a tab that no value contains, as sed 's/{delimiter}/\\t/g' does"
            )


def check_json(path: Path, text: str, is_whole: bool) -> None:
    """Raises InputError where JSON, from its first brace or bracket on, is not one object a line that is a row."""
    if text.startswith("["):
        raise InputError(f"{path}: holds one JSON array; allowed: {_LINE}, as jq -c '.[]' writes the items")
    try:
        found, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        if is_whole or "\n" in text.strip():
            if text.split("\n", 1)[0].strip() == "{":
                raise InputError(
                    f"{path}: holds a JSON object over several lines; allowed: {_LINE}"
                ) from None
            return
        # A line longer than any row: what its first key holds tells of which kind it is.
        opened = re.match(r'\{\s*"((?:[^"\\]|\\.)*)"\s*:\s*([\[{])', text)
        if opened is not None:
            raise InputError(_columns_fault(path, [opened[1], "..."])) from None
        return
    lines, rest = text[:end].strip(), text[end:].strip()
    if rest:
        if "\n" in lines:
            raise InputError(f"{path}: holds JSON objects over several lines; allowed: {_LINE}")
        return
    if not is_whole or not isinstance(found, dict):
        return
    if len(found) > 1 and all(_is_column(value) for value in found.values()):
        raise InputError(_columns_fault(path, list(found)))
    rows = next((key for key, value in found.items() if _is_rows(value)), None)
    if rows is not None:
        raise InputError(
            f"{path}: holds one JSON object whose {rows!r} is a list of the rows; allowed: {_LINE}, as "
            f"jq -c '.{rows}[]' writes them"
        )
    if "\n" in lines:
        raise InputError(f"{path}: holds a JSON object over several lines; allowed: {_LINE}")


def _is_column(value: Any) -> bool:
    return isinstance(value, list | dict) and len(value) > 1


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 1 and all(isinstance(item, dict | list) for item in value)


def _columns_fault(path: Path, names: list[str]) -> str:
    shown = ", ".join(name[:24] for name in names[:4]) + (", ..." if len(names) > 4 else "")
    return (
        f"{path}: holds one JSON object whose keys ({shown}) each hold many rows or a whole row, as pandas' to_json() "
        f"writes it; allowed: {_LINE}, as to_json(orient='records', lines=True) writes"
    )
