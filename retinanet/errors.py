"""The one exception for mistakes a user can mend: in a config, a file, a command line."""


class InputError(ValueError):
    """Bad input. The message is one line: the file, the field, what was expected, and the fix.

    Commands print it to stderr and exit with status 2; anything else that escapes is our bug.
    """
