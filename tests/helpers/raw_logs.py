"""A small log in every input format, and a plain-Python ingestion to check the fast one against."""

import csv
import gzip
import io
import json
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr.config import parse_model
from ctr.data.ids.arrow import string_ids
from ctr.data.log import read_manifests, read_schema
from ctr.data.mapping import Mapping
from ctr.data.shards import read_shard, unpack_ids
from ctr.pipelines.tables import ingest as tables
from ctr.pipelines.tables.ingest import IngestResult, IngestSettings

COLORS = ("red", "green", "blue")
TAGS = ("a", "b", "c", "d")
KINDS = ("food", "tools", "")
ZONES = ("ab", "cd")
PRICE_EDGES = (1.0, 10.0, 100.0)
HOUR_EDGES = (6.0, 12.0, 18.0)
COLUMNS = ("id", "time", "user", "shop", "rating", "weight", "color", "price", "tags", "code")
GAP_S = 1800
HOUR_US = 3_600_000_000

FEATURES = [
    {"name": "color", "kind": "category", "source": "color", "vocabulary": list(COLORS)},
    {"name": "price", "kind": "number", "source": "price", "boundaries": list(PRICE_EDGES)},
    {
        **{"name": "tags", "kind": "category", "source": "tags", "multivalent": True, "separator": "|"},
        **{"vocabulary": list(TAGS), "max_values": 3, "keep": "last"},
    },
    {"name": "kind", "kind": "category", "source": "shop_kind", "vocabulary": list(KINDS[:2])},
    {"name": "hour", "kind": "number", "source": "hour", "boundaries": list(HOUR_EDGES)},
    {"name": "zone", "kind": "category", "source": "zone", "vocabulary": list(ZONES)},
]
QUERIES = {
    "none": None,
    "column": {"column": "user"},
    "session": {"session": {"by": "user", "gap": f"{GAP_S}s"}},
}
# The same, and some whose ids grow.
GROWING_FEATURES = [
    *FEATURES,
    {"name": "visitor", "kind": "category", "source": "user"},
    {
        **{"name": "labels", "kind": "category", "source": "tags", "multivalent": True, "separator": "|"},
        **{"max_values": 2},
    },
]


def base_content(**changes: Any) -> dict[str, Any]:
    """A mapping file's content for the rows of ``make_rows``."""
    content = {
        "input": {"type": "csv"},
        "joins": [{"file": "shops.csv", "key": "shop", "prefix": "shop_", "input": {"type": "csv"}}],
        "time": {"column": "time", "unit": "s"},
        "query": {"session": {"by": "user", "gap": f"{GAP_S}s"}},
        "example_id": "id",
        "label": "rating >= 4",
        "weight": "weight",
        "derive": {"hour": {"from": "time", "part": "hour"}, "zone": {"from": "code", "prefix": 2}},
        "partition": "1h",
        "features": FEATURES,
    }
    return {key: value for key, value in {**content, **changes}.items() if value is not None}


def make_mapping(**changes: Any) -> Mapping:
    return parse_model(Mapping, base_content(**changes), "test")


def other_warnings(result: IngestResult) -> list[str]:
    """The warnings of an ingest but for that of the side table of ``base_content``, which has no times."""
    return [warning for warning in result.warnings if "shops.csv has no times" not in warning]


