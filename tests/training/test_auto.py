"""What a log's manifests decide of a configuration."""

import numpy as np
import pyarrow as pa
import pytest
import yaml

from ctr.data.log import create_log, read_manifests
from ctr.data.schema import Category, Number, Schema
from ctr.data.shards import pack_ids, publish_partition
from ctr.training.config import TrainConfig
from ctr.training.logs import resolve
from ctr.training.loop import open_session, train

SCHEMA = Schema(
    features=(
        Category(name="user", source="user"),
        Category(name="color", source="color", vocabulary=("red", "blue")),
        Number(name="price", source="price", boundaries=tuple(range(20))),
        Category(name="tags", source="tags", multivalent=True),
        Category(name="ad", source="ad", width=5),
    )
)
LOGISTIC = {"crosses": {"layers": 0}, "deep": {"units": []}}


def rows(start: int, users: int, seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    number = np.arange(start, start + 500)
    ids = np.stack(
        [
            1 + number % users,
            random.integers(0, 4, 500),
            random.integers(0, 21, 500),
            number + 1,
        ],
        axis=1,
    )
    ones = np.ones(500, np.float32)
    return pa.table(
        {
            **{name: number for name in ("query_time", "timestamp", "query_id", "example_id")},
            "label": random.integers(0, 2, 500).astype(np.int8),
            "train_weight": ones,
            "metric_weight": ones,
            "ids": pack_ids(ids.astype(np.int64)),
            "tags": pa.array([[1 + row % 3, 2] for row in number], pa.list_(pa.int64())),
        }
    )


@pytest.fixture
def log(tmp_path):
    create_log(tmp_path / "log", SCHEMA)
    publish_partition(tmp_path / "log", SCHEMA, 0, 500, rows(0, users=16))
    return tmp_path / "log"


def test_manifests_count_the_ids_of_features_without_buckets(log):
    (manifest,) = read_manifests(log)
    assert manifest.distinct == {"user": 16, "tags": 3, "ad": 500}


@pytest.mark.parametrize(("users", "width"), [(4, 2), (5, 4), (16, 4), (17, 8), (128, 8), (129, 16)])
def test_widths_follow_the_number_of_ids(users, width, tmp_path):
    create_log(tmp_path, SCHEMA)
    publish_partition(tmp_path, SCHEMA, 0, 500, rows(0, users, seed=users))
    (manifest,) = read_manifests(tmp_path)
    assert manifest.distinct["user"] == users
    widths = resolve(TrainConfig(), SCHEMA, [manifest]).model.widths
    # Four ids of a vocabulary of two words; of 20 boundaries 22; a width that the log names stays.
    assert widths == {"user": width, "color": 2, "price": 8, "tags": 2}


def test_what_a_configuration_names_stays(log):
    config = TrainConfig(model={"widths": {"user": 3, "ad": 0}})
    widths = resolve(config, SCHEMA, read_manifests(log)).model.widths
    assert widths == {"user": 3, "ad": 0, "color": 2, "price": 8, "tags": 2}
    assert resolve(resolve(config, SCHEMA, read_manifests(log)), SCHEMA, []).model.widths == widths


@pytest.mark.slow
def test_a_run_that_follows_has_the_configuration_of_one_pass(log, tmp_path):
    config = TrainConfig(model=LOGISTIC)
    with open_session(log, config, tmp_path / "followed") as session:
        session.advance()
        publish_partition(log, SCHEMA, 500, 1000, rows(500, users=400))
        session.finish()
    train(log, config, tmp_path / "whole")
    found = [yaml.safe_load((tmp_path / run / "config.yaml").read_text()) for run in ("followed", "whole")]
    assert found[0] == found[1]
    assert found[0]["model"]["widths"]["user"] == 4
    # The configuration that left it open goes on with the run.
    assert train(log, config, tmp_path / "followed")["examples"] == 1000
