"""Broken variants of valid files: of their bytes, of their text, and of what they hold.

Random bytes are refused at the first glance; what is nearly right gets further.
"""

import io
import json
import random
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

LEAVES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1e-320, 1e308, float("inf"), float("-inf"), float("nan")),
    *(2**31 - 1, 2**31, 2**53 + 1, 2**60, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**400),
    *("", " ", "0", "1e400", "null", "none", "true", "NaN", "..", "../../x", "/etc/passwd", "a/b", ".", "\0"),
    *("\x1b[31m", "\n", "\u202e", "\ud800", "日本", "x" * 5000, "<script>", "1d", "9" * 30 + "d"),
    *([], {}, [[]], [None], {"": None}, [0] * 300),
)
"""Values that programs trip over."""

WORDS = (
    *(b"null", b"true", b"-1", b"0", b"1e400", b"-1e400", b"NaN", b".inf", b".nan", b"Infinity", b"1e999999"),
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\r\n", b"\r", b"\n\n", b'"', b'""', b"'", b",", b"\t"),
    *(b"[]", b"{}", b"[" * 2000, b"{" * 50, b"&a [*a]", b"&a {x: *a}", b"<<: *a", b"!!binary x", b"!!int x"),
    *(b"!!timestamp x", b"!!float x", b"!!set {a}", b"? [a, b]", b"0x", b"0b2", b"1:99:99", b"2020-13-45"),
    *(b"!!python/object/apply:os.system ['true']", b"2020-02-30T99:99:99Z", b"9" * 40, b"9" * 5000),
    *(b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"\x1b[2J", b"---\n", b"...\n", b"%YAML 9.9\n", b"1-1"),
    *(b"\xc2\xb2", b"0x1p3", b"1_000", b"18446744073709551616", b"%", b"%Y %Y", b"\x1a", b"\xe2\x80\xa8"),
)
MAX_BYTES = 1 << 16


def _bytes(source: random.Random, content: bytes, others: list[bytes]) -> bytes:
    data = bytearray(content)
    place = source.randrange(len(data) + 1)
    match source.randrange(8):
        case 0 if data:
            data[min(place, len(data) - 1)] ^= 1 << source.randrange(8)
        case 1 if data:
            data[min(place, len(data) - 1)] = source.randrange(256)
        case 2:
            del data[place : place + source.choice((1, 40, len(data)))]
        case 3:
            data[place:place] = data[place : place + source.randrange(1, 200)] * source.randrange(1, 4)
        case 4:
            other = source.choice(others)
            data[place:] = other[source.randrange(len(other) + 1) :]
        case 5:
            form, number = source.choice(
                (("<Q", 2**64 - 1), ("<Q", 2**63), ("<I", 2**31), (">I", 2**31 - 1), ("<H", 2**15), ("<I", 0))
            )
            data[place : place + struct.calcsize(form)] = struct.pack(form, number)
        case 6:
            data[place:place] = source.choice(WORDS)
        case _:
            data[place : place + source.randrange(1, 12)] = source.choice(WORDS)
    return bytes(data)


