"""Features of an example: their kinds, sources, buckets, widths and towers.

The schema is fixed when a log is written: its hash is the log's schema version. Features are categorical (FF section
2): what comes in leaves as an id. Of a feature with ``buckets`` it is a number in ``[0, buckets)``; where none are
given ids grow: each value has its own, its 64-bit fingerprint. Id 0 is kept for "missing". Numbers with ``as: value``
and vectors reach the network as they are: they have 0 buckets, and in the place of ids the bits of float32
(``ctr.data.number_bits``). The schema has all that it takes to make these ids of raw values: also the rules of derived
columns, and how categories spell numbers.
"""

import hashlib
import json
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from ctr.config import ShortModel, StrictModel, differing_keys
from ctr.data.derived import TIME_COLUMN, Column, Derived
from ctr.data.history import AGES, History
from ctr.data.spelling import spell

Tower = Literal["quality", "ui"]
InputKind = Literal["text", "number", "time"]
Name = Annotated[
    str,
    # Letters and digits of all scripts.
    Field(
        pattern=r"^[^\W\d][\w.\-]*$",
        max_length=100,
        title="name of letters, digits, _ . -",
        # In JavaScript, letters are those of ASCII: without a space and the other signs of ASCII.
        json_schema_extra={"pattern": r"^[^\s!-@\[-^`{-~][^\s!-,/:-@\[-^`{-~]*$"},
    ),
]
LabelName = Annotated[
    str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", max_length=60, title="name of ASCII letters, digits, _")
]
Buckets = Annotated[int, Field(ge=2, le=2**31 - 1)]

MISSING_ID = 0
QUERY_SIZE = "query_size"
_LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127
# Names of a shard's other columns (log.py).
RESERVED_NAMES = frozenset(
    ("query_time", "timestamp", "query_id", "example_id", "label", "train_weight", "metric_weight", "ids")
)


class FeatureBase(ShortModel):
    """What all features share.

    Attributes:
        name: the name of the feature.
        width: the width of its embedding; 0: a linear weight only. Null: by the number of its ids.
        tower: the tower that it belongs to.
    """

    name: Name
    width: int | None = Field(default=None, ge=0, le=4096)
    tower: Tower = "quality"


