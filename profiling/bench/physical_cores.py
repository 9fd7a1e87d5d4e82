"""Which CPUs share a physical core, by measurement: virtual machines hide it, or report it wrongly.

Two hyperthreads share the arithmetic units of their core: each multiplies at about half of its rate
while the other multiplies too. A worker (`common.processes.JsonWorker`) runs a float32 product on
each CPU of a set at once, on a few sets. float32, also beside AMX: one thread alone already keeps
the vector units busy, whereas the tile unit would wait for its loads, and two would gain.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from statistics import median
from typing import Any

from common.console import Advance
from common.errors import InputError, WorkerDiedError
from common.processes import Answering, JsonWorker, serve
from common.wording import counted, listed
from launch.limits import read_allowance
from launch.pinning import choose_cores, make_share
from launch.shares import Share
from launch.topology import Core, Topology, list_sockets, read_topology

SHARES_BELOW = 0.75
"""Two CPUs share a core if each keeps less than this of its rate beside the other: it keeps half if
they do, and all but what the clock loses if they do not."""
LEAST_ROUNDS, MOST_ROUNDS = 3, 8  # Rounds over all sets; more than the least only in doubt
SECONDS = 0.06  # Of the product on a set of CPUs, some tens of calls
SIZE = 512  # Of the matrices, which stay in the second cache
PAIRS_SHOWN = 8

Rates = Sequence[Mapping[int, float]]
"""For each set of CPUs the rate of each, computing at the same time."""


@dataclass(frozen=True, kw_only=True)
class Cores:
    """The CPUs of this machine that this process may use, by physical core."""

    topology: Topology
    cores: tuple[Core, ...]  # In order of their lowest CPU: as measured, else as the kernel says
    kept: Mapping[tuple[int, int], float]
    """For each measured pair the share of its rate that a CPU keeps beside the other."""
    not_measured: str = ""  # The reason, where it could not be measured

    @property
    def reported(self) -> tuple[Core, ...]:
        """The physical cores that the kernel reports."""
        return tuple(core for socket in list_sockets(self.topology) for core in socket.cores)

    @property
    def in_order(self) -> list[int]:
        """All CPUs, first one of each core; a sibling by /sys alone does not come first either."""
        place: dict[int, int] = {}
        for core in (*self.cores, *self.reported):
            place |= {cpu: max(at, place.get(cpu, 0)) for at, cpu in enumerate(core)}
        return sorted(place, key=lambda cpu: (place[cpu], cpu))

    def share(self, threads: int) -> Share:
        """Return a CPU for each thread, the first ones in order."""
        if self.not_measured:
            return choose_cores(threads=threads)
        by_number = {cpu.cpu: cpu for cpu in self.topology.cpus}
        chosen = [by_number[number] for number in self.in_order[:threads]]
        return make_share(chosen, threads=threads, floating=False)

    def count(self, threads: int) -> int:
        """Return how many physical cores that many threads use."""
        used = set(self.in_order[:threads])
        return sum(not used.isdisjoint(core) for core in self.cores)

    def __str__(self) -> str:
        virtual = counted(len(self.topology.cpus), "virtual core")
        says = f"/sys says {len(self.reported)}"
        if self.not_measured:
            return f"{virtual}; {says} physical (not measured: {self.not_measured})"
        line = f"{virtual}, {len(self.cores)} physical (measured; {says})"
        if not self.kept:
            return line
        pairs = listed([f"{first}+{second}" for first, second in self.kept], PAIRS_SHOWN)
        share = median(self.kept.values())
        return f"{line}; one core: {pairs}; beside the other each keeps {share:.0%} of its rate"

    def as_json(self) -> dict[str, Any]:
        """Return the cores for a file."""
        return {
            "virtual": len(self.topology.cpus),
            "physical": len(self.cores),
            "physical_by_sys": len(self.reported),
            "cores": self.cores,
            "cores_by_sys": self.reported,
            "cpus_in_order": self.in_order,
            "rate_kept_by_pair": {f"{a}+{b}": share for (a, b), share in self.kept.items()},
            "not_measured": self.not_measured,
        }


def find_cores(*, threads: int, advance: Advance) -> Cores:
    """Measure the cores that this process may use, in some seconds.

    Efficiency cores beside performance cores are left out, as `choose_cores` does. Under a CPU
    quota threads are not bound, and nothing is measured.

    Raises:
        InputError: There are fewer CPUs than `threads`.
    """
    allowance = read_allowance()
    topology = read_topology().restricted(allowance.cpus)
    cpus = [cpu.cpu for cpu in topology.cpus if cpu not in topology.slower]
    topology = topology.restricted(cpus)
    if threads > len(cpus):
        have = f"the {counted(len(cpus), 'core')} that this process may use"
        raise InputError(f"--threads {threads}: more than {have}; give fewer")
    reported = Cores(topology=topology, cores=(), kept={}).reported
    if allowance.quota is not None and allowance.quota < len(cpus):
        choose_cores(threads=threads)  # Refuses more than the quota keeps busy
        reason = f"under the CPU quota of {allowance.quota:g} threads are not bound to cores"
        return Cores(topology=topology, cores=reported, kept={}, not_measured=reason)
    try:
        kept = find_pairs(measure_rates(cpus, advance=advance))
    except WorkerDiedError as error:
        return Cores(topology=topology, cores=reported, kept={}, not_measured=str(error))
    second = {first: (other,) for first, other in kept}
    others = {other for _, other in kept}
    cores = tuple((cpu, *second.get(cpu, ())) for cpu in cpus if cpu not in others)
    return Cores(topology=topology, cores=cores, kept=kept)


def measure_rates(cpus: Sequence[int], *, advance: Advance) -> Rates:
    """Return the rates on each of `sets_of`: medians of as many rounds as it takes to be sure."""
    sets = sets_of(cpus)
    rounds: list[Rates] = []
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with closing(JsonWorker(__name__, {}, name="physical cores", environment=one_thread)) as worker:
        while len(rounds) < MOST_ROUNDS:
            rates = []
            for chosen in sets:
                advance(len(rounds), f"products on {counted(len(chosen), 'CPU')}")
                answer = worker.ask({"cpus": chosen, "seconds": SECONDS})
                rates.append({cpu: answer["rates"][str(cpu)] for cpu in chosen})
            rounds.append(rates)
            medians = [
                {cpu: median(rates[place][cpu] for rates in rounds) for cpu in chosen}
                for place, chosen in enumerate(sets)
            ]
            if len(rounds) >= LEAST_ROUNDS and not doubtful(medians):
                break
    return medians


def sets_of(cpus: Sequence[int]) -> list[list[int]]:
    """Return few sets of CPUs: any two are together in some set, and each without the other in one.

    They are the halves by each bit of a CPU's place in the list, and by one more, in which places
    that differ in all bits are equal: 10 sets tell all 120 pairs of 16 CPUs apart. Sets of about
    one size compute at about one clock.
    """
    if len(cpus) < 3:
        return [list(cpus), *([cpu] for cpu in cpus)]
    bits = (len(cpus) - 1).bit_length()
    codes = {cpu: at | ((at ^ at >> 1) & 1) << bits for at, cpu in enumerate(cpus)}
    return [
        [cpu for cpu, code in codes.items() if code >> bit & 1 == value]
        for bit in range(bits + 1)
        for value in (0, 1)
    ]


def find_pairs(rates: Rates) -> dict[tuple[int, int], float]:
    """Return the pairs of CPUs that share a core, with the share of its rate that each keeps."""
    kept = {
        pair: max(rate_kept(rates, *pair), rate_kept(rates, *reversed(pair)))
        for pair in combinations(sorted(set().union(*rates)), 2)
    }
    pairs: dict[tuple[int, int], float] = {}
    # Noise may leave a CPU with two candidates: it shares a core with the one that slows it more.
    for pair in sorted(kept, key=lambda pair: kept[pair]):
        if kept[pair] < SHARES_BELOW and not any(set(pair) & set(other) for other in pairs):
            pairs[pair] = kept[pair]
    return dict(sorted(pairs.items()))


def rate_kept(rates: Rates, cpu: int, other: int) -> float:
    """Return the best rate of a CPU in sets with the other one, relative to its worst without it.

    A CPU that is no sibling is missing from some set in which the sibling makes the rate low, or it
    is in one where the rate is high.
    """
    beside = [members[cpu] for members in rates if cpu in members and other in members]
    without = [members[cpu] for members in rates if cpu in members and other not in members]
    return max(beside) / min(without)


def doubtful(rates: Rates) -> list[int]:
    """Return the CPUs that were slow in some set, although no sibling of theirs was found."""
    of_pairs = {cpu for pair in find_pairs(rates) for cpu in pair}
    found = []
    for cpu in set().union(*rates) - of_pairs:
        its = [members[cpu] for members in rates if cpu in members]
        if min(its) < SHARES_BELOW * max(its):
            found.append(cpu)
    return sorted(found)


def prepare(specification: dict[str, Any]) -> tuple[dict[str, Any], Answering]:
    """Prepare the worker, which answers with the rates of `cpus` computing for `seconds`."""
    return {}, lambda question: {"rates": rates_together(**question)}


def rates_together(*, cpus: Sequence[int], seconds: float) -> dict[int, float]:
    """Compute in one thread on each CPU at the same time; return calls by second on the CPU."""
    import threading  # noqa: PLC0415
    import time  # noqa: PLC0415
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    import torch  # noqa: PLC0415

    # Tried before: a thread that cannot be bound would keep the others waiting at the barrier.
    allowed = os.sched_getaffinity(0)
    for cpu in cpus:
        os.sched_setaffinity(0, {cpu})
    os.sched_setaffinity(0, allowed)
    together = threading.Barrier(len(cpus))
    left, right = torch.rand(SIZE, SIZE), torch.rand(SIZE, SIZE)

    def rate(cpu: int) -> float:
        os.sched_setaffinity(0, {cpu})  # Of this thread
        # Not a new result for each call: its pages would make the threads wait for each other.
        multiply = partial(torch.mm, left, right, out=torch.empty(SIZE, SIZE))
        multiply()
        together.wait()
        # Time on the CPU: a process that takes turns with the thread there is no sibling.
        calls, used, end = 0, time.thread_time(), time.perf_counter() + seconds
        while calls == 0 or time.perf_counter() < end:
            multiply()
            calls += 1
        return calls / (time.thread_time() - used)

    with ThreadPoolExecutor(len(cpus)) as pool:
        return dict(zip(cpus, pool.map(rate, cpus), strict=True))


if __name__ == "__main__":
    serve(prepare)
