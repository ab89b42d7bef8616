"""Interface between a run and its observers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from ctr.data.batches import Batch
from ctr.data.reader import Rows
from ctr.data.schema import Schema
from ctr.training.config import TrainConfig
from ctr.training.inputs import Inputs
from ctr.training.run.files import Background
from ctr.training.run.position import Position
from ctr.training.state import TrainState

Arrays = dict[str, np.ndarray]
Score = Callable[[Rows], np.ndarray]
"""Returns the logits, float32 [N], that the weights give good rows."""
ProgressCall = Callable[[int, dict[str, Any]], None]
"""Gets the position in the log and the metrics of the pass so far."""


class WatchedRun(Protocol):
    """Interface of a run for observers."""

    run_dir: Path
    config: TrainConfig
    schema: Schema
    inputs: Inputs
    state: TrainState
    position: Position
    background: Background


class Scored(NamedTuple):
    """At least one good row of a log, N of them, with the predictions of record."""

    source: int  # 0: the log of the pass; from 1 on a constraint log
    batch: Batch
    logit: np.ndarray  # float32 [N], finite
    slices: Sequence[np.ndarray]  # by family of bias constraints int32 [N], -1 for no slice
    # For each further label of the log of the pass, float32 [N]: outcomes, NaN where unknown, and finite logits.
    labels: Mapping[str, tuple[np.ndarray, np.ndarray]] = {}


class Turn(NamedTuple):
    """Result of a batch, or of several that one call learned from.

    Under a label delay a batch has two turns: it is scored in one and learned from in the other.
    """

    is_new: bool  # whether the log's rows are scored here for the first time
    scored: Sequence[Scored]
    learned: int = 0  # good rows of the steps that changed the weights
    terms: np.ndarray | None = None  # float64 [T], of these steps the loss's terms times its rows, added up


class Observer:
    """Watches one run, without changing its results; a hook that is not overridden does nothing.

    Hooks are called in the order of the run's observers: what one writes into a line or a summary, later ones see.
    With several workers, the first has all observers, the others those with ``on_all_workers``.

    Attributes:
        name: prefix of the arrays of ``checkpoint`` in the run's checkpoints.
        on_all_workers: whether the observer communicates with the other workers.
    """

    name: ClassVar[str]
    on_all_workers: ClassVar[bool] = False

    def begin(self, run: WatchedRun, state: Mapping[str, np.ndarray]) -> None:
        """Begins, or resumes from a checkpoint: ``state`` is the result of ``checkpoint``, empty without one.

        Files are cut back to the run's position. Raises InputError where they lack lines; KeyError or
        ValueError where ``state`` is of another version.
        """

    def batch(self, turn: Turn) -> None:
        """Called after each batch, in the order of the log."""

    def window(self, line: dict[str, Any]) -> None:
        """Called at the end of a window with its line of metrics.jsonl; adds the observer's measurements."""

    def checkpoint(self) -> Arrays:
        """Completes the files up to the run's position; returns the observer's state, equal bits in equal runs."""
        return {}

    def end(self, summary: dict[str, Any]) -> list[pa.Table]:
        """Called at the end of the log, with the content of summary.json; adds to it, and returns sums.

        They are rows of windows.parquet (``ctr.eval.windows``).
        """
        return []

    def close(self) -> None:
        """Closes files; also called when the run fails."""

    def warnings(self) -> list[str]:
        """Lists warnings, a line each, about parts of the model that the log could not train so far."""
        return []

    def wants_pause(self, inputs: Inputs) -> bool:
        """Returns whether the pass must stop after this batch for a call of ``pause``."""
        return False

    def pause(self, inputs: Inputs, score: Score) -> None:
        """Called between two batches, with no batch read ahead; the pass then continues where it stopped."""
