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

    @property
    def ranks(self) -> int:
        """Over all hosts."""
        return self.hosts * self.on_host.ranks

    @property
    def global_batch(self) -> int:
        """Images of all ranks in a step."""
        return self.hosts * self.on_host.images

    @property
    def name(self) -> str:
        """In a line's words."""
        shape = self.on_host
        hosts = "1 host" if self.hosts == 1 else f"{self.hosts} hosts"
        ranks = "1 rank" if shape.ranks == 1 else f"{shape.ranks} ranks"
        threads = "1 thread" if shape.threads == 1 else f"{shape.threads} threads"
        images = "1 image" if shape.batch_size == 1 else f"{shape.batch_size} images"
        return f"{hosts} × {ranks} × {threads}, {images} a rank"


def allocations(shapes: Sequence[Shape], *, most_hosts: int) -> Iterator[Allocation]:
    """Every shape on 1 to `most_hosts` hosts, see `host_counts`."""
    for shape, hosts in product(shapes, host_counts(most_hosts)):
        yield Allocation(hosts=hosts, on_host=shape)


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
