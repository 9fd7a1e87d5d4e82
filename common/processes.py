"""Start processes and follow them, send requests to workers, and distribute tasks.

None of it loads torch.

- A command in a process group of its own (`start_process`, `running`, `wait_for`, `stop_process`,
  `exit_reason`). A terminal sends Ctrl-C to its whole group, so that it reaches the caller alone,
  which then stops the command.
- A command that ends when its caller does, however that ends (`start_with_caller`, and
  `end_with_caller` in the command).
- A worker: a Python module that prepares something in a process of its own and then answers
  questions (`JsonWorker` is the caller's side, `serve` the worker's).
- A pool of processes for many small tasks (`process_pool`, `run_tasks`), and signals in processes
  that load images. Ctrl-C, and signals of a batch system or Open MPI's mpirun, reach all processes
  of a run. The training process ends its step first, for which it needs its workers; then it ends
  them by SIGTERM.
"""

import ctypes
import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

from common.errors import InputError, WorkerDiedError, interrupted_by_sigterm
from common.program import module_command, working_folder

SECONDS_TO_END = 10.0  # between SIGTERM and SIGKILL
SECONDS_TO_SAVE = 600.0  # between SIGTERM and SIGKILL for a run that ends its step and saves
SECONDS_BETWEEN_SIGNALS = 0.2  # how long Ctrl-C waits at the most
STOPS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGUSR1})  # signals that stop a run
PR_SET_PDEATHSIG = 1  # from Linux's prctl.h

Task = TypeVar("Task")
Result = TypeVar("Result")
Answering = Callable[[Any], Mapping[str, Any]]


def start_process(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    stdin: int | None = subprocess.DEVNULL,
    **options: Any,
) -> subprocess.Popen[str]:
    """Start a command in a separate process group, which does not receive a terminal's Ctrl-C.

    `environment` holds all variables (None: those of this process); `options` are those of
    `subprocess.Popen`, such as `stdout` and `cwd`. Raises OSError if the command cannot be started.
    """

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=stdin,
            text=True,
            errors="replace",
            process_group=0,
            **options,
        )

    return started_or_ended(start)


