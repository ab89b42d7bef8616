"""Lists of words in errors: whole where they are short, else what is likely meant, and how many there are."""

from ctr.io.errors import LONGEST_LINE, InputError, error_lines, joined
from ctr.io.words import listed


def test_few_words_are_listed_and_of_many_the_likeliest():
    assert listed(["a", "b"], "c") == "a, b"
    assert listed([]) == "(none)"
    many = [f"a_long_name_of_column_{number}" for number in range(2000)]
    text = listed(many, "a_long_name_of_colum_1777")
    assert text.startswith("a_long_name_of_column_1777, ")
    assert text.endswith(", ... (2,000 in all)")
    assert "a_long_name_of_column_0, " in text
    lines = error_lines(InputError(f"--label x: no such column; the columns are {text}"))
    assert all(len(line) <= LONGEST_LINE for line in lines)


def test_of_many_differences_the_first_are_shown():
    assert joined(["a was 1, is 2", "b was 3, is 4"]) == "a was 1, is 2; b was 3, is 4"
    text = joined([f"feature_{number} was added" for number in range(1000)])
    assert text.startswith("feature_0 was added; feature_1 was added; ") and len(text) < 200
    shown = text.count("was added")
    assert text.endswith(f"; and {1000 - shown} more")
