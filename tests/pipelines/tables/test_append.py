"""Files that come one after another: cut anywhere, late, twice, killed; the log is that of one ingest of them all."""

import json
import random

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

import raw_logs
from ctr.cli import main
from ctr.data.log import list_partitions, read_manifests
from ctr.io.errors import InputError
from ctr.pipelines.tables.state import read_state
from raw_logs import ingest

DAY = 86_400
HOUR_US = raw_logs.HOUR_US
FIRST = 1_600_041_600
"""The midnight of a day in UTC."""
NOW = (FIRST + 40 * DAY) * 1_000_000


def make_days(shift=16 * 3600, days=4, count=240, seed=1):
    """The rows of whole days that end ``shift`` seconds after midnight, in order of time, day by day."""
    source = random.Random(seed)
    rows = raw_logs.make_rows(count, seed=seed)
    for row in rows:
        row["time"] = str(FIRST + shift - DAY + source.randrange(days * DAY))
    rows.sort(key=lambda row: (int(row["time"]), int(row["id"])))
    # A user belongs to a day and the night after it: else a query column would bring all days together.
    by_day = [[] for _ in range(days)]
    for row in rows:
        day = (int(row["time"]) - FIRST - shift + DAY) // DAY
        row["user"] = f"{day}{row['user']}"
        by_day[day].append(row)
    return by_day


def write_days(folder, days):
    return [raw_logs.write_rows(folder, rows, name=f"day{number}") for number, rows in enumerate(days)]


def append_all(mapping, paths, log, **options):
    return [ingest(mapping, [path], log, append=path != paths[-1], now_us=NOW, **options) for path in paths]


def published(log):
    """The files of a log but its rejects, which are those of one command."""
    return {name: data for name, data in raw_logs.log_bytes(log).items() if not name.startswith("rejects")}


def everything(log):
    return raw_logs.log_bytes(log), read_state(log)


# Rows at so many quarters of an hour, so that many lie exactly at the end of a partition or of the lateness.
ARRIVALS = st.lists(
    st.tuples(st.integers(0, 20), st.sampled_from([0, 0, 0, 1, 4, 9])), min_size=4, max_size=24
)


