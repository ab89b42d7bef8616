"""Commands that are killed, for each key of a mapping that keeps state: the next ones go on and give the same."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

import event_files
import raw_logs
from ctr.cli import main
from ctr.data.log import read_manifests
from killed_command import run_killed_command

FIRST = 1_600_041_600
HISTORY = {"by": "visitor", "of": "shop", "after": "0s", "where": "all", "last": 5}
BY_ROW = {"row_order": {"start": "2020-01-01T00:00:00Z", "step_us": 600_000_000}}
KEYS = {
    "histories": {
        "query": raw_logs.QUERIES["column"],
        "features": [
            {"name": "visitor", "kind": "category", "source": "user"},
            {"name": "shop", "kind": "category", "source": "shop"},
            {"name": "recent", "kind": "category", "history": HISTORY},
        ],
        "derive": {},
    },
    "keep_values": {
        "query": None,
        "features": raw_logs.GROWING_FEATURES,
        "keep_values": ["visitor", "labels"],
    },
    "session": {},
    "row_order": {"time": BY_ROW, "query": None, "example_id": None},
}
SHARD, HELD = ("rename.after", 1, "/shards/"), ("rename.after", 1, "/held-")
PUBLISHED, COMMITTED = ("link.after", 1, "/manifests/"), ("rename.after", 2, "/state.json")
HISTORIES = ("rename.before", 1, "/histories/")


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Makes, by key, what runs commands on logs, and the bytes of one that was never disturbed."""
    folder = tmp_path_factory.mktemp("killed")
    source = random.Random(1)
    for day in range(2):
        rows = raw_logs.make_rows(60, seed=day)
        for number, row in enumerate(rows):
            # Users belong to a part of a day, so that queries do not join partitions. The first day has a gap.
            part = source.choice([0, 2, 3] if day == 0 else [0, 1, 2, 3])
            row["time"] = str(FIRST + day * 86_400 + part * 21_600 + source.randrange(21_600))
            row["user"], row["id"] = f"{day}{part}{int(row['user']) % 2}", str(1000 * day + number)
        raw_logs.write_rows(folder, rows, name=f"day{day}")
    whole = {}

    def command(key, log, *files):
        mapping = folder / f"{key}.yaml"
        changes = {"query": raw_logs.QUERIES["session"], "partition": "6h", **KEYS[key]}
        mapping.write_text(json.dumps(raw_logs.base_content(**changes)))
        paths = [str(folder / f"{file}.csv") for file in files]
        options = ["--mapping", str(mapping), "--out", str(log)]
        return ["ingest", "table", *paths, *(["--append"] if files else []), *options]

    def undisturbed(key):
        if key not in whole:
            log = folder / f"whole-{key}"
            for files in (["day0"], ["day1"], []):
                assert main(command(key, log, *files)) == 0
            whole[key] = raw_logs.log_bytes(log)
        return whole[key]

    return command, undisturbed


def content(files):
    """What is the same however often a log was saved on the way."""
    return {name: data for name, data in files.items() if not name.startswith(("histories", "rejects"))}


# Every key and every place once.
MORE_KILLS = [
    ("histories", HISTORIES),
    ("keep_values", ("rename.after", 1, "/values/")),
    ("session", HELD),
    ("session", COMMITTED),
    ("row_order", PUBLISHED),
]


KILLS = [("histories", SHARD), *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_KILLS)]


@pytest.mark.parametrize(("key", "kill"), KILLS)
def test_a_killed_append_is_made_good_by_the_same_command_at_once_and_after_another_day(
    logs, key, kill, tmp_path
):
    command, undisturbed = logs
    assert run_killed_command(command(key, tmp_path / "log", "day0"), *kill) == -9
    for files in (["day0"], ["day1"], []):
        assert main(command(key, tmp_path / "log", *files)) == 0
    whole = undisturbed(key)
    assert content(raw_logs.log_bytes(tmp_path / "log")) == content(whole)
    late = tmp_path / "late"
    assert run_killed_command(command(key, late, "day0"), *kill) == -9
    for files in (["day1"], ["day0"], []):
        assert main(command(key, late, *files)) == 0
    assert main(["inspect", str(late)]) == 0
    assert sum(manifest.rows for manifest in read_manifests(late)) == 120


