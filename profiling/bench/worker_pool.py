"""Workers that run variants in turn: A B C, A B C, …, one at a time.

Each variant has a separate process (`Worker`). A pool keeps as many of them alive as fit into
memory. `run_interleaved` is the loop of rounds: a temporary slowdown of the machine affects all
variants, and their times can be compared round by round. `busy_cores` keeps cores busy for
measurements beside another load.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, Self

from common.console import Advance
from common.machine import available_mb
from common.processes import JsonWorker
from profiling.bench.variant import Run, Variant, Workload

SPARE_MB = 1000.0  # Memory that stays free for the rest of the machine


class Runner(Protocol):
    """An object that can be run repeatedly, such as a worker's process."""

    rss_mb: float  # Resident memory after its last run. [10⁶ bytes]
    facts: dict[str, Any]

    def run(self) -> Run:
        """Run once, while nothing else of the benchmark runs."""

    def ask(self, question: str) -> dict[str, Any]:
        """Return the answer to another question."""

    def close(self) -> None:
        """End the worker."""


class Worker(JsonWorker):
    """A variant's process; alive until `close`."""

    rss_mb = 0.0

    def __init__(
        self,
        name: str,
        *,
        module: str,
        specification: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        cache_variable: str | None = None,
        python: str | None = None,
    ) -> None:
        """Start `module`, and wait until it is prepared.

        `environment` has variables beside those of this process; `cache_variable` is one more,
        which names a folder that `close` removes. `python` is the interpreter (None: this one).
        `name` is for messages.

        Raises:
            WorkerDiedError: It could not be prepared.
            InputError: The specification names something that is not here.
        """
        variables = dict(environment or {})
        self._cache = tempfile.TemporaryDirectory() if cache_variable else None
        if cache_variable and self._cache:
            variables[cache_variable] = self._cache.name
        super().__init__(module, specification, name=name, environment=variables, python=python)

    def run(self) -> Run:
        """Run once, while nothing else of the benchmark runs.

        Raises:
            WorkerDiedError: It ended before it answered.
        """
        run = Run(**self.ask("run"))
        self.rss_mb = run.rss_mb
        return run

    def ask(self, question: object) -> dict[str, Any]:
        """Return the worker's answer once its process is idle again.

        Threads that spin for a while after their work would slow the next variant down.

        Raises:
            WorkerDiedError: It ended before it answered.
            InputError: The question is about something that is not here.
        """
        answer = super().ask(question)
        deadline = time.monotonic() + 2.0
        ticks, before = self._cpu_ticks(), -1
        while ticks != before and time.monotonic() < deadline:
            # Five of the kernel's ticks: a shorter time may end between two of them.
            time.sleep(0.05)
            ticks, before = self._cpu_ticks(), ticks
        return answer

    def close(self) -> None:
        """End the process, whatever it is doing."""
        super().close()
        if self._cache:
            self._cache.cleanup()

    def _cpu_ticks(self) -> int:
        """Return the processor time used so far, in the kernel's ticks of 10 ms."""
        # The command's name in parentheses may itself contain spaces and parentheses. utime and
        # stime are fields 14 and 15 of proc(5), and the first one here is field 3.
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])


def variant_worker(variant: Variant, workload: Workload) -> Worker:
    """Start a variant's worker and wait until it is prepared.

    Raises:
        WorkerDiedError: It could not be prepared.
        InputError: The variant needs something that is not here.
    """
    return Worker(
        variant.name,
        module="profiling.bench.worker",
        specification={**asdict(variant), "workload": asdict(workload)},
        environment=variant.environment,
        cache_variable=variant.cache_variable,
        python=variant.interpreter.python if variant.interpreter else None,
    )


def runs_alone(variant: Variant, workload: Workload, *, count: int = 1) -> list[Run]:
    """Return successive runs of a variant in a new process, which ends with them.

    Raises:
        WorkerDiedError, InputError: As `variant_worker`.
    """
    with closing(variant_worker(variant, workload)) as worker:
        return [worker.run() for _ in range(count)]


