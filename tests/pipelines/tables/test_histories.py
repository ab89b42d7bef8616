"""Histories: what each row sees against brute force, however the log came to be, and nothing of the future."""

import random
import shutil

import pandas as pd
import pyarrow.parquet as pq
import pytest

import event_files
from ctr.cli import main
from ctr.config import parse_model
from ctr.data.history_state import FOLDER
from ctr.data.log import read_manifests
from ctr.data.mapping import Mapping
from ctr.io.errors import InputError
from ctr.pipelines.events.drivers import FollowSettings
from ctr.pipelines.events.follow import ingest_events, watch_events
from log_files import ids_of_rows, rows_of
from raw_logs import ingest

DAY = 86_400
FIRST = 1_600_041_600
SECOND_US = 1_000_000
NOW = (FIRST + 40 * DAY) * SECOND_US
HISTORIES = {
    "recent": {"after": "10m", "last": 4},
    "shown": {"after": "0s", "last": 3, "where": "all", "within": "3d"},
    "old": {"after": "1d", "within": "2d", "last": 3},
}
AFTER_US = {"recent": 600 * SECOND_US, "shown": 0, "old": DAY * SECOND_US}
WITHIN_US = {name: days * DAY * SECOND_US for name, days in {"recent": 30, "shown": 3, "old": 2}.items()}


def make_mapping(**changes):
    features = [{"name": name, "kind": "category", "source": name} for name in ("user", "item")]
    features += [
        {"name": name, "kind": "category", "history": {"by": "user", "of": "item", **history}}
        for name, history in HISTORIES.items()
    ]
    content = {
        "input": {"type": "csv"},
        "time": {"column": "time", "unit": "s"},
        "query": {"column": "query"},
        "example_id": "id",
        "label": "click",
        "partition": "1d",
        "features": features,
    }
    return parse_model(Mapping, {**content, **changes}, "test")


