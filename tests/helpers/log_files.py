"""What several tests read of the files of logs; a name that pytest does not collect."""

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ctr.data.log import Manifest, read_manifests, read_schema
from ctr.data.shards import read_shard, unpack_ids
from ctr.io.errors import InputError


def digests(folder: Path) -> dict[str, str]:
    """Of each file below a folder a hash of its bytes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def rows_of(log: Path, manifest: Manifest) -> pa.Table:
    """The rows of a partition."""
    schema = read_schema(log)
    return pa.concat_tables([read_shard(log, entry, schema) for entry in manifest.shards])


def ids_of_rows(log: Path) -> dict[int, dict[str, list[int]]]:
    """Of each example the ids of each feature, without those of missing values."""
    schema = read_schema(log)
    found = {}
    for manifest in read_manifests(log):
        for entry in manifest.shards:
            table = read_shard(log, entry, schema)
            matrix = unpack_ids(table.column("ids").combine_chunks(), schema)
            for place, example in enumerate(table.column("example_id").to_pylist()):
                ids = dict(zip(schema.single_valued, ([int(one)] for one in matrix[place]), strict=True))
                ids |= {name: table.column(name)[place].as_py() for name in schema.multivalent}
                found[example] = {name: [one for one in own if one] for name, own in ids.items()}
    return found


def refused(message: str, run: Any, *arguments: Any) -> None:
    with pytest.raises(InputError, match=message):
        run(*arguments)
