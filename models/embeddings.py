"""The embedding tables and what a batch sees of them."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr.models.click_model import TowerInput
from ctr.models.rows import TableLayout

Plan = Mapping[str, tf.Tensor]


def create_table(layout: TableLayout, init_scale: float, seed: int) -> tf.Variable:
    """A float32 [rows, columns] table: embeddings normal with ``init_scale``, linear weights 0."""
    columns = []
    for copy in range(layout.copies):
        # The name is in the seed, so that adding a table or a copy does not change another one's start.
        name = f"{layout.name}/{copy}" if copy else layout.name
        name_seed = int(tf.strings.to_hash_bucket_fast(name, 2**31 - 1))
        columns.append(
            init_scale * tf.random.stateless_normal([layout.rows, layout.width], [seed, name_seed])
        )
        columns.append(tf.zeros([layout.rows, 1]))
    return tf.Variable(tf.concat(columns, axis=1), name=f"rows/{layout.name}")


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


def tower_inputs(
    looked_up: Sequence[tf.Tensor], layouts: Sequence[TableLayout], factorised: bool
) -> dict[str, TowerInput]:
    """Separates embeddings from linear weights, over all tables of a tower.

    Args:
        looked_up: for each table float32 [B, features, columns].
        layouts: of these tables, which may be those of one tower alone.
        factorised: whether towers are kept apart; otherwise ``quality`` stands for both.

    Returns:
        What each tower sees that has a table.
    """
    rows = tf.shape(looked_up[0])[0]
    groups: dict[str, list[tuple[tf.Tensor, TableLayout]]] = {}
    for value, layout in zip(looked_up, layouts, strict=True):
        groups.setdefault(_tower(layout, factorised), []).append((value, layout))
    inputs = {}
    for tower, own in groups.items():
        embeddings = []
        linear = []
        for value, layout in own:
            size = layout.width + 1
            for copy in range(layout.copies):
                part = value[:, :, copy * size : (copy + 1) * size]
                linear.append(tf.reduce_sum(part[:, :, layout.width], axis=1))
                embeddings.append(
                    tf.reshape(part[:, :, : layout.width], [rows, len(layout.features) * layout.width])
                )
        copies = own[0][1].copies
        inputs[tower] = TowerInput(
            e0=tf.stack([tf.concat(embeddings[copy::copies], axis=1) for copy in range(copies)]),
            linear=tf.stack([tf.add_n(linear[copy::copies]) for copy in range(copies)]),
        )
    return inputs


def tower_widths(layouts: Sequence[TableLayout], factorised: bool) -> dict[str, int]:
    """The width of each tower's concatenated embeddings, for ``tower_inputs``."""
    widths: dict[str, int] = {}
    for layout in layouts:
        tower = _tower(layout, factorised)
        widths[tower] = widths.get(tower, 0) + layout.width * len(layout.features)
    return widths


def tower_columns(layouts: Sequence[TableLayout], factorised: bool) -> dict[str, dict[str, slice]]:
    """Where in each tower's input the embedding of each feature lies, as ``tower_inputs`` puts them side by side."""
    columns: dict[str, dict[str, slice]] = {}
    for layout in layouts:
        own = columns.setdefault(_tower(layout, factorised), {})
        for feature in layout.features:
            begin = max((place.stop for place in own.values()), default=0)
            own[feature.name] = slice(begin, begin + layout.width)
    return columns


def _tower(layout: TableLayout, factorised: bool) -> str:
    return layout.tower if factorised else "quality"
