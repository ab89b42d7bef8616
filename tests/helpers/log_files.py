"""What several tests of the simulator read of its files; a name that pytest does not collect."""

import hashlib
from pathlib import Path

import pyarrow as pa

from ctr.data.log import Manifest, read_schema, read_shard


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
