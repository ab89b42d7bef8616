"""The controller of a supernet: a softmax for each decision, which learns by REINFORCE (FF 3.2).

A candidate y takes one choice of each decision, independently, so that log P(y) = sum_d log p_d(y_d), and with
respect to the logits of decision d

    grad log P(y) = onehot(y_d) - p_d

Under a cost limit (TabNAS, arXiv 2204.07615, section 3.3) candidates are drawn from P conditional on the set V of
candidates within it. The gradient of log(P(y) / P(V)) has the marginals given V in the place of the probabilities:

    grad log(P(y) / P(V)) = onehot(y_d) - q_d,    q_d = E[onehot(z_d) | z in V]

q_d is the gradient of log P(V) plus p_d. It is exact if all candidates can be listed. Otherwise it comes from the
paper's estimate P(V) ~ 1/N sum 1[z_i in V] p(z_i) / r(z_i), with z_i drawn from r = p.

Rewards are paired: candidates predict the same batch, and each loss is compared with their mean.
Everything is float64 NumPy, and every draw is a hash of the seed and the purpose of the draw.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ctr.io.errors import InputError
from ctr.io.hashing import uniform_hash
from ctr.search.config import ControllerConfig
from ctr.search.space import Choice, Space

Logits = list[np.ndarray]  # for each decision, the logits of its choices, float64 [choices]

ADAM_BETA2 = 0.999
ADAM_EPSILON = 1e-8  # TuNAS's, google-research/tunas/mobile_architecture_search.py, as is a beta1 of 0

MAX_DRAWS = 1000  # maximum number of draws for a candidate while it is above the limit
_MOST_TRIED = 100_000  # maximum candidates tried, the most likely first, to find one within the target


class Controller(NamedTuple):
    """State of a controller after a number of steps."""

    logits: Logits
    second_moments: Logits  # Adam's averages of squared gradients; no first moments, as beta1 is 0
    baseline: float  # the moving average of rewards
    steps: int

    def to_array(self) -> np.ndarray:
        """Returns the state as float64 [2 K + 2], for K choices of all decisions together."""
        return np.concatenate([*self.logits, *self.second_moments, [self.baseline, self.steps]])


def new_controller(sizes: Sequence[int]) -> Controller:
    """Returns a controller with uniform probabilities; ``sizes``: the number of choices of each decision."""
    return Controller(
        [np.zeros(size) for size in sizes], [np.zeros(size) for size in sizes], baseline=0.0, steps=0
    )


def from_array(values: np.ndarray, sizes: Sequence[int]) -> Controller:
    """Returns the controller that ``Controller.to_array`` converted; ``sizes``: see ``new_controller``."""
    ends = np.cumsum([*sizes, *sizes])
    parts = np.split(np.array(values, np.float64), ends)
    return Controller(parts[: len(sizes)], parts[len(sizes) : -1], float(parts[-1][0]), int(parts[-1][1]))


def probabilities(logits: Logits) -> Logits:
    """Computes the softmax of each decision's logits."""
    return [np.exp(_log_softmax(values)) for values in logits]


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def log_probability(logits: Logits, chosen: np.ndarray) -> np.ndarray:
    """Returns log P of candidates, float64 [N]; ``chosen``, int [N, decisions], has the indices of their choices."""
    parts = [_log_softmax(values)[choices] for values, choices in zip(logits, chosen.T, strict=True)]
    return np.add.reduce(np.stack(parts))


def entropy(logits: Logits) -> float:
    """Returns the entropy of P in nats."""
    return float(-sum(np.sum(np.exp(logs) * logs) for logs in map(_log_softmax, logits)))


def draw(logits: Logits, purpose: str, numbers: np.ndarray) -> np.ndarray:
    """Draws candidates from P, int64 [N, decisions].

    Draws for different purposes, which contain the seed and the step, are independent. ``numbers``, int64 [N],
    identify the draws: equal numbers give equal candidates.
    """
    drawn = []
    for decision, shares in enumerate(probabilities(logits)):
        uniform = uniform_hash(numbers, f"{purpose} decision {decision}")
        # The last choice also gets the remainder of rounding.
        drawn.append(np.searchsorted(np.cumsum(shares)[:-1], uniform, side="right"))
    return np.stack(drawn, axis=1)


