"""Which known word was meant by one that is not known."""

import difflib
from collections.abc import Sequence


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
