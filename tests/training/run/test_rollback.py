"""The bookkeeping of rollbacks: pure functions of positions, against a model of a run that skips and goes back."""

import json
import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctr.io.documents import sealed_bytes
from ctr.io.errors import InputError
from ctr.models.rows import FeatureRows, lay_out_tables
from ctr.training.config import EmbeddingOptimizerConfig
from ctr.training.optimizers import table_optimizer
from ctr.training.run.rollback import (
    Mark,
    Position,
    Rollback,
    as_json,
    check_kept,
    first_broken,
    is_checkpoint_due,
    is_quarantined,
    mark_here,
    note_step,
    predicts_soundly,
    read_rollbacks,
    rows_of_broken_weights,
    rows_of_streak,
    write_rollbacks,
)

FOLDER = Path("run")
ROWS = 10


def copied(position: Position) -> Position:
    """As a checkpoint keeps it."""
    return Position.from_json(json.loads(json.dumps(position.as_json())))


def make_pass(
    batches: int,
    bad: set[int],
    poison: set[int],
    limit: int,
    every: int,
    reported: list[Rollback] | None = None,
) -> tuple[list[int], Position, list[Rollback]]:
    """A run over batches of ten rows, in a model of its own: weights are broken or not.

    ``bad`` batches cannot be learned from, ``poison`` ones break the weights, after which every step is skipped.
    Returns which batches have changed the weights that it ends with, its position and its rollbacks; these also in
    ``reported``, whether it ends or not.
    """
    position, past = Position(), []
    learned: list[int] = []
    saved = (Position(), [])
    replayed = 0
    while position.learned < batches * ROWS:
        number = position.learned // ROWS
        begin, end = number * ROWS, (number + 1) * ROWS
        aside = None
        position.examples = position.learned = end
        if is_quarantined(begin, end, past):
            position.quarantined_rows += ROWS
        else:
            broken = any(one in poison for one in learned)
            applied = not broken and number not in bad
            if applied:
                learned.append(number)
            note_step(position, begin, end, applied, predicts=not broken)
            aside = rows_of_streak(limit, position, past, FOLDER)
        broken = any(one in poison for one in learned)
        position.due_from = position.mark[0]
        due = is_checkpoint_due(limit, every, position, past)
        if aside is None and broken and (due or end == batches * ROWS):
            aside = rows_of_broken_weights(position, past, FOLDER, predicts=False)
        if aside is not None:
            replayed += 1
            assert replayed <= 2 * batches
            assert position.mark[0] == saved[0].examples
            past = [*past, Rollback(checkpoint=position.mark[0], rows=aside, query_times=None, reason="x")]
            if reported is not None:
                reported[:] = past
            position, learned = copied(saved[0]), list(saved[1])
        elif due:
            assert not position.skipped_in_a_row
            mark_here(position)
            saved = copied(position), list(learned)
    return learned, position, past


