"""Policy that a controller draws from: all candidates, or under rejection those under the target."""

import heapq
from collections.abc import Callable

import numpy as np

from ctr.io.errors import InputError
from ctr.search.config import ControllerConfig
from ctr.search.controller import Logits, draw, draw_kept, log_probability, marginals_of, probabilities
from ctr.search.space import Choice, Space

_MOST_TRIED = 100_000
"""Candidates that are tried, the most likely first, to find one that keeps to the target."""


class Policy:
    """Candidates that may be drawn, and what a step of the controller is corrected by.

    ``target`` is what a candidate should cost, or may at most under rejection.
    """

    def __init__(
        self,
        space: Space,
        cost: Callable[[Choice], float],
        target: float,
        config: ControllerConfig,
        seed: int,
    ) -> None:
        self.sizes = tuple(len(decision.choices) for decision in space.decisions)
        self._cost, self._target, self._config, self._seed = cost, target, config, seed
        self.rejects = config.mode == "rejection"
        self._listed: np.ndarray | None = None
        if self.rejects and space.size <= config.rejection_samples:
            every = np.array(list(space.candidates()))
            self._listed = every[self.keeps(every)]

    def costs(self, chosen: np.ndarray) -> np.ndarray:
        """Costs of candidates, float64 [N]; ``chosen`` is int [N, decisions]."""
        return np.array([self._cost(tuple(int(at) for at in one)) for one in chosen])

    def keeps(self, chosen: np.ndarray) -> np.ndarray:
        """Tells which candidates, int [N, decisions], may be drawn: bool [N]."""
        if not self.rejects:
            return np.ones(len(chosen), np.bool_)
        return self.costs(chosen) <= self._target

    def draw(self, logits: Logits, step: int, numbers: np.ndarray) -> np.ndarray:
        """Draws candidates, int64 [N, decisions]; those of one number and step are the same."""
        purpose = f"{self._seed} step {step}"
        if not self.rejects:
            return draw(logits, purpose, numbers)
        return draw_kept(logits, purpose, numbers, self.keeps)

    def expected(self, logits: Logits, step: int) -> Logits | None:
        """Subtrahend of a policy gradient, see ``ctr.search.controller.policy_gradient``.

        The probabilities; under rejection the marginals given the target, exact where the space is listed,
        else estimated. None: no candidate of the estimate keeps to the target.
        """
        if not self.rejects:
            return probabilities(logits)
        if self._listed is not None:
            logs = log_probability(logits, self._listed)
            return marginals_of(self._listed, np.exp(logs - logs.max()), self.sizes)
        samples = draw(logits, f"{self._seed} estimate {step}", np.arange(self._config.rejection_samples))
        kept = samples[self.keeps(samples)]
        # They are drawn from P itself, so that p / r is 1.
        return marginals_of(kept, np.ones(len(kept)), self.sizes) if len(kept) else None

    def most_likely(self, logits: Logits) -> Choice:
        """Most likely candidate that may be drawn; raises InputError where none is found."""
        logs = [np.log(np.maximum(one, np.finfo(np.float64).tiny)) for one in probabilities(logits)]
        orders = [np.argsort(-one, kind="stable") for one in logs]

        def entry(ranks: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
            total = sum(one[order[rank]] for one, order, rank in zip(logs, orders, ranks, strict=True))
            return -float(total), ranks

        start = entry((0,) * len(orders))
        waiting, seen = [start], {start[1]}
        for _ in range(_MOST_TRIED):
            if not waiting:
                break
            ranks = heapq.heappop(waiting)[1]
            choice = tuple(int(order[rank]) for order, rank in zip(orders, ranks, strict=True))
            if not self.rejects or self._cost(choice) <= self._target:
                return choice
            for place, rank in enumerate(ranks):
                after = (*ranks[:place], rank + 1, *ranks[place + 1 :])
                if rank + 1 < len(orders[place]) and after not in seen:
                    seen.add(after)
                    heapq.heappush(waiting, entry(after))
        raise InputError(
            f"space: no candidate was found that costs at most {self._target:g} of the baseline's; a higher target or "
            "smaller choices are required"
        )
