"""Record of a closed loop: the counts of each day that a run served, and the ads that each query showed."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr.data.log import read_manifests
from ctr.data.shards import read_shard
from ctr.data.sidecar import read_sidecar_partition
from ctr.eval.ads_churn import SHOWN_FILE
from ctr.io.files import write_atomic
from ctr.simulator.config import DAY_US, WorldConfig
from ctr.simulator.day import QUERIES_PER_DAY_LIMIT
from ctr.simulator.features import world_schema
from ctr.simulator.simulate import AUCTION, logged_queries
from ctr.simulator.traffic import draw_queries
from ctr.simulator.world import World


def record_days(config: WorldConfig, world: World, out: Path, first: int) -> list[dict[str, Any]]:
    """Writes how many ads each query of the days from ``first`` on showed, and returns the counts of each day."""
    counts, parts = [], []
    for number, manifest in enumerate(read_manifests(out / "log")[first:], first):
        queries = draw_queries(config, world, number)
        # The log does not have the other queries, so it is unknown how many ads they showed.
        kept = logged_queries(config, queries)
        base = (config.start_us // DAY_US + number) * QUERIES_PER_DAY_LIMIT
        # A day on which nothing was shown has no shards.
        shown, label = [np.zeros(0, np.int64)], [np.zeros(0, np.int8)]
        for entry in manifest.shards:
            rows = read_shard(out / "log", entry, world_schema(config))
            shown.append(rows.column("query_id").to_numpy() - base)
            label.append(rows.column("label").to_numpy())
        price = read_sidecar_partition(out / "log", AUCTION, manifest).column("price").to_numpy()
        parts.append(
            pa.table(
                {
                    "day": np.full(kept.sum(), number, np.int32),
                    "query_id": (base + queries.number)[kept],
                    "randomized": queries.randomized[kept],
                    "ads": np.bincount(np.concatenate(shown), minlength=len(queries))[kept].astype(np.int16),
                }
            )
        )
        counts.append(
            {
                "day": number,
                "queries": int(kept.sum()),
                "answered": manifest.queries,
                "examples": manifest.rows,
                "clicks": manifest.clicks,
                "revenue": round(float(price[np.concatenate(label) > 0].sum(dtype=np.float64)), 2),
                "ads_per_query": manifest.rows / max(int(kept.sum()), 1),
            }
        )
    write_atomic(out / SHOWN_FILE, lambda stream: pq.write_table(pa.concat_tables(parts), stream))
    return counts
