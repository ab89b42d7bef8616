"""Vocabulary of a run: ids with a row of their own in its newest checkpoint, their use, age, and what was learned."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ctr.data.kept_values import read_all_values
from ctr.data.times import format_time
from ctr.eval import display
from ctr.io.errors import InputError, printable
from ctr.io.words import listed
from ctr.models.rows import TableLayout
from ctr.training.ids.id_map import Occupants, live_ids, restored_maps
from ctr.training.run import checkpoint
from ctr.training.run.directory import read_run_model

Order = Literal["uses", "age", "last_seen", "norm"]

_HEAD = ("feature", "uses", "first seen", "last seen", "norm", "linear", "value")
_LONGEST_VALUE = 80


@dataclass(frozen=True)
class Entry:
    """An id with a row of its own; times are microseconds of event time."""

    feature: str
    fingerprint: str  # 64 bits, as hexadecimal digits
    value: str | None  # the raw value; None where values were not kept
    uses: int  # occurrences since it got the row
    first_seen: int  # when it got the row
    last_seen: int
    norm: float  # of its embedding, of those of all components where these have their own
    linear_weight: float  # the mean of those of the components


@dataclass(frozen=True)
class Vocabulary:
    """The ids of a run, in the order that was asked for."""

    run: str  # the run directory
    examples: int  # position of the checkpoint in the log
    live: dict[str, int]  # by feature how many ids have a row of their own
    capacity: dict[str, int]  # by feature how many may have one
    entries: tuple[Entry, ...]

    def as_text(self) -> str:
        sizes = ", ".join(f"{name} {count:,} of {self.capacity[name]:,}" for name, count in self.live.items())
        lines = [f"{self.run}, checkpoint {self.examples}: ids with a row of their own: {sizes}"]
        cells = [_HEAD, *map(_cells, self.entries)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for feature, *numbers, value in cells:
            aligned = [cell.rjust(width) for cell, width in zip(numbers, widths[1:-1], strict=True)]
            lines.append("  ".join(["", feature.ljust(widths[0]), *aligned, value]))
        unknown = dict.fromkeys(entry.feature for entry in self.entries if entry.value is None)
        if unknown:
            lines.append(
                f"values of {', '.join(unknown)} are not known: name these features under keep_values in the mapping "
                "and ingest the files again, or say with --log where the log with its values is now"
            )
        return "\n".join(lines)


def _cells(entry: Entry) -> tuple[str, ...]:
    value = entry.fingerprint if entry.value is None else printable(" ".join(entry.value.split()))
    return (
        entry.feature,
        f"{entry.uses:,}",
        format_time(entry.first_seen),
        format_time(entry.last_seen),
        f"{entry.norm:.4f}",
        f"{entry.linear_weight:+.4f}",
        value if len(value) <= _LONGEST_VALUE else f"{value[: _LONGEST_VALUE - 3]}...",
    )


def list_vocabulary(
    run_dir: Path,
    feature: str | None = None,
    order: Order = "uses",
    limit: int | None = None,
    log: Path | None = None,
) -> Vocabulary:
    """Lists the ids in a run's newest checkpoint, with values from ``log``, or the log that it was trained on.

    Raises InputError: no run directory, no sound checkpoint, no feature whose ids grow, or not this one.
    """
    config, schema = read_run_model(run_dir)
    if not schema.growing:
        raise InputError(f"{run_dir}: no feature has ids that grow: all of them have buckets or a vocabulary")
    if feature is not None and feature not in schema.growing:
        what = "is no feature of the run" if feature not in schema.by_name else "has a fixed number of ids"
        raise InputError(f"--feature {feature}: {what}; allowed: {listed(schema.growing, feature)}")
    arrays, state = checkpoint.read(run_dir / "checkpoints")
    layouts = config.table_layouts(schema)
    try:
        weights = checkpoint.weights_of(arrays)
        maps = restored_maps(layouts, config.ids, weights)
        found = live_ids(layouts, maps)
        measures = {
            one.name: _measure(weights[f"rows/{layout.name}"], layout, found[one.name])
            for layout in layouts
            for one in layout.growing
        }
    except (KeyError, ValueError, IndexError) as error:
        raise InputError(f"{run_dir}: the checkpoint is of another model than config.yaml: {error}") from None
    names = tuple(name for name in schema.growing if name in found and feature in (None, name))
    where = log if log is not None else state.get("log")
    capacity = {one: counts.capacity for id_map in maps.values() for one, counts in id_map.counters().items()}
    return Vocabulary(
        run=str(run_dir),
        examples=int(state["position"]["examples"]),
        live={name: len(found[name].rows) for name in names},
        capacity={name: capacity[name] for name in names},
        entries=_entries(names, found, measures, order, limit, None if where is None else Path(where)),
    )


def _measure(table: np.ndarray, layout: TableLayout, ids: Occupants) -> tuple[np.ndarray, np.ndarray]:
    rows = table[ids.rows].astype(np.float64).reshape(-1, layout.copies, layout.width + 1)
    norms: np.ndarray = np.sqrt(np.square(rows[:, :, : layout.width]).sum(axis=(1, 2)))
    return norms, rows[:, :, layout.width].mean(axis=1)


def _entries(
    names: tuple[str, ...],
    found: Mapping[str, Occupants],
    measures: Mapping[str, tuple[np.ndarray, np.ndarray]],
    order: Order,
    limit: int | None,
    log: Path | None,
) -> tuple[Entry, ...]:
    features = np.repeat(np.arange(len(names)), [len(found[name].rows) for name in names])
    prints, *columns = (
        np.concatenate([getattr(found[name], key) for name in names])
        for key in ("fingerprints", "uses", "first_seen", "last_seen")
    )
    columns += [np.concatenate([measures[name][place] for name in names]) for place in range(2)]
    uses, first_seen, last_seen, norms, _ = columns
    keys = {"uses": -uses, "age": first_seen, "last_seen": -last_seen, "norm": -norms}
    first = np.lexsort((prints, features, keys[order]))[:limit]
    wanted: dict[str, list[int]] = {name: [] for name in names}
    for one in first:
        wanted[names[features[one]]].append(int(prints[one]))
    values: dict[str, dict[int, str]] = {}
    if log is not None and (log / "schema.json").exists():
        values = read_all_values(log, wanted)

    def entry(one: int) -> Entry:
        name, fingerprint = names[features[one]], int(prints[one])
        value = values.get(name, {}).get(fingerprint)
        return Entry(
            name, display.fingerprint(fingerprint), value, *(column[one].item() for column in columns)
        )

    return tuple(entry(int(one)) for one in first)


def vocabulary_content(vocabulary: Vocabulary) -> dict[str, Any]:
    """Converts all of it to plain data, for JSON."""
    return {
        "run": vocabulary.run,
        "examples": vocabulary.examples,
        "features": {
            name: {"live": count, "capacity": vocabulary.capacity[name]}
            for name, count in vocabulary.live.items()
        },
        "ids": [vars(entry) for entry in vocabulary.entries],
    }
