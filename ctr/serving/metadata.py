"""Metadata of an exported model, ``assets.extra/ctr.json``, and the folders that models are published in.

::

    DIR/<version>/saved_model.pb, variables/     TensorFlow's
    DIR/<version>/assets.extra/ctr.json          features, configuration, position, signatures, hashes of the files
    DIR/<version>/assets.extra/tf_serving_warmup_requests
    DIR/<version>.delta/delta.npz                differences from an earlier version (``ctr.serving.weights``)
    DIR/<version>.delta/assets.extra/ctr.json    as above, and the version that the delta builds on

The version is the run's position in the log, a number of examples.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctr.config import parse_model
from ctr.data.schema import Schema
from ctr.io.documents import read_json_object
from ctr.io.errors import InputError, of_another_version
from ctr.io.files import file_sha256
from ctr.io.paths import check_local
from ctr.io.versions import DELTA, DELTA_FILE, FULL_FILE, versions

FORMAT = 1
EXTRA = "assets.extra"
FILE = "ctr.json"
WARMUP = "tf_serving_warmup_requests"
MAPPING = "mapping"  # key of the mapping by which ``ctr quickstart`` read raw rows; others have none
LEARNED = "learned"  # column of scores: true for rows that are not later than the last one that the model learned from
TIME = "time"  # key of raw rows that has their time, in microseconds; null where times are made of the numbers of rows
NETWORK = "network"  # key of ``ctr.serving.saved_model.describe_network``


def is_delta(model: Path) -> bool:
    """Tells a delta to an earlier model."""
    return (model / DELTA_FILE).is_file()


def find_exported(path: Path) -> Path | None:
    """Returns ``path`` where it is a model, else the newest version in it, or None when there is none."""
    if (path / FULL_FILE).is_file() or is_delta(path):
        return path
    return next(reversed(versions(path)), None)


def find_model(path: Path) -> Path:
    """Returns the same as ``find_exported``, but raises InputError when there is none."""
    found = find_exported(path)
    if found is None:
        check_local(path)
        raise InputError(
            f"{path}: neither an exported model (no {FULL_FILE}) nor a directory of its versions"
        )
    return found


@dataclass(frozen=True)
class Chain:
    """Versions that a model is made of: a full one, and the deltas that are applied to it, in order."""

    full: Path
    deltas: tuple[Path, ...]

    @property
    def model(self) -> Path:
        return self.deltas[-1] if self.deltas else self.full


def read_chain(model: Path) -> Chain:
    """Finds the versions that a model is made of; a delta's are in the same directory.

    Raises InputError: the metadata of one is damaged, or what a delta builds on is missing or another model.
    """
    deltas: list[Path] = []
    while is_delta(model):
        deltas.append(model)
        model = _find_base(model)
    return Chain(model, tuple(reversed(deltas)))


def _find_base(delta: Path) -> Path:
    metadata = read_metadata(delta)
    try:
        position, weights = int(metadata["base"]["examples"]), metadata["base"]["weights"]
        own = int(metadata["position"]["examples"])
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"{delta / EXTRA / FILE}: does not name the version that the delta builds on: the file was changed"
        ) from None
    folder = delta.resolve().parent
    found = [path for path in (folder / f"{position}", folder / f"{position}{DELTA}") if path.is_dir()]
    if not found or position >= own:
        raise InputError(f"{delta}: builds on version {position}, which is not in {folder}: restore it there")
    for path in found:
        if read_metadata(path).get("weights") == weights:
            return path
    raise InputError(
        f"{delta}: builds on a version {position} with other weights than {found[0]} has: it is of another run"
    )


def hash_files(model: Path) -> dict[str, str]:
    """Hashes every file of a model but the metadata (SHA-256), by its path below ``model``."""
    paths = sorted(path for path in model.rglob("*") if path.is_file())
    names = {path: path.relative_to(model).as_posix() for path in paths}
    return {name: file_sha256(path) for path, name in names.items() if name != f"{EXTRA}/{FILE}"}


def read_metadata(model: Path) -> dict[str, Any]:
    """Reads the metadata of a model. Raises InputError when it is missing or malformed."""
    path = model / EXTRA / FILE
    content: dict[str, Any] = read_json_object(path, f"{path}: no such file; ctr export writes it")
    if content.get("format") != FORMAT:
        raise of_another_version(path)
    missing = {"schema", "signatures", "position", "model", "logs", "files", NETWORK} - content.keys()
    if missing:
        raise InputError(f"{path}: {', '.join(sorted(missing))} missing: the file was changed")
    return content


def model_schema(metadata: dict[str, Any], model: Path) -> Schema:
    """Reads the features of a model. Raises InputError when they were changed by hand."""
    return parse_model(Schema, metadata["schema"], str(model / EXTRA / FILE))


def check_files(model: Path, metadata: dict[str, Any]) -> None:
    """Raises InputError when a file of the model is not what was written, or is none that was."""
    links = [path for path in sorted(model.rglob("*")) if path.is_symlink()]
    if links:
        raise InputError(f"{links[0]}: a model has no symbolic links: delete it")
    recorded = metadata["files"]
    if not isinstance(recorded, dict):
        raise InputError(f"{model / EXTRA / FILE}: files does not map names to hashes: the file was changed")
    found = hash_files(model)
    for name, digest in recorded.items():
        if found.get(name) != digest:
            problem = "missing" if name not in found else "damaged: it does not have the recorded SHA-256"
            raise InputError(f"{model / name}: {problem}; export the model again")
    for name in found.keys() - recorded.keys():
        raise InputError(f"{model / name}: is not among the files that {EXTRA}/{FILE} records: delete it")


def learned_until(metadata: Mapping[str, Any]) -> tuple[int, int] | None:
    """Returns query time, in microseconds, and query id of the last row that a model learned from; None: from none.

    Training passes over a log in this order. Scores of the rows until there say nothing about new rows.
    """
    until = metadata["position"]["learned_until"]
    return None if until is None else (int(until[0]), int(until[1]))


def is_learned(
    until: tuple[int, int] | None, times: np.ndarray, queries: np.ndarray | None = None
) -> np.ndarray:
    """Tells rows that are not later than the last one that was learned from, bool [N], by time and query id.

    Times are in microseconds, int64 [N]. Without ``queries`` all rows of the last time count as learned from.
    """
    if until is None:
        return np.zeros(len(times), bool)
    if queries is None:
        return times <= until[0]
    return (times < until[0]) | ((times == until[0]) & (queries <= until[1]))
