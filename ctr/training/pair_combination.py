"""Combination of two predictions, of which the second one is used as far as it has paid.

With z the model's logit and v that of the expert beside it::

    moved      = z + gate (v - z) + offset            gate and offset by Newton's steps on the logistic loss
    prediction = z + s (moved - z)                    s = sigmoid(G)

G is by how much less the loss of ``moved`` was than that of z, summed over what was passed, the older the less: s is
the weight of the exponentially weighted forecaster (Cesa-Bianchi, Lugosi, "Prediction, Learning, and Games", 2006,
section 2.2), and goes to 0 as soon as the expert has cost a few nats in all.

An expert that does not help is left out after a while. It is looked at again when the log is eight times as long.
"""

from dataclasses import astuple, dataclass

import numpy as np

_PRIOR = 10.0
"""P of gate and offset, see ``ctr.optim.first_order.online_newton``."""
_FORGETTING = 0.5
"""By which share of its weight among all of the past a batch lets G be forgotten."""
_MAX_STEP = 1.0
_LEAST_CURVATURE = 1e-6

FIRST_ROWS = 64
"""Rows before the expert begins: fewer tell nothing of pairs, and a short log does without it."""
FIRST_LOOK = 32768
"""Rows after which it is decided for the first time, by the second half of them, whether the expert stays."""
_LEAST_GAIN = 0.001
"""The share of the loss that it has to save to stay."""
_AGAIN, _LOOK = 8, 32
"""It is looked at again when the log is so many times as long, for a ``_LOOK``-th of it, ``FIRST_LOOK`` at least."""


@dataclass
class Combination:
    """Fitted numbers of a combination, and what it remembers; kept in checkpoints as one float64 array.

    Attributes:
        gate, offset: see above.
        advantage: G.
        weight: of all rows that it learned from.
        information_00, information_01, information_11: of offset and gate, A of ``online_newton`` with k = 1.
        is_awake: whether the expert learns and predicts; 0 or 1.
        passed: rows.
        due: the number of rows after which it is decided whether it sleeps, or wakes up.
        counted_from: the number of rows from which on ``gain`` and ``loss`` are summed.
        gain: the loss of the model's predictions less that of all.
        loss: of the model's predictions.
    """

    gate: float = 0.0
    offset: float = 0.0
    advantage: float = 0.0
    weight: float = 0.0
    information_00: float = 0.0
    information_01: float = 0.0
    information_11: float = 0.0
    is_awake: float = 0.0
    passed: float = 0.0
    due: float = FIRST_ROWS
    counted_from: float = 0.0
    gain: float = 0.0
    loss: float = 0.0

    @property
    def served(self) -> tuple[float, float]:
        """Gate and offset as both together move the model's logit."""
        return self._share * self.gate, self._share * self.offset

    @property
    def _share(self) -> float:
        return float(_sigmoid(np.array(self.advantage)))

    def combine(self, plain: np.ndarray, pairs: np.ndarray) -> np.ndarray:
        """Computes logits, float32 [N], of the model's and the expert's, float32 [N] each."""
        gate, offset = self.served
        wide = plain.astype(np.float64)
        combined = (wide + gate * (pairs - wide) + offset).astype(np.float32)
        return np.where(np.isfinite(combined), combined, plain)

    def learn(self, plain: np.ndarray, pairs: np.ndarray, label: np.ndarray, weight: np.ndarray) -> None:
        """Learns from a batch whose logits, float32 [N], are those from before the experts learned from it."""
        known = np.isfinite(plain) & np.isfinite(pairs)
        z, v, y, w = (part[known].astype(np.float64) for part in (plain, pairs, label, weight))
        total = float(w.sum())
        if not total > 0:
            return
        self.weight += total
        share, difference = total / self.weight, v - z
        moved = z + self.gate * difference + self.offset
        loss, moved_loss = (float(w @ _loss(y, one)) for one in (z, moved))
        if self.passed >= self.counted_from:
            self.loss += loss
            self.gain += loss - float(w @ _loss(y, z + self._share * (moved - z)))
        self.advantage = (1.0 - _FORGETTING * share) * self.advantage + loss - moved_loss
        p = _sigmoid(moved)
        gradient, curvature = w * (p - y), w * np.maximum(p * (1.0 - p), _LEAST_CURVATURE)
        columns = np.stack([np.ones_like(z), difference])
        found = (columns * curvature) @ columns.T
        kept = 1.0 - share
        self.information_00 = kept * self.information_00 + found[0, 0]
        self.information_01 = kept * self.information_01 + found[0, 1]
        self.information_11 = kept * self.information_11 + found[1, 1]
        step = self._solve(columns @ gradient)
        self.offset -= step[0]
        self.gate = min(1.0, max(0.0, self.gate - step[1]))

    def _solve(self, gradient: np.ndarray) -> tuple[float, float]:
        a, b, d = self.information_00 + _PRIOR, self.information_01, self.information_11 + _PRIOR
        one, other = gradient.tolist()
        divisor = a * d - b * b
        steps = (d * one - b * other) / divisor, (a * other - b * one) / divisor
        first, second = (min(_MAX_STEP, max(-_MAX_STEP, step)) for step in steps)
        return first, second

    def is_due_after(self, rows: int) -> bool:
        """Tells whether it is decided, when so many more rows are passed, if the expert sleeps or wakes up."""
        return self.passed + rows >= self.due

    def count(self, rows: int) -> None:
        """Counts rows that were passed, and decides where that is due."""
        self.passed += rows
        if self.passed < self.due:
            return
        if not self.is_awake:
            # What it knows is old: it begins without a say.
            look = max(FIRST_LOOK, self.passed // _LOOK)
            self.gate = self.offset = self.advantage = self.weight = 0.0
            self.information_00 = self.information_01 = self.information_11 = 0.0
            self.is_awake, self.due = 1.0, self.passed + look
        elif self.gain >= _LEAST_GAIN * self.loss:
            self.due = 2 * self.passed
        else:
            self.is_awake, self.due = 0.0, _AGAIN * self.passed
        self.counted_from = (self.passed + self.due) / 2
        self.gain = self.loss = 0.0

    def to_array(self) -> np.ndarray:
        return np.array(astuple(self), np.float64)

    def restore(self, values: np.ndarray) -> None:
        for name, value in zip(vars(self), values.tolist(), strict=True):
            setattr(self, name, value)


def _loss(label: np.ndarray, logit: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, logit) - label * logit


def _sigmoid(logit: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        made: np.ndarray = 1.0 / (1.0 + np.exp(-logit))
    return made
