"""Files that come one after another: cut anywhere, late, twice, killed; the log is that of one ingest of them all."""

import random

import pytest

import fault_points
import raw_logs
from ctr.cli import main
from ctr.config import parse_model
from ctr.data.log import list_partitions, read_manifests
from ctr.data.mapping import Mapping
from ctr.io.errors import InputError
from ctr.pipelines.ingest.run import ingest
from ctr.pipelines.ingest.state import read_state

DAY = 86_400
DAY_US = DAY * 1_000_000
FIRST = 1_600_041_600
"""The midnight of a day in UTC."""
NOW = (FIRST + 40 * DAY) * 1_000_000
QUERIES = {
    "none": None,
    "column": {"column": "user"},
    "session": {"session": {"by": "user", "gap": "1800s"}},
}


def make_days(shift=16 * 3600, days=4, count=240, seed=1):
    """The rows of whole days that end ``shift`` seconds after midnight, in order of time, day by day."""
    source = random.Random(seed)
    rows = raw_logs.make_rows(count, seed=seed)
    for row in rows:
        row["time"] = str(FIRST + shift - DAY + source.randrange(days * DAY))
    rows.sort(key=lambda row: (int(row["time"]), int(row["id"])))
    # A user belongs to a day and the night after it: else a query column would bring all days together.
    found = [[] for _ in range(days)]
    for row in rows:
        day = (int(row["time"]) - FIRST - shift + DAY) // DAY
        row["user"] = f"{day}{row['user']}"
        found[day].append(row)
    return found


def write_days(folder, days):
    return [raw_logs.write_rows(folder, rows, name=f"day{number}") for number, rows in enumerate(days)]


def append_all(mapping, paths, log, **options):
    return [ingest(mapping, [path], log, append=path != paths[-1], now_us=NOW, **options) for path in paths]


def assert_same_log(log, whole):
    found, expected = raw_logs.log_bytes(log), raw_logs.log_bytes(whole)
    assert {name: value for name, value in found.items() if not name.startswith("rejects")} == {
        name: value for name, value in expected.items() if not name.startswith("rejects")
    }


@pytest.mark.slow(first=3)
@pytest.mark.parametrize(
    "features", [raw_logs.FEATURES, raw_logs.GROWING_FEATURES], ids=["bucketed", "growing"]
)
@pytest.mark.parametrize("partition", ["1d", "7d"])
@pytest.mark.parametrize("query", QUERIES)
def test_days_cut_at_another_midnight_give_the_log_of_one_ingest(tmp_path, query, partition, features):
    mapping = raw_logs.make_mapping(query=QUERIES[query], partition=partition, features=features)
    paths = write_days(tmp_path / "in", make_days())
    whole = ingest(mapping, paths, tmp_path / "whole", now_us=NOW)
    results = append_all(mapping, paths, tmp_path / "log")
    assert_same_log(tmp_path / "log", tmp_path / "whole")
    assert sum(result.rows for result in results) == whole.rows
    assert sum(result.examples for result in results) == whole.examples == whole.rows
    assert all(result.held_rows for result in results[:-1])
    assert results[-1].held_rows == 0
    assert not any(result.warnings for result in (*results, whole))


def test_rows_with_ids_that_grow_are_held_back_and_added_whole(tmp_path):
    mapping = raw_logs.make_mapping(query=None, partition="1d", features=raw_logs.GROWING_FEATURES)
    days = make_days(days=3, count=40)
    paths = write_days(tmp_path / "in", days)
    results = append_all(mapping, paths, tmp_path / "log")
    assert all(result.held_rows for result in results[:-1])
    rows = [(path.name, 0, row) for path, day in zip(paths, days, strict=True) for row in day]
    assert raw_logs.read_log(tmp_path / "log") == raw_logs.reference(rows, mapping)


