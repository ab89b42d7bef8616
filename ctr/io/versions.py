"""Folders of a directory of versions: each is named by its version, a whole number.

The name of a version that is not complete ends in ``PARTIAL``. TensorFlow Serving, which looks for numbers, ignores it.
"""

import shutil
from pathlib import Path

PARTIAL = ".partial"
MODEL_FILE = "saved_model.pb"


def versions(folder: Path) -> list[Path]:
    """Lists the versions in a folder, the lowest number first."""
    return sorted(
        (path for path in folder.glob("*") if path.name.isdecimal() and path.is_dir()), key=version_number
    )


def is_partial(name: str) -> bool:
    """Returns whether a folder of this name is a version that is not complete."""
    return name.endswith(PARTIAL) and name.removesuffix(PARTIAL).isdecimal()


def delete_version(path: Path) -> None:
    """Deletes a version, or a checkpoint, in a folder that this process holds."""
    # Renamed first, so that nobody finds half of it under its own name.
    shutil.rmtree(path.rename(path.with_name(f"{path.name}{PARTIAL}")))


def version_number(path: Path) -> int:
    """Returns the number of one of ``versions``."""
    return int(path.name)
