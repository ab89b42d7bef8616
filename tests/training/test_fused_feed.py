"""Feeds of many batches: of each batch they hold what a feed of it alone does, in the same order."""

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.data.batches import set_rejects_apart
from ctr.data.features import Category, Cross, Text
from ctr.data.reader import Rows
from ctr.data.schema import Schema
from ctr.data.stream import TEACHER_LOGIT
from ctr.training.config import TrainConfig
from ctr.training.feed import make_feed
from ctr.training.fused_feed import make_fused_feed, shape_of
from ctr.training.sizes import fused_shapes
from ctr.training.tables.plan import assign_rows

SCHEMA = Schema(
    features=(
        Category(name="a", source="a", buckets=30, width=2),
        Category(name="g", source="g", width=2),
        Category(name="m", source="m", width=2, multivalent=True, max_values=9),
        Text(name="t", source="t", buckets=40, width=4, max_values=2),
        Cross(name="x", of=("a", "m"), buckets=50, width=4),
    )
)
CONFIG = {
    "batch": {"rows": 64},
    "ids": {"admission": {"rule": "probability", "probability": 0.3}},
    "model": {"experts": ["linear", "network", "pairs"]},
    "objective": {"distillation": {"teacher": "t"}},
}


def draw_batches(rng, sizes):
    """One batch for each of ``sizes``, the rows of its queries; some rows are faulty, some have no multivalent ids."""
    batches, begin = [], 0
    for queries in sizes:
        rows = sum(queries)
        number = begin + np.arange(rows)
        multivalent = {}
        for name, most, below in (("m", 4, 9), ("t", 3, 40), ("x", 3, 50)):
            offsets = np.concatenate([[0], np.cumsum(rng.integers(0, most, rows))])
            multivalent[name] = rng.integers(0, below, offsets[-1]).astype(np.int64), offsets
        fault = (rng.random(rows) < 0.1).astype(np.int8)
        fault[0] = 0
        batches.append(
            set_rejects_apart(
                Rows(
                    query_time=number,
                    timestamp=number,
                    query_id=begin + np.repeat(np.arange(len(queries)), queries),
                    example_id=number,
                    label=rng.integers(0, 2, rows).astype(np.float32),
                    train_weight=rng.random(rows).astype(np.float32),
                    metric_weight=np.ones(rows, np.float32),
                    ids=np.stack([rng.integers(0, 30, rows), rng.integers(0, 12, rows)], axis=1),
                    multivalent=multivalent,
                    fault=fault,
                    position=number,
                    joined={TEACHER_LOGIT: rng.normal(size=rows).astype(np.float32)},
                )
            )
        )
        begin += rows
    return batches


@pytest.mark.parametrize("seed", range(4))
def test_each_batch_has_what_a_feed_of_its_own_has(seed):
    rng, config = np.random.default_rng(seed), parse_model(TrainConfig, CONFIG, "test")
    layouts = config.table_layouts(SCHEMA)
    assert len(layouts) == 3 and layouts[-1].tower == "pairs"
    batches = draw_batches(rng, [[1], [3, 2], [1, 1, 1], [8], [2, 5], [4]])
    fused = fused_shapes(config, layouts)
    assert {shape_of(batch, layouts, fused) for batch in batches} == {fused[0]}
    plain = [make_feed(batch, layouts, 8, config.objective, ids=config.ids) for batch in batches]
    feed = make_fused_feed(batches, layouts, lambda _: fused, config.objective, (), config.ids, None)
    for part, own in ((feed.part(2, 5), plain[2:5]), (feed, plain)):
        assert part.counts.tolist() == [len(one.batch.rows) for one in own]
        assert part.batch.end == own[-1].batch.end and part.rows == sum(one.rows for one in own)
        for name, values in part.targets.items():
            for row, one in zip(values, own, strict=True):
                np.testing.assert_array_equal(row, one.targets[name][: len(row)], err_msg=name)
        for number, layout in enumerate(layouts):
            _assert_same_plans(rng, layout, part.plans[number], [one.plans[number] for one in own])


def _assert_same_plans(rng, layout, plans, expected):
    # Some ids share rows.
    rows = []
    if plans.pending is not None:
        for name in ("features", "fingerprints", "counts", "admitted"):
            whole = np.concatenate([getattr(one.pending, name) for one in expected])
            np.testing.assert_array_equal(getattr(plans.pending, name), whole, err_msg=name)
        rows = [rng.integers(0, layout.rows + 5, len(one.pending.at)).astype(np.int32) for one in expected]
        plans = plans.with_rows(np.concatenate(rows))
        expected = [assign_rows(*each, layout.rows + 5) for each in zip(expected, rows, strict=True)]
    assert plans.counts.tolist() == [one.distinct_count for one in expected]
    ends = np.cumsum(plans.counts)
    for number, (end, one) in enumerate(zip(ends, expected, strict=True)):
        own = plans.distinct[end - plans.counts[number] : end]
        np.testing.assert_array_equal(own, one.distinct[: one.distinct_count])
        np.testing.assert_array_equal(plans.single[number], one.single)
        used = int((one.segments < len(one.single) * len(layout.multivalent)).sum())
        for name in ("values", "segments"):
            np.testing.assert_array_equal(getattr(plans, name)[number][:used], getattr(one, name)[:used])
        padding = plans.segments[number][used:]
        assert (padding == plans.single.shape[1] * len(layout.multivalent)).all()
