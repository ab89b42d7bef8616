"""Rows of a log that come again for a further label, some time after their query, together with newer ones.

Nothing of the click is learned from them again: for all but the labels they have the weight 0. A row comes again with
the first batch whose last query is later than the row's label is known, beside those of constraint logs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ctr.data.batches import Batch, Interleaved, set_rejects_apart
from ctr.data.reader import Rows
from ctr.objective.labels import KINDS, label_targets, target_column, target_columns
from ctr.training.config import TrainConfig
from ctr.training.retrain import learned_batch


def learned_rows(config: TrainConfig, batch: Batch) -> Batch:
    """Returns a batch as a run learns from it when its clicks are known: also for the labels that are known by then."""
    taken = learned_batch(batch, config.retrain)
    if not config.objective.labels:
        return taken
    return replace(taken, rows=_with_label_targets(config, taken.rows, config.label_delay))


def _with_label_targets(config: TrainConfig, rows: Rows, at: float) -> Rows:
    """Adds to N rows the columns that the labels' losses need, float32 [N], when they come at some time."""
    columns = {}
    for name, label in config.objective.labels.items():
        times = config.label_delay, *label.delay.returns
        found = (np.zeros(len(rows), bool),) * 2
        if at in times:
            since = max((one for one in times if one < at), default=None)
            found = label_targets(label, name, rows.joined, rows.label > 0, at, since)
        for kind, come in zip(KINDS, found, strict=True):
            columns[target_column(name, kind)] = np.where(come, rows.train_weight, np.float32(0))
    return replace(rows, joined={**rows.joined, **columns})


class ReturningRows:
    """Rows of a log that come again a fixed time after their query, in the order of the log."""

    def __init__(
        self,
        config: TrainConfig,
        at: float,
        blocks: Iterable[Rows],
        set_aside: Sequence[tuple[int, int]],
        where: str,
    ) -> None:
        """Begins at the first of ``blocks``, which have the columns of the log's labels; ``where`` names it in errors.

        ``at``: seconds after the query's time, one of ``TrainConfig.label_returns``. ``set_aside``: ranges of rows,
        [begin, end), that nothing is learned from.
        """
        batch = config.batch
        self._config, self._at, self._set_aside = config, at, set_aside
        self._later_us = round((at - config.label_delay) * 1_000_000)
        # As many as a batch has, for the rows come again as fast as others come.
        self._rows = Interleaved(blocks, batch.rows, batch.max_query_rows, where)

    def until(self, time: int) -> Batch | None:
        """Returns those whose label is known when rows of a query time are learned from, in microseconds, or None."""
        given = self._rows.until(time - self._later_us - 1)
        if given is None:
            return None
        whole = set_rejects_apart(given)
        taken = learned_batch(whole, self._config.retrain)
        rows = _with_label_targets(self._config, taken.rows, self._at)
        come = np.zeros(len(rows), bool)
        for column in target_columns(self._config.objective):
            come |= rows.joined[column] > 0
        for begin, end in self._set_aside:
            come &= (rows.position < begin) | (rows.position >= end)
        rows = rows.keep(come)
        silent = replace(rows, train_weight=np.zeros_like(rows.train_weight))
        return Batch(silent, whole.rejects.slice(0, 0), whole.end)
