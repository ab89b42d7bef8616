"""The join of partitions against one of single events, written from what the modules say of themselves."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.config import parse_model
from ctr.data.schema import Schema
from ctr.data.shards import pack_ids, shard_schema, unpack_ids
from ctr.pipelines.events.join import NOT_PUBLISHED, UNMATCHED_SCHEMA, Joined, fate_counters, join_partition
from ctr.pipelines.events.rules import PartitionRules, route_clicks, route_impressions
from ctr.pipelines.events.tables import CLICK_SCHEMA, EARLIER_SCHEMA
from single_events import Click, Impression, PlainPartition, join_plainly

FEATURE = {"name": "color", "kind": "category", "source": "color", "buckets": 9}
SCHEMA = parse_model(Schema, {"features": [FEATURE], "labels": ["sale", "call"]}, "test")
KINDS = ("clicks", "sale", "call")
IMPRESSIONS = pa.schema([*shard_schema(SCHEMA), pa.field("arrival", pa.int64(), False)])


# ---------------------------------------------------------------- events as tables


def impression_table(found: Sequence[Impression]) -> pa.Table:
    number, time, shown, query, color, arrival = np.array(found, np.int64).reshape(-1, 6).T
    ones = np.ones(len(found), np.float32)
    columns = [time, shown, query, number, np.zeros(len(found), np.int8), ones, ones]
    ids = pack_ids(color.astype(np.int32)[:, None])
    zeros = [pa.array(np.zeros(len(found), np.int8))] * 2
    return pa.table([*map(pa.array, columns), ids, *zeros, pa.array(arrival)], schema=IMPRESSIONS)


def click_table(found: Sequence[Click]) -> pa.Table:
    columns = np.array(found, np.int64).reshape(-1, 3).T
    return pa.table(list(map(pa.array, columns)), schema=CLICK_SCHEMA)


def route(
    rules: PartitionRules, route_kind: Callable[..., Any], tables: Sequence[pa.Table]
) -> tuple[dict[int, pa.Table], pa.Table]:
    """The pieces of an input by partition, and those too late."""
    parts: dict[int, list[pa.Table]] = defaultdict(list)
    late = []
    for table in tables:
        routed, aside = route_kind(rules, table)
        late.append(aside)
        for start, part in routed.items():
            parts[start].append(part)
    return {start: pa.concat_tables(found) for start, found in parts.items()}, pa.concat_tables(late)


def join_all(
    rules: PartitionRules, impressions: Sequence[pa.Table], events: Mapping[str, Sequence[pa.Table]]
) -> tuple[dict[int, Joined], pa.Table, dict[str, pa.Table]]:
    """Every partition that has something, and the events that came too late."""
    shown, late_shown = route(rules, route_impressions, impressions)
    routed = {
        kind: route(rules, partial(route_clicks, kind=kind), events.get(kind, [click_table([])]))
        for kind in KINDS
    }
    joined = {}
    for start in sorted({*shown, *(start for parts, _ in routed.values() for start in parts)}):
        before = [part.select(EARLIER_SCHEMA.names) for other, part in shown.items() if other < start]
        tables = (
            shown.get(start, IMPRESSIONS.empty_table()),
            pa.concat_tables([EARLIER_SCHEMA.empty_table(), *before]),
            {kind: parts.get(start, CLICK_SCHEMA.empty_table()) for kind, (parts, _) in routed.items()},
        )
        joined[start] = join_partition(SCHEMA, rules, start, *tables)
    late = {kind: aside for kind, (_, aside) in routed.items()}
    return {start: found for start, found in joined.items() if not found.is_empty}, late_shown, late


def plain_impressions(table: pa.Table) -> list[Impression]:
    color = unpack_ids(table.column("ids").combine_chunks(), SCHEMA)[:, 0].tolist() if table.num_rows else []
    names = ("example_id", "query_time", "timestamp", "query_id")
    columns = (table.column(name).to_pylist() for name in names)
    return list(map(Impression, *columns, color, table.column("arrival").to_pylist()))


def plain(joined: Joined) -> PlainPartition:
    """The same as ``join_plainly`` has it."""
    rows = joined.examples
    assert rows.schema == shard_schema(SCHEMA)
    assert all(table.schema == UNMATCHED_SCHEMA for table in joined.unmatched.values())
    shown = plain_impressions(rows.append_column("arrival", pa.array(np.zeros(rows.num_rows, np.int64))))
    keys = [(found.time, found.query, found.id) for found in shown]
    assert keys == sorted(keys)
    examples = {found.id: (found.time, found.shown, found.query, found.color) for found in shown}
    assert len(examples) == rows.num_rows
    labeled = {
        (kind, row["example_id"])
        for row in rows.to_pylist()
        for kind in KINDS
        if row["label" if kind == "clicks" else f"label:{kind}"]
    }
    unmatched = [
        (kind, *row.values()) for kind in sorted(KINDS) for row in joined.unmatched[kind].to_pylist()
    ]
    counters = Counter({name: count for name, count in joined.counters.items() if count})
    return PlainPartition(examples, labeled, unmatched, plain_impressions(joined.conflicting), counters)


def assert_same(found: dict[int, Joined], reported: dict[int, PlainPartition]) -> None:
    assert set(found) == set(reported)
    for start, expected in reported.items():
        assert plain(found[start]) == replace(expected, counters=+expected.counters), start


# ---------------------------------------------------------------- what is drawn

RULES = st.builds(
    PartitionRules,
    length=st.sampled_from([5, 10]),
    window=st.sampled_from([1, 4, 10, 23]),
    late_window=st.sampled_from([1, 6, 30]),
    delay=st.sampled_from([1, 3, 12]),
    skew=st.sampled_from([0, 0, 2, 7]),
    show=st.sampled_from([0, 0, 3, 17]),
    # Longer than the window of clicks, and shorter.
    labels=st.fixed_dictionaries(
        {
            "sale": st.sampled_from([(0, 0), (31, 9), (45, 2)]),
            "call": st.sampled_from([(0, 0), (1, 3), (12, 40)]),
        }
    ),
)
Case = tuple[PartitionRules, list[Impression], dict[str, list[Click]]]


# Few different times, so that queries and impressions tie.
NUMBERS, TIMES = st.integers(0, 5), st.sampled_from([0, 3, 4, 5, 9, 10, 14, 27, 41, 60])


def arrivals(rules: PartitionRules, time: int) -> st.SearchStrategy[int]:
    """Soon, or about when a partition closes that the event may belong to."""
    ends = [rules.closes_at(rules.start_of(time)) - back * rules.length for back in range(3)]
    edges = [max(end + by, 0) for end in ends for by in (-1, 0)]
    return st.one_of(st.integers(time, time + 3), st.sampled_from(edges), st.integers(time, time + 60))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rules = draw(RULES)
    impressions = []
    for _ in range(draw(st.integers(0, 9))):
        time = draw(TIMES)
        shown = time + (draw(st.integers(-rules.skew, rules.show)) if rules.show else 0)
        found = Impression(draw(NUMBERS), time, shown, draw(st.integers(0, 1)), draw(st.integers(0, 1)), 0)
        impressions += [
            found._replace(arrival=draw(arrivals(rules, time)))
            for _ in range(draw(st.sampled_from([1, 1, 1, 2])))
        ]
    return rules, impressions, {kind: draw(clicks_on(rules, kind, impressions)) for kind in KINDS}


@st.composite
def clicks_on(
    draw: st.DrawFn, rules: PartitionRules, kind: str, impressions: list[Impression]
) -> list[Click]:
    clicks = []
    window, late_window = rules.labels.get(kind, (rules.window, rules.late_window))
    for _ in range(draw(st.integers(0, 9))):
        if impressions and draw(st.booleans()):
            shown = draw(st.sampled_from(impressions))
            edges = [-rules.skew, 0, window, window + late_window]
            afters = [edge + by for edge in edges for by in (-1, 0, 1)]
            number, time = shown.id, max(shown.shown + draw(st.sampled_from(afters)), 0)
        else:
            number, time = draw(NUMBERS), draw(TIMES)
        for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
            clicks.append(Click(number, time, draw(arrivals(rules, time))))
    return clicks


def cut(draw: st.DrawFn, rows: list[Any]) -> list[list[Any]]:
    """The rows in another order, in pieces."""
    rows = draw(st.permutations(rows))
    places = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    return [rows[a:b] for a, b in zip([0, *places], [*places, len(rows)], strict=True)]


# ---------------------------------------------------------------- tests


@settings(max_examples=50)
@given(cases(), st.data())
def test_partitions_are_those_of_a_join_of_single_events_in_any_order_and_cut(case, data):
    rules, impressions, events = case
    pieces = [impression_table(part) for part in cut(data.draw, impressions)]
    parts = {kind: cut(data.draw, clicks) for kind, clicks in events.items()}
    event_pieces = {kind: list(map(click_table, part)) for kind, part in parts.items()}
    found, late_shown, late_clicked = join_all(rules, pieces, event_pieces)
    reported, too_late, clicks_too_late = join_plainly(rules, impressions, events)
    assert_same(found, reported)
    assert Counter(plain_impressions(late_shown)) == Counter(too_late)
    for kind, table in late_clicked.items():
        late = Counter(tuple(row.values()) for row in table.to_pylist())
        assert late == Counter(map(tuple, clicks_too_late[kind]))

    # Every event is counted once.
    fates = {name for kind in KINDS for name in fate_counters(kind)}
    for joined in found.values():
        assert set(joined.counters) == {"impressions", *KINDS, *NOT_PUBLISHED, *fates}
    for kind, clicks in events.items():
        counted = sum(joined.counters[name] for joined in found.values() for name in fate_counters(kind))
        assert counted + late_clicked[kind].num_rows == len(clicks)

    # What comes again changes no example.
    doubled = {kind: parts * 2 for kind, parts in event_pieces.items()}
    twice, *_ = join_all(rules, pieces * 2, doubled)
    assert set(found) == set(twice)
    for start, joined in twice.items():
        assert joined.examples.equals(found[start].examples)
        assert joined.unmatched == found[start].unmatched
        assert set(plain_impressions(joined.conflicting)) >= set(plain_impressions(found[start].conflicting))
        for kind in KINDS:
            assert joined.counters[f"matched_{kind}"] == found[start].counters[f"matched_{kind}"]
