"""Targets of a batch: labels, weights and other inputs of a step except the ids, padded to one of a few sizes.

They are computed with NumPy, in the thread that reads ahead.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ctr.data.reader import Rows
from ctr.data.schema import label_column
from ctr.data.stream import TEACHER_LOGIT
from ctr.data.value_arrays import numbers_of_ids
from ctr.models.rows import STATISTICS, TableLayout, all_numbers, number_count
from ctr.objective.bias_constraints import Family, feature_slices
from ctr.objective.config import LabelConfig, ObjectiveConfig
from ctr.objective.pairs import Pairs, click_pairs

Targets = dict[str, np.ndarray]


def make_targets(
    config: ObjectiveConfig,
    families: Sequence[Family],
    rows: Rows,
    source: np.ndarray,
    capacity: int,
    pairs: Pairs | None = None,
    layouts: Sequence[TableLayout] = (),
) -> Targets:
    """Makes the targets of N rows, whole queries, padded to B = ``capacity`` rows with weight 0.

    ``source`` is 0 for a row of the training log, i for a row of the i-th constraint log. Returns ``query``, the index
    of each row's query, ``label``, ``weight`` (train weights) and ``own_weight`` (train weights, 0 for rows without a
    loss), [B]; with distillation ``teacher_logit``, [B], NaN without a teacher; with ranking ``pairs_clicked``,
    ``pairs_other`` and ``pairs_weight``, [P]; for each further label its ``target_columns``, [B]; for each family
    ``slice/NAME``, [B]; and if ``layouts`` have numeric features, their ``numbers``, [B, K], NaN where missing.
    """

    def padded(values: np.ndarray, filling: float, dtype: type) -> np.ndarray:
        result: np.ndarray = np.full(capacity, filling, dtype)
        result[: len(values)] = values
        return result

    own_weight = _own_weight(config, rows, source)
    begins = query_begins(rows, source)
    targets = {
        "query": padded(query_numbers(begins, len(rows)), capacity - 1, np.int32),
        "label": padded(rows.label, 0, np.float32),
        "weight": padded(rows.train_weight, 0, np.float32),
        "own_weight": padded(own_weight, 0, np.float32),
    }
    if config.distillation is not None:
        targets["teacher_logit"] = padded(rows.joined[TEACHER_LOGIT], np.nan, np.float32)
    if config.ranking is not None:
        pairs = rank_pairs(config, rows, source) if pairs is None else pairs
        targets |= {"pairs_clicked": pairs.clicked, "pairs_other": pairs.other, "pairs_weight": pairs.weight}
    for name, weights in label_targets(config, rows).items():
        targets[name] = padded(weights, 0, np.float32)
    for family in families:
        targets[f"slice/{family.name}"] = padded(feature_slices(family, rows.ids, source), -1, np.int32)
    if count := number_count(layouts):
        targets[STATISTICS] = np.full((capacity, count), np.nan, np.float32)
    for numbers in all_numbers(layouts):
        columns = targets[STATISTICS][: len(rows), numbers.first : numbers.first + numbers.size]
        if numbers.single is not None:
            columns[:, 0] = numbers_of_ids(rows.ids[:, numbers.single])
        else:
            ids, offsets = rows.multivalent[numbers.name]
            sizes = np.diff(offsets)
            whole = numbers_of_ids(ids)[np.repeat(sizes == numbers.size, sizes)]
            columns[sizes == numbers.size] = whole.reshape(-1, numbers.size)
    return targets


def rank_pairs(config: ObjectiveConfig, rows: Rows, source: np.ndarray) -> Pairs:
    """Returns the pairs that the rank loss compares among N rows, unpadded; no pairs without a rank loss."""
    if config.ranking is None:
        return Pairs(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32))
    ranking = config.ranking
    begins, weight = query_begins(rows, source), _own_weight(config, rows, source)
    ids = rows.query_id, rows.example_id
    return click_pairs(begins, rows.label, weight, *ids, ranking.max_pairs, ranking.query_exponent)


def query_begins(rows: Rows, source: np.ndarray) -> np.ndarray:
    """Returns the ascending indices of the first rows of queries, int64; one id in two logs counts as two queries."""
    return np.union1d(rows.query_begins(), np.flatnonzero(np.diff(source)) + 1)


def _own_weight(config: ObjectiveConfig, rows: Rows, source: np.ndarray) -> np.ndarray:
    """Returns train weights, float32 [N], 0 for rows of constraint logs with ``own_loss: false``."""
    constraints = config.bias_constraints
    if constraints is None or not constraints.logs:
        return rows.train_weight
    counts = np.array([True, *(log.own_loss for log in constraints.logs)])
    return rows.train_weight * counts[source]


def whole_batch_weight(config: ObjectiveConfig, rows: Rows, source: np.ndarray) -> np.ndarray:
    """Computes ``ctr.objective.losses.normalizer`` of a whole batch, a float32 scalar."""
    weight = _own_weight(config, rows, source).sum(dtype=np.float64)
    constraints = config.bias_constraints
    if constraints is not None and constraints.logs and not weight > 0:
        weight = rows.train_weight.sum(dtype=np.float64)
    return np.array(weight, np.float32)


def query_numbers(begins: np.ndarray, rows: int) -> np.ndarray:
    """Returns the index of each row's query, int64 [rows], from the first rows of queries."""
    is_begin = np.zeros(rows, np.int64)
    is_begin[begins[begins > 0]] = 1
    return np.cumsum(is_begin)


def target_signature(
    config: ObjectiveConfig,
    families: Sequence[Family],
    layouts: Sequence[TableLayout] = (),
    is_part: bool = False,
) -> dict[str, tf.TensorSpec]:
    """Returns the specs of the arrays that ``make_targets`` returns, by name.

    A part of a batch also has ``batch_weight`` (``whole_batch_weight``).
    """
    vector, indices = tf.TensorSpec([None], tf.float32), tf.TensorSpec([None], tf.int32)
    signature = {"query": indices, "label": vector, "weight": vector, "own_weight": vector}
    if config.distillation is not None:
        signature["teacher_logit"] = vector
    if config.ranking is not None:
        signature |= {"pairs_clicked": indices, "pairs_other": indices, "pairs_weight": vector}
    signature |= {column: vector for name in config.labels for column in target_columns(name)}
    if is_part:
        signature["batch_weight"] = tf.TensorSpec([], tf.float32)
    signature |= {f"slice/{family.name}": indices for family in families}
    if count := number_count(layouts):
        signature[STATISTICS] = tf.TensorSpec([None, count], tf.float32)
    return signature


# Further labels of a row, such as a conversion after a click.


def target_columns(name: str) -> tuple[str, str]:
    """Returns the names of the two targets with the row weights of a label's positives and negatives."""
    return f"positive:{name}", f"negative:{name}"


def label_outcomes(label: LabelConfig, name: str, rows: Rows) -> np.ndarray:
    """Returns the values of a further label, float32 [N]: 1, 0, or NaN if unknown or excluded by ``given``."""
    outcomes = rows.joined[label_column(name)]
    return outcomes if label.given == "all" else np.where(rows.label > 0, outcomes, np.float32(np.nan))


def label_targets(config: ObjectiveConfig, rows: Rows) -> dict[str, np.ndarray]:
    """Returns, by ``target_columns``, the train weights of each label's positives and negatives, float32 [N]."""
    targets = {}
    for name, label in config.labels.items():
        outcomes = label_outcomes(label, name, rows)
        for column, value in zip(target_columns(name), (1, 0), strict=True):
            targets[column] = np.where(outcomes == value, rows.train_weight, np.float32(0))
    return targets
