"""benchdnn as a child process: find it, run it on given cores, read its times, replay a log.

benchdnn's own output has a least and a mean time and no median, so times are taken from oneDNN's
log among its lines, which has each run: the same clock as in the log that is replayed. A process
runs one problem, so that one that crashes or hangs costs no other.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple, TypeVar

from common.errors import InputError
from common.files import create_anew
from common.processes import signal_name, start_process, started_or_ended, stop_process
from launch.environment import BINDING_VARIABLES, prefer_memory
from launch.limits import read_allowance
from profiling.onednn_log.log import Calls, read_logs
from profiling.onednn_log.parse import MARKER, Head, milliseconds, parse_head, split_head
from profiling.onednn_log.work import DRIVERS, Problem, gbyte
from profiling.replay.benchdnn_fields import ProblemLine
from profiling.replay.replay import FEWEST_RUNS, LONGEST_SECONDS, Conditions, ReplayTime

SMALLEST = ("--eltwise", "--alpha=0", "--beta=0", "--alg=relu", "1")
"""A problem that every version of benchdnn runs at once."""
LISTING = ("--eltwise", "--mode=L", "--cold-cache=all", *SMALLEST[1:])
"""The same, not run, with an option that not every version has."""

SETUP_TIMEOUT = 120.0  # Seconds to fill tensors and create the primitive, beside the runs
HOW_TO_BUILD = "build oneDNN's target `benchdnn`, as docs/profiling.md describes"


@dataclass(frozen=True, slots=True)
class Benchdnn:
    """A benchdnn executable that runs on this machine."""

    path: Path
    version: str  # The version of its oneDNN: `3.7.2`
    instruction_set: str  # In the library's words
    has_cold_cache: bool  # Whether it can drive data out of the caches between runs

    @property
    def dialect(self) -> int:
        """The major version of its options, 2 or 3; see `Dialect`."""
        return 2 if int(self.version.partition(".")[0]) < 3 else 3


def find_benchdnn(path: Path | None) -> Path | None:
    """Return the program at `path`, or the one on PATH; None where PATH has none.

    Raises:
        InputError: There is no program at `path`.
    """
    if path is None:
        program = shutil.which("benchdnn")
        return Path(program) if program else None
    named = path / "benchdnn" if path.is_dir() else path
    # Absolute: a name without a folder would be searched on PATH.
    program = shutil.which(str(named.absolute()))
    if program is None:
        why = "does not exist" if not named.exists() else "is not an executable program"
        raise InputError(f"--benchdnn: {named} {why}; {HOW_TO_BUILD}")
    return Path(program)


def probe_benchdnn(path: Path, conditions: Conditions) -> Benchdnn:
    """Run its smallest problem, and read its version and features from the output.

    Raises:
        InputError: It does not run, or its library writes no log.
    """
    with tempfile.TemporaryDirectory(prefix="benchdnn-") as folder:
        output = Path(folder, "output")
        try:
            ended = run_benchdnn(
                path, SMALLEST, output, conditions=conditions, timeout=SETUP_TIMEOUT
            )
        except OSError as error:
            raise InputError(f"{path}: cannot be started: {error.strerror}") from error
        if ended.status != 0:
            raise InputError(f"{path}: does not run: {ended.why}")
        try:
            log = read_logs([output])
        except InputError:
            raise InputError(
                f"{path}: is not benchdnn, or its oneDNN writes no log (build it with "
                "ONEDNN_VERBOSE=ON, the default)"
            ) from None
        if not log.versions:
            raise InputError(f"{path}: its oneDNN does not print its version")
        # Listed and not run; a version without this option lists nothing.
        run_benchdnn(path, LISTING, output, conditions=conditions, timeout=SETUP_TIMEOUT)
        has_cold_cache = "LISTED" in output.read_text(encoding="utf-8", errors="replace")
    instruction_set = log.instruction_sets[0] if log.instruction_sets else ""
    return Benchdnn(path, log.versions[0], instruction_set, has_cold_cache)


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a process: exit status and reason."""

    status: int | None
    """Its exit status, negative a signal's number; None: it took too long and was killed."""
    why: str  # In a few words; benchdnn prints an error for some options, and ends with 0


ERROR = re.compile(r"\b(err|error)\b", re.IGNORECASE)


