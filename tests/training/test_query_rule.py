"""Why a query must not straddle two steps: its first labels would leak into its last predictions."""

import numpy as np
import pytest

from ctr.config import parse_model
from ctr.data.batches import Batch, whole_query_batches
from ctr.data.reader import Rows
from ctr.data.schema import Category, Schema
from ctr.eval.progressive import ProgressiveMetrics
from ctr.training.compiled_step import TrainStep
from ctr.training.config import TrainConfig
from ctr.training.feed import make_feed
from ctr.training.state import TrainState

QUERIES, SIZE = 200, 6
SCHEMA = Schema(features=(Category(name="query", source="query", buckets=QUERIES),))
CONFIG = parse_model(
    TrainConfig,
    {
        "model": {"crosses": {"layers": 0}, "deep": {"units": []}, "prior": 1 / SIZE},
        "optimizer": {"embeddings": {"linear_learning_rate": 0.5}},
    },
    "test",
)


def make_rows() -> Rows:
    """Each query has one click, anywhere; the only feature is the query itself: nothing tells its rows apart."""
    count = QUERIES * SIZE
    query = np.repeat(np.arange(QUERIES), SIZE)
    label = np.zeros(count, np.float32)
    label[np.arange(QUERIES) * SIZE + np.random.default_rng(0).integers(0, SIZE, QUERIES)] = 1
    return Rows(
        query_time=query, timestamp=query, query_id=query, example_id=np.arange(count), label=label,
        train_weight=np.ones(count, np.float32), metric_weight=np.ones(count, np.float32),
        ids=query[:, np.newaxis].astype(np.int32), multivalent={}, fault=np.zeros(count, np.int8),
        position=np.arange(count),
    )  # fmt: skip


def per_query_auc(rows: Rows, batches: list[Batch]) -> float:
    """Of one pass, each batch scored before it is learned from; the metric is reported of whole queries."""
    state = TrainState(CONFIG.table_layouts(SCHEMA), CONFIG, "float32")
    step = TrainStep(state, CONFIG, jit=False).learn
    logits = []
    for batch in batches:
        feed = make_feed(batch, state.layouts, 64)
        logits.append(step(feed, CONFIG.ramps_at(0), CONFIG.rates_at(0)).logit.numpy()[: len(batch.rows)])
    metrics = ProgressiveMetrics()
    metrics.update(rows.label, np.concatenate(logits), rows.metric_weight, rows.query_id)
    return metrics.summary()["per_query_auc"]


def test_whole_queries_leak_nothing():
    rows = make_rows()
    batches = list(whole_query_batches([rows], batch_rows=32, max_query_rows=32))
    assert per_query_auc(rows, batches) == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("batch_rows", [1, 4, 32])
def test_cut_queries_do(batch_rows):
    rows = make_rows()
    cut = [rows.slice(begin, min(begin + batch_rows, len(rows))) for begin in range(0, len(rows), batch_rows)]
    batches = [Batch(part, part.slice(0, 0), part.position[-1] + 1) for part in cut]
    # After a click the rest of its query is scored higher, and holds no other click.
    difference = per_query_auc(rows, batches) - 0.5
    assert difference < (-0.3 if batch_rows == 1 else -0.02)