# A failure is small enough as it is drawn: to make it smaller would take minutes.
@settings(max_examples=10, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(ARRIVALS, st.lists(st.integers(1, 23), max_size=3), st.integers(0, 8), st.sampled_from([0.0, 1.0]))
# A row at the end of the hour before, and a file that is all older than what is held back.
@example([(0, 0), (1, 0), (4, 0), (3, 4), (5, 2)], [3], 0, 0.0)
@example([(13, 0), (0, 14)], [1], 8, 0.0)
def test_any_files_in_any_order_give_the_log_of_one_ingest_or_name_what_is_late(
    tmp_path_factory, arrivals, cuts, lateness, share
):
    """``arrivals`` are quarters of an hour, and how many quarters late each row comes; ``cuts`` make files of them."""
    folder = tmp_path_factory.mktemp("append")
    mapping = raw_logs.make_mapping(query=None, partition="1h")
    log, quarters = folder / "log", sorted(arrivals, key=sum)
    rows = raw_logs.make_rows(len(quarters))
    for row, (quarter, _) in zip(rows, quarters, strict=True):
        row["time"] = str(FIRST + 900 * quarter)
    ends = sorted({min(cut, len(rows)) for cut in cuts} | {len(rows)})
    good, closed, begin, latest = [], set(), 0, 0
    for number, end in enumerate(ends):
        part = list(zip(rows[begin:end], quarters[begin:end], strict=True))
        begin = end
        late = [row for row, (quarter, _) in part if quarter // 4 in closed]
        path = raw_logs.write_rows(folder / "in", [row for row, _ in part], name=f"f{number}")
        options = {"append": True, "allowed_lateness_us": lateness * 900_000_000, "now_us": NOW}
        if len(late) > share * len(part) or len(late) == len(part):
            before, message = published(log), rf"{len(late)} of {len(part)} rows fall into|nothing was added"
            with pytest.raises(InputError, match=message):
                ingest(mapping, [path], log, max_reject_share=share, **options)
            assert published(log) == before
            continue
        result = ingest(mapping, [path], log, max_reject_share=share, **options)
        counted = {"partition: already published": len(late)} if late else {}
        assert (result.rows, result.reject_reasons) == (len(part), counted)
        good += [row for row, _ in part if row not in late]
        # A partition is closed once a row lies at its end or beyond, and as much later as rows may be late.
        latest = max([latest, *(quarter for _, (quarter, _) in part)])
        open_now = {int(row["time"]) - FIRST for row in good}
        closed |= {at // 3600 for at in open_now if at // 3600 * 4 + 4 + lateness <= latest}
        hours = [(start - FIRST * 1_000_000) // HOUR_US for start, _ in list_partitions(log)]
        assert hours == sorted(closed)
        held = [row for row in good if (int(row["time"]) - FIRST) // 3600 not in closed]
        assert result.held_rows == len(held)
    if result.held_rows:
        ingest(mapping, [], log, now_us=NOW)
    ingest(mapping, [raw_logs.write_rows(folder / "in", good, name="whole")], folder / "whole", now_us=NOW)
    assert published(log) == published(folder / "whole")


@pytest.mark.parametrize(
    ("query", "partition", "kept"), [("column", "7d", []), ("session", "1d", ["visitor", "labels"])]
)
def test_days_cut_at_another_midnight_give_the_log_of_one_ingest(tmp_path, query, partition, kept):
    """Also the dictionaries of kept values."""
    changes = {"features": raw_logs.GROWING_FEATURES, "keep_values": kept, "partition": partition}
    mapping = raw_logs.make_mapping(query=raw_logs.QUERIES[query], **changes)
    paths = write_days(tmp_path / "in", make_days(days=3, count=120))
    whole = ingest(mapping, paths, tmp_path / "whole", now_us=NOW)
    results = append_all(mapping, paths, tmp_path / "log")
    assert published(tmp_path / "log") == published(tmp_path / "whole")
    assert any(name.startswith("values/") for name in published(tmp_path / "log")) == bool(kept)
    assert sum(result.rows for result in results) == whole.rows
    assert sum(result.examples for result in results) == whole.examples == whole.rows
    assert all(result.held_rows for result in results[:-1])
    assert results[-1].held_rows == 0
    assert not any(raw_logs.other_warnings(result) for result in (*results, whole))


def test_late_rows_are_refused_by_file_and_first_row_or_set_aside_by_their_lines(tmp_path):
    mapping = raw_logs.make_mapping(query=None, partition="1d")
    days = make_days(shift=0)
    late = [days[0].pop() for _ in range(3)]
    days[2] += late
    paths = write_days(tmp_path / "in", days)
    # Without lateness the first day is closed by the rows of the second.
    log = tmp_path / "log"
    for path in paths[:2]:
        ingest(mapping, [path], log, append=True, now_us=NOW)
    before = everything(log)
    message = r"3 of \d+ rows fall into 1 published .*: day2\.csv \(3\); the first is day2\.csv row \d+"
    with pytest.raises(InputError, match=message):
        ingest(mapping, [paths[2]], log, append=True, now_us=NOW)
    assert everything(log) == before
    result = ingest(mapping, [paths[2]], log, append=True, max_reject_share=0.2, now_us=NOW)
    assert (result.rejected, result.reject_reasons) == (3, {"partition: already published": 3})
    assert "fall into 1 published partition" in raw_logs.other_warnings(result)[0]
    rows = {reject["row"] for reject in raw_logs.read_rejects(log)}
    assert rows == {2 + days[2].index(row) for row in late}


def test_late_and_malformed_rows_count_together_against_the_allowed_share(tmp_path):
    mapping = raw_logs.make_mapping(query=None, partition="1d")
    days = make_days(shift=0, days=2, count=80)
    days[1] += [days[0].pop() for _ in range(2)]
    for row in days[1][:2]:
        row["rating"] = "bad"
    share = 2 / len(days[1])
    paths = write_days(tmp_path / "in", days)
    ingest(mapping, [paths[0]], tmp_path / "log", now_us=NOW)
    # Also where no row is published, since those that are good stay held back.
    for append in (False, True):
        with pytest.raises(InputError, match=f"4 of {len(days[1])} rows rejected"):
            ingest(mapping, [paths[1]], tmp_path / "log", append=append, now_us=NOW, max_reject_share=share)


def test_a_day_that_is_left_out_is_seen_and_refused_when_it_comes_as_is_any_file_without_append(tmp_path):
    mapping = raw_logs.make_mapping(query=None, partition="1d")
    paths = write_days(tmp_path / "in", make_days())
    ingest(mapping, [paths[0]], tmp_path / "log", append=True, now_us=NOW)
    result = ingest(mapping, [paths[2]], tmp_path / "log", append=True, now_us=NOW)
    (warning,) = raw_logs.other_warnings(result)
    assert warning.startswith("no row between 2020-09-14T15:") and "a file is missing" in warning
    message = r"nothing was added: .* fall into 2 published partitions: day1\.csv"
    for append in (True, False):
        with pytest.raises(InputError, match=message):
            ingest(mapping, [paths[1]], tmp_path / "log", append=append, now_us=NOW)
    alone = tmp_path / "alone"
    assert "for more files use --append" in ingest(mapping, [paths[0]], alone, now_us=NOW).as_text()
    before = everything(alone)
    message = r"published partition: day1\.csv .*into a new output directory, .* with --append"
    with pytest.raises(InputError, match=message):
        ingest(mapping, [paths[1]], alone, now_us=NOW)
    assert everything(alone) == before


def test_a_log_has_one_rule_for_labels_weights_queries_and_partitions(tmp_path):
    content = {"query": raw_logs.QUERIES["session"], "partition": "1d"}
    paths = write_days(tmp_path / "in", make_days(days=2, count=60))
    log = tmp_path / "log"
    ingest(raw_logs.make_mapping(**content), [paths[0]], log, append=True, now_us=NOW)
    before = raw_logs.log_bytes(log)
    for changes, message in (
        ({"label": "rating >= 3"}, "label: >= 4.0, and the mapping now has label: >= 3.0; allowed: the"),
        ({"query": None}, "query: sessions of gap 1800 s, and the mapping now has query: none"),
        ({"partition": "1h"}, "partition: 86400 s, and the mapping now has partition: 3600 s"),
        ({"weight": None}, "weight: a column, and the mapping now has weight: none"),
    ):
        # Neither a new file nor the same one.
        for path in paths[1], paths[0]:
            with pytest.raises(InputError, match=message):
                ingest(raw_logs.make_mapping(**content | changes), [path], log, append=True, now_us=NOW)
    assert raw_logs.log_bytes(log) == before
    same = {"query": {"session": {"by": "user", "gap": "30m"}}, "partition": "24h"}
    assert ingest(raw_logs.make_mapping(**same), [paths[1]], log, append=True, now_us=NOW).rows > 0


def test_the_last_day_of_all_is_ingested(tmp_path):
    rows = [{**row, "time": "253402257600"} for row in raw_logs.make_rows(20)]
    path = raw_logs.write_rows(tmp_path / "in", rows, name="never")
    mapping = raw_logs.make_mapping(query=None, partition="1d")
    result = ingest(mapping, [path], tmp_path / "log", now_us=NOW)
    assert result.examples == 20 and "10000-01-01T00:00:00Z" in result.as_text()


def test_lines_of_files_without_a_time_count_on(tmp_path):
    rows = raw_logs.make_rows(90, seed=2)
    order = {"row_order": {"start": "2020-01-01T00:00:00Z", "step_us": 1_000_000}}
    mapping = raw_logs.make_mapping(time=order, query=None, partition="1m", example_id=None)
    parts = [rows[begin : begin + 30] for begin in (0, 30, 60)]
    paths = write_days(tmp_path / "in", parts)
    ingest(mapping, paths, tmp_path / "whole")
    append_all(mapping, paths, tmp_path / "log")
    # Also beside files that are known.
    ingest(mapping, [paths[0]], tmp_path / "again", append=True)
    ingest(mapping, paths, tmp_path / "again")
    wanted = published(tmp_path / "whole")
    assert published(tmp_path / "log") == published(tmp_path / "again") == wanted


@pytest.mark.parametrize("appended", [False, True])
def test_a_copy_under_another_name_is_named_or_refused(appended, tmp_path):
    """Rows without an id of their own are others in a file of another name."""
    mapping = raw_logs.make_mapping(query=None, example_id=None, partition="1d")
    days = make_days(shift=0, days=2, count=80)
    paths = write_days(tmp_path / "in", days)
    copy = raw_logs.write_rows(tmp_path / "in", days[1], name="day1 (1)")
    log, commands = tmp_path / "log", [paths, [copy]] if appended else [[*paths, copy]]
    results = [ingest(mapping, files, log, append=appended, now_us=NOW) for files in commands]
    (warning,) = raw_logs.other_warnings(results[-1])
    assert warning.startswith("day1 (1).csv has the same bytes as day1.csv, and its rows count again")
    assert f"\nwarning: {warning}" in results[-1].as_text()
    assert not any(raw_logs.other_warnings(result) for result in results[:-1])
    assert not appended or results[-1].held_rows == 2 * len(days[1])


@pytest.mark.parametrize("changed", ["published", "held back"])
def test_a_file_that_comes_again_with_other_content_is_refused_before_anything_is_added(
    changed, tmp_path, capsys
):
    content = raw_logs.base_content(query="none", partition="1d")
    (tmp_path / "mapping.yaml").write_text(json.dumps(content))
    days = make_days(shift=0, days=4, count=160)
    paths = write_days(tmp_path / "in", days)
    options = ["--append", "--mapping", str(tmp_path / "mapping.yaml"), "--out", str(tmp_path / "log")]
    for path in paths[:2]:
        assert main(["ingest", "table", str(path), *options]) == 0
    before = everything(tmp_path / "log")
    again = 0 if changed == "published" else 1
    corrected = [{**row, "rating": "5"} for row in days[again]]
    raw_logs.write_rows(tmp_path / "in", corrected, name=f"day{again}")
    capsys.readouterr()
    for inputs in ([paths[again]], [paths[2], paths[again]], [tmp_path / "in"]):
        assert main(["ingest", "table", *map(str, inputs), *options]) == 1
        text = capsys.readouterr().err
        assert f"day{again}.csv: " in text and "with other content" in text and "nothing was added" in text
        assert "in a file of another name" in text and "another output directory" in text
        assert everything(tmp_path / "log") == before
    # Without that file the log goes on.
    assert main(["ingest", "table", str(paths[2]), *options]) == 0


LATENESS = "--allowed-lateness"


def test_the_command_line(tmp_path, capsys):
    content = raw_logs.base_content(query="none", partition="1d")
    (tmp_path / "mapping.yaml").write_text(json.dumps(content))
    first, second = map(str, write_days(tmp_path / "in", make_days(days=2, count=60)))
    options = ["--mapping", str(tmp_path / "mapping.yaml"), "--out", str(tmp_path / "log")]
    for arguments, status, text in (
        ([first, "--append", LATENESS, "10m"], 0, "T00:00:00Z, 2020-09-15T00:00:00Z) are kept"),
        ([second], 0, "published up to 2020-09-16T00:00:00Z"),
        ([], 1, "no input is given"),
        ([second, LATENESS, "10m"], 1, "--allowed-lateness goes with --append"),
        ([second, "--append", LATENESS, "soon"], 1, "--allowed-lateness soon: a duration is a whole number"),
    ):
        assert main(["ingest", "table", *arguments, *options]) == status
        assert text in "".join(capsys.readouterr())


def test_duplicates_among_held_rows_are_rejected_when_these_are_published(tmp_path):
    mapping = raw_logs.make_mapping(query=None, partition="1d")
    days = make_days(shift=0, days=2, count=400)
    (path,) = write_days(tmp_path / "in", [[row for day in days for row in (*day, day[0])]])
    result = ingest(mapping, [path], tmp_path / "log", append=True, now_us=NOW)
    start = FIRST * 1_000_000
    assert result.held_partitions == [(start, start + 24 * HOUR_US)]
    # Also by a command that names a known file.
    closed = ingest(mapping, [path], tmp_path / "log", now_us=NOW)
    assert (closed.known_files, closed.rows, closed.held_rows) == ([path.name], 0, 0)
    assert (closed.examples, closed.rejected) == (len(days[1]), 1)
    assert len(closed.rejects_file.read_text().splitlines()) == 1
    assert "1 rows rejected" in closed.as_text()
    with pytest.raises(InputError, match="holds no rows back that could be published"):
        ingest(mapping, [], tmp_path / "log")


def test_a_refused_ingest_leaves_no_shard_that_readers_take_for_a_lost_partition(tmp_path):
    mapping = raw_logs.make_mapping(query=None, partition="1d")
    early, twice, last = make_days(shift=0, days=3)
    late, before = write_days(tmp_path / "in", [last, [*early, *twice, twice[0]]])
    ingest(mapping, [late], tmp_path / "log", now_us=NOW)
    with pytest.raises(InputError, match="rejected, more than the allowed share"):
        ingest(mapping, [before], tmp_path / "log", max_reject_share=0.001, now_us=NOW)
    assert len(read_manifests(tmp_path / "log")) == 1
