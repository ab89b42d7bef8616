"""The join of partitions against one of single events, written from what the modules say of themselves."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.config import parse_model
from ctr.data.schema import Schema
from ctr.data.shards import pack_ids, shard_schema, unpack_ids
from ctr.pipelines.events.join import CLICK_COUNTERS, NOT_PUBLISHED, UNMATCHED_SCHEMA, Joined, join_partition
from ctr.pipelines.events.rules import PartitionRules, route_clicks, route_impressions
from ctr.pipelines.events.tables import CLICK_SCHEMA, EARLIER_SCHEMA
from single_events import Click, Impression, PlainPartition, join_plainly

FEATURE = {"name": "color", "kind": "category", "source": "color", "buckets": 9}
SCHEMA = parse_model(Schema, {"features": [FEATURE]}, "test")
IMPRESSIONS = pa.schema([*shard_schema(SCHEMA), pa.field("arrival", pa.int64(), False)])


# ---------------------------------------------------------------- events as tables


def impression_table(found: Sequence[Impression]) -> pa.Table:
    number, time, shown, query, color, arrival = np.array(found, np.int64).reshape(-1, 6).T
    ones = np.ones(len(found), np.float32)
    columns = [time, shown, query, number, np.zeros(len(found), np.int8), ones, ones]
    ids = pack_ids(color.astype(np.int32)[:, None])
    return pa.table([*map(pa.array, columns), ids, pa.array(arrival)], schema=IMPRESSIONS)


def click_table(found: Sequence[Click]) -> pa.Table:
    return pa.table(
        [pa.array(column) for column in np.array(found, np.int64).reshape(-1, 3).T], schema=CLICK_SCHEMA
    )


def route(
    rules: PartitionRules, route_kind: Any, tables: Sequence[pa.Table]
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
    rules: PartitionRules, impressions: Sequence[pa.Table], clicks: Sequence[pa.Table]
) -> tuple[dict[int, Joined], pa.Table, pa.Table]:
    """Every partition that has something, and the events that came too late."""
    shown, late_shown = route(rules, route_impressions, impressions)
    clicked, late_clicked = route(rules, route_clicks, clicks)
    joined = {}
    for start in sorted({*shown, *clicked}):
        before = [part.select(EARLIER_SCHEMA.names) for other, part in shown.items() if other < start]
        tables = (
            shown.get(start, IMPRESSIONS.empty_table()),
            pa.concat_tables([EARLIER_SCHEMA.empty_table(), *before]),
            clicked.get(start, CLICK_SCHEMA.empty_table()),
        )
        joined[start] = join_partition(SCHEMA, rules, start, *tables)
    return {start: found for start, found in joined.items() if not found.is_empty}, late_shown, late_clicked


def plain_impressions(table: pa.Table) -> list[Impression]:
    color = unpack_ids(table.column("ids").combine_chunks(), SCHEMA)[:, 0].tolist() if table.num_rows else []
    names = ("example_id", "query_time", "timestamp", "query_id")
    columns = (table.column(name).to_pylist() for name in names)
    return list(map(Impression, *columns, color, table.column("arrival").to_pylist()))


def plain(joined: Joined) -> PlainPartition:
    """The same as ``join_plainly`` has it."""
    rows = joined.examples
    assert rows.schema == shard_schema(SCHEMA)
    assert joined.unmatched.schema == UNMATCHED_SCHEMA
    shown = plain_impressions(rows.append_column("arrival", pa.array(np.zeros(rows.num_rows, np.int64))))
    keys = [(found.time, found.query, found.id) for found in shown]
    assert keys == sorted(keys)
    labels = rows.column("label").to_pylist()
    examples = {
        found.id: (found.time, found.shown, found.query, found.color, label)
        for found, label in zip(shown, labels, strict=True)
    }
    assert len(examples) == rows.num_rows
    unmatched = [tuple(row.values()) for row in joined.unmatched.to_pylist()]
    counters = Counter({name: count for name, count in joined.counters.items() if count})
    return PlainPartition(examples, unmatched, plain_impressions(joined.conflicting), counters)


def assert_same(found: dict[int, Joined], reported: dict[int, PlainPartition]) -> None:
    assert set(found) == set(reported)
    for start, joined in found.items():
        seen, expected = plain(joined), reported[start]
        assert seen.examples == expected.examples, start
        assert seen.unmatched == expected.unmatched, start
        assert seen.conflicting == expected.conflicting, start
        assert seen.counters == +expected.counters, start


# ---------------------------------------------------------------- what is drawn

RULES = st.builds(
    PartitionRules,
    length=st.sampled_from([5, 10]),
    window=st.sampled_from([1, 4, 10, 23]),
    late_window=st.sampled_from([1, 6, 30]),
    delay=st.sampled_from([1, 3, 12]),
    skew=st.sampled_from([0, 0, 2, 7]),
    show=st.sampled_from([0, 0, 3, 17]),
)
Case = tuple[PartitionRules, list[Impression], list[Click]]


def arrivals(rules: PartitionRules, time: int) -> st.SearchStrategy[int]:
    """Soon, or about when a partition closes that the event may belong to."""
    ends = [rules.closes_at(rules.start_of(time)) - back * rules.length for back in range(3)]
    edges = [max(end + by, 0) for end in ends for by in (-1, 0)]
    return st.one_of(st.integers(time, time + 3), st.sampled_from(edges), st.integers(time, time + 60))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rules = draw(RULES)
    # Few different times, so that queries and impressions tie.
    numbers, times = st.integers(0, 5), st.sampled_from([0, 3, 4, 5, 9, 10, 14, 27, 41, 60])
    impressions = []
    for _ in range(draw(st.integers(0, 9))):
        time = draw(times)
        shown = time + (draw(st.integers(-rules.skew, rules.show)) if rules.show else 0)
        found = Impression(draw(numbers), time, shown, draw(st.integers(0, 1)), draw(st.integers(0, 1)), 0)
        impressions += [
            found._replace(arrival=draw(arrivals(rules, time)))
            for _ in range(draw(st.sampled_from([1, 1, 1, 2])))
        ]
    clicks = []
    for _ in range(draw(st.integers(0, 9))):
        if impressions and draw(st.booleans()):
            shown = draw(st.sampled_from(impressions))
            reach = rules.window + rules.late_window
            edges = [-rules.skew, 0, rules.window, reach]
            afters = [edge + by for edge in edges for by in (-1, 0, 1)]
            number, time = shown.id, max(shown.shown + draw(st.sampled_from(afters)), 0)
        else:
            number, time = draw(numbers), draw(times)
        for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
            clicks.append(Click(number, time, draw(arrivals(rules, time))))
    return rules, impressions, clicks


def cut(draw: st.DrawFn, rows: list[Any]) -> list[list[Any]]:
    """The rows in another order, in pieces."""
    rows = draw(st.permutations(rows))
    places = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    return [rows[a:b] for a, b in zip([0, *places], [*places, len(rows)], strict=True)]


# ---------------------------------------------------------------- tests


@settings(max_examples=50)
@given(cases(), st.data())
def test_partitions_are_those_of_a_join_of_single_events_in_any_order_and_cut(case, data):
    rules, impressions, clicks = case
    pieces = [impression_table(part) for part in cut(data.draw, impressions)]
    click_pieces = [click_table(part) for part in cut(data.draw, clicks)]
    found, late_shown, late_clicked = join_all(rules, pieces, click_pieces)
    reported, too_late, clicks_too_late = join_plainly(rules, impressions, clicks)
    assert_same(found, reported)
    assert Counter(plain_impressions(late_shown)) == Counter(too_late)
    late = Counter(tuple(row.values()) for row in late_clicked.to_pylist())
    assert late == Counter(map(tuple, clicks_too_late))

    # Every event is counted once.
    total = Counter[str]()
    for joined in found.values():
        counters = joined.counters
        assert set(counters) == {"impressions", "clicks", *NOT_PUBLISHED, *CLICK_COUNTERS}
        assert counters["impressions"] == joined.examples.num_rows + sum(counters[n] for n in NOT_PUBLISHED)
        assert counters["clicks"] == sum(counters[name] for name in CLICK_COUNTERS)
        assert joined.unmatched.num_rows == counters["late_clicks"] + counters["orphan_clicks"]
        total.update(counters)
    assert total["impressions"] + late_shown.num_rows == len(impressions)
    assert total["clicks"] + late_clicked.num_rows == len(clicks)

    # Matched clicks are those of the clicked examples. An id that is given again after it was forgotten is another one
    # to some partitions only.
    shown = defaultdict(list)
    for one in impressions:
        shown[one.id].append(one.time)
    steady = {number for number, times in shown.items() if max(times) - min(times) <= rules.late_window}
    rows = [row for joined in found.values() for row in joined.examples.to_pylist()]
    clicked = {row["example_id"] for row in rows if row["label"]}
    assert clicked & steady == {n for partition in reported.values() for n in partition.matched} & steady

    # What comes again changes no example.
    twice, *_ = join_all(rules, pieces * 2, click_pieces * 2)
    assert set(found) == set(twice)
    for start, joined in twice.items():
        assert joined.examples.equals(found[start].examples)
        assert joined.unmatched.equals(found[start].unmatched)
        assert set(plain_impressions(joined.conflicting)) >= set(plain_impressions(found[start].conflicting))
        assert joined.counters["matched_clicks"] == found[start].counters["matched_clicks"]


def test_a_click_counts_from_its_impression_to_the_end_of_the_window():
    exact = PartitionRules(length=5, window=10, late_window=4, delay=100)
    skewed = PartitionRules(length=5, window=10, late_window=4, delay=100, skew=2, show=9)
    at_once = {-1: "orphan", 0: "matched", 10: "matched", 11: "late", 14: "late", 15: "orphan"}
    around = {-3: "orphan", -2: "early", -1: "early", 0: "matched", 10: "matched", 11: "late"}
    # In the partition of its query, in the next one, and two later.
    rows = [(exact, 3, at_once), (skewed, 3, around), (skewed, 6, around), (skewed, 12, around)]
    for rules, shown, fates in rows:
        for after, fate in fates.items():
            tables = [impression_table([Impression(7, 3, shown, 0, 0, 20)])]
            joined, *_ = join_all(rules, tables, [click_table([Click(7, shown + after, 21)])])
            assert joined[0].examples.column("label").to_pylist() == [fate in ("early", "matched")], after
            counted = Counter[str]()
            for found in joined.values():
                counted.update({name: found.counters[name] for name in CLICK_COUNTERS})
            assert +counted == {f"{fate}_clicks": 1}, after
            reasons = [row["reason"] for found in joined.values() for row in found.unmatched.to_pylist()]
            assert reasons == [fate] * (fate in ("late", "orphan")), after


def test_what_arrives_as_its_partition_closes_is_too_late():
    # The partition of the impression closes at 5 + 10 + 3, that of the click 5 later.
    rules = PartitionRules(length=5, window=10, late_window=4, delay=3)
    for arrival, label, late in ((17, 1, 0), (18, 0, 0), (22, 0, 0), (23, 0, 1)):
        impressions = impression_table([Impression(7, 3, 3, 0, 0, 3)])
        joined, _, aside = join_all(rules, [impressions], [click_table([Click(7, 6, arrival)])])
        assert joined[0].examples.column("label").to_pylist() == [label]
        assert aside.num_rows == late
        assert (5 in joined) == (not late)
    table = impression_table([Impression(1, 3, 3, 0, 0, 17), Impression(2, 3, 3, 0, 0, 18)])
    routed, aside = route_impressions(rules, table)
    assert routed[0].column("example_id").to_pylist() == [1]
    assert aside.column("example_id").to_pylist() == [2]
