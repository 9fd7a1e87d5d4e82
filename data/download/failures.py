"""How getting a file can end, other than well.

A reason may quote what a server sent, so that each is made one printable line.
"""

from retinanet.printable import one_line


class AttemptError(Exception):
    """An attempt came to nothing that may go better next time."""

    def __init__(self, reason: str, *, wait: float = 0.0, keep_part: bool = False) -> None:
        """Say why, in one line.

        Args:
            reason: What to tell the user.
            wait: How long the server asks to be left alone. [s]
            keep_part: What has arrived is good, as far as it goes.
        """
        super().__init__(one_line(reason))
        self.wait = wait
        self.keep_part = keep_part


class FetchError(Exception):
    """All attempts came to nothing, or the server refuses for good. One line with the address."""

    def __init__(self, reason: str) -> None:
        """Take the reason and the address."""
        super().__init__(one_line(reason))


class MissingFileError(FetchError):
    """The server says that there is no such file."""


class StoppedError(Exception):
    """The command is ending; nothing is wrong with the file."""