def test_what_is_held_back_is_said_and_published_by_an_ingest_without_files(tmp_path):
    mapping = raw_logs.make_mapping(query=None, partition="1d")
    paths = write_days(tmp_path / "in", make_days(days=2))
    ingest(mapping, paths, tmp_path / "whole", now_us=NOW)
    for path in paths:
        result = ingest(mapping, [path], tmp_path / "log", append=True, now_us=NOW)
    start = FIRST * 1_000_000 + DAY_US
    assert list_partitions(tmp_path / "log")[-1] == (start - DAY_US, start)
    assert result.held_partitions == [(start, start + DAY_US)]
    assert (
        f"{result.held_rows} rows of [2020-09-15T00:00:00Z, 2020-09-16T00:00:00Z) are kept unpublished"
        in result.as_text()
    )
    closed = ingest(mapping, [], tmp_path / "log")
    assert (closed.rows, closed.examples, closed.held_rows) == (0, result.held_rows, 0)
    assert "published up to 2020-09-16T00:00:00Z" in closed.as_text()
    assert_same_log(tmp_path / "log", tmp_path / "whole")
    with pytest.raises(InputError, match="holds no rows back that could be published"):
        ingest(mapping, [], tmp_path / "log")


def test_late_rows_enter_while_their_partition_is_held_open(tmp_path):
    mapping = raw_logs.make_mapping(query=None, partition="1d")
    days = make_days(shift=0)
    late = [days[0].pop() for _ in range(3)]
    days[2] += late
    paths = write_days(tmp_path / "in", days)
    ingest(mapping, paths, tmp_path / "whole", now_us=NOW)
    results = append_all(mapping, paths, tmp_path / "log", allowed_lateness_us=2 * DAY_US)
    assert [len(result.held_partitions) for result in results] == [1, 2, 3, 0]
    assert_same_log(tmp_path / "log", tmp_path / "whole")
    # Without it the first day is closed by the rows of the second: those that are late are named.
    for path in paths[:2]:
        ingest(mapping, [path], tmp_path / "short", append=True, now_us=NOW)
    before = raw_logs.log_bytes(tmp_path / "short"), read_state(tmp_path / "short")
    with pytest.raises(
        InputError, match=r"3 of \d+ rows fall into 1 published partition: day2\.csv \(3\); the first is"
    ):
        ingest(mapping, [paths[2]], tmp_path / "short", append=True, now_us=NOW)
    assert (raw_logs.log_bytes(tmp_path / "short"), read_state(tmp_path / "short")) == before
    result = ingest(mapping, [paths[2]], tmp_path / "short", append=True, max_reject_share=0.2, now_us=NOW)
    assert (result.rejected, result.reject_reasons) == (3, {"partition: already published": 3})
    assert "fall into 1 published partition" in result.warnings[0]
    assert {reject["row"] for reject in raw_logs.read_rejects(tmp_path / "short")} == {
        2 + days[2].index(row) for row in late
    }


def test_a_day_that_is_left_out_is_seen_and_refused_when_it_comes(tmp_path):
    mapping = raw_logs.make_mapping(query=None, partition="1d")
    paths = write_days(tmp_path / "in", make_days())
    ingest(mapping, [paths[0]], tmp_path / "log", append=True, now_us=NOW)
    result = ingest(mapping, [paths[2]], tmp_path / "log", append=True, now_us=NOW)
    (warning,) = result.warnings
    assert warning.startswith("no row between 2020-09-14T15:")
    assert "a file is missing" in warning
    for append in (True, False):
        with pytest.raises(
            InputError, match=r"nothing was added: .* fall into 2 published partitions: day1\.csv"
        ):
            ingest(mapping, [paths[1]], tmp_path / "log", append=append, now_us=NOW)


