"""How a delimited table is written: lines before it, delimiter, quotes and header; or that it is no table."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ctr.io.errors import InputError
from ctr.pipelines.inference import lexicon
from ctr.pipelines.inference.columns import NULLS
from ctr.pipelines.rows.delimited import split_rows
from ctr.pipelines.rows.sources import faults_named, open_bytes

START_BYTES = 256 << 10
# What a message says is read.
TABLE = "one value of each column for each row, with a header, as csv, tsv, JSON lines or Parquet"

_LINES = 500  # so many lines at the beginning of a file are looked at
_DELIMITERS = {"csv": ",;|\t", "tsv": "\t,;|", "": "\t,;|"}
# Hive's byte and a space: only where none of the usual ones separates anything.
_SELDOM = "\x01 "
_COMMA_ELSEWHERE = re.compile(r"(?<![0-9]),|,(?![0-9])")
_MOST_SKIPPED = 100
_SEP = re.compile(r'"?sep=(.)"?', re.IGNORECASE)
# Values that stand for none, among numbers.
_NO_NAMES = frozenset(
    ("unknown", "missing", "none", "null", "nan", "inf", "infinity", *(text.lower() for text in NULLS))
)
# So many columns that are named 1, 2, 3, ... in order.
_NUMBERED = 5

# Formats that are no tables: by nearly all of some first lines, by the first line, by what separates their fields.
_FOREIGN_LINES, _SHARE = 50, 0.9
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


def read_start(path: Path, size: int = START_BYTES) -> str:
    """Reads the first characters of a text file, decompressed; bad UTF-8 is replaced. InputError: it is no text."""
    with faults_named(path), open_bytes(path) as stream:
        return bytes(stream.read(size)).decode("utf-8", "replace")


def delimited_input(path: Path, kind: str) -> dict[str, Any]:
    """Finds out how a delimited file, csv, tsv or of unknown ``kind``, is read: the ``input`` of a mapping.

    Raises InputError where it is no table.
    """
    start = read_start(path).removeprefix("\ufeff")
    start = start.replace("\r\n", "\n") if "\n" in start else start.replace("\r", "\n")
    whole = start[: start.rfind("\n") + 1] if len(start) >= START_BYTES // 2 and "\n" in start else start
    skipped, given = _lines_before(whole)
    table = _without_lines(whole, skipped)
    _check_lines(path, table)
    delimiter = given or _sniff(table, _DELIMITERS[kind])
    quoting = delimiter != "\t" or _has_quoted(table, delimiter)
    rows = split_rows(table, delimiter, quoting, _LINES)
    if not rows:
        looked = f"its first {len(start):,} characters hold no row"
        raise InputError(f"{path}: {looked}; allowed: a table from its beginning on")
    if titles := _title_lines(table, rows):
        skipped += titles
        rows = split_rows(_without_lines(table, titles), delimiter, quoting, _LINES)
    if skipped and not _is_header(rows):
        # The last comment may have the names.
        line = whole.split("\n", skipped)[skipped - 1]
        named = [*split_rows(line, delimiter, quoting, 1), *rows]
        is_comment = line.startswith("#") and len(named) > len(rows)
        if is_comment and len(named[0]) == len(rows[0]) > 1 and _is_header(named):
            skipped, rows = skipped - 1, named
    content: dict[str, Any] = {"type": "tsv" if delimiter == "\t" else "csv"}
    if delimiter not in ",\t":
        content["delimiter"] = delimiter
    if quoting and delimiter == "\t":
        content["quoting"] = True
    if skipped:
        content["skip_lines"] = skipped
    return content if _is_header(rows) else {**content, "header": False, "columns": _numbered(rows)}


def numbered_columns(path: Path, skip_lines: int, delimiter: str, quoting: bool) -> tuple[str, ...]:
    """Names the columns of a file without a header, as many as most of its first lines have fields."""
    text = _without_lines(read_start(path, 64 << 10).removeprefix("\ufeff"), skip_lines)
    return tuple(_numbered(split_rows(text, delimiter, quoting, _LINES)))


def _numbered(rows: Sequence[Sequence[str]]) -> list[str]:
    count = Counter(map(len, rows or [[]])).most_common(1)[0][0]
    return [f"c{number}" for number in range(1, count + 1)]


def _without_lines(text: str, count: int) -> str:
    return text.split("\n", count)[count] if count else text


def _lines_before(text: str) -> tuple[int, str | None]:
    """Returns how many lines stand before a table, and the delimiter that one of them names.

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


