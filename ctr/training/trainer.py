"""Trainer: the weights of a run and its compiled step, which scores batches and learns from them."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import pyarrow as pa

from ctr.data.batches import set_rejects_apart
from ctr.data.reader import FAULTS, Rows, add_query_size, rows_of_table
from ctr.data.schema import Schema
from ctr.data.shards import shard_schema
from ctr.io.errors import InputError
from ctr.models.row_curvature import WHOLE, Part
from ctr.models.rows import TableLayout
from ctr.training.compiled_step import Scores, TrainStep
from ctr.training.config import TrainConfig
from ctr.training.device import accelerator, has_few_shapes, resolve_jit
from ctr.training.feed import Feed, make_feed
from ctr.training.fused_feed import FusedFeed
from ctr.training.fused_steps import FusedSteps
from ctr.training.sizes import FewShapes, few_shapes, fused_shapes
from ctr.training.state import TrainState, predicts_soundly

log = logging.getLogger(__name__)

Phase = Callable[[str], None]
Ramps = Mapping[str, float]
Rates = Mapping[str, float]

_SCORED_TOGETHER = 8192
_STEPS_TIMED = 2**16
"""The last steps, of whose times the quantiles are reported."""


class Throughput:
    """Examples per second of the passes of this process; the time between two passes does not count."""

    def __init__(self) -> None:
        self.examples, self.seconds = 0, 0.0
        self._last = 0.0
        # A window that was begun before a resume is timed from the resume on.
        self._window = 0, 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        self._last = time.perf_counter()
        try:
            yield
        finally:
            self.add(0)

    def add(self, examples: int) -> None:
        """Counts examples that were passed, and the time since the last call."""
        last, self._last = self._last, time.perf_counter()
        self.examples += examples
        self.seconds += self._last - last

    def close_window(self) -> float:
        (examples, seconds), self._window = self._window, (self.examples, self.seconds)
        return round((self.examples - examples) / (self.seconds - seconds), 1)


class Trainer:
    """The weights of a run with the functions that score and change them; each is compiled when it is first called."""

    def __init__(
        self,
        state: TrainState,
        config: TrainConfig,
        phase: Phase | None = None,
        parts: Sequence[Part] = (WHOLE,),
    ) -> None:
        self.state = state
        self._begun = time.perf_counter()
        self._config = config
        # XLA compiles the functions for each size of their arguments.
        self._jit = resolve_jit(config, state.workers.size)
        self._step = TrainStep(state, config, self._jit, parts)
        is_whole = tuple(parts) == (WHOLE,) and state.workers.size == 1
        self._fuses = is_whole and not has_few_shapes(config) and accelerator() != "TPU"
        self._fused_shapes: dict[tuple[TableLayout, ...], FewShapes] = {}
        self._fused: dict[tuple[TableLayout, ...], FusedSteps] = {}
        self._phase = phase
        self._compiled: set[tuple[object, ...]] = set()
        self._step_seconds = deque[float](maxlen=_STEPS_TIMED)
        self.throughput = Throughput()
        self._last_applied: Callable[[], Feed] | None = None  # of the last step that changed the weights

    def fused_shapes(self, layouts: tuple[TableLayout, ...]) -> FewShapes:
        """Returns the shapes of batches that ``learn_fused`` takes, for some tables."""
        if layouts not in self._fused_shapes:
            found = fused_shapes(self._config, layouts) if self._fuses else ()
            self._fused_shapes[layouts] = found
        return self._fused_shapes[layouts]

    def learn(self, feed: Feed, ramps: Ramps, rates: Rates) -> Scores:
        """Makes a step with a batch, unless it has no good rows: the scores are those of the weights from before it."""
        if not feed.rows:
            return self._no_scores()
        begun = time.perf_counter()
        # Here, and not by the step alone: what is compiled depends on how many rows there are.
        feed = self._with_rows("learn", feed)
        with self._calling("learn", feed):
            result = self._step.learn(feed, ramps, rates)
        logit = feed.in_order(result.logit.numpy())
        slices = [feed.in_order(index.numpy()) for index in result.slices]
        applied, terms = result.applied.numpy()[np.newaxis], result.terms.numpy()[np.newaxis]
        self.state.experts.count(len(feed.batch.rows))
        self._step_seconds.append(time.perf_counter() - begun)
        if applied[0]:
            self._last_applied = lambda: feed
        return Scores(logit, slices, applied, terms, [feed.in_order(one.numpy()) for one in result.labels])

    def learn_fused(
        self, feed: FusedFeed, ramps: Mapping[str, np.ndarray], rates: Mapping[str, np.ndarray]
    ) -> Scores:
        """Makes steps with several batches in one call, each scored before it is learned."""
        layouts = feed.layouts
        if layouts not in self._fused:
            self._fused[layouts] = FusedSteps(self.state, self._config, layouts, self.fused_shapes(layouts))
        begun = time.perf_counter()
        with self._calling("learn", feed):
            scores = self._fused[layouts].learn(feed, ramps, rates)
        self.state.experts.count(feed.rows)
        seconds = (time.perf_counter() - begun) / len(feed.batches)
        self._step_seconds.extend([seconds] * len(feed.batches))
        if scores.applied is not None and scores.applied.any():
            last = feed.batches[int(np.flatnonzero(scores.applied)[-1])]
            self._last_applied = lambda: feed.make_feed(last, layouts)
        return scores

    def score(self, feed: Feed, ramps: Ramps) -> Scores:
        if not feed.rows:
            return self._no_scores()
        feed = self._with_rows("score", feed)
        with self._calling("score", feed):
            found = self._step.score(feed, ramps)
        (logit, *labels), slices = ([feed.in_order(one.numpy()) for one in part] for part in found)
        return Scores(logit, slices, labels=labels)

    def _no_scores(self) -> Scores:
        none = [np.zeros(0, np.float32) for _ in self.state.architecture.labels]
        return Scores(
            np.zeros(0, np.float32), [np.zeros(0, np.int32) for _ in self.state.families], labels=none
        )

    def score_rows(self, rows: Rows | pa.Table, schema: Schema, ramps: Ramps) -> np.ndarray:
        """Returns the logits, float32 [N], of good rows, or of the columns of a shard, also those that are not finite.

        Raises InputError: a faulty row, or rows of other features.
        """
        good = _check_rows(rows, schema)
        batch_rows, objective = self._config.batch.rows, self._config.objective.scored_part
        seat = self.state.seat
        # A call of the compiled function costs as much as a thousand rows.
        at_once, shapes = max(batch_rows, _SCORED_TOGETHER), None
        if has_few_shapes(self._config):
            at_once, shapes = batch_rows, partial(few_shapes, self._config, schema)
        logit = np.zeros(len(good), np.float32)
        for begin in range(0, len(good), at_once):
            end = min(begin + at_once, len(good))
            batch = set_rejects_apart(good.slice(begin, end))
            # Padded as the batches of the log are, so that nothing is compiled for it.
            feed = make_feed(
                batch,
                self.state.active_layouts,
                batch_rows,
                objective,
                self.state.families,
                seat=seat,
                shapes=shapes,
            )
            logit[begin:end] = self.score(feed, ramps).logit
        return logit

    def predicts_soundly(self, ramps: Ramps) -> bool:
        """Tells whether the weights, after its step, predict soundly for the last batch that they learned from."""
        if self._last_applied is None:
            return True
        feed = self._last_applied().of_tables(self.state.active_layouts)
        return predicts_soundly(self.score(feed, ramps).logit)

    def timing(self) -> dict[str, float]:
        """Returns how fast this process was, as summary.json has it; empty before a batch.

        ``wall_seconds`` are all since the trainer was made, ``examples_per_second`` those of the passes alone, in which
        compiling counts.
        """
        if not self.throughput.examples:
            return {}
        seconds = time.perf_counter() - self._begun
        quartiles = (1000 * np.quantile(self._step_seconds or [0.0], [0.25, 0.5, 0.75])).round(3).tolist()
        return {
            "wall_seconds": round(seconds, 2),
            "wall_examples_per_second": round(self.throughput.examples / seconds, 1),
            "examples_per_second": round(self.throughput.examples / self.throughput.seconds, 1),
            **dict(zip(("step_ms_p25", "step_ms_p50", "step_ms_p75"), quartiles, strict=True)),
            **self._root_seconds(),
        }

    def window_timing(self) -> dict[str, float]:
        return {"examples_per_second": self.throughput.close_window(), **self._root_seconds()}

    def _root_seconds(self) -> dict[str, float]:
        timing = self.state.optimizer_timing()
        return {f"shampoo_{name}": round(seconds, 3) for name, seconds in timing.items()}

    def _with_rows(self, name: str, feed: Feed) -> Feed:
        """Gives the ids of a feed their rows; other workers must come in time for it, as for the call that follows."""
        is_first = all(key[0] != name for key in self._compiled)
        with self.state.workers.timeout(is_patient=is_first):
            return feed.with_rows(self.state.tables, learning=name == "learn")

    @contextmanager
    def _calling(self, name: str, feed: Feed | FusedFeed) -> Iterator[None]:
        """Announces that a function is compiled in the call within, if it is; other workers must call it in time."""
        key: tuple[object, ...] = (name, feed.preconditions) if name == "learn" else (name,)
        if feed.shape is not None:
            key += (feed.shape,)
        elif isinstance(feed, Feed) and self._jit:
            arrays = [array for plan in feed.plans for array in (plan.distinct, plan.single, plan.values)]
            key += tuple(array.shape for array in (*arrays, *feed.targets.values()))
        is_compiled = key in self._compiled
        self._compiled.add(key)
        phase = None if is_compiled else self._phase
        begun = time.perf_counter()
        with self.state.workers.timeout(is_patient=not is_compiled), announced(phase, "compiling"):
            yield
        if not is_compiled:
            sizes = [len(plan.distinct) for plan in feed.plans]
            if isinstance(feed, FusedFeed):
                sizes = [size.ids for size in feed.shape.tables]
            log.info(
                "the step that %ss: first run for %d rows and %d distinct ids, compilation included, %.1f s",
                name,
                feed.targets["label"].shape[-1],
                sum(sizes),
                time.perf_counter() - begun,
            )


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


def _check_rows(rows: Rows | pa.Table, schema: Schema) -> Rows:
    if isinstance(rows, pa.Table):
        expected = shard_schema(schema)
        try:
            table = rows.select(expected.names).cast(expected)
        except (KeyError, ValueError, pa.ArrowException) as error:
            raise InputError(
                f"rows to score: not the columns of a shard of the log, {', '.join(expected.names)}: {error}"
            ) from None
        rows = rows_of_table(table, schema, 0)
    rows = add_query_size(rows, schema)
    found = (rows.ids.shape[1], sorted(rows.multivalent))
    required = (len(schema.single_valued), sorted(schema.multivalent))
    if found != required:
        raise InputError(
            f"rows to score: {found[0]} single-valued features and the multivalent ones {found[1]}; "
            f"the log has {required[0]} and {required[1]}"
        )
    faulty = np.flatnonzero(rows.fault)
    if len(faulty):
        raise InputError(
            f"rows to score: row {faulty[0]} (example_id {rows.example_id[faulty[0]]}): "
            f"{FAULTS[rows.fault[faulty[0]]]}; {len(faulty)} of {len(rows)} rows are faulty, none is allowed"
        )
    return rows