def draw_allowed(
    logits: Logits, purpose: str, numbers: np.ndarray, keeps: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Draws candidates, int64 [N, decisions], and redraws those that ``keeps`` rejects, up to `MAX_DRAWS` times."""
    candidates = draw(logits, purpose, numbers)
    for again in range(1, MAX_DRAWS):
        above = np.flatnonzero(~keeps(candidates))
        if not len(above):
            break
        candidates[above] = draw(logits, f"{purpose} again {again}", numbers[above])
    return candidates


def marginals_of(chosen: np.ndarray, weights: np.ndarray, sizes: Sequence[int]) -> Logits:
    """Returns the weighted shares of choices among candidates, int [N, decisions]; weights, [N], not all 0.

    For all candidates within a limit, weighted by their probabilities, these are the marginals q_d given the limit.
    For the candidates within it among samples drawn from r, weighted by p / r, they are the estimate of TabNAS.
    """
    total = weights.sum()
    return [np.bincount(column, weights, size) / total for column, size in zip(chosen.T, sizes, strict=True)]


def policy_gradient(chosen: np.ndarray, advantages: np.ndarray, expected: Logits) -> Logits:
    """Returns the mean of advantage, [N], times grad log P over candidates, int [N, decisions], by decision.

    ``expected``: the probabilities, or the marginals given the limit that the candidates were drawn under.
    """
    return [
        np.bincount(column, advantages, len(shares)) / len(chosen) - advantages.mean() * shares
        for column, shares in zip(chosen.T, expected, strict=True)
    ]


def rewards_of(losses: np.ndarray, costs: np.ndarray, target: float, gamma: float) -> np.ndarray:
    """Returns R = R_accuracy + gamma |cost / target - 1|, float64 [N], of candidates that predicted the same batch.

    R_accuracy is the mean of the finite losses minus the candidate's loss, relative to that mean; the reward is NaN for
    a loss that is not finite. gamma is negative, or 0 if the cost is only a limit.
    """
    finite = np.isfinite(losses)
    mean = losses[finite].mean() if finite.any() else 1.0
    accuracy = 1.0 - np.where(finite, losses, np.nan) / mean
    return accuracy + gamma * np.abs(costs / target - 1.0)


def learn(
    controller: Controller,
    chosen: np.ndarray,
    rewards: np.ndarray,
    expected: Logits,
    rate: float,
    baseline_decay: float,
) -> Controller:
    """Returns the controller after an ascent step of REINFORCE with Adam; ignores rewards that are not finite.

    The baseline is the moving average of rewards before this step; in the first step, their mean.
    ``chosen`` is int [N, decisions], ``rewards`` float64 [N]; for ``expected`` see ``policy_gradient``.
    """
    finite = np.isfinite(rewards)
    if not finite.any():
        return controller
    chosen, rewards = chosen[finite], rewards[finite]
    mean = float(rewards.mean())
    baseline = controller.baseline if controller.steps else mean
    gradients = policy_gradient(chosen, rewards - baseline, expected)
    steps = controller.steps + 1
    second = [
        ADAM_BETA2 * old + (1.0 - ADAM_BETA2) * np.square(gradient)
        for old, gradient in zip(controller.second_moments, gradients, strict=True)
    ]
    unbiased = 1.0 - ADAM_BETA2**steps
    logits = [
        old + rate * gradient / (np.sqrt(moment / unbiased) + ADAM_EPSILON)
        for old, gradient, moment in zip(controller.logits, gradients, second, strict=True)
    ]
    return Controller(logits, second, baseline_decay * baseline + (1.0 - baseline_decay) * mean, steps)


class Policy:
    """Samples candidates, under rejection within the cost target, and computes ``expected`` of their policy gradients.

    ``target``: the intended cost of a candidate; under rejection, its limit.
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
        """Returns the costs of candidates, float64 [N]; ``chosen`` is int [N, decisions]."""
        return np.array([self._cost(tuple(int(at) for at in candidate)) for candidate in chosen])

    def keeps(self, chosen: np.ndarray) -> np.ndarray:
        """Returns whether candidates, int [N, decisions], are within the cost limit, if there is one: bool [N]."""
        if not self.rejects:
            return np.ones(len(chosen), np.bool_)
        return self.costs(chosen) <= self._target

    def draw(self, logits: Logits, step: int, numbers: np.ndarray) -> np.ndarray:
        """Draws candidates, int64 [N, decisions]; equal numbers and steps give equal candidates."""
        return draw_allowed(logits, f"{self._seed} step {step}", numbers, self.keeps)

    def expected(self, logits: Logits, step: int) -> Logits | None:
        """Returns ``expected`` for ``policy_gradient``.

        These are the probabilities; under rejection, the marginals given the target: exact if the space is listed,
        otherwise estimated, or None if no sample of the estimate is within the target.
        """
        if not self.rejects:
            return probabilities(logits)
        if self._listed is not None:
            logs = log_probability(logits, self._listed)
            return marginals_of(self._listed, np.exp(logs - logs.max()), self.sizes)
        samples = draw(logits, f"{self._seed} estimate {step}", np.arange(self._config.rejection_samples))
        allowed = samples[self.keeps(samples)]
        # The samples are drawn from P itself, so that p / r is 1.
        return marginals_of(allowed, np.ones(len(allowed)), self.sizes) if len(allowed) else None

    def most_likely(self, logits: Logits) -> Choice:
        """Returns the most likely candidate, under rejection within the target. Raises InputError if none is found."""
        logs = [np.log(np.maximum(shares, np.finfo(np.float64).tiny)) for shares in probabilities(logits)]
        orders = [np.argsort(-values, kind="stable") for values in logs]

        def entry(ranks: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
            total = sum(values[order[rank]] for values, order, rank in zip(logs, orders, ranks, strict=True))
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
            for decision, rank in enumerate(ranks):
                after = (*ranks[:decision], rank + 1, *ranks[decision + 1 :])
                if rank + 1 < len(orders[decision]) and after not in seen:
                    seen.add(after)
                    heapq.heappush(waiting, entry(after))
        raise InputError(
            f"space: no candidate was found that costs at most {self._target:g} of the baseline's; a higher target or "
            "smaller choices are required"
        )
