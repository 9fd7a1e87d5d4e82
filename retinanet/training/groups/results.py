"""The steps of compute groups on their way to rank 0, which records them all."""

import pickle
from collections.abc import Iterator

from retinanet.training.groups.compute_groups import ComputeGroups
from retinanet.training.loop import StepResult


class GroupResults:
    """Left by the first rank of each group, taken by rank 0, through the store of the job."""

    def __init__(self, groups: ComputeGroups) -> None:
        """Those of the stretch that begins."""
        self._store = groups.store
        self._name = f"stretch {groups.stretch}/results of group"
        self._own = groups.number
        self._left = 0
        self._taken = dict.fromkeys(set(range(groups.count)) - {groups.number}, 0)

    def leave(self, result: StepResult) -> None:
        """Leave one of this group's."""
        content = pickle.dumps(result)
        self._store.set(self._key(self._own, self._left), content)  # type: ignore[arg-type]
        self._left += 1

    def take(self) -> Iterator[StepResult]:
        """Those of the other groups that nobody has taken yet."""
        for group in self._taken:
            while self._store.check([key := self._key(group, self._taken[group])]):
                yield pickle.loads(self._store.get(key))  # noqa: S301 – of a rank of this job
                self._store.delete_key(key)
                self._taken[group] += 1

    def _key(self, group: int, index: int) -> str:
        return f"{self._name} {group}/{index}"
