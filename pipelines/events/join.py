"""Joins the impressions, clicks and conversions of one closed partition to labeled examples and side tables.

Pure functions. A further label's events are joined as clicks are, within a separate window; "clicks" below are either.

The result does not depend on the order of the input, how it is cut into chunks, or repeated deliveries. Every event is
counted once, and the counts are checked to add up before anything is returned.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.data.kept_values import VALUE_PREFIX, without_values
from ctr.data.sample_log import low_visibility_ids
from ctr.data.sampling import SamplingConfig, decide
from ctr.data.schema import Schema, label_column
from ctr.data.shards import id_matrix, shard_schema, sort_rows
from ctr.pipelines.events.rules import PartitionRules, known_from
from ctr.pipelines.events.tables import ARRIVAL, CLICK_SCHEMA, CLICKS, EARLIER_SCHEMA, Kind

LATE, ORPHAN = "late", "orphan"
NOT_PUBLISHED = ("sampled_out", "duplicate_impressions", "conflicting_impressions")
UNMATCHED_SCHEMA = pa.schema([*CLICK_SCHEMA, pa.field("reason", pa.string(), False)])


def fate_counters(kind: Kind) -> tuple[str, ...]:
    """Returns the names of a kind's counters: one for each outcome of a click or of a label's event."""
    return tuple(f"{fate}_{kind}" for fate in ("matched", "early", "duplicate", "late", "orphan"))


@dataclass(frozen=True)
class Joined:
    """Examples of a partition, its unmatched and conflicting events, and its counters."""

    examples: pa.Table  # rows of a shard, in the order of a log, and the raw values of ``keep_values``
    # Clicks, and events of each label, whose home this is and that match no example, in ``UNMATCHED_SCHEMA``, sorted.
    unmatched: dict[Kind, pa.Table]
    # Impressions with the id of another one, in the input's columns without raw values, sorted.
    conflicting: pa.Table
    # ``impressions`` equals the rows of ``examples`` plus all of ``NOT_PUBLISHED``; ``clicks`` whose home this is, and
    # each label's events, by its name, equal the sum of their ``fate_counters``.
    counters: dict[str, int]
    # Float32, of the examples in their order; None where no teacher scored them.
    teacher_logit: np.ndarray | None = None

    @property
    def is_empty(self) -> bool:
        """Returns whether the partition has no events, so that there is nothing to publish."""
        return not any(self.counters[kind] for kind in ("impressions", *self.unmatched))


def join_partition(
    schema: Schema,
    rules: PartitionRules,
    start: int,
    impressions: pa.Table,
    earlier: pa.Table,
    events: Mapping[Kind, pa.Table],
) -> Joined:
    """Joins the events of the partition that begins at ``start`` (microseconds of query time).

    A click counts for the impression with its id if it is at most its kind's window after the impression and at most
    ``rules.skew`` before. Of several impressions with one id the earliest is kept; one that differs from it only in its
    arrival is a duplicate, and any other conflicts. A second click on an impression matches too if its time is
    different; at the same time it is a duplicate.

    ``impressions`` is this partition's table (``impression_schema``), ``earlier`` has the impressions before it
    (``EARLIER_SCHEMA``; rows before ``known_from`` are ignored), ``events`` maps kinds to this partition's tables
    from ``route_clicks``.
    """
    impressions, earlier = impressions.combine_chunks(), earlier.combine_chunks()
    events = {kind: table.combine_chunks() for kind, table in events.items()}
    recent = pc.greater_equal(earlier.column("query_time"), known_from(rules, start))
    earlier = earlier.filter(recent)
    counters = {"impressions": impressions.num_rows}
    for kind, table in events.items():
        at_home = rules.home_of(table.column("time").to_numpy()) == start
        counters[kind] = int(np.count_nonzero(at_home))
    rows, duplicates, conflicting = _first_of_each(impressions, earlier)
    counters["duplicate_impressions"] = duplicates
    counters["conflicting_impressions"] = conflicting.num_rows
    distinct = {kind: _distinct_clicks(rules, start, table) for kind, table in events.items()}
    for kind, (clicks, _) in distinct.items():
        at = rows.column_names.index("label" if kind == CLICKS else label_column(kind))
        label = _labels(rules, kind, start, rows, clicks)
        rows = rows.set_column(at, rows.schema.field(at), pa.array(label))
    rows = sort_rows(rows)
    counters["sampled_out"] = 0
    unmatched = {}
    for kind, (clicks, repeated) in distinct.items():
        unmatched[kind], matches = _match_clicks(rules, kind, start, rows, earlier, clicks)
        counters |= {f"duplicate_{kind}": repeated, **matches}
    values = [name for name in rows.column_names if name.startswith(VALUE_PREFIX)]
    examples = rows.select([*shard_schema(schema).names, *values])
    joined = Joined(examples, unmatched, without_values(conflicting), counters)
    _check_conservation(rules, start, joined)
    return joined


def sample_joined(
    rules: PartitionRules, start: int, joined: Joined, schema: Schema, rule: SamplingConfig
) -> Joined:
    """Samples the examples by the rule and multiplies their weights by the importance weights (FF 3.3).

    Raises InputError for an unknown feature or value, or a rule that requires a teacher's logit if there is none.
    """
    rows = joined.examples
    low_visibility = None
    seldom_seen = None if rule.uninformative is None else rule.uninformative.low_visibility
    if seldom_seen is not None:
        wanted = low_visibility_ids(schema, seldom_seen)
        ids = id_matrix(rows, schema)
        low_visibility = np.isin(ids[:, schema.single_valued.index(seldom_seen.feature)], wanted)
    ids, times, label = (rows.column(name).to_numpy() for name in ("example_id", "query_time", "label"))
    decisions = decide(rule, ids, times, label, joined.teacher_logit, low_visibility)
    examples = rows.filter(pa.array(decisions.kept))
    for name in ("train_weight", "metric_weight"):
        at = examples.column_names.index(name)
        weight = examples.column(name).to_numpy() * decisions.weight[decisions.kept]
        examples = examples.set_column(at, examples.schema.field(name), pa.array(weight))
    sampled = replace(
        joined,
        examples=examples,
        counters={**joined.counters, "sampled_out": rows.num_rows - examples.num_rows},
        teacher_logit=None if joined.teacher_logit is None else joined.teacher_logit[decisions.kept],
    )
    _check_conservation(rules, start, sampled)
    return sampled


def _check_conservation(rules: PartitionRules, start: int, joined: Joined) -> None:
    """Raises RuntimeError if an event is not accounted for, which is a bug in this module, never in its input."""
    counters = joined.counters
    dropped = sum(counters[name] for name in NOT_PUBLISHED)
    fates = {kind: sum(counters[name] for name in fate_counters(kind)) for kind in joined.unmatched}
    if joined.examples.num_rows + dropped != counters["impressions"] or any(
        counters[kind] != count for kind, count in fates.items()
    ):
        raise RuntimeError(
            f"partition [{start}, {start + rules.length}): the counts do not add up: "
            f"{joined.examples.num_rows} examples, {counters}"
        )


# ---------------------------------------------------------------- impressions


def _first_of_each(impressions: pa.Table, earlier: pa.Table) -> tuple[pa.Table, int, pa.Table]:
    """Returns impressions with distinct ids, the number of duplicates, and the conflicting impressions."""
    ids = impressions.column("example_id").to_numpy()
    ranked = np.sort(ids)
    repeated = ranked[1:][ranked[1:] == ranked[:-1]]
    earlier_ids = earlier.column("example_id").to_numpy()
    seen_before = earlier_ids[_isin(earlier_ids, ranked)]
    if not len(repeated) and not len(seen_before):
        return impressions, 0, impressions.slice(0, 0)
    suspects = _isin(ids, np.sort(np.concatenate([repeated, seen_before])))
    indices = np.flatnonzero(suspects)
    suspected = impressions.take(pa.array(indices))
    # The columns to compare and sort by: query time first, arrival last, without the label.
    names = [
        name
        for name in without_values(suspected).column_names
        if name not in ("example_id", "label", ARRIVAL)
    ]
    content = [tuple(row.values()) for row in suspected.select([*names, ARRIVAL]).to_pylist()]
    # Events with the same ids may have other values. They decide last, so that the examples are the same without them.
    extra = [name for name in suspected.column_names if name.startswith(VALUE_PREFIX)]
    values = [repr(row) for row in suspected.select(extra).to_pylist()] if extra else [""] * len(indices)
    dropped = np.zeros(len(ids), bool)
    conflicting: list[tuple[int, tuple[object, ...], int]] = []
    # The content of the first impression by id. An impression in an earlier partition has another query time, so its
    # content differs.
    firsts: dict[int, tuple[object, ...]] = dict.fromkeys(seen_before.tolist(), ())
    copies = zip(suspected.column("example_id").to_pylist(), content, values, indices.tolist(), strict=True)
    for key, row, _, index in sorted(copies):
        first = firsts.setdefault(key, row)
        dropped[index] = first is not row
        if dropped[index] and row[:-1] != first[:-1]:
            conflicting.append((key, row, index))
    duplicates = int(dropped.sum()) - len(conflicting)
    in_order = [index for _, _, index in sorted(conflicting)]
    rows = impressions.filter(pa.array(~dropped))
    return rows, duplicates, impressions.take(pa.array(in_order, pa.int64()))


def _isin(values: np.ndarray, ranked: np.ndarray) -> np.ndarray:
    """Returns whether each value occurs in ``ranked``, which is sorted; bool [N]. Takes a third of np.isin's time."""
    if not len(ranked):
        return np.zeros(len(values), bool)
    return ranked[np.minimum(np.searchsorted(ranked, values), len(ranked) - 1)] == values


