"""Reads files of one JSON object a line, in blocks.

A block goes through Arrow's parser if the result is certain to be the same as when read line by line; otherwise it is
read line by line, and malformed lines are rejected. So the rows do not depend on the division into blocks.
"""

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from ctr.data.spelling import float_text
from ctr.io.errors import InputError
from ctr.pipelines.tables.input_files import BYTE_ORDER_MARK, Chunk, SourceFile, faults_named, open_bytes
from ctr.pipelines.tables.rejects import Reject, make_reject

_LONGEST_LINE = 64 << 20
_DEEPEST = 500
_MOST_CELLS = 8_000_000
_KEYS = re.compile(rb'"([^"\\]*)"\s*:')
_INT64 = range(-(2**63), 2**63)


@dataclass
class JsonlReader:
    """Reader of the wanted columns of JSON lines; a key that an object lacks is null.

    Columns among ``numbers`` are read only as numbers, also in lists: 5 and 5.0 mean the same. Columns in ``lists`` may
    hold lists, or text with the mapped separator (None if features use several). With ``all_needed`` each wanted
    column, except the ``optional`` ones, must occur in some line of a file.
    """

    wanted: Sequence[str]
    numbers: Collection[str]
    lists: Mapping[str, str | None]
    all_needed: bool = True
    optional: Collection[str] = ()
    # Arrow reads text in the format of a time as a time; such a column is then declared as text.
    _declared: dict[str, pa.DataType] = field(default_factory=dict)

    def read(self, source: SourceFile, block_bytes: int) -> Iterator[Chunk]:
        """Yields a file's non-empty lines, numbered by line. Raises InputError if no line has a needed column."""
        seen: dict[str, None] = {}
        line = 1
        for block in _blocks(source, block_bytes):
            chunk = self.read_block(source.number, block, line)
            seen.update(dict.fromkeys(chunk.keys))
            line += block.count(b"\n")
            yield chunk
        missing = [name for name in self.wanted if name not in seen and name not in self.optional]
        if missing and seen and self.all_needed:
            raise InputError(
                f"{source.path}: no column {', '.join(missing)} in any line; the columns found are {', '.join(seen)}"
            )

    def read_block(self, file: int, block: bytes, line: int) -> Chunk:
        """Reads whole lines, the first with the number ``line``."""
        texts = block.split(b"\n")
        filled = np.array([bool(text.strip()) for text in texts], bool)
        rows = line + np.flatnonzero(filled)
        table = self._fast(block, len(rows)) if len(rows) else None
        if table is not None:
            columns = [
                table.column(name) if name in table.column_names else pa.nulls(len(rows))
                for name in self.wanted
            ]
            return Chunk(file, pa.table(columns, names=list(self.wanted)), rows, [], table.column_names)
        return self._slow(file, texts, rows, line)

    def _fast(self, block: bytes, rows: int) -> pa.Table | None:
        """Parses the block with Arrow; returns None if it has to be read line by line."""
        if not _is_harmless(block, rows):
            return None
        try:
            block.decode()
            while True:
                table = pa_json.read_json(
                    pa.BufferReader(block),
                    pa_json.ReadOptions(use_threads=False, block_size=len(block) + 1),
                    pa_json.ParseOptions(explicit_schema=pa.schema(list(self._declared.items()))),
                )
                times = [
                    f.name for f in table.schema if f.name in self.wanted and pa.types.is_temporal(f.type)
                ]
                if not times:
                    break
                self._declared.update((name, pa.string()) for name in times)
            # Arrow builds a broken column of lists when the first one begins with two nulls.
            table.validate(full=True)
        except (pa.ArrowException, UnicodeDecodeError):
            return None
        certain = all(self._certain(field) for field in table.schema if field.name in self.wanted)
        return table if certain and table.num_rows == rows else None

    def _certain(self, field: pa.Field) -> bool:
        kind = field.type
        if pa.types.is_list(kind):
            is_plain = pa.types.is_string(kind.value_type) or pa.types.is_int64(kind.value_type)
            is_vector = field.name in self.numbers and pa.types.is_floating(kind.value_type)
            return field.name in self.lists and (is_plain or is_vector)
        if pa.types.is_floating(kind):
            return field.name in self.numbers
        return not pa.types.is_nested(kind)

    def _slow(self, file: int, texts: list[bytes], rows: np.ndarray, line: int) -> Chunk:
        rejects: list[Reject] = []
        good_rows: list[int] = []
        objects: list[dict[str, Any]] = []
        keys: dict[str, None] = {}
        for row in rows.tolist():
            text = texts[row - line]
            try:
                content = json.loads(text.decode())
                if not isinstance(content, dict):
                    raise ValueError("not an object")
                if b"\\u" in text:
                    # An escape such as backslash-ud800, half of a pair, stands for no character.
                    json.dumps(content, ensure_ascii=False).encode()
            except UnicodeDecodeError:
                rejects.append(make_reject(file, row, "line", "invalid UTF-8", text, "UTF-8"))
                continue
            except (ValueError, RecursionError):
                rejects.append(make_reject(file, row, "line", "malformed JSON", text, "one JSON object"))
                continue
            keys.update(dict.fromkeys(content))
            nested = next((name for name in self.wanted if not self._plain(name, content.get(name))), None)
            if nested is None:
                good_rows.append(row)
                objects.append(content)
                continue
            try:
                value = json.dumps(content[nested])
            except RecursionError:
                # Writing goes a little deeper than reading did.
                value = "a very deep one"
            allowed = "a single value or a list of them" if nested in self.lists else "a single value"
            rejects.append(make_reject(file, row, nested, "a nested value", value, allowed))
        columns = [self._column(name, [content.get(name) for content in objects]) for name in self.wanted]
        table = pa.table(columns, names=list(self.wanted))
        return Chunk(file, table, np.array(good_rows, np.int64), rejects, list(keys))

    def _plain(self, name: str, value: object) -> bool:
        if isinstance(value, list):
            return name in self.lists and not any(isinstance(item, list | dict) for item in value)
        return not isinstance(value, dict)

    def _column(self, name: str, values: list[Any]) -> pa.Array:
        kinds = {type(value) for value in values if value is not None}
        if list in kinds:
            separator = self.lists[name]
            if separator is None and kinds != {list}:
                raise InputError(
                    f"the column {name} holds lists and single values, and its features have different separators: "
                    "make all of them lists"
                )
            return pa.array([_items(value, separator) for value in values], pa.list_(pa.string()))
        if kinds <= {int} and all(value is None or value in _INT64 for value in values):
            return pa.array(values, pa.int64())
        if kinds <= {bool}:
            return pa.array(values, pa.bool_())
        if kinds <= {int, float} and name in self.numbers:
            return pa.array([None if value is None else _float(value) for value in values], pa.float64())
        return pa.array([_text(value) for value in values], pa.string())


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        return float_text(value) or None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _items(value: Any, separator: str | None) -> list[str | None] | None:
    if isinstance(value, list):
        return [_text(item) for item in value]
    text = _text(value)
    return None if text is None else list(text.split(separator))


