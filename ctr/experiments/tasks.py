"""The tasks of an experiment: trainings, samplings of its log, and loops in which runs serve (FF 7.3, table 3).

::

    OUT/configs/NAME-seed-S-HASH.yaml   the configuration of a training, or of a sampling
    OUT/runs/NAME-seed-S-HASH/          a run directory, without checkpoints once nothing goes on from there
    OUT/loops/NAME-seed-S-HASH/         what ``ctr simulate --policy`` writes, without checkpoints once it is finished
    OUT/failures/NAME-seed-S.txt        the last lines of the errors of a task that failed

The hash is of what is not a default in the configuration: an arm that is changed gets another folder. A teacher's
predictions and the decisions of a sampling become sidecars of the log, ``replay-...``: several experiments share them.
"""

import hashlib
import json
import shutil
from abc import ABC, abstractmethod
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
from ctr.simulator.closed_loop import LOOP_FILE
from ctr.simulator.folders import ORIGIN_FILE
from ctr.training.config import TrainConfig

THREADS = "TF_NUM_INTRAOP_THREADS"
"""The variable with the number of TensorFlow's threads, on which the bits of a run depend."""


@dataclass(frozen=True)
class Place:
    """Where an experiment is made.

    Attributes:
        log: the log, absolute.
        manifests: the manifests of its partitions.
        out: the folder of the experiment, absolute.
    """

    log: Path
    manifests: Sequence[Manifest]
    out: Path

    @cached_property
    def log_sha256(self) -> str:
        """Identifies what the log holds."""
        return log_sha256(self.manifests)

    def has_sidecar(self, name: str) -> bool:
        """Whether a sidecar has every partition of the log."""
        folder = sidecar_folder(self.log, name)
        return all((folder / f"{manifest.name}.json").is_file() for manifest in self.manifests)

    def write_config(self, name: str, config: StrictModel) -> str:
        """Writes the configuration of a task; returns its path."""
        path = self.out / "configs" / f"{name}.yaml"
        write_atomic_bytes(path, dump_yaml(config).encode())
        return str(path)


class Task(ABC):
    """What an experiment makes by one command of ``ctr``, in a process of its own."""

    needs: Sequence["Task"] = ()
    """The tasks without which it cannot be done."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Its name for people, unlike that of any other task."""

    @property
    def failure(self) -> str:
        """The file with the errors of a task that failed, relative to the folder of the experiment."""
        return f"failures/{self.label.replace(' ', '-')}.txt"

    @abstractmethod
    def is_made(self, place: Place) -> bool:
        """Whether its results are there."""

    def what_lacks(self, place: Place) -> str:
        """Why it is not made though its command succeeded, for people."""
        return "its results are not in the directory of the experiment"

    @abstractmethod
    def command(self, place: Place) -> list[str]:
        """The arguments of ``ctr``, after writing the configuration that they name."""

    def threads(self, place: Place) -> str | None:
        """The threads that it began with, if it did: others would change the bits of a run, which it refuses."""
        return None

    def result_text(self, place: Place) -> str:
        """What it showed, in a few words; empty where there is nothing to show."""
        return ""

    def clean_up(self, place: Place) -> None:  # noqa: B027
        """Removes what nothing goes on from, once it is made."""


@dataclass(frozen=True)
class Training(Task):
    """A training of an arm, or of a teacher.

    Attributes:
        owner: the name of the arm, or ``teacher-NAME``.
        seed: the seed of the run.
        config: the configuration of the run.
        needs: the teacher and the sampling that it learns from.
        record: the sidecar that its predictions become; None: none.
        loop_days: the number of days that it serves after the log; None: it ends with the log.
    """

    owner: str
    seed: int
    config: TrainConfig
    needs: Sequence[Task] = ()
    record: str | None = None
    loop_days: int | None = None

    @property
    def label(self) -> str:
        return f"{self.owner} seed {self.seed}"

    @property
    def name(self) -> str:
        """The name of its run directory within ``runs``."""
        return f"{self.owner}-seed-{self.seed}-{settings_key(self.config)}"

    @property
    def folder(self) -> str:
        """The run directory, relative to the folder of the experiment."""
        return f"runs/{self.name}"

    @property
    def loop(self) -> "Loop | None":
        """The loop in which it serves; None: it does not."""
        return None if self.loop_days is None else Loop(self, self.loop_days)

    def is_made(self, place: Place) -> bool:
        """Whether it has learned from the whole log under its configuration, and recorded what it is to record."""
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
        """What the summary of its run has otherwise than it is to be."""
        summary = read_object(place.out / self.folder / "summary.json")
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
        environment = read_object(place.out / self.folder / "environment.json")
        threads: str | None = environment.get("variables", {}).get(THREADS)
        return threads

    def result_text(self, place: Place) -> str:
        accuracy = read_object(place.out / self.folder / "summary.json").get("per_query_auc")
        return f"PerQueryAUC {'none' if accuracy is None else f'{accuracy:.4f}'}"

    def clean_up(self, place: Place) -> None:
        """Removes the checkpoints, which are most of its bytes, unless its loop still has to begin with one."""
        if self.loop is None or self.loop.is_made(place):
            shutil.rmtree(place.out / self.folder / "checkpoints", ignore_errors=True)


