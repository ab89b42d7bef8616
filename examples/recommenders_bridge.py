"""Uses a log and a run of ctr in tensorflow-recommenders, and back, in four steps on a small simulated log.

1. `Ranking` of tensorflow-recommenders learns from the log: AdaGrad for embedding rows, Shampoo for the rest.
2. A run of `ctr train` becomes a `tfrs.Model` with the same predictions.
3. That model continues on the log's next part, with the logistic and ranking losses of ctr.
4. `ctr evaluate` measures them all on the last part, which none of them has seen.

The learning rates were chosen on this log, so the output shows that everything works; it is no comparison of methods.

pip install "path/to/checkout[train,tfrs]"
python examples/recommenders_bridge.py [FOLDER]
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Before TensorFlow is loaded: tensorflow-recommenders works with Keras 2 alone.
os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf
import tensorflow_recommenders as tfrs

from ctr.cli import main as ctr
from ctr.data.batches import whole_query_batches
from ctr.data.log import MAX_TIME_US, read_manifests, read_schema
from ctr.data.reader import Rows, join_rows, read_rows
from ctr.data.schema import Schema
from ctr.data.times import format_time
from ctr.models.click_model import Scores
from ctr.objective.config import ObjectiveConfig, RankingConfig
from ctr.objective.losses import BatchObjective, loss_and_terms
from ctr.objective.targets import make_targets
from ctr.optim import Shampoo
from ctr.serving.export import export_run
from ctr.serving.recommenders import RecommendersModel, ids_of_rows
from ctr.serving.score import score_rows
from ctr.serving.scorer import Scorer

EXAMPLES, BATCH_ROWS, BUCKETS, WIDTH = 30_000, 256, 5000, 8
OBJECTIVE = ObjectiveConfig(ranking=RankingConfig(weight=0.1))


class Embeddings(tf.keras.layers.Layer):
    """The embedding layer of `Ranking`: a table of hashed ids for each single-valued feature."""

    def __init__(self, features: Sequence[str]) -> None:
        super().__init__()
        self.tables = {name: tf.keras.layers.Embedding(BUCKETS, WIDTH, name=name) for name in features}

    def call(self, ids: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {name: table(tf.math.floormod(ids[name], BUCKETS)) for name, table in self.tables.items()}


def side_by_side(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Concatenates embeddings, with their shapes, which `Ranking` loses if batches differ in size."""
    return tf.concat([tf.ensure_shape(part, [None, WIDTH]) for part in parts], axis=1)


def make_ranking(features: Sequence[str]) -> tfrs.experimental.models.Ranking:
    """Makes a DCN that returns logits."""
    mlp, interaction = (
        tfrs.layers.blocks.MLP,
        [tf.keras.layers.Lambda(side_by_side), tfrs.layers.dcn.Cross(8)],
    )
    return tfrs.experimental.models.Ranking(
        Embeddings(features),
        bottom_stack=mlp([16, WIDTH], final_activation="relu"),
        feature_interaction=tf.keras.Sequential(interaction),
        top_stack=mlp([64, 1]),
        task=tfrs.tasks.Ranking(loss=tf.keras.losses.BinaryCrossentropy(from_logits=True)),
    )


class RankedModel(RecommendersModel):
    """The model of a run, with the loss (1 - a) L_logistic + a L_rank over the pairs of each query."""

    def compute_loss(self, inputs: tuple[Any, Any], training: bool = False) -> tf.Tensor:
        ids, targets = inputs
        logit = self(ids, training=training)
        of_components = logit[tf.newaxis]
        ramps = {"ranking": tf.constant(1.0)}
        batch = BatchObjective(OBJECTIVE, targets, ramps)
        return loss_and_terms(batch, logit, Scores(of_components, of_components))[0]


def composite(model: Any, rate: float) -> tfrs.experimental.optimizers.CompositeOptimizer:
    """Makes an optimizer: AdaGrad for the rows of tables, Shampoo for dense variables."""
    rows = tf.keras.optimizers.Adagrad(rate, initial_accumulator_value=1e-4)
    return tfrs.experimental.optimizers.CompositeOptimizer(
        [
            (rows, lambda: model.embedding_trainable_variables),
            (Shampoo(rate, exponent_override=2), lambda: model.dense_trainable_variables),
        ]
    )


