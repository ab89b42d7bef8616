"""The logs of ``defaults.py``: twenty simulated worlds, and the real logs that are present in a folder.

Each is ingested in the ordinary way, without a number of buckets, so that practically each value has a distinct id.

::

    FOLDER/raw/      table and mapping of a simulated world
    FOLDER/log/      the example log
    FOLDER/log.json  its facts: rows, queries, clicks, features; written last
"""

import shutil
from collections.abc import Iterator
from collections.abc import Mapping as Named
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from runner import cached_json

from ctr.data.log import read_manifests, read_schema
from ctr.data.mapping import FORMATS_FOLDER, load_mapping
from ctr.data.reader import join_rows, read_rows
from ctr.pipelines.tables.ingest import ingest
from many_logs.generate import write_world
from many_logs.worlds import TO_CHOOSE, TO_REPORT, World


@dataclass(frozen=True)
class Source:
    """Source of a log.

    Attributes:
        name: name of the log.
        group: ``choose``, for choosing defaults, or ``report``.
        world: the world of a simulated log; None for a real one.
        format: for a real log, its format for ``ctr ingest``.
        path: for a real log, its path in the folder of real logs.
    """

    name: str
    group: str
    world: World | None = None
    format: str = ""
    path: str = ""


def _open_bandit(group: str, policy: str) -> tuple[Source, ...]:
    return tuple(
        Source(
            f"open_bandit_{policy}_{name}", group, format="open_bandit", path=f"open_bandit/{policy}/{name}"
        )
        for name in ("all", "men", "women")
    )


SOURCES = (
    *(Source(world.name, "choose", world) for world in TO_CHOOSE),
    Source("avazu", "choose", format="avazu", path="avazu/train.csv"),
    Source("criteo", "choose", format="criteo", path="criteo/train.tsv"),
    *_open_bandit("choose", "random"),
    *(Source(world.name, "report", world) for world in TO_REPORT),
    Source("ml100k", "report", format="movielens", path="ml100k"),
    *_open_bandit("report", "bts"),
)


@dataclass(frozen=True)
class ExactLog:
    """Columns of a log in its order, with a distinct id for each value.

    Attributes:
        features: names of the single-valued features.
        ids: int32 [N, F], numbered from 0 for each feature.
        multivalent: by name, ids (int32) and offsets (int64 [N + 1]) into them.
        label: float32 [N], 0 or 1.
        query_begins: int64 [Q + 1], the first row of each query, and N.
        query_id: int64 [N], as in the log.
        probability: true click probabilities of a simulated log, float64 [N]; None for a real one.
    """

    features: tuple[str, ...]
    ids: npt.NDArray[np.int32]
    multivalent: Named[str, tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]]
    label: npt.NDArray[np.float32]
    query_begins: npt.NDArray[np.int64]
    query_id: npt.NDArray[np.int64]
    probability: npt.NDArray[np.float64] | None = None

    @property
    def rows(self) -> int:
        """Returns the number of rows, N."""
        return len(self.label)

    def blocks(self, rows: int) -> Iterator[slice]:
        """Yields consecutive slices of whole queries with at least ``rows`` rows each, except for the last one."""
        first = 0
        while first < self.rows:
            last = int(self.query_begins[np.searchsorted(self.query_begins, min(first + rows, self.rows))])
            yield slice(first, last)
            first = last


@dataclass(frozen=True)
class Log:
    """An ingested log.

    Attributes:
        source: its source.
        folder: folder of its files.
        facts: numbers of its rows, queries, clicks and features.
    """

    source: Source
    folder: Path
    facts: dict[str, Any]

    @property
    def path(self) -> Path:
        """Returns the path of the example log."""
        return self.folder / "log"

    @cached_property
    def exact(self) -> ExactLog:
        """Reads the log's columns, with the ids of each feature numbered."""
        schema = read_schema(self.path)
        rows = join_rows(list(read_rows(self.path, schema, read_manifests(self.path))))
        raw, probability = self.folder / "raw" / "rows.parquet", None
        if raw.exists():
            truth = pq.read_table(raw, columns=["example_id", "probability"])
            probability = np.empty(len(rows))
            probability[truth.column("example_id").to_numpy()] = truth.column("probability").to_numpy()
            probability = probability[rows.example_id]
        ids = np.empty(rows.ids.shape, np.int32)
        for number, column in enumerate(rows.ids.T):
            ids[:, number] = _numbered(column)
        return ExactLog(
            tuple(schema.single_valued),
            ids,
            {name: (_numbered(values), offsets) for name, (values, offsets) in rows.multivalent.items()},
            rows.label,
            np.append(rows.query_begins(), len(rows)),
            rows.query_id,
            probability,
        )


def absent(source: Source, data: Path | None) -> str:
    """Returns why a log is unavailable; empty if it can be made."""
    if source.world is not None:
        return ""
    if data is None:
        return "the folder of the real logs is not named: --data, or the environment variable CTR_DATA"
    return "" if (data / source.path).exists() else f"{data / source.path}: not there"


def obtain_log(source: Source, logs: Path, data: Path | None, max_rows: int | None) -> Log:
    """Returns the log of a source, which is generated or ingested if absent.

    Args:
        source: a source that is not ``absent``.
        logs: the folder of all logs.
        data: the folder of the real logs.
        max_rows: maximum number of rows of a simulated log.
    """
    world = source.world
    shortened = world is not None and max_rows is not None and max_rows < world.rows
    folder = logs / (f"{source.name}-{max_rows}" if shortened else source.name)

    def make() -> dict[str, Any]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if world is not None:
            raw, mapping = folder / "raw", folder / "raw" / "mapping.yaml"
            write_world(world, raw, max_rows)
        else:
            assert data is not None
            raw, mapping = data / source.path, FORMATS_FOLDER / f"{source.format}.yaml"
        # Not as the command `ctr ingest`, whose start takes longer than a small log.
        ingest(load_mapping(mapping), [raw], folder / "log")
        exact = Log(source, folder, {}).exact
        return {
            "rows": exact.rows,
            "queries": len(exact.query_begins) - 1,
            "clicks": int(exact.label.sum()),
            "features": len(exact.features) + len(exact.multivalent),
        }

    return Log(source, folder, cached_json(folder / "log.json", make))


def _numbered(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    return np.unique(ids, return_inverse=True)[1].astype(np.int32)
