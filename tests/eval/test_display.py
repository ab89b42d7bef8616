import math

import pytest

from ctr.eval.display import aligned, amount, decimals_for, fixed, interval, percent, times, verdict


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (fixed(None), "–"),
        (fixed(math.nan), "–"),
        (fixed(-0.000001), "0.00000"),
        (fixed(-0.000001, signed=True), "0.00000"),
        (fixed(0.25, 2, signed=True), "+0.25"),
        (interval(-0.5, 0.25, 2, signed=True), "[-0.50, +0.25]"),
        (interval(None, 0.25), "–"),
        (interval(0.1, math.nan), "–"),
        (amount(None), "–"),
        (amount(0), "0"),
        (amount(1234567), "1,234,567"),
        (amount(18529.6), "18,530"),
        (amount(123.456), "123.5"),
        (amount(16.3), "16.3"),
        (amount(0.013149), "0.01315"),
        (percent(math.nan), "–"),
        (percent(0.93456), "93.5%"),
        (percent(1.0), "100.0%"),
        (times(None), "–"),
        (times(0.0), "0.000×"),
        (times(0.00001), "<0.001×"),
        (times(0.0131), "0.013×"),
        (times(2.8), "2.80×"),
        (times(16737.0), "16,737×"),
    ],
)
def test_numbers(shown, text):
    assert shown == text


@pytest.mark.parametrize(
    ("low", "high", "decimals"),
    [
        (None, 1.0, 5),
        (math.nan, math.nan, 5),
        (0.5, 0.5, 5),
        (0.1, 0.2, 5),
        (0.0, 2e-5, 6),
        (0.0, 1e-30, 9),
        (0.0, 5e-324, 5),
        (-1e308, 1e308, 5),
        (-math.inf, math.inf, 5),
    ],
)
def test_digits_follow_the_interval(low, high, decimals):
    assert decimals_for(low, high) == decimals


@pytest.mark.parametrize(
    ("metric", "difference", "significant", "words"),
    [
        ("auc", 0.1, True, "better"),
        ("auc", -0.1, True, "worse"),
        ("logloss", 0.1, True, "worse"),
        ("normalized_entropy", -0.1, True, "better"),
        ("calibration_bias", 0.1, True, "differs"),
        ("per_query_auc", 0.1, False, "not significant"),
        ("per_query_auc", 0.1, None, "no interval"),
    ],
)
def test_verdicts(metric, difference, significant, words):
    assert verdict(metric, difference, significant) == words


def test_columns_stand_under_one_another():
    assert aligned([["", "a", "b"], ["long name", "1", "22.5"]]) == [
        "           a     b",
        "long name  1  22.5",
    ]
