import math

from ctr.eval.display import amount, decimals_for, fixed, interval, percent, times


def test_numbers_are_written_with_the_digits_that_matter():
    for write, texts in (
        (fixed, {None: "–", math.nan: "–", -0.000001: "0.00000"}),
        (
            amount,
            {None: "–", 0: "0", 1234567: "1,234,567", 18529.6: "18,530", 0.013149: "0.01315"},
        ),
        (percent, {math.nan: "–", 0.93456: "93.5%"}),
        (times, {None: "–", 0.00001: "<0.001×", 0.0131: "0.013×", 2.8: "2.80×", 16737.0: "16,737×"}),
    ):
        assert {number: write(number) for number in texts} == texts
    assert fixed(-0.000001, signed=True) == "0.00000" and fixed(0.25, 2, signed=True) == "+0.25"
    assert interval(-0.5, 0.25, 2, signed=True) == "[-0.50, +0.25]"
    assert interval(None, 0.25) == interval(0.1, math.nan) == "–"


def test_digits_follow_the_interval():
    for low, high, decimals in (
        (None, 1.0, 5),
        (0.5, 0.5, 5),
        (0.1, 0.2, 3),
        (-1.0, 1.0, 1),
        (0.0, 1e-30, 9),
        (-math.inf, math.inf, 5),
    ):
        assert decimals_for(low, high) == decimals
