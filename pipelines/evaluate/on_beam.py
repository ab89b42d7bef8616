"""Computes the states of `keyed_states.py` on a Beam runner, whose workers share a folder with this process.

Workers read row groups; elements are NumPy arrays of many rows, never single rows.
"""

# Beam has types for its classes, but only for few of its functions.
# mypy: allow-untyped-calls

import contextlib
import io
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystems import FileSystems

from ctr.io.errors import InputError
from ctr.pipelines.beam import read_beam_options, run_pipeline
from ctr.pipelines.evaluate.keyed_states import KINDS, States, add_key, new_states
from ctr.pipelines.evaluate.rows import RowGroup, read_row_group, split_by_query


class MeasureFn(beam.CombineFn):
    """Combines the pieces of keys into states (`add_key`); keys may come, and states may be merged, in any order."""

    def __init__(self, sides: Sequence[str]) -> None:
        super().__init__()
        self._sides = sides

    def create_accumulator(self) -> States:
        return new_states(self._sides)

    def add_input(self, accumulator: States, element: tuple[int, Iterable[Any]]) -> States:
        add_key(accumulator, element[1])
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[States]) -> States:
        merged = self.create_accumulator()
        for states in accumulators:
            for name, state in merged.items():
                state.merge(states[name])
        return merged

    def extract_output(self, accumulator: States) -> States:
        return accumulator


def _split(group: RowGroup, side: str, keys: int) -> Iterator[Any]:
    """Splits a row group into (key, (side, piece))."""
    for source, rows in read_row_group(group):
        for key, part in split_by_query(rows, keys):
            yield key, (side, (source, part))


def measure_on_beam(
    sides: Mapping[str, Sequence[RowGroup]], beam_options: Sequence[str], keys: int
) -> States:
    """Computes the states of the sides ``a``, or ``a`` and ``b``, on Beam, with the queries hashed to ``keys`` keys."""
    options = read_beam_options(beam_options)
    with contextlib.ExitStack() as stack:
        # Runners on other machines leave the result where both can reach it.
        folder = options.get_all_options().get("temp_location") or stack.enter_context(
            tempfile.TemporaryDirectory(prefix="ctr-evaluate-")
        )
        path = FileSystems.join(folder, f"ctr-evaluate-{secrets.token_hex(8)}.npz")

        def build(pipeline: beam.Pipeline) -> None:
            pieces = [
                pipeline
                | f"Row groups {side}" >> beam.Create(list(groups))
                | f"Spread {side}" >> beam.Reshuffle()
                | f"Split {side}" >> beam.FlatMap(_split, side, keys)
                for side, groups in sides.items()
            ]
            states = (
                pieces
                | "Pieces" >> beam.Flatten()
                | "Meet" >> beam.GroupByKey()
                | "Measure" >> beam.CombineGlobally(MeasureFn(list(sides)))
            )
            _ = states | "Write" >> beam.Map(_write_states, path)

        run_pipeline(options, build)
        return _read_states(path)


def _write_states(states: States, path: str) -> None:
    arrays = {
        f"{name}/{key}": array for name, state in states.items() for key, array in state.to_arrays().items()
    }
    # Built in memory first: an archive needs to seek, which not every file system supports.
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    with FileSystems.create(path) as file:
        file.write(content.getvalue())


def _read_states(path: str) -> States:
    if not FileSystems.exists(path):
        raise InputError(
            f"--beam-options: the runner's workers left no result at {path}; --temp_location must be a folder that "
            "they and this process share"
        )
    with FileSystems.open(path) as file:
        content = io.BytesIO(file.read())
    FileSystems.delete([path])
    by_name: dict[str, dict[str, Any]] = {}
    with np.load(content, allow_pickle=False) as arrays:
        for key in arrays.files:
            name, _, rest = key.partition("/")
            by_name.setdefault(name, {})[rest] = arrays[key]
    return {name: KINDS[name].from_arrays(of_state) for name, of_state in by_name.items()}
