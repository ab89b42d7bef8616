"""The true click probability: what it depends on, and how it drifts."""

from datetime import UTC, datetime
from itertools import islice, pairwise

import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import Ridge

from ctr.simulator.config import DAY_US, SimulatorConfig
from ctr.simulator.traffic import calibrate, click_probability, day_of_week, draw_day
from ctr.simulator.world import (
    CALIBRATION_STREAM,
    TRAFFIC_STREAM,
    World,
    draw_ranks,
    draw_world,
    random_stream,
    walk,
)

CONFIG = SimulatorConfig(queries_per_day=4_000)


def make_world(config: SimulatorConfig) -> World:
    return calibrate(config, draw_world(config), random_stream(config, CALIBRATION_STREAM))


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(CONFIG)


def logit(probability: np.ndarray) -> np.ndarray:
    return np.log(probability) - np.log1p(-probability)


def test_without_drift_the_same_impressions_keep_their_probability(world: World) -> None:
    impressions = draw_day(CONFIG, world, 0, random_stream(CONFIG, TRAFFIC_STREAM))
    first, *_, last = islice(walk(CONFIG, world), 30)
    assert np.array_equal(
        click_probability(world, first, impressions), click_probability(world, last, impressions)
    )


def test_drift_grows_as_a_random_walk() -> None:
    config = CONFIG.model_copy(update={"drift": 0.1})
    world = make_world(config)
    impressions = draw_day(config, world, 0, random_stream(config, TRAFFIC_STREAM))
    days = list(islice(walk(config, world), 17))
    start = logit(click_probability(world, days[0], impressions))
    moved = [np.std(logit(click_probability(world, days[day], impressions)) - start) for day in (1, 4, 16)]
    # Three independent coefficients of a row move, each by 0.1 sqrt(days); examination bends the logit a little.
    assert moved == pytest.approx([0.1 * np.sqrt(3 * day) for day in (1, 4, 16)], rel=0.4)
    assert moved[0] < moved[1] < moved[2]


def test_the_first_day_does_not_depend_on_the_drift(world: World) -> None:
    drifting = CONFIG.model_copy(update={"drift": 0.1})
    first = next(walk(drifting, make_world(drifting)))
    assert np.array_equal(first.age_topic, world.first.age_topic)


def test_examination_falls_with_the_position(world: World) -> None:
    impressions = draw_day(CONFIG, world, 0, random_stream(CONFIG, TRAFFIC_STREAM))
    probability = click_probability(world, world.first, impressions)
    means = [probability[impressions.position == place].mean() for place in range(1, 9)]
    assert all(later < earlier for earlier, later in pairwise(means))


def test_single_features_do_not_explain_the_click(world: World) -> None:
    """The best additive model of all the single features leaves much of the true logit: crosses matter."""
    impressions = draw_day(CONFIG, world, 0, random_stream(CONFIG, TRAFFIC_STREAM))
    query, ad = impressions.query, impressions.ad
    user = impressions.user[query]
    single = (
        user,
        world.user_age[user],
        world.user_country[user],
        impressions.device[query],
        impressions.hour[query],
        impressions.topic[query],
        impressions.words[query, 0],
        ad,
        world.ad_advertiser[ad],
        impressions.position,
    )
    rows = np.arange(len(query))
    ones = np.ones(len(query))
    columns = scipy.sparse.hstack(
        [scipy.sparse.csr_matrix((ones, (rows, values - values.min()))) for values in single]
    ).tocsr()
    target = logit(click_probability(world, world.first, impressions))
    train = query % 4 != 0
    explained = Ridge(alpha=3.0).fit(columns[train], target[train]).score(columns[~train], target[~train])
    assert 0.1 < explained < 0.6


def test_days_of_the_week() -> None:
    for day in (0, 1, 20_000, 20_458):
        assert day_of_week(day) == datetime.fromtimestamp(day * DAY_US / 1e6, UTC).weekday()


def test_there_is_less_traffic_at_weekends(world: World) -> None:
    sizes = [
        len(draw_day(CONFIG, world, day, random_stream(CONFIG, TRAFFIC_STREAM, day)).user) for day in range(7)
    ]
    assert sizes == [4_000] * 5 + [3_000] * 2  # the first day is a Monday


def test_ranks_follow_zipfs_law() -> None:
    ranks = draw_ranks(np.random.default_rng(0), 1000, (200_000,))
    counts = np.bincount(ranks, minlength=1000)
    assert ranks.min() == 0
    assert ranks.max() == 999
    assert (counts[10] / counts[100]) == pytest.approx(10**1.1, rel=0.3)
    limits = np.array([[1], [3]])
    assert draw_ranks(np.random.default_rng(0), limits, (2, 500)).max(axis=1).tolist() == [0, 2]


def test_the_first_impressions_are_whole_prefixes(world: World) -> None:
    impressions = draw_day(CONFIG, world, 0, random_stream(CONFIG, TRAFFIC_STREAM))
    for count in (1, 7, len(impressions.ad)):
        first = impressions.first(count)
        assert len(first.ad) == count
        assert len(first.user) == first.query[-1] + 1
        assert np.array_equal(
            click_probability(world, world.first, first),
            click_probability(world, world.first, impressions)[:count],
        )
