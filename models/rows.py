"""Layout of embedding rows in tables.

The rows of all features that share a tower and an embedding width are in one table. A row holds the
embedding and, as its last column, the feature's linear weight::

    table (quality, 16):  [ embedding 0..15 | linear ]   row = offset of the feature + id

If the components of an ensemble have separate embeddings, a row holds the embeddings of all components.

A feature whose ids grow has a few fixed rows, for a missing value and for ids without a slot. The fixed rows of all
features are followed by slots, which the trainer assigns to ids for a time (``ctr.training.ids``).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

STATISTICS = "numbers"
"""Name of the statistics of numeric features among the variables of a run or an export."""

APART = "numbers_apart"
"""Name of the statistics of left-out values and the first values; see ``ctr.models.numbers``."""
FIRST_NUMBERS = 64
"""Number of first values that are judged together."""

CLIP = 10.0
"""Maximum magnitude of normalized numbers."""


@dataclass(frozen=True)
class Pooled:
    """A multivalent feature whose embeddings are pooled by attention (``ctr.models.pooling``).

    Attributes:
        name: name of the feature.
        of: the single-valued feature that is the target of attention.
        most: the maximum number of values.
        width: width of the feature's embeddings.
        target: width of the target's embeddings.
        scale: factor of the products of both, so that initially they are as large as embeddings.
    """

    name: str
    of: str
    most: int
    width: int
    target: int
    scale: float

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the attention's weights by name."""
        return {"query": (self.target, self.width), "recency": (self.most,)}

    @property
    def operations(self) -> int:
        """Returns the number of floating-point operations per row; lists are computed at full length."""
        return 2 * self.target * self.width + self.most * (4 * self.width + 6)


@dataclass(frozen=True)
class Numbers:
    """A numeric feature, without table rows; its values follow the embeddings in the input of its tower.

    Attributes:
        size: the number of values per row.
        single: the column of the id matrix with the bits of the value; None for a vector.
        first: the feature's first column among the columns of all numeric features.
        log: whether sign(x) log(1 + |x|) replaces each value x.
        normalize: whether the values are normalized (``ctr.models.numbers``).
    """

    name: str
    tower: str
    size: int
    single: int | None
    first: int
    log: bool = False
    normalize: bool = True

    @property
    def width(self) -> int:
        """Returns the number of columns in the tower's input: the values, and a flag for missing ones."""
        return self.size + 1


@dataclass(frozen=True)
class FeatureRows:
    """A feature and its rows in a table.

    Attributes:
        buckets: the number of its fixed rows: one per id, or if its ids grow, 1 for a missing value and the rows shared
            by ids without a slot.
        single: the feature's column in the id matrix, None if multivalent.
        growing: whether its ids grow.
        of: for a feature of the pairs table, the log's feature whose ids it has, or the two whose ids it combines.
        pooled: pooling of the feature's values; None: their mean.
    """

    name: str
    buckets: int
    width: int
    tower: str
    single: int | None
    growing: bool = False
    of: tuple[str, ...] = ()
    pooled: Pooled | None = None

    @property
    def source(self) -> str:
        """Returns the name of the log's feature with the same ids; the feature's own name for a pair."""
        return self.of[0] if len(self.of) == 1 else self.name

    @cached_property
    def salt(self) -> np.int64:
        """Returns the constant XORed into growing ids, so that equal ids of two features differ."""
        return np.frombuffer(hashlib.sha256(self.name.encode()).digest()[:8], "<i8")[0]


