"""Stages a partition of tables or of events: its shards and raw values, which its manifest then names."""

from pathlib import Path

import pyarrow as pa

from ctr.data.event_mapping import EventMapping
from ctr.data.history_state import Histories
from ctr.data.kept_values import FOLDER, VALUE_PREFIX, value_dictionary
from ctr.data.log import Manifest, ValuesEntry
from ctr.data.mapping import Mapping
from ctr.data.parquet_files import write_parquet
from ctr.data.shards import read_shard, shard_schema, stage_partition
from ctr.data.times import duration_us


def stage(
    log: Path,
    mapping: Mapping | EventMapping,
    start: int,
    rows: pa.Table,
    histories: Histories | None = None,
    counters: dict[str, int] | None = None,
) -> Manifest:
    """Stages the rows of a partition, which must be sorted, with the settings of a mapping.

    With ``histories``, fills the history columns, and adds these rows for later partitions. Raw values are stored if
    the rows have their columns. Raises InputError as ``stage_partition`` does.
    """
    end = start + duration_us(mapping.partition)
    schema = mapping.feature_schema
    rows = rows if histories is None else histories.fill(start, rows)
    shard_rows = rows.select(shard_schema(schema).names)
    # The rows of a sampled query are not the page that the user saw.
    counts_pages = isinstance(mapping, Mapping) or mapping.sampling is None
    manifest = stage_partition(
        log, schema, start, end, shard_rows, counters, mapping.shard_rows, counts_pages
    )
    if histories is not None:
        histories.add(end, rows)
    if mapping.keep_values and any(name.startswith(VALUE_PREFIX) for name in rows.column_names):
        values = value_dictionary(schema, mapping.keep_values, rows)
        if values.num_rows:
            _, size, digest = write_parquet(log / FOLDER, manifest.name, values)
            return manifest.model_copy(update={"values": ValuesEntry(bytes=size, sha256=digest)})
    return manifest


def stage_with_histories(
    log: Path, mapping: EventMapping, histories: Histories, manifest: Manifest
) -> Manifest:
    """Stages a partition again with its histories filled, and deletes the shards staged without them."""
    schema = mapping.feature_schema
    rows = [read_shard(log, entry, schema) for entry in manifest.shards]
    table = pa.concat_tables(rows or [shard_schema(schema).empty_table()])
    staged = stage(log, mapping, manifest.start, table, histories, manifest.counters)
    for file in {entry.file for entry in manifest.shards} - {entry.file for entry in staged.shards}:
        (log / "shards" / file).unlink(missing_ok=True)
    return staged.model_copy(update={"values": manifest.values})
