"""A rank as the child of a small process, so that its end need not be the end of the job.

Launchers end all ranks when one of them ends badly. Where compute groups go on without a group that
has ended, the launcher must not hear of it: it sees the keeper, which then ends well.
"""

import ctypes
import math
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from data.worker_signals import STOPS
from launch.group.launcher_process import is_gone
from retinanet.exit_codes import FINISHED, INTERRUPTED, OUR_BUG

SECONDS_BETWEEN_LOOKS = 1.0
"""At whether the launcher is still there, and the rank alive."""
ENDED_BY_SIGNAL = 128
MOST_BEATS = 4096


@dataclass(frozen=True)
class Keeper:
    """The rank's side."""

    pipe: int

    def beat(self) -> None:
        """Say that this rank lives, and from the first time on, that the other ranks watch it too.

        They then notice its end, and decide what it means to them.
        """
        with suppress(BlockingIOError, BrokenPipeError):  # the keeper is stopped, or gone
            os.write(self.pipe, b".")


def keep_this_rank(*, launcher: int | None, silence_s: float) -> Keeper:
    """Go on in a child of this process, which stays behind, small, until that has ended.

    Args:
        launcher: The process that has started this rank; where it ends the keeper does.
        silence_s: A rank that has not beaten for so long has been given up, and is killed.
    """
    heard = {*STOPS, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    reads, writes = os.pipe2(os.O_NONBLOCK)
    rank = os.fork()
    if rank:
        os.close(writes)
        code, watched = ended(rank, heard, beats=reads, launcher=launcher, silence_s=silence_s)
        end_keeper(code, watched=watched)
    os.close(reads)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Keeper(writes)


def ended(
    rank: int,
    heard: set[signal.Signals],
    *,
    beats: int,
    launcher: int | None,
    silence_s: float,
) -> tuple[int, bool]:
    """Hand on signals until a rank has ended.

    Returns:
        Its exit code, as shells count, and whether it had begun to beat.
    """
    last_beat = math.inf
    while True:
        found = signal.sigtimedwait(heard, SECONDS_BETWEEN_LOOKS)
        if found is not None and found.si_signo in STOPS:
            os.kill(rank, found.si_signo)
        if beaten(beats):
            last_beat = time.monotonic()
        process, status = os.waitpid(rank, os.WNOHANG)
        if process:
            code = os.waitstatus_to_exitcode(status)
            return (code if code >= 0 else ENDED_BY_SIGNAL - code), last_beat < math.inf
        if time.monotonic() - last_beat > silence_s:  # stopped: else the job would wait for it
            os.kill(rank, signal.SIGKILL)
        if is_gone(launcher):  # the rank sees that its parent has gone, and stops
            os._exit(OUR_BUG)


def beaten(beats: int) -> bool:
    """Whether the rank has, since the last look."""
    try:
        return bool(os.read(beats, MOST_BEATS))
    except BlockingIOError:
        return False


def end_keeper(code: int, *, watched: bool) -> NoReturn:
    """End as the launcher is to hear of a rank that has ended with this code."""
    died = code == OUR_BUG or (code >= ENDED_BY_SIGNAL and code != INTERRUPTED)
    if died and watched:
        # By way of C's exit: MPICH tells the launcher there that it is done, as the rank could not.
        ctypes.CDLL(None).exit(FINISHED)
    os._exit(code)
