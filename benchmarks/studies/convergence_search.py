"""The search that tunes every optimizer by the same rule and with the same number of tries.

A point is three whole numbers: the dense learning rate, the embedding rate and the dense initial accumulator,
in half steps of a logarithmic grid. A full step is a factor of 2 of a rate, or of 100 of the accumulator.

1. The search first makes full steps along one axis at a time from the best full-grid point so far: rate up, rate
   down, embedding rate up, down, accumulator up, down. A better neighbor becomes the best at once, so that the
   search continues in its direction until the best point is inside the tried range on every axis.
   When all neighbors are worse, the optimizer is *settled*.
2. The remaining tries are half steps around the best of all points: of the rate, of the embedding rate, of
   both together, of the accumulator.

All optimizers get ``tries`` tries at a batch size. If one of them is not settled by then, all get
``EXTRA_TRIES`` more, up to the plan's limit. Ties and runs that are not finite count as worse.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

EXTRA_TRIES = 4


class Point(NamedTuple):
    """A point of the grid, in half steps.

    Attributes:
        rate: half steps of the dense learning rate, each a factor of sqrt(2).
        embedding: half steps of the embedding rate, each a factor of sqrt(2).
        accumulator: half steps of the dense initial accumulator, each a factor of 10.
    """

    rate: int = 0
    embedding: int = 0
    accumulator: int = 0

    @property
    def values(self) -> dict[str, float]:
        """Returns the settings, rounded to three digits."""
        return {
            "rate": float(f"{0.01 * 2 ** (self.rate / 2):.3g}"),
            "embedding": float(f"{0.1 * 2 ** (self.embedding / 2):.3g}"),
            "accumulator": float(f"{1e-6 * 10.0**self.accumulator:.3g}"),
        }


def _moved(point: Point, size: int, accumulator: bool, *both: tuple[int, int]) -> Iterator[Point]:
    """Yields the points ``size`` half steps away along one axis, rates first, and along both rates together."""
    rate, embedding, initial = point
    yield from (Point(rate + sign, embedding, initial) for sign in (size, -size))
    yield from (Point(rate, embedding + sign, initial) for sign in (size, -size))
    yield from (Point(rate + a, embedding + b, initial) for a, b in both)
    if accumulator:
        yield from (Point(rate, embedding, initial + sign) for sign in (size, -size))


def _full_steps(point: Point, accumulator: bool) -> Iterator[Point]:
    return _moved(point, 2, accumulator)


def _half_steps(point: Point, accumulator: bool) -> Iterator[Point]:
    return _moved(point, 1, accumulator, (1, 1), (-1, -1), (1, -1), (-1, 1))


def best_point(done: Mapping[Point, float]) -> Point:
    """Returns the point with the smallest result; of equal ones, the one tried first."""
    return min(done, key=lambda point: done[point])


def _best_full(done: Mapping[Point, float], start: Point) -> Point:
    full = [point for point in done if not any((a - b) % 2 for a, b in zip(point, start, strict=True))]
    return best_point({point: done[point] for point in full})


def is_settled(done: Mapping[Point, float], start: Point, accumulator: bool = True) -> bool:
    """Returns whether all neighbors of the best full-grid point were tried, along every axis."""
    return start in done and all(point in done for point in _full_steps(_best_full(done, start), accumulator))


def next_point(done: Mapping[Point, float], start: Point, accumulator: bool = True) -> Point | None:
    """Returns the next point to try, given the results so far (smaller is better); None when no point is left.

    Args:
        done: results by point.
        start: first point of the search.
        accumulator: whether the accumulator is an axis; an optimizer without one spends its tries on the others.
    """
    if start not in done:
        return start
    candidates = [
        *_full_steps(_best_full(done, start), accumulator),
        *_half_steps(best_point(done), accumulator),
    ]
    return next((point for point in candidates if point not in done), None)
