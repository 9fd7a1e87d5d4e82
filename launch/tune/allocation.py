"""The allocations that there are: hosts, ranks of each, their threads and local batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from launch.tune.step_time import Shape

STEPS = 8
"""To a number of hosts at which the distance to the next one doubles."""


@dataclass(frozen=True, kw_only=True, order=True)
class Allocation:
    """Alike hosts, each with ranks of one shape."""

    hosts: int
    on_host: Shape
    groups: int = 1
    """Compute groups, each of as many whole hosts."""

    @property
    def ranks(self) -> int:
        """Over all hosts."""
        return self.hosts * self.on_host.ranks

    @property
    def ranks_of_group(self) -> int:
        """Which exchange gradients with each other."""
        return self.ranks // self.groups

    @property
    def global_batch(self) -> int:
        """Images of a step: of all ranks of a group."""
        return self.hosts // self.groups * self.on_host.images

    @property
    def name(self) -> str:
        """In a line's words."""
        shape = self.on_host
        hosts = "1 host" if self.hosts == 1 else f"{self.hosts} hosts"
        ranks = "1 rank" if shape.ranks == 1 else f"{shape.ranks} ranks"
        threads = "1 thread" if shape.threads == 1 else f"{shape.threads} threads"
        images = "1 image" if shape.batch_size == 1 else f"{shape.batch_size} images"
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        return f"{hosts}{groups} × {ranks} × {threads}, {images} a rank"


def allocations(
    shapes: Sequence[Shape], *, most_hosts: int, most_groups: int = 1
) -> Iterator[Allocation]:
    """Every shape on 1 to `most_hosts` hosts, see `host_counts`, in as many groups as divide them.

    Args:
        shapes: Of the ranks of a host.
        most_hosts: That there are.
        most_groups: That are allowed.
    """
    for shape, hosts in product(shapes, host_counts(most_hosts)):
        for groups in range(1, min(hosts, most_groups) + 1):
            if hosts % groups == 0:
                yield Allocation(hosts=hosts, on_host=shape, groups=groups)


def host_counts(most: int) -> list[int]:
    """1, 2, … 8, 10, 12, 14, 16, 20, … and `most`: each at most a quarter more than the last."""
    found = []
    count, step = 1, 1
    while count < most:
        found.append(count)
        if count == STEPS * step:
            step *= 2
        count += step
    return [*found, most]
