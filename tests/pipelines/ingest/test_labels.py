"""Further labels of a table: a sidecar of the log, published with each partition."""

import random
import shutil

import numpy as np
import pytest

import fault_points
from ctr.config import parse_model
from ctr.data.labels import SIDECAR, label_columns
from ctr.data.log import read_manifests
from ctr.data.mapping import Mapping
from ctr.data.sidecar import read_sidecar_partition
from ctr.io.errors import InputError
from ctr.pipelines.ingest.run import ingest
from ctr.pipelines.ingest.state import read_state
from raw_logs import log_bytes

HOUR = 3600
FIRST = 1_600_041_600
NOW = (FIRST + 10**7) * 1_000_000
COLUMNS = ("id", "time", "user", "clicked", "bought", "watched", "rated")
LABELS = {
    "purchase": {"time": {"column": "bought", "unit": "s"}, "until": "watched"},
    "rating": {"value": "rated", "after": "1h"},
}


def mapping_of(labels=LABELS, **changes):
    content = {
        "input": {"type": "csv"},
        "time": {"column": "time", "unit": "s"},
        "example_id": "id",
        "label": "clicked",
        "labels": labels,
        "partition": "6h",
        "features": [{"name": "user", "kind": "category", "source": "user", "buckets": 20}],
    }
    return parse_model(Mapping, {**content, **changes}, "test")


def write_days(folder, days=3, rows=40):
    source, paths = random.Random(1), []
    folder.mkdir()
    for day in range(days):
        times = sorted(FIRST + 24 * HOUR * day + source.randrange(24 * HOUR) for _ in range(rows))
        lines = [",".join(COLUMNS)]
        for place, time in enumerate(times):
            bought = time + source.randrange(48 * HOUR) if source.random() < 0.4 else ""
            watched = source.choice(["", time + 24 * HOUR])
            own = day * rows + place, time, place % 7, source.randrange(2), bought, watched
            lines.append(",".join(map(str, (*own, source.choice(["", 0, 1])))))
        paths.append(folder / f"day{day}.csv")
        paths[-1].write_text("\n".join(lines) + "\n")
    return paths


def read_labels(log):
    """By example id the values of all columns of the log's labels."""
    found = {}
    for manifest in read_manifests(log):
        table = read_sidecar_partition(log, SIDECAR, manifest).to_pydict()
        ids = table.pop("example_id")
        found |= dict(zip(ids, zip(*table.values(), strict=True), strict=True))
    return found


def test_labels_of_a_table_in_seconds_after_the_query(tmp_path):
    paths = write_days(tmp_path / "in")
    ingest(mapping_of(), paths, tmp_path / "log", now_us=NOW)
    found = read_labels(tmp_path / "log")
    expected = {}
    for path in paths:
        for line in path.read_text().splitlines()[1:]:
            id_, time, _, _, bought, watched, rated = line.split(",")
            purchase = float(bought) - int(time) if bought else None, float(watched or time) - int(time)
            rating = HOUR if rated == "1" else None, np.inf if rated else 0.0
            expected[int(id_)] = (*purchase, *rating)
    assert found == expected
    without = mapping_of({"purchase": {"time": LABELS["purchase"]["time"]}})
    ingest(without, paths, tmp_path / "watched", now_us=NOW)
    assert {known for _, known in read_labels(tmp_path / "watched").values()} == {np.inf}


def test_of_a_query_that_lasts_the_labels_count_from_its_last_row(tmp_path):
    rows = [",".join(COLUMNS), f"1,{FIRST},5,0,{FIRST + 10},,0", f"2,{FIRST + 60},5,1,{FIRST + 90},,1"]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    ingest(mapping_of(query={"column": "user"}), [tmp_path / "rows.csv"], tmp_path / "log", now_us=NOW)
    assert {id_: row[0] for id_, row in read_labels(tmp_path / "log").items()} == {1: 0.0, 2: 30.0}


