"""Sampling decisions: unbiased, the same everywhere, independent of everything else, never at tiny rates."""

import hashlib
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctr.config import apply_settings, parse_model
from ctr.data.log import MAX_TIME_US, Manifest
from ctr.data.sampling import SamplingConfig, Strata, condition_names, decide
from ctr.data.time_range import TimeRange
from ctr.eval.arrays import row_logloss
from ctr.io.errors import InputError
from ctr.io.hashing import uniform_hash

LOW_LOSS = {"teacher": "t", "max_loss": 0.1}
LOW_VISIBILITY = {"feature": "position", "values": [7, 8]}


def make_config(**content: Any) -> SamplingConfig:
    return parse_model(SamplingConfig, content, "test")


def draw_examples(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "example_id": rng.integers(-(2**63), 2**63 - 1, rows),
        "query_time": np.sort(rng.integers(0, 10**6, rows)),
        "label": rng.integers(0, 2, rows).astype(np.float32),
        "teacher_logit": rng.normal(0, 4, rows).astype(np.float32),
        "low_visibility": rng.random(rows) < 0.4,
    }


def all_rules(
    salt: str = "1", non_click_rate: float = 0.5, rate: float = 0.25, **more: Any
) -> SamplingConfig:
    rule = {"rate": rate, "low_loss": LOW_LOSS, "low_visibility": LOW_VISIBILITY}
    return make_config(salt=salt, non_click_rate=non_click_rate, uninformative=rule, **more)


# ---------------------------------------------------------------- the hash


def plain_hash(number: int, salt: str) -> float:
    """The hash in whole numbers of Python: two rounds of splitmix64, with keys of the salt's SHA-256."""

    def mix(state: int) -> int:
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        return state ^ state >> 31

    digest = hashlib.sha256(salt.encode()).digest()
    first, second = (int.from_bytes(digest[at : at + 8], "little") for at in (0, 8))
    return (mix(mix(number % 2**64 ^ first) ^ second) >> 11) / 2**53


def test_numbers_never_change():
    # Logs sampled by different versions of this package must agree.
    ids = np.array([0, 1, -1, 2**63 - 1, -(2**63)])
    for salt in ("1", "", "ä"):
        assert uniform_hash(ids, salt).tolist() == [plain_hash(number, salt) for number in ids.tolist()]
    assert uniform_hash(ids[:2], "1").tolist() == [0.4843904412841096, 0.03234266002529396]
    assert ids.tolist() == [0, 1, -1, 2**63 - 1, -(2**63)]
    assert make_config(salt=7).salt == "7"


# ---------------------------------------------------------------- the estimate


def test_weighted_sums_and_pairs_are_unbiased_with_the_variance_of_the_closed_form():
    draws, rows = 4000, 300
    once = draw_examples(rows)
    examples = {name: np.tile(values, draws) for name, values in once.items()}
    # As many independent draws: by other ids, which the hash takes as it takes other salts.
    examples["example_id"] = np.arange(draws * rows)
    decisions = decide(all_rules(), **examples)
    weights = decisions.weight.astype(np.float64).reshape(draws, rows)
    probability, values = decisions.keep_probability[:rows], np.random.default_rng(1).normal(2, 1, rows)
    assert set(np.unique(probability)) == {1.0, 0.5, 0.25, 0.125}
    for mask in (np.ones(rows, bool), *(probability == p for p in (0.5, 0.25, 0.125))):
        sums = (weights * values)[:, mask].sum(1)
        variance = (values**2 * (1 - probability) / probability)[mask].sum()
        assert abs(sums.mean() - values[mask].sum()) < 4.5 * np.sqrt(variance / draws)
        # The sample variance of a nearly normal sum has relative standard deviation sqrt(2 / n).
        assert abs(sums.var(ddof=1) / variance - 1) < 4.5 * np.sqrt(2 / draws)
    # The weight of a pair is the product of its two: E[w_i w_j] = 1, with variance 1 / (p_i p_j) - 1.
    products = weights.T @ weights / draws
    deviation = np.sqrt((1 / np.outer(probability, probability) - 1) / draws)
    off = ~np.eye(rows, dtype=bool)
    assert (np.abs(products - 1)[off] <= 8 * deviation[off]).all()


