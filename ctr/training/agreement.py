"""What several workers must have in common before they train together, and what they cannot do."""

import json

from ctr.data.log import log_sha256
from ctr.data.sidecar import SidecarHash
from ctr.io.errors import InputError
from ctr.training.config import TrainConfig
from ctr.training.device import describe_environment
from ctr.training.inputs import Inputs
from ctr.workers.chips import Chips
from ctr.workers.collectives import Workers

# What of an environment changes a bit of what a worker computes; all compute the updates of what all have.
_SAME = ("python", "processor", "bfloat16_units", "compute_dtype", "jit", "intra_op_threads")


def check_possible(config: TrainConfig, workers: Workers, chips: Chips | None = None) -> None:
    """Raises InputError for what a configuration asks for and several workers, or chips, cannot do."""
    if chips is not None:
        _check_chips(config, chips)
    if workers.size == 1:
        return
    if config.jit is True:
        raise InputError(
            "config: jit: true is not possible with several workers, between which XLA exchanges nothing; "
            "allowed: auto, false"
        )
    if config.batch.shapes == "few":
        raise InputError(
            "config: batch.shapes: few is not possible with several workers; allowed: auto, many"
        )
    for name in ("histograms", "gradient_noise"):
        if getattr(config.tensorboard, name):
            raise InputError(
                f"config: tensorboard.{name}: true is not possible with several workers, of which none has all rows"
            )


def _check_chips(config: TrainConfig, chips: Chips) -> None:
    where = f"not possible with --device {chips.device}"
    if chips.device != "tpu" and config.jit is True:
        raise InputError(f"config: jit: true is {where}; allowed: auto, false")
    for name in ("histograms", "gradient_noise"):
        if getattr(config.tensorboard, name):
            raise InputError(f"config: tensorboard.{name}: true is {where}, where no chip has all rows")
    dense, embeddings = config.optimizer.dense, config.optimizer.embeddings
    if dense.rule == "kfac":
        raise InputError(f"config: optimizer.dense.rule: kfac is {where}; allowed: shampoo, adafactor, muon")
    if dense.shampoo.eigenvalue_correction:
        raise InputError(
            f"config: optimizer.dense.shampoo.eigenvalue_correction: true is {where}; allowed: false"
        )
    if embeddings.rule == "one_sided":
        raise InputError(
            f"config: optimizer.embeddings.rule: one_sided is {where}; allowed: adagrad, adafactor"
        )


def agree(inputs: Inputs, workers: Workers) -> None:
    """Checks that all workers have the same configuration, features, logs, versions and processors.

    Raises:
        InputError: some have others than the first one; which ones, and what.
    """
    if workers.size == 1:
        return
    environment = describe_environment(inputs.config, workers.size)
    versions = environment["versions"]
    workers.agree("version of ctr", versions.pop("ctr"))
    workers.agree("version of TensorFlow", versions.pop("tensorflow"))
    workers.agree("configuration", inputs.config.sha256())
    workers.agree("features of the log (schema)", inputs.schema.version)
    for name, log in inputs.row_logs.items():
        workers.agree(f"constraint log {name}" if name else "log", log_sha256(log.manifests))
    for role, (path, name) in inputs.sidecars.items():
        workers.agree(f"sidecar {name} ({role})", SidecarHash(path, name).until())
    for name, version in versions.items():
        workers.agree(f"version of {name}", version)
    for key in _SAME:
        workers.agree(f"environment ({key})", json.dumps(environment[key]))
