"""K-FAC on one worker or on several, on the same gradients and factors, in float64."""

import numpy as np
import tensorflow as tf

from ctr.optim.kfac.core import Layer
from ctr.optim.kfac.dense import DenseKfac
from ctr.optim.kfac.factors import Factors
from ctr.optim.kfac.options import KfacOptions
from ctr.workers.collectives import ALONE, Workers

SHAPES = [(9, 6), (6,), (6, 7), (7,), (7, 2), (3, 4)]
LAYERS = [Layer(0, 1), Layer(2, None), Layer(4, None)]
STEPS = 26


def run(workers: Workers = ALONE, form: str = "inverse") -> dict[str, np.ndarray]:
    """Trains; factors that are not finite come at one step, and a layer that has none yet is switched on later.

    Returns:
        the weights after each step, the report, and all state, with the rows of what is divided.
    """
    options = KfacOptions(form=form, inverse_frequency=6, momentum=0.5, weight_decay=0.01)
    optimizer = DenseKfac(options, LAYERS, workers)
    rng = np.random.default_rng(5)
    weights = [tf.Variable(rng.normal(size=shape)) for shape in SHAPES]
    optimizer.build({f"w{i}": weight for i, weight in enumerate(weights)})

    @tf.function(autograph=False)
    def step(gradients: list[tf.Tensor], factors: list[Factors]) -> None:
        optimizer.observe(lambda: factors)
        optimizer.update(gradients, tf.constant(0.05, tf.float64), False)

    found: dict[str, np.ndarray] = {}
    for number in range(STEPS):
        factors = []
        for index, layer in enumerate(LAYERS):
            rows, columns = SHAPES[layer.weight]
            sides = [
                rng.normal(size=(30, side)) * np.geomspace(1, 30, side)
                for side in (rows + (layer.bias is not None), columns)
            ]
            off = 0.0 if index == 2 and number < 3 else np.nan if number == 4 and index == 0 else 1.0
            factors.append(Factors(*(tf.constant(off * (side.T @ side) / 30) for side in sides)))
        step([tf.constant(rng.normal(size=shape)) for shape in SHAPES], factors)
        found |= {f"weight|{number}|{i}": weight.numpy() for i, weight in enumerate(weights)}
    found |= {f"report|{name}": np.array(value) for name, value in optimizer.report().items()}
    found |= {f"state|{name}": variable.numpy() for name, variable in optimizer.variables.items()}
    return found | {f"rows|{name}": part.rows for name, part in optimizer.parts().items()}
