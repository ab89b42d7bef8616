"""Fuzzing of example logs: schemas, manifests, shards, sidecars."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from target import FEATURES, Parse, Prepare, put, require_usable

from ctr.config import parse_model
from ctr.data.log import read_manifests, read_schema, schema_bytes
from ctr.data.reader import rows_of_table
from ctr.data.schema import Schema
from ctr.data.shards import read_shard
from ctr.data.sidecar import SidecarHash, read_sidecar_partition, write_sidecar_partition
from ctr.io.documents import parse_sealed, sealed_bytes
from ctr.io.errors import InputError


def small_log(folder: Path) -> tuple[Path, Any]:
    import small_runs as small

    log = folder / "log"
    if not log.exists():
        small.publish(log, small.draw_examples(30).table(), ((0, 20_000), (20_000, 10**9)))
        for partition in read_manifests(log):
            ids = np.concatenate(
                [read_shard(log, e, small.SCHEMA)["example_id"].to_numpy() for e in partition.shards]
            )
            table = pa.table(
                {"example_id": ids, "logit": np.zeros(len(ids), np.float32), "kept": np.ones(len(ids), bool)}
            )
            write_sidecar_partition(log, "teacher", partition, table)
    return log, small.SCHEMA


def require_log(log: Path) -> int:
    """All that a log promises of the rows that it has."""
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


def _manifest(glob: str) -> tuple[Prepare, Parse]:
    """A manifest in place of the first that matches, as it is, and with the hash that makes a changed one valid."""
    prepare, read = _log_file(glob)

    def parse(folder: Path, content: bytes) -> None:
        try:
            read(folder, content)
        except InputError as error:
            if not any(
                words in str(error) for words in ("made by an unreleased version", "damaged: its content")
            ):
                raise
        tree = json.loads(content)
        tree.pop("manifest_sha256", None)
        read(folder, sealed_bytes(tree))

    return prepare, parse


def _log_file(glob: str) -> tuple[Prepare, Parse]:
    """A file of a log in place of the first that matches."""

    def prepare(folder: Path) -> list[bytes]:
        log, _ = small_log(folder)
        return [path.read_bytes() for path in sorted(log.glob(glob))]

    def parse(folder: Path, content: bytes) -> None:
        log, _ = small_log(folder)
        path = min(log.glob(glob))
        before = path.read_bytes()
        try:
            path.write_bytes(content)
            _read_log(log)
        finally:
            path.write_bytes(before)

    return prepare, parse


def _schema_seeds(folder: Path) -> list[bytes]:
    growing = [{key: value for key, value in feature.items() if key != "buckets"} for feature in FEATURES]
    return [
        *(schema_bytes(parse_model(Schema, {"features": one}, "test")) for one in (FEATURES, growing)),
        *_log_file("schema.json")[0](folder),
    ]


def _parse_schema(folder: Path, content: bytes) -> None:
    """As it is, and with the hash that makes a changed one valid."""
    (folder / "bare").mkdir(exist_ok=True)
    path = put(folder / "bare/schema.json", content)
    try:
        read_schema(folder / "bare")
    except InputError as error:
        if "recorded version" not in str(error):
            raise
    tree = json.loads(content)
    schema = parse_model(Schema, {key: tree[key] for key in tree.keys() - {"format", "version"}}, "test")
    path.write_bytes(schema_bytes(schema))
    assert read_schema(folder / "bare") == schema
    require_usable(schema)


def _shard_seeds(folder: Path) -> list[bytes]:
    log, _ = small_log(folder)
    return [path.read_bytes() for path in sorted(log.glob("shards/*"))]


def _parse_shard(folder: Path, content: bytes) -> None:
    """With a manifest that speaks of these very bytes."""
    log, _ = small_log(folder)
    path = min(log.glob("manifests/*"))
    before = path.read_bytes()
    tree: dict[str, Any] = parse_sealed(before, str(path))
    digest = hashlib.sha256(content).hexdigest()
    changed = log / "shards" / f"{path.stem}-0000-{digest[:16]}.parquet"
    is_new = not changed.exists()
    tree["shards"][0] |= {"file": changed.name, "bytes": len(content), "sha256": digest}
    try:
        path.write_bytes(sealed_bytes(tree))
        put(changed, content)
        require_log(log)
    finally:
        path.write_bytes(before)
        if is_new:
            changed.unlink()


def _sidecar_seeds(folder: Path) -> list[bytes]:
    log, _ = small_log(folder)
    return [path.read_bytes() for path in sorted(log.glob("sidecars/teacher/*.parquet"))]


def _parse_sidecar(folder: Path, content: bytes) -> None:
    from ctr.data.joined_sidecar import JoinedSidecar, count_missing

    log, _ = small_log(folder)
    path = min(log.glob("sidecars/teacher/*.json"))
    before = path.read_bytes()
    tree = {
        **parse_sealed(before, str(path)),
        "file": "changed.parquet",
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    try:
        path.write_bytes(sealed_bytes(tree))
        put(path.parent / "changed.parquet", content)
        manifests = read_manifests(log)
        sidecar = JoinedSidecar(log, "teacher", ["logit"], manifests)
        count_missing(log, manifests, sidecar, "logit")
    finally:
        path.write_bytes(before)
