"""Weights of exported models by name: reading and writing them, and the differences between two exports of a run.

They are those of updatable models (``ctr.serving.saved_model``), whose metadata names the variables::

    rows/TABLE    float32 [fixed + ids, columns]
    keys/TABLE    where ids grow, int64 [ids + 1]: the keys of the rows behind the fixed ones, rising, and at the end
                  one that no id has (``ctr.training.run.snapshot``)
    all others    dense weights, and the weight of the crosses

Of tables, what differs is stored (``find_changes``); everything else completely. Bytes are compared, so the later
weights are reproduced bit by bit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ctr.io.arrays import hash_arrays, read_arrays
from ctr.io.errors import InputError, one_line
from ctr.io.tensor_bundle import read_bundle
from ctr.io.versions import DELTA_FILE
from ctr.serving.metadata import Chain, check_files, read_metadata

Weights = Mapping[str, np.ndarray]
VARIABLES = "variables"  # key of the metadata that names the variables, in their order in the SavedModel

_TABLE, _KEYS = "rows/", "keys/"
_HALF = "bfloat16"
_PREFIX = Path("variables") / "variables"
# TensorFlow's own record of the objects that hold the variables.
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


@dataclass(frozen=True)
class _Table:
    """A table's fixed rows, and the keys, rising, and rows of its ids that grow, where there are any."""

    fixed: np.ndarray
    keys: np.ndarray
    own: np.ndarray


def _tables(weights: Weights) -> Iterator[tuple[str, _Table]]:
    for name, rows in weights.items():
        if name.startswith(_TABLE):
            keys = weights.get(_keys_name(name), np.zeros(1, np.int64))[:-1]
            fixed = len(rows) - len(keys)
            yield name, _Table(rows[:fixed], keys, rows[fixed:])


def _dense(weights: Weights) -> dict[str, np.ndarray]:
    return {name: values for name, values in weights.items() if not name.startswith((_TABLE, _KEYS))}


def find_changes(before: Weights, after: Weights) -> dict[str, np.ndarray]:
    """Finds the changes with which ``apply_changes`` makes the later weights from the earlier ones.

    For each table T ``rows/T/numbers`` int32 [f] and ``rows/T/fixed`` float32 [f, columns]: the fixed rows that
    differ. Where ids grow, also ``rows/T/keys`` int64 [u] and ``rows/T/own`` float32 [u, columns]: the ids that are
    new or differ; and ``rows/T/removed`` int64 [r]: the keys of those that are gone. Everything else under its own
    name, bfloat16 as uint16. Raises ValueError: the weights differ in more than what a run changes.
    """
    if _form(before) != _form(after):
        raise ValueError("the models have different variables")
    changes = {
        name: values.view(np.uint16) if values.dtype.name == _HALF else values
        for name, values in _dense(after).items()
    }
    earlier = dict(_tables(before))
    for name, new in _tables(after):
        old = earlier[name]
        numbers = np.flatnonzero(_differ(old.fixed, new.fixed))
        changes |= {f"{name}/numbers": numbers.astype(np.int32), f"{name}/fixed": new.fixed[numbers]}
        if _keys_name(name) in after:
            known, places = _find(old.keys, new.keys)
            fresh = ~known
            fresh[known] = _differ(old.own[places[known]], new.own[known])
            changes[f"{name}/keys"] = new.keys[fresh]
            changes[f"{name}/own"] = new.own[fresh]
            changes[f"{name}/removed"] = old.keys[~_find(new.keys, old.keys)[0]]
    return changes


def apply_changes(before: Weights, changes: Weights) -> dict[str, np.ndarray]:
    """Makes the later weights, whose hash the caller compares. Raises KeyError, IndexError, TypeError or ValueError."""
    after = {name: changes[name].view(values.dtype) for name, values in _dense(before).items()}
    for name, old in _tables(before):
        fixed = old.fixed.copy()
        fixed[changes[f"{name}/numbers"]] = changes[f"{name}/fixed"]
        after[name] = fixed
        if (keys_name := _keys_name(name)) in before:
            fresh, removed = changes[f"{name}/keys"], changes[f"{name}/removed"]
            known, places = _find(old.keys, np.concatenate([fresh, removed]))
            kept = np.ones(len(old.keys), np.bool_)
            kept[places[known]] = False
            keys = np.concatenate([old.keys[kept], fresh])
            own = np.concatenate([old.own[kept], changes[f"{name}/own"]])
            # The keys are two sorted runs, which this sort merges in linear time.
            order = np.argsort(keys, kind="stable")
            after[name] = np.concatenate([fixed, own[order]])
            after[keys_name] = np.append(keys[order], before[keys_name][-1:])
    return after


