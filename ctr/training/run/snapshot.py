"""A model between two batches: what of a run is needed to predict, without what only training needs.

No duals, accumulators, statistics or metrics: a snapshot is what an export is made of.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ctr.data.schema import Schema
from ctr.io.documents import read_json_object
from ctr.io.errors import InputError
from ctr.models.click_model import ClickModel
from ctr.models.rows import TableLayout, check_table
from ctr.training.config import TrainConfig
from ctr.training.device import resolve_compute_dtype
from ctr.training.run import checkpoint
from ctr.training.run.directory import read_run_model
from ctr.training.run.run import Run
from ctr.training.state import create_network, dense_weights


@dataclass(frozen=True)
class Snapshot:
    """The weights of a run at one position.

    Attributes:
        run_dir: the run directory.
        config: of the run.
        schema: the features.
        compute_dtype: in which the run computes, ``float32`` or ``bfloat16``.
        layouts: of the tables.
        tables: for each layout its variable, float32 [rows, columns]; while training goes on, its own.
        network: everything but the tables, with weights of its own and nothing that XLA compiles.
        progress: where the run stood (``ctr.training.run.run.Run.progress``).
    """

    run_dir: Path
    config: TrainConfig
    schema: Schema
    compute_dtype: str
    layouts: tuple[TableLayout, ...]
    tables: Sequence[tf.Variable]
    network: ClickModel
    progress: Mapping[str, Any]

    @property
    def examples(self) -> int:
        """The position in the log."""
        return int(self.progress["position"]["examples"])

    @property
    def alpha2(self) -> float:
        """The weight of the crosses at this position."""
        position = self.progress["position"]
        return self.config.ramps_at(position["trained_examples"], position.get("trained_before"))["alpha2"]


Exporter = Callable[[Snapshot], object]
"""What the training loop calls for each export that the configuration asks for."""


def take_snapshot(run: Run) -> Snapshot:
    """The weights of a run that is training. They are to be used before its next step."""
    state, compute_dtype = run.state, resolve_compute_dtype(run.config)
    weights = {name: variable.numpy() for name, variable in dense_weights(state.network).items()}
    network = _network(state.layouts, run.config, compute_dtype, weights)
    parts = (state.layouts, state.tables, network, run.progress())
    return Snapshot(run.run_dir, run.config, run.schema, compute_dtype, *parts)


def read_snapshot(run_dir: Path, examples: int | None = None) -> Snapshot:
    """The weights in a run's checkpoint of position ``examples``, or in its newest one.

    Raises:
        InputError: no run directory, a file of it missing or damaged, or no such checkpoint.
    """
    config, schema = read_run_model(run_dir)
    path = run_dir / "environment.json"
    compute_dtype = read_json_object(path, f"{path}: no such file").get("compute_dtype")
    if compute_dtype not in ("float32", "bfloat16"):
        raise InputError(f"{path}: compute_dtype is {compute_dtype!r}; allowed: float32, bfloat16")
    layouts = config.table_layouts(schema)
    arrays, progress = checkpoint.read(run_dir / "checkpoints", examples)
    weights = {name.removeprefix("weights|"): array for name, array in arrays.items()}
    try:
        tables = [tf.Variable(_table(layout, weights)) for layout in layouts]
        network = _network(layouts, config, compute_dtype, weights)
    except (KeyError, ValueError) as error:
        raise InputError(f"{run_dir}: the checkpoint is of another model than config.yaml: {error}") from None
    return Snapshot(run_dir, config, schema, compute_dtype, layouts, tables, network, progress)


def _table(layout: TableLayout, weights: Mapping[str, np.ndarray]) -> np.ndarray:
    table = weights[f"rows/{layout.name}"]
    check_table(table, layout)
    return table


def _network(
    layouts: tuple[TableLayout, ...],
    config: TrainConfig,
    compute_dtype: str,
    weights: Mapping[str, np.ndarray],
) -> ClickModel:
    network = create_network(layouts, config, compute_dtype, compiled=False)
    for name, variable in dense_weights(network).items():
        variable.assign(weights[name])
    network.drop_rank_head()
    return network
