"""benchdnn's process: on the cores that it is given, and never longer than it may take."""

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from launch.host.allowance import read_allowance
from launch.pinning.environment import BINDING_VARIABLES
from launch.pinning.memory_policy import prefer_memory
from profiling.replay.replay import Conditions

ERROR = re.compile(r"\b(err|error)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended."""

    status: int | None
    """Its exit status, negative a signal's number; None: it took too long and was ended."""
    why: str
    """In a few words; benchdnn complains of some options, and ends with 0."""


def run_benchdnn(
    path: Path,
    arguments: Sequence[str],
    output: Path,
    *,
    conditions: Conditions,
    patience: float,
) -> Ended:
    """Run it to its end. Whatever ends this call, Ctrl-C too, the process is gone afterwards.

    Its output goes to a file: somebody who read it as it comes would take time from it.

    Args:
        path: The program.
        arguments: Its own.
        output: Where what it prints goes, both streams; replaced.
        conditions: Threads, cores and memory nodes that it gets.
        patience: Seconds that it may take.

    Raises:
        OSError: It cannot be started.
    """
    with output.open("wb") as stream:
        process = started(path, arguments, stream.fileno(), conditions)
        try:
            status = process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            return Ended(None, f"took longer than {patience:.0f} s and was ended")
        finally:
            end(process)
    return Ended(status, words(status, output))


def started(
    path: Path, arguments: Sequence[str], stream: int, conditions: Conditions
) -> "subprocess.Popen[bytes]":
    """Start it from a thread of its own.

    A process inherits cores and memory policy of the thread that starts it, and such a thread can
    take them on without touching this process.
    """

    def start() -> "subprocess.Popen[bytes]":
        take_on(conditions)
        return subprocess.Popen(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=environment(conditions),
            process_group=0,  # Ctrl-C reaches this process alone, which then ends it
        )

    with ThreadPoolExecutor(max_workers=1) as pool:
        starting = pool.submit(start)
        try:
            return starting.result()
        except KeyboardInterrupt:
            end(starting.result())
            raise


def end(process: "subprocess.Popen[bytes]") -> None:
    """End it with all its threads and children, if it still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def take_on(conditions: Conditions) -> str | None:
    """Give the calling thread, and what it starts, cores and memory nodes.

    Returns:
        A sentence that says what was lost, where the memory nodes could not be had.
    """
    if conditions.cpus:
        os.sched_setaffinity(0, conditions.cpus)
    if not conditions.memory_nodes:
        return None
    return prefer_memory(conditions.memory_nodes, allowed=read_allowance().memory_nodes)


def memory_note(conditions: Conditions) -> str | None:
    """What `take_on` would say, without any effect on this thread."""
    if not conditions.memory_nodes:
        return None
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(take_on, conditions).result()


def environment(conditions: Conditions) -> dict[str, str]:
    """As many threads as asked for, each on its core; the library logs what it runs."""
    own = {
        name: value
        for name, value in os.environ.items()
        if name not in BINDING_VARIABLES and not name.endswith("_VERBOSE_TIMESTAMP")
    }
    places = ",".join(f"{{{cpu}}}" for cpu in conditions.cpus) or "cores"
    return {
        **own,
        "OMP_NUM_THREADS": str(conditions.threads),
        "OMP_PROC_BIND": "close",
        "OMP_PLACES": places,
        "ONEDNN_VERBOSE": "1",
        "DNNL_VERBOSE": "1",
    }


def words(status: int, output: Path) -> str:
    """Why it ended so: a signal's name, or the first line that speaks of an error."""
    if status < 0:
        name = signal.Signals(-status).name
        return f"ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    told = next((line.strip() for line in lines if ERROR.search(line)), "")
    return told or (f"ended with status {status}" if status else "")