def _title_lines(text: str, rows: Sequence[Sequence[str]]) -> int:
    """How many lines of one field there are, such as the title of a report, before a table of at least three."""
    fields = Counter(map(len, rows)).most_common(1)[0][0]
    count = next((place for place, row in enumerate(rows) if len(row) > 1), 0)
    if not count or fields < 3 or count > 10 or '"' in "".join(text.split("\n", count)[:count]):
        return 0
    # In lines, of which empty ones are no rows.
    places = [place for place, line in enumerate(text.split("\n", _MOST_SKIPPED)) if line.strip()]
    return places[count] if count < len(places) else 0


def _is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Returns whether the first row names the columns: words above numbers, or values unlike those below.

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
    words = [place for place in places if first[place].strip() and not _is_number(first[place])]
    over_numbers = [place for place in words if _is_name(first[place]) and _are_numbers(found[place])]
    if len(words) < len(filled):
        return _is_numbered(first, unnamed) or (
            bool(over_numbers)
            and len(set(filled)) == len(filled)
            and all(re.fullmatch(r"\d+(\.0)?", name) for name in filled if _is_number(name))
            and not any(first[place] in found[place] for place in words)
        )
    if over_numbers:
        return True
    if len(set(filled)) < 0.8 * len(filled):
        return False
    repeated = sum(bool(first[place].strip()) and first[place] in found[place] for place in places)
    if len(below) < len(rows) - 1:
        # Only values come again in whole, unless the names say that they are names.
        known = sum(bool(set(re.split(r"[^a-z]+", name.lower())) & lexicon.KNOWN_WORDS) for name in filled)
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
    """Returns whether there are values and all are numbers, but for those that mean a missing one."""
    numbers = values.difference(NULLS)
    return bool(numbers) and all(map(_is_number, numbers))


def _is_number(text: str) -> bool:
    """Returns whether a text is a finite or infinite decimal number; ``nan`` and ``inf`` are words."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text and any(character.isdigit() for character in text)


def _sniff(text: str, delimiters: str) -> str:
    """The delimiter with which most lines have the same number of fields, at least two; else the first one."""
    best = (False, 0.0, delimiters[0])
    for delimiter in (*delimiters, *_SELDOM):
        if delimiter in _SELDOM and best[1]:
            break
        rows = split_rows(text, delimiter, delimiter != "\t", _LINES)
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
    fields = [field for line in text.splitlines()[:_LINES] for field in line.split(delimiter)]
    opened = sum(field.startswith('"') for field in fields)
    closed = sum(len(field) > 1 and field.startswith('"') and field.endswith('"') for field in fields)
    return closed > 0 and closed == opened


def _check_lines(path: Path, text: str) -> None:
    """Raises InputError where the first whole lines of a file are of a format that is no table of single values."""
    lines = [line for line in text.split("\n", 4 * _FOREIGN_LINES) if line.strip()][:_FOREIGN_LINES]
    if not lines:
        return
    found = [name for name, pattern in _FIRST_LINES.items() if pattern.fullmatch(lines[0].strip())]
    for name, pattern in _LINE_FORMATS.items():
        matching = sum(pattern.fullmatch(line.strip()) is not None for line in lines)
        found += [name] if matching >= _SHARE * len(lines) else []
    if found:
        raise InputError(f"{path}: the format is {found[0]}, which is not read; allowed: {TABLE}")
    for delimiter in _LONG_DELIMITERS:
        counts = Counter(line.count(delimiter) for line in lines)
        count, most = counts.most_common(1)[0]
        alone = not any(delimiter[:1] in line.replace(delimiter, "") for line in lines)
        if count >= 2 and most >= _SHARE * len(lines) and (alone or delimiter == "::"):
            raise InputError(
                f"{path}: the fields are separated by {delimiter}; allowed: one character, such as a comma or a tab: "
                f"replace it by a tab that no value contains, as sed 's/{delimiter}/\\t/g' does"
            )
