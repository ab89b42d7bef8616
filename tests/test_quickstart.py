"""``ctr quickstart`` as a stranger meets it: the whole way on a small table, refusals, and going on."""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ctr import cli_logs
from ctr.cli import main
from ctr.data.inspection import inspect_log
from ctr.data.mapping import load_mapping
from ctr.training.config import TrainConfig
from ctr.training.model_config import ModelConfig
from made_tables import hotel_searches, write_table


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, with a table of searches."""
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "hotel.csv", hotel_searches(30))
    return tmp_path


@pytest.fixture
def small_model(monkeypatch):
    """A model that compiles quickly, in place of the default."""
    model = ModelConfig(experts=("linear",))
    monkeypatch.setattr("ctr.quickstart.TrainConfig", lambda: TrainConfig(model=model))


# The other outcome, and what was paid for it, are known only after a click.
HOTEL = ("hotel.csv", "--label", "click_bool", "--query", "srch_id", "--time", "date_time")
HOTEL += ("--drop", "gross_usd", "--drop", "booking_bool")


def run(capfd, *arguments: str) -> tuple[int, str, str]:
    status = main(["quickstart", *arguments])
    return status, *capfd.readouterr()


def refusal(capfd, *arguments: str) -> str:
    status, _, error = run(capfd, *arguments)
    assert status == 1
    last = error.splitlines()[-1]
    assert last.startswith("error: ") and error.count("error: ") == 1
    return last


def test_a_dry_run_writes_the_mapping_alone(place, capfd):
    status, out, error = run(capfd, *HOTEL, "--dry-run", "--json")
    assert status == 0, error
    folder = Path("hotel-quickstart")
    assert {path.name for path in folder.iterdir()} == {"mapping.yaml", "quickstart.json"}
    result = json.loads(out)
    assert result["mapping"] == str(folder / "mapping.yaml")
    assert load_mapping(folder / "mapping.yaml").label.column == "click_bool"
    assert {column["column"]: column["becomes"] for column in result["columns"]}["gross_usd"] == "not used"
    status, out, _ = run(capfd, *HOTEL, "--dry-run")
    assert status == 0 and "ctr ingest table hotel.csv" in out


@pytest.mark.slow
def test_the_whole_way_once_and_again(place, capfd, small_model):
    rows = (place / "hotel.csv").read_text().count("\n") - 1
    status, out, error = run(capfd, *HOTEL, "--json")
    assert status == 0, error
    result = json.loads(out)
    assert (result["ingest"]["examples"], result["ingest"]["rejected"]) == (rows, 0)
    assert (result["summary"]["examples"], result["summary"]["queries"]) == (rows, 30)
    folder = place / "hotel-quickstart"
    for name in ("mapping.yaml", "log", "run", "run/report.html"):
        assert Path(result[Path(name).stem]) == Path("hotel-quickstart") / name and (folder / name).exists()
    assert {column["column"]: column["becomes"] for column in result["columns"]}["gross_usd"] == "not used"
    assert "gross_usd" in error and "because" in error
    used = {column["column"] for column in result["columns"]}
    assert {one["column"] for one in result["strongest"]} <= used and len(result["strongest"]) == 3
    # Values are shown, not fingerprints.
    [hotels] = [feature for feature in inspect_log(folder / "log").features if feature.name == "prop_id"]
    known = {str(hotel) for hotel in hotel_searches(30)["prop_id"]}
    assert hotels.buckets is None and {top.value for top in hotels.top} <= known

    # The mapping reads rows that have no labels yet, too.
    assert main(["export", "hotel-quickstart/run", "--out", "models"]) == 0
    pd.read_csv("hotel.csv").drop(columns="click_bool").to_csv("new.csv", index=False)
    ingest = ["ingest", "table", "new.csv", "--mapping", "hotel-quickstart/mapping.yaml", "--without-labels"]
    assert main([*ingest, "--out", "new"]) == 0
    assert main(["score", "models", "new", "--out", "scores.parquet", "--json"]) == 0
    scored = json.loads("{" + capfd.readouterr().out.rpartition("\n{")[2])
    assert (scored["scored"], scored["learned"]) == (rows, rows)

    before = (folder / "run" / "summary.json").read_bytes()
    status, out, _ = run(capfd, *HOTEL)
    assert status == 0
    assert out.splitlines()[-1] == "The report: hotel-quickstart/run/report.html"
    assert f"in the sample: {result['strongest'][0]['column']} 0." in out
    assert "hotel-quickstart/log is complete already" in out and "per_query_auc" in out
    assert (folder / "run" / "summary.json").read_bytes() == before
    # Each step by hand gives the same.
    commands = [line.strip() for line in out.splitlines() if line.startswith("  ctr ")]
    by_hand = shlex.split(commands[0].replace("hotel-quickstart/log", "again"))[1:]
    assert main(by_hand) == 0
    for part in (folder / "log" / "manifests").iterdir():
        assert (place / "again" / "manifests" / part.name).read_bytes() == part.read_bytes()

    capfd.readouterr()
    assert "begun with --drop gross_usd --drop booking_bool --label click_bool" in refusal(capfd, "hotel.csv")
    shutil.copy("hotel.csv", "other.csv")
    other = refusal(capfd, "other.csv", "--out", "hotel-quickstart")
    assert f"is the quickstart of {place / 'hotel.csv'}" in other
    mapping = folder / "mapping.yaml"
    mapping.write_text(mapping.read_text().replace("price_usd, kind", "price, kind"))
    edited = refusal(capfd, *HOTEL)
    assert "mapping.yaml was edited after hotel-quickstart/log was made from it" in edited
    with (place / "hotel.csv").open("a") as file:
        file.write("\n")
    assert "had other names or sizes" in refusal(capfd, *HOTEL)


def test_an_interrupted_quickstart_goes_on_with_the_edited_mapping(place, capfd, monkeypatch):
    def stop(**options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(cli_logs, "load_tensorflow", stop)
        assert run(capfd, *HOTEL, "--out", "o")[0] == 130
        mapping = place / "o" / "mapping.yaml"
        assert load_mapping(mapping).label.column == "click_bool" and not (place / "o" / "log").exists()
        edited = mapping.read_text().replace("partition: 1d", "partition: 2d")
        mapping.write_text(edited)
        status, out, _ = run(capfd, *HOTEL, "--out", "o")
        assert status == 130 and "o/mapping.yaml is there already and is used as it is" in out
        assert mapping.read_text() == edited
        mapping.write_text(edited.replace("label:", "click:"))
        assert "click: unknown key" in refusal(capfd, *HOTEL, "--out", "o")


def test_tables_that_are_refused(place, capfd, root, fresh_python):
    both = r"--label is required: .*; --label click_bool \(0 and 1; .*; --label booking_bool \(0 and 1; "
    for name, content, words in (
        ("hotel.csv", "", both),
        ("nowhere.csv", "", "input nowhere.csv: no such file or folder"),
        ("one.csv", "label\n0\n1\n", r"has one column \(label\)"),
        ("zero.csv", "a,label\n", "there are no rows"),
        ("none.csv", "a,b\nx,y\nz,u\n", "--label a==x"),
        ("plain.csv", "0,x,1\n1,y,1\n0,x,0\n" * 9, r"--label c1 \(or c2, .*without a header"),
    ):
        if content:
            (place / name).write_text(content)
        line = refusal(capfd, name)
        assert re.search(words, line) and refusal(capfd, name, "--json", "-q")
    assert not list(place.glob("*-quickstart"))
    # All that could be the label are listed, and the line names the first ones.
    flags = {f"flag_{n}": [row >> n & 1 for row in range(512)] for n in range(9)}
    write_table(place / "flags.csv", flags)
    status, out, error = run(capfd, "flags.csv")
    assert (
        status == 1
        and [f"  --label flag_{n} (0 and 1; 50% positive)" for n in range(9)] == out.splitlines()[1:]
    )
    assert "; and 5 more" in error and max(map(len, error.splitlines())) <= 300
    script = """
import sys
from ctr.cli import main
print(main(["quickstart", "hotel.csv", "-q"]), "tensorflow" in sys.modules, "apache_beam" in sys.modules)
"""
    assert fresh_python("-c", script, cwd=place, path=root).stdout == "1 False False\n"


def test_rows_that_break_a_type_later_are_rejects_and_the_model_is_the_default(place, capfd, monkeypatch):
    def stop(log, config, *_, **__):
        assert config == TrainConfig()
        raise KeyboardInterrupt

    monkeypatch.setattr("ctr.training.session.train", stop)
    rng = np.random.default_rng(0)
    columns = {
        "price": rng.normal(50, 9, 2000).round(2).tolist(),
        "ad": rng.integers(0, 9, 2000).tolist(),
        "click": rng.integers(0, 2, 2000).tolist(),
    }
    columns["price"][1500] = "cheap"
    write_table(place / "x.csv", columns)
    status, out, _ = run(capfd, "x.csv", "--label", "click")
    assert status == 130 and "1 of 2000 rows rejected" in out
    ingested = json.loads((place / "x-quickstart" / "quickstart.json").read_bytes())["ingested"]
    assert (ingested["rejected"], ingested["reject_reasons"]) == (1, {"price: not a number": 1})
