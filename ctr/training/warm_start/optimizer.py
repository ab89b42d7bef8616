"""Dense weights of another run with what the optimizer knows of them, and its schedules: what a new run takes over."""

from collections.abc import Mapping, Sequence

import numpy as np

from ctr.optim.averaging import DISTANCE, SQUARED_RATES, served_weights
from ctr.optim.protocol import Saved
from ctr.training.optimizers import dense_optimizer
from ctr.training.warm_start.deeper import deepen
from ctr.training.warm_start.weights import Arrays, Entry, Moved, Side, Status, dense_key, take_weights


def take_dense(
    arrays: dict[str, np.ndarray], old_arrays: Arrays, new: Side, old: Side, kept: frozenset[str]
) -> list[Entry]:
    """Puts in what both models have of the dense weights; arguments as for ``take_weights``, a line for each."""
    found, moves = take_weights(arrays, old_arrays, new, old, kept)
    source, beta = old_arrays, old.config.optimizer.dense.schedule_free
    if beta is not None:
        if beta == new.config.optimizer.dense.schedule_free and {one.status for one in found} == {"taken"}:
            _take_averages(arrays, old_arrays, moves)
        else:
            # The averages are what that run served; where it cannot go on with them, they are its weights.
            source = {**old_arrays, **served_weights(old_arrays, beta)}
            found, moves = take_weights(arrays, source, new, old, kept)
    entries = deepen(arrays, source, new, old, kept, found)
    statuses, why = take_optimizer(arrays, old_arrays, new, old, moves)
    numbers = {name: index for index, name in enumerate(new.shapes)}

    def line(entry: Entry) -> Entry:
        optimizer = None if entry.status == "left" else statuses.get(numbers[entry.name])
        if optimizer is None:
            return entry
        whys = [entry.why, why if optimizer != entry.status else ""]
        return entry._replace(optimizer=optimizer, why="; ".join(filter(None, whys)))

    return [line(entry) for entry in entries]


def _take_averages(
    arrays: dict[str, np.ndarray], old_arrays: Arrays, moves: Mapping[int, tuple[int, Moved]]
) -> None:
    """Puts in the averages of weights that were all taken; features may be in another order."""
    arrays[SQUARED_RATES] = old_arrays[SQUARED_RATES]
    for index, (old_index, move) in moves.items():
        name = f"{DISTANCE}{dense_key(index)}"
        # What is fitted has no average.
        if name in arrays:
            move.move(arrays[name], old_arrays[f"{DISTANCE}{dense_key(old_index)}"])


def take_optimizer(
    arrays: dict[str, np.ndarray],
    old_arrays: Arrays,
    new: Side,
    old: Side,
    moves: Mapping[int, tuple[int, Moved]],
) -> tuple[dict[int, Status], str]:
    """Puts in what the optimizer knew of the dense weights that were taken, given by the ``moves`` of ``take_weights``.

    Returns by the number of each of these weights what became of its state, and why some of it was not taken.
    """
    optimizer, before = (dense_optimizer(side.config.optimizer.dense) for side in (new, old))
    taken = optimizer.take_over(
        Saved(arrays, list(new.shapes.values())), before, Saved(old_arrays, list(old.shapes.values())), moves
    )
    reasons = [f"optimizer.dense.{optimizer.name}.{option}" for option in taken.differing]
    return {**taken.statuses}, "; ".join([*reasons, *([taken.why] if taken.why else [])])


def take_schedules(
    new: Side, old: Side, trained: int, before: Mapping[str, int], entries: Sequence[Entry]
) -> tuple[list[Entry], dict[str, int]]:
    """Decides which schedules of learning rates continue, and which begin; for the rest see ``take_ramps``.

    One continues where the old run has one for the same weights, and some of these weights were taken.
    """
    used = {entry.part for entry in entries if entry.status in ("taken", "partly")}
    parts = {"embeddings": "feature", "dense": "weight"}
    lines: list[Entry] = []
    offsets: dict[str, int] = {}
    for group in new.config.optimizer.schedules:
        name = f"rate_{group}"
        if group in old.config.optimizer.schedules and parts[group] in used:
            offsets[name] = trained + before.get(name, 0)
            lines.append(Entry("schedule", name, "taken", None, f"continues at {offsets[name]} examples"))
        else:
            lines.append(Entry("schedule", name, "fresh", None, "begins here"))
    return lines, offsets
