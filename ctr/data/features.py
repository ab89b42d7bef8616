"""Kinds of features, each with the source of its values, its buckets, width and tower.

Features are categorical (FF section 2): each value becomes an id. With ``buckets``, the id is a number in
``[0, buckets)``; without, ids grow: the id is the value's 64-bit fingerprint. Id 0 means "missing". Numbers with
``as: value`` and vectors reach the network unchanged: they have 0 buckets, and instead of ids the bits of float32
(``ctr.data.value_arrays``).
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from ctr.config import ShortModel, StrictModel
from ctr.data.history import History

Tower = Literal["quality", "ui"]
Name = Annotated[
    str,
    # Letters and digits of all scripts.
    Field(
        pattern=r"^[^\W\d][\w.\-]*$",
        max_length=100,
        title="name of letters, digits, _ . -",
        # In JavaScript, letters are ASCII's: without a space and the other signs of ASCII.
        json_schema_extra={"pattern": r"^[^\s!-@\[-^`{-~][^\s!-,/:-@\[-^`{-~]*$"},
    ),
]
LabelName = Annotated[
    str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", max_length=60, title="name of ASCII letters, digits, _")
]
Buckets = Annotated[int, Field(ge=2, le=2**31 - 1)]

_LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127


class FeatureBase(ShortModel):
    """Settings that all features share.

    Attributes:
        name: the name of the feature.
        width: the width of its embedding; 0: a linear weight only. Null: by the number of its ids.
        tower: the tower that it belongs to.
    """

    name: Name
    width: int | None = Field(default=None, ge=0, le=4096)
    tower: Tower = "quality"

    @property
    def has_ids(self) -> bool:
        """Returns whether values become ids; False for ``as: value`` and vectors, whose numbers the network reads."""
        return True

    @model_validator(mode="after")
    def _no_width_without_ids(self) -> Self:
        if self.width is not None and not self.has_ids:
            raise ValueError("width is not allowed: the network reads numbers themselves, not embeddings")
        return self


class Category(FeatureBase):
    """A string or number, hashed to ids or looked up in a vocabulary.

    Numbers are spelled in one way (``ctr.data.spelling``): 12.0 is 12.

    Attributes:
        kind: the kind of the feature.
        source: the column that is read; required unless ``history`` is set.
        buckets: the number of ids that values are hashed to. Id 0 is "missing". Null: ids grow, each value has a
            distinct id. With a vocabulary it follows from the list and must not be set.
        vocabulary: the values with distinct ids: ids 1 to n in this order, n + 1 for all other values. Null: there is
            none.
        multivalent: whether a row has any number of values: a list, or text split at ``separator``.
        separator: the text between the values of a multivalent feature whose column holds text.
        strip: ASCII characters that are taken off both ends of each value of a multivalent feature: with the separator
            ``,`` and ``[]'`` with a space here, the text ``['a', 'b']`` has the values a and b.
        max_values: maximum number of values per row.
        keep: which end of a longer row is used: the first or the last values; ``last`` suits histories that grow at
            their end.
        history: the values come from earlier rows of the log, not a column. The feature is multivalent, its name is
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
    def _set_what_follows(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        if isinstance(vocabulary := content.get("vocabulary"), list | tuple):
            # Ids: 0 missing, 1..n the vocabulary, n + 1 everything else.
            content = _with(content, "vocabulary", {"buckets": len(vocabulary) + 2})
        if not (history := content.get("history")):
            return content
        keys = dict(history) if isinstance(history, dict | History) else {}
        last = keys.get("last")
        most = last if isinstance(last, int) and last else History.model_fields["last"].default
        sets = {"source": content.get("name"), "multivalent": True, "max_values": most, "keep": "last"}
        return _with(content, "history", sets)

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


def _with(content: dict[str, Any], source: str, sets: dict[str, Any]) -> dict[str, Any]:
    for key, value in sets.items():
        current = content.get(key, value)
        if (tuple(current) if isinstance(current, list) else current) != value:
            raise ValueError(f"{key} follows from the {source} ({value}) and must not be set")
    return {**content, **sets}


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
    """A number, bucketed by one of ``boundaries``, ``log`` and ``step``, or passed to the network with ``as: value``.

    In buckets, id 0 is missing (empty, null or NaN); id ``1 + k`` is a number with ``k`` boundaries at or below it.
    Boundaries and values are compared as float32.

    Attributes:
        kind: the kind of the feature.
        source: the column that is read.
        boundaries: increasing boundaries between buckets.
        log: boundaries that grow geometrically, from 1 on.
        step: evenly spaced boundaries.
        as_value: ``value``: the network reads the number, standardized by the mean and standard deviation of the rows
            learned so far and clipped to [-10, 10], and whether it is missing.
        scale: ``log``: a value x is replaced by sign(x) log(1 + |x|), which suits amounts of any size.
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
        """Returns the number of ids: the boundaries plus 2, one for missing; 0 for a value."""
        return len(self.edges()) + 2 if self.has_ids else 0

    @property
    def has_ids(self) -> bool:
        return self.as_value is None


class Vector(FeatureBase):
    """A list of numbers of fixed length, such as an embedding from another model; the network reads the numbers.

    A row is rejected if its list has another length or contains anything but finite numbers. An empty list or text is
    missing.

    Attributes:
        kind: the kind of the feature.
        source: the column that is read: lists of numbers, or text.
        size: the number of numbers.
        separator: the text between numbers in a text column; a space stands for any run of white space.
        strip: ASCII characters that are taken off both ends of each number in a text column: with ``,`` as
            separator and ``[]`` here, ``[0.5, 1]`` is read.
        normalize: whether each element is standardized by its mean and standard deviation over the rows learned so
            far, and clipped to [-10, 10]; otherwise the network reads the elements unchanged.
    """

    kind: Literal["vector"] = "vector"
    source: str
    size: int = Field(ge=1, le=4096)
    separator: str = Field(default=" ", min_length=1)
    strip: str = Field(default="", pattern=r"^[\x20-\x7e]*$", title="printable ASCII characters")
    normalize: bool = True

    buckets: ClassVar = 0
    has_ids: ClassVar = False


class Text(FeatureBase):
    """Words (lower-cased runs of letters and digits), word n-grams, and n-grams inside words (FF 2).

    Attributes:
        kind: the kind of the feature.
        source: the column that is read.
        buckets: the number of ids that tokens are hashed to. Null: ids grow, each token has a distinct id.
        words: sizes of word n-grams: 1 for single words, 2 for pairs of neighbors.
        subwords: sizes of character n-grams inside ``<word>``, such as 3 and 4; empty: none.
        max_values: maximum number of tokens per row; of a longer text, the first ones are used.
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
        buckets: the number of ids that products are hashed to. Null: ids grow, each product has a distinct id.
    """

    kind: Literal["cross"] = "cross"
    of: tuple[Name, ...] = Field(min_length=2)
    buckets: Buckets | None = None


AnyFeature = Category | Number | Vector | Text | Cross
Feature = Annotated[AnyFeature, Field(discriminator="kind")]


def is_multivalent(feature: AnyFeature, by_name: Mapping[str, AnyFeature]) -> bool:
    """Returns whether a row can have any number of ids; ``by_name`` resolves the parts of crosses."""
    if isinstance(feature, Cross):
        return any(is_multivalent(by_name[part], by_name) for part in feature.of)
    return isinstance(feature, Text | Vector) or (isinstance(feature, Category) and feature.multivalent)
