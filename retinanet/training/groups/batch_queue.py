"""The batches of a stretch of training, which compute groups take from one queue.

A stretch lasts from one time at which all groups come together to the next: to the epoch's end, or
until somebody closes the queue since a checkpoint is due, say. All batches before the queue's end
have then been taken, and none after it.
"""

import itertools
from collections.abc import Iterator

import torch.distributed as dist

CLOSED = 10**12
"""More than any number of batches: what is counted beyond it was asked for after the end."""


class BatchQueue:
    """One rank's view; ranks of a group see the same batches in the same order."""

    def __init__(
        self, store: dist.Store, *, stretch: int, steps: int, group: int, group_size: int
    ) -> None:
        """Open, which every rank does.

        Args:
            store: Where all ranks of the job count.
            stretch: Its number in the run.
            steps: Of which it consists at the most; each is one group's.
            group: The number of this rank's group.
            group_size: The group's ranks.
        """
        self._store = store
        self._name = f"stretch {stretch}"
        self._steps = steps
        self._group = group
        self._group_size = group_size
        self.taken: list[int] = []
        """Numbers in the stretch, from 0, of the steps that this rank has been given so far."""
        self.is_over = False
        """Whether it has been told that there are no more."""

    def take(self, index: int) -> int | None:
        """The number of the step that is the group's `index`-th; None where there is none.

        Any rank of the group may ask first, as it reads ahead.
        """
        if index < len(self.taken):
            return self.taken[index]
        assert index == len(self.taken)
        number = None if self.is_over else self._next(index)
        if number is None or number >= self._steps:
            self.is_over = True
            return None
        self.taken.append(number)
        return number

    def _next(self, index: int) -> int:
        if self._group_size == 1:
            return self._count()
        key = f"{self._name}/group {self._group}/{index}"
        asked = self._store.add(f"{key}/asked", 1)
        if asked == 1:
            self._store.set(key, str(self._count()))
        number = int(self._store.get(key))
        if self._store.add(f"{key}/read", 1) == self._group_size:
            for name in (key, f"{key}/asked", f"{key}/read"):
                self._store.delete_key(name)
        return number

    def _count(self) -> int:
        return int(self._store.add(f"{self._name}/next", 1)) - 1

    def close(self) -> None:
        """Let nobody take another batch; any rank may, any number of times."""
        self._store.add(f"{self._name}/next", CLOSED)


def batches_of(queue: BatchQueue, *, first: int, batches_a_step: int) -> Iterator[int]:
    """The numbers in the stretch of the batches of steps that a queue gives, taken as needed.

    Args:
        queue: Where they come from.
        first: Of the group's steps, the first one that is wanted.
        batches_a_step: How many each has.
    """
    for index in itertools.count(first):
        step = queue.take(index)
        if step is None:
            return
        yield from range(step * batches_a_step, (step + 1) * batches_a_step)
