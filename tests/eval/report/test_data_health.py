"""Data health in a report: values that share an id; of ids that grow how many there are, and what came and went."""

import json
import shutil

import numpy as np
import pytest

from ctr.eval.display import fingerprint
from ctr.eval.report import run_page
from ctr.eval.report.data_health import read_data_health
from ctr.eval.report.shown_run import show_runs
from ctr.eval.timeline import SLOT_COUNTS, Timeline
from ctr.io.errors import InputError
from report_pages import check_page, figures_of, words_of
from run_directories import make_rows, predict, write_run

LOW, HIGH = -(2**63) + 5, 2**62 + 9


def page_of(run):
    page = run_page(show_runs([run]))
    check_page(page)
    return page


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    rows = make_rows(1, queries=40)
    rows["position"] = np.where(rows["position"] == 0, LOW, np.where(rows["position"] == 1, HIGH, -1))
    folder = tmp_path_factory.mktemp("plain") / "run"
    return write_run(folder, rows, predict(rows, 1, 1.0), slices=("position",))


def grown(plain, folder, admitted=70, evicted=0, refused=0, value=None):
    """A run with a feature ``position`` whose ids grow, with a capacity of 100."""
    run = shutil.copytree(plain, folder)
    with np.load(run / "timeline.npz") as file:
        arrays = dict(file)
    windows = len(arrays["windows"])
    levels = np.linspace(admitted // windows, admitted - evicted, windows).astype(np.int64)
    series = np.zeros((windows, len(SLOT_COUNTS)), np.int64)
    series[:, 0], series[:, 1], series[:, 6] = levels, 100, 50
    series[-1, 2:6] = admitted, evicted, refused, refused
    arrays["slots/position"] = series
    np.savez_compressed(run / "timeline.npz", **arrays)
    total = Timeline.from_arrays(arrays).slot_total("position")
    health = json.loads((run / "data_health.json").read_text())
    health["features"][0] |= {
        "buckets": None,
        "distinct_ids": total["occupancy"],
        "slots": total,
        "top": [{"id": LOW, "value": value, "count": 30}, {"id": HIGH, "value": None, "count": 20}],
    }
    health["slice_values"] = {"position": {str(LOW): value, str(HIGH): None, "-1": None}}
    (run / "data_health.json").write_text(json.dumps(health))
    return run


def test_a_feature_that_grows_is_drawn_with_its_values_or_fingerprints(plain, tmp_path):
    run = grown(plain, tmp_path / "run")
    words = words_of(page_of(run))
    assert fingerprint(LOW) == "0x8000000000000005" in words
    assert words.count(fingerprint(HIGH)) >= 2 and "is full" not in words and "evicted again" not in words
    # What grows has no collisions.
    [feature] = read_data_health(run).features
    assert (feature.distinct_values, feature.shared_share, feature.slots.occupancy) == (70, 0, 70)
    page = page_of(grown(plain, tmp_path / "full", 100, 20, refused=15, value="the <first>"))
    words = words_of(page)
    assert "position is full: 15 occurrences (10.0%) were of ids for which no row was left." in words
    assert "of 100, 20 evicted" in words
    assert "the <first>" in words and fingerprint(HIGH) in words
    assert fingerprint(LOW) not in words
    figures = {figure.title: figure for figure in figures_of(page.section("data"))}
    occupied, moved, shared = list(figures)[-3:]
    assert "position: 80 of 100." in figures[occupied].alt
    assert moved == "Ids admitted, and evicted (below 0)"
    assert "position: 100 admitted, 20 evicted." in figures[moved].alt
    admitted, evicted = figures[moved].panels[0].series
    assert admitted.y[-1] == 100 and evicted.y[-1] == -20 and evicted.texts is None
    assert "whose id shares a row" in shared


def test_data_health_says_how_many_values_share_an_id(tmp_path):
    # 3,000 values hashed to 999 ids leave about exp(-3) of them unused.
    rng = np.random.default_rng(1)
    used = len(np.unique(rng.integers(1, 1000, 3000)))
    entry = {"name": "ad", "kind": "category", "hashed": True, "buckets": 1000, "distinct_ids": used}
    entry |= {"rows": 10, "missing": 1, "values": 9, "new": 3, "counted": 4}
    entry["top"] = [{"id": 7, "value": "x", "count": 1}]
    (tmp_path / "data_health.json").write_text(json.dumps({"features": [entry], "slice_values": {}}))
    [feature] = read_data_health(tmp_path).features
    assert feature.distinct_values == pytest.approx(3000, rel=0.1)
    assert feature.shared_share == pytest.approx(1 - np.exp(-3), abs=0.02)
    assert (feature.missing_share, feature.new_share, feature.top[0].share) == (0.1, 3 / 9, 0.25)


def test_damaged_counts_are_refused(plain, tmp_path):
    path = grown(plain, tmp_path / "run") / "data_health.json"
    health = json.loads(path.read_text())
    for change, message in (
        ({"slots": None}, "damaged"),
        ({"slots": {**dict.fromkeys(SLOT_COUNTS, 1), "occupancy": 2}}, "occupancy must be at most capacity"),
        ({"top": [{"id": 2**63, "value": None, "count": 1}]}, "id must be a whole number"),
    ):
        path.write_text(json.dumps({**health, "features": [health["features"][0] | change]}))
        with pytest.raises(InputError, match=message):
            read_data_health(path.parent)
