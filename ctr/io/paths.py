"""Paths as they are given: of this machine alone.

An address such as ``s3://bucket/log`` would be taken for a local path such as ``s3:/bucket/log``, and outputs would be
written there. Such a path is refused here, for all commands, keys of configurations and functions.
"""

import os
import re

from ctr.io.errors import InputError

# One letter is a drive. A path has lost one of the slashes: Path("gs://bucket") is `gs:/bucket`.
_ADDRESS = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]+):/")


def address_fault(given: str | os.PathLike[str]) -> str:
    """Tells why a path cannot be one of this machine, without the path; empty where it can."""
    found = _ADDRESS.match(os.fspath(given))
    if found is None:
        return ""
    return f"is an address ({found[1]}://); allowed: a local path, to which ctr sync copies s3://, gs:// or az://"


def check_local(given: str | os.PathLike[str]) -> None:
    """Raises InputError for an address such as ``s3://bucket/log``."""
    if fault := address_fault(given):
        text = os.fspath(given)
        raise InputError(f"{text if '://' in text else text.replace(':/', '://', 1)}: {fault}")
