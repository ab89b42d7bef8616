"""Division of pieces of work among workers, as a pure function: all compute the same without asking each other."""

import heapq
import math
from collections.abc import Sequence

# Into how many parts the largest cost is rounded; how close to its bound a load is close enough; what less memory may
# cost.
_UNITS = 1 << 30
_CLOSE = 1e-2
_DEARER = 1.05


def balanced(
    costs: Sequence[float], elements: Sequence[int], memory: Sequence[float], workers: int
) -> tuple[int, ...]:
    """Returns the owner of each piece, 0..W-1; the largest load of a worker is small, and its memory if possible.

    Longest processing time first: by descending cost, each piece goes to the worker with the least (Graham, 1969).
    Then the most loaded worker gives pieces away or swaps them, as long as that lowers its load without raising
    another's to it. Equal costs go by elements, then by their order.

    The same is done with costs to which as much is added for the memory of a piece. If that lowers the largest memory
    of a worker, and raises its costs by at most 5%, it is the result.

    Raises:
        ValueError: costs, elements and memory are not of the same pieces, a cost is no number from 0 up, or
            ``workers`` is less than 1.
    """
    if not len(costs) == len(elements) == len(memory):
        raise ValueError(
            f"{len(costs)} costs, {len(elements)} elements, {len(memory)} memories; allowed: one for each piece"
        )
    for number, cost in enumerate(costs):
        if not (math.isfinite(cost) and cost >= 0):
            raise ValueError(f"the cost of piece {number} is {cost!r}; allowed: finite numbers from 0 up")
    if workers < 1:
        raise ValueError(f"{workers} workers; allowed: 1 or more")
    owners = _balance(costs, elements, workers)
    total, whole = math.fsum(costs), math.fsum(memory)
    if total and whole:
        both = [cost / total + share / whole for cost, share in zip(costs, memory, strict=True)]
        other = _balance(both, elements, workers)
        dearer = max(loads(costs, other, workers)) > _DEARER * max(loads(costs, owners, workers))
        if not dearer and max(loads(memory, other, workers)) < max(loads(memory, owners, workers)):
            return other
    return owners


def loads(amounts: Sequence[float], owners: Sequence[int], workers: int) -> list[float]:
    """Sums the amounts (costs, elements, bytes) of each worker's pieces."""
    sums: list[list[float]] = [[] for _ in range(workers)]
    for amount, owner in zip(amounts, owners, strict=True):
        sums[owner].append(amount)
    return [math.fsum(part) for part in sums]


def _balance(costs: Sequence[float], elements: Sequence[int], workers: int) -> tuple[int, ...]:
    largest = max(costs, default=0.0)
    # Whole numbers: their sums are exact, so that loads of equal costs are equal in whatever order they were summed.
    units = [round(cost / largest * _UNITS) if largest else 0 for cost in costs]
    return tuple(_swap(units, _largest_first(units, elements, workers), workers))


def _largest_first(units: Sequence[int], elements: Sequence[int], workers: int) -> list[int]:
    """By descending cost, each to the worker with the least; elements decide between equals, in the same way."""
    owners = [0] * len(units)
    lightest = [(0, 0, worker) for worker in range(workers)]
    for place in sorted(range(len(units)), key=lambda i: (-units[i], -elements[i], i)):
        load, second, owners[place] = lightest[0]
        heapq.heapreplace(lightest, (load + units[place], second + elements[place], owners[place]))
    return owners


def _swap(units: Sequence[int], owners: list[int], workers: int) -> list[int]:
    """Moves and swaps of the most loaded worker, the best one each time, until none lowers its load."""
    sums = loads(units, owners, workers)
    enough = _bound(units, workers) * (1 + _CLOSE)
    while max(sums, default=0) > enough:
        top = sums.index(max(sums))
        members = [[place for place, owner in enumerate(owners) if owner == w] for w in range(workers)]
        # The largest load of both after each change, and the change; of equal ones the first.
        changes = (
            (max(sums[top] - moved, sums[worker] + moved), mine, theirs, worker)
            for worker, own in enumerate(members)
            if worker != top
            for theirs in (-1, *own)
            for mine in members[top]
            for moved in (units[mine] - (0 if theirs < 0 else units[theirs]),)
        )
        lowest, mine, theirs, worker = min(changes, key=lambda one: one[0], default=(sums[top], 0, 0, 0))
        if lowest >= sums[top]:
            break
        owners[mine] = worker
        if theirs >= 0:
            owners[theirs] = top
        sums = loads(units, owners, workers)
    return owners


def _bound(units: Sequence[int], workers: int) -> int:
    """A largest load that no division goes below: the mean, and that of a worker with k + 1 of k W + 1 pieces."""
    descending = sorted(units, reverse=True)
    crowded = [
        sum(descending[k * workers - k : k * workers + 1]) for k in range((len(units) - 1) // workers + 1)
    ]
    return max(-(-sum(units) // workers), *crowded, 0)
