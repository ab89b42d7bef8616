"""Sizes are few and waste little; few shapes: at most four for any log, and a run predicts the same."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.config import parse_model
from ctr.data.batches import Batch
from ctr.data.features import Category, Cross, Text
from ctr.data.reader import Rows
from ctr.data.schema import Schema
from ctr.experiments.config import merged
from ctr.io.errors import InputError
from ctr.training import inputs as inputs_module
from ctr.training.config import TrainConfig
from ctr.training.feed import Feed, make_feed
from ctr.training.session import train
from ctr.training.sizes import few_shapes, fit
from ctr.training.state import TrainState
from growing_logs import ADAGRAD, read_predictions
from small_runs import make_config

MAX_VALUES = 3
SCHEMA = Schema(
    features=(
        Category(name="a", source="a", buckets=300, width=2),
        Category(name="m", source="m", width=2, multivalent=True, max_values=MAX_VALUES),
        Text(name="t", source="t", buckets=40, width=4, max_values=2),
        Cross(name="x", of=("a", "m"), buckets=50, width=4),
        Category(name="g", source="g", width=2),
    )
)
ROWS, MAX_QUERY_ROWS = 32, 100


def config_of(growth: float | None, ranking: bool) -> TrainConfig:
    content: dict[str, Any] = {
        "batch": {"rows": ROWS, "max_query_rows": MAX_QUERY_ROWS, "growth": growth, "shapes": "few"},
        "ids": {"capacity": 500},
        "objective": {"ranking": {"max_pairs": 9}} if ranking else {},
    }
    return parse_model(TrainConfig, content, "test")


def draw_batch(rng: np.random.Generator, begin: int, queries: list[int], spread: int) -> Batch:
    """Whole queries of so many rows each, with ids below ``spread``."""
    rows = sum(queries)
    number = begin + np.arange(rows)
    multivalent = {}
    for name, most, below in (("m", MAX_VALUES, spread), ("t", 2, 40), ("x", MAX_VALUES, 50)):
        offsets = np.concatenate([[0], np.cumsum(rng.integers(0, most + 1, rows))])
        multivalent[name] = rng.integers(1, max(2, below), offsets[-1]).astype(np.int64), offsets
    label, weight = rng.integers(0, 2, rows).astype(np.float32), np.ones(rows, np.float32)
    found = Rows(
        query_time=number,
        timestamp=number,
        query_id=begin + np.repeat(np.arange(len(queries)), queries),
        example_id=number,
        label=label,
        train_weight=weight,
        metric_weight=weight,
        ids=np.stack([rng.integers(0, 300, rows), rng.integers(1, max(2, spread), rows)], axis=1),
        multivalent=multivalent,
        fault=np.zeros(rows, np.int8),
        position=number,
    )
    return Batch(found, found.slice(0, 0), begin + rows)


def shapes_of(feed: Feed) -> tuple[Any, ...]:
    """The shapes that XLA sees."""
    tensors = [feed.target_tensors, *feed.plan_tensors]
    return tuple((name, tuple(part.shape)) for named in tensors for name, part in sorted(named.items()))


@given(st.integers(1, 10**7), st.integers(1, 5000))
def test_a_size_holds_its_entries_and_wastes_little(count, least):
    size = fit(count, least)
    assert size >= max(count, least)
    if count > least:
        assert size - count < size / 4
        # Padding does not creep when it is applied again.
        assert fit(size, least) == size


def test_sizes_are_few():
    assert len({fit(count) for count in range(1, 100_000)}) <= 4 * np.log2(100_000 / 64) + 2
    assert [fit(count, 1) for count in range(1, 12)] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 10, 12]


@pytest.mark.slow
@settings(max_examples=30)
@given(
    data=st.data(), growth=st.sampled_from([None, 0.25]), ranking=st.booleans(), seed=st.integers(0, 2**16)
)
def test_any_batches_have_at_most_four_shapes(data, growth, ranking, seed):
    config, rng = config_of(growth, ranking), np.random.default_rng(seed)
    layouts = config.table_layouts(SCHEMA)
    shapes = few_shapes(config, SCHEMA, layouts)
    assert len(shapes) <= 4 - (growth is None)
    state = TrainState(layouts, config, "float32")
    before = [state.tables.count(number) for number in range(len(layouts))]
    sizes = st.one_of(
        st.lists(st.integers(1, 8), min_size=1, max_size=4),
        st.just([ROWS]),
        st.just([6] * (ROWS // 6)),
        st.integers(1, MAX_QUERY_ROWS).map(lambda size: [size]),
    )
    begin, seen = 0, set()
    for queries in data.draw(st.lists(sizes, min_size=1, max_size=12)):
        batch = draw_batch(rng, begin, queries, data.draw(st.sampled_from([2, 30, 10**6])))
        begin = batch.end
        options = (config.objective, (), config.ids)
        given = make_feed(batch, layouts, ROWS, *options, shapes=lambda _: shapes)
        feed, plain = given.with_rows(state.tables, learning=True), make_feed(batch, layouts, ROWS, *options)
        seen.add(shapes_of(feed))
        # Each row of the batch has the rows of the table that it has without.
        for one, other in zip(feed.plans, plain.with_rows(state.tables).plans, strict=True):
            found, expected = (plan.distinct[plan.single[: len(batch.rows)]] for plan in (one, other))
            np.testing.assert_array_equal(found, expected)
        assert [state.tables.count(number) for number in range(len(layouts))] == before
    assert len(seen) <= len(shapes)


def test_a_batch_beyond_all_shapes_is_refused():
    config = config_of(None, ranking=False)
    layouts = config.table_layouts(SCHEMA)
    batch = draw_batch(np.random.default_rng(0), 7, [MAX_QUERY_ROWS + 1], 30)
    with pytest.raises(InputError, match="from row 7 of the log on has 101 rows"):
        make_feed(batch, layouts, ROWS, shapes=partial(few_shapes, config, SCHEMA))


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("changes", [{}, {"objective": {"ranking": {}}}], ids=["plain", "ranking"])
def test_a_run_predicts_the_same(log, tmp_path, monkeypatch, changes):
    seen: dict[str, set[Any]] = {"few": set(), "many": set()}
    logits = {}
    for shapes in ("many", "few"):
        make = inputs_module.make_feed

        def watched(*arguments, kind=shapes, make=make, **options):
            feed = make(*arguments, **options)
            seen[kind].add(shapes_of(feed))
            return feed

        monkeypatch.setattr(inputs_module, "make_feed", watched)
        batch = {"rows": 64, "growth": 0.1, "max_query_rows": 128, "shapes": shapes}
        config = make_config(merged(ADAGRAD, merged({"batch": batch}, changes)))
        train(log, config, tmp_path / shapes)
        monkeypatch.setattr(inputs_module, "make_feed", make)
        logits[shapes] = read_predictions(tmp_path / shapes)["logit"].to_numpy()
    np.testing.assert_allclose(logits["few"], logits["many"], rtol=0, atol=1e-4)
    assert len(seen["few"]) <= 4 < len(seen["many"])