def make_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Raw rows, not in order of time; values as a text file would hold them, None where missing."""
    source = random.Random(seed)
    rows = []
    for place in range(count):
        rows.append(
            {
                "id": str(10_000 + place),
                "time": str(1_600_000_000 + source.randrange(6 * 3600)),
                "user": str(source.randrange(max(2, count // 8))),
                "shop": str(source.randrange(5)),
                "rating": str(source.randrange(1, 6)),
                "weight": source.choice(["1", "0.5", "2", "0"]),
                "color": source.choice([*COLORS, "pink", None]),
                "price": source.choice([None, "0.5", "1", "7.25", "99.9", "100", "-3", "1e4"]),
                "tags": source.choice([None, "a", "b|c", "a|b|c|d", "x|a"]),
                "code": source.choice(["abx", "cd", "ef9", None]),
            }
        )
    return rows


SHOPS = {"0": "food", "1": "tools", "2": "toys", "3": None}
"""Shop 4 is not in the side table."""


def write_shops(folder: Path) -> None:
    lines = ["name,shop,kind"] + [f'"a, b",{shop},{kind or ""}' for shop, kind in SHOPS.items()]
    (folder / "shops.csv").write_text("\n".join(lines) + "\n")


def write_rows(folder: Path, rows: list[dict[str, Any]], suffix: str = "csv", name: str = "rows") -> Path:
    """Writes rows as csv, tsv, jsonl or parquet, also with .gz or .zst, and the side table beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    write_shops(folder)
    kind, _, compression = suffix.partition(".")
    path = folder / f"{name}.{suffix}"
    if kind == "parquet":
        pq.write_table(typed_table(rows), path, row_group_size=7)
        return path
    if kind == "jsonl":
        content = "".join(json.dumps(typed_object(row)) + "\n" for row in rows)
    else:
        buffer = io.StringIO()
        delimiter, quoting = (",", csv.QUOTE_ALL) if kind == "csv" else ("\t", csv.QUOTE_MINIMAL)
        writer = csv.DictWriter(buffer, COLUMNS, delimiter=delimiter, quoting=quoting, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        content = buffer.getvalue()
    data = content.encode()
    if compression == "zst":
        with pa.CompressedOutputStream(str(path), "zstd") as file:
            file.write(data)
        return path
    if compression == "gz":
        # Of several members, as cat makes them.
        data = gzip.compress(data[:1000]) + gzip.compress(data[1000:])
    path.write_bytes(data)
    return path


def typed_object(row: dict[str, Any]) -> dict[str, Any]:
    """A row with the types that JSON and Parquet have; missing keys left out now and then."""
    typed: dict[str, Any] = dict(row)
    for name in ("id", "time", "user", "shop", "rating"):
        typed[name] = int(row[name])
    for name in ("weight", "price"):
        typed[name] = None if row[name] is None else float(row[name])
    if row["tags"] is not None:
        typed["tags"] = row["tags"].split("|")
    if row["color"] is None:
        del typed["color"]
    return typed


def typed_table(rows: list[dict[str, Any]]) -> pa.Table:
    types = {"tags": pa.list_(pa.string()), "weight": pa.float32(), "price": pa.float64()}
    types |= {name: pa.int64() for name in ("id", "time", "user", "shop", "rating")}
    fields = [pa.field(name, types.get(name, pa.string())) for name in COLUMNS]
    return pa.Table.from_pylist([typed_object(row) for row in rows], schema=pa.schema(fields))


def plain_mix(*parts: int) -> int:
    """The hash of ``mix_ids``, with Python's whole numbers."""
    mask = 2**64 - 1
    state = 0
    for part in parts:
        state = (state * 0x9E3779B97F4A7C15 & mask) ^ (part & mask)
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & mask
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & mask
        state ^= state >> 31
    return state - 2**64 if state >= 2**63 else state


def plain_sessions(events: list[tuple[int, int]], gap_us: int | None) -> list[tuple[int, int]]:
    """(group, time) of each row -> (query_id, query_time), group by group."""
    found: dict[int, tuple[int, int]] = {}
    for group in {group for group, _ in events}:
        places = sorted((time, place) for place, (other, time) in enumerate(events) if other == group)
        session = [places[0]]
        sessions = [session]
        for (before, _), here in pairwise(places):
            if gap_us is not None and here[0] - before > gap_us:
                session = []
                sessions.append(session)
            session.append(here)
        for members in sessions:
            query = group if gap_us is None else plain_mix(group, members[0][0])
            for _, place in members:
                found[place] = (query, members[-1][0])
    return [found[place] for place in range(len(events))]


def plain_bucket(value: float | None, edges: tuple[float, ...]) -> int:
    return 0 if value is None else 1 + sum(edge <= value for edge in edges)


def plain_word(value: str | None, words: tuple[str, ...]) -> int:
    if not value:
        return 0
    return 1 + words.index(value) if value in words else len(words) + 1


def plain_print(value: str | None) -> int:
    return int(string_ids(pa.array([value]))[0]) if value else 0


def reference(rows: list[tuple[str, int, dict[str, Any]]], mapping: Mapping) -> list[dict[str, Any]]:
    """Plain-Python ingestion of good rows (file name, row number, raw row) under ``base_content``."""
    times = [int(row["time"]) * 1_000_000 for _, _, row in rows]
    if mapping.example_id is None:
        names = {name: int(string_ids(pa.array([name]))[0]) for name, _, _ in rows}
        ids = [
            plain_mix(names[name], number, time) for (name, number, _), time in zip(rows, times, strict=True)
        ]
    else:
        ids = [int(row["id"]) for _, _, row in rows]
    if mapping.query is None:
        queries = list(zip(ids, times, strict=True))
    else:
        events = [
            (int(row[mapping.query.group_column]), time)
            for (_, _, row), time in zip(rows, times, strict=True)
        ]
        queries = plain_sessions(events, GAP_S * 1_000_000 if mapping.query.session else None)
    examples = []
    for (_, _, row), time, example_id, query in zip(rows, times, ids, queries, strict=True):
        tags = [plain_word(tag, TAGS) for tag in (row["tags"] or "").split("|") if tag][-3:]
        price = None if row["price"] is None else float(row["price"])
        grown = {
            "visitor": plain_print(row["user"]),
            "labels": [plain_print(tag) for tag in (row["tags"] or "").split("|") if tag][:2],
        }
        examples.append(
            {
                **{name: grown[name] for name in mapping.feature_schema.growing},
                "query_time": query[1],
                "timestamp": time,
                "query_id": query[0],
                "example_id": example_id,
                "label": int(float(row["rating"]) >= 4),
                "train_weight": float(row["weight"]) if mapping.weight else 1.0,
                "metric_weight": float(row["weight"]) if mapping.weight else 1.0,
                "color": plain_word(row["color"], COLORS),
                "price": plain_bucket(price, PRICE_EDGES),
                "kind": plain_word(SHOPS.get(row["shop"]), KINDS[:2]),
                "hour": plain_bucket(time // HOUR_US % 24, HOUR_EDGES),
                "zone": plain_word(None if row["code"] is None else row["code"][:2], ZONES),
                "tags": tags,
            }
        )
    return sorted(examples, key=lambda e: (e["query_time"], e["query_id"], e["example_id"]))


def read_log(folder: Path) -> list[dict[str, Any]]:
    """All examples of a log in its order, the single-valued features by name."""
    schema = read_schema(folder)
    examples = []
    for manifest in read_manifests(folder):
        for entry in manifest.shards:
            table = read_shard(folder, entry, schema)
            ids = (
                unpack_ids(table.column("ids").combine_chunks(), schema)
                if schema.single_valued
                else np.zeros((0, 0))
            )
            for place, row in enumerate(table.to_pylist()):
                row.pop("ids", None)
                row |= {name: int(ids[place, at]) for at, name in enumerate(schema.single_valued)}
                examples.append(row)
    return examples


def read_rejects(folder: Path) -> list[dict[str, Any]]:
    """All reject records of a log."""
    paths = sorted((folder / "rejects").glob("*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def log_bytes(folder: Path) -> dict[str, bytes]:
    """What a log's readers see: every file by its name, but what ingests remember of the files that they were given."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    named = ((path.relative_to(folder), path) for path in files)
    return {str(name): path.read_bytes() for name, path in named if not name.parts[0].startswith(".")}


def ingest(mapping: Mapping, inputs: Sequence[Path], out: Path, **settings: Any) -> IngestResult:
    return tables.ingest(mapping, inputs, out, IngestSettings(**settings))
