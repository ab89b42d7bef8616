"""The logs of the campaign: twenty simulated worlds, and the real logs of a folder where they are.

Each is ingested twice from the same raw files: as anyone would, without a number of buckets; and with 2^31 buckets
for what is hashed, so that practically each value has its own id, for systems outside of this project.

::

    FOLDER/raw/      of a simulated world: its table and its mapping
    FOLDER/log/      the example log
    FOLDER/exact.npz the columns in the order of the log (``ExactLog``)
    FOLDER/log.json  what both were made of, written last
"""

import hashlib
import json
import shutil
from collections.abc import Mapping as Named
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import yaml

from ctr.config import read_yaml
from ctr.data.log import log_sha256, read_manifests, read_schema
from ctr.data.mapping import FORMATS_FOLDER, load_mapping
from ctr.data.reader import join_rows, read_rows
from ctr.io.files import write_atomic, write_atomic_bytes
from ctr.pipelines.ingest.run import ingest
from defaults.generate import write_world
from defaults.worlds import TO_CHOOSE, TO_REPORT, World

EXACT_BUCKETS = 2**31 - 1


@dataclass(frozen=True)
class Source:
    """Where a log comes from.

    Attributes:
        name: the log's.
        group: ``choose``, for choosing defaults, or ``report``.
        world: of a simulated log.
        format: of a real log: the format that ``ctr ingest`` reads it with.
        path: of a real log: its files, in the folder of the real logs.
    """

    name: str
    group: str
    world: World | None = None
    format: str = ""
    path: str = ""


SOURCES = (
    *(Source(world.name, "choose", world) for world in TO_CHOOSE),
    Source("avazu", "choose", format="avazu", path="avazu/train.csv"),
    Source("criteo", "choose", format="criteo", path="criteo/train.tsv"),
    *(
        Source(
            f"open_bandit_random_{name}", "choose", format="open_bandit", path=f"open_bandit/random/{name}"
        )
        for name in ("all", "men", "women")
    ),
    *(Source(world.name, "report", world) for world in TO_REPORT),
    Source("mind", "report", format="mind", path="mind"),
    Source("ml100k", "report", format="movielens", path="ml100k"),
    *(
        Source(f"open_bandit_bts_{name}", "report", format="open_bandit", path=f"open_bandit/bts/{name}")
        for name in ("all", "men", "women")
    ),
)


@dataclass(frozen=True)
class ExactLog:
    """The columns of a log in its order, each value with an id of its own.

    Attributes:
        features: the names of the single-valued features.
        ids: int32 [N, F], for each feature numbers from 0 on.
        multivalent: by name, ids (int32) and offsets (int64 [N + 1]) into them.
        label: float32 [N], 0 or 1.
        query: int64 [N], the number of the query, from 0 on.
        query_id, example_id: int64 [N], those of the log.
    """

    features: tuple[str, ...]
    ids: npt.NDArray[np.int32]
    multivalent: Named[str, tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]]
    label: npt.NDArray[np.float32]
    query: npt.NDArray[np.int64]
    query_id: npt.NDArray[np.int64]
    example_id: npt.NDArray[np.int64]

    @property
    def rows(self) -> int:
        """N."""
        return len(self.label)

    @cached_property
    def query_begins(self) -> npt.NDArray[np.int64]:
        """int64 [Q + 1], the row with which each query begins, and N."""
        return np.append(np.flatnonzero(np.diff(self.query, prepend=-1)), self.rows)


@dataclass(frozen=True)
class Log:
    """A log that is ready.

    Attributes:
        source: where it comes from.
        folder: of its files.
        sha256: of the example log's content.
        exact_sha256: of its columns, each value with its own id.
        facts: its shape: rows, queries, clicks, features.
    """

    source: Source
    folder: Path
    sha256: str
    exact_sha256: str
    facts: dict[str, Any]

    @property
    def path(self) -> Path:
        """The example log."""
        return self.folder / "log"

    @cached_property
    def exact(self) -> ExactLog:
        """Its columns."""
        with np.load(self.folder / "exact.npz") as file:
            arrays = dict(file)
        multivalent = {
            name.split(".", 1)[1].removesuffix(".values"): (
                arrays[name],
                arrays[name.removesuffix(".values") + ".offsets"],
            )
            for name in arrays
            if name.startswith("multivalent.") and name.endswith(".values")
        }
        columns = {name: arrays[name] for name in ("ids", "label", "query", "query_id", "example_id")}
        features = tuple(map(str, arrays["features"]))
        return ExactLog(features, multivalent=multivalent, **columns)


def absent(source: Source, data: Path | None) -> str:
    """Why a log cannot be made; empty where it can."""
    if source.world is not None:
        return ""
    if data is None:
        return "the folder of the real logs is not named: --data, or the environment variable CTR_DATA"
    return "" if (data / source.path).exists() else f"{data / source.path}: not there"


