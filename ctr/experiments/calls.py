"""Calls of ``ctr train`` and ``ctr sample`` that an experiment consists of.

::

    OUT/configs/NAME-seed-S-HASH.yaml   the configuration of a training, or of a sampling
    OUT/runs/NAME-seed-S-HASH/          a run directory, without checkpoints once it is finished
    OUT/failures/NAME-seed-S.txt        the last lines of the errors of a call that failed

The hash covers the non-default values of the configuration: a changed arm gets another folder. A
teacher's predictions and the decisions of a sampling become sidecars of the log, ``replay-...``: several
experiments share them.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ctr.config import StrictModel, dump_yaml
from ctr.data.log import Manifest, log_sha256, read_manifests
from ctr.data.sampling import SamplingConfig
from ctr.data.sidecar import sidecar_folder
from ctr.io.files import write_atomic_bytes
from ctr.training.config import TrainConfig

THREADS = "TF_NUM_INTRAOP_THREADS"
"""Variable with the number of TensorFlow's threads, on which the bits of a run depend."""


@dataclass(frozen=True)
class Folders:
    """Log and output folder of an experiment, both absolute."""

    log: Path
    manifests: Sequence[Manifest]
    out: Path

    @cached_property
    def log_sha256(self) -> str:
        return log_sha256(self.manifests)

    def read(self, *parts: str) -> dict[str, Any]:
        """Reads a JSON object of the output folder as ``read_object`` does."""
        return read_object(self.out.joinpath(*parts))


@dataclass(frozen=True)
class Call:
    """Training of an arm or of a teacher, or a sampling of the log."""

    owner: str  # the arm, ``ARM~RETRAIN``, ``teacher-NAME``, or ``sampling NAME``
    config: TrainConfig | SamplingConfig
    needs: Sequence["Call"] = ()  # the teacher and the sampling that it reads
    sidecar: str | None = None  # of the log: the decisions of a sampling, or the predictions of a teacher

    @property
    def seed(self) -> int | None:
        return self.config.seed if isinstance(self.config, TrainConfig) else None

    @property
    def label(self) -> str:
        """Returns the unique name of the call that messages show."""
        return self.owner if self.seed is None else f"{self.owner} seed {self.seed}"

    @property
    def name(self) -> str:
        return f"{self.label.replace(' ', '-')}-{settings_key(self.config)}"

    @property
    def folder(self) -> str:
        """Returns the run directory, relative to the folder of the experiment."""
        return f"runs/{self.name}"

    @property
    def failure(self) -> str:
        """Returns the file of errors of a failed call, relative to the folder of the experiment."""
        return f"failures/{self.label.replace(' ', '-')}.txt"

    def what_lacks(self, folders: Folders) -> str:
        """Returns why the call's results are incomplete; empty if the whole log was read as configured."""
        absent = "its results are not in the directory of the experiment"
        if self.sidecar is not None:
            sidecar = sidecar_folder(folders.log, self.sidecar)
            is_whole = all((sidecar / f"{manifest.name}.json").is_file() for manifest in folders.manifests)
            return "" if is_whole else absent
        assert isinstance(self.config, TrainConfig)
        summary = folders.read(self.folder, "summary.json")
        constraints = self.config.objective.bias_constraints
        expected = {
            "learning_failure": None,
            "config_sha256": self.config.sha256(),
            "log_sha256": folders.log_sha256,
            "constraint_logs_sha256": {
                other.name: log_sha256(read_manifests(Path(other.path)))
                for other in (constraints.logs if constraints is not None else ())
            },
        }
        others = [key for key in expected if summary.get(key) != expected[key]]
        if not others or not summary:
            return absent if others else ""
        return (
            f"its run {self.folder} was made by another version of ctr, or was changed (other {', '.join(others)}): "
            "remove it, or use another --out"
        )

    def command(self, folders: Folders) -> list[str]:
        """Returns the arguments of ``ctr``, after writing the configuration that they name."""
        path = folders.out / "configs" / f"{self.name}.yaml"
        write_atomic_bytes(path, dump_yaml(self.config).encode())
        if self.seed is None:
            return ["sample", str(folders.log), "--name", str(self.sidecar), "--config", str(path)]
        out = str(folders.out / self.folder)
        arguments = ["train", str(folders.log), "--config", str(path), "--out", out]
        return [*arguments, *(["--record", self.sidecar] if self.sidecar is not None else [])]

    def threads(self, folders: Folders) -> str | None:
        """Returns the number of threads that the run began with, on which its results depend; None before it begins."""
        threads: str | None = folders.read(self.folder, "environment.json").get("variables", {}).get(THREADS)
        return threads

    def remove_checkpoints(self, folders: Folders) -> None:
        """Removes the checkpoints of a finished run, which are most of its bytes."""
        shutil.rmtree(folders.out / self.folder / "checkpoints", ignore_errors=True)


def settings_key(config: StrictModel) -> str:
    """Hashes the non-default values of a configuration, so that adding keys does not change the hash."""
    content = json.dumps(config.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def read_object(path: Path) -> dict[str, Any]:
    """Returns the object of a JSON file; empty if the file is missing or has other content."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
