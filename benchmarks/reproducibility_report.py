"""PD between the runs of an arm, and its metrics against the base's, as tables.

All intervals are 95%, by the jackknife over query buckets: they speak of the queries. What the seeds add is told by
the range over pairs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from ctr.eval.intervals import Estimate, difference, mean, quotient
from ctr.eval.logistic import sigmoid
from ctr.eval.prediction_difference import PredictionDifference
from ctr.eval.progressive import ProgressiveMetrics
from ctr.eval.run_files import prediction_parts, read_predictions, read_run
from ctr.files import write_atomic

CONDITIONS = {
    "varied": "Embeddings seeded like the rest",
    "fixed": "The same fresh embeddings in all runs",
}
PARTS = {"whole": "whole pass", "half": "last half"}
METRICS = ("per_query_auc", "auc", "logloss")
HALF = "half.npz"
"""In a run directory: the states of the metrics over the last half. A run that has it is finished."""

FACTORY_FLOOR = {
    "relu": "17%",
    "smelu ": "< 10%",
    "ensemble s": "12%",
    "anti-distillation": "10%",
}
"""FF section 5, by how an arm's name begins."""
GOAL = 0.6
"""Of the base's PD, for SmeLU."""


@dataclass(frozen=True)
class Group:
    """The runs of an arm under a condition: ``runs`` are run directories by seed."""

    arm: str
    condition: str
    runs: Mapping[int, Path]


@dataclass(frozen=True)
class Measured:
    """What the finished runs of a group say, by part of the pass.

    Attributes:
        arm, condition: as in ``Group``.
        pairs: PD of each pair of seeds.
        metrics: of each seed, by name.
        parameters: of the dense part, and of the embeddings.
    """

    arm: str
    condition: str
    pairs: Mapping[str, Mapping[tuple[int, int], Estimate]]
    metrics: Mapping[str, Mapping[int, Mapping[str, Estimate]]]
    parameters: tuple[int, int]

    def pd(self, part: str) -> Estimate | None:
        """The mean over pairs; None with a single run."""
        found = list(self.pairs[part].values())
        return mean(found) if found else None

    def metric(self, part: str, name: str) -> Estimate:
        """The mean over seeds."""
        return mean([of_seed[name] for of_seed in self.metrics[part].values()])

    def against(self, base: "Measured", part: str, name: str) -> Estimate | None:
        """The mean over the seeds of both of what this one has more of a metric; None without common seeds."""
        ours, theirs = self.metrics[part], base.metrics[part]
        common = [seed for seed in ours if seed in theirs]
        found = [difference(theirs[seed][name], ours[seed][name]) for seed in common]
        return mean(found) if found else None


def _read(folder: Path, columns: Sequence[str]) -> dict[str, npt.NDArray[np.generic]]:
    parts = [read_predictions(path, columns) for path in prediction_parts(folder)]
    return {name: np.concatenate([part[name].to_numpy() for part in parts]) for name in columns}