class WorkerPool:
    """Warmed-up workers by variant; leaving the context ends them all.

    If there is not enough memory for all at once, some are ended, and started again at their
    next turn.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        warm_up: int,
        print_line: Callable[[str], None],
        available: Callable[[], float] = available_mb,
        start: Callable[[Variant, Workload], Runner] = variant_worker,
    ) -> None:
        """`warm_up` runs are not counted; `available` returns the free memory in MB."""
        self.workload = workload
        self.warm_up = warm_up
        self.print_line = print_line
        self.available = available
        self.start = start
        self.workers: dict[str, Runner] = {}  # the one that ran last comes last
        self.peak_mb: dict[str, float] = {}
        self.facts: dict[str, dict[str, float]] = {}
        self._reported: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.workers.values():
            worker.close()

    def worker(self, variant: Variant) -> Runner:
        """Return the variant's worker, started and warmed up if it is not there.

        Raises:
            WorkerDiedError: It ended by itself.
        """
        name = variant.name
        # Removed and inserted again: a dict is ordered by insertion, and so by the last turns.
        worker = self.workers.pop(name, None)
        if worker is not None:
            self.workers[name] = worker
            # An idle worker keeps its resident memory, so only its growth to the peak is needed.
            self._make_room(self.peak_mb[name] - worker.rss_mb, keep=name)
            return worker
        # Before its first run, a variant is assumed to need as much as the largest so far.
        self._make_room(self.peak_mb.get(name, max(self.peak_mb.values(), default=0.0)))
        worker = self.start(variant, self.workload)
        self.workers[name] = worker
        self.facts[name] = worker.facts
        self.peak_mb.setdefault(name, 0.0)
        for _ in range(self.warm_up):
            self.peak_mb[name] = worker.run().peak_rss_mb
        return worker

    def _make_room(self, need_mb: float, *, keep: str | None = None) -> None:
        """End idle workers until `need_mb` are free: first the one whose next turn is farthest."""
        # The order of turns is fixed: the worker that ran last waits longest for its next turn.
        for name in reversed([name for name in self.workers if name != keep]):
            if self.available() >= need_mb + SPARE_MB:
                return
            self.workers.pop(name).close()
            if name not in self._reported:
                self._reported.add(name)
                self.print_line(
                    f"too little memory for all processes: {name} is restarted in every round"
                )


def run_interleaved(
    pool: WorkerPool,
    variants: Sequence[Variant],
    rounds: int,
    *,
    advance: Advance,
    settling: int = 0,
) -> Iterator[dict[str, Run]]:
    """Run every variant once in every round, after the warm-up of all; yield each round's runs.

    `advance` is called with the number of runs done, those of the warm-up included. The first
    `settling` runs of every turn are not counted.

    Raises:
        WorkerDiedError: A worker ended by itself.
    """
    done = 0
    for variant in variants:
        advance(done, f"warming up {variant.name}")
        pool.worker(variant)
        done += pool.warm_up
    for _ in range(rounds):
        runs = {}
        for variant in variants:
            worker = pool.worker(variant)
            for _ in range(settling):
                worker.run()
            runs[variant.name] = run = worker.run()
            done += 1
            advance(done, f"{variant.name} {run.seconds:.3f} s")
        yield runs


LOOP = """
import os, sys
print(flush=True)
while os.getppid() == int(sys.argv[1]):
    sum(range(100_000))
"""
"""A busy loop that ends with the process that started it, however that ends."""


@contextmanager
def busy_cores(cpus: Sequence[int]) -> Iterator[None]:
    """Keep each of these CPUs busy while the context lasts, by a process bound to it."""
    command = [sys.executable, "-I", "-c", LOOP, str(os.getpid())]
    with ExitStack() as loops:
        for cpu in cpus:
            process = loops.enter_context(
                # A session of its own: Linux shares a core's time by session (autogroup).
                subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
            )
            # Callbacks run in reverse order: killed first, then waited for by the exit of Popen.
            loops.callback(process.kill)
            os.sched_setaffinity(process.pid, {cpu})
            assert process.stdout is not None
            process.stdout.readline()  # it is busy from now on
        yield