def ranking_features(schema: Schema, rows: Rows) -> dict[str, Any]:
    """Returns the inputs of `Ranking`: ids of single-valued features, and the time of day."""
    angle = (rows.query_time / 86_400e6 % 1 * 2 * np.pi)[:, np.newaxis]
    dense = np.concatenate([np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)
    sparse = {name: tf.constant(rows.ids[:, place]) for place, name in enumerate(schema.single_valued)}
    return {"dense_features": tf.constant(dense), "sparse_features": sparse}


def targets_of(rows: Rows) -> dict[str, tf.Tensor]:
    """Returns labels, weights and pairs, as the losses of ctr take them."""
    made = make_targets(OBJECTIVE, [], rows, np.zeros(len(rows), np.int64), len(rows))
    return {name: tf.constant(values) for name, values in made.items()}


def as_dataset(elements: Sequence[Any]) -> tf.data.Dataset:
    """Makes a dataset of batches of different sizes, in order."""

    def spec(value: Any) -> Any:
        if isinstance(value, tf.RaggedTensor):
            return tf.RaggedTensorSpec([None, None], value.dtype, 1, value.row_splits.dtype)
        return tf.TensorSpec([None, *value.shape[1:]], value.dtype)

    signature = tf.nest.map_structure(spec, elements[0])
    return tf.data.Dataset.from_generator(lambda: iter(elements), output_signature=signature)


def run_ctr(*arguments: object) -> None:
    """Runs a command of ctr; ends this process if it fails."""
    if status := ctr([str(argument) for argument in arguments]):
        raise SystemExit(status)


def write_predictions(path: Path, rows: Rows, logit: np.ndarray) -> None:
    """Writes the columns that `ctr evaluate` reads."""
    names = ("example_id", "query_id", "label", "metric_weight")
    pq.write_table(pa.table({**{name: getattr(rows, name) for name in names}, "logit": logit}), path)


def main(folder: Path) -> None:
    """Does the four steps, inside ``folder``."""
    log, run = folder / "log", folder / "run"
    run_ctr("simulate", "--out", log, "--examples", EXAMPLES, "--quiet")
    schema, manifests = read_schema(log), read_manifests(log)
    times = np.concatenate([rows.query_time for rows in read_rows(log, schema, manifests)])
    begin, end = times[[len(times) * 6 // 10, len(times) * 8 // 10]].tolist()

    def read(first: int, last: int) -> list[Rows]:
        blocks = read_rows(log, schema, manifests, times=(first, last))
        return [batch.rows for batch in whole_query_batches(blocks, BATCH_ROWS, max_query_rows=4096)]

    seen, following, held_out = read(0, begin), read(begin, end), join_rows(read(end, MAX_TIME_US))
    tf.keras.utils.set_random_seed(1)

    ranking = make_ranking(schema.single_valued)
    ranking.compile(composite(ranking, rate=0.05))
    batches = [(ranking_features(schema, rows), tf.constant(rows.label)) for rows in [*seen, *following]]
    ranking.fit(as_dataset(batches), verbose=0)
    write_predictions(
        folder / "ranking.parquet", held_out, ranking(ranking_features(schema, held_out)).numpy()
    )

    # The network is carried over, here the only expert: its logits equal ctr's.
    settings = (f"time_range.end={format_time(begin)}", "compute_dtype=float32", "model.experts=[network]")
    run_ctr("train", log, "--out", run, *(part for one in settings for part in ("--set", one)), "--quiet")
    model = RankedModel.from_run(run)
    carried = model(ids_of_rows(model.schema, held_out)).numpy()
    difference = np.abs(carried - score_rows(Scorer(export_run(run, folder / "models").path), held_out)).max()
    print(f"largest difference between the logits of tfrs.Model and of ctr: {difference:.1e}")
    write_predictions(folder / "carried.parquet", held_out, carried)

    model.compile(composite(model, rate=0.005))
    model.fit(
        as_dataset([(ids_of_rows(model.schema, rows), targets_of(rows)) for rows in following]), verbose=0
    )
    continued = model(ids_of_rows(model.schema, held_out)).numpy()
    write_predictions(folder / "continued.parquet", held_out, continued)

    for name in ("ranking", "carried", "continued"):
        print(f"\n{name}.parquet")
        run_ctr("evaluate", folder / f"{name}.parquet", "--quiet")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