def started_or_ended(start: Callable[[], subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """Return the process that `start` starts; end it if Ctrl-C or SIGTERM comes meanwhile.

    An interrupted `Popen` leaves the command running, and nobody knows its number.
    """
    process: subprocess.Popen[str] | None = None
    try:
        with signals_delayed(signal.SIGINT, signal.SIGTERM):
            process = start()
    except BaseException:
        if process is not None:
            stop_process(process)
        raise
    return process


@contextmanager
def signals_delayed(*numbers: signal.Signals) -> Iterator[None]:
    """Call this process's own handlers of signals only at the end of the context.

    Python calls them in the main thread alone: in another one there is nothing to delay.
    """
    handlers = {number: signal.getsignal(number) for number in numbers}
    own = [number for number, handler in handlers.items() if callable(handler)]
    if threading.current_thread() is not threading.main_thread():
        own = []
    received: list[int] = []
    for number in own:
        signal.signal(number, lambda given, _: received.append(given))
    try:
        yield
    finally:
        for number in own:
            signal.signal(number, handlers[number])
        for given in dict.fromkeys(received):
            signal.raise_signal(given)


def finished(
    command: Sequence[str | Path], *, seconds: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Return a short command that has ended, with its output.

    If it cannot be started or is killed after the `seconds`, its errors are the reason.
    """
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


@contextmanager
def running(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a command while the context lasts; Ctrl-C and SIGTERM stop it before this process.

    For the main thread. `options` are those of `start_process`.
    """
    with interrupted_by_sigterm():
        process = start_process(command, **options)
        try:
            yield process
        finally:
            stop_process(process, patience_s=SECONDS_TO_END)


def wait_for(process: "subprocess.Popen[Any]", look: Callable[[], None], *, every_s: float) -> int:
    """Call `look` every few seconds until a process has ended; return its exit status."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(every_s)
        look()


def stop_process(process: "subprocess.Popen[Any]", *, patience_s: float = 0.0) -> None:
    """Send SIGTERM to a process that still runs, then kill its whole group; close its streams.

    A launcher has `patience_s` seconds to end what it has started, until it is killed, or until a
    second Ctrl-C; 0: without SIGTERM.
    """
    if process.poll() is None:
        try:
            if patience_s > 0:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(patience_s)
        finally:
            # The whole group, since a launcher leaves its children running when it is killed, and
            # one that is a shell script (Intel MPI's mpirun) also when it ends on SIGTERM.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(BrokenPipeError):  # unread text was left in it
                stream.close()


CALLER = "RETINANET_CALLER"
"""The variable with the descriptor of a pipe that closes when the caller ends."""


def start_with_caller(
    command: Sequence[str | Path], *, environment: Mapping[str, str] | None = None, **options: Any
) -> tuple[subprocess.Popen[str], int]:
    """Start a command that calls `end_with_caller`, as `start_process` starts one.

    It gets SIGTERM when this process ends, also if it is killed, or closes the descriptor that is
    returned with the process. A process that is forked from this one holds the descriptor too.
    """
    reading, writing = os.pipe()
    try:
        process = start_process(
            command,
            environment={
                **(os.environ if environment is None else environment),
                CALLER: str(reading),
            },
            pass_fds=[reading],
            **options,
        )
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    return process, writing


def end_with_caller() -> None:
    """Send this process SIGTERM when its caller ends, if `start_with_caller` has started it.

    If it still runs after `SECONDS_TO_SAVE`, it is killed with all that it has started.
    """
    # The variable stays, since a rank may start its own command again, with the same descriptors.
    # A process that only inherited it has another descriptor under this number, or none.
    descriptor = os.environ.get(CALLER, "")
    if not descriptor.isdecimal():
        return

    def wait() -> None:
        with suppress(OSError):
            if not stat.S_ISFIFO(os.fstat(int(descriptor)).st_mode):
                return
            while os.read(int(descriptor), 1):  # nothing is ever written: the end of the pipe
                pass
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(SECONDS_TO_SAVE)
            # Nobody else would end a process that hangs. It leads a group of its own.
            os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=wait, name="caller", daemon=True).start()


def signal_name(number: int) -> str:
    """Return the name of a signal that ended a process, with its probable cause."""
    name = signal.Signals(number).name
    return f"{name} (out of memory?)" if name == "SIGKILL" else name


def exit_reason(status: int, errors: str) -> str:
    """Return why a process ended: the signal (`status` < 0), or its last line of errors."""
    if status < 0:
        return f"its process was ended by {signal_name(-status)}"
    last_line = (errors.strip().splitlines() or ["no error output"])[-1]
    return f"its process ended with status {status}: {last_line}"


class JsonWorker:
    """The caller's side of a module that prepares something in a process and answers questions.

    The process is `PYTHON -m MODULE SPECIFICATION DESCRIPTOR`, which calls `serve`, and lives until
    `close`; `python` is another environment's interpreter (None: this one's). Questions are lines
    of JSON on its stdin, answers lines of JSON on the descriptor. Its other output is stored for
    the reason of a failure. It ends when its stdin does, so that it does not outlive the caller.
    `facts` is the worker's description of what it has prepared.

    Raises:
        WorkerDiedError: It could not be prepared; the message begins with `name`.
        InputError: The specification needs what is not here.
    """

    def __init__(
        self,
        module: str,
        specification: Mapping[str, Any],
        *,
        name: str = "",
        environment: Mapping[str, str] | None = None,
        python: str | None = None,
    ) -> None:
        self._prefix = f"{name}: " if name else ""
        # A file and not a pipe: nobody reads while the worker runs, and a full pipe would block it.
        self._errors: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        # Answers have a pipe of their own, since libraries print to stdout, some of them from C.
        reading, writing = os.pipe()
        self._answers = os.fdopen(reading)
        try:
            self._process = start_process(
                [*module_command(module, python), json.dumps(specification), str(writing)],
                cwd=working_folder(python),
                environment={**os.environ, **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=[writing],
            )
        finally:
            # The process has the only writing end from here on: when it dies, reading ends.
            os.close(writing)
        self.pid = self._process.pid
        try:
            self.facts = self._read()
        except BaseException:
            self.close()
            raise

    def ask(self, question: object) -> dict[str, Any]:
        """Send a JSON value to the worker and return its response.

        Raises:
            WorkerDiedError: It ended before it answered.
            InputError: The question needs what is not here.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # reading gives the reason
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End the process, whatever it is doing."""
        stop_process(self._process)
        self._answers.close()
        self._errors.close()

    def _read(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            status = self._process.wait()
            self._errors.seek(0)
            raise WorkerDiedError(self._prefix + exit_reason(status, self._errors.read()))
        message: dict[str, Any] = json.loads(line)
        if "error" in message and message["is_input"]:
            raise InputError(message["error"])
        if "error" in message:
            raise WorkerDiedError(self._prefix + message["error"])
        return message


def serve(prepare: Callable[[dict[str, Any]], tuple[Mapping[str, Any], Answering]]) -> None:
    """Prepare, then answer questions until there are no more: the worker's side of `JsonWorker`.

    `prepare` gets the specification. It takes cores and memory before it loads torch, for which it
    may start the process's command again. It returns the worker's facts, and a function that
    answers a question.
    """
    with os.fdopen(int(sys.argv[2]), "w", buffering=1) as answers:
        try:
            facts, answer = prepare(json.loads(sys.argv[1]))
            answers.write(json.dumps(facts) + "\n")
            for question in sys.stdin:
                answers.write(json.dumps(answer(json.loads(question))) + "\n")
        except Exception as error:  # the caller reports it
            first_line = str(error).strip().split("\n", maxsplit=1)[0]
            is_input = isinstance(error, InputError)
            kind = "" if is_input else f"{type(error).__name__}: "
            answers.write(json.dumps({"error": kind + first_line, "is_input": is_input}) + "\n")
            raise


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0))


@contextmanager
def process_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Start processes that end with this one, however it ends, after their current task.

    They are copies of this process, so start them before threads, such as a progress bar's. While
    the context lasts, Ctrl-C and SIGTERM are delivered between two results of `run_tasks` only:
    an exception out of the middle of the pool's own code would leave its locks taken for ever.
    """
    pool = ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("fork"),  # others would import torch in each
        initializer=begin_process,
    )
    with signals_blocked():
        try:
            # With `fork` the first task starts all processes, here, so that they inherit the
            # blocked signals.
            pool.submit(os.getpid)
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)


