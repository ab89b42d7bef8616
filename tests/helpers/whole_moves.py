"""Weights of a warm start that are taken as they are."""

import numpy as np


class Whole:
    """A move of a whole weight (``ctr.optim.protocol.Move``)."""

    exact = True

    def fills(self, shape: object) -> bool:
        return True

    def move(self, target: np.ndarray, source: np.ndarray) -> None:
        target[...] = source