class Category(FeatureBase):
    """A string or number, hashed to ids or looked up in a vocabulary.

    Numbers are spelled in one way (``ctr.data.spelling``): 12.0 is 12.

    Attributes:
        kind: the kind of the feature.
        source: the column that is read; required but with ``history``.
        buckets: the number of ids that values are hashed to. Id 0 is "missing". Null: ids grow, each value has one of
            its own. With a vocabulary it follows from the list and must not be set.
        vocabulary: the values that have their own id: ids 1 to n in this order, n + 1 for all other values. Null:
            there is none.
        multivalent: whether a row has any number of values: a list, or text split at ``separator``.
        separator: the text between the values of a multivalent feature that is given as text.
        strip: ASCII characters that are taken off both ends of each value of a multivalent feature: with the separator
            ``,`` and ``[]'`` with a space here, the text ``['a', 'b']`` has the values a and b.
        max_values: maximum number of values per row.
        keep: which values of a longer row are kept; ``last`` suits histories that grow at their end.
        history: the values are no column, but what earlier rows of the log had. The feature is multivalent, its name is
            its source, and it has the ``buckets`` or the ``vocabulary`` of the feature that is listed. A server sends
            the values under the feature's name, the latest one last.
    """

    left_out = ("strip", "history")
    kind: Literal["category"] = "category"
    source: str = Field(default="", examples=["SOURCE"])
    buckets: Buckets | None = None
    vocabulary: tuple[str, ...] | None = None
    multivalent: bool = False
    separator: str = Field(default=" ", min_length=1)
    strip: str = Field(default="", pattern=r"^[\x20-\x7e]*$", title="printable ASCII characters")
    max_values: int = Field(default=100, ge=1)
    keep: Literal["first", "last"] = "first"
    history: History | None = None

    @model_validator(mode="before")
    @classmethod
    def _history_sets_lists(cls, content: Any) -> Any:
        if not isinstance(content, dict) or not content.get("history"):
            return content
        history = content["history"]
        keys = dict(history) if isinstance(history, dict | History) else {}
        last = keys.get("last")
        most = last if isinstance(last, int) and last else History.model_fields["last"].default
        sets = {"source": content.get("name"), "multivalent": True, "max_values": most, "keep": "last"}
        if keys.get("lists") == "ages":
            sets |= {"vocabulary": AGES, "buckets": len(AGES) + 2}
        for key, value in sets.items():
            given = content.get(key, value)
            if (tuple(given) if isinstance(given, list) else given) != value:
                raise ValueError(f"{key} follows from the history ({value}) and must not be set")
        return {**content, **sets}

    @model_validator(mode="before")
    @classmethod
    def _vocabulary_sets_buckets(cls, content: Any) -> Any:
        # Ids: 0 missing, 1..n the vocabulary, n + 1 everything else.
        if isinstance(content, dict) and isinstance(content.get("vocabulary"), list | tuple):
            buckets = len(content["vocabulary"]) + 2
            if content.get("buckets", buckets) != buckets:
                raise ValueError(f"buckets follows from the vocabulary ({buckets}) and must not be set")
            return {**content, "buckets": buckets}
        return content

    @model_validator(mode="after")
    def _strips_lists(self) -> Self:
        if not self.source:
            raise ValueError("source or history is required")
        if self.strip and not self.multivalent:
            raise ValueError("strip is allowed only with multivalent: true")
        return self

    @field_validator("vocabulary")
    @classmethod
    def _distinct(cls, vocabulary: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if vocabulary is not None and not vocabulary:
            raise ValueError("the vocabulary is empty")
        if vocabulary is not None and len(set(vocabulary)) != len(vocabulary):
            raise ValueError("the vocabulary has a value twice")
        return vocabulary


class LogBuckets(StrictModel):
    """Boundaries that grow geometrically, from 1 on.

    Attributes:
        per_octave: number of boundaries from a number to its double.
        maximum: the largest boundary is at most this.
        signed: mirror the boundaries below 0.
    """

    per_octave: int = Field(default=2, ge=1, le=64)
    maximum: float = Field(default=1e6, gt=1)
    signed: bool = False


class StepBuckets(StrictModel):
    """Boundaries ``low, low + size, ...`` up to ``high``.

    Attributes:
        low: the first boundary.
        high: the last boundary is at most this.
        size: the distance between two boundaries.
    """

    low: float
    high: float
    size: float = Field(gt=0)

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if not self.low < self.high:
            raise ValueError("low must be below high")
        if (self.high - self.low) / self.size > 1_000_000:
            raise ValueError("at most 1,000,000 buckets are allowed")
        return self


class Number(FeatureBase):
    """A number, put into buckets by one of ``boundaries``, ``log`` and ``step``, or given to the network ``as: value``.

    Of buckets, id 0 is missing (empty, null or NaN); id ``1 + k`` is a number with ``k`` boundaries at or below it.
    Boundaries and values are compared as float32.

    Attributes:
        kind: the kind of the feature.
        source: the column that is read.
        boundaries: increasing boundaries between buckets.
        log: boundaries that grow geometrically, from 1 on.
        step: evenly spaced boundaries.
        as_value: ``value``: the network reads the number itself, less the mean and over the standard deviation of the
            rows learned so far, between -10 and 10, and whether it is missing.
        scale: of a value, ``log``: sign(x) log(1 + |x|) takes its place, which suits amounts of any size.
    """

    left_out = ("as_value", "scale")
    model_config = ConfigDict(serialize_by_alias=True)

    kind: Literal["number"] = "number"
    source: str
    boundaries: tuple[float, ...] | None = None
    log: LogBuckets | None = None
    step: StepBuckets | None = None
    as_value: Literal["value"] | None = Field(default=None, alias="as")
    scale: Literal["linear", "log"] = "linear"

    @model_validator(mode="after")
    def _one_bucketing(self) -> Self:
        if sum(way is not None for way in (self.boundaries, self.log, self.step, self.as_value)) != 1:
            raise ValueError("exactly one of boundaries, log, step and as is required")
        if self.as_value is not None:
            _refuse_width(self)
            return self
        if self.scale != "linear":
            raise ValueError("scale is allowed only with as: value")
        if self.boundaries is not None:
            if not self.boundaries:
                raise ValueError("boundaries is empty")
            if any(a >= b for a, b in pairwise(self.boundaries)):
                raise ValueError("boundaries must be strictly increasing")
        edges = self.edges()
        if max(-edges[0], edges[-1]) > _LARGEST_FLOAT32:
            raise ValueError(f"boundaries must fit float32: -{_LARGEST_FLOAT32:g}..{_LARGEST_FLOAT32:g}")
        return self

    def edges(self) -> list[float]:
        if self.boundaries is not None:
            return list(self.boundaries)
        if self.step is not None:
            count = math.floor((self.step.high - self.step.low) / self.step.size + 1e-9) + 1
            return [self.step.low + index * self.step.size for index in range(count)]
        assert self.log is not None
        octaves, parts = math.log2(self.log.maximum), self.log.per_octave
        positive = [2 ** (k / parts) for k in range(math.floor(octaves * parts) + 1)]
        if self.log.signed:
            return [-edge for edge in reversed(positive)] + [0.0] + positive
        return [0.0, *positive]

    @property
    def buckets(self) -> int:
        """Number of ids: missing, and one more than there are boundaries; 0 of a value."""
        return 0 if self.as_value is not None else len(self.edges()) + 2


def _refuse_width(feature: FeatureBase) -> None:
    if feature.width is not None:
        raise ValueError("width is not allowed: the network reads numbers themselves, not embeddings")


class Vector(FeatureBase):
    """A list of numbers of one length, such as an embedding that another model has made; the network reads the numbers.

    A list of another length, or with anything but finite numbers, is a reason to reject its row. An empty list or text
    is missing.

    Attributes:
        kind: the kind of the feature.
        source: the column that is read: lists of numbers, or text.
        size: the number of numbers.
        separator: the text between numbers that are given as text.
        strip: ASCII characters that are taken off both ends of each number that is given as text: with ``,`` as
            separator and ``[]`` here, ``[0.5, 1]`` is read.
        normalize: of each element, whether the network reads it less the mean and over the standard deviation of the
            rows learned so far, between -10 and 10; else it reads the element itself.
    """

    kind: Literal["vector"] = "vector"
    source: str
    size: int = Field(ge=1, le=4096)
    separator: str = Field(default=" ", min_length=1)
    strip: str = Field(default="", pattern=r"^[\x20-\x7e]*$", title="printable ASCII characters")
    normalize: bool = True

    @model_validator(mode="after")
    def _no_embedding(self) -> Self:
        _refuse_width(self)
        return self

    @property
    def buckets(self) -> int:
        """Number of ids: none."""
        return 0


class Text(FeatureBase):
    """Words (lower-cased runs of letters and digits), word n-grams, and n-grams inside words (FF 2).

    Attributes:
        kind: the kind of the feature.
        source: the column that is read.
        buckets: the number of ids that tokens are hashed to. Null: ids grow, each token has one of its own.
        words: sizes of word n-grams: 1 for single words, 2 for pairs of neighbors.
        subwords: sizes of character n-grams inside ``<word>``, such as 3 and 4; empty: none.
        max_values: maximum number of tokens per row; of a longer text, the first ones are kept.
    """

    kind: Literal["text"] = "text"
    source: str
    buckets: Buckets | None = None
    words: tuple[int, ...] = (1,)
    subwords: tuple[int, ...] = ()
    max_values: int = Field(default=64, ge=1)

    @field_validator("words", "subwords")
    @classmethod
    def _sizes(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if any(not 1 <= size <= 10 for size in sizes) or len(set(sizes)) != len(sizes):
            raise ValueError("n-gram sizes are distinct numbers from 1 to 10")
        return sizes

    @model_validator(mode="after")
    def _some_tokens(self) -> Self:
        if not self.words and not self.subwords:
            raise ValueError("words and subwords are both empty: the feature would have no values")
        return self


class Cross(FeatureBase):
    """The product of two or more features; at most one of them multivalent.

    Attributes:
        kind: the kind of the feature.
        of: names of features that are listed before this one and are not crosses themselves.
        buckets: the number of ids that products are hashed to. Null: ids grow, each product has one of its own.
    """

    kind: Literal["cross"] = "cross"
    of: tuple[Name, ...] = Field(min_length=2)
    buckets: Buckets | None = None


AnyFeature = Category | Number | Vector | Text | Cross
Feature = Annotated[AnyFeature, Field(discriminator="kind")]


class Schema(ShortModel):
    """Features of a log, in their stored order, with the rules of sources made of other columns or of the time.

    ``counts_rows``: the last feature is ``QUERY_SIZE``, which is in no shard but counted when one is read
    (``ctr.data.query_size``).
    """

    left_out = ("counts_rows",)
    features: tuple[Feature, ...] = Field(min_length=1)
    derive: dict[Column, Derived] = {}
    spelling: Literal["number"] = "number"
    counts_rows: bool = False

    @model_validator(mode="after")
    def _counts_last(self) -> Self:
        last = self.features[-1]
        if self.counts_rows and not (isinstance(last, Number) and last.name == last.source == QUERY_SIZE):
            raise ValueError(f"counts_rows: the last feature must be {QUERY_SIZE}")
        return self

    @model_validator(mode="after")
    def _rules(self) -> Self:
        for name, rule in self.derive.items():
            if name not in self.sources:
                raise ValueError(f"derive.{name}: no feature reads it")
            if not rule.of_time and rule.source in self.derive:
                raise ValueError(f"derive.{name}: {rule.source} is itself derived")
        given = {self.column_of(name) for name in self.sources if not self._is_of_time(name)}
        if any(map(self._is_of_time, self.sources)) and TIME_COLUMN in (given | self.derive.keys()):
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
        known: dict[str, AnyFeature] = {}
        kinds: dict[str, Category | Number | Vector | Text] = {}
        for feature in self.features:
            name = feature.name
            if name in known:
                raise ValueError(f"feature {name} is defined twice")
            if name in RESERVED_NAMES:
                raise ValueError(f"feature {name} has the name of a column of the log: choose another name")
            if isinstance(feature, Cross):
                for part in feature.of:
                    if part not in known:
                        raise ValueError(
                            f"feature {name} crosses {part}, which is not a feature defined before it"
                        )
                    if isinstance(known[part], Cross):
                        raise ValueError(
                            f"feature {name} crosses {part}, itself a cross: name its parts instead"
                        )
                    if has_no_ids(known[part]):
                        raise ValueError(
                            f"feature {name} crosses {part}, whose numbers the network reads; allowed: features with "
                            "ids"
                        )
                if len(set(feature.of)) != len(feature.of):
                    raise ValueError(f"feature {name} crosses a feature with itself")
                if sum(is_multivalent(known[part], known) for part in feature.of) > 1:
                    raise ValueError(f"feature {name} crosses more than one multivalent feature")
            else:
                # The exported model gets one tensor for each source: of numbers, or of strings.
                other = kinds.setdefault(feature.source, feature)
                if len(ways := {_way_of_reading(one) for one in (other, feature)}) > 1:
                    shown = " and as ".join(way for way, *_ in sorted(ways))
                    raise ValueError(
                        f"features {other.name} and {name} read the column {feature.source} as {shown}: give the "
                        "column twice, under two names"
                    )
            if isinstance(feature, Category) and feature.history is not None:
                _check_history(feature, feature.history, known)
            known[name] = feature
        return self

    @property
    def by_name(self) -> dict[str, AnyFeature]:
        return {feature.name: feature for feature in self.features}

    @property
    def single_valued(self) -> tuple[str, ...]:
        """Names of the features with exactly one id, or value, a row: the columns of the packed id matrix."""
        known = self.by_name
        return tuple(f.name for f in self.features if not is_multivalent(f, known))

    @property
    def single_ids(self) -> tuple[str, ...]:
        """Names of the features with exactly one id a row: those of ``single_valued`` that are no values."""
        return tuple(name for name in self.single_valued if not has_no_ids(self.by_name[name]))

    @property
    def multivalent(self) -> tuple[str, ...]:
        known = self.by_name
        return tuple(f.name for f in self.features if is_multivalent(f, known))

    @property
    def growing(self) -> tuple[str, ...]:
        """Names of the features whose ids grow: 64-bit fingerprints."""
        return tuple(f.name for f in self.features if f.buckets is None)

    @property
    def id_type(self) -> np.dtype:
        """Type of the ids of all features: int64 where one's ids grow, else int32."""
        return np.dtype(np.int64 if self.growing else np.int32)

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(f.source for f in self.features if not isinstance(f, Cross)))

    @property
    def read_sources(self) -> tuple[str, ...]:
        """The sources that raw rows have: all but those of histories."""
        return tuple(name for name in self.sources if name not in self.histories)

    def _is_of_time(self, source: str) -> bool:
        return source in self.derive and self.derive[source].of_time

    def column_of(self, source: str) -> str:
        return self.derive[source].column if source in self.derive else source

    @property
    def inputs(self) -> dict[str, InputKind]:
        """Raw columns that the features are made of, each once, and how each is given.

        ``time``: int64 microseconds; ``number``: a float32; ``text``: a string, which is also what a column is that is
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
        """Raw columns that may hold lists, with the separator that joins them; None where features read several."""
        found: dict[str, set[str]] = {}
        for feature in self.features:
            if isinstance(feature, Vector) or (isinstance(feature, Category) and feature.multivalent):
                rule = self.derive.get(feature.source)
                if rule is None or rule.is_copy or rule.cast == "text":
                    found.setdefault(self.column_of(feature.source), set()).add(feature.separator)
        return {column: next(iter(texts)) if len(texts) == 1 else None for column, texts in found.items()}

    @property
    def histories(self) -> dict[str, History]:
        """The features that list what earlier rows had, by name."""
        found = {f.name: f.history for f in self.features if isinstance(f, Category)}
        return {name: history for name, history in found.items() if history is not None}

    def spells_numbers(self, source: str) -> bool:
        """Tells whether categories of a source spell 12.0 as 12."""
        return not (source in self.derive and self.derive[source].cast == "text")

    @property
    def stored(self) -> "Schema":
        """Selects the features that shards have."""
        return make_schema(self.features[:-1], self.derive) if self.counts_rows else self

    def only(self, names: Iterable[str]) -> "Schema":
        """Selects the named features, and the parts of those that are crosses."""
        wanted = set(names)
        for name in tuple(wanted):
            feature = self.by_name[name]
            if isinstance(feature, Cross):
                wanted.update(feature.of)
        kept = [feature for feature in self.features if feature.name in wanted]
        return make_schema(_as_lists(kept), self.derive, self.counts_rows and QUERY_SIZE in wanted)

    def made_of(self, columns: Container[str]) -> "Schema":
        known = self.by_name

        def is_made(feature: Feature) -> bool:
            if isinstance(feature, Cross):
                return all(is_made(known[part]) for part in feature.of)
            return self.column_of(feature.source) in columns

        counts_rows = self.counts_rows and QUERY_SIZE in columns
        return make_schema(_as_lists(list(filter(is_made, self.features))), self.derive, counts_rows)

    def canonical_json(self) -> str:
        """Writes the schema as text that depends on nothing but its meaning."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    @property
    def version(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the canonical text."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()[:16]


def _check_history(feature: Category, history: History, known: Mapping[str, AnyFeature]) -> None:
    for key, name in (("by", history.by), ("of", history.of)):
        other = known.get(name)
        if not isinstance(other, Category) or other.multivalent:
            raise ValueError(
                f"feature {feature.name}: history.{key} names {name}; allowed: single-valued categories before it"
            )
        if key == "by" and other.buckets is not None:
            raise ValueError(
                f"feature {feature.name}: history.by names {name}, where several values share a bucket; allowed: a "
                "category without buckets and vocabulary"
            )
        if (
            key == "of"
            and history.lists == "values"
            and (other.buckets, other.vocabulary) != (feature.buckets, feature.vocabulary)
        ):
            raise ValueError(f"feature {feature.name}: buckets and vocabulary must be those of {name}")


def _as_lists(features: Sequence[Feature]) -> list[Feature]:
    """Makes lists, such as a server sends, of the histories without the features that they name."""
    names = {feature.name for feature in features}
    return [
        feature.model_copy(update={"history": None})
        if isinstance(feature, Category) and feature.history and not {*feature.history.names} <= names
        else feature
        for feature in features
    ]


def make_schema(
    features: Sequence[Feature], derive: Mapping[str, Derived], counts_rows: bool = False
) -> Schema:
    """Makes a schema of some features and of those rules of derived columns that they read."""
    sources = {feature.source for feature in features if not isinstance(feature, Cross)}
    read = {name: derive[name] for name in sorted(derive) if name in sources}
    return Schema(features=tuple(features), derive=read, counts_rows=counts_rows)


def differing_features(before: Schema, now: Schema) -> list[str]:
    """Describes each feature that came, went or changed between two schemas, and a new order."""
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
    """Describes by name what decides a feature's ids; two with the same have the same ids for the same input."""
    meanings: dict[str, dict[str, Any]] = {}
    for feature in schema.features:
        meaning = feature.model_dump(mode="json", exclude={"name", "width", "tower"})
        if isinstance(feature, Cross):
            meaning["of"] = {str(place): meanings[part] for place, part in enumerate(feature.of)}
        elif feature.source in schema.derive:
            meaning["derive"] = schema.derive[feature.source].model_dump(mode="json")
        meanings[feature.name] = meaning
    return meanings


def is_multivalent(feature: AnyFeature, known: dict[str, AnyFeature]) -> bool:
    """Tells whether a row can have any number of ids; ``known`` resolves the parts of crosses."""
    if isinstance(feature, Cross):
        return any(is_multivalent(known[part], known) for part in feature.of)
    return isinstance(feature, Text | Vector) or (isinstance(feature, Category) and feature.multivalent)


def has_no_ids(feature: AnyFeature) -> bool:
    """Tells a value or a vector, whose numbers the network reads."""
    return feature.buckets == 0


def _way_of_reading(feature: Category | Number | Vector | Text) -> tuple[str, ...]:
    if isinstance(feature, Vector):
        return f"a vector of {feature.size} numbers", feature.separator, feature.strip
    return ("a number" if isinstance(feature, Number) else "a string",)


def id_bounds(schema: Schema, names: Sequence[str]) -> list[int | None]:
    """Returns the numbers below which the ids of the named features lie; None where ids grow or are none."""
    return [schema.by_name[name].buckets or None for name in names]
