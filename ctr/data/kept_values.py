"""Raw values behind ids, kept beside a log where its mapping asks for them (``keep_values``).

::

    LOG/values/START-END-HASH.parquet    of one partition; HASH is that of its manifest

Each file has the columns ``feature``, ``id`` (int64: a fingerprint where ids grow) and ``value``: every combination
that occurs in the partition once, sorted. It is complete before the partition's manifest is published, is made of the
partition's rows alone, and is no part of the log's content: a log is the same with it and without.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BeforeValidator

from ctr.data.features import AnyFeature, Category, Cross, Number, Text, is_multivalent
from ctr.data.log import Manifest, manifest_bytes, read_manifests, read_schema
from ctr.data.number_bits import numbers_of_ids
from ctr.data.parquet_files import parquet_bytes, read_columns
from ctr.data.schema import MISSING_ID, Schema
from ctr.data.shards import id_matrix
from ctr.data.state_files import read_state_file, write_state_file

FOLDER = "values"
VALUE_PREFIX = "@value:"
"""Before the name of a feature that of the column with its raw values, beside those of a shard."""

_REMEDY = "restore it from a copy, or delete it to do without its values"
_COLUMNS = ("feature", "id", "value")
_SHOWN = 3
_MISSING = "missing"


def _all_or_names(content: Any) -> Any:
    is_list = isinstance(content, list | tuple) and all(isinstance(name, str) for name in content)
    if content != "all" and not is_list:
        raise ValueError("use all, or a list of features such as [user, item]")
    return content


KeepValues = Annotated[Literal["all"] | tuple[str, ...], BeforeValidator(_all_or_names)]
"""``keep_values`` of a mapping: names of features, or ``all`` that have raw values."""


def has_raw_values(feature: AnyFeature) -> bool:
    """Tells a feature whose ids do not say by themselves what they stand for."""
    # What a history lists is kept with the feature that it lists.
    is_history = isinstance(feature, Category) and feature.history is not None
    return feature.has_ids and not (isinstance(feature, Number) or _vocabulary(feature) or is_history)


def value_of_id(feature: AnyFeature, number: int) -> str | None:
    """Returns what an id of a feature stands for; None for a hash, which does not say."""
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


def kept_features(names: KeepValues, features: Sequence[AnyFeature]) -> tuple[str, ...]:
    """Selects the features whose raw values are kept, in the order of ``features``."""
    with_values = (feature.name for feature in features if has_raw_values(feature))
    return tuple(name for name in with_values if names == "all" or name in names)


def check_kept(names: KeepValues, features: Sequence[AnyFeature]) -> None:
    """Raises ValueError, with what is allowed, for a name that is there twice or of no feature with raw values."""
    if names == "all":
        return
    allowed = ", ".join(kept_features("all", features)) or "none of this mapping"
    known = {feature.name for feature in features}
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ValueError(f"keep_values names {name} twice; each feature is named once")
        if name not in known:
            raise ValueError(f"keep_values names {name}, which is not a feature; allowed: all, or {allowed}")
        if name not in kept_features("all", features):
            raise ValueError(
                f"keep_values names {name}, whose ids say by themselves what they stand for; allowed: all, or {allowed}"
            )


def _vocabulary(feature: AnyFeature) -> tuple[str, ...]:
    return (feature.vocabulary or ()) if isinstance(feature, Category) else ()


def value_columns(schema: Schema, kept: Sequence[str]) -> dict[str, pa.DataType]:
    """Returns the columns with raw values that rows need so that values of the features ``kept`` can be written."""
    known = schema.by_name
    needed = set(kept)
    for name in kept:
        feature = known[name]
        if isinstance(feature, Cross):
            needed.update(feature.of)
    return {
        name: pa.large_list(pa.large_string()) if is_multivalent(feature, known) else pa.large_string()
        for name, feature in known.items()
        if name in needed and isinstance(feature, Category | Text)
    }


def without_values(table: pa.Table) -> pa.Table:
    """Drops the columns of ``value_columns``."""
    return table.drop_columns([name for name in table.column_names if name.startswith(VALUE_PREFIX)])


def partition_values(schema: Schema, kept: Sequence[str], rows: pa.Table) -> pa.Table:
    """Lists the values behind the ids of the features ``kept`` in ``rows``, each combination once, sorted."""
    known = schema.by_name
    ids = _IdsOfRows(schema, rows)
    parts = []
    for name in kept:
        feature = known[name]
        pairs = ids.crossed(feature) if isinstance(feature, Cross) else (ids.of(name), ids.raw(name))
        table = pa.table(dict(zip(_COLUMNS[1:], (pa.array(pairs[0], pa.int64()), pairs[1]), strict=True)))
        table = table.filter(pc.and_(pc.not_equal(table["id"], MISSING_ID), pc.is_valid(table["value"])))
        table = table.group_by(list(_COLUMNS[1:])).aggregate([])
        column = pa.array([name], pa.large_string()).take(pa.array(np.zeros(table.num_rows, np.int32)))
        parts.append(table.add_column(0, _COLUMNS[0], column))
    return pa.concat_tables(parts).sort_by([(name, "ascending") for name in _COLUMNS]).combine_chunks()


class _IdsOfRows:
    def __init__(self, schema: Schema, rows: pa.Table) -> None:
        self._schema, self._rows, self._matrix = schema, rows, id_matrix(rows, schema)

    def of(self, name: str) -> np.ndarray:
        if name in self._schema.single_valued:
            return self._matrix[:, self._schema.single_valued.index(name)]
        return self._list(name).flatten().to_numpy()

    def _list(self, name: str) -> pa.Array:
        return self._rows.column(name).combine_chunks()

    def raw(self, name: str) -> pa.Array:
        """Null where the values of a row of a multivalent feature were not kept."""
        column = self._rows.column(VALUE_PREFIX + name).combine_chunks()
        if name in self._schema.single_valued:
            return column
        if not column.null_count:
            return column.flatten()
        # Rows of an earlier ingest, which kept none.
        places = np.full(int(self._lengths(name).sum()), -1)
        there = np.repeat(column.is_valid().to_numpy(zero_copy_only=False), self._lengths(name))
        places[there] = np.arange(np.count_nonzero(there))
        return column.flatten().take(pa.array(places, mask=places < 0))

    def _lengths(self, name: str) -> np.ndarray:
        return np.diff(self._list(name).offsets.to_numpy())

    def crossed(self, feature: Cross) -> tuple[np.ndarray, pa.Array]:
        """Different ids of a cross, each with the values of its parts where it first occurs with them."""
        rows = np.arange(self._rows.num_rows)
        if feature.name in self._schema.multivalent:
            rows = np.repeat(rows, self._lengths(feature.name))
        there = np.flatnonzero(self._are_kept(feature)[rows])
        ids, first = np.unique(self.of(feature.name)[there], return_index=True)
        first = there[first]
        rows = rows[first]
        parts = [self._part(part, first if part in self._schema.multivalent else rows) for part in feature.of]
        return ids, pc.binary_join_element_wise(*parts, pa.scalar(" x ", pa.large_string()))

    def _are_kept(self, feature: Cross) -> np.ndarray:
        kept = np.ones(self._rows.num_rows, bool)
        for name in feature.of:
            if not isinstance(self._schema.by_name[name], Number):
                kept &= pc.is_valid(self._rows.column(VALUE_PREFIX + name)).to_numpy()
        return kept

    def _part(self, name: str, places: np.ndarray) -> pa.Array:
        feature = self._schema.by_name[name]
        if isinstance(feature, Number):
            numbers, codes = np.unique(self.of(name)[places], return_inverse=True)
            texts = pa.array([value_of_id(feature, one) for one in numbers.tolist()], pa.large_string())
            return texts.take(pa.array(codes))
        values = self.raw(name).take(pa.array(places))
        return pc.if_else(pc.equal(values, ""), pa.scalar(_MISSING, pa.large_string()), values)


def values_path(log: Path, manifest: Manifest) -> Path:
    """Returns the path of the values of a partition."""
    digest = hashlib.sha256(manifest_bytes(manifest)).hexdigest()
    return log / FOLDER / f"{manifest.name}-{digest[:16]}.parquet"


def write_values(log: Path, manifest: Manifest, values: pa.Table) -> None:
    """Writes the values of a partition, which is not published before; the same values give the same bytes."""
    write_state_file(values_path(log, manifest), parquet_bytes(values))


def move_values(log: Path, before: Manifest, after: Manifest) -> None:
    """Names the values of a partition, if there are any, by another manifest of it."""
    if after != before and (path := values_path(log, before)).is_file():
        write_state_file(values_path(log, after), read_state_file(path, _REMEDY).to_pybytes())
        path.unlink(missing_ok=True)


def read_values(log: Path | str, feature: str, ids: Iterable[int]) -> dict[int, str]:
    """Reads the raw values behind ids of a feature, as far as kept; several of one id are joined by ``|``."""
    return read_all_values(log, {feature: ids})[feature]


def read_all_values(log: Path | str, wanted: Mapping[str, Iterable[int]]) -> dict[str, dict[int, str]]:
    """Reads the same for several features in one pass."""
    log = Path(log)
    sought = {name: {*numbers} - {MISSING_ID} for name, numbers in wanted.items()}
    if not any(sought.values()) or not (log / FOLDER).is_dir():
        return {name: {} for name in wanted}
    # What a history lists are values of another feature.
    listed = {name: history.of for name, history in read_schema(log).histories.items()}
    kept_as = {name: listed.get(name, name) for name in wanted}
    of_kept: dict[str, set[int]] = {}
    for name, numbers in sought.items():
        of_kept.setdefault(kept_as[name], set()).update(numbers)
    texts = _read_kept(log, of_kept)
    return {
        name: {one: texts[kept_as[name]][one] for one in sorted(numbers) if one in texts[kept_as[name]]}
        for name, numbers in sought.items()
    }


def _read_kept(log: Path, wanted: Mapping[str, Iterable[int]]) -> dict[str, dict[int, str]]:
    ids = {name: pa.array(sorted(numbers), pa.int64()) for name, numbers in wanted.items()}
    found: dict[str, dict[int, list[str]]] = {name: {} for name in wanted}
    for manifest in read_manifests(log):
        path = values_path(log, manifest)
        # Partitions from before ``keep_values`` have none.
        if path.exists():
            for batch in read_columns(path, _COLUMNS, read_state_file(path, _REMEDY)):
                _collect(batch, ids, found)
    return {name: {one: _shown(texts) for one, texts in own.items()} for name, own in found.items()}


def _collect(
    batch: pa.RecordBatch, ids: Mapping[str, pa.Array], found: Mapping[str, dict[int, list[str]]]
) -> None:
    features = batch.column("feature")
    for name in pc.unique(features).to_pylist():
        if name not in ids:
            continue
        of_feature = batch.filter(pc.and_(pc.equal(features, name), pc.is_in(batch.column("id"), ids[name])))
        columns = (of_feature.column(column).to_pylist() for column in ("id", "value"))
        for number, value in zip(*columns, strict=True):
            texts = found[name].setdefault(number, [])
            if value not in texts and len(texts) <= _SHOWN:
                texts.append(value)


def _shown(texts: Sequence[str]) -> str:
    return " | ".join([*texts[:_SHOWN], *(["..."] if len(texts) > _SHOWN else [])])


def name_ids(
    schema: Schema, log: Path, wanted: Mapping[str, Iterable[int]]
) -> Callable[[str, int], str | None]:
    """Makes a function that names the ids in ``wanted``, by schema or kept values; None where neither says."""
    hashed = {name: ids for name, ids in wanted.items() if has_raw_values(schema.by_name[name])}
    kept = read_all_values(log, hashed)

    def name_id(feature: str, one: int) -> str | None:
        return value_of_id(schema.by_name[feature], one) or kept.get(feature, {}).get(one)

    return name_id
