"""Click probabilities tau(Q . U) of a factorized model in NumPy: TensorFlow would take longer for a few thousand."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Transfer = Callable[[np.ndarray], np.ndarray]


def make_transfer(joints: Sequence[float], slopes: Sequence[float], bias: float) -> Transfer:
    """Makes the continuous function with these pieces, p slopes between p - 1 rising joints, and ``bias`` at 0.

    It maps products of any shape to logits, float32.
    """
    if len(slopes) != len(joints) + 1:
        raise ValueError(f"{len(joints)} joints require {len(joints) + 1} slopes, got {len(slopes)}")
    if not joints:
        scale, constant = np.float32(slopes[0]), np.float32(bias)
        return lambda products: scale * products + constant
    places, steep = np.array(joints, np.float64), np.array(slopes, np.float64)
    lower, upper = np.append(-np.inf, places), np.append(places, np.inf)
    lengths = np.clip(places[:, np.newaxis], lower, upper) - np.clip(0.0, lower, upper)
    values = lengths @ steep + bias
    first, last = steep[0], steep[-1]

    def transfer(products: np.ndarray) -> np.ndarray:
        logits = np.interp(products, places, values)
        logits += first * np.minimum(products - places[0], 0) + last * np.maximum(products - places[-1], 0)
        return logits.astype(np.float32)

    return transfer


def transfers_of(model: Mapping[str, Any]) -> list[Transfer]:
    """Makes the components' functions from an export's metadata. Raises KeyError or ValueError if malformed."""
    return [make_transfer(piece["joints"], piece["slopes"], piece["bias"]) for piece in model["transfer"]]


def probabilities(products: np.ndarray, transfers: Sequence[Transfer]) -> np.ndarray:
    """Averages the probabilities of the n components: of Q . U, float32 [n, ...], float32 [...]."""
    made = [sigmoid(transfer(own)) for transfer, own in zip(transfers, products, strict=True)]
    return made[0] if len(made) == 1 else np.mean(made, axis=0)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Computes probabilities, of the shape and dtype of logits."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-logits))