# ---------------------------------------------------------------- clicks


def _distinct_clicks(rules: PartitionRules, start: int, clicks: pa.Table) -> tuple[pa.Table, int]:
    """Returns the first arrival of each click, by (id, time), and the number of repetitions whose home this is."""
    ids, times, arrival = (clicks.column(name).to_numpy() for name in CLICK_SCHEMA.names)
    order = np.lexsort((arrival, times, ids))
    ids, times = ids[order], times[order]
    again = np.zeros(len(ids), bool)
    again[1:] = (ids[1:] == ids[:-1]) & (times[1:] == times[:-1])
    at_home = rules.home_of(times) == start
    return clicks.take(pa.array(order[~again])), int(np.count_nonzero(again & at_home))


def _labels(rules: PartitionRules, kind: Kind, start: int, rows: pa.Table, clicks: pa.Table) -> np.ndarray:
    """Returns int8 labels [N]: 1 for impressions with a click inside the window that arrived in time."""
    label = np.zeros(rows.num_rows, np.int8)
    ids = rows.column("example_id").to_numpy()
    if not len(ids):
        return label
    order = np.argsort(ids)
    clicked, times, arrival = (clicks.column(name).to_numpy() for name in CLICK_SCHEMA.names)
    indices = order[np.minimum(np.searchsorted(ids[order], clicked), len(ids) - 1)]
    after = times - rows.column("timestamp").to_numpy()[indices]
    window, _ = rules.windows[kind]
    matched = (ids[indices] == clicked) & (after >= -rules.skew) & (after <= window)
    label[indices[matched & (arrival < rules.closes_at(start))]] = 1
    return label


