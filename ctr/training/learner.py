"""What a run does with each batch of its log, in which order: score it, and learn from it when its labels are known."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import tensorflow as tf

from ctr.training.analysis.durations import Durations
from ctr.training.feed import Feed
from ctr.training.inputs import Inputs, read_feeds
from ctr.training.run.rollback import predicts_soundly
from ctr.training.run.run import Run
from ctr.training.step import TrainStep

Phase = Callable[[str], None]


@contextmanager
def announced(phase: Phase | None, word: str) -> Iterator[None]:
    """Calls ``phase`` with a word before the block, and with an empty one after it."""
    if phase is not None:
        phase(word)
    try:
        yield
    finally:
        if phase is not None:
            phase("")


class Learner:
    """Learns from a stream of feeds; under a label delay, when their labels are known.

    Attributes:
        seconds: of its steps.
        applied: what its last step that changed the weights was about; None before one.
        learned_through: the query time, in microseconds, of the last row that it learned from; None before one.
    """

    def __init__(self, steps: TrainStep, current: Run, jit: bool = False, phase: Phase | None = None) -> None:
        """Begins with nothing learned.

        Args:
            steps: the functions, compiled when they are first called.
            current: the run whose weights they change.
            jit: whether XLA compiles them, for each size of their arguments.
            phase: see ``ctr.training.session.open_session``.
        """
        self.steps = steps
        self.current = current
        self._jit, self._phase = jit, phase
        self._compiled: set[tuple[object, ...]] = set()
        self.seconds = Durations()
        self.learned_through: int | None = None
        self.applied: Feed | None = None

    def learn(self, feed: Feed) -> tuple[np.ndarray, list[np.ndarray]]:
        """Scores a batch and learns from it, unless it is quarantined; returns the logits and slices of its own rows.

        Raises:
            RollbackNeeded: see ``Run.learned``.
        """
        current = self.current
        rows = len(feed.batch.rows)
        counts = [rows, *(0 if other is None else len(other.rows) for other in feed.others)]
        logit, slices = np.zeros(0, np.float32), [np.zeros(0, np.int32) for _ in current.state.families]
        is_quarantined = current.is_quarantined(feed.batch)
        applied, terms = None, None
        if sum(counts) and is_quarantined:
            logit, slices = self._score(feed)
        elif sum(counts):
            begun = time.perf_counter()
            with self._compiling("learn", feed):
                result = self.steps.learn(feed, current.ramps(), current.rates())
            logit, slices = result.logit.numpy(), [index.numpy() for index in result.slices]
            applied, terms = bool(result.applied), result.terms.numpy()
            self.seconds.add(time.perf_counter() - begun)
            if applied:
                self.applied = feed
        begin = rows
        for source, (other, count) in enumerate(zip(feed.others, counts[1:], strict=True), 1):
            if other is not None:
                end = begin + count
                current.record_other(source, other, logit[begin:end], [index[begin:end] for index in slices])
                begin = end
        if is_quarantined:
            current.passed_by(feed.batch)
        else:
            current.learned(feed.batch, applied, logit[: sum(counts)], terms)
        self.learned_through = feed.batch.times[1]
        return logit[:rows], [index[:rows] for index in slices]

    def score(self, feed: Feed) -> tuple[np.ndarray, list[np.ndarray]]:
        """Scores a batch; returns as ``learn`` does."""
        rows = len(feed.batch.rows)
        if not rows:
            return np.zeros(0, np.float32), [np.zeros(0, np.int32) for _ in self.current.state.families]
        logit, slices = self._score(feed)
        return logit[:rows], [index[:rows] for index in slices]

    def predicts(self) -> bool:
        """Whether the weights give sound predictions for the last batch that they learned from.

        What they were when they were last used was seen; what its step has made of them was not.
        """
        if self.applied is None:
            return True
        rows = len(self.applied.batch.rows) + sum(len(one.rows) for one in self.applied.others if one)
        return predicts_soundly(self._score(self.applied)[0][:rows])

    def weights_and_gradients(self) -> dict[str, np.ndarray]:
        """The weights and the loss's gradients on the last batch that they learned from, by name.

        Of an embedding table the rows that the batch has; without a batch only the dense weights.
        """
        state, feed = self.current.state, self.applied
        dense = state.network.weights()
        out = {f"weights/{name}": weight.numpy() for name, weight in dense.items()}
        if feed is None:
            return out
        with self._compiling("gradients", feed):
            of_rows, of_dense = self.steps.gradients(feed, self.current.ramps())
        out |= {f"gradients/{name}": part.numpy() for name, part in zip(dense, of_dense, strict=True)}
        for layout, table, plan, gradient in zip(
            state.layouts, state.tables, feed.plans, of_rows, strict=True
        ):
            used = plan.distinct_count
            out[f"weights/embeddings/{layout.name}"] = tf.gather(table, plan.distinct[:used]).numpy()
            out[f"gradients/embeddings/{layout.name}"] = gradient[:used].numpy()
        return out

    def _score(self, feed: Feed) -> tuple[np.ndarray, list[np.ndarray]]:
        with self._compiling("score", feed):
            logit, slices = self.steps.score(feed, self.current.ramps())
        return logit.numpy(), [index.numpy() for index in slices]

    def _compiling(self, name: str, feed: Feed) -> AbstractContextManager[None]:
        """Announces that a function is compiled in the call within, if it is."""
        if self._phase is None:
            return nullcontext()
        shapes = [array.shape for plan in feed.plans for array in (plan.distinct, plan.single, plan.values)]
        shapes += [array.shape for array in feed.targets.values()]
        key = (name, *(shapes if self._jit else ()))
        if key in self._compiled:
            return nullcontext()
        self._compiled.add(key)
        return announced(self._phase, "compiling")


def scored_feeds(
    inputs: Inputs, learner: Learner, partial: bool, hold: Callable[[int], None]
) -> Generator[tuple[Feed, np.ndarray, list[np.ndarray]], None, None]:
    """Each batch in the order of the log with its logits and slices, learned from when its time has come.

    Args:
        partial: also the batches that would become others if the logs went on.
        hold: told, before the end, the position of the first row in such a batch, if there is one and not ``partial``.
    """
    position, layouts = learner.current.position, learner.current.state.layouts
    delay = round(inputs.config.label_delay * 1_000_000)
    if not delay:
        learned = read_feeds(inputs, layouts, position.learned, position.others, partial, hold)
        try:
            for feed in learned:
                yield feed, *learner.learn(feed)
        finally:
            learned.close()
        return
    # A stream of its own, so that the batches in between need not be kept.
    learned = read_feeds(inputs, layouts, position.learned, position.others, partial)
    scored = read_feeds(inputs, layouts, position.examples, partial=partial, hold=hold)
    waiting = next(learned, None)
    try:
        for feed in scored:
            known = feed.batch.times[0] - delay
            while waiting is not None and waiting.batch.times[1] <= known:
                learner.learn(waiting)
                waiting = next(learned, None)
            yield feed, *learner.score(feed)
    finally:
        scored.close()
        learned.close()
