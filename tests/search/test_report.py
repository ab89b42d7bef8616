"""The report of a search."""

from pathlib import Path

import pandas as pd
import pytest

from ctr.experiments.report.results import read_experiment
from ctr.search.report import search_context, write_search
from experiment_folders import write_small
from report_pages import Html, check_context, figures_of, rows_of, section_of, tables_of, words_of
from run_directories import make_rows, predict, run_folder, write_plan
from search_records import course, record


@pytest.fixture(scope="module")
def replayed(tmp_path_factory) -> Path:
    """A search whose result was compared with the baseline on the rows that it has not read."""
    folder = tmp_path_factory.mktemp("search")
    rows = make_rows(1, queries=200)
    start = int(rows["query_time"].quantile(0.5))
    arms = {"baseline": {}, "searched": {}}
    write_plan(folder / "replay", arms, baseline="baseline", scored_us=[start, 2**62])
    for name, skill in (("baseline", 1.0), ("searched", 3.0)):
        for seed in (1, 2):
            write_small(folder / "replay" / run_folder(name, seed), rows, predict(rows, seed, skill))
    (folder / "search.json").write_text(record().model_dump_json())
    return folder


def test_the_page_and_the_text_have_the_result_beside_the_baseline(replayed):
    text = write_search(replayed)
    assert text == (replayed / "table.txt").read_text()
    experiment = read_experiment(replayed / "replay")
    context = search_context(record(), course(), experiment)
    check_context(context)
    difference = experiment.numbers("per_query_auc_difference", arm="searched")
    assert context.verdict == [
        f"searched is better than baseline: PerQueryAUC {difference.whole(signed=True)}."
    ]
    assert rows_of(tables_of(section_of(context, "The result"))[0])["rank"] == {
        **{"decision": "rank", "choices": "0 1 2 3", "baseline": "3", "searched": "1"}
    }
    titles = [section.title for section in context.sections]
    assert titles[-2:] == ["The controller over time", "How to repeat it"] and "Results" in titles
    assert figures_of(context)[-4:] == ["rank", "layers", "entropy", "mean cost of the candidates drawn"]
    for said in ("The result costs 0.900 of the baseline's training cost", "evaluated on the held-out rest"):
        assert said in text and said in words_of(context)
    assert "searched" in text and "UTC) count" in text
    Html((replayed / "report.html").read_text()).check()
    table = pd.read_csv(replayed / "table.csv", keep_default_na=False)
    assert len(table) == len(experiment.table) > 20


def test_a_search_that_chose_the_baseline_without_held_out_rows():
    chosen = record(prefix_end=None, chosen="baseline", values={}, cost=1.0, note="")
    context = search_context(chosen, [], None)
    check_context(context)
    assert context.verdict == ["No candidate is better than the baseline: it is the result itself."]
    assert not figures_of(context)
    words = words_of(context)
    assert "The result is the baseline itself." in words and "no held-out rows" in words
    assert "more than 1% above the target" in words
    assert search_context(record(), [], None).verdict == ["The result was not compared with the baseline."]
