"""Exceptions with messages for users: their text, the words that they list, and their exit status."""

import difflib
import errno
import os
import signal
import unicodedata
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor
from typing import Self

from ctr.io.signals import Interrupted

# Bad input fails again with the same command; a defect is a bug; a fault that may pass (a full disk) merits a restart.
INPUT, DEFECT, PASSING, INTERRUPTED = 1, os.EX_SOFTWARE, os.EX_TEMPFAIL, 128 + signal.SIGINT

# Control characters, those that change direction or show nothing, halves of pairs, and line ends of other kinds.
_CONTROLS = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))

LONGEST_LINE = 300  # characters of an error on one line; a longer one becomes a line and a hint
_JOINED = 160  # maximum number of characters of texts that an error joins with semicolons, except the first


class InputError(Exception):
    """Bad input: the message is one line with the fault, its place, and the allowed values.

    The command line prints the message after ``error:`` and exits with ``status``, without a traceback. The hint says
    what to do; it is on a separate line if both together are long.
    """

    status = INPUT

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.hint = hint

    def ending_with(self, status: int) -> Self:
        """Sets the exit status of failed child processes, and returns the error."""
        self.status = status
        return self


class PassingError(InputError):
    """A transient fault, such as a store that does not answer: the same command may succeed later."""

    status = PASSING


USAGE = 2  # click's exit status for a wrong command line

# Errors of the system that the same command meets again, as they are about its input.
_LASTING = {
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.EEXIST),
    *(
        errno.ENOTEMPTY,
        errno.ENAMETOOLONG,
        errno.ELOOP,
        errno.EINVAL,
        errno.EXDEV,
        errno.ENOTSUP,
        errno.ENXIO,
    ),
    *(errno.ESPIPE, errno.EFBIG, errno.EADDRINUSE, errno.EADDRNOTAVAIL),
}
# Errors of TensorFlow, by name, as it need not be loaded.
_PASSING_OF_TENSORFLOW = (
    "ResourceExhaustedError",
    "UnavailableError",
    "AbortedError",
    "DeadlineExceededError",
)


def exit_status(error: BaseException) -> int:
    """Returns the exit status of a command that raised ``error``; every exit status is decided here.

    130 and 143 after SIGINT and SIGTERM; ``PASSING`` for lack of memory, disk space or file descriptors, a killed
    process, or a store or worker that does not answer, also as the cause of another error; ``INPUT`` for bad input; and
    ``DEFECT`` for an unexpected exception.
    """
    if isinstance(error, Interrupted):
        return error.status
    # A C module that is interrupted while it is loaded raises ImportError.
    if any(isinstance(cause, KeyboardInterrupt) for cause in _chain(error)):
        return INTERRUPTED
    is_refusal = isinstance(error, InputError)
    if any(_is_passing(cause, is_refusal) for cause in _chain(error)):
        return PASSING
    if isinstance(error, InputError):
        return error.status
    is_of_system = isinstance(error, OSError) or (
        isinstance(error, ModuleNotFoundError) and not is_ours(error)
    )
    return INPUT if is_of_system else DEFECT


def process_status(returncode: int) -> int:
    """Returns ``INPUT``, ``DEFECT`` or ``PASSING`` for a failed child process; a signal counts as ``PASSING``."""
    if returncode in (INPUT, USAGE):
        return INPUT
    return PASSING if returncode < 0 or returncode == PASSING else DEFECT


def is_ours(error: ModuleNotFoundError) -> bool:
    """Returns whether the missing module belongs to this package, rather than to a package that is not installed."""
    return str(error.name).partition(".")[0] == __package__.partition(".")[0]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and the chain of its causes and contexts."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        yield current
        seen.append(current)
        current = current.__cause__ or current.__context__


def _is_passing(error: BaseException, is_refusal: bool) -> bool:
    if isinstance(error, PassingError):
        return True
    # Libraries raise these two for damaged files, too, which an InputError then reports.
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is None):
        return not is_refusal
    if isinstance(error, OSError):
        return error.errno not in _LASTING
    if type(error).__module__.startswith("tensorflow"):
        return type(error).__name__ in _PASSING_OF_TENSORFLOW
    return isinstance(error, BrokenExecutor) or "can't start new thread" in str(error)


def of_another_version(file: object) -> InputError:
    """Returns the error for a file in the format of another version."""
    return InputError(f"{file}: made by an unreleased version of ctr; make it again")


def one_line(error: BaseException) -> str:
    """Formats an error on one line, without control characters, because it may contain values of files.

    Returns the file name and the reason if the system refused a file, and the type of an error without a message.
    """
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        text = f"{error.filename}: {error.strerror}"
    return printable(" ".join(text.split())) or type(error).__name__


def error_lines(error: BaseException) -> list[str]:
    """Formats an error as a line; if too long, as a line and a hint: the error's, or the text after a semicolon."""
    text = one_line(error)
    hint = printable(" ".join(getattr(error, "hint", "").split()))
    if len(text) <= LONGEST_LINE:
        return [text]
    cut = len(text) - len(hint) - 2 if hint else text.rfind("; ", 0, LONGEST_LINE)
    return [text[:cut], f"hint: {text[cut + 2 :]}"] if cut > 0 else [text]


def joined(texts: Sequence[str]) -> str:
    """Joins texts with semicolons: the first, as many more as fit into a line, and the number of others."""
    shown = list(texts[:1])
    for text in texts[1:]:
        if len("; ".join([*shown, text])) > _JOINED:
            break
        shown.append(text)
    left = len(texts) - len(shown)
    return "; ".join([*shown, *([f"and {left:,} more"] if left else [])])


def printable(text: str) -> str:
    r"""Escapes characters that control, hide or reverse others (``\x1b``), except line ends and tabs."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character in "\n\t" or unicodedata.category(character) not in _CONTROLS
        else character.encode("unicode_escape").decode()
        for character in text
    )


_LISTED, _MOST_LISTED = 160, 20  # maximum numbers of characters and words in a list of allowed words


def near_words(word: str, words: Sequence[str]) -> list[str]:
    """Returns the words like ``word``, the most similar first, and dotted keys with the same last part."""
    near = difflib.get_close_matches(word, words, 3)
    # A key of another group, for users who remember its last part alone.
    last = word.rpartition(".")[2]
    return [
        *near,
        *(key for key in words if "." in key and key.rpartition(".")[2] == last and key not in near),
    ]


def did_you_mean(word: str, words: Sequence[str], limit: int = 3) -> str:
    """Returns a question for the word that was meant, to append to an error; empty if no word is similar."""
    near = near_words(word, words)[:limit]
    alternatives = " or ".join(filter(None, (", ".join(near[:-1]), *near[-1:])))
    return f"; did you mean {alternatives}?" if near else ""


def listed(words: Sequence[str], meant: str = "") -> str:
    """Lists the words; if they do not fit into a line, the words like ``meant``, the first ones, and their number."""
    text = ", ".join(words) or "(none)"
    if len(text) <= _LISTED:
        return text
    # A table may have thousands of columns, and names of any length.
    first = list(dict.fromkeys([*near_words(meant, words), *words[:_MOST_LISTED]]))
    while len(first) > 1 and len(", ".join(first)) > _LISTED:
        first.pop()
    return f"{', '.join(first)}, ... ({len(words):,} in all)"
