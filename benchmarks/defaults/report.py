"""The table of the campaign: a row for each log, and a verdict on each of what the defaults have to reach."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ctr.eval.compare import compare
from defaults.logs import Log
from defaults.results import Result, best
from defaults.systems import SYSTEMS

RIVALS = {"Vowpal Wabbit": ("vw", "vw_best"), "logistic regression": ("lr", "lr_best")}
"""What the defaults have to be at least as good as: the best pass of these systems, for each metric by itself."""

TITLES = {
    "ctr": "ctr",
    "lr": "LR, defaults",
    "lr_best": "LR, best",
    "vw": "VW, defaults",
    "vw_best": "VW, best of 4",
    "truth": "truth",
}
TOLERANCE = 0.03
"""Of predicted over actual clicks, where the interval does not hold 1."""

Entry = tuple[Log, Mapping[str, list[Result]]]


@dataclass(frozen=True)
class Verdict:
    """Whether the defaults are at least as good as a rival by a metric.

    Attributes:
        word: ``yes``; ``within interval``: it is behind, by less than the paired interval excludes; ``NO``: behind by
            more, or by what no interval is known of; or ``-`` where one of the two is not there.
        change: the defaults minus the rival.
        margin: half of the paired 95% interval; NaN where it is unknown, as for the AUC of predictions that hardly
            differ.
    """

    word: str
    change: float = 0.0
    margin: float = 0.0

    def text(self) -> str:
        """The word with the difference."""
        margin = "?" if math.isnan(self.margin) else f"{self.margin:.4f}"
        return self.word if self.word == "-" else f"{self.word} ({self.change:+.4f} ± {margin})"


def judge(ours: Sequence[Result], rivals: Sequence[Result], metric: str) -> Verdict:
    """The verdict by ``auc`` or ``logloss``."""
    if not ours or not rivals:
        return Verdict("-")
    rival = best(list(rivals), metric)
    row = compare(rival.metrics, ours[0].metrics).loc[metric]
    change = float(row["difference"])
    margin = float(row["ci95_high"]) - change
    ahead = change <= 0 if metric == "logloss" else change >= 0
    if math.isnan(change):
        return Verdict("-")
    excused = not math.isnan(margin) and not row["significant"]
    word = "yes" if ahead else "within interval" if excused else "NO"
    return Verdict(word, change, margin)


def judge_calibration(ours: Sequence[Result]) -> str:
    """Whether predicted over actual clicks is within ``TOLERANCE`` of 1, or its interval holds 1."""
    if not ours:
        return "-"
    ratio, ends = ours[0].record["calibration_ratio"], ours[0].record["calibration_ratio_ci95"]
    if ratio is None:
        return "-"
    if abs(ratio - 1) <= TOLERANCE:
        return "yes"
    holds = None not in ends and ends[0] <= 1 <= ends[1]
    return "within interval" if holds else "NO"


def table(entries: Sequence[Entry]) -> str:
    """The table in Markdown, and the counts of verdicts."""
    if not entries:
        return "No results."
    shown = [name for name in SYSTEMS if any(results.get(name) for _, results in entries)]
    verdicts = [f"≥ {rival}: {metric}" for rival in RIVALS for metric in ("AUC", "logloss")]
    head = ["log", "group", "rows", "clicks", "features", "rows a query", *(TITLES[name] for name in shown)]
    lines = [[*head, *verdicts, "clicks right", "seconds"]]
    counts: dict[str, dict[str, int]] = {name: {} for name in (*verdicts, "clicks right")}
    for log, results in entries:
        ours = results.get("ctr", [])
        words = []
        for systems in RIVALS.values():
            rivals = [result for name in systems for result in results.get(name, [])]
            for metric in ("auc", "logloss"):
                words.append(judge(ours, rivals, metric))
        calibration = judge_calibration(ours)
        for name, word in zip(counts, [*(one.word for one in words), calibration], strict=True):
            counts[name][word] = counts[name].get(word, 0) + 1
        seconds = " / ".join(
            f"{sum(result.seconds for result in results[name]):.0f}" if results.get(name) else "-"
            for name in shown
        )
        cells = [_cell(results.get(name, [])) for name in shown]
        lines.append([*_shape(log), *cells, *(word.text() for word in words), calibration, seconds])
    return "\n\n".join([_markdown(lines), _legend(shown), _summary(counts)])


def _shape(log: Log) -> list[str]:
    facts = log.facts
    return [
        log.folder.name,
        log.source.group,
        f"{facts['rows']:,}",
        f"{100 * facts['clicks'] / facts['rows']:.3g}%",
        str(facts["single_valued"] + facts["multivalent"]),
        f"{facts['rows'] / facts['queries']:.3g}",
    ]


def _cell(results: list[Result]) -> str:
    if not results:
        return "-"
    by_auc, by_logloss = best(results, "auc"), best(results, "logloss")
    auc, per_query = (_number(by_auc.record[name]) for name in ("auc", "per_query_auc"))
    ratio, ends = by_logloss.record["calibration_ratio"], by_logloss.record["calibration_ratio_ci95"]
    clicks = f"{_number(ratio, 3)} [{_number(ends[0], 2)}, {_number(ends[1], 2)}]"
    setting = f", {by_logloss.setting}" if len(results) > 1 else ""
    return f"{auc} ({per_query}) / {_number(by_logloss.record['logloss'], 5)} / {clicks}{setting}"


def _number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    rows = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([rows[0], "|" + "---|" * len(lines[0]), *rows[1:]])


def _legend(shown: Sequence[str]) -> str:
    return (
        "Cells: AUC (PerQueryAUC) / logloss / predicted over actual clicks with its 95% interval; of several settings "
        "the best AUC, and the best logloss with its clicks and its setting. Verdicts: ctr minus the best of the rival "
        "by that metric, ± half of the interval paired by query bucket; `within interval`: behind, but not beyond "
        f"chance. Clicks right: within {100 * TOLERANCE:.0f}%, or the interval holds 1. "
        f"Seconds: {', '.join(TITLES[name] for name in shown)}; of several settings together, with the start of "
        "processes."
    )


def _summary(counts: Mapping[str, Mapping[str, int]]) -> str:
    lines = [["", "yes", "within interval", "NO", "-"]]
    lines += [[name, *(str(found.get(word, 0)) for word in lines[0][1:])] for name, found in counts.items()]
    return _markdown(lines)
