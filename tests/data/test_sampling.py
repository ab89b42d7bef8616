"""Sampling decisions: unbiased, the same everywhere, independent of everything else, never at tiny rates."""

import hashlib
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.config import apply_settings, dump_yaml, parse_model, read_yaml
from ctr.data.log import MAX_TIME_US, Manifest
from ctr.data.sampling import Decisions, SamplingConfig, condition_names, decide
from ctr.data.time_range import TimeRange
from ctr.eval.logistic import row_logloss
from ctr.eval.states import query_bucket
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


def all_rules(salt: str = "1", non_click_rate: float = 0.5, rate: float = 0.25) -> SamplingConfig:
    rule = {"rate": rate, "low_loss": LOW_LOSS, "low_visibility": LOW_VISIBILITY}
    return make_config(salt=salt, non_click_rate=non_click_rate, uninformative=rule)


# ---------------------------------------------------------------- the hash


def test_numbers_are_uniform_whatever_the_ids_are():
    for ids in (np.arange(200_000), np.arange(200_000) * 64, -np.arange(200_000), np.arange(200_000) << 40):
        numbers = uniform_hash(ids, "1")
        assert numbers.dtype == np.float64
        assert (numbers >= 0).all() and (numbers < 1).all()
        counts = np.bincount((numbers * 1000).astype(int), minlength=1000)
        # Chi-squared with 999 degrees of freedom: mean 999, standard deviation 44.7.
        assert abs(((counts - 200) ** 2 / 200).sum() - 999) < 5 * 44.7


def plain_hash(number: int, salt: str) -> float:
    """The same in whole numbers of Python."""

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