@settings(max_examples=50)
@given(
    batches=st.integers(1, 60),
    bad=st.sets(st.integers(0, 59)),
    limit=st.integers(1, 6),
    every=st.integers(1, 150),
)
@example(batches=60, bad=set(range(5, 55)), limit=2, every=1000)
@example(batches=60, bad=set(range(60)), limit=1, every=1000)
@example(batches=60, bad=set(range(0, 60, 2)), limit=1, every=1000)
@example(batches=60, bad=set(range(60)) - {10, 20, 30, 40, 50}, limit=2, every=1000)
def test_a_pass_ends_behind_examples_that_cannot_be_learned_from(batches, bad, limit, every):
    """However many they are and however they lie, as long as weights stay sound."""
    reported: list[Rollback] = []
    try:
        learned, position, past = make_pass(batches, bad, set(), limit, every, reported)
    except InputError as error:
        # Three streaks, each close behind the other: what lay between was too little to tell that all is well.
        first, second = reported[-2:]
        mark, end = first.checkpoint, int(re.search(r"up to row (\d+) of the log", str(error))[1])
        assert second.checkpoint == mark and first.rows[1] < second.rows[1] < end
        for one in (first.rows[1], second.rows[1], end):
            assert set(range(one // ROWS - limit, one // ROWS)) <= bad
        # A checkpoint comes after so many steps in a row behind what was quarantined, or so many rows.
        between = range(first.rows[1] // ROWS, end // ROWS)
        for begin in between[: 1 - limit or None]:
            assert set(range(begin, begin + limit)) & bad
        assert end - limit * ROWS - mark < every
        return
    assert position.learned == batches * ROWS
    assert not set(learned) & bad
    # What is neither learned nor bad was quarantined.
    left = set(range(batches)) - set(learned) - bad
    assert all(is_quarantined(number * ROWS, number * ROWS + ROWS, past) for number in left)
    assert position.quarantined_rows % ROWS == 0


@settings(max_examples=50)
@given(
    batches=st.integers(20, 60),
    poison=st.integers(0, 59),
    limit=st.integers(1, 6),
    every=st.integers(20, 400),
)
def test_a_batch_that_breaks_the_weights_is_found_and_quarantined_alone(batches, poison, limit, every):
    """It is the last one that was applied before the streak."""
    learned, position, past = make_pass(batches, set(), {poison}, limit, every)
    assert position.learned == batches * ROWS
    if poison >= batches:
        assert not past
        return
    (rollback,) = past
    begin, end = rollback.rows
    # As soon as the next checkpoint or the end of the log at the latest.
    assert begin == poison * ROWS and begin + ROWS <= end <= begin + (1 + limit) * ROWS
    assert learned == [number for number in range(batches) if not begin <= number * ROWS < end]
    assert position.skipped_steps == 0


def test_the_second_time_the_whole_stretch_is_quarantined_and_the_third_time_ends_the_run():
    def streak(past, **changes):
        position = Position(
            examples=900, learned=900, skipped_in_a_row=5, applied_begin=840, mark=[500, 480, 470], **changes
        )
        return rows_of_streak(5, position, past, FOLDER)

    def rollback(*rows, checkpoint=500):
        return Rollback(checkpoint=checkpoint, rows=rows, query_times=None, reason="x")

    assert streak([]) == (840, 900)
    assert streak([rollback(0, 10, checkpoint=400)]) == (840, 900)
    first = rollback(840, 900)
    assert streak([first]) == (480, 900)
    with pytest.raises(
        InputError, match=r"run: 5 steps .* row 900 .* checkpoint of row 500 .* rows from 480 on"
    ) as caught:
        streak([first, rollback(480, 900)])
    assert "\n" not in str(caught.value)
    # Nothing was applied since the checkpoint, whose weights predict: going back would change nothing.
    position = Position(learned=900, skipped_in_a_row=5, applied_begin=470, mark=[500, 480, 470])
    assert rows_of_streak(5, position, [], FOLDER) == (480, 900)
    assert rows_of_streak(5, position, [first], FOLDER) is None
    position.streak_predicts = False
    assert rows_of_streak(5, position, [first], FOLDER) == (480, 900)
    with pytest.raises(InputError, match="after two rollbacks"):
        rows_of_streak(5, position, [first, first], FOLDER)
    assert rows_of_streak(6, position, [], FOLDER) is None
    assert rows_of_streak(None, position, [], FOLDER) is None


def test_weights_that_are_not_finite_are_first_computed_again_and_then_without_the_rows():
    position = Position(examples=900, learned=880, applied_begin=860, mark=[500, 480, 470])
    assert rows_of_broken_weights(position, [], FOLDER, True) == (880, 880)
    first = Rollback(checkpoint=500, rows=(880, 880), query_times=None, reason="x")
    assert not is_quarantined(870, 890, [first])
    assert rows_of_broken_weights(position, [first], FOLDER, True) == (480, 880)
    with pytest.raises(InputError, match="weights are broken up to row 880"):
        rows_of_broken_weights(position, [first, first], FOLDER, True)
    assert rows_of_broken_weights(position, [], FOLDER, False) == (860, 880)
    # Within a streak they were broken before it.
    position.skipped_in_a_row = 2
    assert rows_of_broken_weights(position, [], FOLDER, True) == (860, 880)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
def test_streaks_are_counted(steps):
    position = Position()
    for number, (applied, predicts) in enumerate(steps):
        note_step(position, number, number + 1, applied, predicts)
    flags = [applied for applied, _ in steps]
    since = len(flags) - 1 - flags[::-1].index(True) if True in flags else -1
    assert position.applied_begin == since
    assert position.skipped_in_a_row == len(flags) - 1 - since
    assert position.streak_predicts == all(predicts for _, predicts in steps[since + 1 :])
    assert position.skipped_steps == flags.count(False)
    skipped = len(flags) - 1 - flags[::-1].index(False) if False in flags else -1
    assert position.applied_in_a_row == len(flags) - 1 - skipped
    mark_here(position)
    assert position.mark == list(Mark(applied_begin=-1) if position.skipped_in_a_row else Mark(0, 0, since))


def test_a_checkpoint_waits_for_the_end_of_a_streak_and_comes_early_behind_what_was_set_aside():
    position = Position(
        examples=1000, learned=1000, applied_in_a_row=1, applied_begin=990, mark=[500, 500, 490]
    )
    position.due_from = 500
    assert is_checkpoint_due(3, 500, position, [])
    assert not is_checkpoint_due(3, 501, position, [])
    position.skipped_in_a_row = 1
    assert not is_checkpoint_due(3, 500, position, [])
    assert is_checkpoint_due(None, 500, position, [])
    position = Position(
        examples=700, learned=700, applied_in_a_row=3, applied_begin=690, mark=[500, 500, 490]
    )
    position.due_from = 500
    past = [Rollback(checkpoint=500, rows=(600, 660), query_times=None, reason="x")]
    assert is_checkpoint_due(3, 500, position, past)
    assert not is_checkpoint_due(4, 500, position, past)
    position.applied_begin = 590
    assert not is_checkpoint_due(3, 500, position, past)
    position.applied_begin, position.mark, position.due_from = 690, [650, 650, 640], 650
    assert not is_checkpoint_due(3, 500, position, past)


@given(
    batch=st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted),
    ranges=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda rows: tuple(sorted(rows)))),
)
@example(batch=[3, 8], ranges=[(5, 5)])
def test_a_batch_of_which_a_row_is_quarantined_is_quarantined(batch, ranges):
    past = [Rollback(checkpoint=0, rows=rows, query_times=None, reason="x") for rows in ranges]
    aside = {row for begin, end in ranges for row in range(begin, end)}
    if batch[0] < batch[1]:
        assert is_quarantined(*batch, past) == bool(aside & set(range(*batch)))


