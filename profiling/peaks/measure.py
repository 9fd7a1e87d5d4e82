"""Measure the peaks on this process's threads. Loads torch."""

import re

import torch

from profiling.peaks.bandwidth import BUFFER_BYTES, REPETITIONS, movers
from profiling.peaks.median_seconds import median_seconds
from profiling.peaks.works import Work
from profiling.peaks.works_by_type import probe, works_of
from retinanet.progress import Advance
from retinanet.versions import installed_versions

TYPES = ("f32", "bf16", "f16", "s8", "u8")
"""By oneDNN's names."""
ROUNDS = 2
"""Their better median counts: another program may disturb one of them."""
WORK_REPETITIONS = 3
PROBES = 3
EMULATED = 1 / 8
"""Of float32's rate; a slower type is emulated."""

Rates = dict[str, dict[str, float]]


def prepare_works() -> tuple[dict[str, dict[str, Work]], dict[str, str]]:
    """What will be timed, by type and name, and the types that are left out with the reason."""
    threads = torch.get_num_threads()
    slow = probed_rate("f32") * EMULATED
    left_out = {}
    works: dict[str, dict[str, Work]] = {}
    for name in TYPES:
        try:
            rate = probed_rate(name)
            if rate < slow:
                left_out[name] = f"emulated here, {rate:.3g} GFLOP/s"
                continue
            works[name] = works_of(name, threads=threads)
        except RuntimeError as error:
            left_out[name] = f"torch cannot: {str(error).splitlines()[0]}"
    return works, left_out


def measure_rates(works: dict[str, dict[str, Work]], advance: Advance) -> Rates:
    """GFLOP/s by type and work. `advance` takes the percentage that is done, and what comes."""
    rates: Rates = {name: {} for name in works}
    plan = [(name, work) for _ in range(ROUNDS) for name in works for work in works[name]]
    for done, (type_name, name) in enumerate(plan):
        advance(100 * done // len(plan), f"{type_name}, {name}")
        work = works[type_name][name]
        rate = work.gflop / repeated(work)
        rates[type_name][name] = max(rate, rates[type_name].get(name, 0.0))
    return rates


def measure_bandwidths(*, buffer_bytes: int) -> dict[str, float]:
    """GB/s of each way to move memory, reading and writing counted."""
    rates: dict[str, float] = {}
    size = max(BUFFER_BYTES, buffer_bytes)
    calls = movers(size)
    for name, call in list(calls.items()) * ROUNDS:
        call()
        rate = 2 * size / median_seconds(call, repetitions=REPETITIONS) / 1e9
        rates[name] = max(rate, rates.get(name, 0.0))
    return rates


def probed_rate(type_name: str) -> float:
    """GFLOP/s of a small product, the best of a few: a busy machine must not look like emulation.

    Raises:
        RuntimeError: torch cannot multiply the type here.
    """
    work = probe(type_name)
    work.call()
    best = min(median_seconds(work.call, repetitions=1) for _ in range(PROBES))
    return work.gflop / best


def repeated(work: Work) -> float:
    """Median seconds, after a call that does not count."""
    work.call()
    return median_seconds(work.call, repetitions=WORK_REPETITIONS)


def versions() -> dict[str, str]:
    """Of torch, and of the oneDNN that is built into it."""
    found = installed_versions(["torch"])
    onednn = re.search(r"MKL-DNN v([\d.]+)", torch.__config__.show())
    return found | ({"oneDNN": onednn[1]} if onednn else {})
