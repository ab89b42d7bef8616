"""The simulated log: reproducible, exact in its counts, and true to its probabilities."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from ctr.config import parse_model
from ctr.data.log import read_manifests
from ctr.data.shards import unpack_ids
from ctr.data.sidecar import read_sidecar_partition
from ctr.data.times import DAY_US
from ctr.io.errors import InputError
from ctr.simulator.auction import make_world
from ctr.simulator.config import SimulatorConfig, read_world
from ctr.simulator.features import SCHEMA
from ctr.simulator.simulate import AUCTION, QUERIES_PER_DAY_LIMIT, TRUTH, simulate
from ctr.simulator.world import draw_queries
from log_files import digests, rows_of

SMALL: dict[str, Any] = {
    "examples": 3_000,
    "queries_per_day": 200,
    "users": 300,
    "ads": 100,
    "advertisers": 20,
    "words": 100,
    "topics": 5,
    "randomized_share": 0.1,
}


def small(**changes: Any) -> SimulatorConfig:
    return parse_model(SimulatorConfig, {**SMALL, **changes}, "test")


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
    for name, attribute in (("examples", "rows"), ("answered", "queries"), ("clicks", "clicks")):
        assert counts[name] == sum(getattr(manifest, attribute) for manifest in manifests)
    assert counts["examples"] == 3_000
    assert counts["partitions"] == len(manifests) > 2


@pytest.mark.parametrize("change", [{"seed": 1}, {"drift": 0.1}, {"base_ctr": 0.2}])
def test_other_settings_give_another_log(log: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    simulate(small(**change), tmp_path / "other")
    for one, other in zip(read_manifests(log)[1:], read_manifests(tmp_path / "other")[1:], strict=False):
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
    with pytest.raises(InputError, match="of another world: its seed is 0, not 1"):
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
        assert (np.diff(query) >= 0).all()
        ids = unpack_ids(table.combine_chunks().column("ids").combine_chunks(), SCHEMA)
        for one in np.unique(query):
            rows = query == one
            assert len(np.unique(time[rows])) == 1
            assert ids[rows, position].tolist() == list(range(1, rows.sum() + 1))
            assert len(np.unique(ids[rows, ad])) == rows.sum()
            assert 1 <= rows.sum() <= 6
        assert not seen & set(query)
        assert not examples & set(example)
        seen |= set(query)
        examples |= set(example)
    assert len(examples) == 3_000


def test_the_truth_joins_exactly_and_agrees_with_the_labels(tmp_path: Path) -> None:
    counts = simulate(small(examples=30_000, queries_per_day=2_000, drift=0.05), tmp_path)
    label, p, quality, visibility, examined = (
        np.concatenate(part) for part in zip(*_truth(tmp_path), strict=True)
    )
    assert counts["mean_probability"] == pytest.approx(p.mean())
    assert counts["ctr"] == pytest.approx(label.mean())
    assert np.allclose(p, quality * visibility, rtol=1e-6)
    assert ((visibility > 0) & (visibility <= 1) & (quality > 0) & (quality < 1)).all()
    # Only what was examined is clicked, with the probability of its quality.
    assert not label[~examined].any()
    for part in (np.arange(len(p)), *np.array_split(np.argsort(p), 10)):
        for outcome, chance in ((label, p), (examined, visibility), (label[examined], quality[examined])):
            rows = part if len(outcome) == len(p) else slice(None)
            y, q = outcome[rows].astype(np.float64), chance[rows].astype(np.float64)
            # Examination is shared by the ads of a page: about three rows are as good as one.
            z = (y - q).sum() / np.sqrt(3 * (q * (1 - q)).sum())
            assert abs(z) < 4


def _truth(log: Path) -> list[tuple[np.ndarray, ...]]:
    parts = []
    for manifest in read_manifests(log):
        rows, sidecar = rows_of(log, manifest), read_sidecar_partition(log, TRUTH, manifest)
        assert rows.column("example_id").to_pylist() == sidecar.column("example_id").to_pylist()
        columns = [sidecar.column(name).to_numpy() for name in ("probability", "quality", "visibility")]
        examined = sidecar.column("examined").to_numpy(zero_copy_only=False)
        parts.append((rows.column("label").to_numpy(), *(c.astype(np.float64) for c in columns), examined))
    return parts


def test_randomized_traffic_is_flagged_and_a_log_of_its_own(tmp_path: Path) -> None:
    simulate(small(), tmp_path / "log", randomized=tmp_path / "random")
    position = SCHEMA.single_valued.index("position")
    places = []
    for whole, drawn in zip(
        read_manifests(tmp_path / "log"), read_manifests(tmp_path / "random"), strict=True
    ):
        rows, flags = (
            rows_of(tmp_path / "log", whole),
            read_sidecar_partition(tmp_path / "log", AUCTION, whole),
        )
        mask = flags.column("randomized").combine_chunks()
        assert rows.filter(mask).equals(rows_of(tmp_path / "random", drawn))
        kept = read_sidecar_partition(tmp_path / "random", AUCTION, drawn)
        assert kept.equals(flags.filter(mask))
        assert not kept.column("price").to_numpy().any()
        ids = unpack_ids(rows.filter(mask).combine_chunks().column("ids").combine_chunks(), SCHEMA)
        places.append(ids[:, position])
        # A query is randomized or not as a whole.
        flagged = set(rows.filter(mask).column("query_id").to_pylist())
        assert not flagged & set(rows.filter(pc.invert(mask)).column("query_id").to_pylist())
    last = np.concatenate(places)
    # One to six ads, each number as likely: six times as many pages have a first place as a sixth.
    assert np.bincount(last)[1] == pytest.approx(6 * np.bincount(last)[6], rel=0.5)


@pytest.mark.slow
def test_randomized_traffic_can_be_kept_out_of_the_log(tmp_path: Path) -> None:
    both = [{"examples": None, "days": 2, "randomized_in_log": flag} for flag in (True, False)]
    for name, changes in zip(("all", "served"), both, strict=True):
        simulate(small(**changes), tmp_path / name, randomized=tmp_path / f"{name}-random")
    for day in range(2):
        rows = {
            name: rows_of(tmp_path / name, read_manifests(tmp_path / name)[day])
            for name in ("all", "all-random", "served", "served-random")
        }
        assert rows["served-random"].equals(rows["all-random"])
        drawn = pc.is_in(
            rows["all"].column("query_id"), rows["all-random"].column("query_id").combine_chunks()
        )
        assert rows["served"].equals(rows["all"].filter(pc.invert(drawn)))
    config = small(randomized_in_log=False, randomized_share=0.5)
    counts = simulate(config, tmp_path / "cut", randomized=tmp_path / "cut-random")
    assert counts["examples"] == sum(manifest.rows for manifest in read_manifests(tmp_path / "cut")) == 3_000
    last = [rows_of(tmp_path / name, read_manifests(tmp_path / name)[-1]) for name in ("cut", "cut-random")]
    assert last[1].column("query_id").to_numpy().max() < last[0].column("query_id").to_numpy().max()
    # Randomized queries show ads, but not in this log: they are none of its queries that show nothing.
    world, end = (
        make_world(config.world),
        last[0].column("query_id").to_numpy().max() % QUERIES_PER_DAY_LIMIT + 1,
    )
    served = [~draw_queries(config.world, world, day).randomized for day in range(counts["partitions"])]
    served[-1] = served[-1][:end]
    assert counts["queries"] == sum(int(one.sum()) for one in served)
    assert counts["ads_per_query"] == pytest.approx(3_000 / counts["queries"])


def test_whole_days_are_written_when_days_are_asked_for(log: Path, tmp_path: Path) -> None:
    counts = simulate(small(examples=None, days=2), tmp_path / "days")
    assert counts["partitions"] == 2
    assert counts["queries"] == 400
    assert read_manifests(tmp_path / "days") == read_manifests(log)[:2]


def test_a_log_tells_of_its_world(log: Path, tmp_path: Path) -> None:
    assert read_world(log) == small().world
    (tmp_path / "other").mkdir()
    with pytest.raises(InputError, match="not a simulated log"):
        read_world(tmp_path / "other")


@pytest.mark.parametrize("base_ctr", [0.02, 0.08, 0.2])
def test_the_base_rate_is_met(tmp_path: Path, base_ctr: float) -> None:
    config = small(examples=None, days=1, queries_per_day=20_000, base_ctr=base_ctr, randomized_share=0)
    assert simulate(config, tmp_path)["mean_probability"] == pytest.approx(base_ctr, rel=0.03)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"examples": 0}, "examples: 0 is not allowed"),
        ({"drift": -0.1}, "drift: -0.1 is not allowed"),
        ({"candidates": 5}, "slots 6 are more than candidates 5"),
        ({"slots": 33}, "slots: 33 is not allowed"),
        ({"words": 3}, "each of the 5 topics requires a word of its own"),
        ({"days": 3}, "exactly one of examples and days is required"),
        ({"examples": None}, "exactly one of examples and days is required"),
        ({"randomized_share": 1, "randomized_in_log": False}, "leaves the log without a query"),
        ({"start": "1969-12-31"}, "start 1969-12-31 is before 1970-01-01"),
        ({"start": "soon"}, "start: 'soon' is not allowed"),
        ({"clicks": 3}, "clicks: unknown key; allowed: ad_lifetime_days, ads, advertisers, base_ctr"),
        ({"events": {"duplicate_share": 1.5}}, "events.duplicate_share: 1.5 is not allowed"),
        ({"events": {"click_seconds": -1}}, "events.click_seconds: -1 is not allowed"),
        (
            {"events": {"format": "xml"}},
            "events.format: 'xml' is not allowed: Input should be 'parquet', 'jsonl' or",
        ),
        ({"events": {"clicks": 3}}, "events.clicks: unknown key; allowed: click_seconds, delivery_seconds"),
    ],
)
def test_impossible_worlds_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        small(**change)
    assert message in str(refusal.value)


def test_a_world_that_shows_nothing_is_refused(tmp_path: Path) -> None:
    """A log of so many examples would have no end."""
    with pytest.raises(InputError, match=r"reserve 1000.0: .* the crude policy expects less from every ad"):
        simulate(small(reserve=1_000, randomized_share=0), tmp_path / "log")
    assert not (tmp_path / "log").exists()


def test_randomized_traffic_into_the_log_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="log: is the log itself"):
        simulate(small(), tmp_path / "log", randomized=tmp_path / "x" / ".." / "log")
    assert not (tmp_path / "log").exists()
