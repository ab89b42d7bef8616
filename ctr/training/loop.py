"""The training loop: every batch is scored with the weights from before it, and then learned from."""

from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np

from ctr.training.compiled_step import CompiledStep
from ctr.training.feed import Feed
from ctr.training.fused_feed import AnyFeed, FusedFeed
from ctr.training.inputs import Inputs, read_feeds
from ctr.training.run.run import Run
from ctr.training.step import Scores


def one_pass(
    run: Run,
    step: CompiledStep,
    inputs: Inputs,
    partial: bool = True,
    export: Callable[[], object] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Scores and learns from all rows not processed yet; returns the first unprocessed position.

    ``partial``: whether to process batches that would change if the logs grew; ``export``: called when an export is
    due. Raises InputError if too many steps in a row were skipped, or the weights are broken.
    """
    held: list[int] = []
    state = step.state
    feeds = read_feeds(
        inputs,
        lambda: state.active_layouts,
        run.position,
        partial,
        held.append,
        state.placement,
        step.fused_shapes,
    )
    with closing(feeds), step.timing.running():
        # Read. With a label delay a batch has two turns: when it is new, and later when its labels are available.
        for feed, scores in _learned(feeds, run, step):
            before = run.position.examples
            # Record.
            run.record(feed, scores)
            if not feed.batch.is_new:
                continue
            step.timing.add(len(feed.batch.rows))
            # Window.
            if run.is_window_full():
                run.close_window(step.timing.close_window())
            # Export, before the checkpoint: a run that is killed between the two repeats the export.
            if export is not None and run.is_export_due(before) and check_weights(run, step) is None:
                export()
            # Checkpoint, where weights, metrics and position go together.
            is_old, stops = run.agree_on_end(stop())
            if run.is_checkpoint_due():
                check_weights(run, step)
                run.save()
            elif is_old:
                save_in_passing(run, step)
            if stops:
                return run.position.examples
    passed = held[0] if held else max(run.position.examples, inputs.log.rows)
    if partial:
        run.pass_until(passed)
    return passed


def _learned(feeds: Iterator[AnyFeed], run: Run, step: CompiledStep) -> Iterator[tuple[AnyFeed, Scores]]:
    """Scores and learns from feeds; one call takes several small batches, up to the next one after which work is due.

    One compiled step scores, with the weights from before the update, and learns if that is due.
    """
    for read in feeds:
        feed = read.of_tables(step.state.active_layouts)
        if isinstance(feed, Feed):
            ramps = run.ramps()
            is_due = feed.batch.has_labels and not run.is_left_out(feed.batch)
            scores = step.learn(feed, ramps, run.rates()) if is_due else step.score(feed, ramps)
            yield feed, scores
            continue
        begin, end = 0, len(feed.batches)
        while begin < end:
            rest = feed.part(begin, end).of_tables(step.state.active_layouts)
            part = rest.part(0, _batches_until_due(rest, run, step))
            yield part, step.learn_fused(part, *run.ramps_and_rates(np.cumsum(part.counts) - part.counts))
            begin += len(part.batches)


def _batches_until_due(feed: FusedFeed, run: Run, step: CompiledStep) -> int:
    """Returns the number of batches up to the first one after which a checkpoint, window or decision may be due."""
    rows, ends = np.cumsum(feed.counts), np.array([batch.end for batch in feed.batches])
    is_due = run.is_due_after(rows, ends)
    is_due |= step.state.experts.is_due_after(rows)
    return int(is_due.argmax()) + 1 if is_due.any() else len(feed.batches)


def check_weights(run: Run, step: CompiledStep) -> str | None:
    """Returns a description of broken weights, or None; see ``Run.check_weights``."""
    return run.check_weights(step.predicts_soundly(run.ramps()))


def save_in_passing(run: Run, step: CompiledStep) -> None:
    """Writes a checkpoint that is not due, unless steps are being skipped or the weights are broken.

    Those cases are handled by the next due checkpoint.
    """
    if not run.is_in_doubt and run.weight_fault(step.predicts_soundly(run.ramps())) is None:
        run.save(is_due=False)
