"""The one exception that a user is meant to read, and how it is shown."""

import unicodedata

# Control characters, those that change direction or show nothing, halves of pairs, and line ends of other kinds.
_CONTROLS = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


class InputError(Exception):
    """Bad input: a message of one line that says what is wrong, where, and what is allowed.

    The command line prints the message after ``error:`` and exits with status 1, without a traceback.
    """


def one_line(error: BaseException) -> str:
    """The message on one line, without anything that a terminal would obey: values of files may stand in it."""
    return printable(" ".join(str(error).split()))


def printable(text: str) -> str:
    r"""``text`` with characters that control, hide or turn others escaped (``\x1b``), but for line ends and tabs."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character in "\n\t" or unicodedata.category(character) not in _CONTROLS
        else character.encode("unicode_escape").decode()
        for character in text
    )
