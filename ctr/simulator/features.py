"""Logged columns of the simulated world, and the schema of their features."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ctr.data.features import Category, Cross, LogBuckets, Number, Text
from ctr.data.ids.tables import transform_table
from ctr.data.kept_values import has_raw_values
from ctr.data.parquet_files import IDS_COLUMN
from ctr.data.schema import Schema
from ctr.data.shards import pack_ids, shard_schema
from ctr.data.value_arrays import offsets_of
from ctr.simulator.auction import Placed, ad_age_days
from ctr.simulator.config import MAX_SLOTS, WorldConfig
from ctr.simulator.world import (
    AGE_GROUPS,
    COUNTRIES,
    DEVICES,
    FORMATS,
    NO_WORD,
    RENDERINGS,
    Ads,
    Queries,
    World,
)

SCHEMA = Schema(
    features=(
        Category(name="user_id", source="user_id", buckets=50_000),
        Category(name="age_group", source="age_group", vocabulary=AGE_GROUPS),
        Category(name="country", source="country", buckets=1_000),
        Category(name="device", source="device", vocabulary=DEVICES),
        Category(name="hour", source="hour", vocabulary=tuple(str(hour) for hour in range(24))),
        Category(name="day_of_week", source="day_of_week", vocabulary=tuple(str(day) for day in range(7))),
        Text(name="query_words", source="query", words=(1, 2), buckets=50_000),
        Category(name="ad_id", source="ad_id", buckets=50_000),
        Category(name="advertiser", source="advertiser", buckets=5_000),
        Text(name="ad_words", source="ad_text", words=(1,), buckets=10_000),
        Number(name="ad_age", source="ad_age_days", log=LogBuckets(per_octave=1, maximum=1024)),
        Category(name="format", source="format", vocabulary=FORMATS, tower="ui"),
        Category(name="rendering", source="rendering", vocabulary=RENDERINGS, tower="ui"),
        Category(
            name="position",
            source="position",
            vocabulary=tuple(str(index) for index in range(1, MAX_SLOTS + 1)),
            tower="ui",
        ),
        Cross(name="format_device", of=("format", "device"), buckets=100, tower="ui"),
    )
)


def world_schema(config: WorldConfig) -> Schema:
    """Returns the features of a world's log: ``SCHEMA``, without its buckets if ids are not hashed."""
    if config.buckets:
        return SCHEMA
    growing = {"buckets": None}
    features = (f.model_copy(update=growing) if has_raw_values(f) else f for f in SCHEMA.features)
    return Schema(features=tuple(features))


def _named(numbers: np.ndarray, names: tuple[str, ...]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), pa.array(names))


def _joined_words(words: np.ndarray) -> pa.Array:
    """Converts word numbers, [M, K], ``NO_WORD`` for none, to M texts."""
    return pa.array([" ".join(f"w{word}" for word in row if word != NO_WORD) for row in words.tolist()])


def _numbered(prefix: str, numbers: np.ndarray) -> pa.Array:
    return pa.array([f"{prefix}{number}" for number in numbers.tolist()])


_UI_SHAPE = (MAX_SLOTS, len(FORMATS), len(RENDERINGS), len(DEVICES))


def _page_number(queries: Queries, placed: Placed) -> np.ndarray:
    """Returns the index of each ad's combination of position, format, rendering and device, [N]."""
    query = placed.query
    axes = (placed.position - 1, placed.format, queries.rendering[query], queries.device[query])
    return np.ravel_multi_index(axes, _UI_SHAPE)


@dataclass(frozen=True)
class _Ids:
    """M entities: their raw columns, and ids of features: [M, F], and a list array for each multivalent one."""

    raw: pa.Table
    names: tuple[str, ...]
    matrix: np.ndarray
    lists: dict[str, pa.ListArray]


def _ids_of(whole: Schema, columns: dict[str, Any], names: tuple[str, ...]) -> _Ids:
    schema, table = whole.only(names), pa.table(columns)
    matrix, lists = transform_table(schema, table)
    single = tuple(name for name in names if name in schema.single_valued)
    arrays = {
        name: pa.ListArray.from_arrays(offsets_of(lengths).astype(np.int32), values)
        for name, (values, lengths) in lists.items()
        if name in names
    }
    return _Ids(table, single, matrix[:, [schema.single_valued.index(name) for name in single]], arrays)


class FeatureIds:
    """Computes the feature ids of placed ads: hashes users and page placements once, queries and ads once per day."""

    def __init__(self, world: World, schema: Schema = SCHEMA) -> None:
        self.schema = schema
        users = {
            "user_id": _numbered("u", np.arange(len(world.user_age))),
            "age_group": _named(world.user_age, AGE_GROUPS),
            "country": _named(world.user_country, COUNTRIES),
        }
        self._users = _ids_of(schema, users, ("user_id", "age_group", "country"))
        # Every way in which an ad can stand on a page; see ``_page_number``.
        position, form, rendering, device = (axis.ravel() for axis in np.indices(_UI_SHAPE))
        pages = {
            "position": position + 1,
            "format": _named(form, FORMATS),
            "rendering": _named(rendering, RENDERINGS),
            "device": _named(device, DEVICES),
        }
        self._pages = _ids_of(schema, pages, ("format", "rendering", "position", "format_device"))
        self._day: tuple[_Ids, _Ids] | None = None

    def begin_day(self, queries: Queries, ads: Ads) -> None:
        of_queries = {
            "device": _named(queries.device, DEVICES),
            "hour": queries.hour,
            "day_of_week": np.full(len(queries), queries.weekday),
            "query": _joined_words(queries.words),
        }
        of_ads = {
            "ad_id": _numbered("a", ads.number),
            "advertiser": _numbered("r", ads.advertiser),
            "ad_text": _joined_words(ads.words),
            "ad_age_days": ad_age_days(ads, np.arange(len(ads)), queries.day),
        }
        self._day = (
            _ids_of(self.schema, of_queries, ("device", "hour", "day_of_week", "query_words")),
            _ids_of(self.schema, of_ads, ("ad_id", "advertiser", "ad_words", "ad_age")),
        )

    def table(self, keys: dict[str, Any], queries: Queries, placed: Placed) -> pa.Table:
        """Returns rows of a shard, equal to ``raw`` transformed; ``keys`` are the columns that are not features."""
        single = self.schema.single_valued
        matrix = np.empty((len(placed), len(single)), self.schema.id_type)
        columns = dict(keys)
        for ids, rows in self._entities(queries, placed):
            indices = [single.index(name) for name in ids.names]
            matrix[:, indices] = ids.matrix[rows]
            columns |= {name: array.take(pa.array(rows)) for name, array in ids.lists.items()}
        columns[IDS_COLUMN] = pack_ids(matrix)
        target = shard_schema(self.schema)
        return pa.table({field.name: columns[field.name] for field in target}).cast(target)

    def raw(self, queries: Queries, placed: Placed) -> pa.Table:
        """Returns the source columns of the features for the same rows, texts as strings or dictionaries."""
        columns: dict[str, pa.ChunkedArray] = {}
        for ids, rows in self._entities(queries, placed):
            taken = ids.raw.take(pa.array(rows))
            columns |= zip(taken.column_names, taken.columns, strict=True)
        return pa.table(columns)

    def _entities(self, queries: Queries, placed: Placed) -> tuple[tuple[_Ids, np.ndarray], ...]:
        assert self._day is not None
        query = placed.query
        rows = (queries.user[query], queries.number[query], placed.ad, _page_number(queries, placed))
        return tuple(zip((self._users, *self._day, self._pages), rows, strict=True))
