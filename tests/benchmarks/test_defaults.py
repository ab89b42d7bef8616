"""The benchmark of the defaults: its worlds, the text that Vowpal Wabbit reads, its verdicts, and a tiny run."""

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from benchmark_modules import BENCHMARKS
from ctr.data.log import read_manifests, read_schema
from ctr.data.mapping import Mapping
from ctr.data.reader import read_rows
from ctr.eval.progressive import ProgressiveMetrics


@pytest.fixture(scope="module")
def parts() -> Iterator[SimpleNamespace]:
    """The benchmark's modules, by their short names."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        names = ("worlds", "generate", "logs", "vowpal", "systems", "results", "report")
        yield SimpleNamespace(**{name: import_module(f"defaults.{name}") for name in names})
    finally:
        sys.path.remove(str(BENCHMARKS))


def by_name(parts: SimpleNamespace, name: str) -> Any:
    return next(world for world in all_worlds(parts) if world.name == name)


def all_worlds(parts: SimpleNamespace) -> tuple[Any, ...]:
    return (*parts.worlds.TO_CHOOSE, *parts.worlds.TO_REPORT)


def test_the_worlds_are_of_very_different_shape(parts: SimpleNamespace) -> None:
    worlds = all_worlds(parts)
    assert len(worlds) == len({world.name for world in worlds}) == len({world.seed for world in worlds}) == 20
    for group in (parts.worlds.TO_CHOOSE, parts.worlds.TO_REPORT):
        assert len(group) == 10
        assert min(world.rows for world in group) == 5_000
        assert max(world.rows for world in group) == 3_000_000
        assert any(world.interactions for world in group)
        assert any(world.drift for world in group)
        kinds = {feature.kind for world in group for feature in world.features}
        assert kinds == {"id", "attribute", "number", "tags", "text", "hour", "weekday"}
    assert min(world.rate for world in worlds) == 0.001
    assert max(world.rate for world in worlds) >= 0.5
    assert min(len(world.features) for world in worlds) == 2
    assert max(len(world.features) for world in worlds) == 40
    assert max(world.max_query_rows for world in worlds) == 300


@pytest.mark.parametrize(
    "name", ["hotels", "forum", "display", "purchases", "exchange", "search_ads", "noise"]
)
def test_a_world_is_what_it_says(parts: SimpleNamespace, tmp_path: Path, name: str) -> None:
    world = by_name(parts, name)
    parts.generate.write_world(world, tmp_path, 20_000)
    table = pq.read_table(tmp_path / "rows.parquet").to_pandas()
    assert len(table) == min(world.rows, 20_000)
    assert table["shown_at"].is_monotonic_increasing
    assert table["example_id"].is_unique
    assert table.groupby("query_id").size().max() <= world.max_query_rows
    assert (table.groupby("query_id")["shown_at"].nunique() == 1).all()
    assert table["probability"].mean() == pytest.approx(world.rate, rel=0.15)
    spread = np.sqrt((table["probability"] * (1 - table["probability"])).sum())
    assert abs(table["clicked"].sum() - table["probability"].sum()) < 4 * spread
    for feature in world.features:
        if feature.shared and feature.name in table:
            values = table.groupby("query_id")[feature.name].agg(lambda rows: len(set(map(str, rows))))
            assert values.max() == 1
        if feature.kind == "attribute":
            assert (table.groupby(feature.of)[feature.name].nunique() <= 1).all()
        if feature.missing:
            assert table[feature.name].isna().mean() == pytest.approx(feature.missing, abs=0.02)
    mapping = Mapping.model_validate(yaml.safe_load((tmp_path / "mapping.yaml").read_text()))
    assert [feature.name for feature in mapping.features][: len(world.features)] == [
        feature.name for feature in world.features
    ]
    assert "buckets" not in (tmp_path / "mapping.yaml").read_text()


def test_the_same_world_has_the_same_bytes_and_another_seed_others(
    parts: SimpleNamespace, tmp_path: Path
) -> None:
    world = by_name(parts, "questions")
    for folder, one in (("a", world), ("b", world), ("c", replace(world, seed=1))):
        parts.generate.write_world(one, tmp_path / folder, 3000)
    first, second, other = ((tmp_path / name / "rows.parquet").read_bytes() for name in "abc")
    assert first == second != other


def test_values_come_and_go_where_the_world_says_so(
    parts: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In several chunks: what a value is worth must not depend on where it occurs.
    monkeypatch.setattr(parts.generate, "CHUNK_ROWS", 1000)
    feature = parts.worlds.Feature
    features = (
        feature("stays", size=20, effect=1.0, zipf=0),
        feature("churns", size=20, effect=1.0, zipf=0, churn=5),
        feature("grows", size=20, effect=1.0, zipf=0, growth=0.9),
    )
    parts.generate.write_world(parts.worlds.World("w", 3, 10_000, 0.3, features), tmp_path)
    table = pq.read_table(tmp_path / "rows.parquet").to_pandas()
    early, late = table[:2000], table[-2000:]
    assert set(early["stays"]) == set(late["stays"])
    assert not set(early["churns"]) & set(late["churns"])
    assert set(early["grows"]) < set(late["grows"])
    logit = np.log(table["probability"] / (1 - table["probability"]))
    values = [table[name].to_numpy() for name in ("stays", "churns", "grows")]
    columns = np.concatenate([np.eye(one.max() + 1)[one] for one in values], axis=1)
    weights = np.linalg.lstsq(columns, logit, rcond=None)[0]
    np.testing.assert_allclose(columns @ weights, logit, atol=1e-5)


def test_in_an_exact_log_each_value_has_its_own_id(parts: SimpleNamespace, tmp_path: Path) -> None:
    world = by_name(parts, "search_ads")
    log = parts.logs.obtain_log(parts.logs.Source(world.name, "report", world), tmp_path, None, 3000)
    exact = log.exact
    raw = pq.read_table(log.folder / "raw" / "rows.parquet").to_pandas().set_index("example_id")
    raw = raw.loc[exact.example_id]
    np.testing.assert_array_equal(exact.label, raw["clicked"])
    assert exact.query.tolist() == (raw["query_id"].rank(method="dense") - 1).astype(int).tolist()
    values = {name: raw[name].astype(str) for name in exact.features if name in raw}
    values["query_x_advertiser"] = values["query"] + " " + values["advertiser"]
    assert len(values) == 7
    for name, column in values.items():
        ids = exact.ids[:, exact.features.index(name)]
        pairs = set(zip(ids.tolist(), column, strict=True))
        assert len(pairs) == len(set(column)) == len(set(ids.tolist())) == ids.max() + 1
    assert log.facts["clicks"] == raw["clicked"].sum()
    assert sum(manifest.rows for manifest in read_manifests(log.path)) == log.facts["rows"] == 3000


def small_log(parts: SimpleNamespace, sizes: list[int], seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    rows = sum(sizes)
    lengths = rng.integers(0, 4, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return parts.logs.ExactLog(
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
def test_vowpal_wabbit_reads_a_query_without_labels_and_then_with_them(
    parts: SimpleNamespace, sizes: list[int], at_once: int, seed: int
) -> None:
    log = small_log(parts, sizes, seed)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts.vowpal, "ROWS_AT_ONCE", at_once)
        text = Path(folder) / "rows.txt"
        parts.vowpal.write_text(log, text)
        assert text.read_text().split("\n")[:-1] == list(expected_lines(log, sizes))


@pytest.mark.parametrize("settings", ["", "-b 24 --ftrl", "-b 24 -q ::"])
def test_vowpal_wabbit_predicts_a_query_before_it_learns_any_of_it(
    parts: SimpleNamespace, tmp_path: Path, settings: str
) -> None:
    vowpalwabbit = pytest.importorskip("vowpalwabbit")
    sizes = [1, 3, 40, 1, 7, 2] * 5
    log = small_log(parts, sizes, 1)
    text = tmp_path / "rows.txt"
    parts.vowpal.write_text(log, text)
    found = parts.vowpal.predict(log, text, settings)
    workspace = vowpalwabbit.Workspace(f"--loss_function logistic {settings} --quiet")
    expected, begin = [], 0
    for size in sizes:
        examples = [workspace.parse(vowpal_lines(log, row, True)) for row in range(begin, begin + size)]
        expected += [workspace.predict(example) for example in examples]
        for example in examples:
            workspace.learn(example)
            workspace.finish_example(example)
        begin += size
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_a_numbered_log_has_every_value_apart(parts: SimpleNamespace, tmp_path: Path) -> None:
    log = small_log(parts, [2, 3, 1, 4])
    parts.systems.write_numbered_log(log, tmp_path)
    (rows,) = read_rows(tmp_path, read_schema(tmp_path), read_manifests(tmp_path))
    assert not rows.fault.any()
    np.testing.assert_array_equal(rows.ids, log.ids)
    np.testing.assert_array_equal(rows.multivalent["tags"][0], log.multivalent["tags"][0])
    np.testing.assert_array_equal(rows.label, log.label)
    np.testing.assert_array_equal(rows.query_id, log.query_id)


def result(parts: SimpleNamespace, folder: Path, name: str, label: np.ndarray, logit: np.ndarray) -> Any:
    metrics = ProgressiveMetrics()
    metrics.update(label, logit, np.ones(len(label)), np.arange(len(label)))
    world = by_name(parts, "hotels")
    log = parts.logs.Log(parts.logs.Source(world.name, "choose", world), folder / "hotels", "a", "b", {})
    work = parts.systems.Work(log, name, "default", {"of": name}, lambda _: metrics)
    return parts.results.Results(folder).add(work, *parts.systems.carry_out(work, folder / "scratch"))


def test_verdicts(parts: SimpleNamespace, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(-1, 1.5, 5000)
    label = (rng.random(5000) < 1 / (1 + np.exp(-truth))).astype(np.float32)
    good = result(parts, tmp_path, "good", label, truth)
    like_good = result(parts, tmp_path, "like_good", label, truth + rng.normal(0, 0.02, 5000))
    bad = result(parts, tmp_path, "bad", label, truth + rng.normal(0, 2, 5000))
    high = result(parts, tmp_path, "high", label, truth + 0.5)
    judge = parts.report.judge
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
    flat = result(parts, tmp_path, "flat", label, 0.001 * rng.normal(0, 1, 5000))
    assert judge([flat], [good], "auc").word == "NO"
    assert judge([flat], [good], "auc").text().endswith("± ?)")
    # The order of predictions is that of the better logloss, and not their level.
    assert parts.report.judge([high], [good], "auc").word == "yes"
    assert parts.report.judge([high], [good], "logloss").word == "NO"
    assert parts.report.judge_calibration([good]) in ("yes", "within interval")
    assert parts.report.judge_calibration([high]) == "NO"


@pytest.fixture
def benchmark(parts: SimpleNamespace) -> Iterator[ModuleType]:
    """The command, as a module: its name is that of the folder."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = __import__("importlib.util").util.spec_from_file_location(
            "command", BENCHMARKS / "defaults.py"
        )
        module = __import__("importlib.util").util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.mark.soak
def test_a_tiny_run_goes_on_where_it_stood(
    benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CTR_DATA", raising=False)
    arguments = ["--out", str(tmp_path), "--only", "coupons,questions,mind", "--rows", "600"]
    benchmark.main([*arguments, "--systems", "truth"])
    shown = capsys.readouterr()
    assert "mind: skipped" in shown.err and shown.err.count("auc") == 2
    assert "| coupons-600 | report | 600 |" in shown.out and "| questions-600 |" in shown.out
    records = [json.loads(path.read_text()) for path in (tmp_path / "results").glob("*.json")]
    assert {record["log"] for record in records} == {"coupons-600", "questions-600"}
    assert {record["examples"] for record in records} == {600}
    benchmark.main([*arguments, "--systems", "truth,lr_best"])
    shown = capsys.readouterr()
    # Of two logs the three rates; nothing of what was there.
    assert shown.err.count("lr_best") == shown.err.count("auc") == 6
    benchmark.main([*arguments, "--report"])
    again = capsys.readouterr()
    assert again.out == shown.out and "auc" not in again.err


def test_an_unknown_name_is_refused(benchmark: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark.main(["--only", "nowhere"])
    assert "no log nowhere; there are hotels, " in capsys.readouterr().err