@dataclass(frozen=True)
class Sampling(Task):
    """Decisions of which rows to learn from.

    Attributes:
        owner: the name of the sampling.
        config: the configuration of the sampling, with the sidecar of its teacher.
        needs: the teacher of the experiment whose predictions it reads, if any.
    """

    owner: str
    config: SamplingConfig
    needs: Sequence[Task] = ()

    @property
    def label(self) -> str:
        return f"sampling {self.owner}"

    @property
    def sidecar(self) -> str:
        """The name of the sidecar with the decisions."""
        return f"replay-{settings_key(self.config)}"

    def is_made(self, place: Place) -> bool:
        return place.has_sidecar(self.sidecar)

    def command(self, place: Place) -> list[str]:
        config = place.write_config(f"sampling-{self.owner}-{settings_key(self.config)}", self.config)
        return ["sample", str(place.log), "--name", self.sidecar, "--config", config]


class Loop(Task):
    """A run that serves the days after the log and learns on.

    It begins with the last checkpoint of its run, which is kept until the loop is finished. One that has served another
    number of days, or after another log, begins anew, as does its run where the checkpoint is gone by then.

    Args:
        run: the training whose run serves.
        days: the number of days to serve.
    """

    def __init__(self, run: Training, days: int) -> None:
        self.needs = (run,)
        self.folder = f"loops/{run.name}"
        self._run = run
        self._days = days

    @property
    def label(self) -> str:
        return f"{self._run.label} loop"

    def is_made(self, place: Place) -> bool:
        """Whether its run is made, and has served its days after this log."""
        served = len(self._served(place)) == self._days and self._is_after_log(place)
        return served and self._run.is_made(place)

    def make_ready(self, place: Place) -> None:
        """Removes what keeps it from running: another loop in its folder, or the summary of a run without checkpoints.

        A loop is another one when it is of another log, of more days, or ended with fewer. Without its summary a run is
        trained again, to the same bits, and not taken for finished before it is.
        """
        folder, run_dir = place.out / self.folder, place.out / self._run.folder
        goes_on = _has_checkpoint(folder / "run") and len(self._served(place)) <= self._days
        if folder.exists() and not (goes_on and self._is_after_log(place)):
            shutil.rmtree(folder)
        if not folder.exists() and not _has_checkpoint(run_dir):
            (run_dir / "summary.json").unlink(missing_ok=True)

    def command(self, place: Place) -> list[str]:
        arguments = ["simulate", "--policy", str(place.out / self._run.folder), "--log", str(place.log)]
        return [*arguments, "--days", str(self._days), "--out", str(place.out / self.folder)]

    def threads(self, place: Place) -> str | None:
        return self._run.threads(place)

    def result_text(self, place: Place) -> str:
        days = self._served(place)
        ads, queries = (sum(day[key] for day in days) for key in ("examples", "queries"))
        return f"{ads / queries:.3f} ads per query" if queries else "no query"

    def clean_up(self, place: Place) -> None:
        """Removes its checkpoints, which are most of its bytes, and those of its run."""
        shutil.rmtree(place.out / self.folder / "run" / "checkpoints", ignore_errors=True)
        self._run.clean_up(place)

    def _served(self, place: Place) -> list[dict[str, Any]]:
        days: list[dict[str, Any]] = read_object(place.out / self.folder / LOOP_FILE).get("days", [])
        return days

    def _is_after_log(self, place: Place) -> bool:
        origin = read_object(place.out / self.folder / ORIGIN_FILE)
        return origin.get("log_sha256") == place.log_sha256


@dataclass(frozen=True)
class Tasks:
    """All tasks of an experiment.

    Attributes:
        arms: for each arm, and each point of the sweep, its trainings, one for each seed.
        teachers: the trainings of the teachers that an arm needs, by the teacher's name.
        samplings: those that an arm needs, by name.
    """

    arms: Mapping[str, Sequence[Training]]
    teachers: Mapping[str, Training]
    samplings: Mapping[str, Sampling]

    def runs(self) -> list[Training]:
        """The trainings of all arms, the first seeds of all arms before the next ones."""
        seeds = [run.seed for run in next(iter(self.arms.values()))]
        runs = [run for trainings in self.arms.values() for run in trainings]
        return sorted(runs, key=lambda run: seeds.index(run.seed))

    def loops(self) -> list[Loop]:
        """The loops of the trainings that serve, in their order."""
        return [loop for run in self.runs() if (loop := run.loop) is not None]

    def stages(self) -> tuple[Sequence[Task], ...]:
        """All tasks in four stages, of which each needs only those before it."""
        teachers = {one.label: one for one in self.teachers.values()}
        return [*teachers.values()], [*self.samplings.values()], self.runs(), self.loops()


def settings_key(config: StrictModel) -> str:
    """Tells configurations apart, by what is not a default: a new key of the configuration changes nothing."""
    content = json.dumps(config.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def read_object(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty where there is no file yet, or something else in it."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _has_checkpoint(run_dir: Path) -> bool:
    return next((run_dir / "checkpoints").glob("*/state.json"), None) is not None
