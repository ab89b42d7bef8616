"""The simulated log: reproducible, exact in its counts, and true to its probabilities."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ctr.data.log import read_manifests
from ctr.data.shards import unpack_ids
from ctr.data.sidecar import read_sidecar_partition
from ctr.data.times import DAY_US
from ctr.io.errors import InputError
from ctr.simulator.config import read_world
from ctr.simulator.features import SCHEMA
from ctr.simulator.simulate import AUCTION, TRUTH, simulate
from log_files import digests, rows_of


def test_the_same_settings_give_the_same_bytes_also_after_an_interruption(small, tmp_path):
    # Few hours with events: each is a file, which must reach the disk.
    interests = {"themes": 8, "at_once": 3, "lasting": "6h", "strength": 2.0}
    config = small({"late_click_share": 0}, examples=120, queries_per_day=10, interests=interests)

    def interrupt(position):
        if position > 30:
            raise KeyboardInterrupt

    positions: list[int] = []
    counts = simulate(config, tmp_path / "alone", positions.append)
    log = tmp_path / "alone"
    manifests = read_manifests(log)
    assert positions == np.cumsum([manifest.rows for manifest in manifests]).tolist()
    for name, attribute in (("examples", "rows"), ("answered", "queries"), ("clicks", "clicks")):
        assert counts[name] == sum(getattr(manifest, attribute) for manifest in manifests)
    assert counts["examples"] == 120
    assert counts["partitions"] == len(manifests) > 2
    assert read_world(log) == config.world

    # The log is the same with and without events.
    simulate(config, tmp_path / "whole", events=tmp_path / "whole events")
    assert digests(tmp_path / "whole") == digests(log)
    out, events = tmp_path / "broken", tmp_path / "broken events"
    with pytest.raises(KeyboardInterrupt):
        simulate(config, out, interrupt, events=events)
    assert 0 < len(read_manifests(out)) < len(manifests)
    # What is written is final, however the simulation goes on.
    assert digests(events).items() < digests(tmp_path / "whole events").items()
    # As a kill in the middle of a file leaves it.
    (events / "clicks" / "2026-01-05T07.parquet.partial-0123456789abcdef").write_bytes(b"half")
    for _ in range(2):
        simulate(config, out, events=events)
        assert digests(out) == digests(log)
        assert digests(events) == digests(tmp_path / "whole events")


def test_a_longer_log_begins_with_the_same_days_and_events(small, tmp_path):
    for examples in (300, 500):
        config = small(examples=examples, queries_per_day=20)
        simulate(config, tmp_path / str(examples), events=tmp_path / f"{examples} events")
    short, long = (read_manifests(tmp_path / name) for name in ("300", "500"))
    assert short[:-1] == long[: len(short) - 1] != []
    last = rows_of(tmp_path / "300", short[-1])
    assert rows_of(tmp_path / "500", long[len(short) - 1]).slice(0, len(last)).equals(last)
    examples = pa.concat_tables([rows_of(tmp_path / "300", one) for one in short])["example_id"]
    for kind in ("impressions", "clicks"):
        few, all_of = (pq.read_table(tmp_path / f"{name} events" / kind) for name in ("300", "500"))
        assert few.equals(all_of.filter(pc.is_in(all_of["impression_id"], examples.combine_chunks())))
    # Whole days are written when days are asked for.
    counts = simulate(small(examples=None, days=1, queries_per_day=20), tmp_path / "days")
    assert (counts["partitions"], counts["queries"]) == (1, 20)
    assert read_manifests(tmp_path / "days") == long[:1]


def test_queries_are_whole_and_stay_in_their_day(simulated):
    for manifest in read_manifests(simulated.log):
        assert (manifest.end - manifest.start, manifest.start % DAY_US) == (DAY_US, 0)
    table = pa.concat_tables(rows_of(simulated.log, manifest) for manifest in read_manifests(simulated.log))
    ids = unpack_ids(table.column("ids").combine_chunks(), SCHEMA)
    own = {name: ids[:, SCHEMA.single_valued.index(name)] for name in ("position", "ad_id")}
    rows = table.select(["query_time", "timestamp", "query_id", "example_id"]).to_pandas().assign(**own)
    day = rows["query_time"] // DAY_US
    assert (rows["query_time"] == rows["timestamp"]).all()
    assert (rows.groupby(day)["query_id"].diff().dropna() >= 0).all()
    assert rows["example_id"].is_unique and len(rows) == 30_000
    queries = rows.assign(day=day).groupby("query_id")
    assert (queries[["day", "query_time"]].nunique() == 1).all(axis=None)
    assert (rows["position"] == queries.cumcount() + 1).all()
    assert (queries["ad_id"].nunique() == queries.size()).all()
    assert queries.size().between(1, 6).all()


def test_the_truth_joins_exactly_and_agrees_with_the_labels(simulated):
    counts = simulated.counts
    parts = zip(*_truth(simulated.log), strict=True)
    label, p, quality, visibility, examined = map(np.concatenate, parts)
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


def test_randomized_traffic_is_flagged_and_a_log_of_its_own(simulated):
    log, random = simulated.log, simulated.randomized
    position = SCHEMA.single_valued.index("position")
    places = []
    for whole, drawn in zip(read_manifests(log), read_manifests(random), strict=True):
        rows, flags = rows_of(log, whole), read_sidecar_partition(log, AUCTION, whole)
        mask = flags.column("randomized").combine_chunks()
        assert rows.filter(mask).equals(rows_of(random, drawn))
        kept = read_sidecar_partition(random, AUCTION, drawn)
        assert kept.equals(flags.filter(mask))
        assert not kept.column("price").to_numpy().any()
        ids = unpack_ids(rows.filter(mask).combine_chunks().column("ids").combine_chunks(), SCHEMA)
        places.append(ids[:, position])
        # A query is randomized or not as a whole.
        flagged = set(rows.filter(mask).column("query_id").to_pylist())
        assert not flagged & set(rows.filter(pc.invert(mask)).column("query_id").to_pylist())
    last = np.concatenate(places)
    # One to six ads, each number as likely: six times as many pages have a first place as a sixth.
    assert np.bincount(last)[1] == pytest.approx(6 * np.bincount(last)[6], rel=0.25)


def test_randomized_traffic_can_be_kept_out_of_the_log(small, tmp_path):
    both = [{"examples": None, "days": 2, "randomized_in_log": flag} for flag in (True, False)]
    for name, changes in zip(("all", "served"), both, strict=True):
        simulate(small(**changes), tmp_path / name, randomized=tmp_path / f"{name}-random")
    for day in range(2):
        rows = {
            name: rows_of(tmp_path / name, read_manifests(tmp_path / name)[day])
            for name in ("all", "all-random", "served", "served-random")
        }
        assert rows["served-random"].equals(rows["all-random"])
        drawn = pc.is_in(rows["all"]["query_id"], rows["all-random"]["query_id"].combine_chunks())
        assert rows["served"].equals(rows["all"].filter(pc.invert(drawn)))
    config = small(randomized_in_log=False, randomized_share=0.5)
    folders = (tmp_path / "cut", None, tmp_path / "cut-random", tmp_path / "events")
    counts = simulate(config, *folders)
    cut, drawn = (pa.concat_tables(rows_of(log, one) for one in read_manifests(log)) for log in folders[::2])
    assert counts["examples"] == len(cut) == 2_000
    ends = [rows.column("query_id").to_numpy().max() for rows in (cut, drawn)]
    assert ends[1] < ends[0]
    # Nor are they in the events.
    events = pq.read_table(folders[3] / "impressions").column("impression_id").to_pylist()
    assert set(events) == set(cut.column("example_id").to_pylist())


def test_the_base_rate_is_met(small, tmp_path):
    changes = {"queries_per_day": 20_000, "base_ctr": 0.02, "randomized_share": 0}
    config = small(examples=None, days=1, **changes)
    assert simulate(config, tmp_path)["mean_probability"] == pytest.approx(0.02, rel=0.03)


def test_impossible_worlds_are_refused(small):
    for change, message in (
        ({"candidates": 5}, "slots 6 are more than candidates 5"),
        ({"words": 3}, "each of the 5 topics requires a separate word"),
        ({"days": 3}, "exactly one of examples and days is required"),
        ({"randomized_share": 1, "randomized_in_log": False}, "leaves the log without a query"),
        ({"start": "1969-12-31"}, "start 1969-12-31 is before 1970-01-01"),
    ):
        with pytest.raises(InputError) as refusal:
            small(**change)
        assert message in str(refusal.value)


def test_a_simulation_that_has_no_end_or_no_place_is_refused(small, simulated, tmp_path):
    log = tmp_path / "log"
    # A log of so many examples would have no end.
    with pytest.raises(InputError, match=r"reserve 1000.0: .* the crude policy expects less from every ad"):
        simulate(small(reserve=1_000, randomized_share=0), log)
    with pytest.raises(InputError, match="log: is the log itself"):
        simulate(small(), log, randomized=tmp_path / "x" / ".." / "log")
    assert not log.exists()
    with pytest.raises(InputError, match="of another world: its seed is 0, not 1"):
        simulate(small(seed=1, queries_per_day=2_000), simulated.log)
    log.mkdir()
    with pytest.raises(InputError, match="not a simulated log"):
        read_world(log)
