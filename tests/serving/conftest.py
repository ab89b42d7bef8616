"""Models of every kind and what the trainer itself predicts for raw rows with features of every kind.

All of them are made once and only read: a test that changes a model takes ``copied``.
"""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from ctr.data.log import create_log
from ctr.data.schema import Schema
from ctr.data.shards import publish_partition, sort_rows
from model_cases import (
    GROWING,
    LABELS,
    MODELS,
    NUMBERS,
    SCHEMA,
    SCHEMAS,
    Case,
    draw_numbers,
    draw_raw,
    make_case,
    packed_table,
)


@pytest.fixture(scope="session")
def case(tmp_path_factory):
    """A model of ``MODELS`` in a compute type, made once."""
    made: dict[tuple[str, str], Case] = {}

    def find(model: str = "plain", compute_dtype: str = "float32") -> Case:
        key = (model, compute_dtype)
        if key not in made:
            schema, folder = SCHEMAS[model], tmp_path_factory.mktemp("run")
            raw = draw_raw(90, unknown=schema is GROWING) | (draw_numbers(90) if schema is NUMBERS else {})
            labels = LABELS if model == "labeled" else None
            made[key] = make_case(MODELS[model], compute_dtype, folder, schema=schema, raw=raw, labels=labels)
        return made[key]

    return find


@pytest.fixture(scope="session")
def exported(case, tmp_path_factory):
    """The folder of such a model, exported once."""
    from ctr.serving.export import publish

    made: dict[tuple[str, str], Path] = {}

    def find(model: str = "plain", compute_dtype: str = "float32") -> Path:
        key = (model, compute_dtype)
        if key not in made:
            made[key] = publish(case(*key).snapshot, tmp_path_factory.mktemp("models")).path
        return made[key]

    return find


@pytest.fixture
def copied(exported, tmp_path):
    """A copy of an exported model as a version in the test's own folder."""

    def copy(model: str = "plain", version: str = "123") -> Path:
        return Path(shutil.copytree(exported(model), tmp_path / version))

    return copy


@pytest.fixture(scope="session")
def publish_rows():
    """Publishes the rows of a shard as a log."""

    def publish(folder: Path, table: pa.Table, schema: Schema = SCHEMA) -> Path:
        create_log(folder, schema)
        publish_partition(folder, schema, 0, 10**9, sort_rows(table), shard_rows=40)
        return folder

    return publish


@pytest.fixture(scope="session")
def make_rows_log(publish_rows):
    """A log of ``draw_raw``'s rows, of all features or of the first ones."""

    def make(folder: Path, count: int, first_features: int | None = None) -> Path:
        schema = Schema(features=SCHEMA.features[:first_features])
        return publish_rows(folder, packed_table(draw_raw(count), schema), schema)

    return make
