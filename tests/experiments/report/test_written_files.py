import json

import pytest

from ctr.eval.report.page import plain
from ctr.experiments.report.write import TABLE_WIDTH, write_experiment
from experiment_folders import ARMS, HOSTILE, cost, edit, page_of, result_of, table_of, write_small
from report_pages import Html, figures_of, tables_of, words_of
from run_directories import predict, run_folder, write_plan


def test_the_terminal_table_fits_and_shows_the_paper_beside_ours(experiment):
    text = (experiment / "table.txt").read_text()
    assert max(map(len, text.splitlines())) <= TABLE_WIDTH == 120
    for reported in ("0.18%", "0.44%", "3% <b>", "17%", "optimizer against dcn", "± "):
        assert reported in text


@pytest.mark.slow
def test_long_names_and_papers_still_fit(rows, tmp_path):
    name = "a-technique-of-which-the-name-alone-would-fill-most-of-a-line-of-a-terminal"
    paper = {key: "between 0.41% and 0.46%,\nas FF says" for key in ("accuracy", "training_cost", "pd")}
    write_plan(
        tmp_path, {"base": {"seeds": [1, 2, 3]}, name: {"seeds": [1, 2, 3], "paper": paper}}, title="a\nb"
    )
    for arm in ("base", name):
        for seed in (1, 2, 3):
            write_small(tmp_path / run_folder(arm, seed), rows, predict(rows, seed, 1.0 + 0.4 * seed))
    (tmp_path / "costs.json").write_text(
        json.dumps({"arms": {"base": cost("base"), name: cost("dcn", step_ratio=[11.0, 12.3, 14.5])}})
    )
    text = write_experiment(tmp_path)
    assert max(map(len, text.splitlines())) <= TABLE_WIDTH
    assert text.count("…") >= 6
    assert table_of(tmp_path)[name]["paper_pd"] == paper["pd"]


def test_the_csv_has_raw_numbers_under_plain_names(experiment):
    result, table = result_of(experiment), table_of(experiment)
    assert list(table) == list(ARMS)
    row, arm = table["dcn"], result["dcn"]
    change = arm["changes"]["per_query_auc"]
    assert float(row["per_query_auc_change_percent"]) == change["percent"]["value"]
    assert float(row["per_query_auc_difference_seed_deviation"]) == change["seeds_deviation"]
    assert row["per_query_auc_significant"] == str(change["significant"])
    assert float(row["train_time_ratio_upper_quartile"]) == arm["cost_ratio"]["train_time"]["quartiles"][1]
    assert float(row["pd_last_half_ratio"]) == arm["prediction_difference"]["late"]["ratio"]["value"]
    assert row["paper_accuracy"] == "0.18%" and row["title"] == HOSTILE
    reported = arm["tuning"]["flops"]["cost_at_neutral_accuracy"]["relative"]
    assert float(row["flops_change_at_neutral_accuracy"]) == reported
    assert table["base"]["per_query_auc_difference"] == "" and table["dcn@wide"]["sweep_of"] == "dcn"
    assert all(key and " " not in key for key in row)


@pytest.mark.slow
def test_a_spreadsheet_runs_no_text_of_the_csv(rows, tmp_path):
    titles = ["=cmd|' /C calc'!A0", "+1+cmd", "-2+3", "@SUM(A1)", "\t=1", " =1", "＝1"]  # noqa: RUF001
    arms = {f"arm-{place}": {"title": title} for place, title in enumerate(titles)}
    arms["arm-0"]["paper"] = {"=HYPERLINK(1)": "-0.29%", "pd": "=1"}
    write_plan(tmp_path, {"base": {}, **arms})
    for arm in ("base", *arms):
        write_small(tmp_path / run_folder(arm, 1), rows, predict(rows, 1, 1.0))
    write_experiment(tmp_path)
    table = table_of(tmp_path)
    assert [table[arm]["title"] for arm in arms] == [f"'{title}" for title in titles]
    assert table["arm-0"]["paper_pd"] == "'=1" and table["arm-0"]["paper_=HYPERLINK(1)"] == "-0.29%"
    starts = {value[:1] for row in table.values() for value in row.values() if not value.endswith("%")}
    assert not starts & set("=+@\t")


def test_the_same_runs_give_the_same_bytes(experiment, copy):
    write_experiment(copy)
    for name in ("result.json", "table.csv", "table.txt", "report.html"):
        assert (copy / name).read_bytes() == (experiment / name).read_bytes()
    assert not list(copy.glob("*.partial-*"))


def test_the_report_is_whole_and_escaped(experiment):
    html = Html((experiment / "report.html").read_text())
    html.check()
    assert len(html.images()) == 5 and html.words.count(HOSTILE) >= 5
    page = page_of(experiment)
    accuracy, _, *biases = figures_of(page)
    assert [one.name for one in accuracy.panels[0].series if one.name] == [
        "base",
        "dcn",
        "optimizer",
        "narrow",
        "wide",
    ]
    assert [figure.run.name for figure in biases] == ["base", "dcn", "optimizer"]
    changes, *_ = tables_of(page.section("accuracy"))
    change = result_of(experiment)["dcn"]["changes"]["per_query_auc"]
    [row] = [cells for first, *cells in changes.cells if str(first) == "dcn"]
    assert (
        plain(row[1].text).startswith(f"{change['percent']['value']:+.2f}"[:4]) and row[1].verdict == "better"
    )
    words = words_of(page)
    for reported in (
        "ctr replay experiment.yaml",
        "a" * 64,
        "2026-01-02T03:04:05Z",
        "model.crosses.rank: 64",
        "3% <b>",
    ):
        assert reported in words
    for name, arm in ARMS.items():
        for seed in arm["seeds"]:
            assert run_folder(name, seed) in words
    assert "3.11.7" in words
    # One configuration an arm.
    assert words.count("layers: 2") == len(ARMS)


def test_numbers_and_names_of_the_page_are_short(copy):
    edit(copy / "costs.json", lambda content: content.update(teacher_flops={"big": 123456.78901234567}))
    write_experiment(copy)
    words = words_of(page_of(copy))
    assert "big 123,457" in words and "123456.789" not in words
    assert "versions: numpy" in words and '{"numpy"' not in words


def test_runs_of_different_environments_are_told_apart(copy):
    edit(copy / run_folder("dcn", 1) / "environment.json", lambda content: content.update(python="3.12.1"))
    write_experiment(copy)
    words = words_of(page_of(copy))
    assert "times of different ones are not comparable" in words and "3.12.1" in words
    result = result_of(copy)["dcn"]["runs"]
    assert [run["environment"]["python"] for run in result] == ["3.12.1", "3.11.7", "3.11.7"]
