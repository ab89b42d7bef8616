"""Seeded logs for the metric tests."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt
import pytest


@dataclass(frozen=True)
class Log:
    """Rows of whole queries, as columns [N]."""

    label: npt.NDArray[np.int64]
    logit: npt.NDArray[np.float64]
    weight: npt.NDArray[np.float64]
    query_id: npt.NDArray[np.int64]

    def __getitem__(self, rows: object) -> "Log":
        return replace(self, **{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def columns(self) -> tuple[npt.NDArray[np.generic], ...]:
        return self.label, self.logit, self.weight, self.query_id

    def batches(self, queries: int) -> Iterator["Log"]:
        """The log in batches of `queries` whole queries, by ascending query_id."""
        ids = np.unique(self.query_id)
        for start in range(0, len(ids), queries):
            yield self[np.isin(self.query_id, ids[start : start + queries])]


def make_log(seed: int, queries: int = 40) -> Log:
    """A log with ties, uneven weights (some 0), queries of one class, and rows of a query apart."""
    rng = np.random.default_rng(seed)
    size = rng.integers(1, 12, queries)
    ids = rng.choice(2**62, queries, replace=False) * rng.choice([-1, 1], queries)
    query_id = np.repeat(ids, size)
    logit = np.round(rng.normal(-1, 1.5, size.sum()), 1)
    label = (rng.random(size.sum()) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    weight = rng.exponential(2.0, size.sum()) * (rng.random(size.sum()) < 0.9)
    return Log(label, logit, weight, query_id)[rng.permutation(size.sum())]


@pytest.fixture(name="make_log", scope="session")
def _make_log() -> Callable[..., Log]:
    return make_log
