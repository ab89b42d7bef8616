"""Example log on disk: its schema, and one manifest per published partition, which names immutable shards.

::

    LOG/schema.json                      the features (schema.py)
    LOG/manifests/START-END.json         one partition [START, END) of query time, in microseconds, and the file's hash
    LOG/shards/START-END-N-HASH.parquet  rows sorted by (query_time, query_id, example_id) (shards.py)
    LOG/sidecars/NAME/                   columns written later, keyed by example_id (sidecar.py)
    LOG/values/START-END-HASH.parquet    raw values of the partition's ids, with ``keep_values`` (kept_values.py)

A shard is complete before its name appears, and counts only once a manifest names it; a manifest is created
exclusively. So a partition appears whole or not at all, also with several publishers, and publishing it again gives
the same bytes.
"""

import hashlib
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from ctr.config import ShortModel, StrictModel, parse_model
from ctr.data.query_size import Pages
from ctr.data.schema import Schema, differing_features
from ctr.io.documents import json_bytes, parse_sealed, read_json_object, read_sealed, sealed_bytes
from ctr.io.errors import InputError, joined, of_another_version
from ctr.io.files import check_output_folder, create_exclusively, is_temporary, names_in

MAX_TIME_US = 2**62
RECORD = "sampling.yaml"  # in a sampled log, see ``ctr.data.sample_log``
_FORMAT = 1
_SCHEMA_FORMAT = 3
_PARTITION = re.compile(r"([0-9]{19})-([0-9]{19})")
_PARTITION_LENGTH = 39


class ShardEntry(StrictModel):
    """Manifest entry of a shard; times are query times in microseconds."""

    file: str = Field(pattern=r"^[0-9a-zA-Z.\-]+\.parquet$")
    rows: int = Field(ge=1)
    queries: int = Field(ge=1)
    first_query_time: int
    last_query_time: int
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class ValuesEntry(StrictModel):
    """Manifest entry of a dictionary of raw values, whose file is named by the partition and the hash."""

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(ShortModel):
    """One published partition [start, end) of query time, in microseconds.

    ``distinct``: the number of distinct ids of each feature whose ids grow. ``pages``: counts of the queries with more
    than one row, from ``ctr.data.query_size.find_pages``; empty if there are none or they were not counted. ``labeled``
    is False if the rows have no labels. ``values``: size and hash of the dictionary of raw values, or None.
    """

    left_out = ("distinct", "pages", "labeled", "values")
    format: int = Field(default=_FORMAT, ge=_FORMAT, le=_FORMAT)
    start: int = Field(ge=0, lt=MAX_TIME_US)
    end: int = Field(gt=0, le=MAX_TIME_US)
    schema_version: str
    rows: int
    queries: int
    clicks: int
    shards: tuple[ShardEntry, ...]
    counters: dict[str, int] = {}
    distinct: dict[str, int] = {}
    pages: Pages = {}
    labeled: bool = True
    values: ValuesEntry | None = None

    @property
    def name(self) -> str:
        return partition_name(self.start, self.end)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for count in ("rows", "queries"):
            if getattr(self, count) != sum(getattr(shard, count) for shard in self.shards):
                raise ValueError(f"{count} is not the sum over the shards")
        earliest = self.start
        for index, shard in enumerate(self.shards):
            if not self.start <= shard.first_query_time <= shard.last_query_time < self.end:
                raise ValueError(f"the times of shard {shard.file} lie outside the partition")
            if shard.file != shard_file(self.name, index, shard.sha256):
                raise ValueError(
                    f"shard {index} is {shard.file}: not the name of that shard of this partition"
                )
            if shard.first_query_time < earliest:
                raise ValueError(f"shard {shard.file} begins before the end of the shard before it")
            earliest = shard.last_query_time
        return self


def partition_name(start: int, end: int) -> str:
    """Returns the stem of the file names of a partition; names sort as the times do."""
    return f"{start:019d}-{end:019d}"


def shard_file(partition: str, index: int, sha256: str) -> str:
    """Returns the file name of a shard of a partition, by its number and its content."""
    # The hash in the name keeps publishers of different content from overwriting each other's shards.
    return f"{partition}-{index:04d}-{sha256[:16]}.parquet"