def test_without_append_the_next_file_is_refused_whole_and_told_what_to_do(tmp_path):
    mapping = raw_logs.make_mapping(query=None, partition="1d")
    paths = write_days(tmp_path / "in", make_days())
    first = ingest(mapping, [paths[0]], tmp_path / "log", now_us=NOW)
    assert "for more files use --append" in first.as_text()
    before = raw_logs.log_bytes(tmp_path / "log")
    with pytest.raises(
        InputError, match=r"published partition: day1\.csv .*into a new output directory, .* with --append"
    ):
        ingest(mapping, [paths[1]], tmp_path / "log", now_us=NOW)
    assert raw_logs.log_bytes(tmp_path / "log") == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"label": "rating >= 3"},
            r"label: >= 4.0, and the mapping now has label: >= 3.0; allowed: the same",
        ),
        ({"query": None}, "query: sessions of gap 1800 s, and the mapping now has query: none"),
        ({"partition": "1h"}, "partition: 86400 s, and the mapping now has partition: 3600 s"),
        ({"weight": None}, "weight: a column, and the mapping now has weight: none"),
    ],
)
def test_a_log_has_one_rule_for_labels_weights_queries_and_partitions(tmp_path, changes, message):
    content = {"label": "rating >= 4", "query": QUERIES["session"], "partition": "1d", "weight": "weight"}
    paths = write_days(tmp_path / "in", make_days())
    ingest(raw_logs.make_mapping(**content), [paths[0]], tmp_path / "log", append=True, now_us=NOW)
    before = raw_logs.log_bytes(tmp_path / "log")
    other = raw_logs.make_mapping(**content | changes)
    # Neither a new file nor the same one.
    for path in paths[1], paths[0]:
        with pytest.raises(InputError, match=message):
            ingest(other, [path], tmp_path / "log", append=True, now_us=NOW)
    assert raw_logs.log_bytes(tmp_path / "log") == before
    same = {"query": {"session": {"by": "user", "gap": "30m"}}, "partition": "24h"}
    same_mapping = raw_logs.make_mapping(**content | same)
    assert ingest(same_mapping, [paths[1]], tmp_path / "log", append=True, now_us=NOW).rows > 0


def test_the_last_day_of_all_is_ingested(tmp_path):
    rows = [{**row, "time": "253402257600"} for row in raw_logs.make_rows(20)]
    path = raw_logs.write_rows(tmp_path / "in", rows, name="never")
    mapping = raw_logs.make_mapping(query=None, partition="1d")
    result = ingest(mapping, [path], tmp_path / "log", now_us=NOW)
    assert result.examples == 20 and "10000-01-01T00:00:00Z" in result.as_text()


@pytest.mark.slow(first=1)
@pytest.mark.parametrize("query", QUERIES)
def test_the_same_command_again_adds_nothing(tmp_path, query):
    mapping = raw_logs.make_mapping(query=QUERIES[query], partition="1d")
    paths = write_days(tmp_path / "in", make_days())
    log = tmp_path / "log"
    for number, path in enumerate(paths[:3]):
        ingest(mapping, [path], log, append=True, now_us=NOW)
        before = raw_logs.log_bytes(log), read_state(log)
        for again in paths[: number + 1]:
            result = ingest(mapping, [again], log, append=True, now_us=NOW)
            assert result.known_files == [again.name]
            assert (raw_logs.log_bytes(log), read_state(log)) == before
    # Among new files those that are there are left out.
    result = ingest(mapping, paths, log, now_us=NOW)
    assert result.known_files == [path.name for path in paths[:3]]
    ingest(mapping, paths, tmp_path / "whole", now_us=NOW)
    assert_same_log(log, tmp_path / "whole")


def test_lines_of_files_without_a_time_count_on(tmp_path):
    rows = raw_logs.make_rows(90, seed=2)
    order = {"row_order": {"start": "2020-01-01T00:00:00Z", "step_us": 1_000_000}}
    mapping = raw_logs.make_mapping(time=order, query=None, partition="1m", example_id=None)
    paths = [
        raw_logs.write_rows(tmp_path / "in", rows[30 * n : 30 * n + 30], name=f"part{n}") for n in range(3)
    ]
    ingest(mapping, paths, tmp_path / "whole")
    append_all(mapping, paths, tmp_path / "log")
    assert_same_log(tmp_path / "log", tmp_path / "whole")
    log = tmp_path / "changed"
    ingest(mapping, [paths[0]], log, append=True)
    raw_logs.write_rows(tmp_path / "in", rows[:29], name="part0")
    with pytest.raises(InputError, match="a file of this name with other content"):
        ingest(mapping, [paths[0]], log, append=True)


class Killed(BaseException):
    """What no program catches."""


def die():
    raise Killed


@pytest.mark.slow(first=2)
@pytest.mark.parametrize(
    "point", ["write.half", "fsync.before", "rename.before", "rename.after", "link.after"]
)
def test_killed_anywhere_and_run_again(tmp_path, point):
    mapping = raw_logs.make_mapping(query=QUERIES["session"], partition="1d")
    paths = write_days(tmp_path / "in", make_days(days=3, count=60))
    append_all(mapping, paths, tmp_path / "whole")
    kills = 0
    for count in (1, 2, 4, 7):
        log = tmp_path / f"log{count}"
        for path in paths:
            watched = fault_points.Counting(point, count, die, str(log))
            options = {"append": path != paths[-1], "now_us": NOW}
            try:
                with fault_points.watching(watched, training=False):
                    ingest(mapping, [path], log, **options)
            except Killed:
                kills += 1
                ingest(mapping, [path], log, **options)
        assert_same_log(log, tmp_path / "whole")
        assert read_state(log) == read_state(tmp_path / "whole")
    assert kills >= 3


