"""What a run that is finished and asked for again keeps of its summary."""

import json

import pytest

from ctr.training.run.results import TIMING, timing_before


def test_the_first_timing_stands(tmp_path):
    path = tmp_path / "summary.json"
    timing = {name: 1.5 + number for number, name in enumerate(TIMING)}
    path.write_text(json.dumps({"examples": 3, **timing}))
    assert timing_before(path) == timing


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "[]",
        "[1]",
        "3",
        "null",
        '"text"',
        "{}",
        '{"examples_per_second": "fast", "step_ms_p50": [1], "shampoo_seconds_waited": true}',
        '{"examples_per_second": NaN}',
        "[" * 100_000,
        "\x00",
    ],
)
def test_what_tells_no_timing_gives_none(tmp_path, content):
    path = tmp_path / "summary.json"
    if content is not None:
        path.write_text(content)
    assert timing_before(path) == dict.fromkeys(TIMING)
