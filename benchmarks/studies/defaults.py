"""Compares `ctr train LOG` without a configuration with Vowpal Wabbit and logistic regression on many logs.

    python benchmarks/study.py defaults --out runs/defaults [--data FOLDER] [--only hotels mind] [--systems ctr vw_best]

The logs are twenty simulated ones of very different shape, and real ones in FOLDER, by default the environment variable
CTR_DATA: half are for choosing defaults, half for reporting their results. Each is ingested without a number of
buckets, and every system makes one pass over it, scoring each query before it learns from its rows. Repeating the
command continues after the last finished pass; use another folder for other code. Vowpal Wabbit is only required for
its own systems: ``pip install 'clicktrain[benchmark]'``.

Cells: AUC (PerQueryAUC) / logloss / predicted over actual clicks with its 95% interval; of several settings the best
AUC, and the best logloss with its clicks and its setting. Verdicts: ctr minus the best of the rival by that metric, ±
half of the interval paired by query bucket; `within interval`: behind, but not beyond chance. Clicks right: within 3%,
or the interval contains 1.
"""

import math
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from many_logs.logs import SOURCES, Log, absent, obtain_log
from many_logs.systems import SYSTEMS, Result, results
from runner import check_names, main

from ctr.eval.compare import compare

RIVALS = {"Vowpal Wabbit": ("vw", "vw_best"), "logistic regression": ("lr", "lr_best")}
"""Systems whose best pass, for each metric by itself, the defaults should at least equal, by rival."""
TOLERANCE = 0.03
"""Allowed distance of predicted over actual clicks from 1, if the interval does not contain 1."""


def best(passes: Sequence[Result], metric: str) -> Result:
    """Returns the best of at least one result by ``auc`` or ``logloss``; the first one if the metric is undefined."""
    sign = 1 if metric == "logloss" else -1
    defined = [result for result in passes if result.record[metric] is not None]
    return min(defined, key=lambda result: sign * result.record[metric]) if defined else passes[0]


def judge(ours: Sequence[Result], rivals: Sequence[Result], metric: str) -> str:
    """Returns whether the defaults are at least as good as a rival by ``auc`` or ``logloss``.

    Returns:
        ``yes``; ``within interval``: behind, but not significantly by the paired interval; ``NO``: behind, either
        significantly or without a known interval. Then the defaults minus the rival, and half of the paired 95%
        interval, ``?`` if unknown, as for the AUC of predictions that hardly differ. ``-`` if one of the two is absent.
    """
    if not ours or not rivals:
        return "-"
    row = compare(best(rivals, metric).metrics, ours[0].metrics).loc[metric]
    change = float(row["difference"])
    margin = float(row["ci95_high"]) - change
    if math.isnan(change):
        return "-"
    ahead = change <= 0 if metric == "logloss" else change >= 0
    excused = not math.isnan(margin) and not row["significant"]
    verdict = "yes" if ahead else "within interval" if excused else "NO"
    return f"{verdict} ({change:+.4f} ± {'?' if math.isnan(margin) else f'{margin:.4f}'})"


def judge_calibration(ours: Sequence[Result]) -> str:
    """Judges predicted over actual clicks: ``yes`` within ``TOLERANCE`` of 1, ``within interval``, ``NO``, or ``-``."""
    ratio = ours[0].record["calibration_ratio"] if ours else None
    if ratio is None:
        return "-"
    low, high = ours[0].record["calibration_ratio_ci95"]
    if abs(ratio - 1) <= TOLERANCE:
        return "yes"
    return "within interval" if low is not None and high is not None and low <= 1 <= high else "NO"


def row_of(log: Log, by_system: Mapping[str, list[Result]]) -> dict[str, Any]:
    """Returns a log's row of the table."""
    facts, ours = log.facts, by_system.get("ctr", [])
    row = {
        "group": log.source.group,
        "rows": facts["rows"],
        "clicks": f"{100 * facts['clicks'] / facts['rows']:.3g}%",
        "features": facts["features"],
        "rows a query": facts["rows"] / facts["queries"],
    }
    row |= {system: _cell(passes) for system, passes in by_system.items() if passes}
    for rival, systems in RIVALS.items():
        rivals = [result for system in systems for result in by_system.get(system, [])]
        row |= {f"≥ {rival}: {metric}": judge(ours, rivals, metric) for metric in ("auc", "logloss")}
    seconds = [sum(result.record["seconds"] for result in passes) for passes in by_system.values()]
    return {
        **row,
        "clicks right": judge_calibration(ours),
        "seconds": " / ".join(f"{value:.0f}" for value in seconds),
    }


def _cell(passes: Sequence[Result]) -> str:
    by_auc, by_logloss = best(passes, "auc"), best(passes, "logloss")
    auc, per_query = (_number(by_auc.record[name]) for name in ("auc", "per_query_auc"))
    low, high = (_number(end, 2) for end in by_logloss.record["calibration_ratio_ci95"])
    clicks = f"{_number(by_logloss.record['calibration_ratio'], 3)} [{low}, {high}]"
    setting = f", {by_logloss.setting}" if len(passes) > 1 else ""
    return f"{auc} ({per_query}) / {_number(by_logloss.record['logloss'], 5)} / {clicks}{setting}"


def _number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def count(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Counts each verdict, by the columns that have verdicts."""
    names = [name for name in next(iter(rows.values()), {}) if name.startswith("≥") or name == "clicks right"]
    return {name: dict(Counter(str(row[name]).partition(" (")[0] for row in rows.values())) for name in names}


def measure(
    out: Path = Path("runs/defaults"),
    data: Path | None = Path(os.environ["CTR_DATA"]) if "CTR_DATA" in os.environ else None,
    only: tuple[str, ...] = tuple(source.name for source in SOURCES),
    systems: tuple[str, ...] = SYSTEMS,
    rows: int | None = None,
) -> dict[str, Any]:
    """Runs systems on logs; returns the table. ``rows`` limits the rows of simulated logs."""
    check_names("log", only, [source.name for source in SOURCES])
    check_names("system", systems, SYSTEMS)
    ready = []
    for source in SOURCES:
        if source.name in only:
            if reason := absent(source, data):
                print(f"{source.name}: skipped: {reason}", file=sys.stderr, flush=True)
            else:
                ready.append(obtain_log(source, out / "logs", data, rows))
    # Small logs first.
    table = {
        log.folder.name: row_of(log, {system: results(log, system, out / "results") for system in systems})
        for log in sorted(ready, key=lambda ready_log: ready_log.facts["rows"])
    }
    return {"logs": table, "verdicts": count(table)}


if __name__ == "__main__":
    main(measure, {"only": ("coupons",), "systems": ("truth", "lr_best"), "rows": 600})
