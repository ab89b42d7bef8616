"""The simulated log: reproducible, exact in its counts, and true to its probabilities."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctr.config import parse_model
from ctr.data.log import Manifest, read_manifests, read_schema, read_shard, unpack_ids
from ctr.data.sidecar import read_sidecar_interval
from ctr.errors import InputError
from ctr.simulator.config import DAY_US, SimulatorConfig
from ctr.simulator.features import SCHEMA
from ctr.simulator.simulate import TRUTH, simulate

SMALL: dict[str, Any] = {
    "examples": 3_000,
    "queries_per_day": 200,
    "users": 300,
    "ads": 100,
    "advertisers": 20,
    "words": 100,
    "topics": 5,
}


def small(**changes: Any) -> SimulatorConfig:
    return parse_model(SimulatorConfig, {**SMALL, **changes}, "test")


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def rows_of(log: Path, manifest: Manifest) -> pa.Table:
    schema = read_schema(log)
    return pa.concat_tables([read_shard(log, entry, schema) for entry in manifest.shards])


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated") / "log"
    simulate(small(), folder)
    return folder


def test_the_same_seed_gives_the_same_bytes(log: Path, tmp_path: Path) -> None:
    positions: list[int] = []
    counts = simulate(small(), tmp_path / "again", positions.append)
    assert digests(tmp_path / "again") == digests(log)
    manifests = read_manifests(log)
    assert positions == np.cumsum([manifest.rows for manifest in manifests]).tolist()
    for name, attribute in (("examples", "rows"), ("queries", "queries"), ("clicks", "clicks")):
        assert counts[name] == sum(getattr(manifest, attribute) for manifest in manifests)
    assert counts["examples"] == 3_000
    assert counts["intervals"] == len(manifests) > 2


@pytest.mark.parametrize("change", [{"seed": 1}, {"drift": 0.1}, {"base_ctr": 0.2}])
def test_other_settings_give_another_log(log: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    simulate(small(**change), tmp_path / "other")
    for one, other in zip(read_manifests(log)[1:], read_manifests(tmp_path / "other")[1:], strict=True):
        assert one.shards != other.shards


def test_a_longer_log_begins_with_the_same_days(log: Path, tmp_path: Path) -> None:
    simulate(small(examples=4_000), tmp_path / "longer")
    short, long = read_manifests(log), read_manifests(tmp_path / "longer")
    assert short[:-1] == long[: len(short) - 1]
    last = rows_of(log, short[-1])
    assert rows_of(tmp_path / "longer", long[len(short) - 1]).slice(0, len(last)).equals(last)


def test_an_interrupted_simulation_is_continued(log: Path, tmp_path: Path) -> None:
    def interrupt(position: int) -> None:
        if position > 1_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(small(), tmp_path / "log", interrupt)
    assert 0 < len(read_manifests(tmp_path / "log")) < len(read_manifests(log))
    simulate(small(), tmp_path / "log")
    assert digests(tmp_path / "log") == digests(log)


def test_another_simulation_into_the_same_log_is_refused(tmp_path: Path) -> None:
    simulate(small(), tmp_path / "log")
    with pytest.raises(InputError, match="published before with other content"):
        simulate(small(seed=1), tmp_path / "log")


def test_queries_are_whole_and_stay_in_their_day(log: Path) -> None:
    seen: set[int] = set()
    examples: set[int] = set()
    ad, position = SCHEMA.single_valued.index("ad_id"), SCHEMA.single_valued.index("position")
    for manifest in read_manifests(log):
        assert manifest.end - manifest.start == DAY_US
        assert manifest.start % DAY_US == 0
        table = rows_of(log, manifest)
        query, example = table.column("query_id").to_numpy(), table.column("example_id").to_numpy()
        time = table.column("query_time").to_numpy()
        assert np.array_equal(time, table.column("timestamp").to_numpy())
        assert time.min() >= manifest.start
        assert time.max() < manifest.end
        ids = unpack_ids(table.combine_chunks().column("ids").combine_chunks())
        for one in np.unique(query):
            rows = query == one
            assert len(np.unique(time[rows])) == 1
            assert ids[rows, position].tolist() == list(range(1, rows.sum() + 1))
            assert len(np.unique(ids[rows, ad])) == rows.sum()
            assert 1 <= rows.sum() <= 8
        assert not seen & set(query)
        assert not examples & set(example)
        seen |= set(query)
        examples |= set(example)
    assert len(examples) == 3_000


def test_the_truth_joins_exactly_and_agrees_with_the_labels(tmp_path: Path) -> None:
    counts = simulate(small(examples=30_000, queries_per_day=2_000, drift=0.05), tmp_path)
    labels, truth = [], []
    for manifest in read_manifests(tmp_path):
        rows, sidecar = rows_of(tmp_path, manifest), read_sidecar_interval(tmp_path, TRUTH, manifest)
        assert sidecar.schema == pa.schema({"example_id": pa.int64(), "probability": pa.float32()})
        assert rows.column("example_id").to_pylist() == sidecar.column("example_id").to_pylist()
        labels.append(rows.column("label").to_numpy())
        truth.append(sidecar.column("probability").to_numpy().astype(np.float64))
    y, p = np.concatenate(labels), np.concatenate(truth)
    assert counts["mean_probability"] == pytest.approx(p.mean())
    assert counts["ctr"] == pytest.approx(y.mean())
    for part in (np.arange(len(p)), *np.array_split(np.argsort(p), 10)):
        z = (y[part] - p[part]).sum() / np.sqrt((p[part] * (1 - p[part])).sum())
        assert abs(z) < 4


@pytest.mark.parametrize("base_ctr", [0.02, 0.08, 0.2])
def test_the_base_rate_is_met(tmp_path: Path, base_ctr: float) -> None:
    counts = simulate(small(examples=20_000, queries_per_day=1_000, base_ctr=base_ctr), tmp_path)
    assert counts["mean_probability"] == pytest.approx(base_ctr, rel=0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"examples": 0}, "examples: 0 is not allowed"),
        ({"drift": -0.1}, "drift: -0.1 is not allowed"),
        ({"min_ads": 5, "max_ads": 4}, "min_ads 5 is above max_ads 4"),
        ({"max_ads": 33}, "max_ads: 33 is not allowed"),
        ({"ads": 3}, "each of the 5 topics needs an ad and a word of its own"),
        ({"start": "1969-12-31"}, "start 1969-12-31 is before 1970-01-01"),
        ({"start": "soon"}, "start: 'soon' is not allowed"),
        ({"clicks": 3}, "clicks: unknown key; allowed: ads, advertisers, base_ctr"),
    ],
)
def test_impossible_worlds_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        small(**change)
    assert message in str(refusal.value)
