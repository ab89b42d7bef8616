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
"""Function that returns the logits, float32 [N], of good rows under the current weights."""
ProgressCall = Callable[[int, dict[str, Any]], None]
"""Function of the position in the log and the metrics of the pass so far."""


class WatchedRun(Protocol):
    """Attributes of a run that observers use."""

    run_dir: Path
    config: TrainConfig
    schema: Schema
    inputs: Inputs
    state: TrainState
    position: Position
    background: Background


class Scored(NamedTuple):
    """N good rows of a log, at least one, with the predictions of record."""

    source: int  # 0: the log of the pass; from 1 on a constraint log
    batch: Batch
    logit: np.ndarray  # float32 [N], finite
    slices: Sequence[np.ndarray]  # for each family of bias constraints, int32 [N], -1 for no slice
    # For each further label of the log of the pass, float32 [N]: outcomes, NaN where unknown, and finite logits.
    labels: Mapping[str, tuple[np.ndarray, np.ndarray]] = {}


class Turn(NamedTuple):
    """Result of a batch, or of several batches that one call learned from.

    Under a label delay a batch has two turns: it is scored in one and learned from in the other.
    """

    is_new: bool  # whether the log's rows are scored here for the first time
    scored: Sequence[Scored]
    learned: int = 0  # number of good rows in steps that changed the weights
    terms: np.ndarray | None = None  # float64 [T], sum over these steps of loss terms times rows


class Observer:
    """Watches one run, without changing its results; a hook that is not overridden does nothing.

    Hooks are called in the order of the run's observers: what one writes into a line or a summary, later ones see.
    The first member of a group has all observers, the others those with ``on_all_workers``.

    Attributes:
        name: prefix of the names of ``checkpoint``'s arrays in the run's checkpoints.
        on_all_workers: whether the observer communicates with the other members.
    """

    name: ClassVar[str]
    on_all_workers: ClassVar[bool] = False

    def begin(self, run: WatchedRun, state: Mapping[str, np.ndarray]) -> None:
        """Begins, or resumes from a checkpoint: ``state`` is the result of ``checkpoint``, empty without one.

        Truncates files to the run's position. Raises InputError if they lack lines; KeyError or ValueError if
        ``state`` is of another version.
        """

    def batch(self, turn: Turn) -> None:
        """Called after each batch with its result, in the order of the log."""

    def window(self, line: dict[str, Any]) -> None:
        """Called at the end of a window with its line of metrics.jsonl; adds the observer's measurements."""

    def checkpoint(self) -> Arrays:
        """Completes the files up to the run's position; returns the observer's state, bit-identical in equal runs."""
        return {}

    def end(self, summary: dict[str, Any]) -> list[pa.Table]:
        """Called at the end of the log, with the content of summary.json; adds to it.

        Returns sums: rows of windows.parquet (``ctr.eval.windows``).
        """
        return []

    def close(self) -> None:
        """Closes files; also called when the run fails."""

    def warnings(self) -> list[str]:
        """Returns warnings, one line each, about parts of the model that the log could not train so far."""
        return []

    def wants_pause(self, inputs: Inputs) -> bool:
        """Returns whether the pass must pause after this batch for a call of ``pause``."""
        return False

    def pause(self, inputs: Inputs, score: Score) -> None:
        """Called between two batches, with no batch read ahead; the pass then continues where it stopped."""
