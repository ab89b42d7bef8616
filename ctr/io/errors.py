"""The one exception that a user is meant to read, and how errors are described."""

import unicodedata

# Control characters, those that change direction or show nothing, halves of pairs, and line ends of other kinds.
_CONTROLS = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


class InputError(Exception):
    """Bad input: a message of one line that says what is wrong, where, and what is allowed.

    The command line prints the message after ``error:`` and exits with status 1, without a traceback.
    """


def one_line(error: BaseException) -> str:
    """What an error says on one line, without anything that a terminal would obey: values of files may stand in it.

    Of a file that the system refused: which one, and why. Of an error without words: its kind.
    """
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        text = f"{error.filename}: {error.strerror}"
    return printable(" ".join(text.split())) or type(error).__name__


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
