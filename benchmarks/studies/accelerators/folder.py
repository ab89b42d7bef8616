"""Writes a folder for machines with jax and an accelerator: steps as portable StableHLO, and their expected results.

It requires no TensorFlow and contains no code of this project but ``run.py`` and ``torch_model.py``. Dense weights are
stored; tables, which are most of the state, are drawn from a seed, and so are the batches.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from jax._src.export import _export as jax_export
from reference import SCALE, SLATE, Size

from accelerators.kinds import DAMPED, KINDS, Built, build
from accelerators.lowering import Lowered, Spec
from accelerators.run import first_value
from accelerators.stablehlo import module_of
from ctr.experiments.config import merged

_HERE = Path(__file__).resolve().parent
_TABLE_SEED = 1
CHECKED = ("AdaGrad", "AdaGrad, bfloat16", "Shampoo")
"""The kinds whose steps are compared with TensorFlow's."""
MEASURED = ("AdaGrad", "AdaGrad, bfloat16", "Shampoo, bfloat16")


def write_program(folder: Path, name: str, kind: str, size: Size, changes: Mapping[str, Any]) -> Built:
    """Writes a step as ``NAME.stablehlo``, and its description for the runner as ``NAME.json``.

    Returns:
        The model, in the initial state of the runner.
    """
    built = build(KINDS[kind], size, changes)
    lowered = built.lowered()
    artifact, results = portable(lowered)
    (folder / f"{name}.stablehlo").write_bytes(artifact)
    variables = built.state.variables()
    entries = [_entry(name, lowered.specs[name], variables[name].numpy()) for name in lowered.state]
    stored = {entry[0]: variables[entry[0]].numpy() for entry in entries}
    drawn = []
    for entry in entries:
        value = first_value(entry, stored)
        variables[entry[0]].assign(value)
        if isinstance(entry[3], dict) and "scale" in entry[3]:
            drawn.append(value.tobytes())
    scalars = {f"ramps/{key}": value for key, value in built.ramps.items()}
    scalars |= {f"rates/{key}": value for key, value in built.rates.items()}
    program = {
        "kind": kind,
        "dtype": KINDS[kind].dtype,
        "size": asdict(size),
        "slate": SLATE,
        "feeds": size.feeds,
        "arguments": [[name, *lowered.specs[name]] for name in lowered.arguments],
        "scalars": scalars,
        "state": entries,
        "drawn": hashlib.sha256(b"".join(drawn)).hexdigest(),
        "results": len(lowered.results),
        "result_specs": results,
        "changed": lowered.changed,
        "shampoo": shampoo_facts(built),
        "network": {
            "crosses": built.config.model.crosses.layers,
            "rank": built.config.model.crosses.rank,
            "layers": list(built.config.model.deep.units),
        },
    }
    (folder / f"{name}.json").write_text(json.dumps(program))
    return built


def portable(lowered: Lowered) -> tuple[bytes, list[Spec]]:
    """Returns a step as a StableHLO artifact, for any platform and later versions of jax, and its results' specs."""
    module = module_of(lowered.hlo)
    with module.context:
        (main,) = [operation for operation in module.body.operations if operation.name.value == "main"]
        # The runner decides whose memory is reused, and shapes are static.
        for name in [attribute for attribute in module.operation.attributes if attribute.startswith("mhlo.")]:
            del module.operation.attributes[name]
        return jax_export._module_to_bytecode(module), [_shape_of(result) for result in main.type.results]


def _shape_of(result: Any) -> Spec:
    names = {"f32": "float32", "i32": "int32", "i64": "int64", "i1": "bool"}
    return tuple(result.shape), names[str(result.element_type)]


def _entry(name: str, spec: Spec, value: np.ndarray) -> list[Any]:
    """Returns the runner's entry of a variable: name, shape, dtype, and how to make its initial value."""
    shape, dtype = spec
    if name.startswith("rows/"):
        # Linear weights begin at 0.
        scale = [SCALE] * (shape[1] - 1) + [0.0]
        return [name, shape, dtype, {"seed": _TABLE_SEED, "scale": scale}]
    if not value.size or (value == value.flat[0]).all():
        return [name, shape, dtype, {"value": value.flat[0].item() if value.size else 0}]
    return [name, shape, dtype, "stored"]


def shampoo_facts(built: Built) -> dict[str, Any] | None:
    """Returns the options and factors by which the host computes roots; None if there are no factors."""
    core = built.state.dense_optimizer.core
    if not core.layout.factors:
        return None
    options = core.options
    names = ("start_preconditioning_step", "precondition_frequency", "epsilon")
    rules = {name: getattr(options, name) for name in names}
    rules |= {name: getattr(options.roots, name) for name in ("early_growth", "drift_bound")}
    factors = [
        {"name": f"shampoo/{f.name}", "count": f.count, "size": f.size, "exponent": 1 / f.order}
        for f in core.layout.factors
    ]
    return {"options": rules, "factors": factors}


def write_expected(folder: Path, name: str, built: Built, steps: int) -> None:
    """Makes steps with TensorFlow; writes their logits and the dense weights after the last step."""
    logits = [
        built.step.learn(built.feeds[step % len(built.feeds)], built.ramps, built.rates).logit
        for step in range(steps)
    ]
    np.savez_compressed(folder / f"{name}.expected.npz", logits=np.stack(logits), **_dense_weights(built))


def _dense_weights(built: Built) -> dict[str, np.ndarray]:
    variables = built.state.variables()
    return {name: value.numpy() for name, value in variables.items() if name.startswith("dense/")}


def write_folder(
    folder: Path, size: Size, changes: Mapping[str, Any], batches: Sequence[int], steps: int
) -> None:
    """Writes the whole folder.

    ``size`` is the size of the model and of the check's batches, ``changes`` are to the configuration of the model,
    ``batches`` are the batch sizes to measure, and ``steps`` is the number of steps of the check.
    """
    folder.mkdir(parents=True, exist_ok=True)
    checked, measured, weights = [], [], {}
    for kind in CHECKED:
        name = _file_name(kind, size.batch)
        built = write_program(folder, name, kind, size, merged(changes, DAMPED))
        # All kinds have the same initial weights.
        weights |= _dense_weights(built)
        write_expected(folder, name, built, steps)
        checked.append(name)
    for kind in MEASURED:
        for batch in batches:
            name = _file_name(kind, batch)
            if name not in checked:
                write_program(folder, name, kind, replace(size, batch=batch, feeds=2), changes)
            measured.append(name)
    np.savez_compressed(folder / "weights.npz", **weights)
    (folder / "contents.json").write_text(json.dumps({"checked": checked, "measured": measured}))
    shutil.copy(_HERE / "run.py", folder / "run.py")
    shutil.copy(_HERE.parents[1] / "torch_model.py", folder / "torch_model.py")


def _file_name(kind: str, batch: int) -> str:
    return f"{kind.replace(', ', '_')}_{batch}".lower()
