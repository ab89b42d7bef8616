"""Dictionaries of raw values by id, stored beside a log for the features that its mapping names (``keep_values``).

::

    LOG/values/START-END-HASH.parquet    of one partition; the manifest has its hash

Each file has the columns ``feature``, ``id`` (int64; a fingerprint if ids grow) and ``value``, sorted. It describes
the partition's rows alone, and is complete before the partition's manifest is published. If several values share an id,
it has the smallest. A feature with more than ``MOST_VALUES`` different values in a partition is not in its dictionary,
except features that a history names: ``ctr history`` writes all of their values.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr.data.features import AnyFeature, Category, Cross, Number, Text, is_multivalent
from ctr.data.log import ValuesEntry, read_manifests, read_schema
from ctr.data.parquet_files import read_verified_parquet
from ctr.data.schema import MISSING_ID, Schema
from ctr.data.shards import id_matrix
from ctr.data.value_arrays import numbers_of_ids

FOLDER = "values"
MOST_VALUES = 10_000
VALUE_PREFIX = "@value:"
"""Prefix of a feature's name in the name of its column of raw values, beside a shard's columns."""

_FIRST_ROWS = 65_536  # are checked first: they often show already that a feature has too many values
_MISSING = "missing"


def has_raw_values(feature: AnyFeature) -> bool:
    """Returns whether the feature's ids are hashes, whose raw values must be stored to be displayed."""
    # The values of a history are stored with the feature that it lists.
    is_history = isinstance(feature, Category) and feature.history is not None
    return feature.has_ids and not (isinstance(feature, Number) or _vocabulary(feature) or is_history)


def value_of_id(feature: AnyFeature, number: int) -> str | None:
    """Returns the value, or the range of numbers, of a feature's id; None for a hash, which cannot be inverted."""
    if number == MISSING_ID:
        return _MISSING
    vocabulary = _vocabulary(feature)
    if vocabulary:
        return vocabulary[number - 1] if number <= len(vocabulary) else "other"
    if not feature.has_ids:
        return f"{numbers_of_ids(np.array(number)):.6g}"
    if not isinstance(feature, Number):
        return None
    edges = [f"{edge:.6g}" for edge in feature.edges()]
    if number == 1:
        return f"below {edges[0]}"
    return f"{edges[-1]} and more" if number > len(edges) else f"{edges[number - 2]} to {edges[number - 1]}"


def check_keep_values(names: Sequence[str], features: Sequence[AnyFeature]) -> None:
    """Raises ValueError, with the allowed names, if a name is repeated or is not of a feature with raw values."""
    with_values = [feature.name for feature in features if has_raw_values(feature)]
    allowed = ", ".join(with_values) or "none of this mapping"
    all_names = {feature.name for feature in features}
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ValueError(f"keep_values names {name} twice; each feature is named once")
        if name not in all_names:
            raise ValueError(f"keep_values names {name}, which is not a feature; allowed: {allowed}")
        if name not in with_values:
            raise ValueError(
                f"keep_values names {name}, whose ids say by themselves what they stand for; allowed: {allowed}"
            )


def _vocabulary(feature: AnyFeature) -> tuple[str, ...]:
    return (feature.vocabulary or ()) if isinstance(feature, Category) else ()


def value_columns(schema: Schema, names: Sequence[str]) -> dict[str, pa.DataType]:
    """Returns the raw value columns, and their types, that ``value_dictionary`` requires for the features ``names``."""
    by_name = schema.by_name
    needed = set(names)
    for name in names:
        feature = by_name[name]
        if isinstance(feature, Cross):
            needed.update(feature.of)
    return {
        name: pa.large_list(pa.large_string()) if is_multivalent(feature, by_name) else pa.large_string()
        for name, feature in by_name.items()
        if name in needed and isinstance(feature, Category | Text)
    }


def without_values(table: pa.Table) -> pa.Table:
    """Drops the columns of ``value_columns``."""
    return table.drop_columns([name for name in table.column_names if name.startswith(VALUE_PREFIX)])


def values_path(log: Path, partition: str, entry: ValuesEntry) -> Path:
    """Returns the path of the dictionary of a partition."""
    return log / FOLDER / f"{partition}-{entry.sha256[:16]}.parquet"


