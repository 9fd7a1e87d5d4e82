"""benchdnn's process: on the cores that it is given, and never longer than it may take."""

import os
import re
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.pinning.environment import BINDING_VARIABLES
from launch.pinning.memory_policy import set_preferred
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
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return Ended(status, words(status, output))


def started(
    path: Path, arguments: Sequence[str], stream: int, conditions: Conditions
) -> "subprocess.Popen[bytes]":
    """Start it from a thread of its own.

    A process inherits cores and memory policy of the thread that starts it, and such a thread can
    take them on without touching this process.
    """
    processes: list[subprocess.Popen[bytes]] = []
    errors: list[OSError] = []

    def start() -> None:
        try:
            if conditions.cpus:
                os.sched_setaffinity(0, conditions.cpus)
            if conditions.memory_nodes:
                set_preferred(conditions.memory_nodes)
            processes.append(
                subprocess.Popen(
                    [path, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    env=environment(conditions),
                    process_group=0,  # Ctrl-C reaches this process alone, which then ends it
                )
            )
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return processes[0]


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
