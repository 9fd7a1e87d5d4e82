"""What a command's exit status says to scripts and schedulers."""

import errno

from data.killed_workers import killed_worker
from retinanet.errors import InputError, NonFiniteLossError, StoppedBeforeStart
from retinanet.printable import one_line

FINISHED = 0
OUR_BUG = 1
BAD_INPUT = 2
LOSS_NOT_FINITE = 3
CONDITION_MET = 4
"""A comparison went as `--fail-if` says it must not, or an official check was not passed."""
STOPPED_BY_SIGNAL = 75
"""After writing a checkpoint: the same command with `--resume` goes on. Or before the first step:
the same command begins again. (sysexits' EX_TEMPFAIL)"""
INTERRUPTED = 130
"""Ctrl-C before there was anything to keep, or twice; or in `predict`, which keeps what it has done
(128 + SIGINT, as shells count)."""

REFUSED_NAMES = (errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP, errno.ENOTDIR)
"""What the system says of the names that users give, wherever they are looked up first."""


def is_refused_name(error: BaseException) -> bool:
    """Return whether the system refused a file's name, which is the user's mistake."""
    is_refused = isinstance(error, OSError) and error.errno in REFUSED_NAMES
    return is_refused and error.filename is not None  # type: ignore[attr-defined]


def exit_code_of(error: BaseException) -> int:
    """With which a command ends that such an error has reached."""
    if isinstance(error, InputError) or is_refused_name(error):
        return BAD_INPUT
    if isinstance(error, NonFiniteLossError):
        return LOSS_NOT_FINITE
    if isinstance(error, StoppedBeforeStart):
        return STOPPED_BY_SIGNAL
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else OUR_BUG


def described(error: BaseException) -> str | None:
    """What to say of it in one line on stderr; None where only its traceback will do."""
    if isinstance(error, InputError | NonFiniteLossError):
        return f"error: {error}"
    if is_refused_name(error):
        assert isinstance(error, OSError)
        return f"error: {one_line(f'{error.filename}: {error.strerror}')}"
    if isinstance(error, StoppedBeforeStart):
        return f"{error} before the first step: nothing was written; the same command begins again"
    if worker := killed_worker(error):
        return f"error: {worker}"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else None
