"""Paths of this machine, told from addresses of stores elsewhere such as ``gs://bucket/log``.

Such an address would be taken for the local path ``gs:/bucket/log``, and what a command makes would be written there.
"""

import os
import re
from pathlib import Path

from ctr.io.errors import InputError

# One letter is a drive. A path has lost one of the slashes: Path("gs://bucket") is `gs:/bucket`.
_ADDRESS = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]+):/")


def address_fault(given: str | os.PathLike[str]) -> str:
    """Tells why a path cannot be one of this machine, without the path; empty where it can."""
    found = _ADDRESS.match(os.fspath(given))
    if found is None:
        return ""
    return f"is an address ({found[1]}://), not a path of this machine; allowed: a local path (copy it first)"


def check_local(given: str | os.PathLike[str]) -> None:
    """Raises InputError for an address such as ``s3://bucket/log``."""
    if fault := address_fault(given):
        text = os.fspath(given)
        raise InputError(f"{text if '://' in text else text.replace(':/', '://', 1)}: {fault}")


def local_path(text: str) -> Path:
    """Reads a path of the command line; InputError for an address."""
    check_local(text)
    return Path(text)
