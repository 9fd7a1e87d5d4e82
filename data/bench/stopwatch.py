"""How long the stages of a piece of work take."""

import time


class Stopwatch:
    """Seconds by stage, summed over all laps since it was made."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Count the time since the last lap, or since the start, to a stage."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now
