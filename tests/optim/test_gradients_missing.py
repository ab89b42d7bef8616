"""What Adafactor keeps of a variable that has no gradient in a step stays as it is, to the bit."""

import pytest
import tensorflow as tf

import shampoo_reference as reference
from ctr.optim.adafactor.core import AdafactorCore
from ctr.optim.adafactor.options import AdafactorOptions

# Matrices, a vector, and a table.
SHAPES = [(4, 3), (5, 2), (3,), (6, 3)]
TABLE = 3


@pytest.mark.parametrize("options", [{"beta1": 0.5}, {"relative_steps": True, "factored": False}])
def test_of_adafactor_steps_without_a_gradient_are_none(options):
    history, start = reference.drifting(SHAPES, 9), reference.initial(SHAPES)
    gaps = [
        [None if (t + i) % 3 == 0 or t < i else g for i, g in enumerate(gs)] for t, gs in enumerate(history)
    ]

    def train(indices, steps):
        weights = [tf.Variable(start[index]) for index in indices]
        tables = [place for place, index in enumerate(indices) if index == TABLE]
        core = AdafactorCore(AdafactorOptions(**options), weights, tables)
        for gradients in steps:
            core.update(gradients, 0.1)
        return [weight.numpy() for weight in weights]

    together = train(list(range(len(SHAPES))), gaps)
    for index, weight in enumerate(together):
        (alone,) = train([index], [[gs[index]] for gs in gaps if gs[index] is not None])
        assert alone.tobytes() == weight.tobytes()
