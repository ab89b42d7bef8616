"""The true click probability: what it depends on, how it drifts, and which ads there are."""

from datetime import UTC, datetime, time, timedelta
from itertools import islice, pairwise

import numpy as np
import pytest

from ctr.simulator.auction import (
    Placed,
    crude_policy,
    days,
    make_world,
    quality_logit,
    run_auction,
    visibility,
)
from ctr.simulator.config import WorldConfig
from ctr.simulator.world import (
    ads_by_day,
    draw_candidates,
    draw_queries,
    draw_ranks,
    random_stream,
    walk,
    weekday_of,
)

CONFIG = WorldConfig(queries_per_day=4_000)


@pytest.fixture(scope="module")
def world():
    return make_world(CONFIG)


@pytest.fixture(scope="module")
def day(world):
    return next(days(CONFIG, world))


@pytest.fixture(scope="module")
def shown(world, day):
    candidates = draw_candidates(CONFIG, day.ads, day.retrieval, day.queries, 0)
    return run_auction(CONFIG, crude_policy(CONFIG, world), day.queries, day.ads, candidates)


def test_drift_grows_as_a_random_walk(world, day, shown):
    without = CONFIG.model_copy(update={"drift": 0.0})
    first, *_, last = islice(walk(without, world), 30)
    same = [quality_logit(world, now, day.queries, day.ads, shown) for now in (first, last)]
    assert np.array_equal(*same)
    config = CONFIG.model_copy(update={"drift": 0.1})
    now = list(islice(walk(config, world), 17))
    logits = [quality_logit(world, coefficients, day.queries, day.ads, shown) for coefficients in now]
    moved = [np.std(logits[number] - logits[0]) for number in (1, 4, 16)]
    # Three independent coefficients of a row move, each by 0.1 sqrt(days).
    assert moved == pytest.approx([0.1 * np.sqrt(3 * number) for number in (1, 4, 16)], rel=0.3)
    assert moved[0] < moved[1] < moved[2]


def test_visibility_falls_with_the_position_and_is_that_of_the_page(world, day):
    queries = len(day.queries)
    one = np.arange(queries)
    by_place = [
        visibility(world, day.queries, Placed(one, one % 7, np.full(queries, place), np.zeros(queries, int)))
        for place in range(1, 7)
    ]
    assert all((later < earlier).all() for earlier, later in pairwise(by_place))
    phone = day.queries.device == 0
    fall = by_place[0] / by_place[5]
    assert fall[phone] == pytest.approx(6**0.8)
    assert fall[day.queries.device == 1] == pytest.approx(6**0.5)
    # An ad's quality does not depend on where and how it is shown.
    placed = [Placed(one, one % 7, np.full(queries, place), np.full(queries, place % 4)) for place in (1, 6)]
    logits = [quality_logit(world, day.now, day.queries, day.ads, each) for each in placed]
    assert np.array_equal(*logits)
    assert (visibility(world, day.queries, placed[0]) != visibility(world, day.queries, placed[1])).all()


def test_ads_come_and_go(world):
    inventories = list(islice(ads_by_day(CONFIG, world), 61))
    for number, ads in enumerate(inventories):
        assert (np.diff(ads.number) > 0).all()
        assert ((ads.born <= number) & (number < ads.gone)).all()
    counts = [len(ads) for ads in inventories]
    assert np.mean(counts) == pytest.approx(CONFIG.ads, rel=0.1)
    # Of ads that are there now exp(-60 / 30) are there after sixty days, in whole days.
    stayed = np.isin(inventories[60].number, inventories[0].number)
    assert stayed.sum() / counts[0] == pytest.approx(np.exp(-2), rel=0.15)
    new = ~np.isin(inventories[1].number, inventories[0].number)
    assert new.sum() == pytest.approx(CONFIG.ads / 30, abs=1)
    assert (inventories[1].born[new] == 1).all()
    # An ad stays what it is.
    both = np.intersect1d(inventories[0].number, inventories[60].number)
    at = [np.searchsorted(ads.number, both) for ads in (inventories[0], inventories[60])]
    assert np.array_equal(inventories[0].bid[at[0]], inventories[60].bid[at[1]])


def test_the_calendar():
    for number in (0, 1, 5, 6, 7, 400):
        date = datetime.combine(CONFIG.start, time(), UTC) + timedelta(number)
        assert weekday_of(CONFIG, number) == date.weekday()
        assert CONFIG.day_us(number) == int(date.timestamp()) * 1_000_000
    weekdays = [len(draw_queries(CONFIG, make_world(CONFIG), number)) for number in (0, 5)]
    assert weekdays == [4_000, 3_000]


def test_ranks_follow_zipfs_law():
    drawn = draw_ranks(random_stream(0, 0), 50, (200_000,))
    assert drawn.min() == 0
    assert drawn.max() == 49
    share = np.bincount(drawn, minlength=50) / len(drawn)
    edges = np.arange(1, 52, dtype=np.float64) ** -0.1
    assert share == pytest.approx((edges[:-1] - edges[1:]) / (edges[0] - edges[-1]), abs=0.004)
