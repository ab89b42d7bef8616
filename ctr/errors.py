"""The one exception that a user is meant to read."""


class InputError(Exception):
    """Bad input: a message of one line that says what is wrong, where, and what is allowed.

    The command line prints the message after ``error:`` and exits with status 1, without a traceback.
    """
