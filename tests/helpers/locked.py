"""The environments of uv.lock: the extras and groups of each, and the versions that it has."""

import re
import subprocess
import sys
from pathlib import Path

WITHOUT_TENSORFLOW = ("--no-emit-package", "tensorflow", "--no-emit-package", "libclang")
EVERYTHING = ("--extra", "train", "--extra", "tfrs", "--extra", "cloud", "--extra", "test", "--extra", "docs")
ENVIRONMENTS = {
    "everything": EVERYTHING,
    "oldest": (*EVERYTHING, "--group", "oldest"),
    "image": ("--extra", "train", "--extra", "cloud", "--group", "image", *WITHOUT_TENSORFLOW),
    "tpu": ("--extra", "train", "--group", "tpu"),
    "tpu-vm": ("--extra", "train", "--group", "tpu-vm", *WITHOUT_TENSORFLOW),
}


def exported(root: Path, environment: str) -> str:
    """The packages of an environment, as `pip install --require-hashes` takes them."""
    command = (
        Path(sys.executable).with_name("uv"),
        "export",
        "--project",
        root,
        "--quiet",
        "--offline",
        "--frozen",
    )
    options = ("--no-emit-project", "--no-annotate", "--no-header", *ENVIRONMENTS[environment])
    return subprocess.run([*command, *options], check=True, capture_output=True, text=True).stdout


def versions(root: Path, environment: str) -> dict[str, str]:
    """The versions of an environment, by package."""
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)==([^ ]+)", exported(root, environment), re.MULTILINE))
