"""Training in a search by weight sharing: one network that holds all candidates, and a controller.

First, several candidates that the controller samples predict the batch, and it learns from their losses. Then
the weights are trained on the batch with other sampled candidates and the largest network: with candidates
alone, whose parts differ from batch to batch, the products of embeddings hardly start to grow. During the
controller's warm-up, the largest network also replaces sampled candidates, with a probability that falls to 0
(TuNAS).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ctr.data.schema import Schema
from ctr.io.files import write_atomic_bytes
from ctr.io.hashing import uniform_hash
from ctr.objective.bias_constraints import Family
from ctr.search.architecture import Shape
from ctr.search.config import SearchConfig
from ctr.search.controller import (
    Controller,
    Policy,
    entropy,
    from_array,
    learn,
    new_controller,
    probabilities,
    rewards_of,
)
from ctr.search.masks import MaskedPart, masks_of, passed_over
from ctr.search.space import Choice, Space
from ctr.training.compiled_step import CompiledStep, Phase, Ramps, Rates
from ctr.training.config import TrainConfig
from ctr.training.device import make_deterministic, resolve_compute_dtype
from ctr.training.feed import Feed
from ctr.training.state import TrainState
from ctr.training.step import Scores

_PUBLISHED_RATE = 0.0048  # TuNAS's, for some 10^4 steps
_FAR, _HIGHEST_RATE = 20.0, 0.1  # rate times steps, of which a logit moves a fraction, as rewards are noisy
RECORDS = 200  # approximate number of lines of controller.jsonl in a whole search


@dataclass(frozen=True)
class Plan:
    """A validated search by weight sharing."""

    config: SearchConfig
    space: Space
    base: TrainConfig
    policy: Policy
    examples: int  # approximate number of examples that the whole search learns from
    records: Path  # the file of the controller's records

    @property
    def always(self) -> tuple[Choice, ...]:
        """Returns the candidates that are trained on every batch, in addition to the drawn ones."""
        count = {"none": 0, "largest": 1, "sandwich": 2}[self.config.controller.extremes]
        return (self.space.largest, self.space.smallest)[: count if self.space.size > 1 else 0]

    @property
    def drawn(self) -> int:
        """Returns the number of candidates drawn to be trained on a batch; 1 if there is only one candidate."""
        return self.config.controller.learners if self.space.size > 1 else 1

    @property
    def controller_rate(self) -> float:
        options = self.config.controller
        if options.learning_rate is not None:
            return options.learning_rate
        steps = (1.0 - options.warmup_fraction) * self.examples / self.base.batch.rows
        return max(_PUBLISHED_RATE, min(_FAR / max(steps, 1.0), _HIGHEST_RATE))

    def candidate(self, choice: Choice) -> Shape:
        """Returns a candidate's shape, without the layers that even the largest network lacks."""
        shape, largest = (self.space.shape(self.base, chosen) for chosen in (choice, self.space.largest))
        return shape.within(largest)

    def sources(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Returns the layers that each layer of the largest network may read; see ``ctr.models.architecture.Tower``."""
        largest = self.space.largest
        changed = [
            (*largest[:index], number, *largest[index + 1 :])
            for index, decision in enumerate(self.space.decisions)
            for number in range(len(decision.choices))
        ]
        candidates = [self.candidate(choice) for choice in (largest, *changed)]
        units = {
            "quality": [candidate.deep_units for candidate in candidates],
            "ui": [candidate.ui_units for candidate in candidates],
        }
        return {name: passed_over(list(zip(*rows, strict=True))) for name, rows in units.items() if any(rows)}


@dataclass
class Progress:
    """State of a search except the weights, stored in checkpoints as one float64 array."""

    controller: Controller
    batches: int = 0
    examples: int = 0  # examples learned from
    scored: int = 0  # examples scored by candidates, counted once per candidate
    drawn: int = 0  # candidates with a finite reward since the last record
    reward: float = 0.0  # sum of their rewards
    cost: float = 0.0  # sum of their costs

    def to_array(self) -> np.ndarray:
        """Returns the state as a float64 array, from which ``progress_of`` restores it."""
        controller, *numbers = vars(self).values()
        return np.concatenate([controller.to_array(), np.array(numbers, np.float64)])


def progress_of(values: np.ndarray, sizes: Sequence[int]) -> Progress:
    """Returns the progress that ``Progress.to_array`` converted; ``sizes``: see ``new_controller``."""
    end = 2 * sum(sizes) + 2
    return Progress(from_array(values[:end], sizes), *map(int, values[end:-2]), *map(float, values[-2:]))


class SharedState(TrainState):
    """State of the supernet's run: weights, optimizers and the progress of the search."""

    def __init__(self, plan: Plan, config: TrainConfig, schema: Schema, families: Sequence[Family]) -> None:
        make_deterministic(config.seed)
        sizes = plan.policy.sizes
        self.progress = tf.Variable(Progress(new_controller(sizes)).to_array(), trainable=False)
        layouts, dtype = config.table_layouts(schema), resolve_compute_dtype(config.compute_dtype)
        super().__init__(layouts, config, dtype, families, sources=plan.sources())

    def variables(self) -> dict[str, tf.Variable]:
        return {**super().variables(), "search": self.progress}

    def remembered(self, sizes: Sequence[int]) -> Progress:
        return progress_of(self.progress.numpy(), sizes)


class SharedStep(CompiledStep):
    """Compiled step that trains a few candidates on each batch, after several have predicted it for the controller."""

    def __init__(self, plan: Plan, state: SharedState, config: TrainConfig, phase: Phase | None) -> None:
        self._plan, self._shared = plan, state
        self._masks: dict[Choice, np.ndarray] = {}
        masks = self._masks_of(plan.space.largest)
        self._parts = [MaskedPart(masks) for _ in range(plan.drawn + len(plan.always))]
        super().__init__(state, config, phase=phase, parts=self._parts)
        # Truncated before the first step.
        self._records = Records(plan.records)
        self._has_begun = False

    def _masks_of(self, choice: Choice) -> dict[str, np.ndarray]:
        return masks_of(self._plan.candidate(choice), self._shared.architecture, self._shared.layouts)

    def _set_parts(self, *choices: Choice) -> None:
        for part, choice in zip(self._parts, choices, strict=False):
            if choice not in self._masks:
                self._masks[choice] = part.packed(self._masks_of(choice))
            part.set_to(self._masks[choice])

    def score(self, feed: Feed, ramps: Ramps) -> Scores:
        """Scores a batch with the largest network, without an update."""
        return self.score_by(self._plan.space.largest, feed, ramps)

    def learn_by(self, choices: Sequence[Choice], feed: Feed, ramps: Ramps, rates: Rates) -> Scores:
        """Takes a step with the candidates' mean gradient, without the controller; returns the first one's scores."""
        self._set_parts(*choices)
        return super().learn(feed, ramps, rates)

    def score_by(self, choice: Choice, feed: Feed, ramps: Ramps) -> Scores:
        """Scores a batch with a candidate, without an update."""
        self._set_parts(choice)
        return super().score(feed, ramps)

    def learn(self, feed: Feed, ramps: Ramps, rates: Rates) -> Scores:
        """Trains the controller and weights on a batch; returns the first trained candidate's scores from before."""
        if not feed.rows:
            return super().learn(feed, ramps, rates)
        plan, policy = self._plan, self._plan.policy
        state = self._shared.remembered(policy.sizes)
        if not self._has_begun:
            self._records.cut(state.examples)
            self._has_begun = True
        options, share = plan.config.controller, state.examples / plan.examples
        chosen = policy.draw(
            state.controller.logits, state.batches, np.arange(options.candidates_per_batch + plan.drawn)
        )
        is_waiting = share < options.warmup_fraction
        if not is_waiting:
            self._judge(feed, ramps, chosen[: options.candidates_per_batch], state)
        learners = [tuple(int(at) for at in row) for row in chosen[options.candidates_per_batch :]]
        if is_waiting:
            numbers = state.batches * plan.drawn + np.arange(plan.drawn)
            is_all_on = uniform_hash(numbers, f"{plan.config.seed} all on") >= share / options.warmup_fraction
            learners = [
                plan.space.largest if on else choice for on, choice in zip(is_all_on, learners, strict=True)
            ]
        scores = self.learn_by([*learners, *plan.always], feed, ramps, rates)
        before, rows = state.examples, len(feed.batch.rows)
        state.batches, state.examples = state.batches + 1, before + rows
        if before * RECORDS // plan.examples < state.examples * RECORDS // plan.examples:
            self._records.append(_line(plan, state))
            state.reward, state.cost, state.drawn = 0.0, 0.0, 0
        self._shared.progress.assign(state.to_array())
        return scores

    def _judge(self, feed: Feed, ramps: Ramps, chosen: np.ndarray, state: Progress) -> None:
        """Scores a batch with candidates, int [N, decisions], and trains the controller on their losses."""
        plan, policy, options = self._plan, self._plan.policy, self._plan.config.controller
        losses: dict[Choice, float] = {}
        choices = [tuple(int(at) for at in candidate) for candidate in chosen]
        for choice in choices:
            if choice not in losses:
                losses[choice] = batch_loss(feed, self.score_by(choice, feed, ramps).logit)
        batch_losses, costs = np.array([losses[choice] for choice in choices]), policy.costs(chosen)
        # Under rejection the cost is only a limit, and candidates above it do not count.
        batch_losses[~policy.keeps(chosen)] = np.nan
        gamma = 0.0 if policy.rejects else options.gamma
        rewards = rewards_of(batch_losses, costs, plan.config.target, gamma)
        expected = policy.expected(state.controller.logits, state.batches)
        if expected is not None:
            state.controller = learn(
                state.controller, chosen, rewards, expected, plan.controller_rate, options.baseline_decay
            )
        finite = np.isfinite(rewards)
        state.scored += len(losses) * len(feed.batch.rows)
        state.reward += float(rewards[finite].sum())
        state.cost += float(costs[finite].sum())
        state.drawn += int(finite.sum())


def batch_loss(feed: Feed, logit: np.ndarray) -> float:
    """Returns the batch's weighted mean logistic loss, NaN if all weights are 0; ``logit`` [N] begins with its rows."""
    rows = feed.batch.rows
    logit = logit[: len(rows)].astype(np.float64)
    losses = np.logaddexp(0.0, np.where(rows.label > 0, -logit, logit))
    weight = rows.metric_weight.astype(np.float64)
    total = float(weight.sum())
    return float((losses * weight).sum()) / total if total > 0 else float("nan")


def _line(plan: Plan, state: Progress) -> dict[str, Any]:
    logits = state.controller.logits
    parts = zip(plan.space.decisions, probabilities(logits), strict=True)
    return {
        "examples": state.examples,
        "steps": state.controller.steps,
        "entropy": entropy(logits),
        "probabilities": {decision.name: shares.tolist() for decision, shares in parts},
        "baseline": state.controller.baseline,
        "mean_reward": state.reward / state.drawn if state.drawn else None,
        "mean_cost": state.cost / state.drawn if state.drawn else None,
    }


class Records:
    """File of JSON lines, each with ``examples``, the number of examples learned from when it was written."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def cut(self, examples: int) -> None:
        """Deletes the records after ``examples`` examples, and an incomplete last line."""
        lines = self._path.read_text().splitlines(keepends=True) if self._path.exists() else []
        lines = [line for line in lines if line.endswith("\n") and json.loads(line)["examples"] <= examples]
        write_atomic_bytes(self._path, "".join(lines).encode())

    def append(self, line: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
