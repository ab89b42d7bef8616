"""Health of the features' ids in a pass: missing values, shared ids, frequent ids."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctr.eval import display
from ctr.eval.timeline import SLOT_COUNTS
from ctr.io.documents import parse_json
from ctr.io.errors import InputError

_COUNTS = ("distinct_ids", "rows", "missing", "values", "new", "counted")


@dataclass(frozen=True)
class FrequentId:
    """An id that occurs often: what it stands for (of a hash the id itself), and its share of the values."""

    name: str
    share: float


@dataclass(frozen=True)
class Slots:
    """Rows that ids of a feature have of their own."""

    occupancy: int  # ids that have one
    capacity: int  # ids that may have one
    admitted: int  # ids that got one, in the pass
    evicted: int  # ids that lost it
    refused: int  # occurrences of ids that were to get one while the feature was full
    shared: int  # occurrences that were learned on a shared row
    occurrences: int  # all of them

    @property
    def shared_share(self) -> float:
        return self.shared / self.occurrences if self.occurrences else math.nan

    @property
    def refused_share(self) -> float:
        return self.refused / self.occurrences if self.occurrences else math.nan


@dataclass(frozen=True)
class FeatureHealth:
    """Ids of a feature over a pass."""

    name: str
    kind: str  # category, number, text or cross
    hashed: bool  # whether values are hashed to ids, which do not say what they stand for
    buckets: int | None  # that of a missing value included; None where ids grow
    distinct_ids: int  # that occurred, but for that of a missing value; where ids grow those with a row
    rows: int
    missing: int  # rows without a value
    values: int  # more or fewer than rows for a feature with several a row
    new: int  # values whose id was in no batch before; where ids grow, ids that were admitted
    top: tuple[FrequentId, ...]  # the most frequent ids, the most frequent first
    slots: Slots | None = None  # where ids grow

    @property
    def missing_share(self) -> float:
        return self.missing / self.rows if self.rows else math.nan

    @property
    def new_share(self) -> float:
        """Share of values whose id was in no batch before; NaN without values."""
        return self.new / self.values if self.values else math.nan

    @property
    def distinct_values(self) -> float:
        """Number of distinct values that were hashed, by how many ids they left unused (linear counting).

        Whang, Vander-Zanden, Taylor, "A linear-time probabilistic counting algorithm", TODS 1990. Infinite
        where no id is unused; where nothing is hashed, or ids grow, the number of ids that occurred.
        """
        if not self.hashed or self.buckets is None:
            return float(self.distinct_ids)
        ids = self.buckets - 1
        if self.distinct_ids >= ids:
            return math.inf
        return -ids * math.log1p(-self.distinct_ids / ids)

    @property
    def shared_share(self) -> float:
        """Expected share of the distinct values that share their id with another one."""
        if not self.hashed or self.buckets is None or self.distinct_values <= 1:
            return 0.0
        return (
            -math.expm1((self.distinct_values - 1) * math.log1p(-1 / (self.buckets - 1)))
            if self.buckets > 2
            else 1.0
        )


@dataclass(frozen=True)
class DataHealth:
    """Content of data_health.json.

    ``slice_values``: for each feature by which metrics are sliced what its ids stand for, None for a hash;
    also for the families of constrained slices.
    """

    features: tuple[FeatureHealth, ...]
    slice_values: dict[str, dict[int, str | None]]


def read_data_health(folder: Path) -> DataHealth:
    """Reads data_health.json; raises InputError where it is missing or damaged."""
    path = folder / "data_health.json"
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        return DataHealth(
            features=tuple(_feature(entry) for entry in content["features"]),
            slice_values={
                str(name): {int(one): None if value is None else str(value) for one, value in values.items()}
                for name, values in content["slice_values"].items()
            },
        )
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; a finished run has one") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"no {error.args[0]}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise InputError(f"{path}: damaged, or of another version: {reason:.120}") from None


def _feature(entry: dict[str, Any]) -> FeatureHealth:
    counts = {name: _count(name, entry[name]) for name in _COUNTS}
    buckets = entry["buckets"]
    if buckets is not None and not 2 <= _count("buckets", buckets) >= counts["distinct_ids"]:
        raise ValueError(f"distinct_ids must be at most buckets, got {counts['distinct_ids']} and {buckets}")
    counted = counts.pop("counted")
    top = []
    for one in entry["top"]:
        share = _count("count", one["count"]) / counted if counted else math.nan
        top.append(FrequentId(id_name(one["value"], one["id"], buckets is None), share))
    return FeatureHealth(
        buckets=buckets,
        slots=_slots(entry["slots"]) if buckets is None else None,
        name=str(entry["name"]),
        kind=str(entry["kind"]),
        hashed=bool(entry["hashed"]),
        top=tuple(top),
        **counts,
    )


def id_name(value: str | None, one: object, grows: bool) -> str:
    """Name of an id: its value, or where that is not known the id; raises ValueError where it is no id."""
    if not isinstance(one, int) or isinstance(one, bool) or not -(2**63) <= one < 2**63:
        raise ValueError(f"id must be a whole number, got {one!r:.40}")
    if value is not None:
        return str(value)
    return display.fingerprint(one) if grows else f"id {one}"


def _slots(entry: dict[str, Any]) -> Slots:
    counts = {name: _count(name, entry[name]) for name in SLOT_COUNTS}
    if not 0 <= counts["occupancy"] <= counts["capacity"] or not counts["capacity"]:
        raise ValueError(
            f"occupancy must be at most capacity, got {counts['occupancy']} and {counts['capacity']}"
        )
    return Slots(**counts)


def _count(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{name} must be a whole number, got {value!r:.40}")
    return value
