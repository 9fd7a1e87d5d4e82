"""What ends a command, other than our bugs."""


class InputError(ValueError):
    """Bad input. The message is one line: the file, the field, what was expected, and the fix.

    Commands print it to stderr and exit with status 2; anything else that escapes is our bug.
    """


class NonFiniteLossError(ArithmeticError):
    """A loss was infinite or not a number; the weights are those of the step before."""
