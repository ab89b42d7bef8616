"""The tables of the runs on simulated logs, as Markdown."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from convergence_campaign import Confirmation, Results
from convergence_curves import BINS, mean_ratio, relative_excess, smooth_levels, steps_ratio
from convergence_settings import BASELINES, OPTIMIZERS, Plan
from convergence_store import Record, Store

from ctr.eval.intervals import Estimate

FloatArray = npt.NDArray[np.float64]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def simulated_report(results: Results, plan: Plan, store: Store) -> str:
    """All tables of what is there: results first, grids last."""
    world = ", ".join(f"{key} {value}" for key, value in plan.world.items())
    lines = [
        "# Convergence on simulated logs",
        "",
        f"World: {world}. Sweep on {sorted(set(plan.sweep_examples.values()))} examples, confirmation on "
        f"{plan.confirm_examples} of another world, seeds {list(plan.seeds)}. Excess: KL(truth || prediction), "
        "nats x 1000.",
    ]
    confirmed = {batch: found for batch, found in sorted(results.confirmations.items()) if found}
    linear = results.logistic_regression
    if linear is not None:
        lines += [
            "",
            f"A logistic regression on the long log: whole pass {linear['excess']:.3f}, last half "
            f"{linear['excess_half']:.3f}, last tenth {linear['excess_tenth']:.3f}.",
        ]
    lines += ["", "## Tuned runs on the long log", "", *_tuned(confirmed)]
    lines += ["", "## Steps to the baseline's final excess", ""]
    lines += [
        "Ratio of steps (below 1: the candidate needs fewer), geometric mean over seeds; 95% interval over "
        "queries alone, and the single seeds, whose spread is often the larger one. Time: the ratio of steps "
        "times the ratio of milliseconds per step.",
        "",
        *_ratios(confirmed, plan, store),
    ]
    lines += ["", "## Final excess relative to the baseline", "", *_relative(confirmed, store)]
    if any(results.ablations.values()):
        lines += ["", "## Ablations of Shampoo + Nesterov, short log, other seed", ""]
        for batch, found in results.ablations.items():
            lines += [f"Batch {batch}:", "", *_ablations(found, store), ""]
    lines += ["", "## Rates on the long log, first seed", "", *_tried_rates(confirmed)]
    lines += ["", "## Grids of the sweep", ""]
    for batch, sweeps in sorted(results.sweeps.items()):
        for name, sweep in sweeps.items():
            state = "settled" if sweep.settled else "NOT settled"
            lines += [f"Batch {batch}, {OPTIMIZERS[name].title}: {len(sweep.tries)} tries, {state}", ""]
            tries = sorted(sweep.tries.values(), key=lambda record: record["excess_half"])
            head = ["rate", "embedding", "accumulator", "last half", "whole pass", "seconds"]
            lines += [*table(head, [_grid_row(record) for record in tries]), ""]
    return "\n".join(lines)


def _grid_row(record: Record) -> list[str]:
    return [
        *(f"{record[key]:g}" for key in ("rate", "embedding", "accumulator")),
        f"{record['excess_half']:.3f}",
        f"{record['excess']:.3f}",
        f"{record['seconds']:.1f}",
    ]


def _spread(records: Sequence[Record], key: str, decimals: int = 3) -> str:
    values = [record[key] for record in records]
    return f"{np.mean(values):.{decimals}f} ± {np.ptp(values) / 2:.{decimals}f}"


def _tuned(confirmed: dict[int, dict[str, Confirmation]]) -> list[str]:
    head = ["batch", "optimizer", "rate", "embedding", "accumulator", "seeds", "whole pass", "last half"]
    head += ["last tenth", "steps", "ms/step", "seconds"]
    rows = []
    for batch, found in confirmed.items():
        for name, confirmation in found.items():
            runs = list(confirmation.runs.values())
            if not runs:
                continue
            rows.append(
                [
                    str(batch),
                    OPTIMIZERS[name].title,
                    *(f"{runs[0][key]:g}" for key in ("rate", "embedding", "accumulator")),
                    str(len(runs)),
                    *(_spread(runs, key) for key in ("excess", "excess_half", "excess_tenth")),
                    str(runs[0]["steps"]),
                    _spread(runs, "ms_per_step", 1),
                    _spread(runs, "seconds", 0),
                ]
            )
    note = "Mean and half the range over the seeds. Milliseconds per step are means over the pass, roots included."
    return [*table(head, rows), "", note]


def _cell(estimate: Estimate, decimals: int = 3) -> str:
    low, high = estimate.interval()
    return f"{estimate.point:.{decimals}f} [{low:.{decimals}f}, {high:.{decimals}f}]"


def _pairs(
    confirmed: dict[int, dict[str, Confirmation]],
    cells: Callable[[int, Confirmation, Confirmation, list[int]], list[str]],
) -> list[list[str]]:
    """A row for each baseline and candidate that have seeds in common."""
    rows = []
    for baseline in BASELINES:
        for batch, found in confirmed.items():
            for name, candidate in found.items():
                if baseline not in found or name in BASELINES[: BASELINES.index(baseline) + 1]:
                    continue
                seeds = sorted(set(candidate.runs) & set(found[baseline].runs))
                if seeds:
                    titles = [OPTIMIZERS[baseline].title, str(batch), OPTIMIZERS[name].title]
                    rows.append([*titles, *cells(batch, found[baseline], candidate, seeds)])
    return rows


def _ratios(confirmed: dict[int, dict[str, Confirmation]], plan: Plan, store: Store) -> list[str]:
    levels: dict[str, FloatArray] = {}
    for found in confirmed.values():
        records = {record["key"]: record for one in found.values() for record in one.runs.values()}
        if records:
            counts, control = store.cells(next(iter(records.values()))["log"])
            curves = np.stack([store.curve(key) for key in records])
            levels |= dict(zip(records, smooth_levels(curves, counts, control), strict=True))

    def cells(batch: int, baseline: Confirmation, candidate: Confirmation, seeds: list[int]) -> list[str]:
        ratios = [
            steps_ratio(levels[baseline.runs[seed]["key"]], levels[candidate.runs[seed]["key"]])
            for seed in seeds
        ]
        slower = np.mean([candidate.runs[seed]["ms_per_step"] for seed in seeds])
        slower /= np.mean([baseline.runs[seed]["ms_per_step"] for seed in seeds])
        estimate = mean_ratio(ratios)
        singles = ", ".join(f"{ratio[0]:.3f}" for ratio in ratios)
        return [_cell(estimate), singles, f"{slower:.2f}", f"{estimate.point * slower:.2f}"]

    head = ["against", "batch", "optimizer", "steps", "by seed", "ms/step", "time"]
    return table(head, _pairs(confirmed, cells))


def _relative(confirmed: dict[int, dict[str, Confirmation]], store: Store) -> list[str]:
    def cells(batch: int, baseline: Confirmation, candidate: Confirmation, seeds: list[int]) -> list[str]:
        curves = [
            (store.curve(baseline.runs[seed]["key"]), store.curve(candidate.runs[seed]["key"]))
            for seed in seeds
        ]
        parts = [
            relative_excess([theirs[begin:] for theirs, _ in curves], [ours[begin:] for _, ours in curves])
            for begin in (0, BINS // 2, BINS * 9 // 10)
        ]
        return [_cell(part, 4) for part in parts]

    head = ["against", "batch", "optimizer", "whole pass", "last half", "last tenth"]
    return table(head, _pairs(confirmed, cells))


def _ablations(found: dict[str, Record], store: Store) -> list[str]:
    rows = []
    base = found.get("as tuned")
    for title, record in found.items():
        relative = ""
        if base is not None:
            theirs, ours = store.curve(base["key"]), store.curve(record["key"])
            relative = _cell(relative_excess([theirs[BINS // 2 :]], [ours[BINS // 2 :]]), 4)
        cells = [f"{record['rate']:g}", f"{record['excess']:.3f}", f"{record['excess_half']:.3f}"]
        rows.append([title, *cells, relative, f"{record['ms_per_step']:.1f}"])
    return table(["change", "rate", "whole pass", "last half", "last half, relative", "ms/step"], rows)


def _tried_rates(confirmed: dict[int, dict[str, Confirmation]]) -> list[str]:
    rows = []
    for batch, found in confirmed.items():
        for name, confirmation in found.items():
            for (rate, embedding), record in sorted(confirmation.tried.items()):
                factors = [f"x {rate:g}", f"x {embedding:g}"]
                row = [str(batch), OPTIMIZERS[name].title, *factors, *_grid_row(record)]
                rows.append(row)
    head = ["batch", "optimizer", "of rate", "of embedding", "rate", "embedding", "accumulator"]
    return table([*head, "last half", "whole pass", "seconds"], rows)
