"""Weights of exported models by name: reading and writing them, and applying deltas.

This is possible for updatable models (``ctr.serving.saved_model``), whose metadata names the variables.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ctr.io.arrays import read_arrays
from ctr.io.errors import InputError, one_line
from ctr.io.tensor_bundle import read_bundle
from ctr.io.versions import DELTA_FILE
from ctr.serving.delta import Weights, apply_changes, hash_weights
from ctr.serving.metadata import Chain, check_files, read_metadata

VARIABLES = "variables"
"""Key of the metadata that names the variables, in their order in the SavedModel."""

_PREFIX = Path("variables") / "variables"
# TensorFlow's own record of the objects that hold the variables.
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def variable_names(model: Path, metadata: dict[str, Any]) -> list[str]:
    """Returns the names of the variables of a model. Raises InputError where it is not updatable."""
    names = metadata.get(VARIABLES)
    if not isinstance(names, list) or len(set(map(str, names))) < len(names):
        raise InputError(f"{model}: does not name its variables, so no delta can change it")
    return [str(name) for name in names]


def read_weights(chain: Chain) -> Weights:
    """Reads the weights of an updatable model, its deltas applied. Raises InputError: a file is damaged."""
    metadata = read_metadata(chain.full)
    names = variable_names(chain.full, metadata)
    check_files(chain.full, metadata)
    return apply_deltas(chain, stored_weights(chain.full, names))


def stored_weights(full: Path, names: Sequence[str]) -> Weights:
    """Maps the variables of a full model, named in their order, to memory. Raises InputError: they cannot be read."""
    try:
        stored = read_bundle(full / _PREFIX)
        return {name: stored[_stored_name(number)] for number, name in enumerate(names)}
    except (KeyError, OSError, ValueError) as error:
        raise InputError(f"{full}: cannot be read: {one_line(error)[:300]}") from None


def apply_deltas(chain: Chain, weights: Weights) -> Weights:
    """Applies a model's deltas to the weights of its full one. Raises InputError where the recorded hash differs."""
    for delta in chain.deltas:
        metadata = read_metadata(delta)
        check_files(delta, metadata)
        try:
            weights = apply_changes(weights, read_arrays(delta / DELTA_FILE))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InputError(f"{delta}: cannot be applied to {chain.full}: {one_line(error)[:300]}") from None
    if hash_weights(weights) != read_metadata(chain.model).get("weights"):
        raise InputError(f"{chain.model}: the weights do not have the recorded SHA-256; export the run again")
    return weights


def write_weights(folder: Path, full: Path, names: Sequence[str], weights: Weights) -> None:
    """Writes the variables of a SavedModel, in their order, as TensorFlow does; ``full`` has the same graph."""
    # Reading needs no TensorFlow.
    import tensorflow as tf

    prefix = folder / _PREFIX
    prefix.parent.mkdir(exist_ok=True)
    objects = tf.train.load_checkpoint(str(full / _PREFIX)).get_tensor(_OBJECT_GRAPH)
    stored = {_stored_name(number): weights[name] for number, name in enumerate(names)}
    stored[_OBJECT_GRAPH] = objects
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(stored),
        shape_and_slices=[""] * len(stored),
        tensors=[tf.constant(values) for values in stored.values()],
    )


def _stored_name(number: int) -> str:
    return f"weights/{number}/.ATTRIBUTES/VARIABLE_VALUE"
