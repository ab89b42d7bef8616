"""The embedding tables and what a batch sees of them."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr.models.rows import TableLayout

Plan = Mapping[str, tf.Tensor]


def create_table(layout: TableLayout, init_scale: float, seed: int) -> tf.Variable:
    """A float32 [rows, width + 1] table: embeddings normal with ``init_scale``, linear weights 0."""
    # The name is in the seed, so that adding a table does not change another one's start.
    name_seed = int(tf.strings.to_hash_bucket_fast(layout.name, 2**31 - 1))
    embedding = init_scale * tf.random.stateless_normal([layout.rows, layout.width], seed=[seed, name_seed])
    return tf.Variable(tf.concat([embedding, tf.zeros([layout.rows, 1])], axis=1), name=f"rows/{layout.name}")


def look_up(layout: TableLayout, rows: tf.Tensor, plan: Plan) -> tf.Tensor:
    """Each batch row's own table rows, multivalent features averaged (FF 4.3).

    Everything stays float32 up to here, because the gradient of this lookup sums over a batch what may
    repeat thousands of times; bfloat16 would lose most of it.

    Args:
        rows: float32 [U, C], the distinct rows of the batch.
        plan: ``single``, ``values`` and ``segments`` of ``ctr.models.rows.TablePlan`` as tensors.

    Returns:
        float32 [B, S + M, C]; a multivalent feature without values gives zeros.
    """
    columns = rows.shape[1]
    parts = []
    if layout.single:
        parts.append(tf.gather(rows, plan["single"]))
    count = len(layout.multivalent)
    if count:
        batch = tf.shape(plan["single"])[0]
        segments = plan["segments"]
        # The last segment collects the padding.
        totals = tf.math.unsorted_segment_sum(tf.gather(rows, plan["values"]), segments, batch * count + 1)
        sizes = tf.math.unsorted_segment_sum(tf.ones_like(segments, tf.float32), segments, batch * count + 1)
        pooled = totals / tf.maximum(sizes, 1.0)[:, tf.newaxis]
        parts.append(tf.reshape(pooled[:-1], [batch, count, columns]))
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=1)


def split_columns(
    looked_up: Sequence[tf.Tensor], layouts: Sequence[TableLayout]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Separates embeddings from linear weights, over all tables.

    Args:
        looked_up: for each table float32 [B, features, width + 1].

    Returns:
        e0, float32 [B, sum of widths], and the sum of linear weights, float32 [B].
    """
    embeddings = []
    linear = []
    for value, layout in zip(looked_up, layouts, strict=True):
        linear.append(tf.reduce_sum(value[:, :, layout.width], axis=1))
        if layout.width:
            embedding = value[:, :, : layout.width]
            embeddings.append(tf.reshape(embedding, [-1, len(layout.features) * layout.width]))
    e0 = tf.concat(embeddings, axis=1) if embeddings else tf.zeros([tf.shape(linear[0])[0], 0])
    return e0, tf.add_n(linear)
