"""How many examples a sampling kept, by the conditions that they met."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass
class Count:
    """Examples that meet a condition: how many there are, how many were kept, and the sum of their weights.

    The sum of the weights estimates the number of examples without bias.
    """

    rows: int = 0
    kept: int = 0
    weight_sum: float = 0.0

    @property
    def kept_fraction(self) -> float | None:
        """Kept examples by examples; None when there are none."""
        return self.kept / self.rows if self.rows else None

    def add(self, mask: np.ndarray, kept: np.ndarray, weight: np.ndarray) -> None:
        """Counts the N examples where ``mask`` holds; all three [N], the weight 0 where not kept."""
        self.rows += int(np.count_nonzero(mask))
        self.kept += int(np.count_nonzero(mask & kept))
        self.weight_sum += float(weight[mask].sum(dtype=np.float64))


class SamplingResult:
    """What a sampling did.

    Attributes:
        name: of the sampling.
        output: the folder that was written: a sidecar's, or a log's.
        rows: of the sampled log.
        partitions: published ones, those of an earlier run among them.
        outside_time_range, faulty: rows that no condition counts; they are dropped. The faulty ones are those
            inside the range that no model can train on (``ctr.data.reader.FAULTS``).
        conditions: the counts by the conditions of ``Decisions``.
        sidecars: those carried along to a smaller log, and the number of their partitions.
    """

    def __init__(self, name: str, output: Path, conditions: Sequence[str], rows: int) -> None:
        self.name, self.output, self.rows = name, output, rows
        self.partitions = self.outside_time_range = self.faulty = 0
        self.conditions = {condition: Count() for condition in conditions}
        self.sidecars: Counter[str] = Counter()

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON takes it."""
        conditions = {
            name: {**vars(count), "kept_fraction": count.kept_fraction}
            for name, count in self.conditions.items()
        }
        content = {**vars(self), "output": str(self.output), "sidecars": dict(self.sidecars)}
        return {**content, "conditions": conditions}

    def as_text(self) -> str:
        """A table for people."""
        lines = [f"{self.output}: {self.rows} rows in, {self.partitions} partitions written"]
        lines.append(f"  {'':<16}{'rows':>12}{'kept':>12}{'kept share':>12}{'weight sum':>16}")
        for name, count in self.conditions.items():
            share = "-" if count.kept_fraction is None else f"{count.kept_fraction:.4f}"
            lines.append(f"  {name:<16}{count.rows:>12}{count.kept:>12}{share:>12}{count.weight_sum:>16.1f}")
        if self.outside_time_range:
            lines.append(f"  dropped: {self.outside_time_range} rows outside the time range")
        if self.faulty:
            lines.append(f"  dropped: {self.faulty} faulty rows")
        lines += [f"  sidecar {name}: {count} partitions copied" for name, count in self.sidecars.items()]
        return "\n".join(lines)
