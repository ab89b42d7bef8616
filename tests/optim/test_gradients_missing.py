"""What is kept of a variable that has no gradient in a step stays as it is, to the bit."""

import numpy as np
import pytest
import tensorflow as tf

import shampoo_reference as reference
from ctr.optim.adafactor.core import AdafactorCore
from ctr.optim.adafactor.options import AdafactorOptions

# The first two share their stacks of blocks, the third has one of its own; a vector, and a table.
SHAPES = [(4, 3), (4, 3), (5, 2), (3,), (6, 3)]
TABLE = 4
OPTIONS = {
    **{"precondition_frequency": 2, "start_preconditioning_step": 1, "roots": {"asynchronous": False}},
    **{"beta2": 0.9, "momentum": 0.8, "weight_decay": 0.1, "beta1": 0.7},
    **{"grafting": {"kind": "adam"}, "rows": "one_sided"},
}


def kept_of(core, index):
    """By name all that the optimizer has of a tensor, and the tensor itself."""
    variables, layout = core.variables, core.layout
    found = {n: v.numpy() for n, v in variables.items() if n.startswith(f"tensor{index}/")}
    for factor in layout.factors:
        rows = np.flatnonzero(np.array(factor.tensors) == index)
        for kind in ("window", "total", "root"):
            name = f"{factor.name}/{kind}"
            found[name] = variables[name].numpy()[rows]
        found[f"status {factor.name}"] = variables["status"].numpy()[:, factor.offset + rows]
    return found | {"weight": core.weights[index].numpy()}


def changed(before, after):
    return {name for name, value in after.items() if value.tobytes() != before[name].tobytes()}


@pytest.mark.parametrize("on_device", [False, True])
def test_all_that_is_kept_of_it_stays_even_where_roots_are_exchanged(on_device):
    options = reference.options().changed(OPTIONS)
    core = reference.make_core(options, reference.initial(SHAPES), tf.float32, tables=[TABLE])
    history = reference.drifting(SHAPES, 5, condition=10.0)
    reference.train(core, history[:3], 0.1, on_device=on_device)
    for step, absent in ((3, (0, 3)), (4, (1, 2, TABLE))):
        before = {index: kept_of(core, index) for index in range(len(SHAPES))}
        gradients = [None if index in absent else g for index, g in enumerate(history[step])]
        reference.train(core, [gradients], 0.1, on_device=on_device)
        for index, kept in before.items():
            now = changed(kept, kept_of(core, index))
            assert ("weight" in now) if index not in absent else not now


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
