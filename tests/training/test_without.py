"""A model that leaves features of the log out is the model of a log that never had them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ctr.config import parse_model
from ctr.data.log import create_log
from ctr.data.schema import Schema
from ctr.data.shards import pack_ids, publish_partition
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.loop import train
from small_runs import INTERVALS, SCHEMA, SMALL, Examples, draw_examples, merged, publish

LEFT_OUT = ("item", "tags")


def publish_others(folder: Path, examples: Examples) -> Path:
    """The same log without these features."""
    schema = Schema(features=tuple(f for f in SCHEMA.features if f.name not in LEFT_OUT))
    table = examples.table().drop_columns(["tags"])
    ids = examples.ids[:, [0, 2]].astype(np.int32)
    table = table.set_column(table.schema.get_field_index("ids"), "ids", pack_ids(ids))
    create_log(folder, schema)
    times = table.column("query_time").to_numpy()
    for start, end in INTERVALS:
        inside = np.flatnonzero((times >= start) & (times < end))
        publish_partition(folder, schema, start, end, table.take(pa.array(inside)), shard_rows=170)
    return folder


def predictions(run: Path) -> np.ndarray:
    parts = sorted((run / "predictions").glob("*.parquet"))
    return np.concatenate([pd.read_parquet(part)["logit"].to_numpy() for part in parts])


@pytest.mark.slow
def test_features_that_are_left_out_are_as_if_they_were_not_there(tmp_path):
    examples = draw_examples()
    config = parse_model(TrainConfig, SMALL, "test")
    own = parse_model(
        TrainConfig,
        merged(SMALL, {"model": {"without": list(LEFT_OUT)}, "metrics": {"slices": ["item"]}}),
        "test",
    )
    log = publish(tmp_path / "log", examples.table())
    train(log, own, tmp_path / "own")
    train(publish_others(tmp_path / "others", examples), config, tmp_path / "expected")
    np.testing.assert_array_equal(predictions(tmp_path / "own"), predictions(tmp_path / "expected"))
    train(log, config, tmp_path / "whole")
    assert np.abs(predictions(tmp_path / "own") - predictions(tmp_path / "whole")).max() > 0.01


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"without": ["items"]}, "model.without names items, which is not a feature of the log"),
        ({"without": [f.name for f in SCHEMA.features]}, "model.without names all features"),
        ({"without": ["user"], "widths": {"item": 0, "tags": 0, "position": 0}}, "all features have width 0"),
        (
            {"without": ["position"], "factorized": {}},
            "no feature with a width above 0 is in the tower ui; model.factorized.ui_features, model.widths and "
            "model.without decide it",
        ),
    ],
)
def test_what_cannot_be_left_out(changes, message):
    content = merged(SMALL, {"model": {**changes, "network_loss": "joint"}})
    with pytest.raises(InputError) as refused:
        parse_model(TrainConfig, content, "test").table_layouts(SCHEMA)
    assert message in str(refused.value)