def value_dictionary(schema: Schema, names: Sequence[str], rows: pa.Table) -> pa.Table:
    """Returns the dictionary of the features ``names`` in ``rows``: ``feature``, ``id``, ``value``, sorted."""
    unlimited = {name for history in schema.histories.values() for name in history.names}
    columns = _ValueColumns(schema, rows)
    parts = [_DICTIONARY.empty_table()]
    for name in sorted(names):
        feature = schema.by_name[name]
        ids = pa.array(columns.ids(name), pa.int64())
        if name not in unlimited and pc.count_distinct(ids[:_FIRST_ROWS]).as_py() > MOST_VALUES + 1:
            continue
        values = columns.crossed(feature) if isinstance(feature, Cross) else columns.raw(name)
        table = pa.table({"id": ids, "value": values}).group_by(["id", "value"]).aggregate([])
        table = table.filter(pc.not_equal(table["id"], MISSING_ID))
        if table.num_rows > MOST_VALUES and name not in unlimited:
            continue
        table = table.sort_by([("id", "ascending"), ("value", "ascending")])
        is_first = np.diff(table["id"].to_numpy(), prepend=MISSING_ID) != 0
        table = table.filter(pa.array(is_first))
        feature_names = pa.array([name] * table.num_rows, pa.large_string())
        parts.append(table.add_column(0, "feature", feature_names).cast(_DICTIONARY))
    return pa.concat_tables(parts).combine_chunks()


_DICTIONARY = pa.schema([("feature", pa.large_string()), ("id", pa.int64()), ("value", pa.large_string())])


class _ValueColumns:
    """Ids and raw values of rows; the lists of a multivalent feature are concatenated."""

    def __init__(self, schema: Schema, rows: pa.Table) -> None:
        self._schema, self._rows, self._matrix = schema, rows, id_matrix(rows, schema)

    def ids(self, name: str) -> np.ndarray:
        if name in self._schema.single_valued:
            return self._matrix[:, self._schema.single_valued.index(name)]
        return self._rows[name].combine_chunks().flatten().to_numpy()

    def raw(self, name: str) -> pa.Array:
        column = self._rows[VALUE_PREFIX + name].combine_chunks()
        return column if name in self._schema.single_valued else column.flatten()

    def crossed(self, feature: Cross) -> pa.Array:
        """Joins the values of a cross's parts with `` x ``, for each value of the cross."""
        row_of = np.arange(self._rows.num_rows)
        if feature.name in self._schema.multivalent:
            row_of = np.repeat(row_of, np.diff(self._rows[feature.name].combine_chunks().offsets.to_numpy()))
        texts = []
        for name in feature.of:
            part = self._schema.by_name[name]
            if isinstance(part, Number):
                numbers, codes = np.unique(self.ids(name), return_inverse=True)
                named = pa.array([value_of_id(part, key) for key in numbers.tolist()], pa.large_string())
                values = named.take(pa.array(codes))
            else:
                values = self.raw(name)
                values = pc.if_else(pc.equal(values, ""), pa.scalar(_MISSING, pa.large_string()), values)
            texts.append(values if name in self._schema.multivalent else values.take(pa.array(row_of)))
        return pc.binary_join_element_wise(*texts, pa.scalar(" x ", pa.large_string()))


def read_values(log: Path | str, wanted: Mapping[str, Iterable[int]]) -> dict[str, dict[int, str]]:
    """Reads the values of ids, by feature, from the dictionaries; if several values share an id, the smallest.

    Ids without a stored value are omitted. Raises InputError if a dictionary is missing or damaged.
    """
    log = Path(log)
    # A history lists the values of another feature.
    listed = {name: history.of for name, history in read_schema(log).histories.items()}
    listed_of = {name: listed.get(name, name) for name in wanted}
    sought: dict[str, set[int]] = {name: set() for name in listed_of.values()}
    for name, ids in wanted.items():
        sought[listed_of[name]].update(ids)
    texts: dict[str, dict[int, str]] = {name: {} for name in sought}
    columns = {name: pa.array(sorted(ids), pa.int64()) for name, ids in sought.items() if ids}
    for manifest in read_manifests(log) if columns else ():
        if (entry := manifest.values) is not None:
            table = read_verified_parquet(values_path(log, manifest.name, entry), entry.bytes, entry.sha256)
            for name, ids in columns.items():
                matches = pc.and_(pc.equal(table["feature"], name), pc.is_in(table["id"], ids))
                part = table.filter(matches)
                for key, value in zip(part["id"].to_pylist(), part["value"].to_pylist(), strict=True):
                    texts[name][key] = min(value, texts[name].get(key, value))
    return {
        name: {key: texts[listed_of[name]][key] for key in sorted(set(ids)) if key in texts[listed_of[name]]}
        for name, ids in wanted.items()
    }