def test_day_by_day_or_killed_anywhere_the_same_bytes(tmp_path):
    paths, mapping, kills = write_days(tmp_path / "in"), mapping_of(), 0
    ingest(mapping, paths, tmp_path / "whole", now_us=NOW)

    def files(log):
        return {name: data for name, data in log_bytes(log).items() if not name.startswith("rejects")}

    assert sum(name.startswith(f"sidecars/{SIDECAR}/") for name in files(tmp_path / "whole")) == 24

    def die():
        raise KeyboardInterrupt

    for count, point in (
        (0, ""),
        (2, "link.after"),
        (3, "write.half"),
        (9, "rename.before"),
        (13, "rename.after"),
    ):
        log = tmp_path / f"log{count}"
        for path in paths:
            options = {"append": path != paths[-1], "now_us": NOW}
            try:
                with fault_points.watching(
                    fault_points.Counting(point, count, die, str(log)), training=False
                ):
                    ingest(mapping, [path], log, **options)
            except KeyboardInterrupt:
                kills += 1
                ingest(mapping, [path], log, **options)
        assert files(log) == files(tmp_path / "whole")
    assert kills >= 4
    assert read_state(tmp_path / "log0").rules["labels"] == "purchase, rating"


def test_the_labels_of_a_killed_ingest_make_way_for_those_of_other_rows(tmp_path):
    paths, log, killed = write_days(tmp_path / "in", days=1), tmp_path / "log", tmp_path / "killed"

    def die():
        # An ingest that only fails tidies up.
        shutil.copytree(log, killed)
        raise SystemExit

    with (
        pytest.raises(SystemExit),
        fault_points.watching(fault_points.Counting("link.after", 5, die, str(log)), training=False),
    ):
        ingest(mapping_of(), paths, log, now_us=NOW)
    # Of all four partitions there are labels, and nothing is published.
    assert len(list((killed / "sidecars" / SIDECAR).glob("*.json"))) == 4 and not read_manifests(killed)
    assert not list((log / "sidecars" / SIDECAR).iterdir())
    text = paths[0].read_text()
    paths[0].write_text("\n".join(text.splitlines()[:-3]) + "\n")
    ingest(mapping_of(), paths, killed, now_us=NOW)
    assert len(read_labels(killed)) == 37


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"purchase": {}}, "exactly one of time and value is required"),
        ({"purchase": {"value": "rated"}}, "value requires after"),
        ({"a-b": {"time": "bought"}}, "labels.a-b"),
    ],
)
def test_labels_that_are_refused(labels, message):
    with pytest.raises(InputError, match=message):
        mapping_of(labels)


def test_rows_are_rejected_whose_label_is_unreadable_or_before_them(tmp_path):
    rows = [
        ",".join(COLUMNS),
        f"1,{FIRST},5,0,{FIRST - 1},{FIRST},0",
        f"2,{FIRST},5,0,soon,{FIRST},0",
        f"3,{FIRST},5,0,,{FIRST},perhaps",
        f"4,{FIRST},5,1,,{FIRST},1",
    ]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    result = ingest(mapping_of(), [tmp_path / "rows.csv"], tmp_path / "log", max_reject_share=1.0, now_us=NOW)
    assert result.rejected == 3
    assert set(result.reject_reasons) == {
        "labels.purchase: before the row's own time",
        "labels.purchase: unreadable or out of range",
        "labels.rating: not a label",
    }
    assert label_columns("purchase") == ("after:purchase", "known:purchase")


def test_a_log_whose_other_partitions_have_no_such_labels_is_refused(tmp_path):
    paths = write_days(tmp_path / "in", days=2)
    ingest(mapping_of({}), paths[:1], tmp_path / "log", append=True, now_us=NOW)
    with pytest.raises(
        InputError, match="ingested with labels: none, and the mapping now has labels: purchase"
    ):
        ingest(mapping_of(), paths, tmp_path / "log", append=True, now_us=NOW)