def change_counts(changes: Weights) -> dict[str, dict[str, int]]:
    """Counts, by table, the fixed rows and the ids that changes hold, and the ids that they remove."""
    counted = {"fixed": "numbers", "ids": "keys", "removed": "removed"}
    tables = [name.removesuffix("/numbers") for name in changes if name.endswith("/numbers")]
    counts = {}
    for table in tables:
        parts = {word: f"{table}/{part}" for word, part in counted.items() if f"{table}/{part}" in changes}
        counts[table.removeprefix(_TABLE)] = {word: len(changes[part]) for word, part in parts.items()}
    return counts


def _form(weights: Weights) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Names, types and shapes that stay the same in a run; of tables the shape of their fixed rows."""
    found = {name: (values.dtype.name, values.shape) for name, values in weights.items()}
    for name, table in _tables(weights):
        found[name] = (table.fixed.dtype.name, table.fixed.shape)
    return found | {name: ("int64", ()) for name in weights if name.startswith(_KEYS)}


def _keys_name(table: str) -> str:
    return _KEYS + table.removeprefix(_TABLE)


def _find(keys: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns which of the wanted keys are among ``keys``, which rise: bool [N]; and the places of these."""
    places = np.searchsorted(keys, wanted)
    known = places < len(keys)
    known[known] = keys[places[known]] == wanted[known]
    return known, places


def _differ(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    differ: np.ndarray = (before.view(np.uint32) != after.view(np.uint32)).any(axis=1)
    return differ


def read_weights(chain: Chain) -> Weights:
    """Reads the weights of an updatable model, its deltas applied, in the order of its variables.

    Raises InputError: a file is damaged, the model is not updatable, or the recorded hash differs.
    """
    metadata = read_metadata(chain.full)
    names = metadata.get(VARIABLES)
    if not isinstance(names, list) or len(set(map(str, names))) < len(names):
        raise InputError(f"{chain.full}: does not name its variables, so no delta can change it")
    check_files(chain.full, metadata)
    weights = stored_weights(chain.full, [str(name) for name in names])
    for delta in chain.deltas:
        metadata = read_metadata(delta)
        check_files(delta, metadata)
        try:
            weights = apply_changes(weights, read_arrays(delta / DELTA_FILE))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InputError(f"{delta}: cannot be applied to {chain.full}: {one_line(error)[:300]}") from None
    if hash_arrays(weights) != metadata.get("weights"):
        raise InputError(f"{chain.model}: the weights do not have the recorded SHA-256; export the run again")
    return {str(name): weights[str(name)] for name in names}


def stored_weights(full: Path, names: Sequence[str]) -> Weights:
    """Maps the variables of a full model, named in their order, to memory. Raises InputError: they cannot be read."""
    try:
        stored = read_bundle(full / _PREFIX)
        return {name: stored[_stored_name(number)] for number, name in enumerate(names)}
    except (KeyError, OSError, ValueError) as error:
        raise InputError(f"{full}: cannot be read: {one_line(error)[:300]}") from None


def write_weights(folder: Path, full: Path, names: Sequence[str], weights: Weights) -> None:
    """Writes the variables of a SavedModel, in their order, as TensorFlow does; ``full`` has the same graph."""
    # Reading needs no TensorFlow.
    import tensorflow as tf

    prefix = folder / _PREFIX
    prefix.parent.mkdir(exist_ok=True)
    objects = tf.train.load_checkpoint(str(full / _PREFIX)).get_tensor(OBJECT_GRAPH)
    stored = {_stored_name(number): weights[name] for number, name in enumerate(names)}
    stored[OBJECT_GRAPH] = objects
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(stored),
        shape_and_slices=[""] * len(stored),
        tensors=[tf.constant(values) for values in stored.values()],
    )


def _stored_name(number: int) -> str:
    return f"weights/{number}/.ATTRIBUTES/VARIABLE_VALUE"
