"""Small traffic in hand-made elements for the streaming job, and what is read of the logs that it becomes."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow.parquet as pq
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from ctr.config import parse_model
from ctr.data.event_mapping import EventMapping
from ctr.io.files import is_temporary
from ctr.pipelines.events.follow import ingest_events
from ctr.pipelines.events.publish import begin_log
from ctr.pipelines.events.read import line_reader
from ctr.pipelines.events.stream import PublishStream, RawEvents
from ctr.pipelines.events.tables import KINDS, Kind

SECOND = 1_000_000
BEGIN = 1_767_600_000 * SECOND
"""A whole number of the partition."""

LENGTH, WINDOW, DELAY = 20, 10, 5
CLOSES = LENGTH + WINDOW + DELAY
"""Seconds after its begin at which a partition is closed."""

Event = dict[str, Any]
Step = RawEvents | int
"""Events, or the microseconds after BEGIN to which the watermark moves."""


def mapping(**changes: Any) -> EventMapping:
    """Events as `impression` and `click` make them."""
    times = {
        "input": {"type": "jsonl"},
        "time": {"column": "time", "unit": "us"},
        "arrival": {"column": "arrival", "unit": "us"},
        "impression_id": "id",
    }
    content = {
        "impressions": {**times, "query_id": "query"},
        "clicks": times,
        "partition": f"{LENGTH}s",
        "click_window": f"{WINDOW}s",
        "delay": f"{DELAY}s",
        "features": [{"name": "color", "kind": "category", "source": "color", "vocabulary": ["red", "blue"]}],
    }
    return parse_model(EventMapping, content | changes, "test")


def impression(number: int, shown: float, arrival: float | None = None, color: str = "red") -> Event:
    """Times are seconds after BEGIN; without an arrival it comes a second later."""
    arrival = shown + 1 if arrival is None else arrival
    return {
        "id": number,
        "query": number,
        "time": microseconds(shown),
        "arrival": microseconds(arrival),
        "color": color,
    }


def click(number: int, clicked: float, arrival: float | None = None) -> Event:
    arrival = clicked + 1 if arrival is None else arrival
    return {"id": number, "time": microseconds(clicked), "arrival": microseconds(arrival)}


def microseconds(seconds: float) -> int:
    return BEGIN + round(seconds * SECOND)


def lines(events: Sequence[Event]) -> bytes:
    return "".join(json.dumps(event) + "\n" for event in events).encode()


def raw(kind: Kind, *events: Event, content: bytes = b"") -> RawEvents:
    """An element of the stream; `content` are lines instead of the events."""
    chunk, _, _ = line_reader(mapping(), kind).read_block(0, content or lines(events), 1)
    return RawEvents(kind, f"{kind}/test", chunk)


def run_stream(log: Path, steps: Sequence[Step], max_reject_share: float = 0.0, **changes: Any) -> list[int]:
    """Runs the job over the steps, the watermark at the end of time after the last; returns the partitions' starts.

    They are in the order in which they were published.
    """
    made = mapping(**changes)
    begin_log(log, made)
    stream, watermark = TestStream(), 0
    for step in steps:
        if isinstance(step, int):
            if BEGIN + step <= watermark:
                continue
            watermark = BEGIN + step
            stream = stream.advance_watermark_to(Timestamp(micros=watermark))
        else:
            stream = stream.add_elements([TimestampedValue(step, Timestamp(micros=max(watermark, BEGIN)))])
    stream = stream.advance_watermark_to_infinity()
    order = log.parent / f"{log.name}.order"
    order.unlink(missing_ok=True)
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        options = PipelineOptions(["--streaming", "--runner=BundleBasedDirectRunner"])
        with beam.Pipeline(options=options) as pipeline:
            _ = pipeline | stream | PublishStream(made, log, max_reject_share) | beam.Map(_note, order)
    finally:
        logging.disable(before)
    return [int(line) - BEGIN for line in order.read_text().split()] if order.exists() else []


def _note(start: int, path: Path) -> None:
    with path.open("a") as file:
        file.write(f"{start}\n")


def run_batch(folder: Path, impressions: Sequence[Event], clicks: Sequence[Event], **changes: Any) -> Path:
    """The log that the batch job makes of the events, inside `folder`."""
    for kind, events in zip(KINDS, (impressions, clicks), strict=True):
        (folder / "events" / kind).mkdir(parents=True)
        (folder / "events" / kind / "0.jsonl").write_bytes(lines(events))
    ingest_events(mapping(**changes), [folder / "events"], folder / "log", max_reject_share=1)
    return folder / "log"


def published(log: Path) -> dict[str, bytes]:
    """All files of a log but rejects, late events, spools, and what a killed process has left."""
    found = {}
    for path in sorted(log.rglob("*")):
        place = path.relative_to(log)
        if path.is_file() and not is_temporary(path) and place.parts[0] not in (".events", "rejects", "late"):
            found[place.as_posix()] = path.read_bytes()
    return found


def side_rows(log: Path, name: str) -> list[Event]:
    """The different rows of all files of a side folder, in one order: workers may set the same event aside twice."""
    rows = {
        repr(sorted(row.items())): row
        for path in (log / name).glob("*.parquet")
        for row in pq.read_table(path).to_pylist()
    }
    return [rows[key] for key in sorted(rows)]


def rejects(log: Path) -> list[Event]:
    found = [line for path in (log / "rejects").glob("*.jsonl") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in sorted(set(found))]


def labels(log: Path) -> dict[int, int]:
    """The label of each published example by its id."""
    tables = [pq.read_table(path) for path in (log / "shards").rglob("*.parquet")]
    return {row["example_id"]: row["label"] for table in tables for row in table.to_pylist()}
