"""What a pass says of the features' ids: how many values are missing, how many share an id, which are frequent."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctr.io.documents import parse_json
from ctr.io.errors import InputError

_COUNTS = ("buckets", "distinct_ids", "rows", "missing", "values", "new", "counted")


@dataclass(frozen=True)
class FrequentId:
    """An id that occurs often.

    Attributes:
        id: the id.
        value: what it stands for; None for a hash, which does not say.
        share: of the feature's values, from every eighth batch.
    """

    id: int
    value: str | None
    share: float


@dataclass(frozen=True)
class FeatureHealth:
    """The ids of a feature over a pass.

    Attributes:
        name: of the feature.
        kind: category, number, text or cross.
        hashed: whether values are hashed to ids, so that some share one.
        buckets: number of ids, that of a missing value included.
        distinct_ids: ids that occurred, but for that of a missing value.
        rows: rows of the pass.
        missing: rows without a value.
        values: values; more or fewer than rows for a feature with several a row.
        new: values whose id was in no batch before.
        top: the most frequent ids, the most frequent first.
    """

    name: str
    kind: str
    hashed: bool
    buckets: int
    distinct_ids: int
    rows: int
    missing: int
    values: int
    new: int
    top: tuple[FrequentId, ...]

    @property
    def missing_share(self) -> float:
        """Share of rows without a value; NaN without rows."""
        return self.missing / self.rows if self.rows else math.nan

    @property
    def new_share(self) -> float:
        """Share of values whose id was in no batch before; NaN without values."""
        return self.new / self.values if self.values else math.nan

    @property
    def distinct_values(self) -> float:
        """How many distinct values were hashed, by how many ids they left unused (linear counting).

        Whang, Vander-Zanden, Taylor, "A linear-time probabilistic counting algorithm", TODS 1990. Infinite where no id
        is unused; where nothing is hashed the number of ids that occurred.
        """
        ids = self.buckets - 1
        if not self.hashed:
            return float(self.distinct_ids)
        if self.distinct_ids >= ids:
            return math.inf
        return -ids * math.log1p(-self.distinct_ids / ids)

    @property
    def shared_share(self) -> float:
        """Expected share of the distinct values that share their id with another one; 0 where nothing is hashed."""
        if not self.hashed or self.distinct_values <= 1:
            return 0.0
        return (
            -math.expm1((self.distinct_values - 1) * math.log1p(-1 / (self.buckets - 1)))
            if self.buckets > 2
            else 1.0
        )


@dataclass(frozen=True)
class DataHealth:
    """Content of data_health.json.

    Attributes:
        features: in the order of the schema.
        slice_values: for each feature by which metrics are sliced what its ids stand for, None for a hash.
    """

    features: tuple[FeatureHealth, ...]
    slice_values: dict[str, dict[int, str | None]]


def read_data_health(folder: Path) -> DataHealth | None:
    """What a run wrote of its features; None without a data_health.json, as earlier versions left none.

    Raises:
        InputError: the file is damaged.
    """
    path = folder / "data_health.json"
    if not path.exists():
        return None
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        return DataHealth(
            features=tuple(_feature(entry) for entry in content["features"]),
            slice_values={
                str(name): {int(one): None if value is None else str(value) for one, value in values.items()}
                for name, values in content["slice_values"].items()
            },
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"no {error.args[0]}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise InputError(f"{path}: damaged, or of another version: {reason:.120}") from None


def _feature(entry: dict[str, Any]) -> FeatureHealth:
    counts = {name: _count(name, entry[name]) for name in _COUNTS}
    if counts["buckets"] < 2 or counts["distinct_ids"] > counts["buckets"]:
        raise ValueError(
            f"distinct_ids must be at most buckets, got {counts['distinct_ids']} and {counts['buckets']}"
        )
    counted = counts.pop("counted")
    top = []
    for one in entry["top"]:
        value = one["value"]
        share = _count("count", one["count"]) / counted if counted else math.nan
        top.append(FrequentId(_count("id", one["id"]), None if value is None else str(value), share))
    return FeatureHealth(
        name=str(entry["name"]),
        kind=str(entry["kind"]),
        hashed=bool(entry["hashed"]),
        top=tuple(top),
        **counts,
    )


def _count(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{name} must be a whole number, got {value!r:.40}")
    return value
