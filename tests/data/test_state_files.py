"""Files of state beside a log: whatever happens to them, the commands that read them refuse it and change nothing."""

import json
import shutil

import pytest

import event_files
import raw_logs
from ctr.cli import main
from ctr.data.log import read_manifests
from ctr.data.state_files import read_state_file, write_state_file
from ctr.io.errors import InputError
from ctr.pipelines.events.drivers import FollowSettings
from ctr.pipelines.events.follow import watch_events

DAY = 86_400
FIRST = 1_600_041_600
HISTORY = {"kind": "category", "history": {"by": "visitor", "of": "shop", "after": "0s", "where": "all"}}
FEATURES = [
    {"name": "visitor", "kind": "category", "source": "user"},
    {"name": "shop", "kind": "category", "source": "shop"},
    {"name": "recent", **HISTORY},
]
COLORS = [
    {"name": "color", "kind": "category", "source": "color"},
    {"name": "liked", "kind": "category", "history": {"by": "color", "of": "color", "after": "120s"}},
]


OF_EVENTS = (".events/cloc", ".events/clic", ".events/impr", ".events/unit")


def make_table_log(folder):
    """A log of two days, the second one held back; returns it, with the command that adds a third."""
    for day in range(3):
        rows = raw_logs.make_rows(70, seed=day)
        for number, row in enumerate(rows):
            row["time"], row["id"] = str(FIRST + day * DAY + number * 900), str(1000 * day + number)
        raw_logs.write_rows(folder, rows, name=f"day{day}")
    changes = {"features": FEATURES, "derive": {}, "keep_values": ["visitor", "shop"]}
    content = raw_logs.base_content(query="none", partition="1d", **changes)
    (folder / "table.yaml").write_text(json.dumps(content))
    log = folder / "table"
    options = ["--append", "--mapping", str(folder / "table.yaml"), "--out", str(log)]
    for day in range(2):
        assert main(["ingest", "table", str(folder / f"day{day}.csv"), *options]) == 0
    return log, ["ingest", "table", str(folder / "day2.csv"), *options]


def make_followed_log(folder):
    """A log that followed events so far, with open partitions; returns it, with the command that goes on."""
    mapping = event_files.mapping(features=COLORS)
    (folder / "events.yaml").write_text(json.dumps(event_files.content(features=COLORS)))
    events, log = event_files.encode_files(event_files.draw_events(60), 3), folder / "followed"
    event_files.write_files(folder / "events", events[:4])
    settings, rounds = FollowSettings(poll_seconds=0, settle_seconds=0, max_reject_share=1), iter(range(3))
    watch_events(mapping, [folder / "events"], log, settings, lambda: next(rounds, None) is None)
    event_files.write_files(folder / "events", events[4:])
    command = ["ingest", "events", str(folder / "events"), "--mapping", str(folder / "events.yaml")]
    options = ["--follow", "--drain", "--poll", "0.01", "--max-reject-share", "1", "--out", str(log)]
    return log, [*command, *options]


def state_files(log):
    """By kind, a file beside a log that is read again; its sidecars and shards have tests of their own."""
    names = (".ingest", "histories", "values", ".events")
    files = sorted(path for name in names for path in (log / name).rglob("*") if path.is_file())
    # Staged manifests are written again before they are read.
    files = [path for path in files if path.parent.name != "staged"]
    names = {path: "unit" if path.parent.name == "units" else path.name[:4] for path in files}
    return {f"{path.relative_to(log).parts[0]}/{name}": path for path, name in names.items()}


def refusal(command, damaged, capsys):
    """Returns what a command tells that must refuse a damaged file."""
    capsys.readouterr()
    assert main(command) == 1
    message = capsys.readouterr().err
    assert damaged.name in message and len(message.splitlines()) <= 2 and "Traceback" not in message
    return message


def published(log):
    """The bytes of all manifests, which have the hashes of the shards."""
    return {path.name: path.read_bytes() for path in (log / "manifests").glob("*.json")}


@pytest.mark.parametrize(
    ("make", "kinds"),
    [
        (make_table_log, {".ingest/held", ".ingest/stat", "histories/0001", "values/0001"}),
        (make_followed_log, {*OF_EVENTS, "histories/0001"}),
    ],
)
def test_a_flipped_bit_in_any_file_of_state_is_refused_by_what_reads_it(make, kinds, tmp_path, capsys):
    log, command = make(tmp_path)
    shutil.copytree(log, tmp_path / "saved")
    known = ["history", str(log), "--feature", "recent", "--out", str(tmp_path / "known.parquet")]
    assert main(command) == 0
    whole, begun = published(log), published(tmp_path / "saved")
    files = state_files(tmp_path / "saved")
    assert files.keys() == kinds
    for kind, path in files.items():
        content = path.read_bytes()
        shutil.rmtree(log)
        shutil.copytree(tmp_path / "saved", log)
        changed = bytearray(content)
        changed[len(content) // 2] ^= 1
        damaged = log / path.relative_to(tmp_path / "saved")
        damaged.write_bytes(changed)
        message = refusal(known if kind.startswith("values") else command, damaged, capsys)
        assert "damaged" in message or "not JSON" in message
        # Of events, partitions before the damaged one may be published.
        assert begun.items() <= published(log).items() <= whole.items()
        assert make is make_followed_log or begun == published(log)


def test_every_flipped_bit_of_a_file_a_cut_one_and_one_of_another_name_are_refused(tmp_path):
    path, content = tmp_path / "folder" / "held", bytes(range(40))
    write_state_file(path, content)
    assert read_state_file(path, "").to_pybytes() == content
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(InputError, match=r"held: damaged: .*; do this"):
            read_state_file(path, "do this")
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match="held: damaged"):
            read_state_file(path, "")
    path.unlink()
    with pytest.raises(InputError, match="held: the file is missing; do this"):
        read_state_file(path, "do this")
    path.with_name("other").write_bytes(whole)
    with pytest.raises(InputError, match="other: damaged"):
        read_state_file(path.with_name("other"), "")


def test_a_lost_state_is_noticed_and_held_rows_are_not_dropped(tmp_path, capsys):
    log, command = make_table_log(tmp_path)
    path = log / ".ingest"
    shutil.move(path, tmp_path / "lost")
    message = refusal(command, log / ".ingest" / "state.json", capsys)
    assert "state.json: missing" in message and "another output directory" in message
    shutil.rmtree(path, ignore_errors=True)
    shutil.move(tmp_path / "lost", path)
    assert main(command) == 0
    assert main(["ingest", "table", *command[4:]]) == 0
    assert sum(manifest.rows for manifest in read_manifests(log)) == 3 * 70
