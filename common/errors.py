"""Errors that end a command, exit statuses, and one-line messages.

Text in messages comes from files, logs and the environment, and is made printable. A data-loading
process that was killed, such as by the kernel when out of memory, raises a RuntimeError of torch at
whatever line the main thread is; its message is made clear here.
"""

import ctypes
import errno
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from numbers import Integral


class InputError(ValueError):
    """Bad input. The message is one line: the file, the field, what was expected, and the fix.

    Commands print it to stderr and exit with status 2; anything else that escapes is our bug.
    Names and values from outside are made printable and cut to a bounded length.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class NonFiniteLossError(ArithmeticError):
    """A loss or a gradient was infinite or NaN; the weights are those of the step before."""


class WorkerDiedError(RuntimeError):
    """A worker's process ended before it answered; the message has the reason in one line."""


# A BaseException, like KeyboardInterrupt: a signal handler raises it in any line, where an
# `except Exception` would catch other errors.
class StoppedBeforeStart(BaseException):
    """A signal ended a run before its first step; the message names the signal."""


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt(SIGTERM) while the context lasts; for the main thread.

    By default it ends Python without its `finally` blocks, and what those stop would continue. A
    signal that the caller has chosen to ignore stays ignored.
    """
    previous = signal.getsignal(signal.SIGTERM)
    if previous in (signal.SIG_IGN, None):  # None: a handler that Python cannot restore
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt(signal.SIGTERM)

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


FINISHED = 0
OUR_BUG = 1
BAD_INPUT = 2
LOSS_NOT_FINITE = 3
CONDITION_MET = 4  # that of `--fail-if` or of `--max-drop`, or an official check was not passed
STOPPED_TOO_EARLY = 5
"""A signal stopped a run before it had made any progress. Batch scripts do not queue it again: with
the same time limit it would be stopped at the same place for ever."""
STOPPED_BY_SIGNAL = 75
"""sysexits' EX_TEMPFAIL: progress was saved, and the same command with `--resume` continues."""
INTERRUPTED = 130
"""128 + SIGINT, as in shells: Ctrl-C before there was anything to save, or twice; or in `predict`,
which keeps its results; or SIGTERM in commands that have no status of their own for it."""

REFUSED_NAMES = (errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP, errno.ENOTDIR)
"""Errors of the system about names that users give, wherever they are looked up first."""


def is_refused_name(error: BaseException) -> bool:
    """Return whether the system refused a file's name, which is the user's mistake."""
    is_refused = isinstance(error, OSError) and error.errno in REFUSED_NAMES
    return is_refused and error.filename is not None  # type: ignore[attr-defined]


@contextmanager
def names_checked() -> Iterator[None]:
    """Raise InputError for a name that the system refuses, where no command does it; see above."""
    try:
        yield
    except OSError as error:
        if is_refused_name(error):
            raise InputError(f"{error.filename}: {error.strerror}") from error
        raise


def exit_code_for(error: BaseException) -> int:
    """Return the exit code of a command that such an error ends."""
    if isinstance(error, InputError) or is_refused_name(error) or missing_package(error):
        return BAD_INPUT
    if isinstance(error, NonFiniteLossError):
        return LOSS_NOT_FINITE
    if isinstance(error, StoppedBeforeStart):
        return STOPPED_TOO_EARLY
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else OUR_BUG


def format_error(error: BaseException) -> str | None:
    """Return the line for stderr; None for an error that needs its traceback."""
    if isinstance(error, InputError | NonFiniteLossError | WorkerDiedError):
        return f"error: {error}"
    if is_refused_name(error):
        assert isinstance(error, OSError)
        return f"error: {one_line(f'{error.filename}: {error.strerror}')}"
    if isinstance(error, StoppedBeforeStart):
        return f"{error} before the first step: nothing was written; run the same command again"
    if worker := killed_worker(error):
        return f"error: {worker}"
    if package := missing_package(error):
        return (
            f"error: {package} is not installed, which this command needs; install it, or "
            "retinanet-cpu with all that it needs"
        )
    return "interrupted" if isinstance(error, KeyboardInterrupt) else None


OUR_PACKAGES = ("common", "data", "launch", "profiling", "retinanet", "train")


def missing_package(error: BaseException) -> str:
    """Return the package of somebody else that an import did not find; empty if it is not that."""
    if not isinstance(error, ModuleNotFoundError):
        return ""
    package = (error.name or "").partition(".")[0]
    # Of a package that is there, a module is missing: that is our bug, or the package's.
    is_there = not package or package in OUR_PACKAGES or find_spec(package) is not None
    return "" if is_there else package


LONGEST = 2000  # characters of a message
END_LENGTH = 500  # of those, taken from the end, where the fix is
# All characters at which `str.splitlines` ends a line.
BREAKS = re.compile(r"\s*[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]\s*")


def printable(text: str) -> str:
    """Return the text with a � for each control character or other unprintable one."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def require_count(value: object, *, name: str) -> None:
    """Raise InputError unless an argument is a whole number from 1, of numpy too."""
    if not isinstance(value, Integral) or value < 1:
        raise InputError(f"{name}: expected a whole number from 1, found {value!r}")


MOST_CLASSES = 99_999  # Each is an output of the model, for every anchor


def require_few_classes(source: object, count: int) -> None:
    """Raise InputError, opening with `source`, for more classes than a model may have.

    Whatever reads a list of classes calls it as soon as their number is known.
    """
    if count > MOST_CLASSES:
        raise InputError(
            f"{source}: has more than {MOST_CLASSES:,} classes, the limit of a model; leave out "
            "those without boxes, or check that this is a list of classes"
        )


def one_line(text: str) -> str:
    """Return one printable line of at most `LONGEST` characters; its middle is left out."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - END_LENGTH - 3]} … {text[-END_LENGTH:]}"
    return printable(BREAKS.sub(" ", text.strip()).replace("\t", " "))


ENDED = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? (?P<process>\d+)[\d, ]*\) "
    r"(?:is killed by signal: (?P<signal>[\w ()]+)|exited unexpectedly)"
)
"""torch's messages, for one process or several."""


def killed_worker(error: BaseException | None) -> str | None:
    """Return a line on the killed loading process that an error comes from, or None."""
    ended = None
    # torch may wrap the error that names the signal. Its handler of SIGCHLD raises it wherever the
    # main thread is; ctypes makes an ArgumentError of it while it converts a kernel's arguments.
    while isinstance(error, RuntimeError | ctypes.ArgumentError):
        match = ENDED.search(str(error))
        ended = match if match and (ended is None or match["signal"]) else ended
        error = error.__cause__ or error.__context__
    if ended is None:
        return None
    # `Killed`, the C library's description of a signal, becomes SIGKILL; other words stay.
    names = {signal.strsignal(number): number.name for number in signal.Signals}
    name = ended["signal"] and names.get(ended["signal"].strip(), ended["signal"].strip())
    end = f"was killed by {name}" if name else "ended unexpectedly"
    fix = "reduce data.workers (0: load in the training process), or provide more memory"
    if name == signal.SIGBUS.name:
        # Batches reach the training process through shared memory. The kernel allocates a page when
        # it is first written, and sends SIGBUS if there is no space.
        fix = "/dev/shm is full: use docker run --shm-size=1g (or --ipc=host), or data.workers=0"
    cause = " (out of memory?)" if name == signal.SIGKILL.name else ""
    return (
        f"data loading: process {ended['process']} on {socket.gethostname()} {end}{cause}; {fix}; "
        "--resume continues from the last checkpoint"
    )