def test_the_next_ingest_completes_one_that_was_killed_while_it_published(tmp_path):
    mapping = raw_logs.make_mapping(query=None, partition="6h")
    paths = write_days(tmp_path / "in", make_days(days=2))
    append_all(mapping, paths, tmp_path / "whole")
    log = tmp_path / "log"
    with (
        pytest.raises(Killed),
        fault_points.watching(fault_points.Counting("link.after", 3, die, str(log)), training=False),
    ):
        ingest(mapping, [paths[0]], log, append=True, now_us=NOW)
    assert len(list_partitions(log)) == 2
    ingest(mapping, [paths[1]], log, now_us=NOW)
    assert_same_log(log, tmp_path / "whole")


def test_a_lost_manifest_comes_back_by_the_same_command(tmp_path):
    mapping = raw_logs.make_mapping(query=None, partition="6h")
    (path,) = write_days(tmp_path / "in", make_days(days=1))
    ingest(mapping, [path], tmp_path / "log", now_us=NOW)
    before = raw_logs.log_bytes(tmp_path / "log")
    manifest = sorted((tmp_path / "log" / "manifests").iterdir())[1]
    shard = sorted((tmp_path / "log" / "shards").iterdir())[0]
    manifest.unlink()
    shard.write_bytes(b"damaged")
    result = ingest(mapping, [path], tmp_path / "log", now_us=NOW)
    assert raw_logs.log_bytes(tmp_path / "log") == before
    assert result.known_rows == 0


def test_held_rows_that_are_damaged_are_named(tmp_path):
    mapping = raw_logs.make_mapping(query=None, partition="1d")
    paths = write_days(tmp_path / "in", make_days(days=2))
    ingest(mapping, [paths[0]], tmp_path / "log", append=True, now_us=NOW)
    (held,) = (tmp_path / "log" / ".ingest").glob("held-*.arrow")
    held.write_bytes(held.read_bytes()[:100])
    with pytest.raises(InputError, match=r"held-.*rows that are kept unpublished cannot be read"):
        ingest(mapping, [paths[1]], tmp_path / "log", append=True, now_us=NOW)


def test_the_command_line(tmp_path, capsys):
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text(
        "input: {type: csv}\ntime: {column: t, unit: s}\nlabel: {column: click}\npartition: 1h\n"
        "features:\n  - {name: user, kind: category, source: user, buckets: 50}\n"
    )
    for number in range(2):
        times = range(FIRST + 5400 * number, FIRST + 5400 * number + 5400, 60)
        lines = [f"{at},{at % 7 == 0:d},u{at % 11}" for at in times]
        (tmp_path / f"{number}.csv").write_text("\n".join(["t,click,user", *lines]) + "\n")
    options = ["--mapping", str(mapping), "--out", str(tmp_path / "log")]

    def run(*files, more=()):
        return main(["ingest", "table", *(str(tmp_path / file) for file in files), *options, *more])

    assert run("0.csv", more=["--append", "--allowed-lateness", "10m"]) == 0
    assert (
        "30 rows of [2020-09-14T01:00:00Z, 2020-09-14T02:00:00Z) are kept unpublished"
        in capsys.readouterr().out
    )
    assert run("1.csv") == 0
    assert "120 examples" in capsys.readouterr().out
    assert run() == 1
    assert "no input is given" in capsys.readouterr().err
    assert run("1.csv", more=["--allowed-lateness", "10m"]) == 1
    assert "--allowed-lateness goes with --append" in capsys.readouterr().err
    assert run("1.csv", more=["--append", "--allowed-lateness", "soon"]) == 1
    assert "--allowed-lateness soon: a duration is a whole number" in capsys.readouterr().err