@dataclass(frozen=True)
class TableLayout:
    """Layout of a table: its features in the order of their rows, single-valued before multivalent.

    ``copies`` is the number of components with separate embeddings, 1 if they share them. ``numbers`` are the tower's
    numeric features; the first table of a tower lists them.
    """

    tower: str
    width: int
    features: tuple[FeatureRows, ...]
    copies: int = 1
    numbers: tuple[Numbers, ...] = ()

    @property
    def name(self) -> str:
        """Returns the name of the table: its tower and width, for instance ``quality-16``."""
        return f"{self.tower}-{self.width}"

    @property
    def single(self) -> tuple[FeatureRows, ...]:
        """Returns the features with exactly one id per row."""
        return tuple(f for f in self.features if f.single is not None)

    @property
    def multivalent(self) -> tuple[FeatureRows, ...]:
        """Returns the features with any number of ids per row."""
        return tuple(f for f in self.features if f.single is None)

    @cached_property
    def growing(self) -> tuple[FeatureRows, ...]:
        """Returns the features whose ids grow, in the order of ``features``."""
        return tuple(f for f in self.features if f.growing)

    @cached_property
    def rows(self) -> int:
        """Returns the number of fixed rows: all rows of the table, unless ids grow, for which slots follow."""
        return sum(f.buckets for f in self.features)

    @property
    def columns(self) -> int:
        """Returns the number of columns of the table: an embedding and a linear weight for each copy."""
        return self.copies * (self.width + 1)

    def by_column(self, embedding: float, linear: float) -> np.ndarray:
        """Returns float32 [columns]: ``embedding`` for columns of embeddings, ``linear`` for linear weights."""
        values = np.full((self.copies, self.width + 1), embedding, np.float32)
        values[:, self.width] = linear
        return values.ravel()

    def offsets(self) -> dict[str, int]:
        """Returns the first row of each feature, by name."""
        starts = np.cumsum([0, *(f.buckets for f in self.features)])
        return {feature.name: int(start) for feature, start in zip(self.features, starts, strict=False)}


def lay_out_tables(
    features: Sequence[FeatureRows], copies: int = 1, numbers: Sequence[Numbers] = ()
) -> tuple[TableLayout, ...]:
    """Lays out one table for each tower and width, in a fixed order; a tower's first table lists its ``numbers``.

    Raises:
        ValueError: a table would have more rows than int32 can number.
    """
    groups: dict[tuple[str, int], list[FeatureRows]] = {}
    for feature in features:
        groups.setdefault((feature.tower, feature.width), []).append(feature)
    layouts = []
    for (tower, width), members in sorted(groups.items()):
        layout = TableLayout(tower, width, tuple(sorted(members, key=lambda f: f.single is None)), copies)
        if layout.rows > np.iinfo(np.int32).max:
            raise ValueError(f"table {layout.name}: {layout.rows} rows are too many (at most 2^31 - 1)")
        layouts.append(layout)
    for number in numbers:
        index = next((index for index, layout in enumerate(layouts) if layout.tower == number.tower), 0)
        layouts[index] = replace(layouts[index], numbers=(*layouts[index].numbers, number))
    return tuple(layouts)


def number_count(layouts: Sequence[TableLayout]) -> int:
    """Returns K, the number of numeric values per row."""
    return sum(numbers.size for numbers in all_numbers(layouts))


def all_numbers(layouts: Sequence[TableLayout]) -> tuple[Numbers, ...]:
    """Returns the numeric features, in the order of their columns."""
    return tuple(sorted((n for layout in layouts for n in layout.numbers), key=lambda n: n.first))


def feature_names(layouts: Sequence[TableLayout]) -> list[str]:
    """Returns the names of the log's features that a model has, without pairs."""
    names = [feature.name for layout in layouts for feature in layout.features if not feature.of]
    return names + [numbers.name for numbers in all_numbers(layouts)]


def with_products(layouts: Sequence[TableLayout]) -> tuple[TableLayout, ...]:
    """Appends a layout without rows for the product of each attention-pooled feature with its target."""
    products = [
        _without_rows(f"{pooled.name}*{pooled.of}", layout.tower, pooled.width)
        for layout in layouts
        for pooled in (feature.pooled for feature in layout.features)
        if pooled is not None
    ]
    return (*layouts, *products)


def with_numbers(layouts: Sequence[TableLayout]) -> tuple[TableLayout, ...]:
    """Appends a layout without rows for each numeric feature."""
    return (*layouts, *(_without_rows(n.name, n.tower, n.width) for n in all_numbers(layouts)))


def _without_rows(name: str, tower: str, width: int) -> TableLayout:
    return TableLayout(tower, width, (FeatureRows(name, 0, width, tower, None),))


def check_table(table: np.ndarray, layout: TableLayout) -> None:
    """Raises ValueError if the shape of an array does not fit the layout."""
    rows, columns = table.shape
    if columns != layout.columns or rows < layout.rows or (rows > layout.rows and not layout.growing):
        raise ValueError(f"table {layout.name} has the shape {list(table.shape)}")
