"""Adafactor for the dense weights of a model, as a ``ctr.optim.protocol.DenseOptimizer``."""

import math
from collections.abc import Mapping, Sequence

import tensorflow as tf

from ctr.optim.adafactor.core import AdafactorCore, is_factored
from ctr.optim.adafactor.options import AdafactorOptions
from ctr.optim.protocol import Cost, DenseOptimizer, Move, Saved, TakenOver, WithoutHost
from ctr.workers.collectives import ALONE, Workers

_OPERATIONS = 12  # for each weight: squares, their sums, two divisions, two root mean squares, and the step
_MEANING = ("factored", "beta1")


class DenseAdafactor(WithoutHost):
    """Adafactor over dense weights; weight decay is of matrices, not of biases. Each worker has all of its state."""

    name = "adafactor"
    core: AdafactorCore

    def __init__(self, options: AdafactorOptions, workers: Workers = ALONE) -> None:
        del workers
        self.options = options
        self._decayed: list[bool] = []

    def build(self, weights: Mapping[str, tf.Variable]) -> None:
        self.core = AdafactorCore(self.options, list(weights.values()))
        self._decayed = [len(weight.shape) > 1 for weight in weights.values()]

    @property
    def variables(self) -> dict[str, tf.Variable]:
        return {f"adafactor/{name}": variable for name, variable in self.core.variables.items()}

    def update(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, compiled: bool) -> None:
        del compiled
        self.core.update(gradients, rate, self._decayed)

    def cost(self, shapes: Sequence[Sequence[float]]) -> Cost:
        return Cost(update=_OPERATIONS * sum(math.prod(shape) for shape in shapes))

    def take_over(
        self, new: Saved, before: DenseOptimizer, old: Saved, moves: Mapping[int, tuple[int, Move]]
    ) -> TakenOver:
        """Takes over moments unless a weight begins fresh: one number of steps corrects the moments of all."""
        if not isinstance(before, DenseAdafactor):
            return TakenOver.nothing(moves, f"the optimizer was {before.name}, is {self.name}")
        pairs = {name: (getattr(before.options, name), getattr(self.options, name)) for name in _MEANING}
        differing = tuple(
            f"{name} was {was!r}, is {now!r}" for name, (was, now) in pairs.items() if was != now
        )
        if differing:
            return TakenOver.nothing(moves, differing=differing)
        for index in range(len(new.shapes)):
            if index not in moves or not self._is_taken(new, old, index, *moves[index]):
                return TakenOver.nothing(
                    moves, "moments decay by one number of steps, and some weights begin fresh"
                )
        for index, (old_index, move) in moves.items():
            for name, target in new.arrays.items():
                if name.startswith(f"adafactor/tensor{index}/"):
                    source = old.arrays[name.replace(f"/tensor{index}/", f"/tensor{old_index}/")]
                    if _is_whole(new, old, index, old_index, move):
                        target[...] = source
                    else:
                        move.move(target, source)
        new.arrays["adafactor/step"][...] = old.arrays["adafactor/step"]
        return TakenOver(dict.fromkeys(moves, "taken"))

    def _is_taken(self, new: Saved, old: Saved, index: int, old_index: int, move: Move) -> bool:
        shape = new.shapes[index]
        in_parts = not is_factored(self.options, shape) and move.fills(shape)
        return in_parts or _is_whole(new, old, index, old_index, move)


def _is_whole(new: Saved, old: Saved, index: int, old_index: int, move: Move) -> bool:
    return move.exact and tuple(new.shapes[index]) == tuple(old.shapes[old_index])
