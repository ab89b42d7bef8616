"""Paths as they are given: of this machine, or addresses of object stores, such as ``s3://bucket/log``.

Any other address would be taken for a local path such as ``hdfs:/log``, and outputs would be written there.
"""

import os
import re
from pathlib import Path

from ctr.io.errors import InputError
from ctr.io.stores import SCHEMES, address_of, copy_of, pulled

# One letter is a drive. A path has lost one of the slashes: Path("gs://bucket") is `gs:/bucket`.
_ADDRESS = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]+):/")


def address_fault(given: str | os.PathLike[str]) -> str:
    """Tells why a path cannot be one of this machine, without the path; empty where it can."""
    found = _ADDRESS.match(os.fspath(given))
    if found is None:
        return ""
    if found[1] in SCHEMES:
        return f"is an address ({found[1]}://), which cannot stand here; allowed: a local path"
    return f"is an address ({found[1]}://); allowed: a local path, or s3://, gs:// or az://"


def check_local(given: str | os.PathLike[str]) -> None:
    """Raises InputError for an address such as ``s3://bucket/log``."""
    if fault := address_fault(given):
        text = os.fspath(given)
        raise InputError(f"{text if '://' in text else text.replace(':/', '://', 1)}: {fault}")


def read_path(given: str) -> Path:
    """Reads a path, or an address of an object store: returns the path of its copy, which need not be there yet.

    Raises InputError for another address.
    """
    if given.startswith(tuple(f"{scheme}://" for scheme in SCHEMES)):
        return copy_of(given)
    check_local(given)
    return Path(given)


def with_content(path: Path) -> Path:
    """Returns a path that is read; of a copy, with what the object store holds (``ctr.io.stores.pull``)."""
    return pulled(path) if address_of(path) else path
