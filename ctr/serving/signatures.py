"""Functions of an exported model: from raw strings and numbers, or from ids, to predictions.

``predict(features)``
    raw columns -> ``p`` and ``logit``, and ``p_NAME`` for each further label. The graph computes derived columns from
    other columns or from the time of the row, ``time_us``.
``quality(features)``, ``ui(features)``, ``combine(Q, U)``
    only for a factorized network that is the only expert: ``Q`` and ``U``, [N, components, K], and ``p`` and ``logit``
    computed from both. A tower takes the columns that its features need. One row of Q can be combined with any number
    of rows of U, and vice versa.
``predict_ids(ids)``
    ids as in a log -> the outputs of ``predict``; it scores logs, which have no raw columns.

Where ids grow, an id is looked up among the sorted keys of the ids with individual rows; others use shared rows,
as in training. All are pure TensorFlow operations, so that any TensorFlow runtime serves them.
"""

import keyword
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ctr.data.derived import Derived
from ctr.data.features import Category, Cross
from ctr.data.ids import graph
from ctr.data.ids.graph import row_numbers, transform_tensors
from ctr.data.ids.rules import pair_ids
from ctr.data.schema import MISSING_ID, QUERY_SIZE, InputKind, Schema
from ctr.models.click_model import TowerInput, combine, ensemble_logit, quality, ui
from ctr.models.embeddings import look_up, tower_inputs
from ctr.models.numbers import look_up_numbers
from ctr.models.pooling import pool
from ctr.models.rows import (
    STATISTICS,
    FeatureRows,
    Numbers,
    TableLayout,
    all_numbers,
    feature_names,
    with_numbers,
)
from ctr.training.run.snapshot import LAST_KEY, Snapshot

Ids = Mapping[str, tf.Tensor | tf.RaggedTensor]
"""Ids by feature: int32 or int64 [N], or a RaggedTensor [N, None] for a multivalent feature."""

PACKED_IDS = "ids"
_INPUTS: dict[InputKind, dict[str, str]] = {
    "text": {"dtype": "string", "missing": "the empty string"},
    "number": {"dtype": "float32", "missing": "NaN"},
    "time": {
        "dtype": "int64",
        "missing": "-1",
        "unit": "microseconds since 1970-01-01 00:00 UTC",
        "meaning": "when the impression is shown: what the mapping's time is parsed from at ingestion",
    },
}
NOT_IN_THE_MODEL = (
    "joins: a column that ingestion took from a side table is an input like any other: look it up before the call",
    "parsing: the mapping's time format is not in the model: give the time as the int64 above",
    "nulls: strings that the mapping's input.nulls lists must be given as missing",
    "lists: a multivalent category is one string, its values joined with the separator",
    "filters: a row that ingestion rejects is still scored: the value that it is rejected for counts as missing",
    "sessions, queries, labels, weights and sampling: they make and order the log and are not part of a prediction; "
    "where the model takes query_size, count the rows of the query",
)


@dataclass(frozen=True)
class Signature:
    """A function of one argument, a mapping from inputs' names to tensors; ``sources`` maps these names to columns."""

    function: Any
    sources: Mapping[str, str]

    @property
    def specs(self) -> Mapping[str, tf.TensorSpec]:
        return self.function.input_signature[0]


def input_names(sources: Iterable[str]) -> dict[str, str]:
    """Assigns each column a valid name of a function's input: name -> column, in the order of ``sources``.

    A name is the column's if TensorFlow allows it: ASCII letters, digits and _, a letter first. Other columns get a
    different name; if no allowed character is left, it is ``column_`` and the column's number, from 1 on.
    """
    columns = list(sources)
    wanted = {source: _plain_name(source, number) for number, source in enumerate(columns, 1)}
    names: dict[str, str] = {}
    for source in sorted(columns, key=lambda source: wanted[source] != source):
        name = wanted[source]
        # To TensorFlow, names that differ in case alone are the same.
        while name.lower() in {other.lower() for other in names}:
            name += "_"
        names[name] = source
    by_source = {source: name for name, source in names.items()}
    return {by_source[source]: source for source in columns}


def _plain_name(source: str, number: int) -> str:
    name = re.sub(r"[^A-Za-z0-9_]", "_", source)
    if not name.strip("_"):
        return f"column_{number}"
    if not name[:1].isalpha():
        name = f"x{name}"
    return f"{name}_" if keyword.iskeyword(name) or name == "self" else name