def _text(source: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """Lines and tokens moved, repeated, lost and replaced."""
    separator = source.choice((b"\n", b"\n", b",", b"\t", b" ", b":", b'"'))
    parts = content.split(separator)
    place, other = source.randrange(len(parts)), source.randrange(len(parts))
    match source.randrange(6):
        case 0:
            parts[place] = source.choice(WORDS)
        case 1:
            del parts[place]
        case 2:
            parts.insert(place, parts[other])
        case 3:
            parts.insert(place, source.choice(source.choice(others).split(separator)))
        case 4:
            parts[place], parts[other] = parts[other], parts[place]
        case _:
            parts[place] = parts[place] * source.choice((2, 3, 50))
    return separator.join(parts)


# ---------------------------------------------------------------- documents


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        found += _paths(value, (*path, key))
    return found


def change_tree(source: random.Random, tree: Any) -> Any:
    """One change of nested dicts and lists: a value, a key, an entry more or less."""
    path = source.choice(_paths(tree))
    if not path:
        return source.choice(LEAVES) if source.random() < 0.2 else tree
    parent = tree
    for key in path[:-1]:
        parent = parent[key]
    last = path[-1]
    match source.randrange(7):
        case 0 | 1 | 2:
            parent[last] = source.choice(LEAVES)
        case 3:
            del parent[last]
        case 4 if isinstance(parent, dict):
            parent[source.choice(("unknown", "", "a.b", f"{last} ", "\x1b", "../x"))] = parent.pop(last)
        case 4:
            parent.insert(last, parent[last])
        case 5:
            parent[last] = {"x": parent[last]} if source.random() < 0.5 else [parent[last]]
        case _:
            value = parent[last]
            others: tuple[Any, ...] = (str(value),)
            if isinstance(value, int | float) and not isinstance(value, bool):
                others = (-value, value + 1, value * 2**40, value / 3, str(value), bool(value))
            parent[last] = source.choice(others)
    return tree


def _changed(source: random.Random, tree: Any) -> Any:
    for _ in range(source.choice((1, 1, 2, 3))):
        tree = change_tree(source, tree)
    return tree


def _json(source: random.Random, content: bytes, others: list[bytes]) -> bytes:
    tree = _changed(source, json.loads(content))
    text = json.dumps(tree)
    if source.random() < 0.1 and isinstance(tree, dict) and tree:
        # A key that stands twice.
        key, value = source.choice(list(tree)), source.choice(LEAVES)
        text = f"{{{json.dumps(key)}: {json.dumps(value)}, {text[1:]}"
    return text.encode("utf-8", "surrogatepass")


def _yaml(source: random.Random, content: bytes, others: list[bytes]) -> bytes:
    tree = _changed(source, yaml.safe_load(content))
    if source.random() < 0.5:
        return json.dumps(tree).encode("utf-8", "surrogatepass")
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass")


def _jsonl(source: random.Random, content: bytes, others: list[bytes]) -> bytes:
    lines = content.split(b"\n")
    place = source.randrange(len(lines))
    if lines[place].strip():
        lines[place] = _json(source, lines[place], others)
    return b"\n".join(lines)


# ---------------------------------------------------------------- tables and arrays

TYPES = (
    *(pa.int64(), pa.int32(), pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_()),
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.null()),
    *(pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.date32(), pa.time64("us"), pa.duration("s")),
    *(pa.decimal128(20, 3), pa.dictionary(pa.int32(), pa.string()), pa.struct([("a", pa.int64())])),
    *(pa.list_(pa.int32()), pa.list_(pa.string()), pa.list_(pa.list_(pa.int32())), pa.list_(pa.string(), 2)),
    pa.map_(pa.string(), pa.int64()),
)


def _change_table(source: random.Random, table: pa.Table) -> pa.Table:
    place, rows = source.randrange(table.num_columns), table.num_rows
    name, column = table.column_names[place], table.column(place)
    match source.randrange(6):
        case 0 | 1:
            kind = source.choice(TYPES)
            try:
                return table.set_column(place, name, column.cast(kind))
            except (pa.ArrowException, ValueError):
                return table.set_column(place, name, pa.nulls(rows, kind))
        case 2:
            return table.set_column(place, name, table.column(source.randrange(table.num_columns)))
        case 3:
            return table.remove_column(place)
        case 4:
            return table.append_column(source.choice([*table.column_names, "", "a.b", "\0"]), column)
        case _:
            count = source.choice((0, 1, 5, 300)) if rows else 0
            return table.take([source.randrange(rows) for _ in range(count)])


def _parquet(source: random.Random, content: bytes, others: list[bytes]) -> bytes:
    table = pq.read_table(pa.BufferReader(content))
    for _ in range(source.choice((1, 1, 2))):
        table = _change_table(source, table) if table.num_columns else table
    sink = io.BytesIO()
    codec, rows = source.choice(("zstd", "none", "snappy", "gzip")), source.choice((1, 7, 1 << 16))
    pq.write_table(table, sink, compression=codec, use_dictionary=source.random() < 0.5, row_group_size=rows)
    return sink.getvalue()


Mutator = Callable[[random.Random, bytes, list[bytes]], bytes]
MUTATORS: dict[str, tuple[Mutator, ...]] = {
    "json": (_json, _json, _json, _text, _bytes),
    "yaml": (_yaml, _yaml, _text, _text, _bytes),
    "jsonl": (_jsonl, _jsonl, _text, _bytes),
    "text": (_text, _text, _bytes),
    "parquet": (_parquet, _parquet, _bytes),
    "bytes": (_bytes,),
}


def mutate(source: random.Random, form: str, seeds: list[bytes]) -> bytes:
    """A broken variant of one of the seeds, whose form is a key of ``MUTATORS``."""
    content = source.choice(seeds)
    for _ in range(source.choice((1, 1, 1, 2, 4))):
        try:
            content = source.choice(MUTATORS[form])(source, content, seeds)
        except Exception:
            # What was broken before cannot be taken apart any more.
            content = _bytes(source, content, seeds)
    return content if form == "parquet" else content[:MAX_BYTES]
