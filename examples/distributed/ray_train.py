"""Runs ``ctr train`` on a Ray cluster, with one worker on each of several nodes.

    pip install 'ray[train]'
    python ray_train.py 4 logs/mind --config mind.yaml --out runs/mind

The log and the run directory are on a file system that all nodes share, and are given by their full paths. `ctr` is
installed on all nodes. Ray sets TF_CONFIG for each worker; when one is lost, it starts all of them again, and they
resume.
"""

import os
import subprocess
import sys

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer

PROCESSORS = 8
# Bad input, and a wrong command line, would be the same the next time.
FINAL = (0, 1, 2)


def work(config: dict) -> int:
    """Runs one worker to its end; Ray calls it on each node."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"), f"{PROCESSORS}")
    done = subprocess.run(config["command"], env={**os.environ, **threads})
    if done.returncode not in FINAL:
        raise RuntimeError(f"ctr train ended with status {done.returncode}")
    return done.returncode


def main() -> int:
    count, *arguments = sys.argv[1:]
    trainer = TensorflowTrainer(
        work,
        train_loop_config={"command": ["ctr", "train", *arguments]},
        scaling_config=ScalingConfig(
            num_workers=int(count),
            resources_per_worker={"CPU": PROCESSORS},
            placement_strategy="SPREAD",
        ),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=3)),
    )
    return trainer.fit().return_value


if __name__ == "__main__":
    sys.exit(main())