def serving_signatures(snapshot: Snapshot) -> dict[str, Signature]:
    """Returns the functions of an exported model, by name."""
    schema, model = snapshot.schema, (snapshot.architecture, snapshot.served_weights)
    experts, weights = snapshot.experts, snapshot.served_weights
    alpha2 = tf.constant(snapshot.alpha2, tf.float32)
    # For all columns together, so that one has the same name and type in every function.
    names, kinds = input_names(schema.inputs), schema.inputs

    def scores(ids: Ids) -> dict[str, tf.Tensor]:
        expert_scores = experts.scores(weights, inputs_of(snapshot, ids), alpha2)
        logit, *labels = experts.predictions(weights, expert_scores)
        names = snapshot.architecture.labels
        return _outputs(logit) | {
            f"p_{name}": tf.sigmoid(label_logit) for name, label_logit in zip(names, labels, strict=True)
        }

    def only_q(ids: Ids) -> dict[str, tf.Tensor]:
        return {"Q": quality(*model, inputs_of(snapshot, ids, "quality")["quality"], alpha2)}

    def only_u(ids: Ids) -> dict[str, tf.Tensor]:
        return {"U": ui(*model, inputs_of(snapshot, ids, "ui")["ui"])}

    def combined(towers: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return _outputs(ensemble_logit(combine(*model, towers["Q"], towers["U"])))

    signatures = {
        "predict": _raw_signature(served_schema(snapshot), names, kinds, scores),
        "predict_ids": _packed_signature(schema, scores),
    }
    if (factors := snapshot.config.model.factorized) is not None and len(experts.names) == 1:
        for tower, function in (("quality", only_q), ("ui", only_u)):
            layouts = [layout for layout in snapshot.layouts if layout.tower == tower]
            needed = schema.only(feature_names(layouts))
            signatures[tower] = _raw_signature(needed, names, kinds, function)
        shape = [None, snapshot.architecture.components, factors.width + 2]
        specs = {name: tf.TensorSpec(shape, name=name) for name in ("Q", "U")}
        signatures["combine"] = Signature(_graph_function(combined, specs), {"Q": "Q", "U": "U"})
    return signatures


def inputs_of(snapshot: Snapshot, ids: Ids, tower: str | None = None) -> dict[str, TowerInput]:
    """Looks up the inputs of each tower, or of one alone, for N rows of ids in the snapshot's tables."""
    numbered = enumerate(snapshot.layouts)
    chosen = [(index, layout) for index, layout in numbered if tower in (None, layout.tower)]
    layouts, tables = tuple(layout for _, layout in chosen), [snapshot.tables[index] for index, _ in chosen]
    plans, looked_up = [], []
    for (index, layout), table in zip(chosen, tables, strict=True):
        plans.append(_plan(layout, snapshot.keys.get(index), ids))
        looked_up.append(look_up(layout, table, plans[-1]))
    if snapshot.architecture.pooled:
        looked_up, layouts = pool(snapshot.served_weights, layouts, looked_up, tables, plans)
    if numbers := all_numbers(layouts):
        values = {feature: _values(feature, ids[feature.name]) for feature in numbers}
        looked_up += look_up_numbers(values, snapshot.served_weights[STATISTICS], layouts[0].copies)
        layouts = with_numbers(layouts)
    return tower_inputs(looked_up, layouts, snapshot.architecture.factors is not None)


def _values(feature: Numbers, ids: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
    """Decodes a feature's numbers, float32 [N, size]; NaN for rows without exactly ``size`` of them."""
    if feature.single is not None:
        return graph.numbers_of_bits(ids)[:, tf.newaxis]
    ids = graph.whole(ids.values, ids, feature.size)[1]
    rows = tf.reshape(graph.numbers_of_bits(ids.values), [-1, feature.size])
    index = tf.cast(ids.row_splits[:-1], tf.int32) // feature.size
    there = tf.equal(tf.cast(ids.row_lengths(), tf.int32), feature.size)
    padded = tf.concat([rows, tf.fill([1, feature.size], np.float32(np.nan))], axis=0)
    return tf.gather(padded, tf.where(there, index, tf.shape(rows)[0]))


def served_schema(snapshot: Snapshot) -> Schema:
    """Returns the schema of the log's features that the model has, with the parts of its crosses."""
    return snapshot.schema.only(feature_names(snapshot.layouts))


def _outputs(logit: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"p": tf.sigmoid(logit), "logit": logit}


def _graph_function(function: Callable[..., Any], specs: Mapping[str, tf.TensorSpec]) -> Any:
    # Nothing here needs AutoGraph, whose rewriting of the code would take most of the time.
    return tf.function(function, input_signature=[specs], autograph=False)


def _raw_signature(
    schema: Schema,
    all_names: Mapping[str, str],
    kinds: Mapping[str, InputKind],
    compute: Callable[[Ids], dict[str, tf.Tensor]],
) -> Signature:
    inputs = schema.inputs
    names = {name: source for name, source in all_names.items() if source in inputs}
    types = {name: _INPUTS[kinds[source]]["dtype"] for name, source in names.items()}
    specs = {name: tf.TensorSpec([None], tf.as_dtype(dtype), name=name) for name, dtype in types.items()}

    def function(features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        raw = {source: features[name] for name, source in names.items()}
        return compute(transform_tensors(schema, raw))

    return Signature(_graph_function(function, specs), names)


def packed_columns(schema: Schema) -> tuple[str, ...]:
    """Returns the names of the columns with N rows' ids, of ``id_type``: ``ids``, [N, F], for single-valued features.

    Each multivalent feature has ``NAME.values``, [V], row after row, and ``NAME.lengths``, int32 [N].
    """
    return (PACKED_IDS, *(f"{name}.{part}" for name in schema.multivalent for part in ("values", "lengths")))


def _packed_signature(schema: Schema, compute: Callable[[Ids], dict[str, tf.Tensor]]) -> Signature:
    names = input_names(packed_columns(schema))
    single, id_type = schema.single_valued, tf.as_dtype(schema.id_type)
    types = {name: tf.int32 if column.endswith(".lengths") else id_type for name, column in names.items()}
    specs = {name: tf.TensorSpec([None], dtype, name=name) for name, dtype in types.items()}
    specs[PACKED_IDS] = tf.TensorSpec([None, len(single)], id_type, name=PACKED_IDS)

    def function(inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        packed = {column: inputs[name] for name, column in names.items()}
        columns = tf.unstack(packed[PACKED_IDS], num=len(single), axis=1)
        ids: dict[str, tf.Tensor | tf.RaggedTensor] = dict(zip(single, columns, strict=True))
        for name in schema.multivalent:
            values, lengths = packed[f"{name}.values"], packed[f"{name}.lengths"]
            ids[name] = tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)
        return compute(ids)

    return Signature(_graph_function(function, specs), names)


def _plan(layout: TableLayout, keys: tf.Variable | None, ids: Ids) -> dict[str, tf.Tensor]:
    """Plans the lookup of N examples in a table, for ``ctr.models.embeddings.look_up`` on the whole table."""
    some = ids[layout.features[0].source]
    rows = some.nrows(tf.int32) if isinstance(some, tf.RaggedTensor) else tf.shape(some)[0]
    plan = {"single": tf.zeros([rows, 0], tf.int32)}
    if layout.single:
        plan["single"] = _single_rows(layout, keys, ids)
    values, segments = [], []
    for index, feature in enumerate(layout.multivalent):
        ragged = ids[feature.source]
        if feature.growing:
            values.append(_growing_rows(layout, keys, [feature], ragged.values[:, tf.newaxis])[:, 0])
        else:
            values.append(tf.cast(ragged.values, tf.int32) + layout.offsets()[feature.name])
        row = tf.cast(row_numbers(ragged), tf.int32)
        segments.append(row * len(layout.multivalent) + index)
    if values:
        plan |= {"values": tf.concat(values, axis=0), "segments": tf.concat(segments, axis=0)}
    return plan


def _single_rows(layout: TableLayout, keys: tf.Variable | None, ids: Ids) -> tf.Tensor:
    offsets = layout.offsets()
    fixed = [feature for feature in layout.single if not feature.growing]
    growing = [feature for feature in layout.single if feature.growing]
    parts = []
    if fixed:
        numbers = tf.stack([ids[feature.source] for feature in fixed], axis=1)
        parts.append(tf.cast(numbers, tf.int32) + tf.constant([offsets[feature.name] for feature in fixed]))
    if growing:
        parts.append(_growing_rows(layout, keys, growing, _growing_ids(growing, ids)))
    if len(parts) == 1:
        return parts[0]
    columns = {feature.name: column for column, feature in enumerate([*fixed, *growing])}
    return tf.gather(tf.concat(parts, axis=1), [columns[feature.name] for feature in layout.single], axis=1)


def _growing_ids(features: Sequence[FeatureRows], ids: Ids) -> tf.Tensor:
    """Returns the growing ids of N rows, int64 [N, G]; pair ids, computed from their two features, are last."""
    parts = [ids[feature.source] for feature in features if len(feature.of) < 2]
    blocks = [tf.stack(parts, axis=1)] if parts else []
    pairs = [feature.of for feature in features if len(feature.of) == 2]
    if pairs:
        names = sorted({name for pair in pairs for name in pair})
        columns = tf.stack([tf.cast(ids[name], tf.int64) for name in names], axis=1)
        sides = zip(*([names.index(name) for name in pair] for pair in pairs), strict=True)
        left, right = (tf.bitcast(tf.gather(columns, list(side), axis=1), tf.uint64) for side in sides)
        blocks.append(pair_ids(graph, left, right))
    return blocks[0] if len(blocks) == 1 else tf.concat(blocks, axis=1)


def _growing_rows(
    layout: TableLayout, keys: tf.Variable | None, features: Sequence[FeatureRows], ids: tf.Tensor
) -> tf.Tensor:
    """Returns the rows of growing ids, int64 [N, G] -> int32: the individual row, else a shared row of the feature."""
    assert keys is not None
    all_offsets = layout.offsets()
    offsets = tf.constant([all_offsets[feature.name] for feature in features])
    sought = tf.bitwise.bitwise_xor(ids, tf.constant([feature.salt for feature in features], tf.int64))
    # Read once: if a variable is gathered from directly, TensorFlow copies all of it whenever it is read.
    all_keys = tf.convert_to_tensor(keys)
    index = tf.reshape(tf.searchsorted(all_keys, tf.reshape(sought, [-1])), tf.shape(ids))
    has_row = tf.equal(tf.gather(all_keys, index), sought) & tf.not_equal(sought, LAST_KEY)
    # As ``IdMap.look_up`` chooses it.
    shared_rows = tf.constant([feature.buckets - 1 for feature in features], tf.uint64)
    shared = tf.cast(tf.math.floormod(_splitmix64(tf.bitcast(ids, tf.uint64)), shared_rows), tf.int32)
    rows = tf.where(has_row, layout.rows + index, offsets + 1 + shared)
    return tf.where(tf.equal(ids, MISSING_ID), offsets, rows)


def _splitmix64(values: tf.Tensor) -> tf.Tensor:
    """Computes ``ctr.io.hashing.splitmix64`` of uint64 of any shape."""

    def folded(values: tf.Tensor, shift: int) -> tf.Tensor:
        return tf.bitwise.bitwise_xor(values, tf.bitwise.right_shift(values, tf.constant(shift, tf.uint64)))

    mixed = values + tf.constant(0x9E3779B97F4A7C15, tf.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = folded(mixed, shift) * tf.constant(factor, tf.uint64)
    return folded(mixed, 31)


def describe_requests(log_schema: Schema, schema: Schema) -> dict[str, Any]:
    """Describes inputs, derived columns and columns not in the model; columns have the names of the whole log."""
    kinds, separators = log_schema.inputs, schema.list_separators
    inputs: dict[str, dict[str, Any]] = {}
    for name, column in input_names(kinds).items():
        if column not in schema.inputs:
            continue
        inputs[name] = {"column": column, "kind": kinds[column], **_INPUTS[kinds[column]]}
        if separators.get(column) is not None:
            inputs[name]["separator"] = separators[column]
        if column == QUERY_SIZE and log_schema.counts_rows:
            inputs[name]["meaning"] = "the number of rows of its query, if all are shown at one time"
        features = (feature for feature in schema.features if not isinstance(feature, Cross))
        inputs[name]["features"] = [f.name for f in features if schema.column_of(f.source) == column]
    return {
        "inputs": inputs,
        "derived": {name: _rule_text(rule) for name, rule in schema.derive.items()},
        "categories": _spelling_text(schema),
        "not_in_the_model": list(NOT_IN_THE_MODEL),
    }


def _rule_text(rule: Derived) -> str:
    if rule.part is not None:
        return f"the {rule.part} of {rule.column} (UTC{', 0 is Monday' if rule.part == 'weekday' else ''})"
    if rule.every is not None:
        return f"whole periods of {rule.every} between 1970-01-01 00:00 UTC and {rule.column}"
    if rule.prefix is not None:
        return f"the first {rule.prefix} characters of {rule.column}"
    return f"{rule.column}, a copy" if rule.cast is None else f"{rule.column}, cast to {rule.cast}"


def _spelling_text(schema: Schema) -> str:
    if not any(isinstance(feature, Category) for feature in schema.features):
        return "none"
    return "whole numbers lose a fraction of zeros: 12.0 is 12; nothing else changes"
