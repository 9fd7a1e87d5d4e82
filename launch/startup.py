"""An error before the ranks have met is printed once, and all ranks exit with its status.

TODO-DOC A limit on what may wait for ever inside a library, where no exception can reach it.
"""

import io
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from common.errors import InputError, described, exit_code_of
from launch.ranks import Ranks
from launch.rendezvous import (
    MPI_LAUNCHERS,
    StartFailedError,
    exchange,
    finalize,
    is_running,
    start_mpi,
)

SECONDS_TO_BE_ENDED = 3.0
"""After rank 0 has ended with the same error, a launcher without MPI ends the others."""
SECONDS_TO_AGREE = 60.0
"""In which the other ranks of mpirun come to the exchange in which they learn of an error."""


@contextmanager
def rank0_only_errors(ranks: Ranks) -> Iterator[None]:
    """Keep ranks other than 0 silent meanwhile, and end all of them if one fails.

    mpirun's ranks tell each other: rank 0 prints its own error, or that of the lowest rank that has
    one, and all exit with its status. Other launchers' ranks hold their own error back until rank 0
    has had time to end in the same way.
    """
    held_back = io.StringIO()
    try:
        with silenced(held_back) if ranks.rank else nullcontext():
            yield
    except BaseException as error:
        if ranks.size > 1 and not ended_well(error):
            failure = (code_of(error), text_of(error, printed=held_back.getvalue(), ranks=ranks))
            with hard_limit(SECONDS_TO_AGREE, *failure):
                failed = failure_of_all(ranks, error, failure=failure)
            if failed is not None and not (failed.rank == ranks.rank == 0):
                end_with(failed, prints=ranks.is_first)
            if failed is None:
                time.sleep(SECONDS_TO_BE_ENDED if ranks.rank else 0)
                sys.stderr.write(held_back.getvalue())
        raise


@contextmanager
def silenced(errors: io.StringIO) -> Iterator[None]:
    """Drop what is printed meanwhile, but keep what goes to stderr."""
    with (
        Path(os.devnull).open("w", encoding="utf-8", errors="replace") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(errors),
    ):
        yield


def ended_well(error: BaseException) -> bool:
    """Whether it is the end of `--help`."""
    return isinstance(error, SystemExit) and not error.code


def failure_of_all(
    ranks: Ranks, error: BaseException, *, failure: tuple[int, str]
) -> StartFailedError | None:
    """Agree with the other ranks of mpirun on how they end, and finalize MPI.

    Returns:
        The failure with which all end; None where there is no MPI to agree through.
    """
    if ranks.launcher not in MPI_LAUNCHERS:
        return None
    if "mpi4py.MPI" not in sys.modules:
        with suppress(InputError):
            start_mpi(ranks, os.environ)
    if not is_running(ranks) or isinstance(error, KeyboardInterrupt):
        return None
    try:
        if isinstance(error, StartFailedError):
            raise error
        exchange(None, failure=failure)
    except StartFailedError as agreed:
        finalize()
        return agreed
    raise AssertionError("an exchange with a failure always raises")


def end_with(failed: StartFailedError, *, prints: bool) -> NoReturn:
    """Exit with the status that all ranks have agreed on.

    By way of the interpreter's and C's exit, in which MPICH tells its launcher that all is well.
    """
    if prints:
        print(failed.text, file=sys.stderr, flush=True)
    raise SystemExit(failed.code)


@contextmanager
def hard_limit(seconds: float, code: int, text: str) -> Iterator[None]:
    """End the process with this text and exit code if the context lasts longer."""

    def end() -> None:
        print(text, file=sys.__stderr__, flush=True)
        os._exit(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def code_of(error: BaseException) -> int:
    """The exit status with which a command ends that such an error has reached."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    return error.code if isinstance(error, StartFailedError) else exit_code_of(error)


def text_of(error: BaseException, *, printed: str, ranks: Ranks) -> str:
    """What rank 0 prints of an error of this rank; `printed`: what the rank has held back."""
    text = printed.strip() if isinstance(error, SystemExit) else described(error)
    if text is None:
        text = "".join(traceback.format_exception(error)).strip()
    return f"rank {ranks.rank} on {socket.gethostname()}: {text}"


TOO_LATE = 1
NOTICE_S = 30.0
NOTICE_SHARE = 0.25
"""A note is printed after 30 s, or after this share of a limit below two minutes."""


@dataclass
class Wait:
    """What a process waits for at the moment, for messages; whoever waits keeps it up to date."""

    what: str
    """Such as "rank 0 at 10.0.0.1, port 29500"."""
    advice: str
    """What may be wrong, and where to look."""
    noted: bool = True
    """Whether a note is printed while it lasts; the end of the limit always is."""


@contextmanager
def deadline(seconds: float, who: str, wait: Wait) -> Iterator[None]:
    """End the process with one line on stderr if the context lasts longer than so many seconds.

    A note is printed after `NOTICE_S`.

    Args:
        seconds: The limit.
        who: A sentence's beginning, such as "rank 3 on node-b".
        wait: What the process waits for.
    """

    def note() -> None:
        if wait.noted:
            print(
                f"note: {who} has waited {notice_s:g} s for {wait.what}, and waits for up to "
                f"{seconds:g} s: {wait.advice}",
                file=sys.stderr,
                flush=True,
            )

    def end() -> None:
        print(
            f"error: {who} waited {seconds:g} s for {wait.what}: {wait.advice}",
            file=sys.stderr,
            flush=True,
        )
        os._exit(TOO_LATE)

    notice_s = min(NOTICE_S, NOTICE_SHARE * seconds)
    timers = [threading.Timer(notice_s, note), threading.Timer(seconds, end)]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
