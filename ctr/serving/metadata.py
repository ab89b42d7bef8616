"""Metadata of an exported model, ``assets.extra/ctr.json``, and the layout of a folder of published models.

::

    DIR/<version>/saved_model.pb, variables/     TensorFlow's
    DIR/<version>/assets.extra/ctr.json          features, configuration, position, signatures, hashes of the files
    DIR/<version>/assets.extra/tf_serving_warmup_requests

The version is the run's position in the log, a number of examples.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ctr.config import parse_model
from ctr.data.schema import Schema
from ctr.io.documents import read_json_object
from ctr.io.errors import InputError, of_another_version
from ctr.io.files import MODEL_FILE, check_local, file_sha256, versions

FORMAT = 1
EXTRA = "assets.extra"
FILE = "ctr.json"
WARMUP = "tf_serving_warmup_requests"
LEARNED = "learned"  # column of scores: true for rows that are not later than the last one that the model learned from


def find_model(path: Path) -> Path:
    """Returns ``path`` if it is a model, else the newest version in it. Raises InputError if there is none."""
    if (path / MODEL_FILE).is_file():
        return path
    if newest := versions(path)[-1:]:
        return newest[0]
    check_local(path)
    raise InputError(f"{path}: neither an exported model (no {MODEL_FILE}) nor a directory of its versions")


def hash_files(model: Path) -> dict[str, str]:
    """Hashes every file of a model except the metadata (SHA-256), by its path below ``model``."""
    paths = sorted(path for path in model.rglob("*") if path.is_file())
    names = {path: path.relative_to(model).as_posix() for path in paths}
    return {name: file_sha256(path) for path, name in names.items() if name != f"{EXTRA}/{FILE}"}


def read_metadata(model: Path) -> dict[str, Any]:
    """Reads the metadata of a model. Raises InputError when it is missing or malformed."""
    path = model / EXTRA / FILE
    content: dict[str, Any] = read_json_object(path, f"{path}: no such file; ctr export writes it")
    if content.get("format") != FORMAT:
        raise of_another_version(path)
    missing = {"schema", "signatures", "position", "model", "logs", "files"} - content.keys()
    if missing:
        raise InputError(f"{path}: {', '.join(sorted(missing))} missing: the file was changed")
    return content


def model_schema(metadata: dict[str, Any], model: Path) -> Schema:
    """Reads the features of a model. Raises InputError when they were changed by hand."""
    return parse_model(Schema, metadata["schema"], str(model / EXTRA / FILE))


def check_files(model: Path, metadata: dict[str, Any]) -> None:
    """Raises InputError if a file of the model was changed, removed or added."""
    links = [path for path in sorted(model.rglob("*")) if path.is_symlink()]
    if links:
        raise InputError(f"{links[0]}: a model has no symbolic links: delete it")
    recorded = metadata["files"]
    if not isinstance(recorded, dict):
        raise InputError(f"{model / EXTRA / FILE}: files does not map names to hashes: the file was changed")
    hashes = hash_files(model)
    for name, digest in recorded.items():
        if hashes.get(name) != digest:
            problem = "missing" if name not in hashes else "damaged: it does not have the recorded SHA-256"
            raise InputError(f"{model / name}: {problem}; export the model again")
    for name in hashes.keys() - recorded.keys():
        raise InputError(f"{model / name}: is not among the files that {EXTRA}/{FILE} records: delete it")


def learned_until(metadata: Mapping[str, Any]) -> tuple[int, int] | None:
    """Returns query time, in microseconds, and query id of the last row that a model learned from; None without any.

    Training reads a log in this order. Scores of rows up to this one do not estimate the quality on new rows.
    """
    until = metadata["position"]["learned_until"]
    return None if until is None else (int(until[0]), int(until[1]))


def is_learned(until: tuple[int, int] | None, times: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Returns for each row whether it is not after the last learned row ``until``, bool [N].

    ``times``, in microseconds, and ``queries``, the query ids, are int64 [N].
    """
    if until is None:
        return np.zeros(len(times), bool)
    return (times < until[0]) | ((times == until[0]) & (queries <= until[1]))