# ---------------------------------------------------------------- the rules


def test_an_example_whose_hash_is_its_probability_is_dropped():
    ids = np.arange(20)
    for place, number in enumerate(uniform_hash(ids, "1").tolist()):
        # [0, p) of the numbers from 0 to 1 is a share of exactly p.
        config = make_config(non_click_rate=number, min_rate=1e-9)
        assert not decide(config, ids, ids, np.zeros(20)).kept[place]
        above = make_config(non_click_rate=np.nextafter(number, 1), min_rate=1e-9)
        assert decide(above, ids, ids, np.zeros(20)).kept[place]


def test_low_loss_is_the_loss_below_the_threshold():
    logit = np.concatenate([np.linspace(-40, 40, 3001), [-1e6, 1e6, 0]]).astype(np.float32)
    for below in (1e-9, 1e-3, 0.1, np.log(2), 1.0, 20.0, 1000.0):
        rule = make_config(uninformative={"rate": 0.5, "low_loss": {"teacher": "t", "max_loss": below}})
        for label in (0, 1):
            labels = np.full(len(logit), label)
            loss = row_logloss(labels == 1, logit.astype(np.float64))
            # Where the two formulas differ by rounding alone, either answer is right.
            clear = np.abs(loss - below) > 1e-12 * below
            found = rule.uninformative.low_loss.holds(labels, logit)
            assert np.array_equal(found[clear], (loss < below)[clear])


def test_rates_by_the_gradient():
    rule = {"teacher": "t", "threshold": 0.2, "lowest_rate": 0.05}
    config, examples = make_config(non_click_rate=0.5, gradient=rule), draw_examples(20_000)
    decisions = decide(config, **examples)
    click, logit = examples["label"] == 1, examples["teacher_logit"].astype(np.float64)
    size = np.abs(click - 1 / (1 + np.exp(-logit)))
    expected = np.where(click, 1, 0.5) * np.minimum(1, np.maximum(0.05, size / 0.2))
    assert len(np.unique(expected)) > 100 and (expected == 1).any()
    np.testing.assert_allclose(decisions.keep_probability, expected, rtol=1e-12)
    assert condition_names(config) == ("all", "clicks", "non_clicks", "low_gradient")
    np.testing.assert_array_equal(decisions.conditions["low_gradient"], size < 0.2)
    # Logits of any size.
    logit = np.array([-1e30, -1e4, -20.0, 0.0, 20.0, 1e30], np.float32)
    gradient = make_config(gradient={"teacher": "t", "threshold": 0.5}).gradient
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        assert gradient.rates(np.zeros(6), logit).tolist() == [0.05, 0.05, 0.05, 1, 1, 1]
        assert gradient.rates(np.ones(6), logit).tolist() == [1, 1, 1, 1, 0.05, 0.05]


# ---------------------------------------------------------------- strata


def plain_keep(salt: str, stratum: list[int], rate: list[float]) -> list[bool]:
    """Systematic sampling row by row, in whole numbers of Python."""
    places: dict[int, int] = {}
    kept = []
    for one, share in zip(stratum, rate, strict=True):
        if one not in places:
            drawn = float(uniform_hash(np.array([one]), f"{salt} strata")[0])
            places[one] = int(drawn * 2**32)
        before = places[one]
        places[one] = before + round(share * 2**32)
        kept.append(places[one] // 2**32 > before // 2**32)
    return kept


RATES = st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0])


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.sampled_from([0, 1, -5, 2**62]), RATES), max_size=60),
    st.lists(st.integers(0, 60), max_size=4),
    st.sampled_from(["1", "a"]),
)
@example([(0, 0.3), (1, 0.4)] * 25, [7, 14, 23, 31], "1")
def test_strata_are_those_of_whole_numbers_however_rows_are_divided_into_calls(rows, cuts, salt):
    stratum = np.array([one for one, _ in rows], np.int64)
    rate = np.array([share for _, share in rows])
    strata = Strata(salt)
    edges = [0, *sorted(min(cut, len(rate)) for cut in cuts), len(rate)]
    found = [strata.keep(stratum[begin:end], rate[begin:end]) for begin, end in pairwise(edges)]
    assert np.concatenate(found).tolist() == plain_keep(salt, stratum.tolist(), rate.tolist())