def begin_process() -> None:
    """Compute on one thread, and end at the parent's SIGTERM or death, even if that was killed."""
    os.environ["OMP_NUM_THREADS"] = "1"  # for libraries that a decoder loads now
    parent = multiprocessing.parent_process()
    assert parent is not None and parent.pid is not None
    # The pool ends its other processes by SIGTERM when one was killed.
    exit_with_parent(0, parent=parent.pid)


def run_tasks(
    pool: ProcessPoolExecutor,
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    at_once: int,
) -> Iterator[Result]:
    """Yield the function's results as they come, not in the order of the tasks.

    Only `at_once` of the tasks are submitted at a time, so that millions of them take no memory.
    Raises InputError if a process was killed, as the kernel does where memory runs out.
    """
    remaining = iter(tasks)
    running: set[Future[Result]] = set()
    try:
        while True:
            free = at_once - len(running)
            running |= {pool.submit(function, task) for task in islice(remaining, free)}
            if not running:
                return
            done, running = wait(
                running, timeout=SECONDS_BETWEEN_SIGNALS, return_when=FIRST_COMPLETED
            )
            # Signals sent meanwhile are delivered here: Ctrl-C raises KeyboardInterrupt.
            try:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
            finally:
                signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
            for future in done:
                yield future.result()
    except BrokenProcessPool as error:
        raise InputError(
            "a process that reads images was killed, probably because memory ran out; "
            "use fewer cores, for example with taskset -c 0-1"
        ) from error


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block `STOPS` in the context; processes started in it keep them blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def exit_with_parent(worker: int, *, parent: int) -> None:
    """End this process, started under `signals_blocked`, at its parent's SIGTERM or death.

    A killed parent cannot send a signal. Its connections are this process's too, so that other
    hosts would not notice its end while this process lives. `worker` is the number that a
    DataLoader gives to its `worker_init_fn`, `parent` a process number.
    """
    # In this order: for a parent that has ended before the call, the kernel sends no signal.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before
        os._exit(1)

    def wait_for_sigterm() -> None:
        # Of the parent alone: launchers send SIGTERM to all processes of a run.
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
            pass
        os._exit(0)

    threading.Thread(target=wait_for_sigterm, name=f"signals of {worker}", daemon=True).start()
