"""Further labels of a log's rows, such as a conversion after a click: a sidecar, for they are known later than the log.

The sidecar ``labels`` has two columns of float64 for each label, both in seconds after the query's time::

    after:NAME    when it was observed; null where it was not
    known:NAME    until when the row was watched: infinity where nothing can come any more, 0 where nothing is known

Within W seconds a row has the label where after:NAME <= W, and that is known where known:NAME >= W: whether it is
known does not depend on the label, so that rows of which it is known are a fair sample.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.data.log import Manifest, is_published
from ctr.data.sidecar import write_sidecar_partition
from ctr.io.files import names_in

SIDECAR = "labels"
FOLDER = f"sidecars/{SIDECAR}"
FOREVER = np.int64(2**62)
"""A time, in microseconds, until which a row is watched of which nothing can come any more."""


def label_columns(name: str) -> tuple[str, str]:
    """Names the columns of a label: when it was observed, and until when the row was watched."""
    return f"after:{name}", f"known:{name}"


def write_labels(log: Path, manifest: Manifest, names: Sequence[str], table: pa.Table) -> None:
    """Publishes the labels of a partition's rows, which is not published yet, or was with these.

    Args:
        table: ``example_id``, ``query_time``, and behind an ``@`` the columns of the sidecar, but as times in
            microseconds, int64: null where a label was not observed, and where nothing is known.
    """
    if not names or not manifest.rows:
        return
    if not is_published(log, manifest):
        # Of an ingest that was killed: its rows may have been others.
        for part in label_files(log, manifest):
            part.unlink(missing_ok=True)
    begun = table.column("query_time")
    columns = {"example_id": table.column("example_id")}
    for after, known in map(label_columns, names):
        until = table.column(f"@{known}").fill_null(0)
        columns[after] = _seconds(table.column(f"@{after}"), begun)
        columns[known] = pc.if_else(pc.equal(until, FOREVER), float("inf"), _seconds(until, begun))
    write_sidecar_partition(log, SIDECAR, manifest, pa.table(columns))


def label_files(log: Path, manifest: Manifest) -> list[Path]:
    """Lists the files that there are of the labels of a partition."""
    return [log / FOLDER / name for name in names_in(log / FOLDER, "") if name.startswith(manifest.name)]


def _seconds(times: pa.ChunkedArray, begun: pa.ChunkedArray) -> pa.ChunkedArray:
    """The seconds from one time to the other; of a group of rows, some labels come before its query's time."""
    passed = pc.subtract(times, begun).cast(pa.float64(), safe=False)
    return pc.max_element_wise(pc.divide(passed, 1e6), 0.0, skip_nulls=False)
