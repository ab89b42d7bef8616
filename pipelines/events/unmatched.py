"""Clicks that no example has, and the skew, window or delay with which it would: what a job says at its end.

The same of the events of each further label.
"""

from collections.abc import Iterator, Sequence
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

_SHARE = 0.005  # of early, late and orphan clicks, from which on a job warns
_RECENT_CLICKS = 100_000  # in the latest partitions; no others are judged
_RECENT_PARTITIONS = 1_000  # at most: of rare events
_MOST = 0.9  # of the clicks that a longer duration would match, that the proposed one does
_STEPS = [
    *((seconds, f"{seconds}s") for seconds in (1, 2, 5, 10, 20, 30)),
    *((60 * minutes, f"{minutes}m") for minutes in (1, 2, 5, 10, 20, 30)),
    *((3600 * hours, f"{hours}h") for hours in (1, 2, 3, 6, 12)),
    *((86_400 * days, f"{days}d") for days in (1, 2, 3, 7, 14, 30, 90, 365)),
]


def unmatched_warnings(mapping: EventMapping, log: Path) -> list[str]:
    """Returns a warning for each kind of which over 0.5% are early, late or orphans, and the settings that would help.

    Looks at the latest partitions with 100,000 clicks, a thousand at most, and for their impressions up to a day before
    and after. The events of each label are judged as clicks are.
    """
    manifests, rules = read_manifests(log), partition_rules(mapping)
    return [line for kind in rules.windows for line in _warnings(mapping, rules, kind, log, manifests)]


def _warnings(
    mapping: EventMapping, rules: PartitionRules, kind: Kind, log: Path, manifests: Sequence[Manifest]
) -> list[str]:
    chosen: list[Manifest] = []
    recent_clicks = 0
    for manifest in manifests[: -_RECENT_PARTITIONS - 1 : -1]:
        if recent_clicks >= _RECENT_CLICKS:
            break
        chosen.append(manifest)
        recent_clicks += manifest.counters.get(kind, 0)
    counters = sum_counters(chosen)
    clicks = sum(counters.get(name, 0) for name in fate_counters(kind))
    early, late, orphans = (counters.get(f"{name}_{kind}", 0) for name in ("early", "late", "orphan"))
    if early + late + orphans <= _SHARE * clicks:
        return []
    reach = max(rules.lookback, DAY_US)
    near = [manifest for manifest in manifests if manifest.end > chosen[-1].start - reach]
    unmatched = [_read(unmatched_path(log, manifest, kind), CLICK_SCHEMA.names) for manifest in chosen]
    helped = _would_match(
        mapping, rules, kind, log, near, [table for table in unmatched if table is not None]
    )
    noun = kind if kind == CLICKS else f"events of {kind}"
    said = f"{early} of {clicks} {noun} are early, which matches, {late} late, {orphans} orphans"
    return ["; ".join([said, *helped])]


def _read(path: Path, columns: Sequence[str]) -> pa.Table | None:
    return pq.read_table(path, columns=list(columns)) if path.is_file() else None


def _would_match(
    mapping: EventMapping,
    rules: PartitionRules,
    kind: Kind,
    log: Path,
    near: Sequence[Manifest],
    unmatched: Sequence[pa.Table],
) -> Iterator[str]:
    """Yields texts: the clicks that a longer skew, window or delay would match, and clicks without an impression."""
    ids, times, arrival = (
        np.concatenate([np.zeros(0, np.int64), *(table.column(name).to_numpy() for table in unmatched)])
        for name in CLICK_SCHEMA.names
    )
    tables = []
    for file in (shard.file for manifest in near for shard in manifest.shards):
        table = _read(log / "shards" / file, EARLIER_SCHEMA.names)
        if table is not None:
            tables.append(table.filter(pa.array(np.isin(table.column("example_id").to_numpy(), ids))))
    if not any(table.num_rows for table in tables):
        if len(ids):
            yield f"{len(ids)} have no impression in the log"
        return
    shown_ids, asked, shown = (
        np.concatenate([table.column(name).to_numpy() for table in tables]) for name in EARLIER_SCHEMA.names
    )
    order = np.argsort(shown_ids, kind="stable")
    indices = order[np.minimum(np.searchsorted(shown_ids[order], ids), len(order) - 1)]
    there = shown_ids[indices] == ids
    after = times - shown[indices]
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
