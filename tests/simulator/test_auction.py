"""The auction against one that goes through candidates one by one."""

from itertools import islice

import numpy as np
import pytest

from ctr.simulator.auction import Placed, crude_policy, days, make_world, run_auction, serve
from ctr.simulator.config import WorldConfig
from ctr.simulator.world import draw_candidates, shown_format

CONFIG = WorldConfig(
    queries_per_day=1_500, users=200, ads=60, advertisers=15, words=40, topics=4, randomized_share=0.2
)


@pytest.fixture(scope="module")
def world():
    return make_world(CONFIG)


@pytest.fixture(scope="module")
def day(world):
    return next(islice(days(CONFIG, world), 3, None))


@pytest.fixture(scope="module")
def candidates(day):
    return draw_candidates(CONFIG, day.ads, day.retrieval, day.queries, day.number)


@pytest.mark.parametrize("reserve", [0.0, 0.04, 1e9])
def test_ads_prices_and_places(world, day, candidates, reserve):
    config = CONFIG.model_copy(update={"reserve": reserve})
    policy = crude_policy(config, world)
    shown = run_auction(config, policy, day.queries, day.ads, candidates)
    places = zip(shown.query.tolist(), shown.position.tolist(), strict=True)
    at = {place: row for row, place in enumerate(places)}

    def predicted(query, slot, position):
        ad = candidates.ad[query, slot : slot + 1]
        place = np.array([position])
        form = shown_format(day.ads, ad, candidates.richness[query, slot : slot + 1], place)
        return float(policy(day.queries, day.ads, Placed(np.array([query]), ad, place, form))[0])

    expected = 0
    for query in np.flatnonzero(~day.queries.randomized)[:150].tolist():
        slots = np.flatnonzero(candidates.present[query]).tolist()
        bids = {slot: float(day.ads.bid[candidates.ad[query, slot]]) for slot in slots}
        worth = {slot: bids[slot] * predicted(query, slot, 1) for slot in slots}
        ranked = sorted(slots, key=lambda slot: -worth[slot])
        for position, slot in enumerate(ranked[: config.slots], 1):
            chance = predicted(query, slot, position)
            if bids[slot] * chance < reserve:
                break
            expected += 1
            row = at[query, position]
            assert shown.ad[row] == candidates.ad[query, slot]
            assert shown.predicted[row] == pytest.approx(chance, rel=1e-6)
            following = worth[ranked[position]] if position < len(ranked) else 0
            price = min(max(bids[slot] * following / worth[slot], reserve / chance), bids[slot])
            assert shown.price[row] == pytest.approx(price, rel=1e-5)
        else:
            position = config.slots + 1
        assert (query, position) not in at
    assert (expected == 0) == (reserve == 1e9)


def test_policies_decide_what_is_shown_but_not_what_is_drawn(world, day):
    """What is left to chance is drawn before a policy decides, so that two policies differ by their decisions alone."""

    def contrary(queries, ads, placed):
        return np.linspace(0.9, 0.001, len(placed), dtype=np.float32)

    clicks, randomized = [], []
    for policy in (crude_policy(CONFIG, world), contrary):
        clicks.append({})
        for served in serve(CONFIG, world, day, policy):
            shown = served.impressions
            keys = zip(shown.query.tolist(), shown.ad.tolist(), shown.position.tolist(), strict=True)
            clicks[-1] |= dict(zip(keys, served.clicked.tolist(), strict=True))
            assert not shown.price[day.queries.randomized[shown.query]].any()
        randomized.append({key for key in clicks[-1] if day.queries.randomized[key[0]]})
    # Randomized queries follow no policy.
    assert randomized[0] == randomized[1] != set()
    assert len(clicks[0]) != len(clicks[1])
    both = clicks[0].keys() & clicks[1].keys()
    assert len(both) > 500
    assert all(clicks[0][key] == clicks[1][key] for key in both)
