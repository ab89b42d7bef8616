"""The functions of an exported model: from raw strings and numbers, or from ids, to predictions.

``predict(features)``
    raw columns -> ``p`` and ``logit``.
``predict_ids(ids)``
    ids as a log holds them -> the same; so that logs are scored, which have no raw columns.

All are pure TensorFlow operations without code of XLA or of the host, so that any TensorFlow runtime serves them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from ctr.data.schema import Cross, Number, Schema
from ctr.data.transform import transform_tensors
from ctr.models.embeddings import look_up, split_columns
from ctr.models.rows import TableLayout
from ctr.training.snapshot import Snapshot

Ids = Mapping[str, tf.Tensor | tf.RaggedTensor]
"""By feature, int32 [N], or RaggedTensor [N, None] of a multivalent one."""

PACKED_IDS = "ids"


def needed_schema(schema: Schema, names: Sequence[str]) -> Schema:
    """The named features, and the parts of those that are crosses."""
    wanted = set(names)
    for name in names:
        feature = schema.by_name[name]
        if isinstance(feature, Cross):
            wanted.update(feature.of)
    return Schema(features=tuple(feature for feature in schema.features if feature.name in wanted))


def source_specs(schema: Schema) -> dict[str, tf.TensorSpec]:
    """The raw columns that features are made of, [N] each: numbers as float32, everything else as strings."""
    numbers = {feature.source for feature in schema.features if isinstance(feature, Number)}
    return {
        source: tf.TensorSpec([None], tf.float32 if source in numbers else tf.string, name=source)
        for source in schema.sources
    }


def packed_specs(schema: Schema) -> dict[str, tf.TensorSpec]:
    """The ids of N rows as a log holds them.

    ``ids``, int32 [N, F], of the single-valued features; for each multivalent feature its ``NAME.values``, int32 [V],
    row after row, and ``NAME.lengths``, int32 [N].
    """
    specs = {PACKED_IDS: tf.TensorSpec([None, len(schema.single_valued)], tf.int32, name=PACKED_IDS)}
    for name in schema.multivalent:
        for part in (f"{name}.values", f"{name}.lengths"):
            specs[part] = tf.TensorSpec([None], tf.int32, name=part)
    return specs


def _unpack(schema: Schema, packed: Mapping[str, tf.Tensor]) -> Ids:
    columns = tf.unstack(packed[PACKED_IDS], num=len(schema.single_valued), axis=1)
    ids: dict[str, tf.Tensor | tf.RaggedTensor] = dict(zip(schema.single_valued, columns, strict=True))
    for name in schema.multivalent:
        ids[name] = tf.RaggedTensor.from_row_lengths(
            packed[f"{name}.values"], packed[f"{name}.lengths"], validate=False
        )
    return ids


def _plan(layout: TableLayout, ids: Ids) -> dict[str, tf.Tensor]:
    """Where the rows of a table are that N examples need: ``ctr.models.embeddings.look_up`` on the whole table."""
    offsets = layout.offsets()
    some = next(iter(ids.values()))
    rows = some.nrows(tf.int32) if isinstance(some, tf.RaggedTensor) else tf.shape(some)[0]
    plan = {"single": tf.zeros([rows, 0], tf.int32)}
    if layout.single:
        single = tf.stack([ids[feature.name] for feature in layout.single], axis=1)
        plan["single"] = single + tf.constant([offsets[feature.name] for feature in layout.single])
    values, segments = [], []
    for index, feature in enumerate(layout.multivalent):
        ragged = ids[feature.name]
        values.append(ragged.values + offsets[feature.name])
        row = tf.cast(ragged.value_rowids(), tf.int32)
        segments.append(row * len(layout.multivalent) + index)
    if values:
        plan |= {"values": tf.concat(values, axis=0), "segments": tf.concat(segments, axis=0)}
    return plan


def serving_functions(snapshot: Snapshot) -> dict[str, Any]:
    """The ``tf.function``s by name, each with an input signature of one mapping from names to tensors."""
    schema, network = snapshot.schema, snapshot.network
    alpha2 = tf.constant(snapshot.alpha2, tf.float32)

    def scores(ids: Ids) -> dict[str, tf.Tensor]:
        looked_up = [
            look_up(layout, table, _plan(layout, ids))
            for layout, table in zip(snapshot.layouts, snapshot.tables, strict=True)
        ]
        logit, _ = network(*split_columns(looked_up, snapshot.layouts), alpha2)
        return {"p": tf.sigmoid(logit), "logit": logit}

    def predict(features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return scores(transform_tensors(schema, features))

    def predict_ids(packed: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return scores(_unpack(schema, packed))

    return {
        "predict": tf.function(predict, input_signature=[source_specs(schema)]),
        "predict_ids": tf.function(predict_ids, input_signature=[packed_specs(schema)]),
    }
