"""The size of queries, counted one by one: in pages, in sessions, among faulty rows, and in samples."""

from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.config import parse_model
from ctr.data.features import Category
from ctr.data.log import create_log, read_manifests
from ctr.data.query_size import FEATURE, with_query_size
from ctr.data.reader import join_rows, read_rows, rows_of_table
from ctr.data.sample_log import write_decisions, write_sampled_log
from ctr.data.sampling import SamplingConfig
from ctr.data.schema import Schema
from ctr.data.shards import pack_ids, publish_partition
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.inputs import open_inputs, read_feeds
from ctr.training.logs import open_logs, resolve

SCHEMA = Schema(features=(Category(name="user", source="user", buckets=9),))
GROWING = Schema(features=(Category(name="user", source="user"),))
FOUR = 4  # partitions


def make_table(sizes: list[int], lasts: list[bool], faulty: list[bool], schema: Schema = SCHEMA) -> pa.Table:
    """Queries of some sizes, a second apart; the rows of those that last are a microsecond apart."""
    query = np.repeat(np.arange(len(sizes)), sizes)
    row = np.arange(len(query))
    of_query = row - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return pa.table(
        {
            "query_time": 1000 * query + 999,
            "timestamp": 1000 * query + of_query * np.array(lasts)[query],
            "query_id": 7 - query,
            "example_id": row,
            "label": np.where(np.resize(faulty, len(row)), 3, row % 2).astype(np.int8),
            **dict.fromkeys(("train_weight", "metric_weight"), np.ones(len(row), np.float32)),
            "ids": pack_ids((row % 9)[:, None].astype(schema.id_type)),
        }
    )


