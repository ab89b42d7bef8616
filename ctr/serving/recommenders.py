"""Trained models as models of tensorflow-recommenders, with ``tfrs.layers.dcn.Cross`` for the crosses.

model = RecommendersModel.from_run("runs/mine")
model.compile(tfrs.experimental.optimizers.CompositeOptimizer([
    (tf.keras.optimizers.Adagrad(0.05), lambda: model.embedding_trainable_variables),
    (Shampoo(0.01), lambda: model.dense_trainable_variables),
]))
model.fit(dataset)                       # of (ids, clicks) or (ids, clicks, weights)

Requires the extra ``tfrs``, and Keras 2: ``TF_USE_LEGACY_KERAS=1`` before TensorFlow is loaded.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import tensorflow as tf

if not tf.keras.Model.__module__.startswith("tf_keras."):
    raise ImportError(
        "ctr.serving.recommenders requires Keras 2, as tensorflow-recommenders does: set TF_USE_LEGACY_KERAS=1 before "
        "TensorFlow is loaded"
    )

try:
    import tensorflow_recommenders as tfrs
except ModuleNotFoundError as error:
    raise ImportError(
        f'ctr.serving.recommenders requires {error.name}: pip install "clicktrain[train,tfrs]"'
    ) from None

from ctr.data.reader import Rows, add_query_size
from ctr.data.schema import Schema
from ctr.io.errors import InputError
from ctr.models.activations import make_activation
from ctr.models.embeddings import tower_widths
from ctr.models.rows import all_numbers
from ctr.serving.signatures import Ids, inputs_of
from ctr.training.experts.forward import tables_of
from ctr.training.run.snapshot import Snapshot, read_snapshot


def ids_of_rows(schema: Schema, rows: Rows) -> Ids:
    """Returns the ids of N rows of a log by feature: int32 or int64 [N], of multivalent features ragged [N, None].

    ``schema``: the log's, or a model's (``RecommendersModel.schema``); the rows must be whole queries.
    """
    rows = add_query_size(rows, schema)
    single = {name: tf.constant(rows.ids[:, column]) for column, name in enumerate(schema.single_valued)}
    multivalent = {
        name: tf.RaggedTensor.from_row_splits(values, offsets)
        for name, (values, offsets) in rows.multivalent.items()
    }
    return single | multivalent


class RecommendersModel(tfrs.Model):
    """The network of a run, with its tables and weights, and the logistic loss.

    If the run has other experts, this is the network alone, whose logits are not the run's predictions. It is called on
    ids as in a log (``ids_of_rows``; from raw columns, ``ctr.data.ids.graph.transform_tensors``) and
    returns logits, float32 [N]: for a run with this expert alone equal to the run's export up to rounding. The weight
    alpha2 of the crosses is a factor of their last matrices and biases, ``x_0 * (x U (alpha2 V) + alpha2 b) + x``.
    Everything is float32; a run that computes in bfloat16 rounds its products, and its logits differ by that.

    Ids without an individual row use shared rows; no id gets an individual row here.

    Args:
        snapshot: the weights of a run.

    Attributes:
        schema: the features of the model.
        tables: the embedding tables with their linear weights, float32 [rows, width + 1].
        crosses: the ``tfrs.layers.dcn.Cross`` layers.
        deep: the deep layers, each a ``tf.keras.Sequential`` of one ``Dense``, or of two with a bottleneck.
        head: ``Dense`` of one unit without a bias.
        bias: bias of the output.

    Raises:
        InputError: a factorized model, an ensemble, linear weights alone, a plug-in, attention, or numbers as values.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.schema = snapshot.schema
        shape = snapshot.architecture
        refused = {
            "factorized": shape.factors is not None,
            "an ensemble": shape.components > 1,
            "of linear weights alone": not shape.has_network,
            "a network of another package (model.network)": shape.network is not None,
            "one that pools by attention (model.pooling)": bool(shape.pooled),
            "one that reads numbers as values": bool(all_numbers(snapshot.layouts)),
        }
        for what, is_so in refused.items():
            if is_so:
                raise InputError(
                    f"{snapshot.run_dir}: the model is {what}; allowed for tensorflow-recommenders: one model with "
                    "crosses or deep layers, not factorized, without attention"
                )
        layouts = tables_of(snapshot.experts.network_alone, snapshot.layouts)
        self.tables = [
            tf.Variable(table.numpy(), name=f"rows/{layout.name}")
            for table, layout in zip(snapshot.tables, layouts, strict=False)
        ]
        self._snapshot = replace(snapshot, tables=self.tables, layouts=layouts)
        tower = shape.towers["quality"]
        rank, activation = shape.cross_rank or None, make_activation(shape.activation, shape.smelu_beta)
        dense = tf.keras.layers.Dense
        self.crosses = [
            tfrs.layers.dcn.Cross(projection_dim=rank, name=f"cross_{n}") for n in range(tower.crosses)
        ]
        self.deep = [
            tf.keras.Sequential(
                [*([dense(rank, use_bias=False)] if rank else []), dense(units, activation)], name=f"deep_{n}"
            )
            for n, (units, rank) in enumerate(zip(tower.units, tower.ranks, strict=True))
        ]
        self.head = dense(1, use_bias=False, name="head")
        self.bias = tf.Variable(snapshot.weights["output_bias"].numpy(), name="output_bias")
        self.task = tfrs.tasks.Ranking(loss=tf.keras.losses.BinaryCrossentropy(from_logits=True))
        self._carry_over()

    @classmethod
    def from_run(cls, run: Path | str, checkpoint: int | None = None) -> Self:
        """Creates the model of a run's checkpoint, by default the newest. Raises InputError also if there is none."""
        return cls(read_snapshot(Path(run), checkpoint))

    def _carry_over(self) -> None:
        weights, alpha2 = self._snapshot.weights, self._snapshot.alpha2

        def of_layer(name: str) -> list[Any]:
            parts = ["w"] if f"{name}/w" in weights else ["u", "v"]
            return [weights[f"{name}/{part}"].numpy() for part in (*parts, f"{parts[-1]}_bias")]

        # Layers have weights once they were called.
        self._network(tf.zeros([1, tower_widths(self._snapshot.layouts, False)["quality"]]))
        for number, cross in enumerate(self.crosses):
            *first, last, bias = of_layer(f"quality/cross_{number}")
            cross.set_weights([*first, alpha2 * last, alpha2 * bias])
        for number, layer in enumerate(self.deep):
            layer.set_weights(of_layer(f"quality/deep_{number}"))
        self.head.set_weights([weights["quality_head"].numpy()])
        # Copies of the layers' values.
        self._snapshot = replace(self._snapshot, weights={})

    def _network(self, e0: tf.Tensor) -> tf.Tensor:
        hidden = e0
        for cross in self.crosses:
            hidden = cross(e0, hidden)
        for layer in self.deep:
            hidden = layer(hidden)
        return tf.squeeze(self.head(hidden), axis=1)

    def call(self, ids: Ids) -> tf.Tensor:
        """Computes logits, float32 [N]."""
        inputs = inputs_of(self._snapshot, ids)["quality"]
        network = self._network(inputs.e0[0]) + self.bias
        return network + inputs.linear[0] if self._snapshot.architecture.linear else network

    def compute_loss(self, inputs: tuple[Any, ...], training: bool = False) -> tf.Tensor:
        """Computes the mean logistic loss of (ids, clicks) or (ids, clicks, weights), the latter two [N]."""
        ids, clicks, *weights = inputs
        logits = self(ids, training=training)
        columns = {"labels": clicks[:, tf.newaxis], "predictions": logits[:, tf.newaxis]}
        return self.task(**columns, sample_weight=weights[0] if weights else None)

    @property
    def embedding_trainable_variables(self) -> Sequence[tf.Variable]:
        """Returns the tables, as ``tfrs.experimental.models.Ranking`` does."""
        return list(self.tables)

    @property
    def dense_trainable_variables(self) -> Sequence[tf.Variable]:
        """Returns all trainable variables except the tables."""
        layers = [weight for layer in self.layers for weight in layer.trainable_variables]
        return [*layers, self.bias]