def make_rows(count=450, seed=0):
    """Queries of three rows, many of a few users, at times that tie and lie exactly ``after`` apart."""
    source = random.Random(seed)
    times = sorted(FIRST + 300 * source.randrange(5 * DAY // 300) for _ in range(count // 3))
    rows = []
    for query, time in enumerate(times):
        user = source.choice(["", *(f"u{number}" for number in range(9))])
        for _ in range(3):
            item = source.choice(["", *(f"i{number}" for number in range(30))])
            click = int(source.random() < 0.4)
            row = {"id": len(rows) + 1, "time": time, "query": query, "user": user, "item": item}
            rows.append({**row, "click": click})
    return rows


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def brute_force(log):
    """What each row sees, by its id, one row after the other in plain Python."""
    ids = ids_of_rows(log)
    rows = [row for manifest in read_manifests(log) for row in rows_of(log, manifest).to_pylist()]
    by_id = {}
    for row in rows:
        by_id[row["example_id"]] = {}
        for name, history in HISTORIES.items():
            items = [
                ids[other["example_id"]]["item"]
                for other in rows
                if ids[other["example_id"]]["user"] == ids[row["example_id"]]["user"] != []
                and other["query_time"] + AFTER_US[name] <= row["query_time"]
                and row["query_time"] - WITHIN_US[name] <= other["query_time"] < row["query_time"]
                and (other["label"] or history.get("where") == "all")
            ]
            by_id[row["example_id"]][name] = [one for own in items for one in own][-history.get("last", 50) :]
    return by_id


def seen(log):
    return {example: {name: own[name] for name in HISTORIES} for example, own in ids_of_rows(log).items()}


def content(log):
    """The bytes of a log but of what is known at its end, which is stored at other times."""
    return event_files.published(log, without=("rejects", FOLDER, "ingest"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    ingest(make_mapping(), [write(folder / "rows.csv", make_rows())], folder / "log", now_us=NOW)
    return folder / "log"


def test_each_row_sees_what_a_server_knew(whole):
    by_id = seen(whole)
    assert by_id == brute_force(whole)
    assert min(sum(map(len, (own[name] for own in by_id.values()))) for name in HISTORIES) > 200


@pytest.mark.parametrize("forgets", [False, True])
def test_day_by_day_gives_the_same_bytes_also_without_what_was_stored(whole, tmp_path, forgets):
    rows, log = make_rows(), tmp_path / "log"
    for day in range(5):
        own = [row for row in rows if (row["time"] - FIRST) // DAY == day]
        ingest(make_mapping(), [write(tmp_path / f"day{day}.csv", own)], log, append=True, now_us=NOW)
        assert day == 0 or (log / FOLDER).is_dir()
        if forgets:
            shutil.rmtree(log / FOLDER, ignore_errors=True)
    ingest(make_mapping(), [], log, now_us=NOW)
    assert seen(log) == seen(whole)
    names = [name for name in content(whole) if name.startswith(("shards", "manifests"))]
    assert {name: content(log).get(name) for name in names} == {name: content(whole)[name] for name in names}


def test_what_is_stored_of_other_partitions_is_not_used(whole, tmp_path):
    """A partition that comes late changes what later ones see from then on, whatever was stored before it came."""
    rows = make_rows()
    days = [[row for row in rows if (row["time"] - FIRST) // DAY == day] for day in range(5)]
    logs = []
    for forgets in (False, True):
        log = tmp_path / f"log{forgets}"
        for day in (0, 2, 1, 3, 4):
            ingest(make_mapping(), [write(tmp_path / f"day{day}.csv", days[day])], log, now_us=NOW)
            if forgets:
                shutil.rmtree(log / FOLDER)
        logs.append(seen(log))
    in_order = seen(whole)
    assert logs[0] == logs[1] != in_order
    late = [row["id"] for row in days[3] + days[4]]
    assert {one: logs[0][one] for one in late} == {one: in_order[one] for one in late}


def test_the_command_writes_what_is_known(tmp_path, monkeypatch, capsys):
    # Of what histories name all values are kept.
    monkeypatch.setattr("ctr.data.kept_values.MOST_VALUES", 1)
    rows, mapping = make_rows(), make_mapping(keep_values=["user", "item"])
    ingest(mapping, [write(tmp_path / "rows.csv", rows)], tmp_path / "log", now_us=NOW)
    out = tmp_path / "known.parquet"
    assert main(["history", str(tmp_path / "log"), "--feature", "recent", "--out", str(out)]) == 0
    by_user = {row["key"]: row for row in pq.read_table(out).to_pylist()}
    end = FIRST + 5 * DAY
    for user in {row["user"] for row in rows} - {""}:
        clicked = [row for row in rows if row["user"] == user and row["click"] and row["item"]]
        old = sum(row["time"] <= end - 600 for row in clicked)
        earlier = clicked[max(old - 4, 0) :]
        assert by_user[user]["values"] == [row["item"] for row in earlier]
        assert [time.timestamp() for time in by_user[user]["times"]] == [row["time"] for row in earlier]
    assert main(["history", str(tmp_path / "log"), "--out", str(out)]) == 1
    assert "allowed: recent, shown, old" in capsys.readouterr().err


def test_a_history_of_other_features_is_refused():
    features = [
        {"name": "user", "kind": "category", "source": "user"},
        {"name": "shop", "kind": "category", "source": "shop", "buckets": 9},
    ]
    for change, says in (
        ({"by": "recent"}, "history.by names recent; allowed: single-valued categories before it"),
        ({"of": "nothing"}, "history.of names nothing; allowed: single-valued categories before it"),
        ({"by": "shop"}, "history.by names shop, where several values share a bucket"),
        ({"of": "shop"}, "buckets and vocabulary must be those of shop"),
        ({"after": "30d"}, "within must be longer than after"),
    ):
        history = {"by": "user", "of": "user", "after": "0s", **change}
        with pytest.raises(InputError, match=says):
            make_mapping(features=[*features, {"name": "recent", "kind": "category", "history": history}])


# ---------------------------------------------------------------- events

LIKED = {"by": "color", "of": "color", "after": "120s", "last": 5}
EVENT_FEATURES = [
    {"name": "color", "kind": "category", "source": "color"},
    {"name": "liked", "kind": "category", "history": LIKED},
]
DRAIN = FollowSettings(poll_seconds=0, settle_seconds=0, max_reject_share=0, drain=True)


def test_every_driver_of_events_gives_the_same_histories(tmp_path):
    events = event_files.draw_events(120, seconds=800)
    mapping = event_files.mapping(features=EVENT_FEATURES, keep_values=["color"])
    folder = event_files.write_events(tmp_path / "in", events)
    logs = [tmp_path / name for name in ("batch", "again", "watch")]
    ingest_events(mapping, [folder], logs[0], max_reject_share=0)
    for _ in range(2):
        ingest_events(mapping, [folder], logs[1], max_reject_share=0)
    watch_events(mapping, [folder], logs[2], DRAIN, lambda: False)
    first, *others = map(content, logs)
    assert others == [first] * 2
    by_id = ids_of_rows(logs[0])
    manifests = [manifest for manifest in read_manifests(logs[0]) if manifest.shards]
    rows = [row for manifest in manifests for row in rows_of(logs[0], manifest).to_pylist()]
    shards = {entry.file for manifest in read_manifests(logs[0]) for entry in manifest.shards}
    assert {path.name for path in (logs[0] / "shards").rglob("*.parquet")} == shards
    for row in rows:
        own = by_id[row["example_id"]]
        earlier = [
            one["example_id"]
            for one in rows
            if one["label"]
            and own["color"] == by_id[one["example_id"]]["color"]
            and one["query_time"] + 120 * SECOND_US <= row["query_time"]
        ]
        assert own["liked"] == own["color"] * min(len(earlier), 5)
    assert sum(len(own["liked"]) for own in by_id.values()) > 50


def test_clicks_that_may_still_come_are_not_listed():
    early = {"name": "liked", "kind": "category", "history": {"by": "color", "of": "color", "after": "1s"}}
    with pytest.raises(InputError, match=r"clicks come up to click_window, .*; allowed: at least that"):
        event_files.mapping(features=[EVENT_FEATURES[0], early])
