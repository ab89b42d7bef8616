"""The page of plots of how speed grows: exponents, what is kept, and the drawing."""

import json
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

from benchmark_modules import imported


@pytest.fixture(scope="module")
def growth() -> Iterator[ModuleType]:
    yield from imported("growth")


def test_the_exponent_is_the_slope_of_the_time_of_an_example(growth):
    values = np.array([10, 30, 100, 1000])
    speeds = dict(zip(values.tolist(), (5e4 * values**-0.7).tolist(), strict=True))
    assert growth.exponent(speeds) == pytest.approx(0.7)
    assert growth.exponent(dict.fromkeys(speeds, 3.0)) == pytest.approx(0.0, abs=1e-12)
    assert growth.exponent({10: 1.0}) is None


def test_what_is_finished_is_kept_and_shown(growth, tmp_path, monkeypatch, capsys):
    calls = []

    def speed(features):
        calls.append(features)
        return 1000.0 / features

    monkeypatch.setattr(growth, "feature_speed", speed)
    arguments = ["--out", str(tmp_path), "--rows", "--ids", "--workers", "--plot", str(tmp_path / "plot.svg")]
    growth.main([*arguments, "--features", "4", "8"])
    growth.main([*arguments, "--features", "2", "4", "8"])
    assert calls == [4, 8, 2]
    kept = json.loads((tmp_path / "growth.json").read_text())
    assert kept["features"] == {"4": 250.0, "8": 125.0, "2": 500.0}
    shown = capsys.readouterr().out
    assert "+1.00" in shown and "features" in shown and "workers" not in shown
    assert b"<svg" in (tmp_path / "plot.svg").read_bytes()
