"""Lowering of a training step to an XLA program.

TensorFlow returns the program of a compiled function. Its parameters are the nonempty arguments, and then the
variables; its results are the function's, and then the new values of the variables that it changes, in the
same memory. ``Lowered`` names them all.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctr.training.compiled_step import CompiledStep
from ctr.training.feed import Feed

Spec = tuple[tuple[int, ...], str]
"""Shape, and NumPy's name of the dtype."""

_ALIAS = re.compile(r"\{ ?(\d+) ?\}: \((\d+), \{\}, [a-z]+-alias\)")


@dataclass(frozen=True)
class Lowered:
    """The program of a step for feeds of one size.

    Attributes:
        hlo: XLA's ``HloModuleProto``, serialized.
        text: the same program as text.
        arguments: names of the arguments of each step, which are the first parameters.
        state: names of the variables, as in ``TrainState.variables``, which are the other parameters.
        results: names of the results of a step.
        changed: names of the variables whose new values follow the results.
        specs: shapes and dtypes of all parameters, by name.
    """

    hlo: bytes
    text: str
    arguments: tuple[str, ...]
    state: tuple[str, ...]
    results: tuple[str, ...]
    changed: tuple[str, ...]
    specs: Mapping[str, Spec]

    @property
    def state_bytes(self) -> int:
        return sum(spec_bytes(self.specs[name]) for name in self.state)

    @property
    def argument_bytes(self) -> int:
        """Returns the number of bytes sent to the device in every step."""
        return sum(spec_bytes(self.specs[name]) for name in self.arguments)


def spec_bytes(spec: Spec) -> int:
    shape, dtype = spec
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def lower(step: CompiledStep, feed: Feed, ramps: Mapping[str, float], rates: Mapping[str, float]) -> Lowered:
    """Lowers the training step for feeds of ``feed``'s size. Raises ValueError if state is not updated in place."""
    function, arguments = step.learning(feed, ramps, rates)
    values = argument_values(arguments)
    variables = step.state.variables()
    state = _captured(function, variables)
    specs = {name: (value.shape, value.dtype.name) for name, value in values.items()}
    for name in state:
        variable = variables[name]
        specs[name] = tuple(variable.read_value().shape), variable.dtype.name
    compiler_ir = function.experimental_get_compiler_ir(*arguments)
    text = compiler_ir(stage="hlo")
    aliases, order = output_aliases(text), [*values, *state]
    slices = [f"slices/{number}" for number in range(len(step.state.families))]
    results = ("logit", "applied", *slices, "terms")
    if sorted(aliases) != list(range(len(results), len(results) + len(aliases))):
        raise ValueError(f"the step does not update its state in place: {aliases}")
    changed = tuple(order[aliases[output]] for output in sorted(aliases))
    return Lowered(compiler_ir(stage="hlo_serialized"), text, tuple(values), state, results, changed, specs)


def argument_values(arguments: tuple[Any, ...]) -> dict[str, np.ndarray]:
    """Returns the nonempty arguments of a step, by name, in the order of its parameters."""
    targets, plans, ramps, rates = arguments
    groups = {"targets": targets}
    groups |= {f"plans/{number}": plan for number, plan in enumerate(plans)}
    groups |= {"ramps": ramps, "rates": rates}
    values = {
        f"{group}/{name}": part[name].numpy() for group, part in groups.items() for name in sorted(part)
    }
    return {name: value for name, value in values.items() if value.size}


def output_aliases(text: str) -> dict[int, int]:
    """Parses the text of a program; returns by index of a result the index of the parameter whose memory it reuses."""
    head = text.partition("\n")[0]
    return {int(output): int(parameter) for output, parameter in _ALIAS.findall(head)}


def _captured(function: Any, variables: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the variables that a function uses, in the order of its parameters."""
    names = {id(variable.handle): name for name, variable in variables.items()}
    return tuple(names[id(handle)] for handle in function.get_concrete_function().captured_inputs)
