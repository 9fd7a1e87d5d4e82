"""Peaks measured now, in a process of its own, so that the caller needs no torch."""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from launch.placement.share import Share
from profiling.peaks.cores import choose_cores
from profiling.peaks.file import peaks_of
from profiling.peaks.peaks import Peaks
from retinanet.errors import InputError
from retinanet.progress import Advance

REPOSITORY = Path(__file__).resolve().parents[2]


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
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "profiling.peaks.worker", json.dumps(asdict(share))],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            process_group=0,  # Ctrl-C reaches the caller alone, which then ends the worker
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                answer = json.loads(line)
                if "found" in answer:
                    found: dict[str, object] = answer["found"]
                    return found
                advance(answer["percent"], answer["next"])
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
            process.stdout.close()
        errors.seek(0)
        last_words = errors.read().strip().splitlines()[-1:] or ["it said nothing"]
    raise InputError(f"peaks cannot be measured: {last_words[0]}")
