"""Which benchdnn, and what it is.

TODO-DOC benchdnn's process: on the cores that it is given, and never longer than it may take.

TODO-DOC What benchdnn prints, read back: times of each run from oneDNN's log among its own lines.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from common.errors import InputError
from launch.environment import BINDING_VARIABLES, prefer_memory
from launch.limits import read_allowance
from profiling.onednn_log.log import OneDnnLog, read_logs
from profiling.onednn_log.parse import MARKER, Head, head_of, meaning_of, milliseconds
from profiling.onednn_log.work import DRIVERS, Problem
from profiling.replay.replay import Conditions

SMALLEST = ("--eltwise", "--alpha=0", "--beta=0", "--alg=relu", "1")
"""A problem that every version of benchdnn runs at once."""

PATIENCE = 120.0
HOW_TO_GET_ONE = "build oneDNN's target `benchdnn`, as docs/profiling.md describes"


@dataclass(frozen=True, slots=True)
class Benchdnn:
    """A benchdnn that runs here."""

    path: Path
    version: str
    """Of its oneDNN: `3.7.2`."""
    instruction_set: str
    """As the library calls it."""
    has_cold_cache: bool
    """Whether it can drive data out of the caches between runs."""

    @property
    def major(self) -> int:
        """Of its version, which says what language it speaks."""
        return int(self.version.partition(".")[0])


def find_benchdnn(path: Path | None) -> Path | None:
    """The program that was named, or that PATH has; None where there is none.

    Raises:
        InputError: The one that was named is not there, or is no program.
    """
    if path is None:
        found = shutil.which("benchdnn")
        return Path(found) if found else None
    named = path / "benchdnn" if path.is_dir() else path
    found = shutil.which(str(named.absolute()))
    if found is None:
        why = "is not there" if not named.exists() else "is not a program that can be run"
        raise InputError(f"--benchdnn: {named} {why}; {HOW_TO_GET_ONE}")
    return Path(found)


def ask_benchdnn(path: Path, conditions: Conditions) -> Benchdnn:
    """Let it run its smallest problem, and read what oneDNN's log says of it.

    Raises:
        InputError: It does not run, or its library writes no log.
    """
    with tempfile.TemporaryDirectory(prefix="benchdnn-") as folder:
        output = Path(folder, "output")
        log = first_log(path, output, conditions)
        listing = (*SMALLEST[:1], "--mode=L", "--cold-cache=all", *SMALLEST[1:])
        run_benchdnn(path, listing, output, conditions=conditions, patience=PATIENCE)
        has_cold_cache = "LISTED" in output.read_text(encoding="utf-8", errors="replace")
    return Benchdnn(
        path=path,
        version=log.versions[0],
        instruction_set=log.instruction_sets[0] if log.instruction_sets else "",
        has_cold_cache=has_cold_cache,
    )


def first_log(path: Path, output: Path, conditions: Conditions) -> OneDnnLog:
    """What oneDNN writes while benchdnn runs its smallest problem.

    Raises:
        InputError: It does not run, or its library writes no log.
    """
    try:
        ended = run_benchdnn(path, SMALLEST, output, conditions=conditions, patience=PATIENCE)
    except OSError as error:
        raise InputError(f"{path}: cannot be started: {error.strerror}") from error
    if ended.status != 0:
        raise InputError(f"{path}: does not run: {ended.why}")
    try:
        log = read_logs([output])
    except InputError:
        raise InputError(
            f"{path}: is no benchdnn, or one whose oneDNN writes no log (build it with "
            "ONEDNN_VERBOSE=ON, which is the default)"
        ) from None
    if not log.versions:
        raise InputError(f"{path}: its oneDNN does not tell its version")
    return log


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


SIGN = "profilednn"
TEMPLATE = f"--perf-template={SIGN},%-time%,%0time%,%prb%"
"""benchdnn's line after it has measured a problem. It knows a least and a mean time and no median,
so the times are taken from oneDNN's log, which has each run: the same clock as in the log that is
replayed."""

KINDS = {driver: kind for kind, driver in DRIVERS.items()}
"""What a log calls a driver's primitives, where the two differ."""

STATE = re.compile(r"\d+:([A-Z_]+)(?: \((.*?)\))?(?: \(.*\))? __REPRO: ")
UNREMARKABLE = ("EXECUTED", "PASSED", "LISTED", "INITIALIZED")


@dataclass(frozen=True, slots=True)
class Timed:
    """One problem measured once: several runs, one after the other."""

    problem: Problem
    """As oneDNN's log tells it."""
    milliseconds: tuple[float, ...]


def read_timed(output: Path, *, driver: str, runs: int) -> list[Timed]:
    """What was measured, in order.

    benchdnn fills tensors with other primitives and runs a problem once before it measures. The
    runs that count are those right before the line of its template.

    Args:
        output: What benchdnn printed.
        driver: That it was started with.
        runs: That it was told to measure.

    Raises:
        ValueError: The log's last lines before a template's are not `runs` of one problem of the
            driver's kind.
    """
    timed: list[Timed] = []
    heads: list[Head] = []
    is_refused = False
    for line in lines_of(output):
        found = MARKER.match(line)
        if found:
            head = head_of(line[found.end() :])
            if head.text.startswith(("exec,", "primitive,exec,")):
                heads.append(head)
        elif refused_in(line):
            is_refused = True
        elif line.startswith(f"{SIGN},"):
            if not is_refused:  # a refused problem gets its line too, with zeros
                timed.append(last_runs(heads, driver=driver, runs=runs))
            heads, is_refused = [], False
    return timed


def last_runs(heads: list[Head], *, driver: str, runs: int) -> Timed:
    """The last of what was logged, as one problem's runs.

    Raises:
        ValueError: They are not.
    """
    counted = heads[-runs:]
    texts = {head.text for head in counted}
    if len(counted) < runs or len(texts) != 1:
        raise ValueError(f"its log does not show {runs} runs of one problem")
    problem = meaning_of(counted[0]).problem
    assert problem is not None
    kind = KINDS.get(driver, driver)
    if problem.kind.removesuffix("_v2") != kind and problem.kind != f"log{kind}":
        raise ValueError(f"its log shows {problem.kind} where {kind} was asked for")
    return Timed(problem, tuple(milliseconds(head.time) for head in counted))


def refusal(output: Path) -> str | None:
    """benchdnn's word on a problem that it did not run: `UNIMPLEMENTED`, `SKIPPED (…)` …"""
    words = (refused_in(line) for line in lines_of(output))
    return next((f"benchdnn: {word}" for word in words if word), None)


def refused_in(line: str) -> str:
    """The word of a line that tells of a problem which did not run; empty for other lines."""
    found = STATE.match(line)
    if not found or found[1] in UNREMARKABLE:
        return ""
    return found[1] + (f" ({found[2]})" if found[2] else "")


def lines_of(output: Path) -> Iterable[str]:
    """Lines without their ends."""
    with output.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            yield line.rstrip("\n")
