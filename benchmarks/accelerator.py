"""Writes a folder with learning steps that any machine with jax runs, on a GPU, a TPU or processors: no TensorFlow.

    make accelerator                                  writes runs/accelerator, and checks it here, on processors
    python runs/accelerator/run.py                    on the other machine, after the folder was copied there
    .venv-tpu/bin/python benchmarks/accelerator.py [--small] [--out FOLDER] [--steps 100]

The folder says itself what agrees with TensorFlow's steps, and how fast it is (``accelerators/runner.py``).
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from accelerators.folder import write_folder
from accelerators.kinds import SMALL
from reference import REFERENCE, TINY

BATCHES = (4096, 16384, 65536, 262144)
MAX_BYTES = 64 * 2**20


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the folder of steps for accelerators.")
    parser.add_argument("--small", action="store_true", help="a tiny model")
    parser.add_argument("--out", type=Path, default=Path("runs/accelerator"))
    parser.add_argument("--steps", type=int, default=100, help="of the check")
    arguments = parser.parse_args(argv)
    # Steps are counted in int64.
    jax.config.update("jax_enable_x64", True)
    if arguments.small:
        write_folder(arguments.out, TINY, SMALL, (TINY.batch,), arguments.steps)
    else:
        write_folder(arguments.out, REFERENCE, {}, BATCHES, arguments.steps)
    size = sum(file.stat().st_size for file in arguments.out.iterdir())
    if size > MAX_BYTES:
        raise SystemExit(
            f"error: {arguments.out} has {size / 2**20:.0f} MiB; allowed: {MAX_BYTES / 2**20:.0f}"
        )
    print(f"{arguments.out}: {size / 2**20:.1f} MiB; {arguments.out}/run.py runs it with jax and NumPy")


if __name__ == "__main__":
    main()