def test_what_tells_that_weights_are_broken():
    assert predicts_soundly(np.zeros(0, np.float32))
    assert predicts_soundly(np.array([-50, 1e6], np.float32))
    for value in (np.nan, np.inf, -np.inf, 3e38, -2e6):
        assert not predicts_soundly(np.array([0, value], np.float32))
    arrays = {"dense/000": np.ones(2), "shampoo/step": np.array(3), "rows/a": np.ones((2, 2), np.float32)}
    # A certificate's own numbers may be infinite, and statistics have certificates.
    arrays |= {"shampoo/status": np.array([np.inf]), "shampoo/stack0/axis0/total": np.array([np.nan])}
    assert first_broken(arrays.items()) is None
    for name in ("rows_accumulator/a", "shampoo/tensor0/accumulator", "shampoo/tensor1/momentum", "duals/f"):
        for value in (np.nan, np.inf):
            broken = {**arrays, name: np.array([0, value], np.float32)}
            assert first_broken(broken.items()) == f"{name} is not finite"
    # Sums of squares may be large.
    for name, value, found in (
        ("rows_accumulator/a", 1e30, None),
        ("rows/a", -1e7, "rows/a has weights beyond 1e+06"),
        ("dense/000", 1e30, "dense/000 has weights beyond 1e+06"),
        ("rows/a", -1e6, None),
    ):
        assert first_broken({**arrays, name: np.array([0, value], np.float32)}.items()) == found
    assert first_broken([("rows/a", np.zeros((0, 3), np.float32))]) is None


def test_the_state_of_every_rule_for_embeddings_is_checked():
    layouts = lay_out_tables([FeatureRows("a", 5, 3, "quality", 0)])
    rules = get_args(EmbeddingOptimizerConfig.model_fields["rule"].annotation)
    # Newton's linear weights go with AdaGrad's rows alone.
    for rule, linear_rule in [("adagrad", "newton"), *((rule, "adagrad") for rule in rules)]:
        optimizer = table_optimizer(EmbeddingOptimizerConfig(rule=rule, linear_rule=linear_rule), layouts)
        state = {*optimizer.row_state, *optimizer.feature_state, *optimizer.table_state}
        for name in state - {"rows_touched", "table_steps"}:
            broken = np.array([1.0, np.nan])
            assert first_broken([(f"{name}/{layouts[0].name}", broken)]) is not None, (rule, name)


ENTRIES = st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans(), st.text(max_size=9))


@settings(max_examples=10)
@given(st.lists(ENTRIES, max_size=4))
def test_the_file_tells_what_was_written(tmp_path_factory, entries):
    folder = tmp_path_factory.mktemp("run")
    assert read_rollbacks(folder) == []
    past = [
        Rollback(
            checkpoint=row, rows=(row, row + more), query_times=(row, row) if some else None, reason=reason
        )
        for row, more, some, reason in entries
    ]
    write_rollbacks(folder, past)
    assert read_rollbacks(folder) == past
    for seen in range(len(past) + 1):
        check_kept(folder, as_json(past)[:seen], past)
        if seen < len(past):
            with pytest.raises(InputError, match=r"quarantine.json: does not have the \d rollbacks"):
                check_kept(folder, as_json(past), past[:seen])


def test_a_damaged_file_is_refused(tmp_path):
    entry = {"checkpoint": 1, "query_times": None, "reason": ""}
    contents = [
        *(b"", b"[]", b"\x00", b"[" * 100_000, b'{"rollbacks": [], "rollbacks": []}', b'{"rollbacks": []}'),
        # Sealed, but not what is written.
        sealed_bytes({}),
        sealed_bytes({"rollbacks": {}}),
        sealed_bytes({"rollbacks": [{"rows": [1, 2]}]}),
        sealed_bytes({"rollbacks": [{**entry, "rows": [9, 2]}]}),
        sealed_bytes({"rollbacks": [{**entry, "rows": [-9, 2]}]}),
    ]
    for content in contents:
        (tmp_path / "quarantine.json").write_bytes(content)
        with pytest.raises(
            InputError, match=r"quarantine.json: damaged \(.*restore it, or use another"
        ) as caught:
            read_rollbacks(tmp_path)
        assert "\n" not in str(caught.value)