def chi_squared_of_independence(a: np.ndarray, b: np.ndarray) -> float:
    """For two columns of K and L codes, in standard deviations from what independence gives."""
    table = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(table, (a, b), 1)
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / table.sum()
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    return float((((table - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


@pytest.mark.parametrize("salt", ["1", "", "0", "a"])
def test_numbers_are_independent_of_query_buckets_and_other_salts(salt):
    ids = np.arange(400_000)
    tenth = (uniform_hash(ids, salt) * 10).astype(int)
    # The hardest case: one example a query, and both numbered alike.
    assert abs(chi_squared_of_independence(tenth, query_bucket(ids))) < 5
    other = (uniform_hash(ids, salt + "2") * 10).astype(int)
    assert abs(chi_squared_of_independence(tenth, other)) < 5
    neighbour = (uniform_hash(ids + 1, salt) * 10).astype(int)
    assert abs(chi_squared_of_independence(tenth, neighbour)) < 5


def test_the_test_of_independence_sees_dependence():
    ids = np.arange(400_000)
    assert chi_squared_of_independence(query_bucket(ids) // 26, query_bucket(ids)) > 1000


# ---------------------------------------------------------------- the estimate


@pytest.fixture(scope="module")
def many_salts() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights of 300 examples under 4000 salts; keep-probabilities; one value for each example."""
    examples = draw_examples(300)
    config = [all_rules(salt=f"s{salt}") for salt in range(4000)]
    decisions = [decide(one, **examples) for one in config]
    weights = np.stack([one.weight for one in decisions]).astype(np.float64)
    return weights, decisions[0].keep_probability, np.random.default_rng(1).normal(2, 1, 300)


def test_weighted_sums_are_unbiased_with_the_variance_of_the_closed_form(many_salts):
    weights, probability, values = many_salts
    assert set(np.unique(probability)) == {1.0, 0.5, 0.25, 0.125}
    for mask in (np.ones(300, bool), *(probability == p for p in (0.5, 0.25, 0.125))):
        sums = (weights * values)[:, mask].sum(1)
        variance = (values**2 * (1 - probability) / probability)[mask].sum()
        standard_error = np.sqrt(variance / len(sums))
        assert abs(sums.mean() - values[mask].sum()) < 4.5 * standard_error
        # The sample variance of a nearly normal sum has relative standard deviation sqrt(2 / n).
        assert abs(sums.var(ddof=1) / variance - 1) < 4.5 * np.sqrt(2 / len(sums))


def test_pairs_are_unbiased(many_salts):
    weights, probability, _ = many_salts
    # The weight of a pair is the product of its two: E[w_i w_j] = 1, with variance 1 / (p_i p_j) - 1.
    products = weights.T @ weights / len(weights)
    deviation = np.sqrt((1 / np.outer(probability, probability) - 1) / len(weights))
    i, j = np.triu_indices(len(probability), 1)
    exact = deviation[i, j] == 0
    assert (products[i, j][exact] == 1).all()
    scores = (products[i, j][~exact] - 1) / deviation[i, j][~exact]
    # Over some 44,000 pairs, almost uncorrelated between one another.
    assert np.abs(scores).max() < 8
    assert abs(scores.mean()) < 0.05
    assert abs(scores.std() - 1) < 0.05


def test_kept_fractions():
    examples = draw_examples(200_000)
    decisions = decide(all_rules(), **examples)
    for probability in (0.5, 0.25, 0.125):
        group = decisions.keep_probability == probability
        kept = decisions.kept[group]
        assert abs(kept.mean() - probability) < 5 * np.sqrt(probability * (1 - probability) / len(kept))
    certain = decisions.keep_probability == 1
    assert certain.any() and decisions.kept[certain].all()


# ---------------------------------------------------------------- the rules


def test_the_probability_is_the_product_of_the_two_rules():
    examples = draw_examples(20_000)
    decisions = decide(all_rules(), **examples)
    click = examples["label"] == 1
    low_loss = row_logloss(click, examples["teacher_logit"].astype(np.float64)) < 0.1
    unseen = examples["low_visibility"]
    assert (low_loss & click).any() and (low_loss & ~click).any() and (low_loss & unseen).any()
    # One rate for an example that is uninformative in any way, clicks included, not one for each way.
    expected = np.where(click, 1, 0.5) * np.where(low_loss | unseen, 0.25, 1)
    assert np.array_equal(decisions.keep_probability, expected)
    masks = {
        "all": np.ones(20_000, bool),
        "clicks": click,
        "non_clicks": ~click,
        "low_loss": low_loss,
        "low_visibility": unseen,
        "both": low_loss & unseen,
        "uninformative": low_loss | unseen,
    }
    assert tuple(decisions.conditions) == condition_names(all_rules()) == tuple(masks)
    for name, mask in masks.items():
        assert np.array_equal(decisions.conditions[name], mask), name
    assert np.array_equal(decisions.kept, uniform_hash(examples["example_id"], "1") < expected)
    assert decisions.weight.dtype == np.float32
    weight = np.where(decisions.kept, 1 / expected, 0).astype(np.float32)
    assert np.array_equal(decisions.weight, weight)


def test_one_condition_alone():
    examples = draw_examples(1000)
    config = make_config(uninformative={"rate": 0.5, "low_visibility": LOW_VISIBILITY})
    decisions = decide(config, **{**examples, "teacher_logit": None})
    assert tuple(decisions.conditions) == condition_names(config)
    assert condition_names(config) == ("all", "clicks", "non_clicks", "low_visibility", "uninformative")
    assert np.array_equal(decisions.keep_probability == 0.5, examples["low_visibility"])
    config = make_config(uninformative={"rate": 0.5, "low_loss": LOW_LOSS})
    assert condition_names(config) == ("all", "clicks", "non_clicks", "low_loss", "uninformative")
    assert set(decide(config, **examples).keep_probability) == {0.5, 1}
    assert condition_names(make_config()) == ("all", "clicks", "non_clicks")


@pytest.mark.parametrize("below", [1e-9, 1e-3, 0.1, np.log(2), 1.0, 20.0, 1000.0])
def test_low_loss_is_the_loss_below_the_threshold(below):
    logit = np.concatenate([np.linspace(-40, 40, 3001), [-1e6, 1e6, 0]]).astype(np.float32)
    rule = make_config(uninformative={"rate": 0.5, "low_loss": {"teacher": "t", "max_loss": below}})
    assert rule.uninformative is not None and rule.uninformative.low_loss is not None
    for label in (0, 1):
        labels = np.full(len(logit), label)
        loss = row_logloss(labels == 1, logit.astype(np.float64))
        # Where the two formulas differ by rounding alone, either answer is right.
        clear = np.abs(loss - below) > 1e-12 * below
        assert np.array_equal(rule.uninformative.low_loss.holds(labels, logit)[clear], (loss < below)[clear])


def test_rates_by_the_gradient():
    rule = {"teacher": "t", "threshold": 0.2, "lowest_rate": 0.05}
    config = make_config(non_click_rate=0.5, gradient=rule)
    examples = draw_examples(20_000)
    decisions = decide(config, **examples)
    click, logit = examples["label"] == 1, examples["teacher_logit"].astype(np.float64)
    size = np.abs(click - 1 / (1 + np.exp(-logit)))
    rate = np.minimum(1, np.maximum(0.05, size / 0.2))
    expected = np.where(click, 1, 0.5) * rate
    assert len(np.unique(expected)) > 100 and (expected == 1).any()
    np.testing.assert_allclose(decisions.keep_probability, expected, rtol=1e-12)
    assert (
        tuple(decisions.conditions)
        == condition_names(config)
        == ("all", "clicks", "non_clicks", "low_gradient")
    )
    np.testing.assert_array_equal(decisions.conditions["low_gradient"], size < 0.2)
    # Of a weighted sum of gradients the deviation is that of the closed form.
    gradient = click - 1 / (1 + np.exp(-logit))
    sums = [
        float((decide(make_config(salt=f"s{salt}", gradient=rule), **examples).weight * gradient).sum())
        for salt in range(400)
    ]
    deviation = np.sqrt((gradient**2 * (1 - rate) / rate).sum())
    assert abs(np.mean(sums) - gradient.sum()) < 4.5 * deviation / 20
    assert abs(np.std(sums) / deviation - 1) < 4.5 / np.sqrt(2 * 400)


def test_rates_by_the_gradient_of_extreme_logits():
    config = make_config(gradient={"teacher": "t", "threshold": 0.5})
    assert config.gradient is not None
    logit = np.array([-1e30, -1e4, -20.0, 0.0, 20.0, 1e30], np.float32)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for label in (0, 1):
            rates = config.gradient.rates(np.full(6, label), logit)
            expected = [0.05, 0.05, 0.05, 1, 1, 1]
            np.testing.assert_array_equal(rates, expected if label == 0 else [1, 1, 1, 1, 0.05, 0.05])


def test_outside_the_time_range_no_prediction_is_needed():
    examples = draw_examples(50)
    end = int(examples["query_time"][25])
    examples["teacher_logit"][examples["query_time"] >= end] = np.nan
    content = {"gradient": {"teacher": "t", "threshold": 0.2}}
    config = make_config(**content, time_range={"end": f"1970-01-01T00:00:00.{end:06d}"})
    decisions = decide(config, **examples)
    assert (decisions.keep_probability > 0).sum() == 25 and np.isfinite(decisions.weight).all()
    with pytest.raises(InputError, match="teacher t has no value for 25 of 50 rows"):
        decide(make_config(**content), **examples)


def test_a_missing_prediction_is_no_high_loss():
    examples = draw_examples(10)
    examples["teacher_logit"][[3, 6]] = np.nan
    with pytest.raises(
        InputError,
        match=f"teacher t has no value for 2 of 10 rows, first: example_id {examples['example_id'][3]}$",
    ):
        decide(all_rules(), **examples)


def test_nothing_configured_keeps_all():
    decisions = decide(make_config(), **draw_examples(1000))
    assert decisions.kept.all() and (decisions.weight == 1).all()


@pytest.mark.parametrize("rows", [0, 1])
def test_decisions_have_a_row_for_each_of_few_examples(rows):
    decisions = decide(all_rules(), **draw_examples(rows))
    assert len(decisions.kept) == len(decisions.weight) == len(decisions.keep_probability) == rows
    assert all(len(mask) == rows for mask in decisions.conditions.values())


# ---------------------------------------------------------------- the same everywhere


def test_decisions_depend_on_the_example_alone():
    examples = draw_examples(5000)
    whole = decide(all_rules(), **examples)
    order = np.random.default_rng(2).permutation(5000)[:3000]
    other = decide(all_rules(), **{name: column[order] for name, column in examples.items()})
    assert np.array_equal(other.kept, whole.kept[order])
    assert np.array_equal(other.weight, whole.weight[order])
    later = decide(all_rules(), **{**examples, "query_time": examples["query_time"] + 10**15})
    assert np.array_equal(later.weight, whole.weight)
    assert not np.array_equal(decide(all_rules(salt="2"), **examples).kept, whole.kept)


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.floats(0.1, 1), st.floats(0.1, 1), st.floats(0.1, 1), st.floats(0.1, 1))
def test_a_higher_rate_drops_nothing(seed, low, high, low_rule, high_rule):
    (low, high), (low_rule, high_rule) = sorted((low, high)), sorted((low_rule, high_rule))
    examples = draw_examples(200, seed)
    fewer: Decisions = decide(all_rules("1", low, low_rule), **examples)
    more: Decisions = decide(all_rules("1", high, high_rule), **examples)
    assert not (fewer.kept & ~more.kept).any()


# ---------------------------------------------------------------- the configuration


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"non_click_rate": 0.005},
            "non_click_rate is 0.005, below min_rate 0.01: a kept example would have the weight 200",
        ),
        (
            {"uninformative": {"rate": 0.009, "low_loss": LOW_LOSS}},
            "uninformative.rate is 0.009, below min_rate 0.01",
        ),
        (
            {"non_click_rate": 0.1, "uninformative": {"rate": 0.05, "low_loss": LOW_LOSS}},
            "non_click_rate x uninformative.rate is 0.005, below min_rate 0.01",
        ),
        ({"non_click_rate": 0}, "non_click_rate: 0 is not allowed"),
        ({"non_click_rate": 1.1}, "non_click_rate: 1.1 is not allowed"),
        ({"non_click_rate": -1}, "non_click_rate: -1 is not allowed"),
        ({"min_rate": 0}, "min_rate: 0 is not allowed"),
        ({"uninformative": {"rate": 0.1}}, "low_loss or low_visibility is required"),
        ({"uninformative": {"low_loss": LOW_LOSS}}, "uninformative.rate: missing"),
        (
            {"uninformative": {"rate": 0.1, "low_loss": {"teacher": "t", "max_loss": 0}}},
            "low_loss.max_loss: 0 is not allowed",
        ),
        (
            {"uninformative": {"rate": 0.1, "low_loss": {**LOW_LOSS, "log": ""}}},
            "a folder or null is required",
        ),
        (
            {"uninformative": {"rate": 0.1, "low_visibility": {"feature": "p", "values": []}}},
            "low_visibility.values",
        ),
        (
            {"non_click_rate": 0.1, "gradient": {"teacher": "t", "threshold": 0.2}},
            "non_click_rate x gradient.lowest_rate is 0.005, below min_rate 0.01",
        ),
        ({"gradient": {"teacher": "t", "threshold": 0}}, "gradient.threshold: 0 is not allowed"),
        ({"gradient": {"teacher": "t", "threshold": 1}}, "gradient.threshold: 1 is not allowed"),
        ({"gradient": {"threshold": 0.2}}, "gradient.teacher: missing"),
        (
            {
                "uninformative": {"rate": 0.5, "low_loss": LOW_LOSS},
                "gradient": {"teacher": "t", "threshold": 0.2},
            },
            "gradient and uninformative.low_loss: allowed is one of them",
        ),
        ({"salt": ""}, "salt"),
        ({"salt": True}, "salt"),
        ({"click_rate": 1}, "click_rate: unknown key; allowed: .*non_click_rate"),
    ],
)
def test_what_is_refused(content, message):
    with pytest.raises(InputError, match=message):
        make_config(**content)


def test_rates_at_the_floor_are_allowed():
    # The product is a rounding below the floor that was written down for it.
    assert 0.1 * 0.7 < 0.07
    make_config(non_click_rate=0.1, uninformative={"rate": 0.7, "low_loss": LOW_LOSS}, min_rate=0.07)
    make_config(non_click_rate=0.01)
    make_config(non_click_rate=0.001, min_rate=0.001)


def test_a_configuration_is_read_back_from_its_text(tmp_path):
    rule = {"rate": 0.5, "low_loss": {**LOW_LOSS, "log": "a/b"}, "low_visibility": LOW_VISIBILITY}
    config = make_config(salt=7, uninformative=rule, time_range={"start": "2026-01-05", "end": None})
    assert config.salt == "7"
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(config))
    assert parse_model(SamplingConfig, read_yaml(path, "config"), "test") == config


# ---------------------------------------------------------------- time ranges

DAY = 24 * 3600 * 10**6


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1970-01-03", 2 * DAY),
        ("1970-01-03T00:00:01", 2 * DAY + 10**6),
        ("1970-01-03 00:00:00.000001", 2 * DAY + 1),
        ("1970-01-03T00:00:01Z", 2 * DAY + 10**6),
        ("1970-01-03T01:00:00+02:00", 2 * DAY - 3600 * 10**6),
    ],
)
def test_times_are_utc(text, microseconds):
    for key in ("start", "end"):
        for content in ({key: text}, apply_settings({}, [f"{key}={text}"])):
            time_range = parse_model(TimeRange, content, "test")
            assert getattr(time_range, f"{key}_us") == microseconds
            assert parse_model(TimeRange, time_range.model_dump(mode="json"), "test") == time_range


def test_the_end_is_outside():
    time_range = TimeRange(start=datetime(1970, 1, 2), end=datetime(1970, 1, 3, tzinfo=UTC))
    times = np.array([0, DAY - 1, DAY, 2 * DAY - 1, 2 * DAY, MAX_TIME_US - 1])
    assert time_range.contains(times).tolist() == [False, False, True, True, False, False]
    assert TimeRange().contains(times).all()
    assert TimeRange(start=datetime(1970, 1, 2)).contains(times).tolist() == [
        False,
        False,
        True,
        True,
        True,
        True,
    ]
    assert TimeRange(end=datetime(1970, 1, 2)).contains(times).tolist() == [True, True, *[False] * 4]


@pytest.mark.parametrize(
    ("start", "end", "selected"),
    [
        (0, DAY, False),
        (0, DAY + 1, True),
        (DAY, 2 * DAY, True),
        (DAY + 5, DAY + 6, True),
        (2 * DAY - 1, 3 * DAY, True),
        (2 * DAY, 3 * DAY, False),
        (0, 9 * DAY, True),
    ],
)
def test_partitions_that_a_range_selects(start, end, selected):
    partition = Manifest(start=start, end=end, schema_version="x", rows=0, queries=0, clicks=0, shards=())
    assert TimeRange(start=datetime(1970, 1, 2), end=datetime(1970, 1, 3)).selects(partition) is selected
    assert TimeRange().selects(partition)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"start": 5}, "start: 5 is not allowed: an ISO date or datetime is required"),
        ({"start": True}, "an ISO date or datetime is required"),
        ({"end": "yesterday"}, "end: 'yesterday' is not allowed: an ISO date or datetime is required"),
        ({"end": "0001-01-01T00:00+05:00"}, "an ISO date or datetime is required"),
        ({"start": "2026-01-05", "end": "2026-01-05"}, "start 2026-01-05T00:00:00.* must be before end"),
        ({"start": "2026-01-05T01:00", "end": "2026-01-05T02:30+02:00"}, "must be before end"),
        ({"begin": "2026-01-05"}, "begin: unknown key; allowed: end, start"),
    ],
)
def test_ranges_that_are_refused(content, message):
    with pytest.raises(InputError, match=message):
        parse_model(TimeRange, content, "test")


def test_outside_the_range_nothing_is_kept_and_inside_nothing_is_reweighted():
    examples = draw_examples(5000)
    half = {"end": datetime.fromtimestamp(0.5, UTC).isoformat()}
    everywhere = decide(all_rules(), **examples)
    examples["teacher_logit"] = np.where(examples["query_time"] < 500_000, examples["teacher_logit"], np.nan)
    config = make_config(**{**all_rules().model_dump(mode="json"), "time_range": half})
    decisions = decide(config, **examples)
    inside = examples["query_time"] < 500_000
    assert 0 < inside.sum() < 5000
    assert np.array_equal(decisions.weight, np.where(inside, everywhere.weight, 0))
    assert np.array_equal(decisions.keep_probability, np.where(inside, everywhere.keep_probability, 0))
    assert np.array_equal(decisions.kept, everywhere.kept & inside)
    for name, mask in decisions.conditions.items():
        assert np.array_equal(mask, everywhere.conditions[name] & inside), name