def run_benchdnn(
    path: Path, arguments: Sequence[str], output: Path, *, conditions: Conditions, timeout: float
) -> Ended:
    """Run benchdnn to its end. If the call is interrupted, also by Ctrl-C, the process is ended.

    Both output streams go to the file `output`, which is replaced: reading them as they come would
    take time from the measurement. It is killed after `timeout` seconds. OSError: cannot start.
    """
    with create_anew(output) as stream:
        process = start(path, arguments, stream.fileno(), conditions)
        try:
            status = process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            return Ended(None, f"killed after {timeout:.0f} s")
        finally:
            stop_process(process)
    if status < 0:
        return Ended(status, f"ended by {signal_name(-status)}")
    errors = (line.strip() for line in read_lines(output) if ERROR.search(line))
    return Ended(status, next(errors, "") or (f"ended with status {status}" if status else ""))


def start(
    path: Path, arguments: Sequence[str], stream: int, conditions: Conditions
) -> "subprocess.Popen[str]":
    """Start benchdnn with the requested threads, each on its core, and with oneDNN's log."""
    # Some of the caller's variables override those that are set below.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in BINDING_VARIABLES and not name.endswith("_VERBOSE_TIMESTAMP")
    }
    environment |= {
        "OMP_NUM_THREADS": str(conditions.threads),
        "OMP_PROC_BIND": "close",
        "OMP_PLACES": ",".join(f"{{{cpu}}}" for cpu in conditions.cpus) or "cores",
        "ONEDNN_VERBOSE": "1",
        # The name of the variable in older versions of oneDNN.
        "DNNL_VERBOSE": "1",
    }

    def start_placed() -> "subprocess.Popen[str]":
        set_placement(conditions)
        return start_process(
            [path, *arguments], stdout=stream, stderr=stream, environment=environment
        )

    return started_or_ended(lambda: in_thread(start_placed))


Result = TypeVar("Result")


def in_thread(call: Callable[[], Result]) -> Result:
    """Return what a call in a thread of its own returns.

    A process inherits cores and memory policy from the thread that starts it; those of the calling
    thread stay unchanged.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(call).result()


def set_placement(conditions: Conditions) -> str | None:
    """Set cores and memory nodes of the calling thread and of what it starts.

    Return why memory nodes are not as requested, in a sentence.
    """
    if conditions.cpus:
        # For Linux, 0 is the calling thread and not the whole process.
        os.sched_setaffinity(0, conditions.cpus)
    if not conditions.memory_nodes:
        return None
    return prefer_memory(conditions.memory_nodes, allowed=read_allowance().memory_nodes)


def memory_note(conditions: Conditions) -> str | None:
    """Return the note that `set_placement` would return, without any effect on this thread."""
    return in_thread(lambda: set_placement(conditions)) if conditions.memory_nodes else None


SIGN = "profilednn"
TEMPLATE = f"--perf-template={SIGN},%-time%,%0time%,%prb%"
"""benchdnn's line after it has measured a problem, which shows where its runs end in the log."""

KINDS = {driver: kind for kind, driver in DRIVERS.items()}
"""oneDNN's name of a driver's primitives, where the two differ."""

STATE = re.compile(r"\d+:([A-Z_]+)(?: \((.*?)\))?(?: \(.*\))? __REPRO: ")
UNREMARKABLE = ("EXECUTED", "PASSED", "LISTED", "INITIALIZED")


def read_timed(
    output: Path, *, driver: str, runs: int
) -> tuple[list[tuple[Problem, list[float]]], str]:
    """Return what a run of a driver measured, in order, and why benchdnn ran a problem not at all.

    A problem that is measured once has the milliseconds of several runs, one after the other.
    `runs` is as requested; the reason is empty or such as `benchdnn: SKIPPED (…)`.
    benchdnn fills tensors with other primitives and runs a problem once before it measures. The
    runs that count are those right before the line of its template; ValueError: these are not
    `runs` of one problem of the driver's kind.
    """
    timed = []
    heads: list[Head] = []
    is_refused, refusal = False, ""
    for line in read_lines(output):
        if marker := MARKER.match(line):
            head = split_head(line[marker.end() :])
            if head.text.startswith(("exec,", "primitive,exec,")):
                heads.append(head)
        elif reason := parse_refusal(line):
            is_refused, refusal = True, refusal or f"benchdnn: {reason}"
        elif line.startswith(f"{SIGN},"):
            # benchdnn prints this line for a refused problem too, with zeros.
            if not is_refused:
                # Earlier executions filled tensors or warmed up.
                counted = heads[-runs:]
                if len(counted) < runs or len({head.text for head in counted}) != 1:
                    raise ValueError(f"its log does not show {runs} runs of one problem")
                problem = parse_head(counted[0]).problem
                assert problem is not None
                kind = KINDS.get(driver, driver)
                if problem.kind not in (kind, f"log{kind}"):
                    raise ValueError(f"its log shows {problem.kind} instead of {kind}")
                timed.append((problem, [milliseconds(head.time) for head in counted]))
            heads, is_refused = [], False
    return timed, refusal


