"""Small traffic as raw events in every form, and what is read of the logs that it becomes."""

import csv
import gzip
import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ctr.config import parse_model
from ctr.data.event_mapping import EventMapping
from ctr.io.files import is_temporary

SECOND_US = 1_000_000
BEGIN_US = 1_767_600_000 * SECOND_US
"""A whole number of every partition in use here."""

Event = dict[str, Any]
FEATURES: list[dict[str, Any]] = [
    {"name": "color", "kind": "category", "source": "color", "vocabulary": ["red", "green", "blue"]},
    {"name": "price", "kind": "number", "source": "price", "boundaries": [1, 10, 100]},
    {
        "name": "tags",
        "kind": "category",
        "source": "tags",
        "buckets": 20,
        "multivalent": True,
        "max_values": 3,
    },
]
TYPES = {
    **dict.fromkeys(("impression_id", "query_id", "event_time", "arrival_time"), pa.int64()),
    "weight": pa.float64(),
    "color": pa.string(),
    "price": pa.float64(),
    "tags": pa.list_(pa.string()),
}
KINDS = ("impressions", "clicks")


def content(form: str = "jsonl", **changes: Any) -> dict[str, Any]:
    """A mapping file for the events of ``draw_events``; None takes a key away, a dict changes one of its own."""
    times = {
        "input": {"type": form},
        "time": {"column": "event_time", "unit": "us"},
        "arrival": {"column": "arrival_time", "unit": "us"},
        "impression_id": "impression_id",
    }
    made: dict[str, Any] = {
        "impressions": {**times, "query_id": "query_id", "weight": "weight"},
        "clicks": dict(times),
        "partition": "20s",
        "click_window": "10s",
        "delay": "5s",
        "features": [
            {**feature, "separator": "|"} if feature["name"] == "tags" and form == "csv" else feature
            for feature in FEATURES
        ],
    }
    for key, value in changes.items():
        made[key] = {**made[key], **value} if isinstance(made.get(key), dict) else value
    return {key: value for key, value in made.items() if value is not None}


def mapping(form: str = "jsonl", **changes: Any) -> EventMapping:
    return parse_model(EventMapping, content(form, **changes), "test")


def draw_events(count: int, seed: int = 0, seconds: int = 100) -> dict[str, list[Event]]:
    """Impressions and clicks of some time, each kind in the order of arrival.

    Those of one id that are shown at one time are copies. There are duplicates, conflicts, repeated clicks, clicks
    before and long after their impressions, orphans, and events that arrive too late.
    """
    source = random.Random(seed)

    def delivered(event: Event) -> list[Event]:
        copies = []
        for _ in range(2 if source.random() < 0.1 else 1):
            late = source.random() < 0.05
            delay = source.expovariate(1 / (60 if late else 1)) * SECOND_US
            copies.append({**event, "arrival_time": event["event_time"] + round(delay)})
        return copies

    impressions: list[Event] = []
    clicks: list[Event] = []
    for number in range(count):
        query = number // 3
        shown = random.Random(f"{seed} {query}").randrange(seconds * SECOND_US)
        event = {
            "impression_id": 1_000 + number,
            "query_id": query,
            "event_time": BEGIN_US + shown,
            "weight": source.choice([1.0, 0.5, 2.0]),
            "color": source.choice(["red", "green", "blue", "pink", None]),
            "price": source.choice([None, 0.5, 1.0, 7.25, 1e4]),
            "tags": source.choice([None, ["a"], ["b", "c"], ["a", "b", "c", "d"]]),
        }
        if source.random() > 0.03:
            impressions += delivered(event)
        if source.random() < 0.05:
            other = {
                **event,
                "color": "blue",
                "event_time": event["event_time"] + source.randrange(1, 15) * SECOND_US,
            }
            impressions += delivered(other)
        while source.random() < 0.3:
            after = source.choice([-1.0, 0.0, 1.0, 3.0, 9.999, 10.0, 10.000001, 17.0, 40.0])
            time = event["event_time"] + round(after * SECOND_US)
            clicks += delivered({"impression_id": event["impression_id"], "event_time": time})
    return {
        "impressions": sorted(impressions, key=lambda event: event["arrival_time"]),
        "clicks": sorted(clicks, key=lambda event: event["arrival_time"]),
    }


def encode(events: Sequence[Event], form: str) -> bytes:
    """A file of events as jsonl, csv or parquet; the first two also with .gz."""
    kind, _, compression = form.partition(".")
    names = [name for name in TYPES if events and name in events[0]]
    if kind == "parquet":
        schema = pa.schema([pa.field(name, TYPES[name]) for name in names])
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(list(events), schema=schema), sink, row_group_size=7)
        return sink.getvalue()
    if kind == "jsonl":
        data = "".join(json.dumps(event) + "\n" for event in events).encode()
    else:
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        for event in events:
            tags = {} if event.get("tags") is None else {"tags": "|".join(event["tags"])}
            writer.writerow({**event, **tags})
        data = text.getvalue().encode()
    return gzip.compress(data, mtime=0) if compression else data


def encode_files(events: dict[str, list[Event]], files: int, form: str = "jsonl") -> list[tuple[str, bytes]]:
    """Names and contents of ``files`` files of each kind, cut in the order of the events, the kinds in turn."""
    made = []
    for number in range(files):
        for kind in KINDS:
            found = events[kind]
            part = found[len(found) * number // files : len(found) * (number + 1) // files]
            made.append((f"{kind}/{number}.{form}", encode(part, form)))
    return made


def write_files(folder: Path, files: Sequence[tuple[str, bytes]]) -> Path:
    """Sets files down under their names, each whole at once."""
    for name, data in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f".{path.name}")
        hidden.write_bytes(data)
        hidden.replace(path)
    return folder


def write_events(folder: Path, events: dict[str, list[Event]], files: int = 3, form: str = "jsonl") -> Path:
    return write_files(folder, encode_files(events, files, form))


def published(log: Path, without: Sequence[str] = ("rejects",)) -> dict[str, bytes]:
    """All files of a log by name but the spool's, those that a killed process left, and those of some folders."""
    found = {}
    for path in sorted(log.rglob("*")):
        place = path.relative_to(log)
        if path.is_file() and not is_temporary(path) and place.parts[0] not in (".events", *without):
            found[place.as_posix()] = path.read_bytes()
    return found


def read_side(log: Path, name: str) -> list[Event]:
    """The rows of all files of a side folder, in no order that says something."""
    rows = [row for path in sorted((log / name).glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    return sorted(rows, key=repr)
