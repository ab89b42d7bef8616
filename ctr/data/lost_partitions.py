"""Partitions of a log or a sidecar, and those whose manifest is lost while their shards are there."""

import re
from bisect import bisect_left
from collections.abc import Sequence, Set
from pathlib import Path

from ctr.io.errors import InputError
from ctr.io.files import names_in

_STEM = len(f"{0:019d}-{0:019d}")
_PARTITION = re.compile(r"([0-9]{19})-([0-9]{19})")
_NAME = re.compile(_PARTITION.pattern + r"\.json")


def partitions_in(folder: Path) -> list[tuple[int, int]]:
    """Lists the partitions (start, end) of a folder's manifests in order of time. Raises InputError: other JSON."""
    partitions = []
    for name in names_in(folder, ".json"):
        match = _NAME.fullmatch(name)
        if match is None:
            raise InputError(f"{folder / name}: not the name of a manifest (START-END.json)")
        partitions.append((int(match[1]), int(match[2])))
    return sorted(partitions)


def published_partitions(
    shards: Path, manifests: Path, among: Set[str] | None = None
) -> list[tuple[int, int]]:
    """Lists ``partitions_in`` a folder of manifests, and raises InputError where one before the last is lost.

    Shards after the last partition are just being published. Shards that overlap a published partition never can be:
    another publisher was first. Only partitions ``among`` these names are checked.
    """
    while True:
        partitions = partitions_in(manifests)
        lost = _first_lost(shards, partitions, among)
        if lost is None:
            return partitions
        # Unless it was published while names were listed, of which those that come meanwhile may be left out.
        if not (manifests / f"{lost}.json").exists():
            raise InputError(
                f"{manifests / lost}.json: missing, though {shards} holds files of this partition and later ones are "
                "published: it was lost, or its publisher did not finish",
                "restore it or publish the partition again, or delete those files if they should not be read",
            )


def _first_lost(shards: Path, partitions: Sequence[tuple[int, int]], among: Set[str] | None) -> str | None:
    known = {f"{start:019d}-{end:019d}" for start, end in partitions}
    unpublished = {name[:_STEM] for name in names_in(shards, ".parquet")} - known
    for stem in sorted(unpublished if among is None else unpublished & among):
        match = _PARTITION.fullmatch(stem)
        if match is None:
            continue
        start, end = int(match[1]), int(match[2])
        later = bisect_left(partitions, end, key=lambda partition: partition[0])
        if later < len(partitions) and not (later and partitions[later - 1][1] > start):
            return stem
    return None
