"""The search that tunes every optimizer by the same rule and with the same number of tries.

A point is three whole numbers: the dense learning rate, the embedding rate and the dense initial accumulator
in half steps of a logarithmic grid. A full step is a factor of 2 of a rate and of 100 of the accumulator.

1. From the start, full steps along one axis at a time from the best full-grid point so far: rate up, rate
   down, embedding rate up, down, accumulator up, down. A better neighbour becomes the best at once, so the
   search goes on in its direction until the best is not on the edge of what was tried, whichever axis it is.
   When all neighbours are worse the optimizer is *settled*.
2. Tries that are left go to half steps around the best of all points: of the rate, of the embedding rate, of
   both together, of the accumulator.

All optimizers get ``tries`` tries at a batch size. When one of them is not settled by then, all get
``EXTRA_TRIES`` more, up to the plan's limit. Ties and runs that are not finite count as worse.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

EXTRA_TRIES = 4


@dataclass(frozen=True, order=True)
class Point:
    """A point of the grid, in half steps.

    Attributes:
        rate: of the dense learning rate; sqrt(2) each.
        embedding: of the embedding rate; sqrt(2) each.
        accumulator: of the dense initial accumulator; 10 each.
    """

    rate: int = 0
    embedding: int = 0
    accumulator: int = 0

    @property
    def values(self) -> dict[str, float]:
        """The settings, rounded to what is worth writing down."""
        return {
            "rate": _rounded(0.01 * 2 ** (self.rate / 2)),
            "embedding": _rounded(0.1 * 2 ** (self.embedding / 2)),
            "accumulator": _rounded(1e-6 * 10.0**self.accumulator),
        }

    def moved(self, rate: int = 0, embedding: int = 0, accumulator: int = 0) -> "Point":
        """The point so many half steps away."""
        return Point(self.rate + rate, self.embedding + embedding, self.accumulator + accumulator)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _full_steps(point: Point, accumulator: bool) -> Iterator[Point]:
    for sign in (2, -2):
        yield point.moved(rate=sign)
    for sign in (2, -2):
        yield point.moved(embedding=sign)
    for sign in (2, -2) if accumulator else ():
        yield point.moved(accumulator=sign)


def _half_steps(point: Point, accumulator: bool) -> Iterator[Point]:
    for sign in (1, -1):
        yield point.moved(rate=sign)
    for sign in (1, -1):
        yield point.moved(embedding=sign)
    for rate, embedding in ((1, 1), (-1, -1), (1, -1), (-1, 1)):
        yield point.moved(rate=rate, embedding=embedding)
    for sign in (1, -1) if accumulator else ():
        yield point.moved(accumulator=sign)


def best_point(done: Mapping[Point, float]) -> Point:
    """The point of the smallest result; of equal ones the one tried first."""
    return min(done, key=lambda point: done[point])


def _best_full(done: Mapping[Point, float], start: Point) -> Point:
    def is_full(point: Point) -> bool:
        return not any(
            (ours - theirs) % 2
            for ours, theirs in (
                (point.rate, start.rate),
                (point.embedding, start.embedding),
                (point.accumulator, start.accumulator),
            )
        )

    return best_point({point: result for point, result in done.items() if is_full(point)})


def is_settled(done: Mapping[Point, float], start: Point, accumulator: bool = True) -> bool:
    """Whether the best full-grid point is inside of what was tried along every axis."""
    return start in done and all(point in done for point in _full_steps(_best_full(done, start), accumulator))


def next_point(done: Mapping[Point, float], start: Point, accumulator: bool = True) -> Point | None:
    """What to try next, given the results so far (smaller is better); None when nothing is left.

    Args:
        done: results by point.
        start: where the search began.
        accumulator: whether the accumulator is an axis; an optimizer without one spends its tries on the others.
    """
    if start not in done:
        return start
    candidates = [
        *_full_steps(_best_full(done, start), accumulator),
        *_half_steps(best_point(done), accumulator),
    ]
    return next((point for point in candidates if point not in done), None)
