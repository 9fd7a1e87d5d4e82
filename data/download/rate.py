"""How fast bytes arrive."""

import time
from collections import deque

SECONDS = 10.0
"""What the rate is the mean of."""


class Rate:
    """The rate of something that grows, over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, size: int) -> str:
        """Say how fast it was lately, such as `12.3 MB/s`.

        Args:
            size: How much there is now. [bytes]
        """
        now = time.monotonic()
        if self._seen and size < self._seen[-1][1]:
            self._seen.clear()  # it began anew
        self._seen.append((now, size))
        while now - self._seen[0][0] > SECONDS:
            self._seen.popleft()
        then, before = self._seen[0]
        return f"{(size - before) / max(now - then, 1e-3) / 1e6:.1f} MB/s"
