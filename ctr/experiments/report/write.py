"""The report of a replayed experiment: tables, numbers and a report from what its runs left behind."""

from pathlib import Path

from ctr.eval.report.page import write_page
from ctr.experiments.report.page import render_experiment
from ctr.experiments.report.results import read_experiment
from ctr.experiments.report.tables import as_text
from ctr.experiments.report.write_csv import as_csv
from ctr.experiments.report.write_json import as_json


def write_experiment(folder: Path) -> str:
    """Write result.json, table.csv, table.txt and report.html of an experiment.

    Each appears whole or not at all. Runs that failed or are missing are reported as such; the same runs give the same
    bytes.

    Args:
        folder: holds plan.json, the runs that it names, and, where there are any, costs.json and failures/.

    Returns:
        The content of table.txt.

    Raises:
        InputError: the plan or the costs cannot be read, a run read another log than the rest, or a file cannot be
            written.
    """
    experiment = read_experiment(folder)
    text = as_text(experiment)
    for name, content in (
        ("result.json", as_json(experiment)),
        ("table.csv", as_csv(experiment)),
        ("table.txt", text),
        ("report.html", render_experiment(experiment)),
    ):
        write_page(folder / name, content)
    return text
