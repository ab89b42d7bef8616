"""Simulated traffic as raw events: impressions and, separately, clicks; late, out of order, some of them twice.

::

    EVENTS/events.yaml                           the settings of the simulation
    EVENTS/impressions/2026-01-05T07.parquet     arrivals within this hour (UTC), in the order of arrival
    EVENTS/clicks/2026-01-05T07.parquet          the same for clicks; an hour in which nothing arrived has no file

Columns of an impression: ``impression_id`` and ``query_id`` (int64, the log's example_id and query_id),
``event_time`` (int64, microseconds, UTC; when it was served), ``arrival_time`` (same type), and the source columns of
``SCHEMA``, as text or int64. Columns of a click: ``impression_id``, ``event_time``, ``arrival_time``. Two deliveries
of an event differ in ``arrival_time`` alone.
"""

import io
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from ctr.config import differing_keys, dump_yaml, load_model
from ctr.data.parquet_files import parquet_bytes
from ctr.io.errors import InputError, joined
from ctr.io.files import create_exclusively, remove_temporaries, write_atomic_bytes
from ctr.simulator.auction import Served
from ctr.simulator.config import EVENTS_FILE, EventsConfig, EventsFormat, SimulatorConfig, check_events_folder
from ctr.simulator.features import FeatureIds
from ctr.simulator.world import EVENTS_STREAM, HOUR_US, random_stream

KINDS = ("impressions", "clicks")
_IMPRESSIONS, _CLICKS = KINDS