def test_a_known_file_without_append_publishes_what_is_held_back(tmp_path):
    mapping = raw_logs.make_mapping(query=None, partition="1d")
    paths = write_days(tmp_path / "in", make_days(days=2))
    ingest(mapping, paths, tmp_path / "whole", now_us=NOW)
    for path in paths:
        ingest(mapping, [path], tmp_path / "log", append=True, now_us=NOW)
    result = ingest(mapping, [paths[1]], tmp_path / "log", now_us=NOW)
    assert (result.known_files, result.held_rows) == (["day1.csv"], 0)
    assert result.known_rows == result.rows > 0
    assert_same_log(tmp_path / "log", tmp_path / "whole")


EXAMPLES = {
    "input": {"type": "csv"},
    "time": {"column": "t", "unit": "s"},
    "query": None,
    "example_id": "id",
    "label": "y",
    "partition": "1d",
    "features": [{"name": "c", "kind": "category", "source": "c"}],
}


def write_examples(path, days, twice=()):
    """A CSV file with 300 rows of each day; the first row of the days ``twice`` appears again at the end of its day."""
    lines = ["t,y,id,c"]
    for day in days:
        rows = [
            f"{FIRST + day * DAY + 60 * row},{row % 3 == 0:d},{day * 1000 + row},{row}" for row in range(300)
        ]
        lines += rows + ([rows[0]] if day in twice else [])
    path.write_text("\n".join(lines) + "\n")
    return path


def test_duplicates_among_held_rows_are_rejected_when_these_are_published(tmp_path):
    mapping = parse_model(Mapping, EXAMPLES, "test")
    first = write_examples(tmp_path / "first.csv", [0, 1], twice=[0, 1])
    ingest(mapping, [first], tmp_path / "log", append=True, now_us=NOW)
    closed = ingest(mapping, [], tmp_path / "log", now_us=NOW)
    assert (closed.examples, closed.rejected, closed.held_rows) == (300, 1, 0)
    assert len(closed.rejects_file.read_text().splitlines()) == 1
    assert "1 rows rejected" in closed.as_text()


def test_a_close_that_was_killed_while_it_published_is_completed_by_the_same_command(tmp_path, capsys):
    mapping = parse_model(Mapping, EXAMPLES, "test")
    ingest(mapping, [write_examples(tmp_path / "a.csv", [0])], tmp_path / "log", append=True, now_us=NOW)
    with (
        pytest.raises(Killed),
        fault_points.watching(
            fault_points.Counting("link.before", 1, die, str(tmp_path / "log")), training=False
        ),
    ):
        ingest(mapping, [], tmp_path / "log", now_us=NOW)
    assert not list_partitions(tmp_path / "log")
    ingest(mapping, [], tmp_path / "log", now_us=NOW)
    assert len(list_partitions(tmp_path / "log")) == 1
    with pytest.raises(InputError, match="no input is given"):
        ingest(mapping, [], tmp_path / "log", now_us=NOW)


def test_a_refused_ingest_leaves_no_shard_that_readers_take_for_a_lost_partition(tmp_path):
    mapping = parse_model(Mapping, EXAMPLES, "test")
    ingest(mapping, [write_examples(tmp_path / "late.csv", [5])], tmp_path / "log", now_us=NOW)
    path = write_examples(tmp_path / "early.csv", [1, 2], twice=[2])
    with pytest.raises(InputError, match="rejected, more than the allowed share"):
        ingest(mapping, [path], tmp_path / "log", max_reject_share=0.001, now_us=NOW)
    assert len(read_manifests(tmp_path / "log")) == 1


def test_lines_under_row_order_count_on_from_files_that_are_known(tmp_path):
    order = {"row_order": {"start": "2020-01-01T00:00:00Z", "step_us": 1_000_000}}
    content = {**EXAMPLES, "time": order, "partition": "1h"}
    mapping = parse_model(Mapping, content, "test")
    a, b = (write_examples(tmp_path / f"{name}.csv", [day]) for name, day in (("a", 0), ("b", 1)))
    ingest(mapping, [a], tmp_path / "log", append=True, now_us=NOW)
    ingest(mapping, [a, b], tmp_path / "log", now_us=NOW)
    ingest(mapping, [a, b], tmp_path / "whole", now_us=NOW)
    assert [m.rows for m in read_manifests(tmp_path / "log")] == [
        m.rows for m in read_manifests(tmp_path / "whole")
    ]
