"""Singular values of matrices that were built from them, and of a run's weights."""

import json

import numpy as np
import pytest

from ctr.training.analysis import weight_spectra as module
from ctr.training.analysis.weight_spectra import weight_spectra
from ctr.training.loop import train
from ctr.training.run import checkpoint
from growing_logs import lines_of
from small_runs import make_config


def with_singular_values(rows, columns, values, seed=0) -> np.ndarray:
    """A float32 matrix of these singular values, from random orthogonal factors."""
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.normal(size=(side, len(values))))[0] for side in (rows, columns))
    return (left * values @ right.T).astype(np.float32)


def spectrum_of(matrix, **options) -> dict:
    [entry] = weight_spectra([("w", matrix)], **options)["weights"]
    return entry


def singular_values(matrix) -> np.ndarray:
    return np.array(spectrum_of(matrix)["singular_values"])


@pytest.fixture(params=["svd", "gram"])
def method(request, monkeypatch) -> str:
    if request.param == "gram":
        monkeypatch.setattr(module, "_EXACT_WORK", 0)
        monkeypatch.setattr(module, "_GRAM_ROWS", 7)
    return request.param


def test_known_singular_values(method):
    for shape, scale in (((40, 12), 1.0), ((12, 40), 1e-30), ((20, 20), 1e30)):
        known = scale * np.geomspace(3.0, 0.01, 12)
        entry = spectrum_of(with_singular_values(*shape, known))
        values = np.array(entry["singular_values"])
        assert (entry["name"], entry["shape"], entry["method"]) == ("w", list(shape), method)
        assert len(values) == min(shape)
        # The weights' own rounding.
        np.testing.assert_allclose(values[:12], known, rtol=1e-5)
        assert (values[12:] <= 1e-6 * known[0]).all()
    assert singular_values(np.zeros((3, 5), np.float32)).tolist() == [0.0, 0.0, 0.0]
    # With the digits of float32.
    assert singular_values(np.diag([1 / 3, 1e-20 / 7]).astype(np.float32)).tolist()[0] == 0.3333333


def test_only_matrices_with_both_sides_above_1():
    arrays = {
        "bias": np.ones(4), "head": np.ones((4, 1)), "row": np.ones((1, 4)), "scalar": np.ones(()),
        "stack": np.ones((2, 3, 4)), "empty": np.ones((0, 4)), "w": np.ones((2, 2)),
    }  # fmt: skip
    entries = weight_spectra((name, array.astype(np.float32)) for name, array in arrays.items())["weights"]
    assert [entry["name"] for entry in entries] == ["w"]
    assert weight_spectra([]) == {"weights": []}


@pytest.mark.parametrize(("rows", "inner", "columns"), [(20, 4, 30), (6, 9, 8), (5, 1, 7)])
def test_the_product_of_a_low_rank_pair(rows, inner, columns):
    rng = np.random.default_rng(1)
    u, v = (rng.normal(size=shape).astype(np.float32) for shape in ((rows, inner), (inner, columns)))
    entries = weight_spectra([("a/u", u), ("a/v", v), ("other", u)])["weights"]
    [product] = [entry for entry in entries if "factors" in entry]
    count = min(rows, inner, columns)
    assert (product["name"], product["shape"], product["inner_rank"]) == ("a/uv", [rows, columns], inner)
    assert product["factors"] == ["a/u", "a/v"]
    expected = np.linalg.svd(u.astype(np.float64) @ v, compute_uv=False)[:count]
    np.testing.assert_allclose(product["singular_values"], expected, rtol=1e-6)
    # Others are no pair.
    for first, second in (
        (("a/u", u), ("b/v", v)),
        (("a/u", u), ("a/w", v)),
        (("a/u", u), ("a/v", v[:, :0])),
    ):
        assert not any("factors" in entry for entry in weight_spectra([first, second])["weights"])


def test_weights_that_are_not_finite_are_told():
    u, v = np.ones((4, 2), np.float32), np.ones((2, 4), np.float32)
    u[1, 1], u[2, 0] = np.nan, -np.inf
    first, second, product = weight_spectra([("a/u", u), ("a/v", v)])["weights"]
    assert first == {"name": "a/u", "shape": [4, 2], "omitted": "2 of its entries are not finite"}
    assert product["omitted"] == "2 of its entries are not finite"
    assert second["singular_values"][0] == pytest.approx(np.sqrt(8))


def test_what_is_too_large_is_told_and_the_small_come_first():
    large, small = np.ones((30, 20), np.float32), np.ones((3, 2), np.float32)
    entries = weight_spectra([("large", large), ("small", small)], most_work=4 * 30 * 20**2 + 4 * 12 - 1)
    assert entries["weights"][0] == {"name": "large", "shape": [30, 20], "omitted": "too large to compute"}
    assert len(entries["weights"][1]["singular_values"]) == 2
    assert "singular_values" in spectrum_of(large, most_work=4 * 30 * 20**2)
    # 65536 x 8192, without its memory, is beyond the limit of a run.
    huge = np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (65536, 8192), (0, 0))
    assert spectrum_of(huge)["omitted"] == "too large to compute"


def test_a_computation_that_fails_does_not_end_the_run(monkeypatch):
    def fail(*_, **__):
        raise np.linalg.LinAlgError("SVD did not converge")

    monkeypatch.setattr(np.linalg, "svd", fail)
    assert spectrum_of(np.ones((2, 2), np.float32))["omitted"] == "not computed: SVD did not converge"


@pytest.mark.slow
def test_a_run_writes_the_spectra_of_its_last_weights(log, tmp_path):
    train(log, make_config(), tmp_path)
    entries = json.loads((tmp_path / "weight_spectra.json").read_text())["weights"]
    arrays, _ = checkpoint.read(tmp_path / "checkpoints")
    weights = [arrays[key] for key in sorted(arrays) if key.startswith("weights|dense/")]
    matrices = [weight for weight in weights if weight.ndim == 2 and min(weight.shape) > 1]
    single = [entry for entry in entries if "factors" not in entry]
    assert len(single) == len(matrices) > 2
    for entry, matrix in zip(single, matrices, strict=True):
        assert entry["shape"] == list(matrix.shape)
        expected = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
        np.testing.assert_allclose(entry["singular_values"], expected, rtol=1e-6)
    assert [entry["name"] for entry in entries][:3] == [
        f"quality/cross_0/{part}" for part in ("u", "v", "uv")
    ]
    # What the windows say of Shampoo's statistics has the same names.
    line = lines_of(tmp_path)[-1]
    of_statistics = line["shampoo_spectra"]
    assert sorted(of_statistics) == sorted(entry["name"] for entry in single)
    for end, choose, total in (("smallest", min, "min"), ("largest", max, "max")):
        value = choose(spectrum[end] for spectrum in of_statistics.values())
        assert value == line[f"shampoo_singular_value_{total}"]
    conditions = [spectrum["condition"] for spectrum in of_statistics.values()]
    assert max(conditions) == line["shampoo_condition_max"] and min(conditions) >= 1
    # Relative damping of 1e-6.
    assert all(1 <= spectrum["damped"] <= 1e6 + 1 for spectrum in of_statistics.values())