def test_rejects_are_there_after_a_kill_of_what_was_committed(tmp_path):
    rows = raw_logs.make_rows(60)
    rows[7]["rating"] = "bad"
    path = raw_logs.write_rows(tmp_path / "in", rows)
    (tmp_path / "mapping.yaml").write_text(json.dumps(raw_logs.base_content(query="none", partition="1h")))
    command = ["ingest", "table", str(path), "--mapping", str(tmp_path / "mapping.yaml")]
    command += ["--max-reject-share", "0.1", "--out"]
    assert run_killed_command([*command, str(tmp_path / "log")], *PUBLISHED) == -9
    for log in ("log", "whole"):
        assert main([*command, str(tmp_path / log)]) == 0
    assert raw_logs.log_bytes(tmp_path / "log") == raw_logs.log_bytes(tmp_path / "whole")
    assert [reject["row"] for reject in raw_logs.read_rejects(tmp_path / "log")] == [9]


@pytest.mark.slow
def test_a_lost_manifest_is_noticed_before_histories_are_made_without_it(logs, tmp_path, capsys):
    command, undisturbed = logs
    log = tmp_path / "log"
    assert main(command("histories", log, "day0")) == 0
    lost = sorted((log / "manifests").iterdir())[1]
    manifest = lost.read_bytes()
    lost.unlink()
    before = raw_logs.log_bytes(log)
    capsys.readouterr()
    for file in ("day0", "day1"):
        assert main(command("histories", log, file)) == 1
        message = capsys.readouterr().err
        assert f"{lost.name}: missing" in message and "restore it from a copy" in message
        assert raw_logs.log_bytes(log) == before
    lost.write_bytes(manifest)
    for files in (["day1"], []):
        assert main(command("histories", log, *files)) == 0
    assert content(raw_logs.log_bytes(log)) == content(undisturbed("histories"))


@pytest.mark.slow
def test_two_appends_at_once_wait_for_each_other(logs, tmp_path):
    command, undisturbed = logs
    log = tmp_path / "log"

    def append(file):
        """Runs the command in a process that is never killed."""
        return run_killed_command(command("histories", log, file), "rename.after", 10**6, "/")

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(append, ("day0", "day1"))) == [0, 0]
    for files in (["day0"], ["day1"], []):
        assert main(command("histories", log, *files)) == 0
    assert main(["inspect", str(log)]) == 0
    both = undisturbed("histories"), raw_logs.log_bytes(log)
    wanted, found = ({name for name in files if name.startswith("manifests")} for files in both)
    assert found == wanted


@pytest.mark.slow
@pytest.mark.parametrize("kill", [SHARD, HISTORIES])
def test_a_killed_join_of_events_with_histories_and_values_is_made_good_by_the_same_command(kill, tmp_path):
    history = {"by": "color", "of": "color", "after": "120s", "last": 5}
    color, liked = {"name": "color", "source": "color"}, {"name": "liked", "history": history}
    features = [{"kind": "category", **feature} for feature in (color, liked)]
    mapping = event_files.content(features=features, keep_values=["color"])
    (tmp_path / "mapping.yaml").write_text(json.dumps(mapping))
    event_files.write_events(tmp_path / "events", event_files.draw_events(60), files=1)
    command = ["ingest", "events", str(tmp_path / "events"), "--mapping", str(tmp_path / "mapping.yaml")]
    command += ["--max-reject-share", "1", "--out"]
    assert main([*command, str(tmp_path / "whole")]) == 0
    assert run_killed_command([*command, str(tmp_path / "log")], *kill) == -9
    assert main([*command, str(tmp_path / "log")]) == 0
    assert event_files.published(tmp_path / "log") == event_files.published(tmp_path / "whole")
