"""The schema of a log: its features in order, and the rules that compute their columns.

It is fixed when a log is written: its hash is the log's schema version. It determines the ids of raw values, so it also
has the rules of derived columns and the spelling of numbers by categories.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from ctr.config import ShortModel, differing_keys
from ctr.data.derived import TIME_COLUMN, Column, Derived
from ctr.data.features import (
    AnyFeature,
    Category,
    Cross,
    Feature,
    LabelName,
    Number,
    Text,
    Vector,
    is_multivalent,
)
from ctr.data.history import History
from ctr.data.spelling import spell

InputKind = Literal["text", "number", "time"]

MISSING_ID = 0
QUERY_SIZE = "query_size"
# Names of a shard's other columns (log.py).
RESERVED_NAMES = frozenset(
    ("query_time", "timestamp", "query_id", "example_id", "label", "train_weight", "metric_weight", "ids")
)
LABEL_PREFIX = "label:"


def label_column(name: str) -> str:
    """Returns the name of a further label's column in shards and in ``Rows.joined``; no feature can have this name."""
    return f"{LABEL_PREFIX}{name}"


class Schema(ShortModel):
    """Features of a log, in their stored order, with the rules of sources derived from other columns or the time.

    ``counts_rows``: the last feature is ``QUERY_SIZE``, which is in no shard but counted when one is read
    (``ctr.data.query_size``). ``labels``: further labels of the rows, which are no features: the version does not
    depend on them, and a model reads logs of the same features with other labels.
    """

    left_out = ("counts_rows", "labels")
    features: tuple[Feature, ...] = Field(min_length=1)
    derive: dict[Column, Derived] = {}
    spelling: Literal["number"] = "number"
    counts_rows: bool = False
    labels: tuple[LabelName, ...] = ()

    @model_validator(mode="after")
    def _rules(self) -> Self:
        last = self.features[-1]
        if self.counts_rows and not (isinstance(last, Number) and last.name == last.source == QUERY_SIZE):
            raise ValueError(f"counts_rows: the last feature must be {QUERY_SIZE}")
        for name, rule in self.derive.items():
            if name not in self.sources:
                raise ValueError(f"derive.{name}: no feature reads it")
            if not rule.of_time and rule.source in self.derive:
                raise ValueError(f"derive.{name}: {rule.source} is itself derived")
        columns = {self.column_of(name) for name in self.sources if not self._is_of_time(name)}
        if any(map(self._is_of_time, self.sources)) and TIME_COLUMN in (columns | self.derive.keys()):
            raise ValueError(
                f"{TIME_COLUMN}: the exported model takes the row's time under this name; "
                "a column that is read must have another one"
            )
        for feature in self.features:
            if isinstance(feature, Category) and feature.vocabulary and self.spells_numbers(feature.source):
                for value in feature.vocabulary:
                    if spell(value) != value:
                        raise ValueError(
                            f"feature {feature.name}: the vocabulary has {value!r}, "
                            f"which categories spell {spell(value)!r}"
                        )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        earlier: dict[str, AnyFeature] = {}
        kinds: dict[str, Category | Number | Vector | Text] = {}
        for feature in self.features:
            name = feature.name
            if name in earlier:
                raise ValueError(f"feature {name} is defined twice")
            if name in RESERVED_NAMES:
                raise ValueError(f"feature {name} has the name of a column of the log: choose another name")
            if isinstance(feature, Cross):
                _check_cross(feature, earlier)
            else:
                # The exported model has one tensor for each source: numbers or strings.
                other = kinds.setdefault(feature.source, feature)
                if len(ways := {_way_of_reading(reader) for reader in (other, feature)}) > 1:
                    shown = " and as ".join(way for way, *_ in sorted(ways))
                    raise ValueError(
                        f"features {other.name} and {name} read the column {feature.source} as {shown}: give the "
                        "column twice, under two names"
                    )
            if isinstance(feature, Category) and feature.history is not None:
                _check_history(feature, feature.history, earlier)
            earlier[name] = feature
        return self

    @property
    def by_name(self) -> dict[str, AnyFeature]:
        return {feature.name: feature for feature in self.features}

    @property
    def single_valued(self) -> tuple[str, ...]:
        """Returns the names of the features with one id, or value, per row: the columns of the packed id matrix."""
        by_name = self.by_name
        return tuple(f.name for f in self.features if not is_multivalent(f, by_name))

    @property
    def single_ids(self) -> tuple[str, ...]:
        """Returns the names of the features with one id per row: ``single_valued`` without values."""
        by_name = self.by_name
        return tuple(name for name in self.single_valued if by_name[name].has_ids)

    @property
    def multivalent(self) -> tuple[str, ...]:
        by_name = self.by_name
        return tuple(f.name for f in self.features if is_multivalent(f, by_name))

    @property
    def growing(self) -> tuple[str, ...]:
        """Returns the names of the features whose ids grow: 64-bit fingerprints."""
        return tuple(f.name for f in self.features if f.buckets is None)

    @property
    def id_type(self) -> np.dtype:
        """Returns the type of the ids of all features: int64 if any feature's ids grow, else int32."""
        return np.dtype(np.int64 if self.growing else np.int32)

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(f.source for f in self.features if not isinstance(f, Cross)))

    @property
    def read_sources(self) -> tuple[str, ...]:
        """Returns the sources that are columns of raw rows: all except the sources of histories."""
        histories = self.histories
        return tuple(name for name in self.sources if name not in histories)

    def _is_of_time(self, source: str) -> bool:
        return source in self.derive and self.derive[source].of_time

    def column_of(self, source: str) -> str:
        return self.derive[source].column if source in self.derive else source

    @property
    def inputs(self) -> dict[str, InputKind]:
        """Returns the raw columns that the features read, each once, with the type of each.

        ``time``: int64 microseconds; ``number``: a float32; ``text``: a string, also for a column that is
        read both as a number and as a category or text.
        """
        kinds: dict[str, InputKind] = {}
        for feature in self.features:
            if isinstance(feature, Cross):
                continue
            rule = self.derive.get(feature.source)
            column = self.column_of(feature.source)
            if rule is not None and rule.of_time:
                kinds[column] = "time"
            elif isinstance(feature, Number) and (rule is None or rule.is_copy):
                kinds.setdefault(column, "number")
            else:
                kinds[column] = "text"
        return kinds

    @property
    def list_separators(self) -> dict[str, str | None]:
        """Returns the raw columns that may hold lists, with their separator; None if features differ."""
        separators: dict[str, set[str]] = {}
        for feature in self.features:
            if isinstance(feature, Vector) or (isinstance(feature, Category) and feature.multivalent):
                rule = self.derive.get(feature.source)
                if rule is None or rule.is_copy or rule.cast == "text":
                    separators.setdefault(self.column_of(feature.source), set()).add(feature.separator)
        return {name: next(iter(texts)) if len(texts) == 1 else None for name, texts in separators.items()}

    @property
    def histories(self) -> dict[str, History]:
        """Returns the settings of the features that list earlier rows' values, by feature name."""
        histories = {f.name: f.history for f in self.features if isinstance(f, Category)}
        return {name: history for name, history in histories.items() if history is not None}

    def spells_numbers(self, source: str) -> bool:
        """Returns whether categories of a source spell 12.0 as 12."""
        return not (source in self.derive and self.derive[source].cast == "text")

    @property
    def stored(self) -> "Schema":
        """Returns the schema with only the features that shards have."""
        return make_schema(self.features[:-1], self.derive, labels=self.labels) if self.counts_rows else self

    def only(self, names: Iterable[str]) -> "Schema":
        """Returns the schema with only the named features, and the parts of crosses among them.

        A history whose features are not all selected becomes a list, such as a server sends.
        """
        wanted = set(names)
        for name in tuple(wanted):
            feature = self.by_name[name]
            if isinstance(feature, Cross):
                wanted.update(feature.of)
        features = [
            feature.model_copy(update={"history": None})
            if isinstance(feature, Category)
            and feature.history
            and not wanted.issuperset(feature.history.names)
            else feature
            for feature in self.features
            if feature.name in wanted
        ]
        return make_schema(features, self.derive, self.counts_rows and QUERY_SIZE in wanted)

    def canonical_json(self) -> str:
        """Returns the features and rules as text that depends on nothing but their meaning."""
        content = self.model_dump(mode="json", exclude={"labels"})
        return json.dumps(content, sort_keys=True, separators=(",", ":"))

    @property
    def version(self) -> str:
        """Returns the first 16 hexadecimal digits of the SHA-256 of the canonical text."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()[:16]


def _check_cross(feature: Cross, earlier: Mapping[str, AnyFeature]) -> None:
    for part in feature.of:
        crosses, component = f"feature {feature.name} crosses {part}", earlier.get(part)
        if component is None:
            raise ValueError(f"{crosses}, which is not a feature defined before it")
        if isinstance(component, Cross):
            raise ValueError(f"{crosses}, itself a cross: name its parts instead")
        if not component.has_ids:
            raise ValueError(f"{crosses}, whose numbers the network reads; allowed: features with ids")
    if len(set(feature.of)) != len(feature.of):
        raise ValueError(f"feature {feature.name} crosses a feature with itself")
    if sum(is_multivalent(earlier[part], earlier) for part in feature.of) > 1:
        raise ValueError(f"feature {feature.name} crosses more than one multivalent feature")


def _check_history(feature: Category, history: History, earlier: Mapping[str, AnyFeature]) -> None:
    for key, name in (("by", history.by), ("of", history.of)):
        other = earlier.get(name)
        if not isinstance(other, Category) or other.multivalent:
            raise ValueError(
                f"feature {feature.name}: history.{key} names {name}; allowed: single-valued categories before it"
            )
        if key == "by" and other.buckets is not None:
            raise ValueError(
                f"feature {feature.name}: history.by names {name}, where several values share a bucket; allowed: a "
                "category without buckets and vocabulary"
            )
        if key == "of" and (other.buckets, other.vocabulary) != (feature.buckets, feature.vocabulary):
            raise ValueError(f"feature {feature.name}: buckets and vocabulary must be those of {name}")


def make_schema(
    features: Sequence[Feature],
    derive: Mapping[str, Derived],
    counts_rows: bool = False,
    labels: Iterable[str] = (),
) -> Schema:
    """Makes a schema of some features and the rules of derived columns that they read."""
    sources = {feature.source for feature in features if not isinstance(feature, Cross)}
    read = {name: derive[name] for name in sorted(derive) if name in sources}
    return Schema(features=tuple(features), derive=read, counts_rows=counts_rows, labels=tuple(labels))


def differing_features(before: Schema, now: Schema) -> list[str]:
    """Describes each feature that was added, removed or changed between two schemas, and a new order."""
    old, new = before.by_name, now.by_name
    differences = [f"feature {name} was added" for name in new if name not in old]
    differences += [f"feature {name} was removed" for name in old if name not in new]
    for name in new:
        if name in old:
            keys = differing_keys(old[name].model_dump(mode="json"), new[name].model_dump(mode="json"))
            differences += [f"feature {name}: {key}" for key in keys]
    if [name for name in old if name in new] != [name for name in new if name in old]:
        differences.append(f"the order was {', '.join(old)}, now {', '.join(new)}")
    rules = [schema.model_dump(mode="json")["derive"] for schema in (before, now)]
    differences += [f"derived column {key}" for key in differing_keys(rules[0], rules[1])]
    return differences


def feature_meanings(schema: Schema) -> dict[str, dict[str, Any]]:
    """Returns the settings that decide each feature's ids; equal settings give equal ids for the same input."""
    meanings: dict[str, dict[str, Any]] = {}
    for feature in schema.features:
        meaning = feature.model_dump(mode="json", exclude={"name", "width", "tower"})
        if isinstance(feature, Cross):
            meaning["of"] = {str(index): meanings[part] for index, part in enumerate(feature.of)}
        elif feature.source in schema.derive:
            meaning["derive"] = schema.derive[feature.source].model_dump(mode="json")
        meanings[feature.name] = meaning
    return meanings


def _way_of_reading(feature: Category | Number | Vector | Text) -> tuple[str, ...]:
    if isinstance(feature, Vector):
        return f"a vector of {feature.size} numbers", feature.separator, feature.strip
    return ("a number" if isinstance(feature, Number) else "a string",)


def id_bounds(schema: Schema, names: Sequence[str]) -> list[int | None]:
    """Returns the exclusive upper bounds of the named features' ids; None if ids grow or there are none."""
    by_name = schema.by_name
    return [by_name[name].buckets or None for name in names]
