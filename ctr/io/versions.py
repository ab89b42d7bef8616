"""Folders of a directory of versions: each is named by its version, a whole number.

The name of a delta, which says only how the version differs from an earlier one, has ``DELTA`` behind the number; that
of a version that is not complete has ``PARTIAL`` at its end. TensorFlow Serving, which looks for numbers, ignores both.
"""

import shutil
from pathlib import Path

DELTA = ".delta"
PARTIAL = ".partial"
FULL_FILE, DELTA_FILE = "saved_model.pb", "delta.npz"  # only a version with a whole model has the first one


def versions(folder: Path) -> list[Path]:
    """Lists the versions in a folder, the lowest number first; of a version that is there twice, the delta first."""
    found = [path for path in folder.glob("*") if is_version(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: (version_number(path), not path.name.endswith(DELTA)))


def is_version(name: str) -> bool:
    """Returns whether a folder of this name is a complete version."""
    return name.removesuffix(DELTA).isdecimal()


def is_partial(name: str) -> bool:
    """Returns whether a folder of this name is a version that is not complete."""
    return name.endswith(PARTIAL) and is_version(name.removesuffix(PARTIAL))


def delete_version(path: Path) -> None:
    """Deletes a version, or a checkpoint, in a folder that this process holds."""
    # Renamed first, so that nobody finds half of it under its own name.
    shutil.rmtree(path.rename(path.with_name(f"{path.name}{PARTIAL}")))


def version_number(path: Path) -> int:
    """Returns the number of one of ``versions``."""
    return int(path.name.removesuffix(DELTA))
