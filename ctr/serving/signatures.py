"""The functions of an exported model: from raw strings and numbers, or from ids, to predictions.

``predict(features)``
    raw columns -> ``p`` and ``logit``. Derived columns are made inside: of other columns, or of the time of the row,
    ``time_us``.
``quality(features)``, ``ui(features)``, ``combine(Q, U)``
    of a factorized model: ``Q`` and ``U``, [N, components, K], and of these ``p`` and ``logit``. A tower takes the
    columns that its own features need. One row of Q goes with any number of rows of U, and the other way round.
``predict_ids(ids)``
    ids as a log holds them -> ``p`` and ``logit``; so that logs are scored, which have no raw columns.

All are pure TensorFlow operations without code of XLA or of the host, so that any TensorFlow runtime serves them.
"""

import keyword
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ctr.data.feature_ops import row_numbers
from ctr.data.schema import InputKind, Schema
from ctr.data.transform import transform_tensors
from ctr.models.click_model import TowerInput, ensemble_logit
from ctr.models.embeddings import look_up, tower_inputs
from ctr.models.rows import TableLayout
from ctr.training.run.snapshot import Snapshot

Ids = Mapping[str, tf.Tensor | tf.RaggedTensor]
"""By feature, int32 [N], or RaggedTensor [N, None] of a multivalent one."""

PACKED_IDS = "ids"
_INPUT_TYPES: Mapping[InputKind, tf.DType] = {"text": tf.string, "number": tf.float32, "time": tf.int64}


@dataclass(frozen=True)
class Signature:
    """A function of the model.

    Attributes:
        function: with one argument, a mapping from the inputs' names to tensors.
        sources: what each input is: its name -> a source column, or a column of ids.
    """

    function: Any
    sources: Mapping[str, str]

    @property
    def specs(self) -> Mapping[str, tf.TensorSpec]:
        """The inputs by their names."""
        return self.function.input_signature[0]


def input_names(sources: Iterable[str]) -> dict[str, str]:
    """Finds names under which columns can be inputs of a function: name -> column, in their order.

    They are the columns' own names where TensorFlow allows these: letters, digits and _, a letter first. No other
    column takes such a name away.
    """
    columns = list(sources)
    wanted = {source: _plain_name(source) for source in columns}
    names: dict[str, str] = {}
    for source in sorted(columns, key=lambda source: wanted[source] != source):
        name = wanted[source]
        # To TensorFlow, names that differ in case alone are the same.
        while name.lower() in {other.lower() for other in names}:
            name += "_"
        names[name] = source
    found = {source: name for name, source in names.items()}
    return {found[source]: source for source in columns}


def _plain_name(source: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_]", "_", source)
    if not name[:1].isalpha():
        name = f"x{name}"
    return f"{name}_" if keyword.iskeyword(name) or name == "self" else name


