"""How errors are shown: one line, or a line and a hint where that would be long; and lists of words in them."""

import pickle

from ctr.io.errors import LONGEST_LINE, InputError, error_lines, joined, listed


def test_a_long_error_is_a_line_and_a_hint():
    assert error_lines(InputError("x: no number", "write one")) == ["x: no number; write one"]
    long = "a\x1bb" * 80
    first, hint = error_lines(InputError(f"x: {long}", "write\none"))
    assert first == "x: " + r"a\x1bb" * 80 and hint == "hint: write one"
    # As processes hand it on.
    error = pickle.loads(pickle.dumps(InputError("x", "y")))
    assert (str(error), error.hint) == ("x; y", "y")


def test_without_a_hint_a_long_error_breaks_at_a_semicolon():
    parts = [f"{number:02d} " + "x" * 90 for number in range(5)]
    first, hint = error_lines(InputError("; ".join(parts)))
    assert first == "; ".join(parts[:3]) and hint == "hint: " + "; ".join(parts[3:])
    assert len(first) <= LONGEST_LINE
    assert error_lines(OSError("y" * 400)) == ["y" * 400]


def test_few_words_are_listed_and_of_many_the_likeliest():
    assert listed(["a", "b"], "c") == "a, b"
    assert listed([]) == "(none)"
    text = listed([f"a_long_name_of_column_{number}" for number in range(2000)], "a_long_name_of_colum_1777")
    assert text.startswith("a_long_name_of_column_1777, ") and "a_long_name_of_column_0, " in text
    assert text.endswith(", ... (2,000 in all)")
    lines = error_lines(InputError(f"--label x: no such column; the columns are {text}"))
    assert all(len(line) <= LONGEST_LINE for line in lines)


def test_of_many_differences_the_first_are_shown():
    assert joined(["a was 1, is 2", "b was 3, is 4"]) == "a was 1, is 2; b was 3, is 4"
    text = joined([f"feature_{number} was added" for number in range(1000)])
    assert text.startswith("feature_0 was added; feature_1 was added; ") and len(text) < 200
    assert text.endswith(f"; and {1000 - text.count('was added')} more")
