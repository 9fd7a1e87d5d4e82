"""What ends a command, other than our bugs."""

from retinanet.printable import one_line


class InputError(ValueError):
    """Bad input. The message is one line: the file, the field, what was expected, and the fix.

    Commands print it to stderr and exit with status 2; anything else that escapes is our bug.
    Names and values in it come from outside: whatever they hold, the line stays one, of a bounded
    length, and does nothing to a terminal.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class NonFiniteLossError(ArithmeticError):
    """A loss or a gradient was infinite or NaN; the weights are those of the step before."""


class StoppedBeforeStart(BaseException):
    """A signal asked a run to end before its first step; the message is the signal's name.

    Like KeyboardInterrupt it may come anywhere, and no `except Exception` is to hold it up.
    """