def _is_harmless(block: bytes, rows: int) -> bool:
    """Returns whether Arrow's parser can be trusted with a block of lines.

    The parser crashes on deep nesting and on a null instead of the first object, takes a later null for an object, and
    makes a cell for every key in every row.
    """
    lines = block.split(b"\n")
    if max(line.count(b"[") + line.count(b"{") for line in lines) > _DEEPEST:
        return False
    if any(line.lstrip()[:1] not in (b"{", b"") for line in lines):
        return False
    return len(set(_KEYS.findall(block))) * rows <= _MOST_CELLS


def _blocks(source: SourceFile, block_bytes: int) -> Iterator[bytes]:
    """Yields whole lines, about ``block_bytes`` at a time; only the beginning of a line of more than 64 MiB."""
    rest: list[bytes] = []
    begun = False
    with faults_named(source.path), open_bytes(source.path) as stream:
        while part := bytes(stream.read(block_bytes)):
            if not begun:
                part, begun = part.removeprefix(BYTE_ORDER_MARK), True
            cut = part.rfind(b"\n") + 1
            if not cut:
                # No JSON object ends at the cut, so that the line is rejected as malformed.
                if len(rest) * block_bytes < _LONGEST_LINE:
                    rest.append(part)
                continue
            if len(rest) * block_bytes >= _LONGEST_LINE:
                line_end = part.index(b"\n")
                part, cut = part[line_end:], cut - line_end
            yield b"".join((*rest, part[:cut]))
            rest = [part[cut:]]
    if any(rest):
        yield b"".join(rest)
