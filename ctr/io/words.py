"""Known words that were meant by one that is not known."""

import difflib
from collections.abc import Sequence

_LISTED, _MOST_LISTED = 160, 20  # characters and words of a list of known words at most


def near_words(word: str, known: Sequence[str]) -> list[str]:
    """Finds the known words that are alike, the most alike first; of dotted keys also those that end alike."""
    near = difflib.get_close_matches(word, known, 3)
    # A key that stands elsewhere, for those who remember it without what is above it.
    last = word.rpartition(".")[2]
    return [
        *near,
        *(one for one in known if "." in one and one.rpartition(".")[2] == last and one not in near),
    ]


def did_you_mean(word: str, known: Sequence[str], limit: int = 3) -> str:
    """Asks for the word that was meant, to stand behind an error; empty where nothing is alike."""
    near = near_words(word, known)[:limit]
    alternatives = " or ".join(filter(None, (", ".join(near[:-1]), *near[-1:])))
    return f"; did you mean {alternatives}?" if near else ""


def listed(known: Sequence[str], meant: str = "") -> str:
    """Lists the known words; of more than a line has room for those like ``meant`` and the first ones."""
    text = ", ".join(known) or "(none)"
    if len(text) <= _LISTED:
        return text
    # A table may have thousands of columns, and names of any length.
    first = list(dict.fromkeys([*near_words(meant, known), *known[:_MOST_LISTED]]))
    while len(first) > 1 and len(", ".join(first)) > _LISTED:
        first.pop()
    return f"{', '.join(first)}, ... ({len(known):,} in all)"
