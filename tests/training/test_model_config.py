"""What of a model's configuration is refused, the tables that follow from it, and what a log decides of it."""

import numpy as np
import pyarrow as pa
import pytest

from ctr.data.features import Category, Number
from ctr.data.log import create_log, read_manifests
from ctr.data.schema import Schema
from ctr.data.shards import pack_ids, publish_partition
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.logs import resolve
from ctr.training.session import train
from growing_logs import ADAGRAD, read_predictions
from small_runs import LOGISTIC, SCHEMA, draw_examples, make_config, publish

UI = "no feature with a width above 0 is in the tower ui; model.factorized.ui_features, model.widths and model.without"
REFUSED = [
    ({"deep": {"ranks": [8]}}, "model.deep.*rank 8 of a layer of 8.*allowed: 1..7, 0: none"),
    ({"factorized": {"ui_units": [0]}}, "model.factorized.*1..65536"),
    # A logistic regression has no towers and no components.
    ({**LOGISTIC["model"], "factorized": {}}, "crosses or deep layers"),
    # What does not fit the features of the log.
    ({"factorized": {"ui_features": ["positon"]}}, "ui_features names positon, which is not a feature of"),
    ({"factorized": {"ui_features": []}}, UI),
    ({"widths": {"positon": 1}}, "model.widths names positon.*allowed: user, item, tags, position"),
    ({"without": [f.name for f in SCHEMA.features]}, "model.without names all features"),
    ({"without": ["user"], "widths": {"item": 0, "tags": 0, "position": 0}}, "all features have width 0"),
]


def test_what_does_not_go_together_or_with_the_log_is_refused():
    for model, words in REFUSED:
        with pytest.raises(InputError, match=words):
            make_config({"model": model}).table_layouts(SCHEMA)
    for changes, words in (
        ({"objective": {"anti_distillation": {}}}, "model.ensemble.components of at least 2"),
        ({"optimizer": {"embeddings": {"rule": "adam"}}}, "'adagrad' or 'one_sided'"),
    ):
        with pytest.raises(InputError, match=words):
            make_config(changes)


def test_tables_follow_from_towers_widths_and_components():
    def tables(**model: object) -> dict[str, list[str]]:
        layouts = make_config({"model": model}).table_layouts(SCHEMA)
        return {layout.name: [feature.name for feature in layout.features] for layout in layouts}

    assert tables(factorized={})["ui-2"] == ["position"]
    moved = tables(factorized={"ui_features": ["tags", "position"]})
    ui = {name for table, names in moved.items() if table.startswith("ui") for name in names}
    assert ui == {"tags", "position"}
    assert tables(widths={"user": 9, "tags": 0}) == {
        "quality-0": ["tags"],
        "quality-4": ["item"],
        "quality-9": ["user"],
        "ui-2": ["position"],
    }
    # A logistic regression has no use for embeddings.
    assert [layout.width for layout in make_config(logistic=True).table_layouts(SCHEMA)] == [0, 0]
    # Components with embeddings of their own have wider tables.
    one, shared, separate = (
        [layout.columns for layout in make_config({"model": {"ensemble": own}}).table_layouts(SCHEMA)]
        for own in ({}, {"components": 3}, {"components": 3, "embeddings": "separate"})
    )
    assert separate == [3 * columns for columns in one] and shared == one
    features = tuple(Category(name=name, source=name, buckets=2**30, width=4) for name in "ab")
    with pytest.raises(InputError, match=r"table quality-4: 2147483648 rows are too many.*model\.widths"):
        make_config().table_layouts(Schema(features=features))


# What a log decides.

OPEN = Schema(
    features=(
        Category(name="user", source="user"),
        Category(name="color", source="color", vocabulary=("red", "blue")),
        Number(name="price", source="price", boundaries=tuple(range(20))),
        Category(name="tags", source="tags", multivalent=True),
        Category(name="ad", source="ad", width=5),
    )
)


def open_rows(start: int, users: int) -> pa.Table:
    random = np.random.default_rng(users)
    number = np.arange(start, start + 500)
    ids = [1 + number % users, random.integers(0, 4, 500), random.integers(0, 21, 500), number + 1]
    ones = np.ones(500, np.float32)
    return pa.table(
        {
            **{name: number for name in ("query_time", "timestamp", "query_id", "example_id")},
            "label": random.integers(0, 2, 500).astype(np.int8),
            "train_weight": ones,
            "metric_weight": ones,
            "ids": pack_ids(np.stack(ids, axis=1).astype(np.int64)),
            "tags": pa.array([[1 + row % 3, 2] for row in number], pa.list_(pa.int64())),
        }
    )


@pytest.mark.parametrize(("users", "width"), [(4, 2), (5, 4), (16, 4), (17, 8), (128, 8), (129, 16)])
def test_open_widths_follow_the_ids_of_the_first_partition(users, width, tmp_path):
    create_log(tmp_path, OPEN)
    publish_partition(tmp_path, OPEN, 0, 500, open_rows(0, users))
    publish_partition(tmp_path, OPEN, 500, 1000, open_rows(500, 400))
    manifests = read_manifests(tmp_path)
    assert manifests[0].distinct == {"user": users, "tags": 3, "ad": 500}
    # Four ids of a vocabulary of two words; of 20 boundaries 22; a width that the log names stays.
    found = resolve(TrainConfig(), OPEN, manifests).model.widths
    assert found == {"user": width, "color": 2, "price": 8, "tags": 2}
    # What a configuration names stays, and what is resolved stays without a log.
    config = TrainConfig(model={"widths": {"user": 3, "ad": 0}})
    resolved = resolve(config, OPEN, manifests)
    assert resolved.model.widths == {"user": 3, "ad": 0, "color": 2, "price": 8, "tags": 2}
    assert resolve(resolved, OPEN, []) == resolved


@pytest.mark.slow
def test_features_that_are_left_out_are_as_if_the_log_never_had_them(tmp_path):
    examples = draw_examples()
    schema = Schema(features=tuple(f for f in SCHEMA.features if f.name not in ("item", "tags")))
    table = examples.table().drop_columns(["tags"])
    ids = pack_ids(examples.ids[:, [0, 2]].astype(np.int32))
    table = table.set_column(table.schema.get_field_index("ids"), "ids", ids)
    publish(tmp_path / "others", table, schema=schema)
    log = publish(tmp_path / "log", examples.table())
    without = {"model": {"without": ["item", "tags"]}, "metrics": {"slices": ["item"]}}
    train(log, make_config({**ADAGRAD, **without}), tmp_path / "own")
    train(tmp_path / "others", make_config(ADAGRAD), tmp_path / "expected")
    own, expected = (read_predictions(tmp_path / name)["logit"] for name in ("own", "expected"))
    np.testing.assert_array_equal(own, expected)
