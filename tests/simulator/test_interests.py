"""Interests that move: how long they last, what they add to the true probability, and what they leave as it is."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctr.data.log import read_manifests
from ctr.data.sidecar import read_sidecar_partition
from ctr.data.times import DAY_US
from ctr.simulator.auction import (
    Placed,
    current_themes,
    days,
    make_world,
    quality_logit,
    themes_of_ads,
    true_logit,
)
from ctr.simulator.config import InterestsConfig, WorldConfig
from ctr.simulator.simulate import TRUTH, simulate
from log_files import digests, rows_of

INTERESTS = InterestsConfig(themes=8, at_once=3, lasting="6h", strength=2.0)
SIX_HOURS_US = DAY_US // 4


def test_an_interest_lasts_an_exponential_time_and_moves_to_any_theme():
    user = np.arange(20_000)
    begin = 1_000 * DAY_US + user * 7_919_000
    first = current_themes(INTERESTS, 0, user, begin)
    assert np.bincount(first.ravel(), minlength=8) / first.size == pytest.approx([1 / 8] * 8, abs=0.006)
    assert abs(np.corrcoef(first.T) - np.eye(3)).max() < 0.03
    for wait in (0.1, 1.0, 3.0):
        later = current_themes(INTERESTS, 0, user, begin + int(wait * SIX_HOURS_US))
        # Unless it is the same interest still, it is the same theme by chance.
        expected = np.exp(-wait) + (1 - np.exp(-wait)) / 8
        assert (first == later).mean() == pytest.approx(expected, abs=0.01)
    other = current_themes(INTERESTS, 1, user, begin)
    assert (first == other).mean() == pytest.approx(1 / 8, abs=0.01)
    number = np.arange(40_000)
    share = np.bincount(themes_of_ads(INTERESTS, 0, number), minlength=8) / len(number)
    assert share == pytest.approx([1 / 8] * 8, abs=0.008)


def test_the_logit_is_higher_by_the_strength_where_the_ad_has_a_current_theme():
    config = WorldConfig(queries_per_day=4_000, users=2_000, ads=500, interests=INTERESTS)
    world = make_world(config)
    day = list(islice(days(config, world), 2))[1]
    query = np.repeat(np.arange(len(day.queries)), 5)
    ad = np.arange(len(query)) % len(day.ads)
    first = np.ones(len(query), np.int64)
    placed = Placed(query, ad, first, 0 * first)
    plain = quality_logit(world, day.now, day.queries, day.ads, placed)
    added = true_logit(config, world, day.now, day.queries, day.ads, placed) - plain
    current = current_themes(INTERESTS, 0, day.queries.user, day.queries.time_us)
    themes = themes_of_ads(INTERESTS, 0, day.ads.number)
    meant = [themes[a] in current[q] for q, a in zip(query, ad, strict=True)]
    assert added == pytest.approx(2.0 * np.array(meant), abs=1e-12)
    assert np.mean(meant) == pytest.approx(1 - (7 / 8) ** 3, abs=0.05)


def _simulate(small: Any, out: Path, interests: dict[str, Any] | None, **changes: Any) -> Path:
    simulate(small(examples=None, days=2, queries_per_day=1_500, **changes, interests=interests), out)
    return out


def _columns(log: Path) -> dict[str, np.ndarray]:
    manifests = read_manifests(log)
    rows = [rows_of(log, manifest) for manifest in manifests]
    truth = [read_sidecar_partition(log, TRUTH, manifest) for manifest in manifests]
    found = {"ids": np.concatenate([np.array(part.column("ids").to_pylist()) for part in rows])}
    for tables, names in ((rows, ("example_id", "label")), (truth, ("quality", "visibility", "probability"))):
        for name in names:
            found[name] = np.concatenate([part.column(name).to_numpy() for part in tables])
    return found


def test_a_log_with_interests_differs_in_its_clicks_alone(small, tmp_path):
    settings = INTERESTS.model_dump()
    without = _simulate(small, tmp_path / "without", None)
    nothing = digests(_simulate(small, tmp_path / "nothing", {**settings, "strength": 0}))
    assert {**digests(without), "world.yaml": ""} == {**nothing, "world.yaml": ""}

    plain, moved = _columns(without), _columns(_simulate(small, tmp_path / "with", settings))
    for name in ("example_id", "ids", "visibility"):
        assert np.array_equal(plain[name], moved[name])
    # The click rate stays, so where an ad has no current theme the logit is lower, everywhere by the same.
    before, after = (np.log(each["quality"] / (1 - each["quality"])) for each in (plain, moved))
    higher = after - before
    is_current = higher > higher.mean()
    lower = higher[~is_current].mean()
    assert higher == pytest.approx(np.where(is_current, lower + 2, lower), abs=0.01)
    assert moved["probability"].mean() == pytest.approx(plain["probability"].mean(), rel=0.05)
    # Labels are those of the probabilities: the share of the clicks on ads of a current theme.
    clicked, p = moved["label"] > 0, moved["probability"]
    share = p[is_current].sum() / p.sum()
    assert share > is_current.mean() + 0.1
    assert is_current[clicked].mean() == pytest.approx(share, abs=4 * np.sqrt(0.25 / clicked.sum()))