def _match_clicks(
    rules: PartitionRules, kind: Kind, start: int, rows: pa.Table, earlier: pa.Table, clicks: pa.Table
) -> tuple[pa.Table, dict[str, int]]:
    """Matches the distinct clicks whose home this partition is; returns the unmatched clicks and the counts."""
    home = clicks.filter(pa.array(rules.home_of(clicks.column("time").to_numpy()) == start))
    clicked, times, arrival = (home.column(name).to_numpy() for name in CLICK_SCHEMA.names)
    wanted = np.sort(clicked)
    candidates = []
    for table in (earlier, rows):
        columns = [table.column(name).to_numpy() for name in EARLIER_SCHEMA.names]
        there = _isin(columns[0], wanted)
        candidates.append([column[there] for column in columns])
    ids, asked, shown_at = (np.concatenate(columns) for columns in zip(*candidates, strict=True))
    order = np.lexsort((shown_at, asked, ids))
    ids, asked, shown_at = ids[order], asked[order], shown_at[order]
    matched = late = early = np.zeros(len(clicked), bool)
    if len(ids):
        # The first entry with this id is its earliest impression.
        indices = np.minimum(np.searchsorted(ids, clicked), len(ids) - 1)
        after = times - shown_at[indices]
        window, late_window = rules.windows[kind]
        there = (ids[indices] == clicked) & (after >= -rules.skew) & (after <= window + late_window)
        in_time = arrival < rules.closes_at(rules.start_of(asked[indices]))
        matched = there & (after <= window) & in_time
        early = matched & (after < 0)
        late = there & ~matched
    reason = np.where(late, LATE, ORPHAN)[~matched]
    unmatched = home.filter(pa.array(~matched)).append_column(UNMATCHED_SCHEMA.field("reason"), [reason])
    counts = {
        f"matched_{kind}": int(np.count_nonzero(matched & ~early)),
        f"early_{kind}": int(np.count_nonzero(early)),
        f"late_{kind}": int(np.count_nonzero(late)),
        f"orphan_{kind}": int(np.count_nonzero(~matched & ~late)),
    }
    return unmatched.cast(UNMATCHED_SCHEMA), counts
