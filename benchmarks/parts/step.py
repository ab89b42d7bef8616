"""Compares the training step alone with the same model in Keras and PyTorch. The limit is the products (``limit``)."""

import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from ctr_model import make_model
from framework_processes import open_frameworks
from parts.setting import Setting
from reference import ADAGRAD, INITIAL_ACCUMULATOR, RATE
from runner import Numbers, ratio, summarize, take_turns

from ctr.training.config import TrainConfig
from ctr.training.device import resolve_compute_dtype

FLOATS = ("float32", "bfloat16")


def settings(dtype: str, batch: int) -> dict[str, Any]:
    """Returns changes with which table rows are trained as in other frameworks, at the rate of dense weights."""
    # Rows take the gradient of a batch's sum.
    initial = INITIAL_ACCUMULATOR * batch**2
    rows = {
        **{"learning_rate": RATE, "initial_accumulator": initial},
        **{"linear_learning_rate": RATE, "linear_initial_accumulator": initial},
    }
    return {"compute_dtype": dtype, "optimizer": {"embeddings": rows, **ADAGRAD["optimizer"]}}


def measure(setting: Setting) -> dict[str, Any]:
    """Compares the steps of all arms, first our own in the processor's best dtype; returns the targets' ratios, too."""
    size, have_torch = setting.size, imports("torch")
    compiled = setting.compile and not setting.quick
    best = resolve_compute_dtype(TrainConfig().compute_dtype)
    models = {
        f"ctr {dtype}": make_model(size, settings(dtype, size.batch))
        for dtype in sorted(FLOATS, key=lambda dtype: dtype != best)
    }
    with open_frameworks(size, have_torch, compiled) as frameworks:
        arms = {name: model.turn for name, model in models.items()}
        losses = {name: model.losses for name, model in models.items()}
        for framework in frameworks:
            losses |= framework.losses
            arms |= {arm: partial(framework.turn, arm) for arm in framework.losses}
        turns = take_turns(arms, setting.rounds)
        waiting = sum(framework.waiting_seconds for framework in frameworks)
    results = summarize(turns)
    for name, row in results.items():
        row["examples_per_second"] = 1000 * size.batch / row["ms"]
        first, last = losses[name][0], losses[name][-1]
        row["first_loss"], row["last_loss"] = first[0], sum(last) / len(last)
    lower = [arm for arm in results if arm.startswith(("Keras 2 mixed", "Keras 3 mixed", "PyTorch bfloat16"))]
    others = [arm for arm in results if arm.startswith(("Keras", "PyTorch")) and " float32" in arm]
    return {
        "arms": results,
        "over_fastest_bfloat16": _over_fastest(turns, results, lower, f"ctr {best}"),
        "over_fastest_float32": _over_fastest(turns, results, others, "ctr float32"),
        "pytorch": _pytorch_note(have_torch, compiled, results),
        "rivals_waiting_processor_seconds": waiting,
    }


def _over_fastest(
    turns: Mapping[str, list[Numbers]], results: Mapping[str, Any], frameworks: list[str], ctr_arm: str
) -> dict[str, Any]:
    """Returns how many times as fast our own step is as the fastest framework's."""
    fastest = min(frameworks, key=lambda arm: results[arm]["ms"])
    times = ([numbers["ms"] for numbers in turns[arm]] for arm in (fastest, ctr_arm))
    return {"fastest": fastest, "times_as_fast": ratio(*times)}


def imports(module: str) -> bool:
    """Returns whether this Python has a module that can be imported."""
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True).returncode == 0


def _pytorch_note(have_torch: bool, compiled: bool, arms: Mapping[str, Any]) -> str:
    if not have_torch:
        return "left out: this Python has none (pip install torch)"
    if compiled and not any(name.endswith("compiled") for name in arms):
        return "measured, without torch.compile, which does not work here (it needs a C++ compiler)"
    return "measured" if compiled else "measured, without torch.compile"
