"""Tasks of an experiment: trainings, and samplings of its log.

::

    OUT/configs/NAME-seed-S-HASH.yaml   the configuration of a training, or of a sampling
    OUT/runs/NAME-seed-S-HASH/          a run directory, without checkpoints once it is finished
    OUT/failures/NAME-seed-S.txt        the last lines of the errors of a task that failed

The hash is of what is not a default in the configuration: an arm that is changed gets another folder. A
teacher's predictions and the decisions of a sampling become sidecars of the log, ``replay-...``: several
experiments share them.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
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
class Place:
    """Log and output folder of an experiment, both absolute."""

    log: Path
    manifests: Sequence[Manifest]
    out: Path

    @cached_property
    def log_sha256(self) -> str:
        return log_sha256(self.manifests)

    def has_sidecar(self, name: str) -> bool:
        """Tells whether a sidecar has every partition of the log."""
        folder = sidecar_folder(self.log, name)
        return all((folder / f"{manifest.name}.json").is_file() for manifest in self.manifests)

    def write_config(self, name: str, config: StrictModel) -> str:
        """Writes the configuration of a task; returns its path."""
        path = self.out / "configs" / f"{name}.yaml"
        write_atomic_bytes(path, dump_yaml(config).encode())
        return str(path)

    def read(self, *parts: str) -> dict[str, Any]:
        """Reads a JSON object of the output folder as ``read_object`` does."""
        return read_object(self.out.joinpath(*parts))


class Task:
    """Unit of work of an experiment, made by one command of ``ctr``, in a process of its own."""

    needs: Sequence["Task"] = ()  # tasks without which it cannot be done

    @property
    def label(self) -> str:
        """Name for people, unlike that of any other task."""
        raise NotImplementedError

    @property
    def failure(self) -> str:
        """File with the errors of a task that failed, relative to the folder of the experiment."""
        return f"failures/{self.label.replace(' ', '-')}.txt"

    def is_made(self, place: Place) -> bool:
        """Tells whether its results are there."""
        raise NotImplementedError

    def what_lacks(self, place: Place) -> str:
        """Says why it is not made though its command succeeded."""
        return "its results are not in the directory of the experiment"

    def command(self, place: Place) -> list[str]:
        """Arguments of ``ctr``, after writing the configuration that they name."""
        raise NotImplementedError

    def threads(self, place: Place) -> str | None:
        """Threads that it began with, if it did: others would change the bits of a run, which it refuses."""
        return None

    def result_text(self, place: Place) -> str:
        """Its result in a few words; empty where there is nothing to show."""
        return ""

    def clean_up(self, place: Place) -> None:
        """Removes what nothing goes on from, once it is made."""


@dataclass(frozen=True)
class Training(Task):
    """Training of an arm, or of a teacher."""

    owner: str  # the name of the arm, ``ARM~RETRAIN``, or ``teacher-NAME``
    seed: int
    config: TrainConfig
    needs: Sequence[Task] = ()  # the teacher and the sampling that it learns from
    record: str | None = None  # the sidecar that its predictions become

    @property
    def label(self) -> str:
        return f"{self.owner} seed {self.seed}"

    @property
    def name(self) -> str:
        return f"{self.owner}-seed-{self.seed}-{settings_key(self.config)}"

    @property
    def folder(self) -> str:
        """Run directory, relative to the folder of the experiment."""
        return f"runs/{self.name}"

    def is_made(self, place: Place) -> bool:
        """Tells whether it has learned from the whole log as configured, and recorded what it is to record."""
        if self.record is not None:
            # Another experiment may have made it.
            return place.has_sidecar(self.record)
        return not self._other_keys(place)

    def what_lacks(self, place: Place) -> str:
        if self.record is not None or not (place.out / self.folder / "summary.json").is_file():
            return super().what_lacks(place)
        other = ", ".join(self._other_keys(place))
        return (
            f"its run {self.folder} was made by another version of ctr, or was changed (other {other}): "
            "remove it, or use another --out"
        )

    def _other_keys(self, place: Place) -> list[str]:
        """Keys that the summary of its run has otherwise than it is to be."""
        summary = place.read(self.folder, "summary.json")
        constraints = self.config.objective.bias_constraints
        expected = {
            "learning_failure": None,
            "config_sha256": self.config.sha256(),
            "log_sha256": place.log_sha256,
            "constraint_logs_sha256": {
                other.name: log_sha256(read_manifests(Path(other.path)))
                for other in (constraints.logs if constraints is not None else ())
            },
        }
        return [key for key in expected if summary.get(key) != expected[key]]

    def command(self, place: Place) -> list[str]:
        config = place.write_config(self.name, self.config)
        arguments = ["train", str(place.log), "--config", config, "--out", str(place.out / self.folder)]
        return [*arguments, *(["--record", self.record] if self.record is not None else [])]

    def threads(self, place: Place) -> str | None:
        threads: str | None = place.read(self.folder, "environment.json").get("variables", {}).get(THREADS)
        return threads

    def result_text(self, place: Place) -> str:
        accuracy = place.read(self.folder, "summary.json").get("per_query_auc")
        return f"PerQueryAUC {'none' if accuracy is None else f'{accuracy:.4f}'}"

    def clean_up(self, place: Place) -> None:
        """Removes the checkpoints, which are most of its bytes."""
        shutil.rmtree(place.out / self.folder / "checkpoints", ignore_errors=True)


@dataclass(frozen=True)
class Sampling(Task):
    """Decisions of which rows to learn from."""

    owner: str
    config: SamplingConfig  # with the sidecar of its teacher
    needs: Sequence[Task] = ()  # the teacher of the experiment whose predictions it reads

    @property
    def label(self) -> str:
        return f"sampling {self.owner}"

    @property
    def sidecar(self) -> str:
        return f"replay-{settings_key(self.config)}"

    def is_made(self, place: Place) -> bool:
        return place.has_sidecar(self.sidecar)

    def command(self, place: Place) -> list[str]:
        config = place.write_config(f"sampling-{self.owner}-{settings_key(self.config)}", self.config)
        return ["sample", str(place.log), "--name", self.sidecar, "--config", config]


@dataclass(frozen=True)
class Tasks:
    """All tasks of an experiment that an arm needs, by name."""

    arms: Mapping[str, Sequence[Training]]  # for each arm and point of the sweep, one for each seed
    teachers: Mapping[str, Training]
    samplings: Mapping[str, Sampling]
    retrains: Sequence[Training] = ()

    def stages(self) -> tuple[Sequence[Task], Sequence[Task], Sequence[Task]]:
        """All tasks in three stages, of which each needs only those before it.

        The first seeds of all arms come before the next ones.
        """
        teachers = {one.label: one for one in self.teachers.values()}
        seeds = [run.seed for run in next(iter(self.arms.values()))]
        runs = [run for trainings in self.arms.values() for run in trainings] + [*self.retrains]
        runs.sort(key=lambda run: seeds.index(run.seed))
        return [*teachers.values()], [*self.samplings.values()], runs


def settings_key(config: StrictModel) -> str:
    """Hash of what is not a default in a configuration: a new key of the configuration changes nothing."""
    content = json.dumps(config.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def read_object(path: Path) -> dict[str, Any]:
    """Content of a JSON file; empty where there is no file yet, or something else in it."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
