"""Which CPUs share a physical core: from synthetic rates, with a fake worker, and a real one."""

import os
import random
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import pytest

from common.errors import InputError, WorkerDiedError
from launch.limits import Allowance
from launch.topology import Topology, list_sockets
from profiling.bench import physical_cores
from profiling.bench.physical_cores import (
    LEAST_ROUNDS,
    MOST_ROUNDS,
    Cores,
    doubtful,
    find_cores,
    find_pairs,
    rates_together,
    sets_of,
)
from tests.launch.topologies import cores_in_a_row

SIXTEEN = cores_in_a_row((0, 16, 0, 0))
"""16 CPUs, each a core of its own by /sys, as a hypervisor reports hyperthreads that it hides."""
HALVES = [(cpu, cpu + 8) for cpu in range(8)]
NEIGHBOURS = [(cpu, cpu + 1) for cpu in range(0, 16, 2)]


def synthetic_rates(
    cpus: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    *,
    clock_loss: float = 0.15,
    seed: int = 0,
) -> list[dict[int, float]]:
    """Return rates on all sets: 0.55 of its own beside a sibling, and less the more compute."""
    draw = random.Random(seed)
    sibling = dict(pairs) | {second: first for first, second in pairs}
    rates = []
    for members in sets_of(cpus):
        clock = 1 - clock_loss * len(members) / len(cpus)
        shares = {cpu: 0.55 if sibling.get(cpu) in members else 1.0 for cpu in members}
        rates.append({c: 90 * clock * s * draw.uniform(0.92, 1) for c, s in shares.items()})
    return rates


def mixed_pairs(cpus: Sequence[int], count: int) -> list[tuple[int, int]]:
    mixed = random.Random(1).sample(list(cpus), 2 * count)
    return sorted((min(pair), max(pair)) for pair in zip(mixed[::2], mixed[1::2], strict=True))


@pytest.mark.parametrize(
    ("cpus", "pairs"),
    [
        ([3], []),
        ([0, 1], []),
        ([0, 1], [(0, 1)]),
        ([2, 5, 7], [(2, 7)]),
        (range(6), [(0, 3), (1, 4), (2, 5)]),
        (range(16), []),
        (range(16), HALVES),
        (range(16), NEIGHBOURS),
        (range(16), mixed_pairs(range(16), 5)),  # and six CPUs whose sibling may not be used
        (range(96), mixed_pairs(range(96), 48)),
    ],
)
def test_pairs_are_found_in_noise(cpus: Sequence[int], pairs: list[tuple[int, int]]) -> None:
    for seed in range(3):
        rates = synthetic_rates(cpus, pairs, seed=seed)
        found = find_pairs(rates)
        assert list(found) == pairs and doubtful(rates) == []
        assert all(0.4 < kept < 0.7 for kept in found.values())


@pytest.mark.parametrize(("count", "sets"), [(1, 2), (2, 3), (3, 6), (13, 10), (16, 10), (192, 18)])
def test_few_sets_tell_all_pairs_apart(count: int, sets: int) -> None:
    chosen = [set(members) for members in sets_of(range(count))]
    assert len(chosen) == sets and all(chosen)
    for first, second in permutations(range(count), 2):
        assert any({first, second} <= members for members in chosen)
        assert any(first in members and second not in members for members in chosen)


def test_clock_that_falls_with_the_load_is_no_sibling() -> None:
    for cpus in (range(8), range(12), range(64)):
        assert find_pairs(synthetic_rates(cpus, [], clock_loss=0.5)) == {}


def test_cpu_shares_a_core_with_one_other() -> None:
    rates = [{0: 40.0, 1: 50.0, 2: 60.0}, {0: 100.0}, {1: 100.0}, {2: 100.0}]
    assert find_pairs(rates) == {(0, 1): 0.5}


def test_cpu_that_was_slow_without_a_sibling_is_in_doubt() -> None:
    rates = synthetic_rates(range(16), HALVES)
    alone = next(members for members in rates if 3 in members and 11 not in members)
    alone[3] *= 0.5  # another process took the core
    assert list(find_pairs(rates)) == [pair for pair in HALVES if pair != (3, 11)]
    assert doubtful(rates) == [11]  # 3 was slow in every set


