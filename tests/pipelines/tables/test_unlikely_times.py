"""Times that are unlikely are named."""

import re

import pytest

import raw_logs
from raw_logs import ingest

NOW = 1_700_000_000_000_000


@pytest.mark.parametrize(
    ("unit", "now", "warning"),
    [
        ("s", NOW, None),
        ("ms", NOW, r"40 of 40 times lie before the year 1990, the earliest at 1970-01-19T.*time.unit or"),
        ("s", 1_600_000_000_000_000, "40 of 40 times lie in the future, the latest at 2020-09-13T"),
    ],
)
def test_unlikely_times_are_named(tmp_path, unit, now, warning):
    mapping = raw_logs.make_mapping(time={"column": "time", "unit": unit}, query=None)
    path = raw_logs.write_rows(tmp_path / "in", raw_logs.make_rows(40))
    result = ingest(mapping, [path], tmp_path / "log", now_us=now)
    assert len(raw_logs.other_warnings(result)) == (warning is not None)
    assert all(re.match(warning, one) for one in raw_logs.other_warnings(result))


HOURS = [f"2025-10-26T{hour:02d}:{m:02d}:00" for hour in (0, 1, 2, 2, 3, 4) for m in range(0, 60, 10)]


@pytest.mark.parametrize(
    ("texts", "warned"),
    [
        (HOURS, True),
        ([text.replace("T", " ") for text in HOURS], True),
        (sorted(HOURS), False),
        ([f"{text}Z" for text in HOURS], False),
        ([f"{text}+02:00" for text in HOURS], False),
        (HOURS * 2, False),
        (HOURS + HOURS[:3], False),
    ],
    ids=["local", "blank", "sorted", "utc", "offset", "unordered", "repeated"],
)
def test_local_times_that_go_back_by_an_hour_are_named(texts, warned, tmp_path):
    """In a file, wherever it is cut; the rows of two hours share one time."""
    rows = [{"time": text, "user": number, "label": 0} for number, text in enumerate(texts)]
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    (tmp_path / "rows.csv").write_text("".join(f"{line}\n" for line in lines))
    mapping = raw_logs.make_mapping(
        input={"type": "csv"},
        time={"column": "time", "format": "iso8601"},
        label={"column": "label"},
        **dict.fromkeys(("joins", "query", "example_id", "weight", "derive")),
        features=[{"name": "user", "kind": "category", "source": "user"}],
    )
    result = ingest(mapping, [tmp_path / "rows.csv"], tmp_path / "log", now_us=2**62, block_bytes=200)
    zone_warnings = [one for one in result.warnings if "daylight saving" in one]
    assert len(zone_warnings) == warned
    assert all("almost an hour, at 2025-10-26T02:00:00Z" in one for one in zone_warnings)
