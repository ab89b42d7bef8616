"""Rows of a log that come again for a further label, some time after their query, together with newer ones.

Nothing of the click is learned from them again: for all but the labels they have the weight 0. A row comes again with
the first batch whose last query is later than the row's label is known, beside those of constraint logs.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from ctr.data.batches import Batch, Interleaved, set_rejects_apart
from ctr.data.labels import label_columns
from ctr.data.reader import Rows
from ctr.objective.labels import KINDS, label_targets, target_column, target_columns
from ctr.training.config import TrainConfig
from ctr.training.retrain import learned_batch


def sidecar_columns(config: TrainConfig) -> list[str]:
    """Names the columns of the sidecar of labels that a run needs."""
    return [column for name in config.objective.labels for column in label_columns(name)]


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


def returning_rows(config: TrainConfig, at: float, blocks: Iterable[Rows]) -> Callable[[int], Batch | None]:
    """Makes rows of a log come again, in the order of the log, as a function of time.

    Of a query time in microseconds, whose rows are learned from, it returns the next ones whose label is known by then.

    Args:
        at: seconds after the query's time, one of ``TrainConfig.label_returns``.
        blocks: of the log, with the columns of its labels, from the first row that comes.
    """
    later_us = round((at - config.label_delay) * 1_000_000)
    # As many as a batch has, for the rows come again as fast as others come.
    interleaved = Interleaved(blocks, config.batch.rows, config.batch.max_query_rows)

    def until(time: int) -> Batch | None:
        given = interleaved.until(time - later_us - 1)
        if given is None:
            return None
        whole = set_rejects_apart(given)
        rows = _with_label_targets(config, learned_batch(whole, config.retrain).rows, at)
        come = np.logical_or.reduce([rows.joined[column] > 0 for column in target_columns(config.objective)])
        for begin, end in config.skip:
            come &= (rows.position < begin) | (rows.position >= end)
        rows = rows.keep(come)
        silent = replace(rows, train_weight=np.zeros_like(rows.train_weight))
        return Batch(silent, whole.rejects.slice(0, 0), whole.end, whole.last_query)

    return until