class FakeWorker:
    """Measures as `synthetic_rates`; in the first rounds another process disturbs CPU 3."""

    def __init__(self, disturbed_rounds: int) -> None:
        self.disturbed = disturbed_rounds
        self.asked = 0

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        sets = sets_of(range(16))
        number, place = divmod(self.asked, len(sets))
        self.asked += 1
        rates = synthetic_rates(range(16), HALVES, seed=number)[place]
        assert list(rates) == question["cpus"]
        if number < self.disturbed and 11 not in rates and 3 in rates:
            rates[3] *= 0.5
        return {"rates": {str(cpu): rate for cpu, rate in rates.items()}}

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("disturbed", "rounds", "found"),
    [(0, LEAST_ROUNDS, 8), (1, LEAST_ROUNDS, 8), (2, 4, 8), (MOST_ROUNDS, MOST_ROUNDS, 7)],
)
def test_more_rounds_only_in_doubt(
    disturbed: int, rounds: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = FakeWorker(disturbed)
    monkeypatch.setattr(physical_cores, "JsonWorker", lambda *_, **__: worker)
    allowance = Allowance(cpus=frozenset(range(16)), quota=None, memory_nodes=frozenset())
    monkeypatch.setattr(physical_cores, "read_allowance", lambda: allowance)
    monkeypatch.setattr(physical_cores, "read_topology", lambda: SIXTEEN)
    cores = find_cores(threads=16, advance=lambda done, note: None)
    assert worker.asked == rounds * len(sets_of(range(16)))
    assert len(cores.cores) == 16 - found and len(cores.reported) == 16
    if found == 8:
        text = str(cores)
        assert "16 virtual cores, 8 physical (measured; /sys says 16)" in text and "0+8" in text
        assert cores.as_json()["physical"] == 8 and cores.as_json()["cores"][3] == (3, 11)
    with pytest.raises(InputError, match="--threads 17: more than the 16 cores"):
        find_cores(threads=17, advance=lambda done, note: None)


@pytest.mark.parametrize(
    ("pairs", "topology", "order"),
    [
        (NEIGHBOURS, SIXTEEN, [*range(0, 16, 2), *range(1, 16, 2)]),
        (HALVES, SIXTEEN, list(range(16))),
        ([], SIXTEEN, list(range(16))),
        # What /sys alone calls siblings is kept apart too, in case it is right.
        ([], cores_in_a_row((0, 2, 0, 0), sibling_offset=2), [0, 1, 2, 3]),
    ],
)
def test_physical_cores_are_filled_first(
    pairs: Sequence[tuple[int, int]], topology: Topology, order: list[int]
) -> None:
    seconds = dict(pairs)
    cpus = [cpu.cpu for cpu in topology.cpus if cpu.cpu not in seconds.values()]
    cores = tuple((cpu, seconds[cpu]) if cpu in seconds else (cpu,) for cpu in cpus)
    known = Cores(topology=topology, cores=cores, kept=dict.fromkeys(pairs, 0.5))
    assert known.in_order == order
    for threads in (1, 2, len(order)):
        share = known.share(threads)
        assert share.cpus == tuple(order[:threads]) and share.threads == threads
        assert not share.floating and known.count(threads) == min(threads, len(cores))


def test_under_a_quota_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = frozenset(os.sched_getaffinity(0))
    allowance = Allowance(cpus=cpus, quota=len(cpus) - 0.5, memory_nodes=frozenset())
    monkeypatch.setattr(physical_cores, "read_allowance", lambda: allowance)
    cores = find_cores(threads=1, advance=lambda done, note: None)
    assert "not measured" in str(cores) and cores.cores == cores.reported
    assert cores.share(1).threads == 1


def test_cpus_that_cannot_be_measured_are_those_of_sys(monkeypatch: pytest.MonkeyPatch) -> None:
    def worker(*_: object, **__: object) -> None:
        with pytest.raises(OSError, match="Invalid argument"):  # at once: no thread waits
            rates_together(cpus=[8191, min(os.sched_getaffinity(0))], seconds=60)
        raise WorkerDiedError("physical cores: OSError")

    monkeypatch.setattr(physical_cores, "JsonWorker", worker)
    cores = find_cores(threads=1, advance=lambda done, note: None)
    assert "not measured: physical cores: OSError" in str(cores)
    assert cores.cores == cores.reported and cores.share(1).threads == 1


@pytest.mark.slow
def test_real_worker_measures_every_cpu() -> None:
    cores = find_cores(threads=1, advance=lambda done, note: None)
    cpus = sorted(os.sched_getaffinity(0))
    assert sorted(cpu for core in cores.cores for cpu in core) == cpus and not cores.not_measured
    assert sorted(cores.reported) == sorted(
        core for socket in list_sockets(cores.topology) for core in socket.cores
    )
    assert len(cores.cores) == len(cpus) - len(cores.kept)