def find_log(source: Source, logs: Path, max_rows: int | None) -> Log | None:
    """The log of a source as it was made, whatever of; None where there is none."""
    folder = _folder(source, logs, max_rows)
    done = folder / "log.json"
    if not done.exists():
        return None
    content = json.loads(done.read_text())
    return Log(source, folder, content["sha256"], content["exact_sha256"], content["facts"])


def _folder(source: Source, logs: Path, max_rows: int | None) -> Path:
    shortened = source.world is not None and max_rows is not None and max_rows < source.world.rows
    return logs / (f"{source.name}-{max_rows}" if shortened else source.name)


def obtain_log(source: Source, logs: Path, data: Path | None, max_rows: int | None) -> Log:
    """The log of a source; made where it is not there, or was made of something else.

    Args:
        source: which one; not ``absent``.
        logs: the folder of all logs.
        data: the folder of the real logs.
        max_rows: of a simulated log.
    """
    folder, world = _folder(source, logs, max_rows), source.world
    if world is not None:
        raw, mapping_path = folder / "raw", folder / "raw" / "mapping.yaml"
    else:
        assert data is not None
        raw, mapping_path = data / source.path, FORMATS_FOLDER / f"{source.format}.yaml"
    origin = {"source": asdict(source), "code": _ingestion_digest(), "folder": folder.name}
    made = hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()
    done = folder / "log.json"
    if not done.exists() or json.loads(done.read_text())["made_of"] != made:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if world is not None:
            write_world(world, raw, max_rows)
        _ingest(mapping_path, raw, folder / "log")
        exact_sha256, facts = _write_exact(folder, mapping_path, raw)
        sha256 = log_sha256(read_manifests(folder / "log"))
        content = {"made_of": made, "sha256": sha256, "exact_sha256": exact_sha256, "facts": facts}
        write_atomic_bytes(done, json.dumps(content, indent=1).encode())
    log = find_log(source, logs, max_rows)
    assert log is not None
    return log


@cache
def code_digest(*folders: str) -> str:
    """A hash of some folders of the package: what is computed with other code is another result."""
    package = FORMATS_FOLDER.parent.parent
    digest = hashlib.sha256()
    for path in sorted(path for name in folders for path in (package / name).rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _ingestion_digest() -> str:
    own = (Path(__file__).parent / "generate.py").read_bytes()
    formats = b"".join(path.read_bytes() for path in sorted(FORMATS_FOLDER.glob("*.yaml")))
    return code_digest("data", "pipelines") + hashlib.sha256(own + formats).hexdigest()


def _ingest(mapping: Path, raw: Path, out: Path) -> None:
    # What `ctr ingest` calls; not the command, whose start takes longer than a small log.
    ingest(load_mapping(mapping), [raw], out)


def _write_exact(folder: Path, mapping: Path, raw: Path) -> tuple[str, dict[str, Any]]:
    """Writes ``exact.npz`` from a log with as many buckets as there can be, which is then removed."""
    content = read_yaml(mapping, "mapping")
    for feature in content["features"]:
        if feature["kind"] != "number" and "vocabulary" not in feature:
            feature["buckets"] = EXACT_BUCKETS
    exact_mapping, log = folder / "exact.yaml", folder / "exact_log"
    exact_mapping.write_text(yaml.safe_dump(content, sort_keys=False))
    _ingest(exact_mapping, raw, log)
    manifests, schema = read_manifests(log), read_schema(log)
    rows = join_rows(list(read_rows(log, schema, manifests)))
    arrays: dict[str, npt.NDArray[Any]] = {
        "features": np.array(schema.single_valued),
        "ids": np.zeros(rows.ids.shape, np.int32),
        "label": rows.label,
        "query": np.repeat(
            np.arange(len(rows.query_begins())), np.diff(np.append(rows.query_begins(), len(rows)))
        ),
        "query_id": rows.query_id,
        "example_id": rows.example_id,
    }
    for place in range(rows.ids.shape[1]):
        arrays["ids"][:, place] = _numbered(rows.ids[:, place])
    for name, (values, offsets) in rows.multivalent.items():
        arrays |= {f"multivalent.{name}.values": _numbered(values), f"multivalent.{name}.offsets": offsets}
    if (raw / "rows.parquet").exists():
        truth = pq.read_table(raw / "rows.parquet", columns=["example_id", "probability"])
        by_id = np.empty(len(rows))
        by_id[truth.column("example_id").to_numpy()] = truth.column("probability").to_numpy()
        arrays["probability"] = by_id[rows.example_id]
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(
            f"{name} {array.dtype.str} {array.shape}".encode() + np.ascontiguousarray(array).tobytes()
        )
    write_atomic(folder / "exact.npz", lambda file: np.savez(file, **arrays))
    shutil.rmtree(log)
    return digest.hexdigest(), {
        "rows": len(rows),
        "queries": int(arrays["query"][-1]) + 1,
        "clicks": int(rows.label.sum()),
        "single_valued": len(schema.single_valued),
        "multivalent": len(schema.multivalent),
        "values": int(sum(arrays["ids"].max(axis=0) + 1)),
    }


def _numbered(ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    return np.unique(ids, return_inverse=True)[1].astype(np.int32)