def serving_signatures(snapshot: Snapshot) -> dict[str, Signature]:
    """Makes the functions of a model, by their names."""
    schema, network = snapshot.schema, snapshot.network
    network.round_weights()
    alpha2 = tf.constant(snapshot.alpha2, tf.float32)
    # Of all columns, so that one has the same name and type in every function.
    names, kinds = input_names(schema.inputs), schema.inputs

    def inputs_of(ids: Ids, tower: str | None = None) -> dict[str, TowerInput]:
        chosen = [
            (layout, table)
            for layout, table in zip(snapshot.layouts, snapshot.tables, strict=True)
            if tower is None or layout.tower == tower
        ]
        looked_up = [look_up(layout, table, _plan(layout, ids)) for layout, table in chosen]
        return tower_inputs(looked_up, [layout for layout, _ in chosen], network.factorized)

    def scores(ids: Ids) -> dict[str, tf.Tensor]:
        return _outputs(network(inputs_of(ids), alpha2).logits)

    def quality(ids: Ids) -> dict[str, tf.Tensor]:
        return {"Q": network.quality(inputs_of(ids, "quality")["quality"], alpha2)}

    def ui(ids: Ids) -> dict[str, tf.Tensor]:
        return {"U": network.ui(inputs_of(ids, "ui")["ui"])}

    def combine(made: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return _outputs(network.combine(made["Q"], made["U"]))

    signatures = {
        "predict": _raw_signature(schema, names, kinds, scores),
        "predict_ids": _packed_signature(schema, scores),
    }
    if (factors := snapshot.config.model.factorized) is not None:
        for tower, function in (("quality", quality), ("ui", ui)):
            own = [layout for layout in snapshot.layouts if layout.tower == tower]
            needed = schema.only(feature.name for layout in own for feature in layout.features)
            signatures[tower] = _raw_signature(needed, names, kinds, function)
        shape = [None, network.components, factors.width + 2]
        specs = {name: tf.TensorSpec(shape, name=name) for name in ("Q", "U")}
        signatures["combine"] = Signature(_graph_function(combine, specs), {"Q": "Q", "U": "U"})
    return signatures


def _outputs(logits: tf.Tensor) -> dict[str, tf.Tensor]:
    logit = ensemble_logit(logits)
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
    specs = {
        name: tf.TensorSpec([None], _INPUT_TYPES[kinds[source]], name=name) for name, source in names.items()
    }

    def function(features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        raw = {source: features[name] for name, source in names.items()}
        return compute(transform_tensors(schema, raw))

    return Signature(_graph_function(function, specs), names)


def packed_columns(schema: Schema) -> tuple[str, ...]:
    """Returns the columns that hold the ids of N rows.

    ``ids``, int32 [N, F], of the single-valued features; and of each multivalent feature ``NAME.values``, int32 [V],
    row after row, and ``NAME.lengths``, int32 [N].
    """
    return (PACKED_IDS, *(f"{name}.{part}" for name in schema.multivalent for part in ("values", "lengths")))


def _packed_signature(schema: Schema, compute: Callable[[Ids], dict[str, tf.Tensor]]) -> Signature:
    names = input_names(packed_columns(schema))
    single = schema.single_valued
    specs = {name: tf.TensorSpec([None], tf.int32, name=name) for name in names}
    specs[PACKED_IDS] = tf.TensorSpec([None, len(single)], tf.int32, name=PACKED_IDS)

    def function(inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        packed = {column: inputs[name] for name, column in names.items()}
        columns = tf.unstack(packed[PACKED_IDS], num=len(single), axis=1)
        ids: dict[str, tf.Tensor | tf.RaggedTensor] = dict(zip(single, columns, strict=True))
        for name in schema.multivalent:
            values, lengths = packed[f"{name}.values"], packed[f"{name}.lengths"]
            ids[name] = tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)
        return compute(ids)

    return Signature(_graph_function(function, specs), names)


def _plan(layout: TableLayout, ids: Ids) -> dict[str, tf.Tensor]:
    """Finds the rows of a table that N examples need, for ``ctr.models.embeddings.look_up`` on the whole table."""
    offsets = layout.offsets()
    some = ids[layout.features[0].name]
    rows = some.nrows(tf.int32) if isinstance(some, tf.RaggedTensor) else tf.shape(some)[0]
    plan = {"single": tf.zeros([rows, 0], tf.int32)}
    if layout.single:
        single = tf.stack([ids[feature.name] for feature in layout.single], axis=1)
        plan["single"] = single + tf.constant([offsets[feature.name] for feature in layout.single])
    values, segments = [], []
    for index, feature in enumerate(layout.multivalent):
        ragged = ids[feature.name]
        values.append(ragged.values + offsets[feature.name])
        row = tf.cast(row_numbers(ragged), tf.int32)
        segments.append(row * len(layout.multivalent) + index)
    if values:
        plan |= {"values": tf.concat(values, axis=0), "segments": tf.concat(segments, axis=0)}
    return plan
