"""Small traffic as raw events in every form, a stream of it, and what is read of the logs that it becomes."""

import csv
import gzip
import hashlib
import io
import json
import logging
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
LENGTH, WINDOW, DELAY = 20, 10, 5
CLOSES = LENGTH + WINDOW + DELAY
"""Seconds after its begin at which a partition is closed."""
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
    **dict.fromkeys(("impression_id", "query_id", "event_time", "arrival_time", "shown_at"), pa.int64()),
    "weight": pa.float64(),
    "color": pa.string(),
    "price": pa.float64(),
    "tags": pa.list_(pa.string()),
}


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
        "partition": f"{LENGTH}s",
        "click_window": f"{WINDOW}s",
        "delay": f"{DELAY}s",
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


def microseconds(seconds: float) -> int:
    """The time so many seconds after ``BEGIN_US``."""
    return BEGIN_US + round(seconds * SECOND_US)


def click(number: int, clicked: float, arrival: float | None = None) -> Event:
    """Times are seconds after ``BEGIN_US``; without an arrival it comes a second later."""
    arrival = clicked + 1 if arrival is None else arrival
    times = {"event_time": microseconds(clicked), "arrival_time": microseconds(arrival)}
    return {"impression_id": number, **times}


def impression(number: int, shown: float, arrival: float | None = None, color: str | None = "red") -> Event:
    rest = {"weight": 1.0, "color": color, "price": None, "tags": None}
    return {**click(number, shown, arrival), "query_id": number, **rest}


def draw_events(count: int, seed: int = 0, seconds: int = 100) -> dict[str, list[Event]]:
    """Impressions and clicks of some time, each kind in the order of arrival.

    Those of one id that are shown at one time are copies. There are duplicates, conflicts, repeated clicks, clicks
    before and long after their impressions, exactly at the ends of their windows, orphans, ties of time, and events
    that arrive too late. ``shown_at`` is when an impression was shown, for mappings that read it.
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
        asked = BEGIN_US + random.Random(f"{seed} {query // 2}").randrange(seconds * SECOND_US)
        event = {
            "impression_id": 1_000 + number,
            "query_id": query,
            "event_time": asked,
            "shown_at": asked + random.Random(f"{seed} {number}").choice([-1, 0, 0, 4]) * SECOND_US,
            "weight": source.choice([1.0, 0.5, 2.0]),
            "color": source.choice(["red", "green", "blue", "pink", None]),
            "price": source.choice([None, 0.5, 1.0, 7.25, 1e4]),
            "tags": source.choice([None, ["a"], ["b", "c"], ["a", "b", "c", "d"]]),
        }
        if source.random() > 0.03:
            impressions += delivered(event)
        if source.random() < 0.05:
            moved = source.randrange(1, 15) * SECOND_US
            times = {name: event[name] + moved for name in ("event_time", "shown_at")}
            impressions += delivered({**event, **times, "color": "blue"})
        while source.random() < 0.3:
            after = source.choice([-1.0, 0.0, 1.0, 3.0, 9.999, 10.0, 10.000001, 17.0, 40.0])
            time = event["event_time"] + round(after * SECOND_US)
            clicks += delivered({"impression_id": event["impression_id"], "event_time": time})
    return {
        "impressions": sorted(impressions, key=lambda event: event["arrival_time"]),
        "clicks": sorted(clicks, key=lambda event: event["arrival_time"]),
    }


def draw_conversions(impressions: Sequence[Event], window: float, seed: int = 0) -> list[Event]:
    """Events of a further label, in the order of arrival: about its window's edges, repeated, too late, of no row."""
    source = random.Random(seed)
    found = []
    for event in [*impressions, click(7, 11)]:
        while source.random() < 0.3:
            edges = [window + by for by in (-1e-6, 0, 1e-6, 3, 70)]
            after = source.choice([-1.0, 0.0, window / 2, *edges])
            time = event["event_time"] + round(after * SECOND_US)
            for _ in range(source.choice([1, 1, 1, 2])):
                delay = source.expovariate(1 / (60 if source.random() < 0.05 else 1))
                arrival = time + round(delay * SECOND_US)
                found.append(
                    {"impression_id": event["impression_id"], "event_time": time, "arrival_time": arrival}
                )
    return sorted(found, key=lambda event: event["arrival_time"])


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
        for kind, found in events.items():
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


def published(log: Path, without: Sequence[str] = ("rejects",)) -> dict[str, str]:
    """The hashes of all files of a log but the spool's, those that a killed process left, and those of some folders."""
    found = {}
    for path in sorted(log.rglob("*")):
        place = path.relative_to(log)
        if path.is_file() and not is_temporary(path) and place.parts[0] not in (".events", *without):
            found[place.as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def read_side(log: Path, name: str) -> list[Event]:
    """The rows of all files of a side folder, in no order that says something."""
    rows = [row for path in sorted((log / name).glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    return sorted(rows, key=repr)


def labels(log: Path) -> dict[int, int]:
    """The label of each published example by its id."""
    tables = [pq.read_table(path) for path in (log / "shards").rglob("*.parquet")]
    return {row["example_id"]: row["label"] for table in tables for row in table.to_pylist()}


# ---------------------------------------------------------------- a stream


def raw(kind: Any, *events: Event, content: bytes = b"", made: EventMapping | None = None) -> Any:
    """An element of a stream of a mapping; ``content`` are lines instead of the events."""
    from ctr.pipelines.events.read import line_reader
    from ctr.pipelines.events.stream import RawEvents

    chunk = line_reader(made or mapping(), kind).read_block(0, content or encode(events, "jsonl"), 1)
    return RawEvents(kind, f"{kind}/test", chunk)


def run_stream(
    log: Path, steps: Sequence[Any], made: EventMapping | None = None, max_reject_share: float = 0.0
) -> list[int]:
    """Runs the streaming job over some steps: elements of ``raw``, or the seconds to which the watermark moves.

    After the last step it moves to the end of time. Returns the partitions in the order in which they were published,
    as seconds after ``BEGIN_US``.
    """
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.testing.test_stream import TestStream
    from apache_beam.transforms.window import TimestampedValue
    from apache_beam.utils.timestamp import Timestamp

    from ctr.pipelines.events.publish import begin_log
    from ctr.pipelines.events.stream import PublishStream

    made = made or mapping()
    begin_log(log, made)
    stream, watermark = TestStream(), 0
    for step in steps:
        if not isinstance(step, int | float):
            stream = stream.add_elements([TimestampedValue(step, Timestamp(micros=max(watermark, BEGIN_US)))])
        # Beam counts a watermark in milliseconds, and none may repeat the one before.
        elif (moved := microseconds(step) // 1000 * 1000) > watermark:
            watermark = moved
            stream = stream.advance_watermark_to(Timestamp(micros=watermark))
    order = log.parent / f"{log.name}.order"
    order.unlink(missing_ok=True)
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        options = PipelineOptions(["--streaming", "--runner=BundleBasedDirectRunner"])
        with beam.Pipeline(options=options) as pipeline:
            publish = PublishStream(made, log, max_reject_share)
            _ = pipeline | stream.advance_watermark_to_infinity() | publish | beam.Map(_note, order)
    finally:
        logging.disable(before)
    starts = [int(line) for line in order.read_text().split()] if order.exists() else []
    return [(start - BEGIN_US) // SECOND_US for start in starts]


def _note(start: int, path: Path) -> None:
    with path.open("a") as file:
        file.write(f"{start}\n")
