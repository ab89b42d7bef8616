"""JSON objects in files; the same bytes for the same content, and manifests with a hash of themselves."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from ctr.errors import InputError
from ctr.eval.documents import parse_json

_SEAL = "manifest_sha256"


def json_bytes(content: object) -> bytes:
    """An object as indented text: the same bytes for the same content."""
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def sealed_bytes(content: Mapping[str, object]) -> bytes:
    """The text of a manifest: an object, with a SHA-256 of the rest of it under ``manifest_sha256``."""
    return json_bytes({**content, _SEAL: _sha256(content)})


def _sha256(content: Mapping[str, object]) -> str:
    # Without an indent the text is made ten times as fast.
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def parse_json_object(text: bytes, where: str) -> dict[str, object]:
    """Parses a JSON object. Raises InputError, which names ``where``, when it is malformed."""
    try:
        content = parse_json(text)
    except ValueError as error:
        raise InputError(f"{where}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{where}: a JSON object is expected")
    return content


def parse_sealed(text: bytes, where: str) -> dict[str, object]:
    """The object in ``sealed_bytes``. Raises InputError, which names ``where``, when it is not what was written."""
    content = parse_json_object(text, where)
    recorded = content.pop(_SEAL, None)
    if recorded is None:
        raise InputError(f"{where}: not a manifest of this version: it has no {_SEAL}; write it again")
    if recorded != _sha256(content):
        raise InputError(
            f"{where}: damaged: its content does not have the SHA-256 that it records under {_SEAL} ({recorded})"
        )
    return content


def read_json_object(path: Path, absent: str) -> dict[str, object]:
    """Parses a file. Raises InputError: ``absent`` when there is no such file, or that it is malformed."""
    return parse_json_object(read_bytes(path, absent), str(path))


def read_sealed(path: Path, absent: str) -> dict[str, object]:
    """The object in a file of ``sealed_bytes``. Raises InputError: ``absent``, or that it is not what was written."""
    return parse_sealed(read_bytes(path, absent), str(path))


def read_bytes(path: Path, absent: str) -> bytes:
    """The content of a file. Raises InputError: ``absent`` when there is no such file, or that it cannot be read."""
    if not path.is_file():
        raise InputError(absent)
    try:
        return path.read_bytes()
    except OSError as error:
        # The error of a disk does not name the file.
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
