"""When a run's next checkpoint is due."""

import time

from retinanet.checkpoint_interval import interval_of


class CheckpointClock:
    """Of rank 0, whose word counts for all ranks."""

    def __init__(self, every: str) -> None:
        """`every`: as in the configuration; see `retinanet.checkpoint_interval`."""
        self._interval = interval_of(every)
        self._last_time = time.monotonic()
        self._last_step = 0
        self._last_epoch = 0.0

    def restart(self, *, step: int, epoch: float) -> None:
        """Count from here on: a checkpoint was begun after `step` steps and `epoch` epochs."""
        self._last_time, self._last_step, self._last_epoch = time.monotonic(), step, int(epoch)

    def is_due(self, *, step: int, epoch: float) -> bool:
        """Whether it is time for the next one, after `step` steps and `epoch` epochs in all."""
        count = self._interval.count
        if self._interval.unit == "seconds":
            return time.monotonic() - self._last_time >= count
        if self._interval.unit == "steps":
            return step // count > self._last_step // count
        return int(epoch) // count > int(self._last_epoch) // count
