"""Importance of features: the increase of the loss of rows when a feature is hidden from the model.

At eight positions of the second half of a pass, the next rows of the log, not learned from yet, are scored
with the current weights, and again with each feature hidden:

    shared row   for a feature with growing ids: each id is replaced by one that is new to the model and is scored
                 with a shared row of the feature
    shuffled     for a feature with ``buckets``, which has no such row: each row gets the ids of another row

The differences between the two losses of each row are summed by query bucket, for paired intervals.

Shuffling: Breiman, "Random Forests", Machine Learning 45 (2001), section 10; Fisher, Rudin, Dominici, "All Models are
Wrong, but Many are Useful", JMLR 20 (2019).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.data.batches import whole_query_batches
from ctr.data.reader import Rows, join_rows, rows_of_table
from ctr.data.schema import Schema
from ctr.data.shards import shard_schema
from ctr.data.stream import read_selection
from ctr.data.value_arrays import offsets_of, places_of
from ctr.eval.arrays import row_logloss
from ctr.eval.importance import SHARED, SHUFFLED
from ctr.eval.rows import scored_rows
from ctr.eval.states import BUCKETS
from ctr.eval.windows import Sums
from ctr.models.rows import feature_names
from ctr.training.inputs import Inputs, selection_of
from ctr.training.observers.observer import Arrays, Observer, Score, WatchedRun

_POSITIONS = 8
_SHARE = 1 / 4
"""The maximum share of a log's rows that are scored."""
_SCORES = 8
"""The maximum number of scorings per row of the log, so that many features do not take longer than the pass."""
_UNKNOWN_ID = 0x6A09E667F3BCC908
"""A fingerprint that no value of a log has, except one in 2^64."""


class Importance(Observer):
    """Measures the importance of features at several positions of a pass that goes to the end of its log."""

    name = "importance"
    on_all_workers = True

    def begin(self, run: WatchedRun, state: Mapping[str, np.ndarray]) -> None:
        self._run, self._measured = run, dict(state)
        self._plan: tuple[list[int], int] | None = None

    def wants_pause(self, inputs: Inputs) -> bool:
        """Returns whether importance has not been measured yet at the last planned position that was reached."""
        self._plan = self._plan or plan(inputs)
        passed = [target for target in self._plan[0] if target <= self._run.position.examples]
        if not passed or self._run.position.examples >= inputs.log.rows:
            return False
        return not (self._measured and (self._measured["position"] >= passed[-1]).any())

    def pause(self, inputs: Inputs, score: Score) -> None:
        _, rows = self._plan or plan(inputs)
        new = measure(self._run, inputs, score, rows)
        if not self._measured:
            self._measured = {name: array[np.newaxis] for name, array in new.items()}
            return
        # If the log has grown, only the last positions count.
        self._measured = {
            name: np.append(self._measured[name], [array], axis=0)[-_POSITIONS:]
            for name, array in new.items()
        }

    def checkpoint(self) -> Arrays:
        return self._measured

    def end(self, summary: dict[str, Any]) -> list[pa.Table]:
        if not self._measured:
            return []
        sums = Sums()
        sums.add_importance(self._measured)
        return [sums.table()]


def plan(inputs: Inputs) -> tuple[list[int], int]:
    """Returns the positions of measurements and the number of rows at each; no positions if importance is off."""
    config, begin = inputs.config, 0
    selected = [manifest for manifest in inputs.log.manifests if inputs.selects(manifest)]
    if selected:
        begin = sum(manifest.rows for manifest in inputs.log.manifests if manifest.end <= selected[0].start)
    total = sum(manifest.rows for manifest in selected)
    most = total * min(_SHARE, _SCORES / len(inputs.schema.features))
    rows = int(min(config.metrics.importance_rows, most)) // _POSITIONS
    if not rows:
        return [], 0
    return [begin + total // 2 + index * total // (2 * _POSITIONS) for index in range(_POSITIONS)], rows


def measure(run: WatchedRun, inputs: Inputs, score: Score, most: int) -> Arrays:
    """Measures importance on at most ``most`` rows at the run's position; returns arrays of ``ctr.eval.importance``."""
    position = run.position.examples
    used = feature_names(run.state.layouts)
    names = [feature.name for feature in inputs.schema.features if feature.name in used]
    rows = _next_rows(inputs, position, most)
    ways, hidden = zip(*(without_feature(rows, inputs.schema, name) for name in names), strict=True)
    # In one call: a call of the compiled function costs as much as a thousand rows.
    logit, *logits = np.split(score(join_rows([rows, *hidden])), len(names) + 1)
    scored = scored_rows(rows.label, logit, rows.metric_weight, rows.query_id)

    def by_bucket(values: np.ndarray) -> np.ndarray:
        return np.bincount(scored.bucket, scored.weight * values, BUCKETS)

    arrays = {
        "position": np.array(position),
        "rows": np.array(len(rows)),
        "weight": by_bucket(np.ones(len(scored.weight))),
        "loss": by_bucket(scored.loss),
    }
    for way, name, logit in zip(ways, names, logits, strict=True):
        loss = row_logloss(scored.label, logit[scored.has_weight].astype(np.float64))
        arrays[f"{way}/{name}"] = by_bucket(loss - scored.loss)
    return arrays


def _next_rows(inputs: Inputs, position: int, most: int) -> Rows:
    """Reads the good rows of the next whole queries, up to ``most`` rows; returns no rows at the end of the log."""
    selection = replace(selection_of(inputs, position), teacher=None)
    blocks = read_selection(inputs.log.path, inputs.schema, inputs.log.manifests, selection, position)
    for batch in whole_query_batches(blocks, most, inputs.config.batch.max_query_rows):
        if len(batch.rows):
            return batch.rows
    return rows_of_table(shard_schema(inputs.schema).empty_table(), inputs.schema, position)


def without_feature(rows: Rows, schema: Schema, name: str) -> tuple[str, Rows]:
    """Returns the method of hiding a feature, ``SHARED`` or ``SHUFFLED``, and the rows with the feature hidden."""
    grows = schema.by_name[name].buckets is None
    order = np.roll(np.arange(len(rows)), len(rows) // 2)
    if name in rows.multivalent:
        values, offsets = rows.multivalent[name]
        if grows:
            changed = np.full_like(values, _UNKNOWN_ID), offsets
        else:
            lengths = np.diff(offsets)[order]
            changed = values[places_of(offsets[:-1][order], lengths)], offsets_of(lengths)
        without = replace(rows, multivalent={**rows.multivalent, name: changed})
    else:
        ids, column = rows.ids.copy(), schema.single_valued.index(name)
        ids[:, column] = _UNKNOWN_ID if grows else ids[order, column]
        without = replace(rows, ids=ids)
    return SHARED if grows else SHUFFLED, without
