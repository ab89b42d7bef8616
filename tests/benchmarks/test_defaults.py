"""The benchmark of the defaults: its worlds, the text that Vowpal Wabbit reads, and its verdicts."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import defaults
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from many_logs import logs, systems, vowpal

from ctr.eval.progressive import ProgressiveMetrics

pytestmark = pytest.mark.soak


def small_log(sizes: list[int], seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    rows = sum(sizes)
    lengths = rng.integers(0, 4, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return logs.ExactLog(
        ("user", "item"),
        rng.integers(0, 5, (rows, 2)).astype(np.int32),
        {"tags": (rng.integers(0, 3, offsets[-1]).astype(np.int32), offsets)},
        rng.integers(0, 2, rows).astype(np.float32),
        np.repeat(np.arange(len(sizes)), sizes),
        np.repeat(np.arange(len(sizes)), sizes) * 7,
        np.arange(rows),
    )


def vowpal_lines(log: Any, row: int, labelled: bool) -> str:
    values, offsets = log.multivalent["tags"]
    tags = " ".join(f"v{value}" for value in values[offsets[row] : offsets[row + 1]])
    label = {0.0: "-1", 1.0: "1"}[float(log.label[row])] if labelled else ""
    return f"{label} |a v{log.ids[row, 0]} |b v{log.ids[row, 1]} |c {tags}"


def expected_lines(log: Any, sizes: list[int]) -> Iterator[str]:
    begin = 0
    for size in sizes:
        rows = range(begin, begin + size)
        if size > 1:
            yield from (vowpal_lines(log, row, labelled=False) for row in rows)
        yield from (vowpal_lines(log, row, labelled=True) for row in rows)
        begin += size


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.integers(1, 20), st.integers(0, 99))
def test_vowpal_wabbit_reads_a_query_without_labels_and_then_with_them(sizes, at_once, seed):
    log = small_log(sizes, seed)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(vowpal, "ROWS_AT_ONCE", at_once)
        text = Path(folder) / "rows.txt"
        vowpal.write_text(log, text)
        assert text.read_text().split("\n")[:-1] == list(expected_lines(log, sizes))


def result(folder: Path, name: str, label: np.ndarray, logit: np.ndarray) -> Any:
    metrics = ProgressiveMetrics()
    metrics.update(label, logit, np.ones(len(label)), np.arange(len(label)))
    states = folder / f"{name}.npz"
    np.savez(states, **metrics.to_arrays())
    return systems.Result("default", metrics.line(), states)


def test_verdicts(tmp_path):
    rng = np.random.default_rng(0)
    truth = rng.normal(-1, 1.5, 5000)
    label = (rng.random(5000) < 1 / (1 + np.exp(-truth))).astype(np.float32)
    good = result(tmp_path, "good", label, truth)
    like_good = result(tmp_path, "like_good", label, truth + rng.normal(0, 0.02, 5000))
    bad = result(tmp_path, "bad", label, truth + rng.normal(0, 2, 5000))
    high = result(tmp_path, "high", label, truth + 0.5)
    judge = defaults.judge
    for metric in ("auc", "logloss"):
        assert judge([good], [bad], metric).word == "yes"
        assert judge([bad], [good], metric).word == "NO"
        # The best of several counts.
        assert judge([bad], [bad, good], metric).word == "NO"
        assert {judge([good], [like_good], metric).word, judge([like_good], [good], metric).word} == {
            "yes",
            "within interval",
        }
        assert judge([], [good], metric).word == judge([good], [], metric).word == "-"
    # Predictions that hardly differ have no interval, which is no excuse.
    flat = result(tmp_path, "flat", label, 0.001 * rng.normal(0, 1, 5000))
    assert judge([flat], [good], "auc").word == "NO"
    assert str(judge([flat], [good], "auc")).endswith("± ?)")
    # The order of predictions is that of the better logloss, and not their level.
    assert defaults.judge([high], [good], "auc").word == "yes"
    assert defaults.judge([high], [good], "logloss").word == "NO"
    assert defaults.judge_calibration([good]) in ("yes", "within interval")
    assert defaults.judge_calibration([high]) == "NO"
