"""Further labels for logs, drawn or given."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from ctr.data.labels import SIDECAR
from ctr.data.log import read_manifests, read_schema
from ctr.data.shards import read_shard
from ctr.data.sidecar import write_sidecar_partition

Delays = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""From example ids to when a label was seen, NaN for never, and until when rows were watched; both in seconds."""


def write_labels(log: Path, partitions: slice = slice(None), **labels: Delays) -> None:
    """Publishes labels of a log's rows by their names."""
    schema = read_schema(log)
    for manifest in read_manifests(log)[partitions]:
        shards = [read_shard(log, entry, schema).column("example_id").to_numpy() for entry in manifest.shards]
        ids = np.concatenate([np.zeros(0, np.int64), *shards])
        columns = {"example_id": ids}
        for name, delays in labels.items():
            after, known = delays(ids)
            columns |= {f"after:{name}": pa.array(after, from_pandas=True), f"known:{name}": known}
        write_sidecar_partition(log, SIDECAR, manifest, pa.table(columns))
