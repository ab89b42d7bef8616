"""Which variables are tables by their names."""

import re

import pytest

from ctr.optim.keras.common import TABLES
from keras_models import IS_KERAS_3

TABLES_BY_NAME = {
    True: (
        *("words/embeddings", "model/words/embeddings:0", "embeddings:0", "user/embedding:0"),
        "dense_features/ids_embedding/embedding_weights:0",
        *("tpu_embedding/users:0", "model/tpu_embedding_1/table_0"),
    ),
    False: (
        *("words_embeddings:0", "embedding/kernel:0", "embedding_1/dense/kernel", "dense/kernel"),
        *("tpu_embedding/users/scale", "my_tpu_embedding/kernel", "tpu_embedding"),
    ),
}


def test_names_of_tables():
    for is_table, names in TABLES_BY_NAME.items():
        for name in names:
            assert bool(re.search(TABLES, name)) == is_table, name


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 2 alone has them")
def test_the_tables_of_tpu_embedding_and_of_feature_columns_learn_by_rows():
    import tensorflow as tf
    import tensorflow_recommenders as tfrs

    from ctr.optim.contrib.tf_keras import Adafactor, Shampoo

    embedding, columns = tf.tpu.experimental.embedding, tf.feature_column
    tables = {"user": embedding.TableConfig(20, 4, name="users"), "item": embedding.TableConfig(30, 3)}
    layer = tfrs.layers.embedding.TPUEmbedding(
        {name: embedding.FeatureConfig(table=table) for name, table in tables.items()}, optimizer="adagrad"
    )
    layer({"user": tf.constant([1]), "item": tf.constant([2])})
    column = columns.embedding_column(columns.categorical_column_with_identity("ids", 10), 4)
    features = tf.keras.layers.DenseFeatures([column])
    features({"ids": tf.constant([[1]])})
    dense = tf.keras.layers.Dense(5, name="embedding")
    dense.build([None, 6])
    variables = [*layer.trainable_variables, *features.trainable_variables, dense.kernel]
    for make in (Shampoo, Adafactor):
        optimizer = make()
        optimizer.build(variables)
        core = optimizer.core
        assert tuple(core.layout.tables if make is Shampoo else core.tables) == (0, 1, 2)
