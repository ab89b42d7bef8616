"""Fuzzing of example logs and of raw inputs: tables, data sets in their own formats, events."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from target import FEATURES, Parse, Prepare, Target, in_place, put, require_usable

import event_files
import raw_logs
import small_runs
from ctr.config import parse_model
from ctr.data.joined_sidecar import JoinedSidecar
from ctr.data.log import read_manifests, read_schema, schema_bytes
from ctr.data.mapping import Mapping
from ctr.data.reader import read_rows, rows_of_table
from ctr.data.schema import Schema
from ctr.data.shards import read_shard
from ctr.data.sidecar import SidecarHash, read_sidecar_partition, write_sidecar_partition
from ctr.io.documents import sealed_bytes
from ctr.io.errors import InputError
from ctr.pipelines.events import tables
from ctr.pipelines.events.read import Unit, read_unit, split_units
from ctr.pipelines.tables.ingest import IngestSettings, ingest

# ---------------------------------------------------------------- example logs


def small_log(folder: Path) -> Path:
    """Two partitions and a sidecar, made once."""
    log = folder / "log"
    if not log.exists():
        small_runs.publish(log, small_runs.draw_examples(30).table(), ((0, 20_000), (20_000, 10**9)))
        for partition in read_manifests(log):
            shards = [read_shard(log, entry, small_runs.SCHEMA) for entry in partition.shards]
            ids = np.concatenate([shard["example_id"].to_numpy() for shard in shards])
            columns = {"logit": np.zeros(len(ids), np.float32), "kept": np.ones(len(ids), bool)}
            write_sidecar_partition(log, "teacher", partition, pa.table({"example_id": ids, **columns}))
    return log


def require_log(log: Path) -> int:
    """All that a log promises of the rows that it has; returns their number."""
    schema, rows = read_schema(log), 0
    require_usable(schema)
    for manifest in read_manifests(log):
        for entry in manifest.shards:
            found = rows_of_table(read_shard(log, entry, schema), schema, rows)
            assert len(found) == entry.rows
            rows += len(found)
    return rows


def _read_log(log: Path) -> None:
    require_log(log)
    for partition in read_manifests(log):
        read_sidecar_partition(log, "teacher", partition)
    SidecarHash(log, "teacher").until()


def _seal_document(log: Path, path: Path) -> None:
    """A changed manifest with the hash that makes it valid; as it is it must be read or refused as well."""
    try:
        _read_log(log)
    except InputError as error:
        if not any(words in str(error) for words in ("by an unreleased version", "damaged: its content")):
            raise
    tree = json.loads(path.read_bytes())
    tree.pop("manifest_sha256", None)
    path.write_bytes(sealed_bytes(tree))


def _seal_part(pattern: str, **moved: str) -> Any:
    """Makes the first manifest of a pattern speak of the changed file, under a name that no hash contradicts."""

    def seal(log: Path, path: Path) -> None:
        manifest, content = min(log.glob(pattern)), path.read_bytes()
        tree = json.loads(manifest.read_bytes())
        tree.pop("manifest_sha256")
        digest = hashlib.sha256(content).hexdigest()
        name = f"{manifest.stem}-0000-{digest[:16]}.parquet" if "shards" in tree else "changed.parquet"
        entry = tree["shards"][0] if "shards" in tree else tree
        entry |= {"file": name, "bytes": len(content), "sha256": digest}
        manifest.write_bytes(sealed_bytes(tree))
        put(path.parent / name, content)

    return seal


def _read_sidecar(log: Path) -> None:
    manifests = read_manifests(log)
    sidecar = JoinedSidecar(log, "teacher", ["logit"], manifests)
    for rows in read_rows(log, read_schema(log), manifests):
        sidecar.at(rows.query_time, rows.example_id)


def _schema_seeds(folder: Path) -> list[bytes]:
    growing = [{key: value for key, value in feature.items() if key != "buckets"} for feature in FEATURES]
    own = [schema_bytes(parse_model(Schema, {"features": one}, "test")) for one in (FEATURES, growing)]
    return [*own, (small_log(folder) / "schema.json").read_bytes()]


def _parse_schema(folder: Path, content: bytes) -> None:
    """As it is, and with the hash that makes a changed one valid."""
    path = put(folder / "bare/schema.json", content)
    try:
        read_schema(path.parent)
    except InputError as error:
        if "recorded version" not in str(error):
            raise
    tree = json.loads(content)
    schema = parse_model(Schema, {key: tree[key] for key in tree.keys() - {"format", "version"}}, "test")
    path.write_bytes(schema_bytes(schema))
    assert read_schema(path.parent) == schema
    require_usable(schema)


# ---------------------------------------------------------------- tables


def _ingested(folder: Path, mapping: Mapping, path: Path) -> None:
    log = folder / "out"
    shutil.rmtree(log, ignore_errors=True)
    result = ingest(mapping, [path], log, IngestSettings(max_reject_share=1))
    if (log / "schema.json").exists():
        assert require_log(log) == result.rows - result.rejected, result
    for file in log.glob("rejects/*"):
        assert len([json.loads(line) for line in file.read_text().split("\n")[:-1]]) == result.rejected


def _table_input(suffix: str) -> tuple[Prepare, Parse]:
    def prepare(folder: Path) -> list[bytes]:
        return [raw_logs.write_rows(folder / "tables", raw_logs.make_rows(12), suffix).read_bytes()]

    def parse(folder: Path, content: bytes) -> None:
        path = put(folder / f"tables/rows.{suffix}", content)
        _ingested(folder, raw_logs.make_mapping(input={"type": suffix.partition(".")[0]}), path)

    return prepare, parse


# ---------------------------------------------------------------- events


def _event_seeds(kind: str, form: str) -> Prepare:
    def prepare(folder: Path) -> list[bytes]:
        return [event_files.encode(event_files.draw_events(12)[kind], form)]

    return prepare


def _require_events(mapping: Any, kind: Any, chunk: Any) -> None:
    table, rejects = tables.prepare(mapping, kind, chunk)
    assert table.num_rows + len(rejects) == chunk.count
    assert not any(column.null_count for column in table.columns)
    if kind == "impressions":
        assert not rows_of_table(table, mapping.feature_schema, 0).fault.any()


def _events(form: str, kind: Any) -> tuple[Prepare, Parse]:
    def parse(folder: Path, content: bytes) -> None:
        mapping = event_files.mapping(form)
        path = put(folder / kind / f"x.{form}", content)
        for unit in split_units([Unit(kind, path.name, path)]):
            for chunk in read_unit(mapping, unit):
                _require_events(mapping, kind, chunk)

    return _event_seeds(kind, form), parse


KINDS = ("impressions", "clicks")
TARGETS = {
    "schema": Target("json", _schema_seeds, _parse_schema),
    "manifest": Target("json", *in_place(small_log, "manifests/*.json", _read_log, _seal_document)),
    "sidecar manifest": Target("json", *in_place(small_log, "sidecars/*/*.json", _read_log, _seal_document)),
    "shard": Target("parquet", *in_place(small_log, "shards/*", require_log, _seal_part("manifests/*"))),
    "sidecar": Target(
        "parquet",
        *in_place(
            small_log, "sidecars/teacher/*.parquet", _read_sidecar, _seal_part("sidecars/teacher/*.json")
        ),
    ),
    **{
        suffix: Target(form, *_table_input(suffix))
        for form, suffixes in {
            "text": ("csv", "tsv"),
            "bytes": ("csv.gz", "csv.zst"),
            "jsonl": ("jsonl",),
            "parquet": ("parquet",),
        }.items()
        for suffix in suffixes
    },
    **{
        f"{kind} {form}": Target(form, *_events(form, kind))
        for kind in KINDS
        for form in ("jsonl", "parquet")
    },
}
