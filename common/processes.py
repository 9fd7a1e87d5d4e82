"""A Python module in a process of its own, which is asked in lines and answers in JSON.

TODO-DOC Processes that share out work, and end with this one.

TODO-DOC Signals in processes that load or check images.

Ctrl-C, and what a batch system or Open MPI's mpirun sends, reach all processes of a run. The
training process ends its step first, for which it needs its workers; then it ends them by a SIGTERM
of its own.

TODO-DOC Where what C code prints goes: descriptors of this process, turned elsewhere for a while.
"""

import contextlib
import ctypes
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stdout
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

from common.errors import InputError

REPOSITORY = Path(__file__).resolve().parents[1]


class JsonWorker:
    """The process, alive until `close`."""

    def __init__(
        self,
        module: str,
        specification: Mapping[str, Any],
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start `python -m module SPECIFICATION`; `environment` comes beside this process's own."""
        self._errors: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(specification)],
            cwd=REPOSITORY,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            process_group=0,  # Ctrl-C reaches the caller alone, which then ends the process
        )
        self.pid = self._process.pid

    def ask(self, question: str) -> None:
        """Put a question, a line; that nobody is there to read it is told by `answer`."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{question}\n")
            self._process.stdin.flush()

    def answer(self) -> dict[str, Any] | None:
        """The next answer; None where there will be none."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    def cause_of_death(self) -> str:
        """Why it ended, in a few words: the signal, or its last line of errors."""
        status = self._process.wait()
        if status < 0:
            name = signal.Signals(-status).name
            hint = " (out of memory?)" if name == "SIGKILL" else ""
            return f"its process was ended by {name}{hint}"
        return f"its process ended with status {status}: {self.last_words()}"

    def last_words(self) -> str:
        """The last line of its errors, once it has ended."""
        self._process.wait()
        self._errors.seek(0)
        return (self._errors.read().strip().splitlines()[-1:] or ["it said nothing"])[0]

    def close(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None and not stream.closed:
                with contextlib.suppress(BrokenPipeError):  # a question that nobody read
                    stream.close()


SECONDS_BETWEEN_SIGNALS = 0.2
"""How long Ctrl-C waits at the most."""

Task = TypeVar("Task")
Result = TypeVar("Result")


def usable_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0))


@contextmanager
def process_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this one, whatever ends it, after the task that each is in.

    They are copies of this process, so start them before threads, such as a progress bar's. While
    the context lasts, Ctrl-C and SIGTERM come through between two results of `results_of` alone:
    an exception out of the middle of the pool's own code would leave its locks taken for ever.
    """
    pool = ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("fork"),  # others would import torch in each
        initializer=begin,
    )
    with signals_blocked():
        try:
            pool.submit(os.getpid)  # the first task starts them all
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)


def begin() -> None:
    """Work on one thread, and end when the parent has ended, even if that was killed."""
    os.environ["OMP_NUM_THREADS"] = "1"  # for libraries that a decoder loads now
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def results_of(
    pool: ProcessPoolExecutor,
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    at_once: int,
) -> Iterator[Result]:
    """The function's results, as they come, not in the order of the tasks.

    Only `at_once` of the tasks are handed out at a time, so that millions of them take no memory.

    Raises:
        InputError: A process was killed, as the kernel does where memory runs out.
    """
    left = iter(tasks)
    running: set[Future[Result]] = set()
    try:
        while True:
            room = at_once - len(running)
            running |= {pool.submit(function, task) for task in islice(left, room)}
            if not running:
                return
            done, running = wait(
                running, timeout=SECONDS_BETWEEN_SIGNALS, return_when=FIRST_COMPLETED
            )
            let_signals_in()
            for future in done:
                yield future.result()
    except BrokenProcessPool as error:
        raise InputError(
            "a process that reads images was killed, most likely for want of memory; "
            "run on fewer cores: taskset -c 0-1 and the same command"
        ) from error


STOPS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGUSR1})
"""Signals that ask a run to stop."""


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Processes that are started meanwhile never hear `STOPS`, in any of their threads.

    This process gets what has come meanwhile afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def let_signals_in() -> None:
    """Under `signals_blocked`, take what has come until now: Ctrl-C raises KeyboardInterrupt."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)


PR_SET_PDEATHSIG = 1
"""From Linux's prctl.h."""


def obey_parent(worker: int, *, parent: int) -> None:
    """End this process, which was started under `signals_blocked`, when its parent asks or is gone.

    A parent that was killed cannot ask. Its connections are this process's too, so that others
    would not notice its end while this process lives.

    Args:
        worker: Its number, as a DataLoader's `worker_init_fn` gets it.
        parent: The parent's process number.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before
        os._exit(1)
    threading.Thread(target=end_when_parent_asks, name=f"signals of {worker}", daemon=True).start()


def end_when_parent_asks() -> None:
    """Wait for a SIGTERM that the parent has sent."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


OUTPUT, ERRORS = 1, 2


@contextmanager
def redirected(descriptor: int, target: int) -> Iterator[None]:
    """Have what is written to a descriptor go where another one does, exact to the line.

    Raises:
        OSError: One of them is closed.
    """
    flush_c()
    kept = os.dup(descriptor)
    try:
        os.dup2(target, descriptor)
        yield
    finally:
        flush_c()
        os.dup2(kept, descriptor)
        os.close(kept)


@contextmanager
def errors_to_nowhere() -> Iterator[None]:
    """Drop what C++ says on stderr."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        with redirected(ERRORS, nowhere):
            yield
    finally:
        os.close(nowhere)


@contextmanager
def python_output_apart() -> Iterator[None]:
    """Give Python's own stdout another descriptor of the same terminal, file or pipe.

    So `redirected` can take descriptor 1, and neither this program's words nor the progress bar,
    which a thread draws, land in a log.
    """
    apart = copy_of_output()
    if apart is None:
        yield
        return
    try:
        with redirect_stdout(apart):
            yield
    finally:
        apart.close()


def copy_of_output() -> io.TextIOWrapper | None:
    """sys.stdout on a descriptor of its own; None where it is not on descriptor 1."""
    output = sys.stdout
    try:
        if not isinstance(output, io.TextIOWrapper) or output.fileno() != OUTPUT:
            return None
    except io.UnsupportedOperation:
        return None
    output.flush()
    return io.TextIOWrapper(
        os.fdopen(os.dup(OUTPUT), "wb", 0 if output.write_through else -1),
        encoding=output.encoding,
        errors=output.errors,
        line_buffering=output.line_buffering,
        write_through=output.write_through,
    )


def flush_c() -> None:
    """Write out what C's stdio holds back until a buffer is full, as it does for files."""
    ctypes.CDLL(None).fflush(None)