def publish(folder: Path, table: pa.Table, schema: Schema = SCHEMA) -> Path:
    create_log(folder, schema)
    times = table.column("query_time").to_numpy()
    ends = [(part * (times[-1] + 1)) // FOUR for part in range(FOUR + 1)]
    for start, end in pairwise(ends):
        inside = table.filter(pa.array((times >= start) & (times < end)))
        publish_partition(folder, schema, int(start), int(end), inside, shard_rows=4)
    return folder


def expected_ids(table: pa.Table) -> list[int]:
    """By counting the rows of each query: 0 for one that lasts, else one more than there are boundaries up to it."""
    rows, times = Counter(), defaultdict(set)
    for query, time in zip(table["query_id"].to_pylist(), table["timestamp"].to_pylist(), strict=True):
        rows[query] += 1
        times[query].add(time)
    return [
        0 if len(times[query]) > 1 else 1 + sum(edge <= rows[query] for edge in FEATURE.edges())
        for query in table["query_id"].to_pylist()
    ]


@settings(max_examples=25)
@given(
    queries=st.lists(st.tuples(st.integers(1, 70), st.booleans()), min_size=1, max_size=12),
    faulty=st.lists(st.booleans(), min_size=1, max_size=9),
    grows=st.booleans(),
)
def test_rows_are_counted_over_all_shards_and_partitions(tmp_path_factory, queries, faulty, grows):
    sizes, lasting = map(list, zip(*queries, strict=True))
    schema = GROWING if grows else SCHEMA
    table = make_table(sizes, lasting, faulty, schema)
    log = publish(tmp_path_factory.mktemp("log") / "log", table, schema)
    counted, manifests = with_query_size(schema), read_manifests(log)
    rows = join_rows(list(read_rows(log, counted, manifests)))
    assert rows.ids.dtype == schema.id_type and rows.ids[:, -1].tolist() == expected_ids(table)
    plain = join_rows(list(read_rows(log, schema, manifests)))
    np.testing.assert_array_equal(rows.ids[:, :-1], plain.ids)
    # Columns of a shard, of whole queries, are read alike; so is the rest of the log from a query on.
    assert rows_of_table(table, counted, 0).ids.tolist() == rows.ids.tolist()
    begin = sizes[0] if len(sizes) > 1 else 0
    rest = join_rows(list(read_rows(log, counted, manifests, begin)))
    assert rest.ids.tolist() == rows.ids[begin:].tolist()
    several = [one for one in zip(sizes, lasting, strict=True) if one[0] > 1]
    assert sum(manifest.pages.get("pages", 0) for manifest in manifests) == sum(not one[1] for one in several)
    assert sum(manifest.pages.get("sessions", 0) for manifest in manifests) == sum(one[1] for one in several)


@pytest.mark.parametrize(
    ("sizes", "lasting", "is_on"),
    [
        ([3, 5, 1, 2], [False], True),
        ([1, 1, 1, 4], [False], True),
        ([4, 4, 4, 4], [False], False),  # says nothing
        ([3, 5, 1, 2], [True], False),
        # That a value is missing says that another row comes.
        ([1, 1, 1, 1, 1, 2], [True], False),
        ([3, 5, 2, 2, 4, 3], [False, True], False),
        ([1] * 400 + [2, 2], [True], False),
        ([2, 3] * 200, [True] + [False] * 399, True),
    ],
)
def test_it_is_on_where_pages_differ(tmp_path, sizes, lasting, is_on):
    log = tmp_path / "log"
    create_log(log, SCHEMA)
    publish_partition(log, SCHEMA, 0, 10**9, make_table(sizes, np.resize(lasting, len(sizes)), [False]))
    found = open_logs(log, TrainConfig())
    assert found.config.model.query_size is is_on and ("query_size" in found.schema.by_name) is is_on
    assert resolve(found.config, found.schema, []) == found.config
    for value in (True, False):
        model = {"model": {"query_size": value}}
        other = open_logs(log, parse_model(TrainConfig, model, "test"))
        assert other.config.model.query_size is value is ("query_size" in other.schema.by_name)


def test_what_the_log_has_of_this_name_is_left_alone(tmp_path):
    pages = make_table([3, 5, 1, 2], [False] * 4, [False])
    derived = {"derive": {"query_size": {"from": "user", "prefix": 1}}}
    for number, (name, source, more) in enumerate(
        (("query_size", "user", {}), ("user", "query_size", {}), ("user", "query_size", derived))
    ):
        feature = {"name": name, "kind": "category", "source": source, "buckets": 9}
        schema = parse_model(Schema, {"features": [feature], **more}, "test")
        log = publish(tmp_path / str(number), pages, schema)
        assert open_logs(log, TrainConfig()).config.model.query_size is False
        with pytest.raises(InputError, match="column query_size of its own; allowed: auto, false"):
            open_logs(log, parse_model(TrainConfig, {"model": {"query_size": True}}, "test"))
    log = publish(tmp_path / "log", pages)
    without = {"model": {"without": ["query_size"]}}
    with pytest.raises(InputError, match=r"model\.without names query_size, which is not a feature"):
        open_logs(log, parse_model(TrainConfig, without, "test"))


def test_a_sample_does_not_make_pages_smaller(tmp_path):
    table = make_table([6, 30, 3, 12, 1, 9] * 20, [False] * 120, [False])
    log = publish(tmp_path / "log", table)
    halved = parse_model(SamplingConfig, {"non_click_rate": 0.5}, "test")
    write_decisions(log, "half", halved)
    sampling = {"sampling": {"name": "half", "score": "kept"}, "batch": {"rows": 64}}
    inputs = open_inputs(log, parse_model(TrainConfig, sampling, "test"))
    feeds = read_feeds(inputs, lambda: inputs.config.table_layouts(inputs.schema))
    read = [(feed.batch.rows.example_id, feed.batch.rows.ids[:, -1]) for feed in feeds]
    examples, ids = (np.concatenate(column) for column in zip(*read, strict=True))
    assert 0.3 < len(examples) / table.num_rows < 0.9
    assert ids.tolist() == np.array(expected_ids(table))[examples].tolist()
    # A log of the kept rows alone does not know how many there were.
    write_sampled_log(log, "half", halved, tmp_path / "small")
    assert open_logs(tmp_path / "small", TrainConfig()).config.model.query_size is False
    with pytest.raises(InputError, match=r"query_size: true: the queries of .*small are not whole"):
        open_logs(tmp_path / "small", parse_model(TrainConfig, {"model": {"query_size": True}}, "test"))