class EventFiles:
    """Writes events by hour of arrival while the log grows; buffers the events of incomplete hours."""

    def __init__(self, config: SimulatorConfig, folder: Path, ids: FeatureIds) -> None:
        _begin_folder(config, folder)
        self._config, self._folder, self._ids = config, folder, ids
        self._waiting: dict[str, list[pa.Table]] = {kind: [] for kind in KINDS}
        self._written_until = 0  # hours since 1970
        self._delivered = dict.fromkeys(KINDS, 0)
        self._files = 0

    def add(self, served: Served, rows: pa.Table, indices: np.ndarray) -> None:
        """Adds the events of queries in log order, for the ``rows`` at ``indices``; writes complete hours."""
        impressions = _impressions(self._ids, served, rows).take(pa.array(indices))
        clicked = rows.column("label").to_numpy()[indices] > 0
        numbers = (self._config.seed, EVENTS_STREAM, served.queries.day, int(served.queries.number[0]))
        events = self._config.events
        self._waiting[_IMPRESSIONS].append(_deliver_impressions(events, impressions, (*numbers, 0)))
        self._waiting[_CLICKS].append(_deliver_clicks(events, impressions.filter(clicked), (*numbers, 1)))
        # Nothing arrives before it happens.
        self._write(int(served.queries.time_us[-1]) // HOUR_US)

    def finish(self) -> dict[str, int]:
        """Writes the remaining events; returns the counts of files and of deliveries, duplicates included."""
        self._write(None)
        return {**{f"delivered_{kind}": self._delivered[kind] for kind in KINDS}, "event_files": self._files}

    def _write(self, until: int | None) -> None:
        if until is not None and until <= self._written_until:
            return
        for kind, tables in self._waiting.items():
            table = pa.concat_tables(tables) if tables else pa.table({})
            if not len(table):
                continue
            arrival, number = (table.column(name).to_numpy() for name in ("arrival_time", "impression_id"))
            order = np.lexsort((number, arrival))
            hour = arrival[order] // HOUR_US
            count = len(order) if until is None else int(np.searchsorted(hour, until))
            if not count:
                continue
            begins = np.flatnonzero(np.diff(hour[:count], prepend=-1))
            for begin, end in zip(begins, [*begins[1:], count], strict=True):
                self._write_hour(kind, int(hour[begin]), table.take(pa.array(order[begin:end])))
            self._waiting[kind] = [table.take(pa.array(order[count:]))]
        self._written_until = until or self._written_until

    def _write_hour(self, kind: str, hour: int, events: pa.Table) -> None:
        name = f"{datetime.fromtimestamp(hour * HOUR_US // 1_000_000, UTC):%Y-%m-%dT%H}"
        form = self._config.events.format
        write_atomic_bytes(self._folder / kind / f"{name}.{form}", _ENCODERS[form](events))
        self._delivered[kind] += len(events)
        self._files += 1


def _begin_folder(config: SimulatorConfig, folder: Path) -> None:
    path = folder / EVENTS_FILE
    check_events_folder(folder)
    if not create_exclusively(path, dump_yaml(config).encode()):
        existing = load_model(SimulatorConfig, path, "events")
        if existing != config:
            differences = differing_keys(existing.model_dump(mode="json"), config.model_dump(mode="json"))
            raise InputError(
                f"{path}: these events are of another simulation: its {joined(differences)}; "
                "use another output directory"
            )
    for directory in (folder, *(folder / kind for kind in KINDS)):
        remove_temporaries(directory)


def _impressions(ids: FeatureIds, served: Served, rows: pa.Table) -> pa.Table:
    raw = ids.raw(served.queries, served.impressions)
    keys = rows.select(["example_id", "query_id", "timestamp"])
    columns = dict(zip(("impression_id", "query_id", "event_time"), keys.columns, strict=True))
    for name in raw.column_names:
        column = raw.column(name)
        columns[name] = column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
    return pa.table(columns)


def _deliver_impressions(config: EventsConfig, impressions: pa.Table, numbers: Sequence[int]) -> pa.Table:
    chance = _chances(numbers, len(impressions), 6)
    delivered = chance[:, 0] >= config.lost_share
    return _deliver(config, impressions.filter(delivered), chance[delivered, 1:])


def _deliver_clicks(config: EventsConfig, clicked: pa.Table, numbers: Sequence[int]) -> pa.Table:
    chance = _chances(numbers, len(clicked), 7)
    delay = _delay_us(chance[:, :2], config.click_seconds, config.late_click_share, config.late_click_seconds)
    time = clicked.column("event_time").to_numpy() + 1 + delay
    clicks = pa.table({"impression_id": clicked.column("impression_id"), "event_time": time})
    return _deliver(config, clicks, chance[:, 2:])


def _chances(numbers: Sequence[int], rows: int, each: int) -> np.ndarray:
    """Draws uniform numbers, [rows, each]; earlier rows do not depend on later ones, nor on where the log is cut."""
    return random_stream(*numbers).random((rows, each))


def _deliver(config: EventsConfig, events: pa.Table, chance: np.ndarray) -> pa.Table:
    """Adds ``arrival_time`` after ``event_time``, and the copies delivered twice. ``chance``: uniform, [N, 5]."""
    mean = (config.delivery_seconds, config.straggler_share, config.straggler_seconds)
    first = events.column("event_time").to_numpy() + _delay_us(chance[:, :2], *mean)
    twice = np.flatnonzero(chance[:, 2] < config.duplicate_share)
    second = first[twice] + 1 + _delay_us(chance[twice, 3:], *mean)
    delivered = events.take(pa.array(np.concatenate([np.arange(len(events)), twice])))
    arrival = pa.array(np.concatenate([first, second]))
    return delivered.add_column(delivered.column_names.index("event_time") + 1, "arrival_time", arrival)


def _delay_us(chance: np.ndarray, mean: float, late_share: float, late_mean: float) -> np.ndarray:
    """Draws exponential delays of two kinds, int64 [N] in microseconds; means in seconds, ``chance`` uniform [N, 2]."""
    means = np.where(chance[:, 0] < late_share, late_mean, mean)
    return (-np.log1p(-chance[:, 1]) * means * 1e6).astype(np.int64)


def _csv_bytes(events: pa.Table) -> bytes:
    sink = io.BytesIO()
    pa_csv.write_csv(events, sink)
    return sink.getvalue()


_ENCODERS: dict[EventsFormat, Callable[[pa.Table], bytes]] = {
    "parquet": parquet_bytes,
    "jsonl": lambda events: "".join(json.dumps(row) + "\n" for row in events.to_pylist()).encode(),
    "csv": _csv_bytes,
}