def check_log(folder: Path, schema: Schema) -> None:
    """Raises InputError if the folder neither is nor can become a log with this schema; writes nothing."""
    check_log_folder(folder)
    path = folder / "schema.json"
    if path.exists():
        existing = read_schema(folder)
        if existing.version != schema.version:
            differences = joined(differing_features(existing, schema)) or "written in a different form"
            raise InputError(
                f"{path}: this log was written under schema {existing.version}, not {schema.version} "
                f"({differences}): features cannot change inside a log",
                "use another output directory",
            )
        if existing.labels != schema.labels:
            before, now = (", ".join(side.labels) or "none" for side in (existing, schema))
            raise InputError(
                f"{path}: this log was written with labels: {before}, not {now}: labels cannot change inside a log",
                "use another output directory",
            )


def check_log_folder(folder: Path) -> None:
    """Checks a folder as ``check_log`` does, for any features; hidden files and ``rejects/`` may precede a log."""

    def can_be_log(path: Path) -> bool:
        # A run directory has a schema too.
        is_log = (path / "schema.json").exists() and not (path / "config.yaml").exists()
        others = (other for other in path.iterdir() if not is_temporary(other))
        return is_log or all(other.name == "rejects" or other.name.startswith(".") for other in others)

    check_output_folder(folder, "an example log", can_be_log)


def create_log(folder: Path, schema: Schema) -> None:
    """Creates a log with this schema in a folder, or checks that it is one; raises as ``check_log`` does."""
    check_log(folder, schema)
    if not create_exclusively(folder / "schema.json", schema_bytes(schema)):
        check_log(folder, schema)


def schema_bytes(schema: Schema) -> bytes:
    """Returns the content of a file that ``read_schema_file`` reads."""
    content = schema.model_dump(mode="json")
    return json_bytes({"format": _SCHEMA_FORMAT, "version": schema.version, **content})


def read_schema(folder: Path) -> Schema:
    """Reads the schema of a log. Raises InputError when it is missing, malformed or changed by hand."""
    absent = f"{folder} is not an example log: it has no schema.json"
    tables = {".csv", ".tsv", ".txt", ".json", ".jsonl", ".parquet"}
    if folder.is_file():
        absent = (
            f"{folder} is a file, not the directory of an example log; ctr quickstart {folder} makes a log of a table "
            "and trains on it, ctr ingest makes a log"
        )
    elif folder.is_dir() and any(
        path.is_file() and not tables.isdisjoint(path.suffixes) for path in folder.iterdir()
    ):
        absent += f"; ctr quickstart {folder} makes a log of tables and trains on it, ctr ingest makes a log"
    return read_schema_file(folder / "schema.json", absent)


def read_schema_file(path: Path, absent: str) -> Schema:
    """Reads the schema in a file. Raises InputError if missing (message ``absent``), malformed or changed by hand."""
    content = read_json_object(path, absent)
    if content.pop("format", None) != _SCHEMA_FORMAT:
        raise of_another_version(path)
    version = content.pop("version", None)
    schema = parse_model(Schema, content, str(path))
    if schema.version != version:
        raise InputError(
            f"{path}: the features do not match the recorded version {version}: the file was changed"
        )
    return schema


def check_no_overlap(folder: Path, start: int, end: int) -> None:
    """Raises InputError when another published partition overlaps [start, end)."""
    for other in list_partitions(folder):
        if other != (start, end) and other[0] < end and start < other[1]:
            raise InputError(
                f"{folder}: the partition [{start}, {end}) overlaps the published [{other[0]}, {other[1]})"
            )


def publish_manifest(folder: Path, manifest: Manifest) -> None:
    """Publishes a partition whose shards are complete.

    Raises InputError if it overlaps a published one, or was published before with other content.
    """
    check_no_overlap(folder, manifest.start, manifest.end)
    publish_once(manifest_path(folder, manifest), manifest_bytes(manifest))


def publish_once(path: Path, content: bytes) -> None:
    """Creates the manifest of a partition. Raises InputError if it exists with other content."""
    if not create_exclusively(path, content) and path.read_bytes() != content:
        raise InputError(
            f"{path}: this partition was published before with other content; the first version is kept"
        )


def manifest_path(folder: Path, manifest: Manifest) -> Path:
    """Returns the path of a published manifest."""
    return folder / "manifests" / f"{manifest.name}.json"


def manifest_bytes(manifest: Manifest) -> bytes:
    """Returns the content of a manifest's file, which contains its hash."""
    return sealed_bytes(manifest.model_dump(mode="json"))


def parse_manifest(content: bytes, where: str) -> Manifest:
    """Inverts ``manifest_bytes``. Raises InputError, which names ``where``, for damaged content."""
    return parse_model(Manifest, parse_sealed(content, where), where)


def list_partitions(folder: Path) -> list[tuple[int, int]]:
    """Lists the published partitions (start, end) in order of time, from the names of the manifests."""
    return partitions_in(folder / "manifests")


