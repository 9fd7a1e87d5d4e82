"""Peaks measured now, in a process of its own, so that the caller needs no torch."""

from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec

from launch.placement.share import Share
from profiling.answering_process import AnsweringProcess
from profiling.peaks.cores import choose_cores
from profiling.peaks.file import peaks_of
from profiling.peaks.peaks import Peaks
from retinanet.errors import InputError
from retinanet.progress import Advance


def measured_peaks(
    *,
    threads: int | None,
    cpus: Sequence[int] = (),
    advance: Advance = lambda done, note: None,
) -> Peaks:
    """Measure on so many cores, one thread on each; takes about ten seconds.

    Args:
        threads: How many; None: one for each core.
        cpus: The CPUs to choose from; none: all that this process may use.
        advance: Told the percentage that is done, and what is being measured.

    Raises:
        InputError: torch is not installed, or there are fewer cores than threads.
    """
    share = choose_cores(threads=threads, cpus=cpus)
    if find_spec("torch") is None:
        raise InputError(
            "peaks cannot be measured: torch is not installed in this environment; "
            "measure where it is, and bring the file of python -m profiling peaks --json FILE"
        )
    return peaks_of(ask_worker(share, advance))


def ask_worker(share: Share, advance: Advance) -> dict[str, object]:
    """Let a worker measure; what it has found, as JSON has it.

    Raises:
        InputError: It ended before.
    """
    process = AnsweringProcess("profiling.peaks.worker", asdict(share))
    try:
        while answer := process.answer():
            if "found" in answer:
                found: dict[str, object] = answer["found"]
                return found
            advance(answer["percent"], answer["next"])
        raise InputError(f"peaks cannot be measured: {process.last_words()}")
    finally:
        process.close()
