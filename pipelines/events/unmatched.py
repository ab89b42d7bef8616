"""Warnings about clicks and label events without an example, with the skew, window or delay that would match them."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr.data.event_mapping import EventMapping
from ctr.data.log import Manifest, read_manifests
from ctr.data.times import DAY_US
from ctr.pipelines.events.accounts import sum_counters
from ctr.pipelines.events.join import fate_counters
from ctr.pipelines.events.publish import unmatched_path
from ctr.pipelines.events.rules import PartitionRules, partition_rules
from ctr.pipelines.events.tables import CLICK_SCHEMA, CLICKS, EARLIER_SCHEMA, Kind

_SHARE = 0.005  # share of early, late and orphan clicks above which a job warns
_RECENT_CLICKS = 100_000  # in the latest partitions; no others are judged
_RECENT_PARTITIONS = 1_000  # at most: of rare events
_MOST = 0.9  # share of the clicks matched by a longer duration that the proposed one matches
_STEPS = [
    *((seconds, f"{seconds}s") for seconds in (1, 2, 5, 10, 20, 30)),
    *((60 * minutes, f"{minutes}m") for minutes in (1, 2, 5, 10, 20, 30)),
    *((3600 * hours, f"{hours}h") for hours in (1, 2, 3, 6, 12)),
    *((86_400 * days, f"{days}d") for days in (1, 2, 3, 7, 14, 30, 90, 365)),
]


def unmatched_warnings(mapping: EventMapping, log: Path) -> list[str]:
    """Warns of each kind of which over 0.5% of events are early, late or orphaned, and names settings that match more.

    Reads the latest partitions until they have 100,000 clicks, at most 1,000 partitions, and impressions from a day
    (or the lookback, if longer) before these partitions on. The events of each label are judged as clicks are.
    """
    manifests, rules = read_manifests(log), partition_rules(mapping)
    warnings = []
    for kind in rules.windows:
        recent: list[Manifest] = []
        recent_clicks = 0
        for manifest in manifests[: -_RECENT_PARTITIONS - 1 : -1]:
            if recent_clicks >= _RECENT_CLICKS:
                break
            recent.append(manifest)
            recent_clicks += manifest.counters.get(kind, 0)
        counters = sum_counters(recent)
        clicks = sum(counters.get(name, 0) for name in fate_counters(kind))
        early, late, orphans = (counters.get(f"{name}_{kind}", 0) for name in ("early", "late", "orphan"))
        if early + late + orphans > _SHARE * clicks:
            noun = kind if kind == CLICKS else f"events of {kind}"
            fates = f"{early} of {clicks} {noun} are early, which matches, {late} late, {orphans} orphans"
            reach = max(rules.lookback, DAY_US)
            near = [manifest for manifest in manifests if manifest.end > recent[-1].start - reach]
            shards = [log / "shards" / shard.file for manifest in near for shard in manifest.shards]
            unmatched = _read([unmatched_path(log, manifest, kind) for manifest in recent], CLICK_SCHEMA)
            warnings.append("; ".join([fates, *_would_match(mapping, rules, kind, unmatched, shards)]))
    return warnings


def _read(paths: Iterable[Path], schema: pa.Schema) -> pa.Table:
    tables = (pq.read_table(path, columns=schema.names) for path in paths if path.is_file())
    return pa.concat_tables([schema.empty_table(), *tables])


def _would_match(
    mapping: EventMapping, rules: PartitionRules, kind: Kind, unmatched: pa.Table, shards: Iterable[Path]
) -> Iterator[str]:
    """Yields texts: how many clicks a longer skew, window or delay would match, and how many have no impression."""
    ids, times, arrival = (unmatched.column(name).to_numpy() for name in CLICK_SCHEMA.names)
    # One shard after the other, as most impressions have no such click.
    tables = (_read([path], EARLIER_SCHEMA) for path in shards)
    tables = (table.filter(pa.array(np.isin(table.column(0).to_numpy(), ids))) for table in tables)
    clicked = pa.concat_tables([EARLIER_SCHEMA.empty_table(), *tables])
    if not clicked.num_rows:
        if len(ids):
            yield f"{len(ids)} have no impression in the log"
        return
    shown_ids, asked, shown_at = (clicked.column(name).to_numpy() for name in EARLIER_SCHEMA.names)
    order = np.argsort(shown_ids, kind="stable")
    indices = order[np.minimum(np.searchsorted(shown_ids[order], ids), len(order) - 1)]
    there = shown_ids[indices] == ids
    after = times - shown_at[indices]
    waited = arrival - (rules.closes_at(rules.start_of(asked[indices])) - rules.delay)
    before, behind = there & (after < -rules.skew), there & (after > rules.windows[kind][0])
    window = (
        ("click_window", mapping.click_window)
        if kind == CLICKS
        else (f"labels.{kind}.window", mapping.labels[kind].window)
    )
    for key, now, needed in (
        ("clock_skew", mapping.clock_skew, -after[before]),
        (*window, after[behind]),
        ("delay", mapping.delay, waited[there & ~before & ~behind] + 1),
    ):
        if len(needed):
            wanted = np.quantile(needed, _MOST, method="higher")
            seconds, text = next((step for step in _STEPS if step[0] * 1e6 >= wanted), _STEPS[-1])
            yield f"{np.count_nonzero(needed <= seconds * 1e6)} would match with {key}: {text} (now {now or '0s'})"
    if not there.all():
        yield f"{np.count_nonzero(~there)} have no impression in the log"
