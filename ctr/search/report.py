"""Report of a search: tables as text, numbers as CSV, and a page as one HTML file.

The experiment in OUT/replay compares the result with the baseline.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ctr.eval import display
from ctr.eval.report import figures
from ctr.eval.report.figures import Figure, Line
from ctr.eval.report.page import PageContext, Section, render_page
from ctr.eval.tidy import as_csv, tidy
from ctr.experiments.plan import PLAN_FILE, read_record
from ctr.experiments.report.results import Experiment, read_experiment
from ctr.experiments.report.tables import table_lines
from ctr.experiments.report.write import result_sections, verdicts
from ctr.io.errors import InputError
from ctr.io.files import write_atomic_bytes
from ctr.search.record import BASELINE, RECORD_FILE, SEARCHED, ControllerRecord, SearchRecord, read_course

_DECISIONS_DRAWN = 8


def write_search(folder: Path) -> str:
    """Writes report.html, table.csv and table.txt of a search; the same search gives the same bytes. Returns table.txt.

    ``folder`` holds search.json, the controller's records, and replay/ if the result was compared with the baseline.
    Raises InputError if a file is missing or damaged, or cannot be written.
    """
    path = folder / RECORD_FILE
    if not path.exists():
        raise InputError(
            f"{folder}: no {RECORD_FILE}, so this is not a finished search; "
            "allowed: an output directory of `ctr search`"
        )
    record, replay = read_record(path, SearchRecord), folder / "replay"
    experiment = read_experiment(replay) if (replay / PLAN_FILE).exists() else None
    text = as_text(record, experiment)
    page = render_page(search_context(record, read_course(folder / "supernet"), experiment))
    table = as_csv(tidy([]) if experiment is None else experiment.table)
    for name, content in (("table.txt", text), ("table.csv", table), ("report.html", page)):
        write_atomic_bytes(folder / name, content.encode())
    return text


def as_text(record: SearchRecord, experiment: Experiment | None) -> str:
    """Formats a search, its decisions and the comparison as text for a terminal."""
    table = _decisions(record)
    rows = [list(table), *(list(cells) for cells in table.itertuples(index=False, name=None))]
    lines = [" ".join(record.title.split()), *_sentences(record), "", *display.aligned(rows)]
    lines += [] if experiment is None else table_lines(experiment)
    return "\n".join(lines) + "\n"


def search_context(
    record: SearchRecord, course: Sequence[ControllerRecord], experiment: Experiment | None
) -> PageContext:
    """Returns the content of a search's page; ``experiment`` compares the result with the baseline."""
    sections = [Section("The result", tables=[("", _decisions(record))])]
    said = ["No candidate is better than the baseline: it is the result itself."]
    if record.chosen != BASELINE:
        said = ["The result was not compared with the baseline."]
    if experiment is not None:
        said = verdicts(experiment)
        sections += result_sections(experiment)
    if course:
        sections.append(Section("The controller over time", figures=_controller_figures(record, course)))
    repeat = [
        ["command", record.command],
        ["log", record.log],
        ["log, SHA-256", record.log_sha256],
        ["ctr", record.ctr_version],
        ["the search", "search.yaml, with its whole training configuration"],
        ["the result", "best.yaml, for ctr train"],
        ["the comparison", "replay.yaml, for ctr replay; its own report is replay/report.html"],
    ]
    sections.append(Section("How to repeat it", tables=[("", pd.DataFrame(repeat, columns=["", " "]))]))
    lead = [sentence for sentence in (*_sentences(record), record.note) if sentence]
    missing = [] if experiment is None else experiment.missing
    return PageContext(record.title, lead, said, missing, sections, [BASELINE, SEARCHED])


def _sentences(record: SearchRecord) -> list[str]:
    unit = f"the baseline's {record.purpose} cost by operations"
    lines = [f"{record.size:,} candidates, target {record.target:g} of {unit}, seed {record.seed}."]
    if record.prefix_end is None:
        lines.append(
            f"Chosen on all {record.rows:,} rows: no held-out rows are left to evaluate the result on without favor."
        )
    else:
        lines.append(
            f"Chosen on the first {record.prefix_rows:,} of {record.rows:,} rows (before {record.prefix_end}); "
            "evaluated on the held-out rest."
        )
    lines.append(f"The search took {display.fixed(record.passes, 2)} passes of the baseline over all rows.")
    if record.chosen == BASELINE:
        lines.append("The result is the baseline itself.")
    else:
        lines.append(f"The result costs {display.fixed(record.cost, 3)} of {unit}: best.yaml.")
    if record.cost > 1.01 * record.target:
        lines.append("This is more than 1% above the target, which a penalty does not rule out.")
    return lines


def _decisions(record: SearchRecord) -> pd.DataFrame:
    baseline = record.baseline or {}
    rows = [
        [name, " ".join(map(str, choices)), str(baseline.get(name, display.ABSENT)),
         str(record.values.get(name, baseline.get(name, "")))]
        for name, choices in record.space.items()
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["decision", "choices", BASELINE, SEARCHED])


def _controller_figures(record: SearchRecord, course: Sequence[ControllerRecord]) -> list[Figure]:
    """Draws the probabilities of choices, the controller's entropy, and the mean cost of the candidates drawn."""
    examples = np.array([entry.examples for entry in course])
    drawn = []
    for name, choices in [*record.space.items()][:_DECISIONS_DRAWN]:
        shares = np.array([entry.probabilities[name] for entry in course])
        lines = [
            Line(examples, shares[:, index], look=index, label=str(choice))
            for index, choice in enumerate(choices)
        ]
        drawn.append(figures.courses(name, lines, note="probability of each choice", within=(0.0, 1.0)))
    for title, key, level in (
        ("entropy", "entropy", None),
        ("mean cost of the candidates drawn", "mean_cost", record.target),
    ):
        values = np.array([getattr(entry, key) for entry in course], np.float64)
        drawn.append(figures.courses(title, [Line(examples, values)], level=level))
    return [figure for figure in drawn if figure is not None]
