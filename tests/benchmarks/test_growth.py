"""The page of plots of how speed grows: exponents, what is kept, and the drawing."""

import growth
import numpy as np
import pytest


def test_the_exponent_is_the_slope_of_the_time_of_an_example():
    values = np.array([10, 30, 100, 1000])
    speeds = dict(zip(values.tolist(), (5e4 * values**-0.7).tolist(), strict=True))
    assert growth.exponent(speeds) == pytest.approx(0.7)
    assert growth.exponent(dict.fromkeys(speeds, 3.0)) == pytest.approx(0.0, abs=1e-12)
    assert growth.exponent({10: 1.0}) is None


def test_what_is_finished_is_kept_and_shown(tmp_path, monkeypatch):
    calls = []

    def speed(features):
        calls.append(features)
        return 1000.0 / features

    monkeypatch.setattr(growth, "feature_speed", speed)
    nothing = {"rows": (), "ids": (), "workers": ()}
    growth.measure(tmp_path, features=(4, 8), **nothing)
    found = growth.measure(tmp_path, features=(2, 4, 8), plot=tmp_path / "plot.svg", **nothing)
    assert calls == [4, 8, 2]
    assert {value: row["examples_per_second"] for value, row in found["features"].items()} == {
        **{"2": 500.0, "4": 250.0, "8": 125.0}
    }
    assert list(found["features"]) == ["2", "4", "8"]
    assert found["exponents"] == {"features": {"exponent": pytest.approx(1)}}
    assert b"<svg" in (tmp_path / "plot.svg").read_bytes()