def parse_refusal(line: str) -> str:
    """Return the state of a problem that did not run; empty for other lines."""
    state = STATE.match(line)
    if not state or state[1] in UNREMARKABLE:
        return ""
    return state[1] + (f" ({state[2]})" if state[2] else "")


def read_lines(output: Path) -> Iterable[str]:
    """Yield lines without their ends."""
    with output.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            yield line.rstrip("\n")


LEAST_COLD_GB = 32_768 / 1e9
"""Tensors below this are not run cold: to fill the caches three times over, as benchdnn does, it
would prepare so many copies of them that it takes minutes and gigabytes."""
START_SECONDS = 0.3  # The time of a process beside the runs, about


class Batch(NamedTuple):
    """Problems of equal lines, which run once."""

    problems: list[Problem]
    line: ProblemLine
    mean_ms: float  # About what a run takes, by the log
    runs: int  # Runs that count: fewer than requested where they would take long

    def expected_seconds(self, *, cold: bool) -> float:
        """Return the estimated duration. [seconds]"""
        return START_SECONDS + (1 + self.runs) * (2 if cold else 1) * self.mean_ms / 1000


def make_batches(
    lines: Mapping[Problem, ProblemLine], calls: Mapping[Problem, Calls], *, repeats: int
) -> list[Batch]:
    """Return the batches to run, in the order of the lines."""
    equal: dict[tuple[str, str], list[Problem]] = defaultdict(list)
    for problem, line in lines.items():
        equal[line.driver, line.text].append(problem)
    batches = []
    for problems in equal.values():
        mean_ms = max(calls[problem].mean_ms for problem in problems)
        affordable = int(1000 * LONGEST_SECONDS / max(mean_ms, 1e-6))
        runs = max(min(repeats, FEWEST_RUNS), min(repeats, affordable))
        batches.append(Batch(problems, lines[problems[0]], mean_ms, runs))
    return batches


def run_batch(
    batch: Batch, *, benchdnn: Benchdnn, conditions: Conditions, cold: bool
) -> ReplayTime | str:
    """Measure a batch, hot and, if `cold`, with data out of the caches; or return why it cannot be.

    If benchdnn fails to fill a problem's tensors with numbers, as that of 3.7.2 does for layer
    normalization in inference, it is run again with one number in all of them.
    """
    line, runs = batch.line, batch.runs
    # A problem alone is rarely slower than in the log; ten times slower means that it hangs.
    timeout = SETUP_TIMEOUT + 10 * (runs + 1) * 2 * batch.mean_ms / 1000
    arguments = [f"--fix-times-per-prb={runs}", f"--{line.driver}", TEMPLATE, *line.arguments]
    size = gbyte(batch.problems[0])
    if cold and benchdnn.has_cold_cache and (size is None or size >= LEAST_COLD_GB):
        arguments += ["--cold-cache=all", *line.arguments]
    why = ""
    for mode in (["--mode=P"], ["--mode=P", "--mode-modifier=M"]):
        with tempfile.TemporaryDirectory(prefix="benchdnn-") as folder:
            output = Path(folder, "output")
            ended = run_benchdnn(
                benchdnn.path, [*mode, *arguments], output, conditions=conditions, timeout=timeout
            )
            try:
                timed, refusal = read_timed(output, driver=line.driver, runs=runs)
                reason = refusal or f"benchdnn: {ended.why or 'measured nothing'}"
            except ValueError as error:
                timed, reason = [], f"benchdnn's output cannot be parsed: {error}"
        if timed:
            hot, *cold_times = (typical(times) for _, times in timed)
            cold_ms, implementation = next(iter(cold_times), None), timed[0][0].implementation
            return ReplayTime(batch.problems[0], hot, cold_ms, runs, implementation)
        why = why or reason
        if ended.status in (None, 0):
            break
    return why


FINE_MS = 0.01  # From here on the resolution of the log's clock does not matter


def typical(milliseconds: Sequence[float]) -> float:
    """Return the median; of runs shorter than 0.01 ms, the mean of the middle half.

    oneDNN computes times as differences of milliseconds since 1970, with a resolution of about a
    microsecond, which is too coarse for the median of short runs.
    """
    middle = median(milliseconds)
    if middle >= FINE_MS or len(milliseconds) < 4:
        return middle
    quarter = len(milliseconds) // 4
    return fmean(sorted(milliseconds)[quarter : len(milliseconds) - quarter])