# ---------------------------------------------------------------- the configuration

GRADIENT = {"teacher": "t", "threshold": 0.2}
BY_LOSS = {"rate": 0.5, "low_loss": LOW_LOSS}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"non_click_rate": 0.005}, "below min_rate 0.01: a kept example would have the weight 200"),
        ({"non_click_rate": 0.1, "gradient": GRADIENT}, "non_click_rate x gradient.lowest_rate is 0.005, "),
        ({"uninformative": {"rate": 0.1}}, "low_loss or low_visibility is required"),
        ({"uninformative": {"rate": 0.1, "low_loss": {**LOW_LOSS, "log": ""}}}, "a folder or null is req"),
        ({"uninformative": BY_LOSS, "gradient": GRADIENT}, "uninformative.low_loss: allowed is one"),
    ],
)
def test_what_is_refused(content, message):
    with pytest.raises(InputError, match=message):
        make_config(**content)


def test_rates_at_the_floor_are_allowed():
    # The product is a rounding below the floor that was written down for it.
    assert 0.1 * 0.7 < 0.07
    all_rules("1", 0.1, 0.7, min_rate=0.07)
    make_config(non_click_rate=0.01)


# ---------------------------------------------------------------- time ranges

DAY = 24 * 3600 * 10**6


def test_times_are_utc():
    for text, microseconds in {
        "1970-01-03": 2 * DAY,
        "1970-01-03 00:00:00.000001": 2 * DAY + 1,
        "1970-01-03T00:00:01Z": 2 * DAY + 10**6,
        "1970-01-03T01:00:00+02:00": 2 * DAY - 3600 * 10**6,
    }.items():
        for content in ({"start": text}, apply_settings({}, [f"start={text}"])):
            time_range = parse_model(TimeRange, content, "test")
            assert time_range.start_us == microseconds
            assert parse_model(TimeRange, {"end": text}, "test").end_us == microseconds
            assert parse_model(TimeRange, time_range.model_dump(mode="json"), "test") == time_range


def test_a_range_has_its_start_and_not_its_end():
    second = TimeRange(start=datetime(1970, 1, 2), end=datetime(1970, 1, 3, tzinfo=UTC))
    times = np.array([0, DAY - 1, DAY, 2 * DAY - 1, 2 * DAY, MAX_TIME_US - 1])
    assert np.flatnonzero(second.contains(times)).tolist() == [2, 3]
    assert TimeRange().contains(times).all()
    assert np.flatnonzero(TimeRange(start=second.start).contains(times)).tolist() == [2, 3, 4, 5]
    assert np.flatnonzero(TimeRange(end=second.start).contains(times)).tolist() == [0, 1]
    for start, end, selected in (
        (0, DAY, False),
        (0, DAY + 1, True),
        (DAY + 5, DAY + 6, True),
        (2 * DAY - 1, 3 * DAY, True),
        (2 * DAY, 3 * DAY, False),
    ):
        partition = Manifest(start=start, end=end, schema_version="x", rows=0, queries=0, clicks=0, shards=())
        assert TimeRange().selects(partition) and second.selects(partition) == selected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"start": 5}, "start: 5 is not allowed: an ISO date or datetime is required"),
        ({"start": "2026-01-05", "end": "2026-01-05"}, "start 2026-01-05T00:00:00.* must be before end"),
    ],
)
def test_ranges_that_are_refused(content, message):
    with pytest.raises(InputError, match=message):
        parse_model(TimeRange, content, "test")
