"""Exception that a user is meant to read, and how errors are described."""

import unicodedata
from collections.abc import Sequence

# Control characters, those that change direction or show nothing, halves of pairs, and line ends of other kinds.
_CONTROLS = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


LONGEST_LINE = 300  # characters of an error on one line; a longer one becomes a line and a hint
_JOINED = 160  # characters of texts in an error that are shown with semicolons between, but for the first


class InputError(Exception):
    """Bad input: a message of one line that says what is wrong, where, and what is allowed.

    The command line prints the message after ``error:`` and exits with status 1, without a traceback. The hint says
    what to do; it has a line of its own where both together are long.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.hint = hint


def of_another_version(file: object) -> InputError:
    """Makes the error for a file that does not have the present format."""
    return InputError(f"{file}: made by an unreleased version of ctr; make it again")


def one_line(error: BaseException) -> str:
    """Formats an error on one line, without anything that a terminal would obey: values of files may stand in it.

    Of a file that the system refused: which one, and why. Of an error without words: its kind.
    """
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        text = f"{error.filename}: {error.strerror}"
    return printable(" ".join(text.split())) or type(error).__name__


def error_lines(error: BaseException) -> list[str]:
    """Formats an error in a line, or a line and a hint: its own, or what stands behind the last semicolon that fits."""
    text = one_line(error)
    hint = printable(" ".join(getattr(error, "hint", "").split()))
    if len(text) <= LONGEST_LINE:
        return [text]
    cut = len(text) - len(hint) - 2 if hint else text.rfind("; ", 0, LONGEST_LINE)
    return [text[:cut], f"hint: {text[cut + 2 :]}"] if cut > 0 else [text]


def joined(texts: Sequence[str]) -> str:
    """Joins texts by semicolons: the first, as many more as a line has room for, and the number of others."""
    shown = list(texts[:1])
    for text in texts[1:]:
        if len("; ".join([*shown, text])) > _JOINED:
            break
        shown.append(text)
    left = len(texts) - len(shown)
    return "; ".join([*shown, *([f"and {left:,} more"] if left else [])])


def printable(text: str) -> str:
    r"""Escapes characters that control, hide or turn others (``\x1b``), but for line ends and tabs."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character in "\n\t" or unicodedata.category(character) not in _CONTROLS
        else character.encode("unicode_escape").decode()
        for character in text
    )
