"""The metadata of an exported model, ``assets.extra/ctr.json``, and the folders that models are published in.

::

    DIR/<version>/saved_model.pb, variables/     TensorFlow's
    DIR/<version>/assets.extra/ctr.json          features, configuration, position, signatures, hashes of the files
    DIR/<version>/assets.extra/CALLS.md          calls of the model that can be run as they are
    DIR/<version>/assets.extra/tf_serving_warmup_requests

The version is the run's position in the log, a number of examples.
"""

from pathlib import Path
from typing import Any

from ctr.config import parse_model
from ctr.data.schema import Schema
from ctr.io.documents import read_json_object
from ctr.io.errors import InputError
from ctr.io.files import file_sha256

FORMAT = 1
EXTRA = "assets.extra"
FILE = "ctr.json"
WARMUP = "tf_serving_warmup_requests"


def versions(folder: Path) -> list[Path]:
    """Lists the published versions in a folder, the oldest first."""
    found = [path for path in folder.glob("*") if path.is_dir() and path.name.isdecimal()]
    return sorted(found, key=lambda path: int(path.name))


def find_model(path: Path) -> Path:
    """Returns ``path`` where it is a model, else the newest version in it. Raises InputError when there is none."""
    if (path / "saved_model.pb").is_file():
        return path
    found = versions(path)
    if not found:
        raise InputError(
            f"{path}: neither an exported model (no saved_model.pb) nor a directory of its versions"
        )
    return found[-1]


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
        raise InputError(f"{path}: this is not the metadata of an export of format {FORMAT}")
    missing = {"schema", "signatures", "position", "model", "files"} - content.keys()
    if missing:
        raise InputError(f"{path}: {', '.join(sorted(missing))} missing: the file was changed")
    return content


def model_schema(metadata: dict[str, Any], model: Path) -> Schema:
    """Returns the features of a model. Raises InputError when they were changed by hand."""
    content = metadata["schema"]
    if isinstance(content, dict):
        # Exports without this key are older than the rule, and spell numbers as they are given.
        content = {"spelling": "text", **content}
    return parse_model(Schema, content, str(model / EXTRA / FILE))


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
