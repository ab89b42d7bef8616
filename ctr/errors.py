"""The one exception that a user is meant to read, and how errors are told."""


class InputError(Exception):
    """Bad input: a message of one line that says what is wrong, where, and what is allowed.

    The command line prints the message after ``error:`` and exits with status 1, without a traceback.
    """


def one_line(error: Exception) -> str:
    """What an error says in one line; of a file that the system refused, which one and why."""
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        text = f"{error.filename}: {error.strerror}"
    return " ".join(text.split())
