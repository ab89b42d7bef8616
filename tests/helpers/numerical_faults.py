"""What breaks numbers within a run, at given rows of its log."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from ctr.training.compiled_step import CompiledStep
from ctr.training.feed import Feed
from ctr.training.state import TrainState
from ctr.training.step import Scores

Break = Callable[[TrainState], None]


def fill(name: str, value: float, share: float = 1.0) -> Break:
    """Sets a variable, or the first ``share`` of its entries, to a value."""

    def act(state: TrainState) -> None:
        variable = state.variables()[name]
        array = variable.numpy().ravel()
        array[: max(1, round(share * array.size))] = value
        variable.assign(tf.reshape(array, variable.shape))

    return act


@contextmanager
def injected(
    unlearnable: Mapping[int, float] | None = None,
    poison: Mapping[int, Break] | None = None,
    once: bool = False,
    begun: Callable[[int, TrainState], None] | None = None,
) -> Iterator[None]:
    """Breaks the steps whose batches have these rows of the log, whenever they are learned from.

    Args:
        unlearnable: train weights of a whole batch, as a fault of the reader's memory would change them.
        poison: what happens to the weights in such a step.
        once: only the first time, as a fault of the memory, and not of the data.
        begun: called with the first row of each batch that is learned from, before it is.
    """
    learn = CompiledStep.learn
    left = {**(unlearnable or {}), **(poison or {})}

    def hit(faults: Mapping[int, Any] | None, begin: int, end: int) -> Any:
        for row, fault in (faults or {}).items():
            if begin <= row < end and row in left:
                if once:
                    del left[row]
                return fault
        return None

    def learn_with_faults(step: CompiledStep, feed: Feed, *at: Mapping[str, float]) -> Scores:
        begin, end = feed.batch.begin, feed.batch.end
        if begun is not None:
            begun(begin, step.state)
        weight = hit(unlearnable, begin, end)
        if weight is not None:
            spoiled = np.full_like(feed.targets["weight"], weight)
            feed = replace(feed, targets={**feed.targets, "weight": spoiled, "own_weight": spoiled.copy()})
        scores = learn(step, feed, *at)
        act = hit(poison, begin, end)
        if act is not None:
            act(step.state)
        return scores

    CompiledStep.learn = learn_with_faults
    try:
        yield
    finally:
        CompiledStep.learn = learn
