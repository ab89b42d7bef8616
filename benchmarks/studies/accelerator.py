"""Writes a folder of training steps that run on any machine with jax, on a GPU, a TPU or a CPU, without TensorFlow.

    make accelerator                                  writes runs/accelerator, and checks it on this machine's CPU
    python runs/accelerator/run.py                    on the other machine, after copying the folder there
    .venv-tpu/bin/python benchmarks/study.py accelerator [--small] [--out FOLDER] [--steps 100]

The folder's ``run.py`` compares its steps with TensorFlow's and measures their speed (``accelerators/run.py``).
"""

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from accelerators.folder import write_folder
from accelerators.kinds import SMALL
from reference import REFERENCE, TINY
from runner import main

BATCHES = (4096, 16384, 65536, 262144)
MAX_BYTES = 64 * 2**20


def measure(small: bool = False, out: Path = Path("runs/accelerator"), steps: int = 100) -> dict[str, Any]:
    """Writes the folder, with ``small`` of a tiny model, for a check of ``steps`` steps; its size is limited."""
    # Steps are counted in int64.
    jax.config.update("jax_enable_x64", True)
    if small:
        write_folder(out, TINY, SMALL, (TINY.batch,), steps)
    else:
        write_folder(out, REFERENCE, {}, BATCHES, steps)
    size = sum(file.stat().st_size for file in out.iterdir())
    if size > MAX_BYTES:
        raise SystemExit(f"error: {out} has {size / 2**20:.0f} MiB; allowed: {MAX_BYTES / 2**20:.0f}")
    return {"folder": str(out), "mib": size / 2**20, "run it with jax and NumPy by": f"python {out}/run.py"}


if __name__ == "__main__":
    main(measure, {"small": True, "steps": 10})
