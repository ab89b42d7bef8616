"""What a run that begins from another one's weights takes over of the dense optimizer's state, and of its schedules."""

from collections.abc import Mapping, Sequence

import numpy as np

from ctr.optim.protocol import Saved
from ctr.training.optimizers import dense_optimizer
from ctr.training.warm_start.weights import Arrays, Entry, Moved, Side, Status


def take_optimizer(
    arrays: dict[str, np.ndarray],
    old_arrays: Arrays,
    new: Side,
    old: Side,
    moves: Mapping[int, tuple[int, Moved]],
) -> tuple[dict[int, Status], str]:
    """Puts in what the optimizer knew of the dense weights that were taken.

    Args:
        arrays, old_arrays: by the names of ``TrainState.variables``; the first is changed.
        moves: of ``take_weights``.

    Returns:
        By the number of each of these weights what became of its state, and why some of it was not taken.
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
    """Which schedules of learning rates continue where they stood, and which begin.

    One continues where the old run has one for the same weights, and some of these weights were taken.

    Args:
        trained, before: see ``take_ramps``.
        entries: of the features and weights.

    Returns:
        As ``take_ramps`` does.
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