def read_manifests(
    folder: Path,
    cached: Mapping[tuple[int, int], Manifest] | None = None,
    among: Set[str] | None = None,
    needs_labels: bool = True,
) -> list[Manifest]:
    """Returns all partitions in order of time; manifests in ``cached`` are not read again.

    Raises InputError if a manifest is damaged, overlaps another, or was lost while its shards remain (only the names
    ``among``, or all if None, are checked); or the rows lack required labels.
    """
    version = read_schema(folder).version
    manifests: list[Manifest] = []
    for start, end in published_partitions(folder / "shards", folder / "manifests", among):
        path = f"{folder}/manifests/{partition_name(start, end)}.json"
        manifest = (cached or {}).get((start, end))
        if manifest is None:
            manifest = parse_model(Manifest, read_sealed(Path(path), f"{path}: no such manifest"), path)
        if (manifest.start, manifest.end) != (start, end):
            raise InputError(f"{path}: names another partition, [{manifest.start}, {manifest.end})")
        if manifest.schema_version != version:
            raise InputError(
                f"{path}: written under schema {manifest.schema_version}, but the log's schema is {version}"
            )
        if needs_labels and not manifest.labeled:
            raise InputError(
                f"{folder}: its rows were ingested without labels, for ctr score alone; ingest them with their labels "
                "into another output directory"
            )
        if manifests and manifests[-1].end > manifest.start:
            raise InputError(f"{path}: overlaps the partition before it, {manifests[-1].name}")
        manifests.append(manifest)
    return manifests


def log_sha256(manifests: Sequence[Manifest]) -> str:
    """Hashes the content of a whole log: its manifests, which have the hashes of the shards."""
    content = (json_bytes(manifest.model_dump(mode="json")) for manifest in manifests)
    return hashlib.sha256(b"".join(content)).hexdigest()


class PublishedPartitions:
    """Published partitions of a growing log; reads only new manifests, and does not detect overwritten ones."""

    def __init__(self, folder: Path, manifests: Sequence[Manifest] = ()) -> None:
        self._folder = folder
        self._names: frozenset[str] = frozenset()
        self._manifests = manifests

    def read(self) -> Sequence[Manifest]:
        """Reads all manifests as ``read_manifests`` does; returns the same object if there are no new ones."""
        names = frozenset(names_in(self._folder / "manifests", ".json"))
        if names != self._names:
            cached = {(manifest.start, manifest.end): manifest for manifest in self._manifests}
            self._manifests = read_manifests(self._folder, cached)
            # A manifest that appeared in between may be read now and listed next time, which is harmless.
            self._names = names
        return self._manifests


def partitions_in(folder: Path) -> list[tuple[int, int]]:
    """Lists the partitions (start, end) of a folder's manifests, by time. Raises InputError for other file names."""
    partitions = []
    for name in names_in(folder, ".json"):
        match = _PARTITION.fullmatch(name.removesuffix(".json"))
        if match is None:
            raise InputError(f"{folder / name}: not the name of a manifest (START-END.json)")
        partitions.append((int(match[1]), int(match[2])))
    return sorted(partitions)


def published_partitions(
    shards: Path, manifests: Path, among: Set[str] | None = None
) -> list[tuple[int, int]]:
    """Lists the partitions of a folder of manifests. Raises InputError if a partition before the last is lost.

    Shards that overlap a published partition are ignored, because another publisher was first. Only names in
    ``among`` are checked.
    """
    while True:
        partitions = partitions_in(manifests)
        lost = _first_lost(shards, partitions, among)
        if lost is None:
            return partitions
        # Unless it was published during the listing, which may omit new names.
        if not (manifests / f"{lost}.json").is_file():
            raise InputError(
                f"{manifests / lost}.json: missing, though {shards} holds files of this partition and later ones are "
                "published: it was lost, or its publisher did not finish",
                "restore it or publish the partition again, or delete those files if they should not be read",
            )


def _first_lost(shards: Path, partitions: Sequence[tuple[int, int]], among: Set[str] | None) -> str | None:
    published = {partition_name(*partition) for partition in partitions}
    unpublished = {name[:_PARTITION_LENGTH] for name in names_in(shards, ".parquet")} - published
    for stem in sorted(unpublished if among is None else unpublished & among):
        match = _PARTITION.fullmatch(stem)
        if match is None:
            continue
        start, end = int(match[1]), int(match[2])
        later = bisect_left(partitions, end, key=lambda partition: partition[0])
        if later < len(partitions) and not (later and partitions[later - 1][1] > start):
            return stem
    return None
