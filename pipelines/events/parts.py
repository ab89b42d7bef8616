"""Events on their way, through a runner, from the worker that reads them to the one that joins their partition.

An element is a partition's begin, and what it gets: events of a kind, or ``EARLIER``, as an Arrow stream.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from ctr.pipelines.events.rules import PartitionRules, known_from
from ctr.pipelines.events.tables import EARLIER, EARLIER_SCHEMA, IMPRESSIONS, Kind
from ctr.pipelines.spill import split_by_partition

Part = tuple[int, tuple[str, bytes]]


def parts_of(rules: PartitionRules, kind: Kind, routed: dict[int, pa.Table]) -> Iterator[Part]:
    """Makes the elements of events that ``route_chunk`` has split, for all partitions that need them."""
    for start, table in routed.items():
        yield start, (kind, _to_bytes(table))
    if kind == IMPRESSIONS:
        yield from _earlier(rules, routed)


def _earlier(rules: PartitionRules, routed: dict[int, pa.Table]) -> Iterator[Part]:
    # Ids and times for the later partitions whose clicks may be those of these impressions.
    for table in routed.values():
        known = table.select(EARLIER_SCHEMA.names)
        times = known.column("query_time").to_numpy()
        begins = rules.start_of(times)
        reach = rules.lookback + rules.ahead
        for ahead in range(1, -(-reach // rules.length) + 1):
            starts = begins + ahead * rules.length
            there = times >= known_from(rules, starts)
            parts = split_by_partition(known.filter(pa.array(there)), starts[there])
            for start, part in parts.items():
                yield start, (EARLIER, _to_bytes(part))


def tables_of(parts: Iterable[tuple[str, bytes]]) -> dict[str, list[pa.Table]]:
    """Reads what a partition got, as ``stage_events`` takes it."""
    found: dict[str, list[pa.Table]] = {}
    for what, content in parts:
        found.setdefault(what, []).append(_from_bytes(content))
    return found


def _to_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _from_bytes(content: bytes) -> pa.Table:
    with pa.ipc.open_stream(content) as reader:
        return reader.read_all()
