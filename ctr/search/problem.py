"""What a search works on: prefixes of a log, the baseline with its space and costs, and experiments over them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ctr import __version__
from ctr.config import dump_yaml
from ctr.data.log import log_sha256, read_manifests, read_schema
from ctr.data.stream import Selection, read_selection
from ctr.data.time_range import TimeRange
from ctr.experiments.config import ArmConfig, ExperimentConfig, changed
from ctr.experiments.jobs import Failure
from ctr.experiments.measure import Operations
from ctr.experiments.run import Options, run_experiment
from ctr.io.errors import InputError
from ctr.io.files import make_folder, write_atomic_bytes
from ctr.search.config import SearchConfig
from ctr.search.record import BASELINE, SearchRecord, Tried
from ctr.search.space import Choice, Content, Space
from ctr.training.config import TrainConfig

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Cost = Callable[[Choice], float]  # of a candidate, in units of that of the base (FF 3.2)
Measure = Callable[[TrainConfig], float]  # cost of a configuration, in any unit above 0


def cost_of(space: Space, base: TrainConfig | Content, measure: Measure) -> Cost:
    """Costs over that of the base, kept once known; raise InputError where a configuration is not possible."""
    unit = measure(space.apply_values(base, {}))

    @cache
    def cost(choice: Choice) -> float:
        return measure(space.apply(base, choice)) / unit

    return cost


def counted(log: Path, purpose: str) -> Measure:
    """Counts the operations of a configuration for an example of a log.

    ``purpose`` is ``training``: to learn from an example, or ``serving``: to score it alone.
    """
    count, key = Operations(log), {"training": "train_flops", "serving": "inference_flops"}[purpose]
    return lambda config: float(count(config)[key])


@dataclass(frozen=True)
class Prefix:
    """First rows of what a configuration trains on."""

    end_us: int | None  # the first query time, in microseconds, that is not in it; None: it is everything
    rows: int

    @property
    def end(self) -> str | None:
        """The same time in ISO 8601."""
        if self.end_us is None:
            return None
        return (_EPOCH + timedelta(microseconds=self.end_us)).isoformat()


def find_prefix(log: Path, time_range: TimeRange, share: float) -> tuple[Prefix, int]:
    """Finds the prefix with a share of a log's rows, up to a query time: no query is divided.

    Returns it and the number of all rows. ``share``: above 0 and at most 1. Raises InputError: the log is damaged, has
    no row in the time range, or the prefix would have none.
    """
    manifests = read_manifests(log)
    blocks = read_selection(log, read_schema(log), manifests, Selection(time_range=time_range))
    times = np.concatenate([block.query_time for block in blocks] or [np.zeros(0, np.int64)])
    if not len(times):
        raise InputError(f"{log}: the log has no rows in the time range of the configuration")
    index = int(share * len(times))
    if index >= len(times):
        return Prefix(None, len(times)), len(times)
    end_us = int(times[index])
    rows = int(np.searchsorted(times, end_us))
    if not rows:
        raise InputError(
            f"{log}: no query ends within the first {share:.3g} of the {len(times)} rows; a larger prefix is required"
        )
    return Prefix(end_us, rows), len(times)


@dataclass(frozen=True)
class Problem:
    """A search, everything checked, and where and how its runs are made."""

    search: SearchConfig
    content: dict[str, Any]  # the baseline's configuration, as nested keys
    space: Space
    cost: Cost
    prefix: Prefix  # what the search reads
    rows: int  # of the log, in the configuration's time range
    log: Path
    out: Path
    options: Options

    def candidate(self, choice: Choice | None) -> Tried:
        """Makes a candidate an arm; None, and whatever is configured like it, is the baseline."""
        if choice is None or self.space.apply(self.content, choice) == self.space.apply_values(
            self.content, {}
        ):
            return Tried(name=BASELINE, values={}, cost=1.0)
        values = self.space.values(choice)
        return Tried(name=f"c{self.space.index(choice)}", values=values, cost=self.cost(choice))

    def arm(self, candidate: Tried, title: str, note: str = "") -> ArmConfig:
        changes = self.space.changes(self.content, candidate.values)
        return ArmConfig(title=title, note=note, set=changes)

    def on_prefix(self) -> dict[str, Any]:
        """Configuration of the baseline that reads the prefix alone, and keeps no predictions."""
        ended = {} if self.prefix.end is None else {"time_range.end": self.prefix.end}
        return changed(self.content, {**ended, "record_predictions": False})

    def replay(self, name: str, experiment: ExperimentConfig, costs: bool) -> dict[str, Failure]:
        """Makes the missing runs of an experiment in OUT/NAME, and writes OUT/NAME.yaml; returns what failed."""
        file = self.out / f"{name}.yaml"
        make_folder(file.parent)
        write_atomic_bytes(file, dump_yaml(experiment).encode())
        return run_experiment(file, self.log, self.out / name, replace(self.options, costs=costs))

    def record(self, chosen: Tried, found: dict[str, Any]) -> SearchRecord:
        """Record of the search and its result; ``found``: what its method adds to that."""
        search, space, prefix = self.search, self.space, self.prefix
        baseline = space.baseline(self.content)
        return SearchRecord(
            title=search.title,
            note=search.note,
            method=search.method,
            command=self.options.command,
            ctr_version=__version__,
            log=str(self.log.resolve()),
            log_sha256=log_sha256(read_manifests(self.log)),
            seed=search.seed,
            target=search.target,
            purpose=search.cost,
            space={decision.name: list(decision.choices) for decision in space.decisions},
            size=space.size,
            baseline=None if baseline is None else space.values(baseline),
            rows=self.rows,
            prefix_rows=prefix.rows,
            prefix_end=prefix.end,
            chosen=chosen.name,
            values=chosen.values,
            cost=chosen.cost,
            **found,
        )