def _half(query_id: npt.NDArray[np.int64]) -> int:
    """The row with which the first query of the last half begins; rows of a query stand together."""
    begins = np.flatnonzero(np.diff(query_id, prepend=query_id[0] - 1))
    after = begins[begins >= len(query_id) // 2]
    return int(after[0]) if len(after) else len(query_id)


def write_half(folder: Path) -> None:
    """Measures the last half of a run from its predictions."""
    columns = _read(folder, ["query_id", "label", "metric_weight", "logit"])
    begin = _half(columns["query_id"])
    label, logit, weight, query = (
        columns[name][begin:] for name in ("label", "logit", "metric_weight", "query_id")
    )
    metrics = ProgressiveMetrics()
    metrics.update(label, logit, weight, query)
    write_atomic(folder / HALF, lambda file: np.savez_compressed(file, **metrics.to_arrays()))


def _metrics(folder: Path, part: str) -> dict[str, Estimate]:
    metrics = read_run(folder).metrics
    if part == "half":
        with np.load(folder / HALF) as arrays:
            metrics = ProgressiveMetrics.from_arrays(dict(arrays))
    estimates = metrics.estimates()
    return {name: estimates[name] for name in METRICS}


def measure(group: Group, done: Collection[Path]) -> Measured | None:
    """Everything that the finished runs of a group say; None without any.

    Args:
        group: the runs.
        done: the directories of all that are finished.

    Raises:
        SystemExit: the runs did not score the same examples.
    """
    runs = {seed: folder for seed, folder in group.runs.items() if folder in done}
    if not runs:
        return None
    pairs: dict[str, dict[tuple[int, int], Estimate]] = {part: {} for part in PARTS}
    if len(runs) > 1:
        tables = {seed: _read(folder, ["example_id", "query_id", "logit"]) for seed, folder in runs.items()}
        first = next(iter(tables.values()))
        for seed, table in tables.items():
            if not np.array_equal(table["example_id"], first["example_id"]):
                raise SystemExit(f"{runs[seed]}: its examples are not those of the arm's other runs")
        query = first["query_id"]
        begins = {"whole": 0, "half": _half(query)}
        predicted = {seed: sigmoid(table["logit"].astype(np.float64)) for seed, table in tables.items()}
        for one, other in combinations(sorted(runs), 2):
            for part, begin in begins.items():
                state = PredictionDifference()
                state.update(predicted[one][begin:], predicted[other][begin:], query[begin:])
                pairs[part][one, other] = state.estimate()
    summary = read_run(next(iter(runs.values()))).summary
    return Measured(
        arm=group.arm,
        condition=group.condition,
        pairs=pairs,
        metrics={part: {seed: _metrics(folder, part) for seed, folder in runs.items()} for part in PARTS},
        parameters=(summary["parameters_dense"], summary["parameters_embedding"]),
    )


def write_report(
    groups: Sequence[Group],
    done: Collection[Path],
    base: str,
    steps: Mapping[str, Mapping[str, float]],
    path: Path,
) -> tuple[str, list[Measured]]:
    """The tables of a log as Markdown, and what they were made from; writes them as CSV too.

    Args:
        groups: all runs of the log.
        done: the directories of those that are finished.
        base: the arm that the others are compared with.
        steps: of arms that were timed, as ``step_times.by_turns`` tells it.
        path: of the CSV files, but for ``.csv`` and ``-pairs.csv``.
    """
    measured = [found for group in groups if (found := measure(group, done)) is not None]
    _pair_rows(measured).to_csv(path.with_name(f"{path.name}-pairs.csv"), index=False)
    bases = {one.condition: one for one in measured if one.arm == base}
    rows = [
        _numbers(one, bases.get(one.condition), part, steps.get(one.arm))
        for one in measured
        for part in PARTS
    ]
    pd.DataFrame(rows).to_csv(path.with_name(f"{path.name}.csv"), index=False)
    lines = []
    for condition, title in CONDITIONS.items():
        members = [one for one in measured if one.condition == condition]
        if members:
            lines += [f"### {title}", "", *_table(members, bases.get(condition), steps), ""]
            if condition in bases:
                lines += [*verdicts(members, bases[condition]), ""]
    return "\n".join(lines).rstrip(), measured


def _numbers(
    one: Measured, base: Measured | None, part: str, steps: Mapping[str, float] | None
) -> dict[str, object]:
    """A row of the CSV file of arms."""
    row: dict[str, object] = {
        "arm": one.arm,
        "condition": one.condition,
        "part": part,
        "seeds": len(one.metrics[part]),
    }
    found, theirs = one.pd(part), None if base is None else base.pd(part)
    if found is not None:
        values = [float(pair.point) for pair in one.pairs[part].values()]
        row |= {**_ends("pd", found), "pd_lowest_pair": min(values), "pd_highest_pair": max(values)}
        if theirs is not None and base is not one:
            row |= _ends("pd_of_base", quotient(found, theirs))
    for name in METRICS:
        row |= _ends(name, one.metric(part, name))
        change = None if base is None or base is one else one.against(base, part, name)
        if change is not None:
            row |= _ends(f"{name}_change", change)
    dense, embedding = one.parameters
    timed = {} if steps is None else dict(steps)
    return row | timed | {"parameters_dense": dense, "parameters_embedding": embedding}


def _ends(name: str, estimate: Estimate) -> dict[str, float]:
    low, high = estimate.interval()
    return {name: float(estimate.point), f"{name}_low": float(low), f"{name}_high": float(high)}


def _pair_rows(measured: Sequence[Measured]) -> pd.DataFrame:
    """One row for each pair of seeds."""
    rows = [
        {"arm": one.arm, "condition": one.condition, "part": part, "seed": seed, "other_seed": other}
        | _ends("pd", estimate)
        for one in measured
        for part, pairs in one.pairs.items()
        for (seed, other), estimate in pairs.items()
    ]
    columns = ["arm", "condition", "part", "seed", "other_seed", "pd", "pd_low", "pd_high"]
    return pd.DataFrame(rows, columns=columns)


_HEAD = (
    "model",
    "PD, last half [95%] (pairs)",
    "of ReLU's [95%]",
    "PD, whole pass",
    "FF",
    "PerQueryAUC [95% of the difference]",
    "AUC",
    "logloss [95% of the difference]",
    "ms a step (of ReLU's)",
)


def _table(
    members: Sequence[Measured], base: Measured | None, steps: Mapping[str, Mapping[str, float]]
) -> list[str]:
    lines = ["| " + " | ".join(_HEAD) + " |", "|" + "---|" * len(_HEAD)]
    for one in members:
        half, whole = one.pd("half"), one.pd("whole")
        theirs = None if base is None or base is one else base.pd("half")
        cells = [one.arm]
        if half is None or whole is None:
            cells += ["", "", ""]
        else:
            values = [100 * float(pair.point) for pair in one.pairs["half"].values()]
            low, high = (100 * float(end) for end in half.interval())
            cells.append(f"{100 * half.point:.2f}% [{low:.2f}, {high:.2f}] ({_span(values)})")
            cells.append("" if theirs is None else _bracketed(quotient(half, theirs), 3))
            cells.append(f"{100 * whole.point:.2f}%")
        cells.append(next((told for start, told in FACTORY_FLOOR.items() if one.arm.startswith(start)), ""))
        for name in METRICS:
            value = one.metric("whole", name)
            change = None if base is None or base is one else one.against(base, "whole", name)
            text = f"{value.point:.5f}"
            if change is not None:
                text += f" ({change.point:+.5f}"
                if name != "auc":
                    low, high = change.interval()
                    text += f" [{low:+.5f}, {high:+.5f}]"
                text += ")"
            cells.append(text)
        timed = steps.get(one.arm)
        cells.append("" if timed is None else f"{timed['step_ms']:.1f} (× {timed['ratio']:.2f})")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _span(percent: Sequence[float]) -> str:
    return f"{min(percent):.2f} to {max(percent):.2f}" if len(percent) > 1 else "one"


def _bracketed(estimate: Estimate, decimals: int) -> str:
    low, high = estimate.interval()
    return f"{estimate.point:.{decimals}f} [{low:.{decimals}f}, {high:.{decimals}f}]"


def verdicts(members: Sequence[Measured], base: Measured) -> list[str]:
    """How near SmeLU comes to the goal, over each part of the pass."""
    lines = []
    for part, title in PARTS.items():
        theirs = base.pd(part)
        tried = [one for one in members if one.arm.startswith("smelu ") and one.pd(part) is not None]
        if theirs is None or not tried:
            continue
        low, high = (float(end) for end in base.metric(part, "per_query_auc").interval())
        told = []
        for one in tried:
            found = one.pd(part)
            assert found is not None
            accuracy = float(one.metric(part, "per_query_auc").point)
            place = "below it" if accuracy < low else "above it" if accuracy > high else "inside"
            told.append((accuracy < low, float(found.point / theirs.point), one, found, accuracy, place))
        below, share, one, found, accuracy, place = min(told, key=lambda entry: entry[:2])
        reached = "reached" if share <= GOAL and not below else "not reached"
        lines.append(
            f"- {title}: {GOAL:g} of ReLU's PD at a PerQueryAUC in its interval [{low:.5f}, {high:.5f}] is {reached}; "
            f"nearest is {one.arm} with {_bracketed(quotient(found, theirs), 3)} and {accuracy:.5f}, {place}."
        )
    return lines
