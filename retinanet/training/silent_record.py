"""The record of a run on a rank that does not write: rank 0 writes for all."""

from typing import Any


class SilentRecord:
    """In the place of a `RunRecord`: takes the same calls and does nothing."""

    def step(self, *arguments: Any, **named: Any) -> str:
        """Nothing to say."""
        return ""

    def bad_image(self, *arguments: Any, **named: Any) -> None:
        """Nothing."""

    def nonfinite(self, *arguments: Any, **named: Any) -> None:
        """Nothing."""

    def evaluation(self, *arguments: Any, **named: Any) -> None:
        """Nothing."""

    def wait_for_files(self) -> None:
        """Nothing."""

    def pictures(self, *arguments: Any, **named: Any) -> None:
        """Nothing."""

    def closing(self, *arguments: Any, **named: Any) -> None:
        """Nothing."""
