"""The training step alone, against the same model in Keras and in PyTorch."""

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from own import make_model, median_ms, ratio, show_ratio
from parts.setting import Setting
from reference import ADAGRAD, INITIAL_ACCUMULATOR, RATE, table
from rivals import open_rivals

from ctr.training.analysis.speed import take_turns
from ctr.training.config import TrainConfig
from ctr.training.device import resolve_compute_dtype

FLOATS = ("float32", "bfloat16")


def settings(dtype: str, batch: int) -> dict[str, Any]:
    """The configuration whose rows learn as those of the others do, which have one rate for everything."""
    # Rows take the gradient of a batch's sum.
    initial = INITIAL_ACCUMULATOR * batch**2
    rows = {
        **{"learning_rate": RATE, "initial_accumulator": initial},
        **{"linear_learning_rate": RATE, "linear_initial_accumulator": initial},
    }
    return {"compute_dtype": dtype, "optimizer": {"embeddings": rows, **ADAGRAD["optimizer"]}}


def measure(setting: Setting) -> dict[str, Any]:
    """Every arm's step, and the ratios of rates that the targets are about."""
    size, have_torch = setting.size, imports("torch")
    compiled = setting.compile_torch and not setting.quick
    models = {f"ctr {dtype}": make_model(size, settings(dtype, size.batch)) for dtype in FLOATS}
    own = f"ctr {resolve_compute_dtype(TrainConfig())}"
    with open_rivals(size, have_torch, compiled) as rivals:
        turns = {name: model.seconds for name, model in models.items()}
        losses = {name: model.losses for name, model in models.items()}
        processor = {name: model.processor_seconds for name, model in models.items()}
        for rival in rivals:
            losses |= rival.losses
            processor |= rival.processor_seconds
            turns |= {arm: lambda rival=rival, arm=arm: rival.seconds(arm) for arm in rival.arms}
        seconds = take_turns(turns, setting.rounds)
        waiting = sum(rival.waiting_processor_seconds for rival in rivals)
    arms = {
        name: {
            "step_ms": median_ms(own_seconds),
            "processor_ms": median_ms(processor[name][1:]),
            "examples_per_second": size.batch / (median_ms(own_seconds) / 1000),
            "ctr_over_it": ratio(own_seconds, seconds[own]),
            "first_loss": losses[name][0][0],
            "last_loss": sum(losses[name][-1]) / len(losses[name][-1]),
        }
        for name, own_seconds in seconds.items()
    }
    lower = [arm for arm in arms if arm.startswith(("Keras 2 mixed", "Keras 3 mixed", "PyTorch bfloat16"))]
    others = [arm for arm in arms if arm.startswith(("Keras", "PyTorch")) and " float32" in arm]
    fastest = min(others, key=lambda arm: arms[arm]["step_ms"])
    return {
        "arms": arms,
        "own": own,
        "fastest_low_precision": min(lower, key=lambda arm: arms[arm]["step_ms"]),
        "float32_over_fastest": ratio(seconds[fastest], seconds["ctr float32"]),
        "pytorch": _told(have_torch, compiled, arms),
        "rivals_waiting_processor_seconds": waiting,
    }


def imports(module: str) -> bool:
    """Whether this Python has a module that can be imported."""
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True).returncode == 0


def _told(have_torch: bool, compiled: bool, arms: Mapping[str, Any]) -> str:
    if not have_torch:
        return "left out: this Python has none (pip install torch)"
    if compiled and not any(name.endswith("compiled") for name in arms):
        return "measured, without torch.compile, which does not work here (it needs a C++ compiler)"
    return "measured" if compiled else "measured, without torch.compile"


def report(found: dict[str, Any]) -> str:
    """The table."""
    rows = [
        [
            name,
            f"{arm['step_ms']:.1f}",
            f"{arm['processor_ms']:.1f}",
            f"{arm['examples_per_second']:,.0f}",
            show_ratio(arm["ctr_over_it"]),
            f"{arm['first_loss']:.3f}",
            f"{arm['last_loss']:.3f}",
        ]
        for name, arm in found["arms"].items()
    ]
    head = [
        "step",
        "ms",
        "ms of processors",
        "examples/s",
        f"{found['own']} is x as fast (quartiles)",
        "loss of the first batch",
        "of the last turn",
    ]
    return f"{table(head, rows)}\n\nPyTorch: {found['pytorch']}"
