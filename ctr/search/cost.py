"""Costs of candidates, in units of that of the configuration that they change (FF 3.2)."""

from collections.abc import Callable
from pathlib import Path

from ctr.data.log import read_manifests, read_schema
from ctr.data.schema import Schema
from ctr.experiments.measure import TouchedFeature, first_batches, touched_features, touched_tables
from ctr.experiments.run import Progress
from ctr.search.config import CostConfig
from ctr.search.space import Choice, Content, Space
from ctr.search.times import LayerTimes
from ctr.training.analysis.flops import count_flops
from ctr.training.config import TrainConfig
from ctr.training.logs import resolve

Measure = Callable[[TrainConfig], float]  # cost of a configuration, in any unit above 0


class Cost:
    """Cost of each candidate over that of the base, kept once it is known."""

    def __init__(self, space: Space, base: TrainConfig | Content, measure: Measure) -> None:
        self._space = space
        self._base = base
        self._measure = measure
        self._unit = measure(space.apply_values(base, {}))
        self._known: dict[Choice, float] = {}

    def of(self, choice: Choice) -> float:
        """Cost of a candidate; raises InputError where its configuration is not possible."""
        if choice not in self._known:
            self._known[choice] = self._measure(self._space.apply(self._base, choice)) / self._unit
        return self._known[choice]


class Operations:
    """Counts the operations of a configuration for an example of a log, as ``ctr.experiments.measure`` does.

    The first batches of the log tell how many embeddings an example needs. ``purpose`` is ``training``: to
    learn from an example, or ``serving``: to score it alone.
    """

    def __init__(self, log: Path, purpose: str) -> None:
        self._log = log
        self._purpose = purpose
        self._manifests = read_manifests(log)
        self._schema: Schema = read_schema(log)
        self._touched: dict[tuple[object, ...], tuple[int, int, dict[str, TouchedFeature]]] = {}

    def __call__(self, config: TrainConfig) -> float:
        config = resolve(config, self._schema, self._manifests)
        rows, batches, touched = self._first_batches(config)
        layouts = config.table_layouts(self._schema)
        flops = count_flops(config, layouts, touched_tables(layouts, touched, rows), rows / batches)
        return flops.train if self._purpose == "training" else flops.inference

    def _first_batches(self, config: TrainConfig) -> tuple[int, int, dict[str, TouchedFeature]]:
        """Rows of the first batches, their number and what they touch; the same for every architecture."""
        key = (config.batch.model_dump_json(), config.time_range, config.ids.shared_rows)
        if key not in self._touched:
            batches = first_batches(self._log, self._schema, config)
            every = config.model.model_copy(update={"without": ()})
            layouts = config.model_copy(update={"model": every}).table_layouts(self._schema)
            rows = sum(len(batch.rows) for batch in batches)
            touched = touched_features(layouts, batches, config.batch.rows)
            self._touched[key] = rows, len(batches), touched
        return self._touched[key]


def make_cost(
    config: CostConfig, space: Space, base: Content, log: Path, times: Path, progress: Progress | None = None
) -> Cost:
    """Makes the costs that a search has asked for.

    ``times``: the file of measured times, which is written where it is not there yet; ``progress`` is then
    called with a line. Raises InputError: the log or the file is damaged, or the base does not fit the log.
    """
    if config.measure == "flops":
        return Cost(space, base, Operations(log, config.purpose))
    if not times.exists():
        from ctr.search.measure_times import write_times

        write_times(times, log, space, base, progress)
    return Cost(space, base, LayerTimes(times, config.purpose, read_schema(log), read_manifests(log)))
