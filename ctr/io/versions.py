"""The folders of a directory of versions: each is named by its version, a whole number.

A version that only says how it differs from an earlier one has ``DELTA`` behind the number, and one that is not
complete ``PARTIAL`` at the end. TensorFlow Serving, which looks for numbers, ignores both.
"""

from pathlib import Path

DELTA = ".delta"
PARTIAL = ".partial"
FULL_FILE, DELTA_FILE = "saved_model.pb", "delta.npz"
"""What a version has that is a whole model, and one that says how it differs."""


def versions(folder: Path) -> list[Path]:
    """Lists the versions in a folder, the oldest first; of a version that is there twice the delta first."""
    found = [path for path in folder.glob("*") if is_version(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: (version_number(path), not path.name.endswith(DELTA)))


def is_version(name: str) -> bool:
    """Returns whether a folder of this name is a version."""
    return name.removesuffix(DELTA).isdecimal()


def is_partial(name: str) -> bool:
    """Returns whether a folder of this name is a version that is not complete."""
    return name.endswith(PARTIAL) and is_version(name.removesuffix(PARTIAL))


def version_number(path: Path) -> int:
    """Returns the number of one of ``versions``."""
    return int(path.name.removesuffix(DELTA))
